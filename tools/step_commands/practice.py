"""tools/step practice and check: a folder in which a learner writes a step; the step's own test.cpp says when it is done.

The folder has every declaration of the step, so that nobody guesses a name: at first all of it compiles, and the checks
fail. Of common/decoding it sees what had landed before the step: the library does not give the solution away."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from .diff import coloured, page, paint
from .outline import YOUR_TURN, Header, changed_names, outline
from .series import OWN, ROOT, Problem, compare, find

LIBRARY = "build/library"  # copies of the landed files that the step stands on
BUILD = "build.ninja"  # marks a practice folder: its third line names the step
PROGRAM = "-DSTAIRCASE_STEP_PROGRAM="  # tells test.cpp which program is the step's
HEADER = """# Made by tools/step, and made again by each `tools/step check`; every other file here is yours.
# The flags are those of the project's own build.
step = {}
"""


def add_commands(commands):
    parser = commands.add_parser(
        "practice", help="a folder in which you write a step yourself",
        description="Makes DIR (practice/NN-name) with the README.md and test.cpp of STEP and an outline of its code: all "
                    "declarations are there, a function that STEP changes is as it was in the step that it continues, and a "
                    "new one throws. `tools/step check` is red there until the step is written.")
    parser.add_argument("step", metavar="STEP", help="6, 06 or 06-top-k")
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path)
    parser.add_argument("--force", action="store_true", help="overwrite what stands in DIR")
    parser.add_argument("--solution", action="store_true", help="make nothing; show what the step changes")
    parser.set_defaults(run=practice, color="auto")

    parser = commands.add_parser("check", help="compiles and runs the checks of a practice folder",
                                 description="Compiles and runs test.cpp and the program of a practice folder. The exit "
                                             "status is 0 for green and 1 for red.")
    parser.add_argument("folder", metavar="DIR", nargs="?",
                        help="or a step's number; without it this folder, or the one used last under practice/")
    parser.add_argument("--build", type=Path, metavar="DIR", help=argparse.SUPPRESS)  # of the project; for its tests
    parser.add_argument("--jobs", type=int, metavar="N", help=argparse.SUPPRESS)  # at once; for its tests too
    parser.set_defaults(run=check)


def practice(options):
    step, _ = find(options.step)
    if options.solution:
        text = compare(step.parent, step)
        return page(paint(text) if coloured(options) else text)
    folder = (options.folder or ROOT / "practice" / step.name).absolute()
    source = (ROOT / "steps").resolve()
    if source in (folder.resolve(), *folder.resolve().parents):
        raise Problem(f"{folder} belongs to the project's own steps; name a folder outside of steps/.", 2)
    if folder.exists() and not folder.is_dir():
        raise Problem(f"{folder} is a file; name a folder.", 2)
    if folder.is_dir() and any(folder.iterdir()) and not options.force:
        raise Problem(f"{folder} is not empty; name another folder, or start anew with --force.", 2)

    given, kinds = outlines(step)
    own = {name: path.read_bytes() for name, path in step.files().items() if name in OWN}
    for name, content in {**given, **own}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    (folder / BUILD).write_text(HEADER.format(step.name), encoding="utf-8")
    copy_library(folder, step)

    short = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
    print(f"{short} is yours: it has the checks of {step.name} and its code, where what the lesson adds is left out.",
          "  files       " + " · ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names),
          f"  read        {short}/README.md",
          "  write       what throws \"your turn\", and what README.md says of the other functions",
          f"  check       tools/step check {shlex.quote(short)}       red now, green when the step is written",
          f"  run         {short}/build/program --prompt 'Once upon a time'       after a check",
          f"  give up     tools/step practice {step.number} --solution", sep="\n")


def outlines(step):
    """({file: what a learner gets of it}, {new, change, leave: files}). main.cpp is wiring: it is given."""
    def headers(files):
        return {name: Header(path.read_text(encoding="utf-8")) for name, path in files.items()
                if name.endswith((".h", ".cpp")) and name not in ("main.cpp", *OWN)}

    given, kinds = {}, {"new": [], "change": [], "leave": []}
    before = step.parent.lesson() if step.parent else {}
    old, now = headers(before), headers(step.lesson())
    library = headers({name: landed.path for name, landed in step.visible().items()})
    changed = changed_names(old.values(), [*now.values(), *library.values()])
    for name, path in step.lesson().items():
        given[name] = path.read_bytes()
        if name in now and (name not in old or old[name].text != now[name].text):
            former = [old[name]] if name in old else []
            former += [header for header in old.values() if header not in former]
            others = [*now.values(), *library.values()]
            given[name] = outline(now[name], former, changed, step.parent.name if step.parent else "", others).encode()
        same = given[name] == path.read_bytes()
        kinds["leave" if same else "change" if name in before else "new"].append(name)
    return given, kinds


def copy_library(folder, step):
    """What the step may include, and nothing that comes later. Times are copied as well: by them the compiler knows a
    file again that it meets in two places."""
    shutil.rmtree(folder / LIBRARY, ignore_errors=True)
    (folder / LIBRARY).mkdir(parents=True)
    for name, landed in step.visible().items():
        (folder / LIBRARY / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(landed.path, folder / LIBRARY / name)


def practice_folder(name):
    """The folder that `check NAME` means."""
    if name is None:
        if is_practice(Path.cwd()):
            return Path.cwd()
        found = sorted(filter(is_practice, (ROOT / "practice").glob("*")),
                       key=lambda folder: max(path.stat().st_mtime for path in folder.iterdir()))
        if not found:
            raise Problem("There is no practice folder yet; tools/step practice STEP makes one.", 2)
        return found[-1]
    if is_practice(Path(name)):
        return Path(name).absolute()
    if re.fullmatch(r"\d{1,2}(-.+)?", name):
        folder = ROOT / "practice" / find(name)[0].name
        if is_practice(folder):
            return folder
        raise Problem(f"{folder} is not there yet; tools/step practice {name} makes it.", 2)
    raise Problem(f"{name} is no practice folder; tools/step practice STEP {shlex.quote(name)} makes one.", 2)


def is_practice(folder):
    return (folder / BUILD).is_file() and (folder / BUILD).read_text(encoding="utf-8").startswith(HEADER[:40])


def check(options):
    folder = practice_folder(options.folder)
    step, _ = find(re.search(r"^step = (.+)$", (folder / BUILD).read_text(encoding="utf-8"), re.MULTILINE).group(1))
    build = (options.build or ROOT / "build").absolute()
    if not options.build:
        library("configure build >&2")
    text, libraries = build_file(folder, step, build)
    if options.build:
        subprocess.run(["ninja", "-C", build, *libraries], check=True, stdout=subprocess.DEVNULL)
    else:
        library('compile build "$@"', *libraries)
    (folder / BUILD).write_text(text, encoding="utf-8")
    copy_library(folder, step)

    # Both at once; a failure of test.cpp comes first, since it says what is missing. One at a time it is the only one.
    jobs = ["-j", str(options.jobs)] if options.jobs else ["-k0"]
    done = subprocess.run(["ninja", "-C", folder, *jobs, "build/test", "build/program"], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        failures = {words.split(".o")[0].split()[0]: words for words in done.stdout.split("FAILED: build/")[1:]}
        if "test" in failures:
            return red("test.cpp does not compile. The compiler's first complaint:", complaint(failures["test"]))
        return red("main.cpp does not compile:", complaint(failures.get("program", done.stdout)))
    sys.stdout.flush()
    status = subprocess.run([folder / "build/test"], cwd=folder, stdin=subprocess.DEVNULL).returncode
    if status < 0:
        return red(f"the checks were ended by signal {-status}.")
    if status:
        waiting = [name for name in sorted(step.lesson()) if YOUR_TURN in (folder / name).read_text(encoding="utf-8")]
        return red(f"the checks above fail. {', '.join(waiting)} still {'has' if len(waiting) == 1 else 'have'} functions "
                   "that wait for you." if waiting else "the checks above fail; begin with the first of them.")
    shown = subprocess.run([folder / "build/program", "--help"], capture_output=True, text=True).stdout
    for name, path in step.lesson().items():
        for option in re.findall(r'add(?:_option|_flag)?\(\s*"(--[a-z0-9-]+)"', path.read_text(encoding="utf-8")):
            if not re.search(rf"{option}(?![\w-])", shown):
                return red(f"the checks pass, but the program has no option {option} yet; {name} adds it.")
    print(f"GREEN: {step.name} is done. Compare with the project's own way: tools/step practice {step.number} --solution")


def red(reason, *more):
    print(f"RED: {reason}", *more, sep="\n")
    return 1


def complaint(output):
    """The first error of the compiler or linker, with the lines that explain it."""
    lines = re.sub(r"\033\[[0-9;]*[mK]", "", output).splitlines()
    first = next((i for i, line in enumerate(lines) if re.search(r"error:|undefined reference|fatal", line)), 0)
    end = next((i for i in range(first + 1, len(lines)) if "error:" in lines[i]), len(lines))
    return "\n".join(f"    {line}" for line in lines[first:min(end, first + 6)])


def library(script, *arguments):
    """Runs functions of tools/lib.sh, which builds without noise."""
    done = subprocess.run(["bash", "-c", f'set -eo pipefail; source "$0"; {script}', ROOT / "tools/lib.sh", *arguments])
    if done.returncode:
        raise Problem("the project itself does not build; the lines above say why.")


def build_file(folder, step, build):
    """The text of build.ninja, and the project's libraries that it links. The commands are those with which the
    project builds the step itself, so that new dependencies need no change here. They name no place in the folder:
    a compiler cache knows the same code again wherever it stands."""
    text, libraries = HEADER.format(step.name), set()
    for target, product, source in ((f"tests/test-{step.number}", "test", "test.cpp"),
                                    (f"steps/{step.name}", "program", "main.cpp")):
        done = subprocess.run(["ninja", "-C", build, "-t", "commands", target], capture_output=True, text=True)
        commands = [shlex.split(line) for line in done.stdout.splitlines() if step.folder.name in line or target in line]
        compilers = [words for words in commands if Path(words[-1]).name == source and "-c" in words]
        linkers = [words for words in commands if "-o" in words and words[words.index("-o") + 1] == target]
        if done.returncode or not compilers or not linkers:
            raise Problem(f"{build} does not know how to build {target}; tools/test {step.number} shows whether it builds.")
        compiler, linker = (absolute(without(words[-1], step.folder, build), build) for words in (compilers, linkers))
        compiler = [f'{PROGRAM}"build/program"' if word.startswith(PROGRAM) else word for word in compiler]
        # A function that throws uses no parameter.
        compiler += ["-I" + LIBRARY, "-Wno-unused-parameter"]
        used = [word for word in linker if word.endswith(".a") and Path(word).is_relative_to(build)]
        libraries.update(os.path.relpath(word, build) for word in used)
        text += f"""
