"""Rungs of kernels as tasks: `tools/step practice matvec/3` and `tools/step check matvec/3`.

A task is derived from what is there: the rung's file without the bodies of its functions, and its section of the
ladder's page without the code. `check` compiles the learner's file as the project compiles its own and links it in the
place of that one, so the ladder has the learner's rung."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from .compiling import absolute, compile_project, diagnostics, library, locked, options_begin, warnings, without
from .folder import PRACTICE, current_umask, keep_old, shown, write
from .outline import Header, normal
from .series import ROOT, Problem

LADDERS = ROOT / "kernels/rungs"
PAGES = ROOT / "docs/kernels"
MARK = "rung.txt"  # names the rung of a practice folder
YOUR_TURN = 'throw "your turn: {}";'
LEFT = re.compile(r'throw "your turn: ([^"]+)"')


class Rung:
    """A file of a ladder: kernels/rungs/cpu/matvec/3_registers.cpp is matvec/3-registers."""

    def __init__(self, ladder, file):
        self.ladder, self.file = ladder, file
        self.number = int(file.stem.partition("_")[0])
        self.name = file.stem.replace("_", "-")       # 3-registers
        self.full_name = f"{ladder.name}/{self.name}"
        self.short = f"{ladder.name}/{self.number}"
        self.folder = PRACTICE / ladder.name / self.name

    def idea(self):
        """The rung's idea in one line, as the tables of tools/bench print it."""
        return re.search(r'^const(?:expr)? [^"]*"[^"]+",\s*"([^"]+)"', self.file.read_text(encoding="utf-8"), re.MULTILINE)[1]

    def below(self):
        return self.ladder.rungs[self.ladder.rungs.index(self) - 1]

    def variable(self):
        """The name of the rung's variable in the ladder, such as kRegisters."""
        return re.search(r"^const(?:expr)? \w*Rung (k\w+)\b", self.file.read_text(encoding="utf-8"), re.MULTILINE)[1]

    def page(self):
        """(the page, its section about this rung as lines)."""
        link = self.file.relative_to(ROOT).as_posix() + ")"
        for page in sorted(PAGES.glob("*.md")):
            for section in re.split(r"^(?=## )", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
                if link in section and re.match(r"## \d", section):
                    return page, section
        raise Problem(f"no page in {PAGES} explains {self.file.relative_to(ROOT)}.")


class Ladder:
    """A folder of kernels/rungs; those of GPUs have names that begin with `gpu-`."""

    def __init__(self, folder):
        self.folder = folder
        self.is_gpu = folder.parent.name == "cuda"
        self.name = ("gpu-" if self.is_gpu else "") + folder.name.replace("_", "-")
        files = [file for file in folder.iterdir() if re.fullmatch(r"\d+_\w+\.(cpp|cu)", file.name)]
        self.rungs = sorted((Rung(self, file) for file in files), key=lambda rung: rung.number)
        self.program = "tests/cuda_emulation/gpu-rungs" if self.is_gpu else "tests/check-rung"

    def find(self, name):
        for rung in self.rungs:
            if name in (rung.name, str(rung.number)):
                return rung
        raise Problem(f"{self.name} has no rung '{name}'; it has {', '.join(rung.name for rung in self.rungs)}.", 2)


def ladders():
    """{name: Ladder}"""
    found = [Ladder(folder) for folder in sorted(LADDERS.glob("*/*")) if folder.is_dir()]
    return {ladder.name: ladder for ladder in found if ladder.rungs}


def find(name):
    """The Rung called matvec/3 or matvec/3-registers; None if that is no name of a rung."""
    ladder, slash, rung = name.partition("/")
    return ladders()[ladder].find(rung) if slash and ladder in ladders() else None


def show(name):
    """Prints the rungs of the ladder with this name; returns whether there is one."""
    ladder = ladders().get(name)
    if ladder:
        print(f"The rungs of {ladder.name}; tools/step practice {ladder.rungs[1].short} makes a folder for the second:",
              *(f"  {rung.name:20} {rung.idea()}" for rung in ladder.rungs), sep="\n")
    return bool(ladder)


def is_practice(path):
    return (path / MARK).is_file()


def made():
    """The folders of rungs in their usual place."""
    return [mark.parent for mark in PRACTICE.glob(f"*/*/{MARK}")]


class RungFolder:
    """A practice folder of a rung."""

    def __init__(self, path):
        self.path = Path(path).absolute()
        name = (self.path / MARK).read_text(encoding="utf-8", errors="replace").strip()
        self.rung = find(name)
        if not self.rung:
            raise Problem(f"{self.path / MARK} no longer names a rung; tools/step practice LADDER/RUNG NEW makes a new "
                          "folder, into which you can copy your code.")
        self.file = self.path / self.rung.file.name

    def called(self):
        """The name that a person types after `tools/step check`."""
        return self.rung.short if self.path == self.rung.folder else shlex.quote(shown(self.path))


def called(name):
    """The RungFolder that `check NAME` means, or None if it means no rung."""
    if name is None:
        return RungFolder(Path.cwd()) if is_practice(Path.cwd()) else None
    if is_practice(Path(name)):
        return RungFolder(name)
    rung = find(name)
    if rung and not is_practice(rung.folder):
        raise Problem(f"{rung.folder} does not exist yet, or was moved; tools/step practice {rung.short} makes it.", 2)
    return RungFolder(rung.folder) if rung else None


def practice(rung, options):
    """What `tools/step practice` does for a rung."""
    if options.solution:
        print(rung.file.read_text(encoding="utf-8"), end="")
        return 0
    if rung.number == 1:
        raise Problem(f"{rung.full_name} is the one that the others are compared with; begin with {rung.ladder.rungs[1].short}.", 2)
    path = (options.folder or rung.folder).absolute()
    if LADDERS.resolve() in (path.resolve(), *path.resolve().parents):
        raise Problem(f"{path} belongs to the project's own rungs; name another folder.", 2)
    if path.exists() and not path.is_dir():
        raise Problem(f"{path} is a file; name a folder.", 2)
    if options.update:
        if not is_practice(path):
            raise Problem(f"{path} is not a practice folder of a rung.", 2)
        write(path / "README.md", readme(rung, path).encode())
        print(f"{shown(path)}: README.md is up to date; your code is unchanged.")
        return 0
    if path.is_dir() and any(path.iterdir()) and not options.force:
        begun = f"you have begun there. tools/step check {RungFolder(path).called()} shows what is left; --force starts again " \
                "and moves your files to old/." if is_practice(path) else "name another folder, or start again with --force."
        raise Problem(f"{path} is not empty: {begun}", 2)
    make(rung, path, options.force)
    check = RungFolder(path).called()
    print(f"{shown(path)} is yours: it has {rung.full_name} without its functions.",
          f"  read        {shown(path)}/README.md",
          f"  write       {rung.file.name}: {', '.join(left(emptied(rung)))}",
          f"  check       tools/step check {check}       red now, green when it computes what {rung.ladder.rungs[0].name} does",
          f"  or          tools/step watch {check}       checks after each save",
          f"  give up     tools/step practice {rung.short} --solution", sep="\n")
    return 0


def make(rung, path, force):
    files = {rung.file.name: emptied(rung), "README.md": readme(rung, path), MARK: rung.full_name + "\n"}
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and force:
        kept = keep_old(path, files)
        print(f"What was there is in {shown(kept)}.")
    new = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        for name, text in files.items():
            write(new / name, text.encode())
        new.chmod(0o777 & ~current_umask())
        if not path.exists():
            os.rename(new, path)
            return
        for name in files:  # the mark comes last
            os.replace(new / name, path / name)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def emptied(rung):
    """The text of the rung's file with functions that throw; those stay that compute nothing. What the rung below has
    as well stays too, unless that is all."""
    header = Header(rung.file.read_text(encoding="utf-8"))
    below = Header(rung.below().file.read_text(encoding="utf-8"))
    known = {(one.scope[1:], one.signature, normal(one.body_text())) for one in below.functions}
    computing = [one for one in header.functions if computes(header, one)]
    new = [one for one in computing if (one.scope[1:], one.signature, normal(one.body_text())) not in known]
    text, position = [], 0
    for one in new or computing:
        indent = re.match(r" *", header.text[header.text.rfind("\n", 0, one.start) + 1:]).group()
        text += [header.text[position:one.body], f"{{\n{indent}  {YOUR_TURN.format(one.title())}\n{indent}}}"]
        position = one.end
    return "".join(text) + header.text[position:]


def computes(header, function):
    """Whether a function does more than return a member or initialise members."""
    body = normal(header.code[function.body + 1:function.end - 1])
    return function.head == function.body and body != "" and not re.fullmatch(r"return [^;]+;", body) \
        and not re.search(r"\bconstexpr\b", header.code[function.start:function.head])


def left(text):
    """The functions that still throw."""
    return LEFT.findall(text)


def readme(rung, folder):
    """The idea, from the ladder's page without its code, and the commands."""
    def link(text, path):
        return f"[{text}]({os.path.relpath(path, folder)})"

    page, section = rung.page()
    text = re.sub(r"^```\w*\n.*?^```\n\n?", "", section, flags=re.MULTILINE | re.DOTALL).replace("## ", "# ", 1)
    text = text.replace(f"[`{rung.file.name}`]({os.path.relpath(rung.file, page.parent)})", f"`{rung.file.name}`")
    text = re.sub(r"\]\((?!https?:|#)([^)\s]+)\)", lambda found: f"]({os.path.relpath(page.parent / found[1], folder)})", text)
    below = rung.below().file
    then = "counts what both ask of memory: a rung without its idea is red" if rung.ladder.is_gpu else "measures yours beside its neighbours"
    own = rung.short if folder == rung.folder else shlex.quote(str(folder))
    return f"""{text.strip()}

## Your turn

`{rung.file.name}` has functions without their bodies: {", ".join(f"`{name}`" for name in left(emptied(rung)))}.
You can begin with those of the rung below, {link(f"`{below.name}`", below)}.
Leave the rest as it is, above all the last lines: the ladder finds your rung by their name.

## How to check it

    tools/step check {own}
    tools/step practice {rung.short} --solution

The check compares with {rung.ladder.rungs[0].name} in odd sizes, then {then}.
{link("The page of the ladder", page)} has the code, the figures and the other rungs.
"""


def check(folder, options):
    """What `tools/step check` does for a rung; 0 for green and 1 for red."""
    if options.only:
        raise Problem("--only chooses test cases of a step; a rung has one check.", 2)
    if options.sanitize and folder.rung.ladder.is_gpu:
        raise Problem("--sanitize is for code of the CPU; the emulation of a GPU names races and wrong waits by itself.", 2)
    if not folder.file.is_file():
        raise Problem(f"{folder.file.name} is missing in {folder.path}; tools/step practice {folder.rung.short} "
                      f"{shlex.quote(str(folder.path))} --force writes it again.")
    text = folder.file.read_text(encoding="utf-8", errors="replace")
    waits = left(text)
    if waits:
        return red(f"your turn in {folder.file.name}: {', '.join(waits)}.")
    if not re.search(rf"^const(?:expr)? \w*Rung {folder.rung.variable()}\b", text, re.MULTILINE):
        return red(f"{folder.file.name} no longer defines {folder.rung.variable()}, by which the ladder finds it.")
    with locked(folder.path / "build", waiting="Another check of this folder is running; this one waits for it ..."):
        found = compile_rung(folder, (options.build or ROOT / "build").absolute(), options.sanitize)
        errors = [one for one in found if one.is_error]
        if errors:
            return red(f"{errors[0].file} does not compile.",
                       *(line for one in errors[:3] for line in (f"{one.place()}: {one.message}", *one.shown)))
        for line in warnings(found):
            print(line)
        return run(folder, options)


def compile_rung(folder, build, sanitize):
    """Compiles and links build/check-rung; the Diagnostics of the learner's file."""
    if not (build / "build.ninja").is_file():
        library("configure build >&2")
    rung = folder.rung
    with locked(build / "practice"):
        compile_project(build, [rung.ladder.program])
    done = subprocess.run(["ninja", "-C", build, "-t", "commands", rung.ladder.program], capture_output=True, text=True)
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    place = f"rung_{rung.file.parent.name}_{rung.file.stem}" if rung.ladder.is_gpu else f"/{rung.file.parent.name}/{rung.file.stem}"
    compilers = [words for words in commands if "-c" in words and words[-1].endswith(f"{place}.cpp")]
    linkers = [words for words in commands if "-o" in words and words[words.index("-o") + 1] == rung.ladder.program]
    if done.returncode or not compilers or not linkers:
        raise Problem(f"{build} does not know how to build {rung.ladder.program}; tools/test rungs shows whether it builds.")
    compiler = absolute(without(compilers[0], ROOT / "no", build), build)
    compiler += [word for word in compilers[0] if word.startswith("-O")][-1:]
    linker = linkers[0]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1"] if sanitize else []
    objects = folder.path / "build/rung.o"
    begin = options_begin(compiler)
    log = call([*compiler[:begin], *sanitizers, *compiler[begin:], "-Wno-unused-parameter", "-fdiagnostics-color=never",
                "-x", "c++", "-c", folder.file.name, "-o", objects], folder.path)
    found = diagnostics(log.stderr, folder.path)
    if log.returncode:
        return found or [one for one in diagnostics(f"{folder.file.name}:0: error: {log.stderr.strip()[-300:]}", folder.path)]
    # The first definition counts: the learner's stands before the ladder's library.
    words = [build / word if "/" in word and not word.startswith("-") else word for word in linker]
    program = words.index("-o") + 1
    words[program] = folder.path / "build/check-rung"
    done = call([words[0], *sanitizers, *words[1:program + 1], objects, *words[program + 1:]], build)
    return found if done.returncode == 0 else found + diagnostics(done.stderr, folder.path)


def call(words, folder):
    return subprocess.run(list(map(str, words)), cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", env={**os.environ, "LC_ALL": "C"}, check=False)


def run(folder, options):
    rung = folder.rung
    words = [folder.path / "build/check-rung", rung.ladder.name, str(rung.number), *(["compare"] if options.sanitize else [])]
    limit = options.limit * (10 if options.sanitize else 1)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:color=never"}
    try:
        done = subprocess.run(list(map(str, words)), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=limit, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return red(f"it took longer than {limit:g} seconds, and was ended; an endless loop? --limit SECONDS gives it more.")
    said = done.stdout.rstrip()
    if done.returncode == 1 and said and "Sanitizer" not in done.stderr:
        return red(said.splitlines()[-1])
    if done.returncode == 3:
        raise Problem(said)
    if done.returncode:
        complaint = re.search(r"^.*(?:ERROR: AddressSanitizer: .*|runtime error: .*)$", done.stderr, re.MULTILINE)
        hint = "" if options.sanitize or rung.ladder.is_gpu else f" tools/step check {folder.called()} --sanitize shows where."
        name = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        where = [line.strip() for line in done.stderr.splitlines() if folder.file.name in line][:2]
        if rung.ladder.is_gpu:
            hint = (" A thread read or wrote outside of its memory: compare each index with the bounds, and mind that "
                    "row<T> counts in elements of T.")
        return red(f"it crashed ({name}).{hint}", *([complaint[0].strip()] if complaint else []), *where)
    print(f"GREEN: {rung.full_name} computes what {rung.ladder.rungs[0].name} does, in every odd size."
          + (f"\n{said}" if said else ""))
    later = [one for one in rung.ladder.rungs if one.number == rung.number + 1]
    print(f"  compare     {rung.file.relative_to(ROOT)} is the project's own")
    if later:
        print(f"  next        tools/step practice {later[0].short}       {later[0].idea()}")
    return 0


def red(reason, *more):
    print(f"RED: {reason}", *more, sep="\n")
    return 1
