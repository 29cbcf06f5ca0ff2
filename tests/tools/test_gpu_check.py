"""tools/gpu-check without a GPU, with stand-ins for the programs that it starts, and the report that it writes."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from support import ROOT, Limited, load, run

check = load("gpu-check")


# Answers the one question that it knows: another order of the fields would be another answer.
SMI = """#!/bin/sh
[ "$1" = --query-gpu=name,driver_version,memory.total ] && echo 'A GPU, 1.2, 3 MiB'
"""


class Refusals(Limited):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "python3").symlink_to(subprocess.run(
            ["sh", "-c", "command -v python3"], capture_output=True, text=True, check=True).stdout.strip())
        (self.folder / "env").symlink_to("/usr/bin/env")

    def refused(self, part, *words):
        done = run("tools/gpu-check", *words, env={"PATH": f"{self.folder}:/bin:/usr/bin" if self.fake else str(self.folder)})
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertIn(part, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_no_driver(self):
        self.fake = False
        self.refused("this machine has no NVIDIA driver")
        self.refused("this machine has no NVIDIA driver", "--tune")

    def test_no_gpu(self):
        self.fake = True
        (self.folder / "nvidia-smi").write_text("#!/bin/sh\necho 'No devices were found.'\nexit 6\n")
        (self.folder / "nvidia-smi").chmod(0o755)
        self.refused("finds no GPU on this machine; its message: No devices were found.")

    def test_a_missing_tool_is_named(self):
        smi = self.folder / "nvidia-smi"
        smi.write_text(SMI)
        smi.chmod(0o755)
        done = run("tools/gpu-check", env={"PATH": str(self.folder)})
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)
        self.assertRegex(done.stderr.splitlines()[-1], "^tools/gpu-check: (meson|ninja) is not installed; tools/setup")
        self.assertNotIn("Traceback", done.stderr)

    def test_wrong_usage(self):
        done = run("tools/gpu-check", "--shapes", "124m,7b")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'7b'", done.stderr)
        done = run("tools/gpu-check", "--arch", "sm_90")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--arch needs --pack or --counters", done.stderr)
        done = run("tools/gpu-check", "--tune", "--only", "tests")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--tune measures the forms of the products alone", done.stderr)


class StandIns(Limited):
    """With programs of a few lines instead of those that are built, and without anything said to standard error."""

    GPU = {"name": "A GPU", "driver": "1.2", "memory": "3 MiB"}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.said = io.StringIO()
        for manager in (mock.patch.object(check, "BUILD", self.folder),
                        mock.patch.object(check, "shaped_model", lambda shape, minutes: self.folder / shape),
                        mock.patch.object(check.importlib.util, "find_spec", lambda name: None),
                        mock.patch.dict(os.environ, {"PATH": f"{self.folder}:/bin:/usr/bin"}),
                        contextlib.redirect_stderr(self.said)):
            manager.__enter__()
            self.addCleanup(manager.__exit__, None, None, None)

    def program(self, name, text):
        file = self.folder / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text)
        file.chmod(0o755)
        return file

    def report(self):
        return {"gpu": self.GPU, "checks": {}, "benchmarks": {}, "left_out": {}}


class Plan(StandIns):
    def arguments(self, *words):
        with mock.patch.object(sys, "argv", ["gpu-check", *words]):
            return check.read_arguments()

    def test_each_piece_is_the_command_that_its_line_names_and_ends_within_ten_minutes(self):
        lines = check.plan().splitlines()[1:]
        self.assertEqual(len(lines), len(check.PIECES))
        done = []
        for number, line in enumerate(lines, 1):
            piece, words = line.split("    ")
            self.assertEqual(piece.split(), ["tools/gpu-check", "--piece", str(number)])
            wanted, given = self.arguments(*words.split()), self.arguments("--piece", str(number))
            self.assertEqual(vars(given) | {"piece": None}, vars(wanted))
            # The limit is that of each program. A benchmark starts four: one writes the model, three are measured.
            programs = 4 * len(given.shapes) if given.only == "benchmarks" else 1
            self.assertLess(programs * given.minutes, 10)
            done.append(("tune" if given.tune else given.only, *(given.shapes if given.only == "benchmarks" else [])))
        self.assertEqual(done, [("tests",), *((tool,) for tool in check.SANITIZER_TOOLS), ("tune",),
                                *(("benchmarks", shape) for shape in check.SHAPES)])

    def test_the_plan_needs_no_gpu_and_other_pieces_are_refused(self):
        done = run("tools/gpu-check", "--plan")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, check.plan() + "\n", ""))
        for number in ("0", str(len(check.PIECES) + 1), "x"):
            done = run("tools/gpu-check", "--piece", number)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("--piece", done.stderr)
        for words in (("--only", "tests"), ("--shapes", "355m"), ("--minutes", "3"), ("--plan",), ("--tune",)):
            done = run("tools/gpu-check", "--piece", "2", *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("--piece sets --only, --tune, --shapes and --minutes itself", done.stderr)

    def test_the_kernels_alone_are_not_reported_as_all_tests(self):
        self.program("tests/test-kernels", "#!/bin/sh\n")
        self.assertEqual(list(check.run_tests(1))[-1], "passed: the kernels, nothing else")
        self.program("tests/test-model", "#!/bin/sh\n")
        self.assertEqual(list(check.run_tests(1))[-1], "passed")


class Limits(StandIns):
    def test_what_takes_too_long_is_stopped_with_all_that_it_started(self):
        program = self.program("slow", f"#!/bin/sh\n(sleep 2; touch {self.folder}/alive) &\nwait\n")
        start = time.monotonic()
        with self.assertRaisesRegex(check.Failure, "^it took more than 0.005 minutes and was stopped$"):
            check.run(program, minutes=0.005)
        self.assertLess(time.monotonic() - start, 1.5)
        time.sleep(2.2)
        self.assertFalse((self.folder / "alive").exists())

    def test_a_program_that_takes_too_long_has_failed_with_its_reason_and_the_next_one_runs(self):
        self.program("tests/test-01", "#!/bin/sh\nsleep 20\n")
        self.program("tests/test-02", "#!/bin/sh\nexit 3\n")
        self.program("tests/test-common", "#!/bin/sh\nexit 3\n")
        self.program("tests/test-kernels", "#!/bin/sh\ntest $STAIRCASE_TEST_DEVICE = cuda\n")
        slow = "test-01 (it took more than 0.005 minutes and was stopped)"
        with mock.patch("os.cpu_count", return_value=2):
            one_by_one = list(check.check("tests", 0.005))
        self.assertEqual(one_by_one, [
            f"not finished: 1 of 3 programs ran; FAILED: {slow}",
            f"not finished: 2 of 3 programs ran; FAILED: {slow}, test-02",
            f"not finished: 3 of 3 programs ran; FAILED: {slow}, test-02",
            f"FAILED: {slow}, test-02"])
        with mock.patch("os.cpu_count", return_value=8):  # side by side they end in any order
            self.assertEqual(list(check.check("tests", 0.005))[-1], f"FAILED: {slow}, test-02")
        (self.folder / "tests" / "test-01").unlink()
        (self.folder / "tests" / "test-02").unlink()
        self.assertEqual(list(check.check("tests", 0.005))[-1], "passed: the kernels, nothing else")

    def test_float32_is_never_tf32(self):
        program = self.program("show", "#!/bin/sh\necho tf32 $NVIDIA_TF32_OVERRIDE\n")
        with mock.patch.dict(os.environ, {"NVIDIA_TF32_OVERRIDE": "1"}):
            check.run(program, log=self.folder / "log")
        self.assertEqual((self.folder / "log").read_text(), "tf32 0\n")
        self.assertIn("tf32 0", self.said.getvalue())


class Tune(StandIns):
    def tune(self, status, *words):
        program = self.program("bench/bench", f"#!/bin/sh\necho \"$@\" >{self.folder}/asked\nexit {status}\n")
        with mock.patch.object(check, "build", lambda: None), mock.patch.object(check, "find_gpu", lambda: self.GPU), mock.patch.object(check, "PACKED", self.folder / "none"), \
                mock.patch.object(sys, "argv", ["gpu-check", "--tune", *words]):
            self.assertTrue(program.exists())
            check.main()
        return (self.folder / "asked").read_text()

    def test_the_chosen_shapes_are_measured_in_the_chosen_type(self):
        self.assertEqual(self.tune(0), "tune --shapes 124m,355m,774m,1558m --dtypes bfloat16\n")
        self.assertEqual(self.tune(0, "--shapes", "355m", "--dtype", "int8"), "tune --shapes 355m --dtypes int8\n")

    def test_a_measurement_that_fails_is_one_sentence(self):
        with self.assertRaisesRegex(check.Failure, "^the forms of the products could not be measured"):
            self.tune(1)


class Counters(StandIns):
    def counters(self, text, status, tools=None, words=(), kernels=None):
        program = self.program(f"build/{check.COUNTERS}", f"#!/bin/sh\necho '{text}'\nexit {status}\n")
        with mock.patch.object(check, "ROOT", self.folder), mock.patch.object(check, "library", lambda script: True), \
                mock.patch.object(check.sass, "toolkit", lambda: tools), \
                mock.patch.object(check.sass, "versions", lambda _, architecture: f"nvcc for {architecture}"), \
                mock.patch.object(check.sass, "compiled", lambda file, *_: kernels if file.stem == "linear" else []), \
                mock.patch.object(sys, "argv", ["gpu-check", "--counters", *words]), contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertTrue(program.exists())
            try:
                check.main()
            except check.Failure as failure:
                return said.getvalue(), str(failure)
            return said.getvalue(), None

    def test_the_table_is_printed_without_a_gpu(self):
        self.assertEqual(self.counters("[doctest]\n| a | b |\n|---|---|\n===", 0), ("| a | b |\n|---|---|\n", None))

    TABLE = "| operation | kernel | KB |\n|---|---|---|\n| a product | multiply<2, float> | 3 |\n| a load | load<float> | 4 |"

    def test_where_nvcc_is_installed_the_table_has_what_it_makes_of_each_kernel(self):
        figures = {"kernel": "multiply<2, float>", "registers": 76, "spilled_bytes": 0, "shared_bytes": 16}
        one = check.sass.Toolkit("nvcc", None, "c++filt")
        table, _ = self.counters(self.TABLE, 0, one, ["--arch", "sm_80"], [figures])
        self.assertEqual(table, "| operation | kernel | KB | registers | bytes spilled | shared bytes |\n|---|---|---|---|---|---|\n"
                                "| a product | multiply<2, float> | 3 | 76 | 0 | 16 |\n| a load | load<float> | 4 | – | – | – |\n"
                                "\nThe last columns are by nvcc for sm_80.\n")
        self.assertIn("nvdisasm, which", self.said.getvalue())
        both = check.sass.Toolkit("nvcc", "nvdisasm", "c++filt")
        table, _ = self.counters(self.TABLE, 0, both, [], [{**figures, "instructions": 400}])
        self.assertIn("| shared bytes | instructions |\n|---|---|---|---|---|---|---|\n", table)
        self.assertIn("| 76 | 0 | 16 | 400 |\n", table)
        self.assertIn("by nvcc for sm_90.\n", table)

    def test_without_nvcc_the_table_has_the_counters_and_a_line_names_it(self):
        self.assertEqual(self.counters(self.TABLE, 0), (self.TABLE + "\n", None))
        self.assertIn("nvcc, which comes with the CUDA toolkit, would add registers and instructions.\n", self.said.getvalue())

    def test_a_kernel_beyond_its_limits_fails_and_is_shown(self):
        table, failure = self.counters("| a | b |\ncounters.cpp:1: ERROR: CHECK( sectors_read <= 1 )\n  values: 2", 1)
        self.assertEqual(table, "| a | b |\n")
        self.assertRegex(failure, "^a kernel exceeds its limits in tests/cuda_emulation/counters.cpp")
        self.assertIn("values: 2", self.said.getvalue())


class Sanitizer(StandIns):
    def result(self, text, status=0):
        self.program("compute-sanitizer", f"#!/bin/sh\necho \"$@\" $STAIRCASE_TEST_DEVICE\necho '{text}'\nexit {status}\n")
        return next(check.check("racecheck", 1))

    def test_it_passes_or_fails(self):
        summary = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
        self.assertEqual(self.result(summary), "passed")
        self.assertRegex(self.said.getvalue(), "--tool racecheck --report-api-errors no .*/test-kernels cuda\n")
        self.assertEqual(self.result(summary, 1), "FAILED")

    def test_where_it_refuses_the_device_it_did_not_run(self):
        for status in (0, 1):
            self.assertEqual(self.result("========= Error: Device not supported.", status),
                             "not run: compute-sanitizer's message: Error: Device not supported")
        self.assertEqual(self.result("nothing"), "not run: compute-sanitizer gave no summary")


class RanksOnGpus(StandIns):
    # The steps whose tests start them with mpirun.
    ONE, TWO = sorted({name for file in (ROOT / "tests/parallel").glob("test_*.py")
                       for name in re.findall(r"\b\d\d+-[a-z]+-parallel\b", file.read_text(encoding="utf-8"))})
    STEP = """#!/bin/sh
