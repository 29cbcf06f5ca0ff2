"""What the tests of the series share: the steps, tools/step as a person calls it, and small staircases to try it on."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))

sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]
from step_commands import hunks, series  # noqa: E402

STEPS = series.steps()
PAIRS = [(step.parent, step) for step in STEPS if step.parent]


def call(command, *arguments, **options):
    """The finished process, its output as text."""
    return subprocess.run([str(command), *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, **{"timeout": 600, **options})


class Scratch(unittest.TestCase):
    """A test with its own folder."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()

    def step(self, *arguments, status=0, root=ROOT, **options):
        """What `tools/step ARGUMENTS` writes; fails unless its exit status is `status`."""
        done = call(root / "tools/step", *arguments, **options)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout + done.stderr

    def staircase(self, steps):
        """A small project with tools/step and these steps, {step: {file: text or bytes}}; a `step` with a slash is a
        folder of the project. Committed."""
        root = self.folder / "staircase"
        copy_tool(root)
        for step, files in steps.items():
            for name, content in files.items():
                path = root / (step if "/" in step else f"steps/{step}") / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.encode() if isinstance(content, str) else content)
        self.commit(root)
        return root

    def commit(self, root):
        if not (root / ".git").exists():
            self.git(root, "init", "-q")
        self.git(root, "add", "-A")
        self.git(root, "-c", "user.name=test", "-c", "user.email=test", "commit", "-qm", "test", "--no-verify")

    def git(self, root, *arguments):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        done = call("git", *arguments, cwd=root, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout


def copy_tool(root):
    (root / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools/step", root / "tools")
    shutil.copytree(ROOT / "tools/step_commands", root / "tools/step_commands",
                    ignore=shutil.ignore_patterns("__pycache__"))


def snapshot(folder):
    """{name: (mode, content)} of everything below, git's own folder aside."""
    return {path.relative_to(folder).as_posix():
            ("link", os.readlink(path)) if path.is_symlink() else (path.stat().st_mode, path.read_bytes())
            for path in folder.rglob("*")
            if (path.is_file() or path.is_symlink()) and ".git" not in path.relative_to(folder).parts}
