"""The pages of the book, and the blocks of code in them with their lines."""

import re
from dataclasses import dataclass, field

from step_commands.series import ROOT, Problem, steps


@dataclass
class Block:
    """One block of code: indented by four spaces, or between fences with a language."""
    page: "Page"
    line: int  # of its first line, from 1
    language: str
    section: str
    lines: list = field(default_factory=list)

    @property
    def text(self):
        return "\n".join(self.lines)

    @property
    def place(self):
        return f"{self.page.name}:{self.line}"


class Page:
    """One Markdown file."""

    def __init__(self, path):
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.blocks = list(self.find_blocks())

    @property
    def label(self):
        """What its recordings are called by: `06-top-k`, `architecture`, or `readme` for the project's own."""
        name = self.name.removesuffix("/README.md").removesuffix(".md")
        return name.removeprefix("steps/").removeprefix("docs/").replace("/", "-").lower()

    def find_blocks(self):
        block, fence, section, before = None, None, "", ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if fence:
                if line.strip() == fence:
                    yield block
                    block = fence = None
                else:
                    block.lines.append(line)
            elif block and (line.startswith("    ") or not line.strip()):
                block.lines.append(line[4:])
            else:
                if block:
                    yield self.ended(block)
                    block = None
                opened = re.match(r"(`{3,}|~{3,}|:{3,})\s*(\S*)", line)
                if opened:
                    fence, language = opened.groups()
                    block = Block(self, number + 1, language or "text", section)
                elif line.startswith("    ") and not before.strip() and line.strip():
                    block = Block(self, number, "", section, [line[4:]])
                elif line.startswith("#"):
                    section = line.lstrip("#").strip()
            before = line
        if fence:
            raise Problem(f"{self.name}:{block.line - 1}: this block of code never ends; it must end with a line of {fence}.")
        if block:
            yield self.ended(block)

    @staticmethod
    def ended(block):
        while not block.lines[-1].strip():
            block.lines.pop()
        return block


def pages():
    """All pages of the book: the project's README, docs/, and a README a step."""
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for step in steps():
        paths.append(step.folder / "README.md")
        if not paths[-1].is_file():
            raise Problem(f"steps/{step.name} has no README.md, and a step's page begins with it.")
    return [Page(path) for path in paths]
