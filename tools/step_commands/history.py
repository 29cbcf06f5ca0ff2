"""tools/step history: the staircase as a git repository with one commit per step.

The commits follow the parents: `main` is the documented history, and each line of steps after it ends in a branch.
Each commit has the files of common/decoding that had landed before its step."""

import functools
import os
import re
import shutil
import textwrap
from datetime import datetime, timedelta, timezone
from pathlib import Path

from .hunks import without
from .series import CHAIN, MANIFEST, ROOT, Problem, git, section, steps

# The common base of every commit; it comes with the first. The models make a clone complete: 31 MB, stored once.
FLOOR = ("LICENSE", "meson_options.txt", "common", "kernels", "models/tales-6m", "models/tales-1m", "models/tales-*-1m",
         "models/tales-chat.jinja", "tests/*.h", "tests/*.cpp", "tests/reference")
FIRST_DATE = datetime(2024, 1, 1, 12, tzinfo=timezone.utc)  # any fixed date: the same input makes the same hashes

BUILD_HEAD = """# One step of the staircase at a time:
#   meson setup build && ninja -C build && build/staircase --prompt "Once upon a time"
#   meson test -C build
"""
BUILD_TAIL = """
# The step's own files come first, and then the finished lessons.
program = executable('staircase', 'main.cpp',
  include_directories: include_directories('.', 'common/decoding'),
  dependencies: common)

test('step',
  executable('test-step', 'test.cpp',
    'tests/doctest_main.cpp',
    'tests/processors.cpp',
    'tests/run_program.cpp',
    'tests/step.cpp',
    'tests/tiny_model.cpp',
    cpp_args: [
      '-DSTAIRCASE_SOURCE_TREE="@0@"'.format(meson.project_source_root()),
      '-DSTAIRCASE_STEP_PROGRAM="@0@"'.format(program.full_path())],
    include_directories: include_directories('.', 'common/decoding'),
    dependencies: [common, json]),
  depends: program, timeout: 900)
"""


def add_commands(commands):
    parser = commands.add_parser(
        "history", help="a git repository with one commit per step",
        description="Writes a git repository into DIR, which must be empty or absent. Each step is one commit with one tag, "
                    "and its parent is the commit of the step that it continues. `main` is the documented history. Each "
                    "line of steps after it is a branch named after its last step, and so is each detour. The program is "
                    "at the top, and each commit builds. The same input gives the same hashes.")
    parser.add_argument("folder", metavar="DIR", type=Path)
    parser.set_defaults(run=history)


def history(options):
    folder = options.folder.absolute()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise Problem(f"{folder} is not empty; name an empty folder or one that does not exist yet.", 2)
    series = steps()
    build = build_file()
    folder.mkdir(parents=True, exist_ok=True)
    git("init", "-q", "--template=", "--initial-branch=main", folder)
    copy_floor(folder, {*series[0].library, Path(MANIFEST).name})
    (folder / "meson.build").write_text(build, encoding="utf-8")
    (folder / ".gitignore").write_text("/build*/\n", encoding="utf-8")
    here = None  # the step that lies in the folder
    for step in [series[0], *series[0].descendants()]:
        if here is not step.parent:
            git("checkout", "-q", "--detach", f"refs/tags/{step.parent.name}", cwd=folder)
        for name in program(step.parent) if step.parent else ():
            (folder / name).unlink()
        for name, path in program(step).items():
            if (folder / name).exists():
                raise Problem(f"{step.name}/{name} has the name of a file that all steps share; rename it.")
            copy(path, folder / name)
        about = readme(step, series, folder)
        (folder / "README.md").write_text(about, encoding="utf-8")
        date = (FIRST_DATE + timedelta(days=series.index(step))).strftime("%Y-%m-%dT%H:%M:%S+0000")
        who = {f"GIT_{role}_{what}": value for role in ("AUTHOR", "COMMITTER")
               for what, value in (("NAME", "Staircase"), ("EMAIL", "staircase@localhost"), ("DATE", date))}
        git("add", "--all", "--force", ".", cwd=folder)  # forced: a person's own ignore file does not count
        git("commit", "-q", "--allow-empty", "-F", "-", cwd=folder, input=message(step, about).encode(), env=who)
        git("tag", step.name, cwd=folder)
        here = step
    last = [step for step in series if int(step.number) <= CHAIN][-1]
    git("checkout", "-q", "-B", "main", f"refs/tags/{last.name}", cwd=folder)
    branches = {step.name.partition("-")[2]: step for step in series if not step.children and step is not last}
    for name, step in branches.items():
        git("branch", name, f"refs/tags/{step.name}", cwd=folder)
    print(f"{folder} has {len(series)} commits, {series[0].name} to {series[-1].name}; each one is a tag.",
          f"  main ends with {last.name}; branches: {', '.join(branches) or 'none'}",
          f"  cd {folder}",
          "  git log --graph --oneline --all                     the tree",
          "  git log -p --reverse -- ':(glob)*.h' main.cpp       the lessons",
          f"  git checkout {last.name} && meson setup build && meson test -C build", sep="\n")