rule compile-{product}
  command = {shlex.join(compiler).replace("$", "$$")} -MD -MF $out.d -o $out -c $in
  depfile = $out.d
  deps = gcc
rule link-{product}
  command = {shlex.join([linker[0], "-o"]).replace("$", "$$")} $out $in {shlex.join(linker[1:]).replace("$", "$$")}
build build/{product}.o: compile-{product} {source}
build build/{product}: link-{product} build/{product}.o | {" ".join(map(quote, used))}
"""
    return text, sorted(libraries)


def quote(path):
    """In ninja's language."""
    return re.sub(r"([$ :])", r"$\1", str(path))


def without(words, folder, build):
    """A command without its inputs, its outputs, and the project's own copies of the step and of finished lessons. Warnings
    stay warnings."""
    own = [folder.resolve(), (ROOT / "common/decoding").resolve()]
    kept, words = [], iter(words)
    for word in words:
        if word in ("-MQ", "-MF", "-o", "-c"):
            next(words)
        elif word not in ("-MD", "-Werror") and not word.endswith(".o") and not (
                word.startswith("-I") and (build / word[2:]).resolve() in own):
            kept.append(word)
    return kept


def absolute(words, build):
    """Meson's commands run in the build directory, ours do not."""
    def place(word):
        if word.startswith("-I"):
            return "-I" + os.path.normpath(build / word[2:])
        return os.path.normpath(build / word) if "/" in word and not word.startswith("-") else word
    return [place(word) for word in words]
