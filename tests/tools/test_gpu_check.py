"""tools/gpu-check where there is no GPU, and the page that it writes."""

import subprocess
import tempfile
import unittest
from pathlib import Path

from support import load, run

check = load("gpu-check")


class Refusals(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "python3").symlink_to(subprocess.run(
            ["sh", "-c", "command -v python3"], capture_output=True, text=True, check=True).stdout.strip())
        (self.folder / "env").symlink_to("/usr/bin/env")

    def refused(self, part):
        done = run("tools/gpu-check", env={"PATH": f"{self.folder}:/bin:/usr/bin" if self.fake else str(self.folder)})
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn(part, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_no_driver(self):
        self.fake = False
        self.refused("this machine has no NVIDIA driver")

    def test_no_gpu(self):
        self.fake = True
        (self.folder / "nvidia-smi").write_text("#!/bin/sh\necho 'No devices were found.'\nexit 6\n")
        (self.folder / "nvidia-smi").chmod(0o755)
        self.refused("finds no GPU on this machine; it says: No devices were found.")

    def test_wrong_usage(self):
        done = run("tools/gpu-check", "--shapes", "124m,7b")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'7b'", done.stderr)


class Page(unittest.TestCase):
    REPORT = {"gpu": {"name": "A GPU", "driver": "1.2", "memory": "3 MiB"}, "date": "2000-01-01", "commit": "abc",
              "dtype": "bfloat16", "tests": {"passed": True}, "sanitizer": {"memcheck": False}, "benchmarks": {}}

    def test_without_benchmarks_it_says_so(self):
        text = check.page(self.REPORT)
        self.assertIn("| tests of the kernels, the model and the steps | passed |", text)
        self.assertIn("| compute-sanitizer, memcheck | FAILED |", text)
        self.assertIn("| compute-sanitizer, racecheck | not run |", text)
        self.assertIn("not yet measured", text)

    def test_every_figure_has_its_row(self):
        ours = {"ttft_ms": 1.25, "copy_gb_per_s": 100.0,
                "decode": [{"batch": 1, "tokens_per_s": 10.4, "percent_of_copy": 49.6}]}
        peer = {"ttft_ms": 2.5, "version": "peer 1", "decode": [{"batch": 1, "tokens_per_s": 5.2}]}
        text = check.page(self.REPORT | {"benchmarks": {"124m": {"Staircase": ours, "peer, eager": peer}}})
        self.assertIn("| 124m | Staircase | 1.2 ms | 1 | 10 | 50 % |", text)
        self.assertIn("| 124m | peer, eager | 2.5 ms | 1 | 5 | – |", text)
        self.assertIn("Copy bandwidth: 100 GB/s.", text)
        self.assertIn("peer 1.", text)
        self.assertNotIn("not yet measured", text)


if __name__ == "__main__":
    unittest.main()