echo "it computes" >&2
echo '{"sequences": [{"token_ids": [1, '${RANKS:-2}']}]}'
"""
    MPIRUN = """#!/bin/sh
shift 2
case "$*" in *450*)
  sleep 2 >/dev/null 2>&1 & sleep 2 >/dev/null 2>&1 &
  sleep 0.3; printf A; %s; exit 1;;
esac
%s exec "$@"
"""

    def result(self, gpus="0,1", end="sleep 0.2; echo 'error: rank 1 is lost' >&2", before="", minutes=0.2):
        for name in (self.ONE, self.TWO, "01-other"):
            self.program(f"steps/{name}", self.STEP)
        self.program("mpirun", self.MPIRUN % (end, before))
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": gpus}):
            return next(check.check("ranks", minutes))

    def test_they_pass_or_are_named(self):
        self.assertEqual(self.result(), "passed")
        self.assertEqual(self.result(before="RANKS=3"),
                         f"FAILED: {self.ONE} (another text than on one GPU), {self.TWO} (another text than on one GPU)")
        self.assertEqual(self.result(before="echo 'error: so it goes.'; exit 1;"), "FAILED: error: so it goes")
        for name in self.ONE, self.TWO:
            self.assertTrue((ROOT / "steps" / name).is_dir(), name)

    def test_ranks_that_stay_or_say_nothing_have_failed(self):
        self.assertEqual(self.result(end="sleep 20", minutes=0.02), "FAILED: two ranks, of which one got SIGKILL, did not end")
        for end in ("exit 0", "true"):
            self.assertEqual(self.result(end=end),
                             f"FAILED: {self.ONE} (0 errors after SIGKILL), {self.ONE} (0 errors after SIGSTOP), "
                             f"{self.TWO} (0 errors after SIGKILL), {self.TWO} (0 errors after SIGSTOP)")

    def test_the_second_rank_gets_the_signal_and_the_first_lives_on(self):
        # Of two processes that sleep, one must be left that is not stopped: the first.
        state = "kill -0 $first && case $(cut -d' ' -f3 /proc/$first/stat) in T) exit 1;; esac; "
        with mock.patch.object(self, "MPIRUN", """#!/bin/sh
