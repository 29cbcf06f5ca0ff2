"""tools/step check and watch: compiles a practice folder, runs its checks, and prints what to do next."""

import argparse
import re
import shlex
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

from . import rungs
from .compiling import compile_folder, library, locked, told, warnings
from .folder import called, copy_library, green_steps, is_practice, last_used, left, made, outlines
from .outline import Header, normal
from .practice import coming
from .running import Runner, describe, program_cases
from .series import ROOT, Problem


def add_commands(commands):
    parser = commands.add_parser("check", help="compiles and runs the checks of a practice folder",
                                 description="Compiles and runs test.cpp and the program of a practice folder. The exit "
                                             "status is 0 for green and 1 for red. What was green stays so while nothing "
                                             "changes, and does not run again.")
    add_options(parser)
    parser.set_defaults(run=check)
    parser = commands.add_parser("watch", help="checks after every save, until Ctrl-C",
                                 description="Calls `tools/step check` now, and again whenever a file of the folder is saved.")
    add_options(parser)
    parser.set_defaults(run=watch)


def add_options(parser):
    parser.add_argument("folder", metavar="DIR", nargs="?",
                        help="or a step's number, or a rung like matvec/3; without it this folder, or the one used last under practice/")
    parser.add_argument("--only", metavar="TEXT", default="", help="only the test cases that have TEXT in their names")
    parser.add_argument("--limit", metavar="SECONDS", type=seconds, default=60.0, help="processor seconds that a test case may take (60)")
    parser.add_argument("--sanitize", action="store_true",
                        help="with the address and undefined-behaviour sanitizers: they name the line of a crash")
    parser.add_argument("--build", type=Path, metavar="DIR", help=argparse.SUPPRESS)  # of the project; for its tests
    parser.add_argument("--jobs", type=int, metavar="N", help=argparse.SUPPRESS)  # at once; for its tests too


def seconds(text):
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return value


def meant(name):
    """The folder of a step or of a rung that `check NAME` means."""
    last = max([*made()[-1:], *rungs.made()], key=last_used, default=None)
    if name is None and not is_practice(Path.cwd()) and last and rungs.is_practice(last):
        name = str(last) if not rungs.is_practice(Path.cwd()) else None
    return rungs.called(name) or called(name)


def check(options):
    folder = meant(options.folder)
    if isinstance(folder, rungs.RungFolder):
        return rungs.check(folder, options)
    step, path = folder.step, folder.path
    missing = folder.missing()
    if missing:
        words = ("is", "it") if len(missing) == 1 else ("are", "them")
        raise Problem(f"{', '.join(missing)} {words[0]} missing in {path}; tools/step practice {step.number} "
                      f"{shlex.quote(str(path))} --update writes {words[1]} again and leaves the rest unchanged.")
    if folder.is_older():
        print(f"The checks of {step.name} have changed since this folder was made: tools/step practice {step.number} "
              f"{shlex.quote(str(path))} --update brings them up to date and leaves your code unchanged.", file=sys.stderr)
    with locked(path / "build", waiting="Another check of this folder is running; this one waits for it ..."):
        return compile_and_run(folder, options)


def compile_and_run(folder, options):
    build = (options.build or ROOT / "build").absolute()
    if not (build / "build.ninja").is_file():
        library("configure build >&2")
    copy_library(folder.path, folder.step)
    found = compile_folder(folder, build, options.sanitize, options.jobs)
    if any(one.is_error for one in found):
        lines, whose = told(found, folder.step)
        return red(whose + ".", *lines)
    for line in warnings(found):
        print(line)
    return run(folder, options)


