"""Which of many similar tests a commit tries, by the rule of `chosen` in tools/lib.sh."""

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
