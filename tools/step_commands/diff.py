"""tools/step list and diff: the lessons, counted and shown."""

import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap

from .folder import green_steps
from .series import CHAIN, Problem, branches, by_file, changes, compare, find, landings, limits, lines, steps

RED, GREEN, BOLD, CYAN, REVERSE, NO_REVERSE, PLAIN = (f"\033[{code}m" for code in (31, 32, 1, 36, 7, 27, 0))


def add_commands(commands):
    parser = commands.add_parser("list", help="the tree of all steps and how many lines each one changes",
                                 description="Every step below the one that it continues, with the lines that its lesson "
                                             "adds and removes and its headline, then the limits of all lessons. A ✓ marks a "
                                             "step that was green in practice/. README.md and test.cpp do not count, nor does "
                                             "a file that has moved to common/decoding.")
    parser.add_argument("--markdown", action="store_true", help="as a page with a table for each branch, which is docs/steps.md")
    add_colour(parser)
    parser.set_defaults(run=show_list)

    parser = commands.add_parser("diff", help="what a step changes, which is its lesson",
                                 description="What STEP changes in the step that it continues, or all that changes on the "
                                             "way from STEP to TO. A line `landed: sampling.h` means that this file "
                                             "moved unchanged from the folder to common/decoding. A pipe gets a plain "
                                             "patch; a terminal gets colours, the changed words in reverse.")
    parser.add_argument("step", metavar="STEP", help="6, 06, 06-top-k or top-k")
    parser.add_argument("to", metavar="TO", nargs="?", help="everything from STEP to TO")
    parser.add_argument("--stat", action="store_true", help="only how many lines of each file")
    parser.add_argument("--all", action="store_true", help="also README.md and test.cpp")
    parser.add_argument("--no-pager", action="store_true", help="print directly, without a pager")
    add_colour(parser)
    parser.set_defaults(run=show_diff)


def add_colour(parser):
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto",
                        help="auto: on a terminal, unless NO_COLOR is set")


def coloured(options):
    return options.color == "always" or (
        options.color == "auto" and sys.stdout.isatty() and not os.environ.get("NO_COLOR"))


