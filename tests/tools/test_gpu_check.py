"""tools/gpu-check where there is no GPU, and the page that it writes."""

import contextlib
import io
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

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

    def test_a_missing_tool_is_named(self):
        smi = self.folder / "nvidia-smi"
        smi.write_text("#!/bin/sh\necho 'A GPU, 1.2, 3 MiB'\n")
        smi.chmod(0o755)
        done = run("tools/gpu-check", env={"PATH": str(self.folder)})
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1], "^tools/gpu-check: (meson|ninja) is not installed; tools/setup")
        self.assertNotIn("Traceback", done.stderr)

    def test_wrong_usage(self):
        done = run("tools/gpu-check", "--shapes", "124m,7b")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'7b'", done.stderr)


class Shapes(unittest.TestCase):
    """Which shapes are measured and which left out, with a benchmark that only says so."""

    PROGRAM = """#!/bin/sh
case "$*" in
*1558m*) echo "error: the GPU has too little memory: 3.1 GB were asked for, 1.0 GB of 2.0 GB are free" >&2; exit 1 ;;
*774m*) echo "error: the GPU failed while it computed: no reason" >&2; exit 1 ;;
esac
for file; do :; done
echo '{"ttft_ms": 1.5}' >"$file"
"""

    def test_one_that_fails_does_not_take_the_others_along(self):
        with tempfile.TemporaryDirectory() as folder, \
                mock.patch.object(check, "BUILD", Path(folder)), \
                mock.patch.object(check, "shaped_model", lambda shape: Path(folder, shape)), \
                mock.patch.object(check.importlib.util, "find_spec", lambda name: None), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            program = Path(folder, "bench", "bench")
            program.parent.mkdir()
            program.write_text(self.PROGRAM)
            program.chmod(0o755)
            figures, left_out, failed = check.measure_all(["1558m", "774m", "124m"], "float16")
        self.assertEqual(figures, {"124m": {"Staircase": {"ttft_ms": 1.5}}})
        self.assertEqual(left_out, {
            "1558m": "the GPU has too little memory: 3.1 GB were asked for, 1.0 GB of 2.0 GB are free",
            "774m": "the GPU failed while it computed: no reason"})
        self.assertEqual(failed, ["the benchmark of 774m"])
        self.assertIn("1558m is left out: the GPU has too little memory", said.getvalue())


class Page(unittest.TestCase):
    REPORT = {"gpu": {"name": "A GPU", "driver": "1.2", "memory": "3 MiB"}, "date": "2000-01-01", "commit": "abc",
              "dtype": "bfloat16", "tests": {"passed": True}, "sanitizer": {"memcheck": False}, "benchmarks": {}, "left_out": {}}
    # 0.3 TFLOP in 1.25 ms are 240 TFLOP/s
    OURS = {"prompt_tokens": 512, "ttft_ms": 1.25, "prefill_tflop": 0.3, "cublas_size": 8192, "cublas_tflop_per_s": 600.0,
            "cublas_block_tflop_per_s": 300.0, "copy_gb_per_s": 100.0,
            "decode": [{"batch": 1, "tokens_per_s": 10.4, "percent_of_copy": 49.6}]}
    PEER = {"ttft_ms": 2.5, "version": "peer 1", "decode": [{"batch": 1, "tokens_per_s": 5.2}]}

    def test_without_benchmarks_it_says_so(self):
        text = check.page(self.REPORT)
        self.assertIn("| tests of the kernels, the model and the steps | passed |", text)
        self.assertIn("| compute-sanitizer, memcheck | FAILED |", text)
        self.assertIn("| compute-sanitizer, racecheck | not run |", text)
        self.assertIn("not yet measured", text)

    def test_every_figure_has_its_row(self):
        text = check.page(self.REPORT | {"benchmarks": {"124m": {"Staircase": self.OURS, "peer, eager": self.PEER}}})
        self.assertIn("| shape | engine | TTFT, 512 tokens | TFLOP/s | prefill, of cuBLAS's peak |", text)
        self.assertIn("two random matrices of 8192 × 8192", text)
        self.assertIn("| 124m | Staircase | 1.25 ms | 240.0 | 40 % | 80 % |", text)
        self.assertIn("| 124m | peer, eager | 2.50 ms | 120.0 | 20 % | 40 % |", text)
        self.assertIn("| 124m | Staircase | 1 | 10 | 50 % |", text)
        self.assertIn("| 124m | peer, eager | 1 | 5 | – |", text)
        self.assertIn("| 124m | 100 GB/s | 600.0 TFLOP/s | 300.0 TFLOP/s |", text)
        self.assertIn("peer 1.", text)
        self.assertNotIn("not yet measured", text)
        self.assertNotIn("was not measured", text)

    def test_a_shape_that_was_left_out_has_its_reason(self):
        left_out = {"left_out": {"1558m": "the GPU has too little memory"}}
        for benchmarks in ({}, {"124m": {"Staircase": self.OURS}}):
            text = check.page(self.REPORT | left_out | {"benchmarks": benchmarks})
            self.assertIn("- 1558m was not measured: the GPU has too little memory.", text)


if __name__ == "__main__":
    unittest.main()