def program(step):
    """{name: path} of the step, of the finished lessons that it uses or could use, and of those of other branches that
    files given to it include."""
    landed = {f"common/decoding/{name}": file.path for name, file in step.visible().items()}
    files = {**step.files(), **landed}
    seen, left = set(), [path for path in files.values() if path.suffix in (".h", ".cpp")]
    while left:
        path = left.pop()
        for include in includes(path) if path not in seen else ():
            name = include.removeprefix("common/decoding/")
            given = ROOT / "common/decoding" / name
            if include in step.files():
                continue
            if name in step.library:
                left.append(files.setdefault(f"common/decoding/{name}", step.library[name].path))
            else:  # given files of the library may include finished lessons of other branches
                left += [path for path in (given, ROOT / include) if path.is_file()][:1]
        seen.add(path)
    return files


@functools.cache
def includes(path):
    return re.findall(r'^#include "([^"]+)"', path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def readme(step, series, folder):
    """The step's README.md with the commands of this repository; it names only things that are in it."""
    names = {other.number: other.name for other in series}

    def linked(match):
        text, target = match.groups()
        place = os.path.normpath(f"steps/{step.name}/{target}")
        return f"[{text}]({place})" if (folder / place).exists() else text

    def started(match):
        own = match.group(1) == step.number
        return "build/staircase" if own else f"build-{match.group(1)}/staircase"

    text = re.sub(r"^!\[[^]]*\]\([^)]*\)\n\n?", "", step.readme(), flags=re.MULTILINE)  # pictures are the project's
    text = re.sub(r"\[([^]]+)\]\((\.\.?/[^)\s]*)\)", linked, text)
    text = re.sub(r"^    tools/(?!run |test \d|step diff )[\w-]+.*\n", "", text, flags=re.MULTILINE)  # only the project's
    text = re.sub(r"tools/step\s+diff\s+(\d\d+)", lambda match: f"git show {names.get(match.group(1), match.group(1))}", text)
    text = re.sub(rf"tools/test\s+{step.number}", "meson test -C build", text)
    text = re.sub(r"tools/test\s+(\d\d+)", r"meson test -C build-\1", text)
    text = re.sub(r"tools/run\s+(\d\d+)", started, text)
    text = re.sub(r"`tools/([\w-]+)[^`]*`", r"`\1` (of the whole project)", text)
    others = sorted(set(re.findall(r"\bbuild-(\d\d+)\b", text)))
    where = "".join(f" `build-{number}` is a build of the commit `{names[number]}`." for number in others if number in names)
    builds = f"`meson setup build && ninja -C build` builds the program of this commit.{where}"
    return text.replace("## How to check it\n", f"## How to check it\n\n{builds}\n", 1)


def copy(source, target):
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


def copy_floor(folder, landed):
    """Everything that exists from the first step on: of common/decoding not the files that land later."""
    for pattern in FLOOR:
        found = sorted(ROOT.glob(pattern))
        if not found:
            raise Problem(f"{pattern} is missing in {ROOT}.")
        for path in found:
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                late = file.parent == ROOT / "common/decoding" and file.name in landed
                if file.is_file() and "__pycache__" not in file.parts and not late:
                    copy(file, folder / file.relative_to(ROOT))


def build_file():
    """The project's own meson.build up to common/, so its dependencies stay the same; then one program and its test."""
    text = (ROOT / "meson.build").read_text(encoding="utf-8")
    head, common, _ = text.partition("subdir('common')\n")
    if not common:
        raise Problem("meson.build has no line subdir('common') any more; tools/step history ends its copy there.")
    head = re.sub(r"^if get_option\('fuzz'\)\n.*?^endif\n\n?", "", head, flags=re.MULTILINE | re.DOTALL)
    return BUILD_HEAD + head + common + BUILD_TAIL


def message(step, about):
    """The title, and the idea of the README, wrapped; tables and indented lines stay unchanged."""
    def fill(text, **options):
        return textwrap.fill(" ".join(text.split()), 72, break_long_words=False, break_on_hyphens=False, **options)

    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", section(without(about), "The idea")):
        if re.match(r"    |[|>] |\$\$|```", paragraph):
            paragraphs.append(paragraph)
        elif re.match(r"[-*] |1\. ", paragraph):
            items = re.split(r"\n(?=[-*] |\d+\. )", paragraph)
            paragraphs.append("\n".join(fill(item, subsequent_indent="  ") for item in items))
        else:
            paragraphs.append(fill(paragraph))
    return "\n\n".join([step.heading(), *filter(None, paragraphs)]) + "\n"
