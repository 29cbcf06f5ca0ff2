"""Writes the checks of a step as one file, to compile them with finished lessons in the place of the step's own copies.

    with_library.py STEP/test.cpp OUT DEPENDENCIES stop_sequences.h row.h ...

A compiler looks for "row.h" beside the including file first. So the step's other files are written in place of their
includes, and these, of common/decoding, are left for the compiler to find. Checks that run the step's program are
skipped: that has its own copies."""

import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from step_commands.running import case_name, program_cases  # noqa: E402


def written_in(path, finished, seen):
    """The text of a file with those of its folder in it, each once; errors name the place that they come from."""
    seen.add(path.name)
    yield f'#line 1 "{path}"'
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        name = re.fullmatch(r'#include "([\w.]+)"', line)
        own = name and (path.parent / name.group(1)).is_file() and name.group(1) not in finished
        if line == "#pragma once" or own and name.group(1) in seen:
            yield ""
        elif own:
            yield from written_in(path.parent / name.group(1), finished, seen)
            yield f'#line {number + 1} "{path}"'
        else:
            yield line


def skipped(text, cases):
    """The text with the named test cases skipped."""
    left = set(cases)

    def decorated(case):
        name = case_name(case.group(1))
        if name not in cases:
            return case.group(0)
        left.discard(name)
        return f"TEST_CASE({case.group(1)} * doctest::skip())"

    text = re.sub(r'TEST_CASE\((\s*"(?:\\.|[^"\\])*"(?:\s*"(?:\\.|[^"\\])*")*)\)', decorated, text)
    if left:
        sys.exit(f"error: cannot skip the test case '{left.pop()}': write it as TEST_CASE(\"name\")")
    return text


def main(test, out, dependencies, *finished):
    test, seen = Path(test).resolve(), set()
    text = skipped("\n".join(written_in(test, finished, seen)), program_cases(test.read_text(encoding="utf-8")))
    Path(out).write_text(text + "\n", encoding="utf-8")
    Path(dependencies).write_text(f"{out}: {' '.join(str(test.parent / name) for name in sorted(seen))}\n", encoding="utf-8")


main(*sys.argv[1:])