shift 2
case "$*" in *450*)
  sleep 2 >/dev/null 2>&1 & first=$!; sleep 2 >/dev/null 2>&1 &
  sleep 0.3; printf A; %s; exit 1;;
esac
%s exec "$@"
"""):
            self.assertEqual(self.result(end=f"sleep 0.2; {state}echo 'error: rank 1 is lost' >&2"), "passed")

    def test_fewer_than_two_gpus_or_no_mpirun_are_told(self):
        self.assertEqual(self.result(gpus="0"), "not run: it needs two GPUs")
        self.assertEqual(self.result(gpus=""), "not run: it needs two GPUs")
        with mock.patch.object(check.shutil, "which", lambda name: None):
            self.assertEqual(self.result(), "not run: mpirun is not installed")


class Packing(StandIns):
    """Programs that were built on one machine and run on another."""

    def setUp(self):
        super().setUp()
        self.root = self.folder / "here"
        for folder, name in (("steps", "01-a"), ("tests", "test-01"), ("tests", "test-common"), ("bench", "bench")):
            (self.root / "build-gpu" / folder).mkdir(parents=True, exist_ok=True)
            shutil.copy(shutil.which("true"), self.root / "build-gpu" / folder / name)
        (self.root / "a.h").write_text("// a\n")
        (self.root / ".gitignore").write_text("/build*/\n")
        for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a", "commit", "-qm", "a"]):
            subprocess.run(["git", *command], cwd=self.root, check=True)
        self.at(self.root)

    def at(self, root):
        for name, value in (("ROOT", root), ("BUILD", root / "build-gpu"), ("PACKED", root / "build-gpu" / "packed.json")):
            patch = mock.patch.object(check, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    @unittest.skipUnless(shutil.which("strip") and shutil.which("ldd"), "no binutils")
    def test_what_is_unpacked_runs_where_it_was_built(self):
        commit = check.commit()
        with mock.patch.object(check, "build") as build, contextlib.redirect_stdout(io.StringIO()):
            check.pack(self.folder / "packed.tar.xz", "sm_90")
        build.assert_called_once_with("sm_90")
        there = self.folder / "there"
        with tarfile.open(self.folder / "packed.tar.xz") as archive:
            archive.extractall(there)
        self.assertEqual(sorted(str(file.relative_to(there)) for file in there.rglob("*") if file.is_file()), [
            ".gitignore", "a.h", "build-gpu/bench/bench", "build-gpu/packed.json", "build-gpu/steps/01-a",
            "build-gpu/tests/test-01"])
        self.at(there)
        self.assertEqual(check.commit(), commit)
        self.assertEqual(list(check.run_tests(1))[-1], "passed")
        with self.assertRaisesRegex(check.Failure, f"were built in {self.root} and look for their files there: ln -s"):
            check.check_packed()
        shutil.rmtree(self.root)
        self.root.symlink_to(there)
        check.check_packed()

    @unittest.skipUnless(shutil.which("strip") and shutil.which("ldd"), "no binutils")
    def test_for_the_pieces_it_packs_neither_models_nor_references_and_has_a_limit(self):
        shutil.copy(shutil.which("true"), self.root / "build-gpu" / "tests" / "test-kernels")
        shutil.copy(shutil.which("true"), self.root / "build-gpu" / "bench" / "bench-ranks")
        for name in ("models/a/weights", "tests/reference/logits", "tests/a.py"):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text("a")
        subprocess.run(["git", "add", "."], cwd=self.root, check=True)
        file = self.folder / "packed.tar.xz"
        with mock.patch.object(check, "build"), contextlib.redirect_stdout(io.StringIO()):
            check.pack(file, "sm_90", for_pieces=True)
        with tarfile.open(file) as archive:
            self.assertEqual(sorted(archive.getnames()), [".gitignore", "a.h", "build-gpu/bench/bench", "build-gpu/packed.json",
                                                          "build-gpu/tests/test-kernels", "tests/a.py"])
        with mock.patch.object(check, "build"), mock.patch.object(check, "LARGEST_UPLOAD", 100), \
                self.assertRaisesRegex(check.Failure, "MiB, more than"):
            check.pack(file, "sm_90", for_pieces=True)

    def test_a_folder_that_is_not_there_is_named_before_anything_is_built(self):
        with mock.patch.object(check, "build") as build, \
                self.assertRaisesRegex(check.Failure, f"there is no folder {self.folder}/nowhere$"):
            check.pack(self.folder / "nowhere" / "packed.tar.xz", "sm_90")
        build.assert_not_called()

    def test_a_folder_that_is_no_repository_cannot_be_packed(self):
        shutil.rmtree(self.root / ".git")
        with self.assertRaisesRegex(check.Failure, "is not a git repository"):
            check.pack(self.folder / "packed.tar.xz", "sm_90")

    def test_a_folder_inside_another_repository_is_not_of_its_commit(self):
        inner = self.root / "build-inner"  # ignored
        inner.mkdir()
        self.at(inner)
        with self.assertRaisesRegex(check.Failure, "inside another one"):
            check.pack(self.folder / "packed.tar.xz", "sm_90")
        self.assertRegex(check.commit(), "^unknown, sources ")

    def test_the_libraries_of_a_program_but_not_of_the_system_or_of_cuda(self):
        self.program("ldd", """#!/bin/sh
