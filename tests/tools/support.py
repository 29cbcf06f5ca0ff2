"""What the tests of the tools share: the tools as modules, and running them as a person would."""

import importlib.machinery
import importlib.util
import signal
import subprocess
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def load(name):
    """tools/NAME as a module; it has no .py ending."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "tools" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def run(*command, **options):
    """The finished process, its output as text; `command` is relative to the repository."""
    return subprocess.run([str(ROOT / command[0]), *map(str, command[1:])], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120, **options)


class Limited(unittest.TestCase):
    """A test that hangs fails, and the next one runs."""
    LIMIT = 60  # seconds, on a busy machine

    def run(self, result=None):
        def too_long(*_):
            raise AssertionError(f"took longer than {self.LIMIT} seconds")  # tools catch what the system refuses, but not this

        before = signal.signal(signal.SIGALRM, too_long)
        signal.alarm(self.LIMIT)
        try:
            return super().run(result)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
