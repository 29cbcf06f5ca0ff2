"""axe-core, which finds what is hard to read, to hear or to reach on a page in a browser."""

import subprocess
import sys
import tempfile
import unittest
import zipfile
from functools import cache
from pathlib import Path

from support import BUILD

PACKAGE = Path(__file__).resolve().parent / "axe.txt"


@cache
def script():
    """The script of axe-core, from PyPI and by its hash; kept in the build folder."""
    kept = BUILD / "axe-core" / f"{PACKAGE.read_text(encoding='utf-8').rpartition(':')[2].strip()[:16]}.js"
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--retries", "1", "--timeout", "20",
               "download", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--dest", folder, "-r", str(PACKAGE)]
        done = subprocess.run(pip, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)
        if "HASHES" in done.stderr:
            raise AssertionError(done.stderr)
        if done.returncode:
            raise unittest.SkipTest("axe-core is on PyPI, which pip cannot reach here: "
                                    + (done.stderr.strip().splitlines() or ["it printed no reason"])[-1])
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            text = wheel.read("axe_playwright_python/axe.min.js").decode()
    if kept.parent.parent.is_dir():
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(text, encoding="utf-8")
    return text


def found(browser):
    """What is wrong on the page that is open: a rule, how many elements break it, and one of them."""
    if not browser.execute_script("return typeof axe === 'object'"):
        browser.execute_script(script())
    browser.set_script_timeout(120)
    return browser.execute_async_script("""
        const done = arguments[arguments.length - 1];
        axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => done(violations.map(({ id, nodes }) =>
          `${id} (${nodes.length}): ${nodes[0].html.slice(0, 160)} ${nodes[0].failureSummary.slice(0, 240)}`)),
          (error) => done([String(error)]));""")