echo '	libcublasLt.so.13 => /usr/local/cuda/lib64/libcublasLt.so.13 (0x1)
	libcuda.so.1 => /lib/libcuda.so.1 (0x1)
	libfmt.so.9 => /lib/libfmt.so.9 (0x1)
	libgone.so.1 => not found
	libc.so.6 => /lib/libc.so.6 (0x1)
	libcli.so.1 => /lib/libcli.so.1 (0x1)
	/lib64/ld-linux-x86-64.so.2 (0x1)'
""")
        self.assertEqual(check.shared_libraries("a"), {Path("/lib/libfmt.so.9"), Path("/lib/libcli.so.1")})


class Built(StandIns):
    def test_a_build_that_fails_ends_the_check_with_a_sentence(self):
        with mock.patch.object(check.shutil, "which", lambda name: f"/bin/{name}"), mock.patch.object(check, "library") as library:
            for results, words in (([False], "^meson could not prepare build-gpu/; "), ([True, False], "^the build failed$")):
                library.side_effect = results
                with self.assertRaisesRegex(check.Failure, words):
                    check.build()
            library.side_effect = [True, True]
            check.build("sm_90")
            self.assertIn("-Dgpu_arch=sm_90", library.call_args_list[-2][0])
            self.assertEqual(library.call_args_list[-1][0], ("compile build-gpu",))


class ShapedModels(Limited):
    def test_a_model_is_written_whole_and_once(self):
        with tempfile.TemporaryDirectory() as name, mock.patch.object(check, "ROOT", Path(name)), mock.patch.object(check, "run") as run_program:
            def write(*command, minutes):
                (command[command.index("--folder") + 1] / "model.safetensors").write_text(command[command.index("--shape") + 1])
                return True

            run_program.return_value = False
            with self.assertRaisesRegex(check.Failure, "^its random weights could not be written$"):
                check.shaped_model("124m", 1)
            run_program.side_effect = write
            for _ in range(2):
                folder = check.shaped_model("124m", 1)
                self.assertEqual((folder, (folder / "model.safetensors").read_text()), (Path(name, "build-bench/models/gpt2-124m-shape"), "124m"))
            self.assertEqual([path.name for path in folder.parent.iterdir()], ["gpt2-124m-shape"])
            self.assertEqual(run_program.call_count, 2)


class Shapes(StandIns):
    """Which shapes are measured and which left out, with a benchmark that only says so."""

    PROGRAM = """#!/bin/sh
