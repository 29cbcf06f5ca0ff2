"""Runs the checks of the server in the files that it is given: with sanitizers half of them, another half for each
commit."""

import sys
import unittest
from pathlib import Path

from support import SANITIZED

from chosen import chosen


def checks(suite):
    """The single checks of a suite of suites, in their order."""
    for part in suite:
        yield from checks(part) if isinstance(part, unittest.TestSuite) else [part]


def main():
    found = checks(unittest.defaultTestLoader.loadTestsFromNames(Path(file).stem for file in sys.argv[1:]))
    tried = [check for check in found if not SANITIZED or chosen(check.id(), 2)]
    sys.exit(not unittest.TextTestRunner().run(unittest.TestSuite(tried)).wasSuccessful())


if __name__ == "__main__":
    main()
