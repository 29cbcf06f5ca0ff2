"""A practice folder: its contents, its path, and what it records.

It has every declaration of the step, so learners need not guess a name: at first all of it compiles, and the checks
fail. From common/decoding it gets what had landed before the step, so the library does not reveal the solution.
build.ninja marks it, and its first lines record which step it is for and whether that was green once."""

import hashlib
import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path

from .hunks import without
from .outline import Header, changed_names, normal, outline
from .series import OWN, ROOT, Problem, find, full_disk, is_full

LIBRARY = "build/library"  # copies of the landed files that the step uses
BUILD = "build.ninja"
HEADER = """# Made by tools/step, and made again by each `tools/step check`; every other file here is yours.
# The flags are those of the project's own build.
"""
PRACTICE = ROOT / "practice"


class Folder:
    """A folder with a build.ninja of ours."""

    def __init__(self, path):
        self.path = Path(path).absolute()
        text = (self.path / BUILD).read_text(encoding="utf-8", errors="replace")
        self.said = dict(re.findall(r"^(step|given|green) = (.*)$", text, re.MULTILINE))
        if "step" not in self.said:
            raise Problem(f"{self.path / BUILD} no longer names its step; tools/step practice STEP NEW makes "
                          "a new folder, into which you can copy your code.")
        self.step, self.series = find(self.said["step"])

    def rules(self, rules):
        """Writes build.ninja: the records, and then how to compile."""
        head = "".join(f"{name} = {value}\n" for name, value in self.said.items())
        write(self.path / BUILD, (HEADER + head + rules).encode())

    def remember(self, **what):
        text = (self.path / BUILD).read_text(encoding="utf-8")
        self.said.update(what)
        self.rules(re.sub(r"\A(#.*\n|\w+ = .*\n)*", "", text))

    def missing(self):
        """The step's files that are no longer there."""
        return [name for name in self.step.files() if not (self.path / name).is_file()]

    def is_older(self):
        """Whether the project's checks have changed since the folder was made."""
        here, now = self.path / "test.cpp", self.step.folder / "test.cpp"
        return here.is_file() and now.is_file() and digest(here) != digest(now) and \
            self.said.get("given", digest(here)) == digest(here)

    def short(self):
        """The path that a person types at the project's top, or in the folder above."""
        return self.step.number if self.path == PRACTICE / self.step.name else shlex.quote(shown(self.path))