case "$*" in
*1558m*) echo "error: the GPU has too little memory: 3.1 GB were requested, 1.0 GB of 2.0 GB are free" >&2; exit 1 ;;
*774m*) echo "error: the GPU failed while it computed: no reason" >&2; exit 1 ;;
esac
for file; do :; done
echo '{"device": "A GPU, 3 MiB", "ttft_ms": 1.5}' >"$file"
"""
    FIGURES = {"device": "A GPU, 3 MiB", "ttft_ms": 1.5}

    def measured(self, shapes, gpu=None, dtype="float16"):
        self.program("bench/bench", self.PROGRAM)
        report, saved = self.report() | ({"gpu": gpu} if gpu else {}), []
        failed = check.measure_all(shapes, dtype, 1, report, lambda: saved.append(json.dumps(report)))
        self.assertEqual(json.loads(saved[-1]), report)
        return report, len(saved), failed

    def test_one_that_fails_does_not_take_the_others_along(self):
        report, saved, failed = self.measured(["1558m", "774m", "124m"])
        self.assertEqual(report["benchmarks"], {"124m, float16": {"Staircase": self.FIGURES}})
        self.assertEqual(report["left_out"], {
            "1558m, float16": "the GPU has too little memory: 3.1 GB were requested, 1.0 GB of 2.0 GB are free",
            "774m, float16": "the GPU failed while it computed: no reason"})
        self.assertEqual((saved, failed), (3, ["the benchmark of 774m"]))
        self.assertIn("1558m, float16 is left out: the GPU has too little memory", self.said.getvalue())

    def test_figures_of_another_gpu_are_refused(self):
        report, _, failed = self.measured(["124m"], {"name": "B GPU"})
        self.assertIn("nvidia-smi reports B GPU, but CUDA's first GPU is A GPU, 3 MiB", report["left_out"]["124m, float16"])
        self.assertEqual((report["benchmarks"], failed), ({}, ["the benchmark of 124m"]))

    def test_a_peer_that_fails_has_its_reason(self):
        python = self.program("python", "#!/bin/sh\n"
                              "case \"$*\" in *--compile*) sleep 20 ;; esac\necho 'OutOfMemoryError: none' >&2\nexit 1\n")
        run_it = check.run

        def impatient(*command, minutes=None, **options):
            return run_it(*command, minutes=0.005 if "--compile" in command else minutes, **options)
        with mock.patch.object(sys, "executable", str(python)), mock.patch.object(check, "run", impatient), \
                mock.patch.object(check.importlib.util, "find_spec", lambda name: name):
            report, saved, failed = self.measured(["124m"])
        self.assertEqual(report["benchmarks"]["124m, float16"], {
            "Staircase": self.FIGURES,
            "transformers, eager": {"failed": "OutOfMemoryError: none"},
            "transformers, compiled, static cache": {"failed": "it took more than 0.005 minutes and was stopped"}})
        self.assertEqual((saved, failed), (3, []))

    def test_few_bits_are_measured_without_pytorch_which_has_none(self):
        for dtype in ("int8", "int4"):
            with mock.patch.object(check.importlib.util, "find_spec", lambda name: name):
                report, saved, failed = self.measured(["124m"], dtype=dtype)
            self.assertEqual(report["benchmarks"], {f"124m, {dtype}": {"Staircase": self.FIGURES}})
            self.assertEqual((saved, failed), (1, []))
            self.assertIn(f"PyTorch alone cannot multiply weights in {dtype}", self.said.getvalue())


class Reports(StandIns):
    """What one run adds to the report of another."""

    def read(self, gpu=None, version="abc"):
        return check.read_report(self.folder / "gpu.json", gpu or self.GPU, version)

    def test_runs_of_the_same_commit_and_gpu_add_up(self):
        first = self.read()
        first["checks"]["tests"] = "passed"
        check.write_report(self.folder / "gpu.json", first)
        second = self.read()
        second["left_out"]["124m, float16"] = "a reason"
        check.write_report(self.folder / "gpu.json", second)
        third = self.read()
        self.assertEqual((third["checks"], third["left_out"]), ({"tests": "passed"}, {"124m, float16": "a reason"}))
        page = (self.folder / "gpu.md").read_text()
        self.assertIn("the steps | passed |", page)
        self.assertIn("- 124m, float16 was not measured: a reason.", page)

    def test_others_begin_anew(self):
        for gpu, version in ((None, "abd"), (self.GPU | {"driver": "1.3"}, "abc")):
            report = self.read()
            report["checks"]["tests"] = "passed"
            check.write_report(self.folder / "gpu.json", report)
            self.assertEqual(self.read(gpu, version)["checks"], {})

    def test_a_file_that_is_no_report_counts_as_none(self):
        (self.folder / "gpu.json").write_text("{")
        self.assertEqual(self.read()["checks"], {})

    def test_every_part_is_in_the_report_before_the_next_begins(self):
        self.program("nvidia-smi", SMI)
        found = []

        def part(name, minutes):
            file = self.folder / "gpu-a-gpu.json"
            found.append(sorted(json.loads(file.read_text())["checks"]) if file.exists() else [])
            yield "passed"
        with mock.patch.object(check, "PAGES", self.folder), mock.patch.object(check, "ROOT", self.folder), \
                mock.patch.object(check, "build"), mock.patch.object(check, "check", part), \
                mock.patch.object(check.signal, "signal"), \
                mock.patch.object(check, "measure_all", return_value=[]), contextlib.redirect_stdout(io.StringIO()), \
                mock.patch.object(sys, "argv", ["gpu-check"]):
            check.main()
        self.assertEqual(found, [[], ["tests"], ["memcheck", "tests"], ["memcheck", "racecheck", "tests"],
                                 ["initcheck", "memcheck", "racecheck", "tests"],
                                 ["initcheck", "memcheck", "racecheck", "synccheck", "tests"]])


class Page(Limited):
    REPORT = {"gpu": {"name": "A GPU", "driver": "1.2", "memory": "3 MiB"}, "date": "2000-01-01", "commit": "abc",
              "checks": {"tests": "passed", "memcheck": "FAILED"}, "benchmarks": {}, "left_out": {}}
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
        self.assertIn("| ranks on two GPUs, which exchange numbers | not run |", text)
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

    def test_an_engine_that_failed_has_its_row(self):
        text = check.page(self.REPORT | {"benchmarks": {"124m": {"Staircase": self.OURS, "peer, eager": {"failed": "a | b"}}}})
        self.assertIn("| 124m | peer, eager | failed: a / b | – | – | – |", text)
        self.assertIn("| 124m | peer, eager | failed: a / b | – | – |\n", text)
        self.assertIn("PyTorch and transformers: no figures here.", text)

    def test_a_shape_that_was_left_out_has_its_reason(self):
        left_out = {"left_out": {"1558m": "the GPU has too little memory"}}
        for benchmarks in ({}, {"124m": {"Staircase": self.OURS}}):
            text = check.page(self.REPORT | left_out | {"benchmarks": benchmarks})
            self.assertIn("- 1558m was not measured: the GPU has too little memory.", text)


if __name__ == "__main__":
    unittest.main()
