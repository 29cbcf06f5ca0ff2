"""What the commands share: the steps in order, their files and READMEs, and git without a person's settings."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWN = ("README.md", "test.cpp")  # every step has its own; the lesson is the other files


class Problem(Exception):
    """What is wrong and what would be right, in one sentence; `status` is 2 for wrong usage."""

    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


def git(*arguments, cwd=ROOT, ok=(0,), settings=False, env={}, **options):
    """The output of git as bytes; the same on every machine unless a person's `settings` count."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    if not settings:
        environment.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
    environment.update(LC_ALL="C", **env)
    try:
        done = subprocess.run(["git", *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, **options)
    except FileNotFoundError:
        raise Problem("git is missing; tools/setup installs it.") from None
    if done.returncode not in ok:
        raise Problem(f"git {arguments[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


class Step:
    def __init__(self, folder):
        self.folder = folder
        self.name = folder.name           # 06-top-k
        self.number = folder.name[:2]     # 06

    def files(self):
        """{name: path} of the step, without editors' back-ups."""
        paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        files = {path.relative_to(self.folder).as_posix(): path for path in paths}
        return {name: path for name, path in files.items()
                if not name.endswith("~") and not any(part.startswith(".") for part in name.split("/"))}

    def lesson(self):
        return {name: path for name, path in self.files().items() if name not in OWN}

    def readme(self):
        path = self.folder / "README.md"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def heading(self):
        """`06 Top-k`, the title of its README."""
        match = re.match(r"# (\d\d .+)", self.readme())
        return match.group(1).strip() if match else self.name.replace("-", " ")

    def section(self, title):
        match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", self.readme(), re.MULTILINE | re.DOTALL)
        return match.group(1).strip() if match else ""

    def summary(self):
        """The line in italics below the title; the title where there is none."""
        match = re.search(r"^\*(.+)\*$", self.readme().split("\n## ")[0], re.MULTILINE)
        return match.group(1) if match else self.heading()[3:]


def steps():
    found = [Step(path) for path in sorted((ROOT / "steps").glob("[0-9][0-9]-*")) if path.is_dir()]
    if not found:
        raise Problem(f"There are no steps in {ROOT / 'steps'}.")
    return found


def find(name):
    """The step called 6, 06 or 06-top-k, its index in steps(), and steps()."""
    series = steps()
    for index, step in enumerate(series):
        if name == step.name or (name.isascii() and name.isdigit() and len(name) <= 2 and int(name) == int(step.number)):
            return step, index, series
    raise Problem(f"There is no step '{name}'; these are the steps: {', '.join(step.name for step in series)}.", 2)


def below(index, series):
    """The step before, or None for the first."""
    return series[index - 1] if index else None


def compare(before, after, own=False, *flags):
    """git's diff of two steps (`before` may be None), their lessons only unless `own`."""
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for step in (before, after):
            # The names appear in the diff, so that `patch -p1` works inside a step.
            names.append(step.name if step else "nothing")
            (Path(folder) / names[-1]).mkdir()
            for name, path in (step.files() if own else step.lesson()).items() if step else ():
                copy = Path(folder) / names[-1] / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
        return git("-c", "core.quotepath=off", "diff", "--no-index", "--no-ext-diff", "--no-textconv", "--no-color",
                   "--no-renames", "--no-prefix", "--histogram", *flags, *names, cwd=folder, ok=(0, 1)).decode("utf-8", "replace")


def by_file(text):
    """[(file, header lines, hunk lines)] of a diff that compare() made."""
    parts = []
    for line in text.splitlines():
        if line.startswith("diff --git "):
            parts.append(["", [line], []])
            continue
        name, header, hunks = parts[-1]
        if line.startswith("@@") or hunks:
            hunks.append(line)
            continue
        header.append(line)
        if line.startswith(("--- ", "+++ ")) and line[4:] != "/dev/null":
            parts[-1][0] = line[4:].split("/", 1)[1].rstrip("\t")
    return [tuple(part) for part in parts]


def changes(before, after, own=False):
    """{file: (lines added, lines removed)}"""
    return {name: tuple(sum(line.startswith(sign) for line in hunks) for sign in "+-")
            for name, _, hunks in by_file(compare(before, after, own))}
