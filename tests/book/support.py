"""What the tests of the book share: its modules, and small repositories to build it from."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))

sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests"), str(ROOT / "docs/book")]


def run_build(*arguments, root=ROOT, python=sys.executable, **options):
    """docs/book/build.py as tools/book calls it; its output as text."""
    return subprocess.run([python, root / "docs/book/build.py", *map(str, arguments)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=600, **options)


def small_repository(folder):
    """The book of three steps: quick to build, and may be broken."""
    root = folder / "staircase"
    (root / "steps").mkdir(parents=True)
    for name in ("01-greedy-decoding", "02-eos-handling", "03-context-window"):
        shutil.copytree(ROOT / "steps" / name, root / "steps" / name)
        for page in (root / "steps" / name).glob("*.md"):
            text = page.read_text(encoding="utf-8")
            page.write_text(re.sub(r"\[([^]]*)\]\(\.\./(?!0[123]-)[^)]*\)", r"\1", text), encoding="utf-8")  # steps that are not here
    for name in ("tools/step_commands", "docs/book", "bench"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "docs/benchmarks").mkdir()
    shutil.copy(ROOT / "docs/benchmarks/cpu.json", root / "docs/benchmarks")
    (root / "common/decoding").mkdir(parents=True)
    (root / "common/decoding/landed.txt").write_text("")
    (root / "README.md").write_text("# A small book\n\n## The staircase\n\n[The first step](steps/01-greedy-decoding).\n")
    return root
