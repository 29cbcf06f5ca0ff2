"""The hunks of code that a README shows: a comment that names their file, a sentence, and lines of that file.

    <!-- from sampling.h -->
    `keep_top_k` forbids each token below the k-th largest logit:

    ```cpp
    const float smallest = kth_largest(logits, k);
    ```

The lines are those of the step's file, but may all be indented less. A line `// …` leaves some out."""

import re
from dataclasses import dataclass

from .series import by_file, compare

PATTERN = re.compile(r"^<!-- from (\S+) -->\n((?:(?!```)[^\n]+\n)+)\n```cpp\n((?:(?!```)[^\n]*\n)+)```\n\n?",
                     re.MULTILINE)
LEFT_OUT = "// …"


@dataclass
class Hunk:
    file: str
    told: str    # the sentence above the code
    lines: list  # as the README shows them

    @property
    def text(self):
        return "\n".join(self.lines)

    def numbers(self, text):
        """The number in the file's text, from 1, of each line; None for one that leaves others out. Raises ValueError
        with the line that does not follow the others there."""
        source, farthest = text.splitlines(), 0
        for indent in sorted({len(line) - len(line.lstrip()) for line in source}):
            lines = [" " * indent + line if line else "" for line in self.lines]
            for start in (place for place, line in enumerate(source) if line == lines[0]):
                found = follow(lines, source, start)
                if len(found) == len(lines):
                    return found
                farthest = max(farthest, len(found))
        raise ValueError(self.lines[farthest])


def follow(lines, source, place):
    """The numbers of the lines in the source, the first of which is at `place`; it ends where one is not there."""
    found, skipped = [], False
    for line in lines:
        if line.strip() == LEFT_OUT:
            found.append(None)
            skipped = True
            continue
        if skipped:
            place = next((later for later in range(place + 1, len(source)) if source[later] == line), len(source))
        if place >= len(source) or source[place] != line:
            return found
        found.append(place + 1)
        place, skipped = place + 1, False
    return found


def hunks(readme):
    """The hunks of a README, in their order."""
    return [Hunk(file, " ".join(told.split()), code.splitlines()) for file, told, code in PATTERN.findall(readme)]


def without(readme):
    """The README without its hunks, for a learner who writes the code."""
    return PATTERN.sub("", readme)


def added(step):
    """{file: the numbers of the lines that the step adds}"""
    found = {}
    for name, _, lines in by_file(compare(step.parent, step)):
        new, found[name] = 0, set()
        for line in lines:
            if line.startswith("@@"):
                new = int(re.search(r"\+(\d+)", line)[1]) - 1
            elif not line.startswith(("-", "\\")):
                new += 1
                if line.startswith("+"):
                    found[name].add(new)
    return found
