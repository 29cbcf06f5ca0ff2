"""Every file with tests is run: Meson or a script names it. And no test of a tool may hang."""

import re
import unittest

from support import ROOT, Limited

TESTS = ROOT / "tests"
# Pages and programs in a browser; clients that were written elsewhere.
BY_SCRIPTS = "".join((ROOT / name).read_text() for name in ("tools/wasm", "tests/clients/run"))


def code(folder):
    path = folder / "meson.build"
    return re.sub(r"#.*", "", path.read_text()) if path.is_file() else ""


def reached(folder):
    """Whether Meson enters the folder."""
    return folder == TESTS or f"subdir('{folder.name}')" in code(folder.parent) and reached(folder.parent)


def is_run(path):
    for folder in path.parents:
        if not folder.is_relative_to(TESTS):
            break
        if reached(folder) and f"'{path.relative_to(folder)}'" in code(folder):
            return True
    build, python = code(path.parent) if reached(path.parent) else "", re.fullmatch(r"test_(\w+)\.py", path.name)
    if python and "'test_' + name + '.py'" in build and f"'{python.group(1)}'" in build:
        return True
    if any(path.match(names) for names in re.findall(r"/(tests/\w+/test_\*\.py)", BY_SCRIPTS)):
        return True
    return re.search(rf'[/"]{re.escape(path.name)}"', BY_SCRIPTS) is not None


class Registered(Limited):
    def test_every_file_with_tests_is_run(self):
        written = {".cpp": re.compile(r"^\w*TEST_CASE", re.MULTILINE), ".py": re.compile(r"^    def test_", re.MULTILINE)}
        files = [path for path in sorted(TESTS.rglob("*")) if path.suffix in written
                 and written[path.suffix].search(path.read_text(encoding="utf-8"))]
        self.assertGreater(len(files), 60)
        self.assertEqual([str(path.relative_to(ROOT)) for path in files if not is_run(path)], [])

    def test_every_test_of_a_tool_has_a_time_limit(self):
        classes = [(path.name, *found) for path in sorted((TESTS / "tools").glob("test_*.py"))
                   for found in re.findall(r"^class (\w+)\((.*TestCase|Limited)\)", path.read_text(), re.MULTILINE)]
        self.assertGreater(len(classes), 15)
        self.assertEqual([one for one in classes if one[2] != "Limited"], [])


if __name__ == "__main__":
    unittest.main()
