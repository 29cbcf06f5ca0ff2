"""Which of many similar tests a commit tries, by the rules of `chosen` and `touched` in tools/lib.sh."""

import functools
import hashlib
import os
import subprocess
from pathlib import Path

ALL = bool(os.environ.get("STAIRCASE_ALL_STEPS"))  # as tools/test --all sets it


@functools.cache
def commit():
    """Its hash, or "none" without git."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True,
                              check=False)
    except OSError:
        return "none"
    return done.stdout.strip() or "none"


def chosen(name, share):
    """Whether this commit tries the test of that name: one in `share`, or each with STAIRCASE_ALL_STEPS=1."""
    digits = hashlib.md5(f"{commit()} {name}\n".encode()).hexdigest()[:4]
    return ALL or int(digits, 16) % share == 0


@functools.cache
def changed():
    """The files that the last commit, or work that is not committed yet, changes; all since $STAIRCASE_SINCE."""
    root, files = Path(__file__).parent.parent, []
    for command in (["diff", "--name-only", os.environ.get("STAIRCASE_SINCE", "HEAD~1")],
                    ["ls-files", "--others", "--exclude-standard"]):
        try:
            files += subprocess.run(["git", *command], cwd=root, capture_output=True, text=True, check=False).stdout.splitlines()
        except OSError:
            pass
    return files


def touched(folder):
    return any(name.startswith(f"{folder}/") for name in changed())