def bar_rows(rows, colour):
    """Lines like those of `git log --stat`: name, count and a bar of + and -."""
    if not rows:
        return
    longest = max(len(name) for name, *_ in rows)
    most = max(added + removed for _, added, removed in rows)
    room = max(10, min(60, shutil.get_terminal_size().columns - longest - 20))
    scale = min(1, room / most) if most else 1
    for name, added, removed in rows:
        plus, minus = (-(-int(count * scale * 1000) // 1000) for count in (added, removed))  # at least one each
        bar = (GREEN + "+" * plus + RED + "-" * minus + PLAIN) if colour else "+" * plus + "-" * minus
        yield f"{name:{longest}}  {f'+{added}':>5} {f'-{removed}' if removed else '':>4}  {bar}".rstrip()


def tree(step, first="", rest=""):
    """[(what is drawn before it, step)] of the step and all its descendants. A step is followed by the longest line
    that continues it, and the others branch off."""
    yield first, step
    onward = max((child for child in step.children if not child.detour),
                 key=lambda child: (int(child.number) <= CHAIN, len(child.descendants())), default=None)
    branches = [child for child in step.children if child is not onward]
    for branch in branches:
        last = onward is None and branch is branches[-1]
        yield from tree(branch, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))
    if onward:
        yield from tree(onward, rest, rest)


def show_list(options):
    series = steps()
    counts = {step: lines(step) for step in series}
    if options.markdown:
        return print(page_of_steps(series, counts), end="")
    green = green_steps()
    rows = [(drawn + step.heading() + (" (detour)" if step.detour else "") + (" ✓" if step.name in green else ""),
             *counts[step], step.summary()) for drawn, step in tree(series[0])]
    print(*headline_rows(rows), "", sep="\n")
    if green:
        print(f"✓ {len(green)} of {len(series)} steps were green in practice/; tools/step next goes on.\n")
    for what, found, most, where in limits({step: added for step, (added, _) in counts.items()}):
        over = ", too many" if found > most else ""
        names = f"   {where[0].name}" + (f" and {len(where) - 1} more" if where[1:] else "") if where else ""
        print(f"{what + ':':32} {found:4g} of {most}{over}{names}")


def headline_rows(rows):
    """Lines of name, counts and headline; a terminal gets as much of the headline as fits, or none."""
    longest = max(len(name) for name, *_ in rows)
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for name, added, removed, headline in rows:
        row = f"{name:{longest}}  {f'+{added}':>5} {f'-{removed}' if removed else '':>4}"
        if not room or len(row) + 20 < room:
            row += f"  {headline}"
            row = row[:room - 1] + "…" if 0 < room < len(row) else row
        yield row.rstrip()


def page_of_steps(series, counts):
    """docs/steps.md: what goes wrong without each branch, what it teaches, and its steps with their headlines."""
    page = ["# All steps", "", "<!-- Made by `tools/step list --markdown`: each headline is the sentence below the title of a step. -->", "",
            "![The staircase: the branches, and how long each lesson is](pictures/staircase.svg)", "",
            "Each branch begins with a case of what goes wrong without it, then names what you can do after it. Each step",
            "continues the one above it in its table, unless a number names another. A *detour* measures, draws or shows a",
            "variant; no step continues it. The last column counts the lines of code that the lesson adds and removes."]
    for name, words, story, steps_of_branch in branches(series):
        page += ["", f"## {name}", "", *textwrap.wrap(story, 120, break_on_hyphens=False), "", words, "", "| step | continues | headline | lines |", "|---|---|---|---|"]
        before = None
        for step in steps_of_branch:
            added, removed = counts[step]
            parent = step.parent.number if step.parent and step.parent is not before else ""
            continues = ", ".join(filter(None, (parent, "detour" if step.detour else "")))
            page.append(f"| [{step.name}](../steps/{step.name}) | {continues} | {step.summary()} | "
                        f"+{added}{f' −{removed}' if removed else ''} |")
            before = step
    return "\n".join(page) + "\n"


def table_of_branches(series):
    """The rows of the README: what each branch teaches, and where its steps are."""
    rows = ["| branch | steps | what you can do afterwards |", "|---|---|---|"]
    for name, words, _, steps_of_branch in branches(series):
        anchor = re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")
        rows.append(f"| [{name}](docs/steps.md#{anchor}) | {ranges(steps_of_branch, series)} | {words} |")
    return "\n".join(rows) + "\n"


def ranges(some, series):
    """The numbers of steps, as in 44–48, 52."""
    runs = []
    for step in some:
        if runs and series.index(step) == series.index(runs[-1][-1]) + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return ", ".join(run[0].number + (f"–{run[-1].number}" if run[1:] else "") for run in runs)


def show_diff(options):
    after, _ = find(options.step)
    before = after.parent
    if options.to is not None:
        before, name = after, find(options.to)[0].name
        after = next((step for step in before.descendants() if step.name == name), None)
        if not after:
            raise Problem(f"{name} does not come after {before.name}: it does not continue it, directly or through others; "
                          "name the earlier step first.", 2)
    landed = landings(before, after)
    if options.stat:
        counts = changes(before, after, options.all)
        text = "".join(line + "\n" for line in bar_rows([(name, *count) for name, count in counts.items()],
                                                       coloured(options)))
    else:
        text = compare(before, after, options.all)
        if coloured(options):
            text = paint(text)
    # A line that patch programs ignore.
    told = "".join(f"landed: {file.name}" + (f", as {file.owner.name} left it" if options.to else "") + "\n" for file in landed)
    page((CYAN + told + PLAIN if told and coloured(options) else told) + text, options.no_pager)


def page(text, no_pager=False):
    pager = os.environ.get("GIT_PAGER", os.environ.get("PAGER", "less"))
    if no_pager or not sys.stdout.isatty() or not pager.strip() or not shutil.which(shlex.split(pager)[0]):
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    # As in git: short texts stay on the screen, and colours pass through.
    environment = {"LESS": "FRX", "LV": "-c", **os.environ}
    subprocess.run(pager, shell=True, input=text.encode(), env=environment)


def paint(text):
    """The diff with colours; in a rewritten line, the changed words stand out."""
    lines = []
    for _, header, hunks in by_file(text):
        lines += [f"{BOLD}{line}{PLAIN}" for line in header]
        removed, added = [], []
        for line in [*hunks, " end"]:
            if line.startswith("-") and not added:
                removed.append(line)
                continue
            if line.startswith("+"):
                added.append(line)
                continue
            lines += paint_change(removed, added)
            removed, added = ([line], []) if line.startswith("-") else ([], [])
            if not removed:
                lines.append(re.sub(r"^@@.*?@@", rf"{CYAN}\g<0>{PLAIN}", line))
        lines.pop()  # " end"
    return "".join(line + "\n" for line in lines)


def paint_change(removed, added):
    """Each removed line is paired with the first later added line that resembles it."""
    marks, start = {}, 0
    for i, old in enumerate(removed):
        for j in range(start, len(added)):
            pair = differing_words(old[1:], added[j][1:])
            if pair:
                marks["-", i], marks["+", j] = pair
                start = j + 1
                break
    for sign, colour, lines in (("-", RED, removed), ("+", GREEN, added)):
        for i, line in enumerate(lines):
            yield f"{colour}{sign}{marks.get((sign, i), line[1:])}{PLAIN}"


def differing_words(old, new):
    """Both lines with their differing words in reverse, or None if they have too little in common."""
    old, new = (re.findall(r"\w+|\s+|[^\w\s]", line) for line in (old, new))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    common = sum(len("".join(old[block.a:block.a + block.size]).strip()) for block in matcher.get_matching_blocks())
    longest = max(len("".join(line).replace(" ", "")) for line in (old, new))
    if not longest or common * 2 < longest:
        return None
    sides = ["", ""]
    for tag, a, b, c, d in matcher.get_opcodes():
        for side, words in enumerate((old[a:b], new[c:d])):
            if words:
                sides[side] += "".join(words) if tag == "equal" else REVERSE + "".join(words) + NO_REVERSE
    return sides