def shown(path):
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def write(path, content):
    """Writes a file so that an interruption leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    try:
        new.write_bytes(content)
        os.replace(new, path)
    except BaseException as error:
        new.unlink(missing_ok=True)
        if isinstance(error, OSError) and not error.filename:
            error.filename = str(path)
        raise


def is_practice(path):
    try:
        return (path / BUILD).read_text(encoding="utf-8", errors="replace").startswith(HEADER[:40])
    except OSError:
        return False


def made():
    """The practice folders in their usual place, the last used ones at the end."""
    return sorted(filter(is_practice, PRACTICE.glob("*")), key=last_used)


def last_used(folder):
    return max(path.stat().st_mtime for path in folder.iterdir())


def green_steps():
    """The names of the steps whose practice folder was green once."""
    said = [re.search(r"^step = (.+)\n(?:\w+ = .*\n)*?green = ", (path / BUILD).read_text(encoding="utf-8"), re.MULTILINE)
            for path in made()]
    return {match.group(1) for match in said if match}


def called(name):
    """The Folder that `check NAME` means."""
    if name is None:
        if is_practice(Path.cwd()):
            return Folder(Path.cwd())
        if not made():
            raise Problem("There is no practice folder yet; tools/step practice STEP makes one.", 2)
        return Folder(made()[-1])
    if is_practice(Path(name)):
        return Folder(name)
    if re.fullmatch(r"\d{1,3}(-.+)?", name) or re.fullmatch(r"[a-z][a-z0-9-]*", name) and not Path(name).exists():
        path = PRACTICE / find(name)[0].name
        if is_practice(path):
            return Folder(path)
        raise Problem(f"{path} does not exist yet, or was moved; tools/step practice {name} makes it, and tools/step check "
                      "takes the name of any folder.", 2)
    raise Problem(f"{name} is not a practice folder; tools/step practice STEP {shlex.quote(name)} makes one.", 2)


def outlines(step):
    """({file: what a learner gets of it}, {new, change, leave: files}). main.cpp is wiring, so it is given."""
    def headers(files):
        return {name: Header(path.read_text(encoding="utf-8")) for name, path in files.items()
                if name.endswith((".h", ".cpp")) and name not in ("main.cpp", *OWN)}

    given, kinds = {}, {"new": [], "change": [], "leave": []}
    before = step.parent.lesson() if step.parent else {}
    old, now = headers(before), headers(step.lesson())
    library = headers({name: landed.path for name, landed in step.visible().items()})
    changed = changed_names(old.values(), [*now.values(), *library.values()])
    test = step.folder / "test.cpp"
    checks = test.read_text(encoding="utf-8") if test.is_file() else ""
    for name, path in step.lesson().items():
        given[name] = path.read_bytes()
        if name in now and (name not in old or old[name].text != now[name].text):
            former = [old[name]] if name in old else []
            former += [header for header in old.values() if header not in former]
            others = [*now.values(), *library.values()]
            given[name] = outline(now[name], former, changed, step.parent.name if step.parent else "", others, checks).encode()
        same = given[name] == path.read_bytes()
        kinds["leave" if same else "change" if name in before else "new"].append(name)
    return given, kinds


def left(step, path):
    """The parts that are still unchanged, as `generate.h: generate (still that of 03-context-window) · sampling.h:
    process`."""
    def bodies(text):
        return {(one.scope, one.signature): (one.title(), normal(one.body_text())) for one in Header(text).functions}

    told = []
    for name, content in outlines(step)[0].items():
        if not name.endswith(".h") or not (path / name).is_file():
            continue
        goal = bodies((step.folder / name).read_text(encoding="utf-8"))
        mine = bodies((path / name).read_text(encoding="utf-8", errors="replace"))
        same = [one for key, one in bodies(content.decode()).items() if one != goal.get(key) and one == mine.get(key)]
        names = dict.fromkeys(title + ("" if "your turn: " in body else f" (still that of {step.parent.name})")
                              for title, body in same)
        told += [f"{name}: {', '.join(names)}"] if names else []
    return " · ".join(told)


def readme(step, folder):
    """The step's README.md with the commands of the practice folder, links that lead to the project, and no code of the
    step."""
    short = step.number if folder == PRACTICE / step.name else shlex.quote(str(folder))
    mine = f"practice/{step.name}" if folder == PRACTICE / step.name else shlex.quote(str(folder))
    text = without(step.readme())
    # The reason for the folder has happened already, and the project's own step reveals nothing about the learner's.
    drop = rf"step practice {step.number}|test {step.number}" if f"    tools/step check {step.number}" in text \
        else rf"step practice {step.number}"
    text = re.sub(rf"^    tools/(?:{drop})\b.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(rf"tools/(?:test|step check) {step.number}\b", f"tools/step check {short}", text)
    # Without options, tools/run takes those at the top of the page; the program itself has none.
    text = re.sub(rf"(tools/run {step.number}) +# the command at the top", r"\1 ...           # with the options at the top", text)
    text = re.sub(rf"tools/run {step.number}\b", f"{mine}/build/program", text)
    text = re.sub(r"\]\((\.\.?/[^)\s]*)\)", lambda link: f"]({os.path.relpath(step.folder / link.group(1), folder)})", text)
    text = text.replace("## How to check it\n", "## How to check it\n\nCall these in the project's folder; "
                        "`build/program` is there after a check.\n", 1)
    if "\n## Afterwards\n" in text:
        return text
    text = re.sub(rf"^    tools/step diff {step.number}\b.*\n", "", text, flags=re.MULTILINE)
    afterwards = f"## Afterwards\n\n    tools/step diff {step.number}        how the project itself writes this step\n\n"
    place = re.search(r"^## (Exercises|Sources)$", text, re.MULTILINE)
    at = place.start() if place else len(text)
    return text[:at] + ("" if place else "\n") + afterwards + text[at:]


def make(step, path, force=False):
    """Makes the practice folder of a step, wholly or not at all; returns the report of `outlines` on its files. Files
    in the way are kept in a folder `old`."""
    given, kinds = outlines(step)
    given.update({name: file.read_bytes() for name, file in step.files().items() if name in OWN})
    given["README.md"] = readme(step, path).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise Problem(f"{path.parent} is a file; name another folder.", 2) from None
    new = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        for name, content in given.items():
            write(new / name, content)
        test = new / "test.cpp"
        head = f"step = {step.name}\n" + (f"given = {digest(test)}\n" if test.is_file() else "")
        write(new / BUILD, (HEADER + head).encode())
        copy_library(new, step)
        new.chmod(0o777 & ~current_umask())
        if not path.exists():
            os.rename(new, path)
            return kinds
        if force:
            kept = keep_old(path, [*given, BUILD])
            print(f"What was there is in {shown(kept)}.")
        shutil.rmtree(path / "build", ignore_errors=True)
        for name in [*given, LIBRARY, BUILD]:  # the mark comes last
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(new / name, path / name)
    except OSError as error:
        if is_full(error):
            raise Problem(full_disk(path)) from None
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return kinds


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def keep_old(path, names):
    """Moves these files into `old`, or `old-2` if that exists; returns that folder."""
    there = [name for name in names if (path / name).exists()]
    number = 1
    while (old := path / ("old" if number == 1 else f"old-{number}")).exists():
        number += 1
    for name in there:
        (old / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(path / name, old / name)
    return old


def update(folder):
    """Brings README.md and test.cpp up to date, and adds what is missing; returns what was written. A test.cpp that
    the learner has changed is kept next to the new one."""
    given, _ = outlines(folder.step)
    step, written = folder.step, []
    given = {name: content for name, content in given.items() if not (folder.path / name).is_file()}
    given["README.md"] = readme(step, folder.path).encode()
    given["test.cpp"] = (step.folder / "test.cpp").read_bytes()
    test = folder.path / "test.cpp"
    if test.is_file() and folder.said.get("given") != digest(test) and test.read_bytes() != given["test.cpp"]:
        write(test.with_name("test.cpp.mine"), test.read_bytes())
        written.append("test.cpp.mine")
    for name, content in given.items():
        if not (folder.path / name).is_file() or (folder.path / name).read_bytes() != content:
            write(folder.path / name, content)
            written.append(name)
    folder.remember(given=digest(test))
    return written


def copy_library(path, step):
    """The headers that the step may include, and no later ones. Times are copied as well: they let the compiler
    recognize a file in two places."""
    visible = step.visible()
    for old in list((path / LIBRARY).glob("*")):
        if old.name not in visible:
            old.unlink()
    (path / LIBRARY).mkdir(parents=True, exist_ok=True)
    for name, landed in visible.items():
        copy = path / LIBRARY / name
        if not copy.is_file() or copy.stat().st_mtime_ns != landed.path.stat().st_mtime_ns or \
                copy.read_bytes() != landed.path.read_bytes():
            shutil.copy2(landed.path, copy)