def run(folder, options):
    step, path = folder.step, folder.path
    runner = Runner(folder, options.limit * (10 if options.sanitize else 1), options.sanitize)
    cases, green_before, names = runner.run(options.only, lambda case: print(*describe(case), sep="\n", flush=True))
    if options.only and not cases:
        raise Problem(f"no test case has '{options.only}' in its name; the test cases are: {'; '.join(names)}.", 2)
    reds = [case for case in cases if not case.green]
    whole = program_cases((path / "test.cpp").read_text(encoding="utf-8", errors="replace"))
    if reds:
        core = [case for case in reds if case.name not in whole]
        among = f" with '{options.only}'" if options.only else ""
        tried = len(cases) + green_before
        words = [f"{len(reds)} of {tried} checks{among} red; begin with: {(core or reds)[0].name}"]
        if not core and set(names) - whole and not options.only:
            words.insert(0, f"CORE GREEN, {len(reds)} check{'s' if len(reds) > 1 else ''} of the whole program left.")
        elif not options.only and whole:
            words.append(f"{len(core)} of the {len(set(names) - whole)} checks of single functions (the core) are red, and "
                         f"{len(reds) - len(core)} of the {len(whole & set(names))} that run the whole program.")
        waits = left(step, path)
        if waits:
            words.append(f"Your turn in {waits}.")
        if any(case.ended.startswith("crashed") for case in reds) and not options.sanitize:
            words.append(f"tools/step check {folder.short()} --sanitize shows where it crashes.")
        return red(words[0], *words[1:])
    if options.only:
        print(f"{len(cases)} of {len(names)} checks green, those with '{options.only}' in their names.")
        return 0
    lacking = lacking_option(step, path / "build/program")
    if lacking:
        return red("the checks pass, but the program has no option {} yet; {} adds it.".format(*lacking))
    folder.remember(green=folder.said.get("green", date.today().isoformat()))
    praise(folder, len(names), green_before)
    return 0


def lacking_option(step, program):
    """(option, file) that the lesson adds and this program does not offer. Those of earlier lessons do not count: a
    chat has no --num-return-sequences, which its generate.h declares. Nor does a key of a request."""
    def declared(path):
        return re.findall(r'(?<!line\.)(?<!request\.)add(?:_option|_flag)?\(\s*"(--[a-z0-9-]+)"', path.read_text(encoding="utf-8"))

    before = step.parent.lesson() if step.parent else {}
    shown = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
    for name, file in step.lesson().items():
        older = declared(before[name]) if name in before else []
        for option in declared(file):
            if option not in older and not re.search(rf"{option}(?![\w-])", shown):
                return option, name
    return None


def praise(folder, count, green_before):
    step = folder.step
    before = " (nothing has changed since the last check)" if green_before == count else ""
    print(f"GREEN: {step.name} is done, all {count} checks{before}.")
    other = worth_reading(folder)
    if other:
        print(f"  compare     the project writes this in other words: {other}")
    print(f"  solution    tools/step practice {step.number} --solution")
    later = coming(step, folder.series, green_steps() | {step.name})
    if later:
        origin = f", which continues {later.parent.name}" if later.parent and later.parent.name != step.name else ""
        print(f"  next        tools/step next       {later.name}{origin}: {later.summary()}")
    branches = [child.name for child in step.children if child is not later]
    if branches:
        print(f"  branches    {', '.join(branches)}")


def worth_reading(folder):
    """Where the project's code differs from the parts that the learner wrote, the longest function first."""
    given, _ = outlines(folder.step)
    found = []
    for name, path in folder.step.lesson().items():
        if name == "main.cpp" or given[name] == path.read_bytes():
            continue
        own = Header((folder.path / name).read_text(encoding="utf-8", errors="replace"))
        bodies = {(one.scope, one.signature): normal(one.body_text()) for one in own.functions}
        outline = {(one.scope, one.signature): normal(one.body_text()) for one in Header(given[name].decode()).functions}
        header = Header(path.read_text(encoding="utf-8"))
        for function in header.functions:
            text, key = normal(function.body_text()), (function.scope, function.signature)
            if outline.get(key) != text != bodies.get(key):
                line = header.text.count("\n", 0, function.start) + 1
                found.append((len(text), f"{function.title()} (steps/{folder.step.name}/{name}:{line})"))
    return ", ".join(text for _, text in sorted(found, reverse=True)[:3])


def red(reason, *more):
    print(f"RED: {reason}", *more, sep="\n")
    return 1


def watch(options):
    path = meant(options.folder).path
    seen = None
    try:
        while is_practice(path) or rungs.is_practice(path):
            now = saved(path)
            if now != seen:
                if seen is not None:
                    names = sorted(name for name in {**now, **seen} if now.get(name) != seen.get(name))
                    print(f"\n--- {', '.join(names)} saved at {time.strftime('%H:%M:%S')}")
                seen = now
                try:
                    check(options)
                except Problem as problem:
                    print(f"tools/step: {problem}", file=sys.stderr)
                print("(waiting for the next save; Ctrl-C ends)", flush=True)
            time.sleep(0.3)
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 0
    raise Problem(f"{path} is gone, or is no longer a practice folder.")


def saved(path):
    """{name of a learner's file: when it was saved}"""
    found = {}
    for file in path.iterdir():
        try:
            if file.suffix in (".h", ".cpp", ".cu"):
                found[file.name] = file.stat().st_mtime_ns
        except FileNotFoundError:  # an editor is at work
            pass
    return found
