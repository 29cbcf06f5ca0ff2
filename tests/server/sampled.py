"""Runs the checks of the server: with sanitizers half of them, another half for each commit.

STAIRCASE_ALL_STEPS=1 (`tools/test --all`) runs all of them, as a build without sanitizers does."""

import os
import random
import subprocess
import sys
import unittest
from pathlib import Path

from support import ROOT, SANITIZED


def checks(suite):
    """The single checks of a suite of suites, in their order."""
    for part in suite:
        yield from checks(part) if isinstance(part, unittest.TestSuite) else [part]


def commit():
    """Its hash; nothing without git."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout


def main():
    found = list(checks(unittest.defaultTestLoader.discover(str(Path(__file__).parent))))
    if SANITIZED and not os.environ.get("STAIRCASE_ALL_STEPS"):
        of_this_commit = commit()
        found = [check for check in found if random.Random(of_this_commit + check.id()).randrange(2)]
    sys.exit(not unittest.TextTestRunner(verbosity=1).run(unittest.TestSuite(found)).wasSuccessful())


if __name__ == "__main__":
    main()
