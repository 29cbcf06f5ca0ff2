"""A build folder that no longer fits is set up again: interrupted, moved, copied, of another compiler; and the machines
that the tools meet."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from support import ROOT, Limited

BASH_TOOLS = ("book", "chat", "compilers", "demo", "run", "setup", "test", "wasm")
STEP = "01-greedy-decoding"


class Project(Limited):
    """A project of one small program that prints where it was set up and which compiler it has, with our tools/run."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.root = self.folder / "project"
        self.write("meson.build", "project('tiny', 'cpp')\nsubdir('steps')\n")
        self.write("meson_options.txt", "option('cuda', type: 'feature', value: 'auto')\n"
                                        "option('simd_targets', type: 'string', value: 'all')\n")
        self.write("steps/meson.build", f"executable('{STEP}', '{STEP}/main.cpp', cpp_pch: 'pch/precompiled.h',\n"
                   "  cpp_args: '-DPLACE=\"@0@\"'.format(meson.project_source_root()))\n"
                   "summary('CUDA', get_option('cuda').disabled() ? 'no: it is disabled' : 'yes')\n")
        self.write("steps/pch/precompiled.h", "#include <cstdio>\n")
        self.write(f"steps/{STEP}/main.cpp", "#ifndef COMPILER\n#define COMPILER \"\"\n#endif\n"
                                             "int main() { std::puts(PLACE \" \" COMPILER); }\n")
        self.write(f"steps/{STEP}/README.md", "# 01\n\n*First.*\n")
        self.write("tools/setup", "#!/bin/sh\n", executable=True)
        for name in ("lib.sh", "run"):
            shutil.copy(ROOT / "tools" / name, self.root / "tools")
        self.environment = {name: value for name, value in os.environ.items() if name not in ("CI", "CXX")}
        self.environment["PATH"] = f"{self.folder}/bin:{os.environ['PATH']}"

    def write(self, name, text, executable=False):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if executable else 0o644)

    def compiler(self, name, word):
        """A compiler of that name on PATH, which defines COMPILER and whose version has the word in it."""
        real = shutil.which("g++") or shutil.which("c++")
        self.write(f"../bin/{name}", "#!/bin/sh\n"
                   f'if [ "$1" = --version ]; then {real} --version | sed "1s/(/({word} /"; exit; fi\n'
                   f"exec {real} '-DCOMPILER=\"{word}\"' \"$@\"\n", executable=True)

    def start(self, root=None):
        return subprocess.Popen([(root or self.root) / "tools/run", "01", "-"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=self.environment, start_new_session=True)

    def run_step(self, root=None):
        """What the program prints, and what the tool reports."""
        process = self.start(root)
        out, err = process.communicate()
        self.assertEqual(process.returncode, 0, err)
        return out.rstrip("\n"), err

    def shell(self, script, root=None):
        """Functions of lib.sh."""
        return subprocess.run(["bash", "-c", f'set -eo pipefail; source "$0"; {script}', (root or self.root) / "tools/lib.sh"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, env=self.environment)

    def options(self, root=None):
        known = json.loads(((root or self.root) / "build/meson-info/intro-buildoptions.json").read_text())
        return {option["name"]: option["value"] for option in known}


class Recovery(Project):
    LIMIT = 1200 if os.environ.get("STAIRCASE_ALL_STEPS") else 120

    def test_a_setup_that_is_killed_at_any_time_is_done_again(self):
        begin = time.monotonic()
        self.run_step()
        whole = time.monotonic() - begin
        chance = random.Random(int(os.environ.get("STAIRCASE_SEED", time.time())))
        for attempt in range(30 if os.environ.get("STAIRCASE_ALL_STEPS") else 2):
            after, how = chance.uniform(0.05, 0.9) * whole, chance.choice((signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
            with self.subTest(f"{how.name} after {after:.3f} s", attempt=attempt):
                shutil.rmtree(self.root / "build")
                process = self.start()
                time.sleep(after)
                os.killpg(process.pid, how)
                process.communicate()
                self.assertEqual(self.run_step()[0], f"{self.root} ")

    def test_what_meson_takes_for_ready_and_ninja_cannot_read(self):
        """Meson's settings are there and its rules are not; or they are, and what it writes last is not."""
        self.run_step()
        for make in (lambda build: (build / "build.ninja").unlink(), lambda build: (build / "unfinished").touch(),
                     lambda build: ((build / "stamp").unlink(), (build / "meson-info/meson-info.json").unlink())):
            make(self.root / "build")
            out, err = self.run_step()
            self.assertEqual(out, f"{self.root} ")
            self.assertRegex(err, "^Setting up build/ again: it(s setup was interrupted| was set up elsewhere, or not to the end)\\.\n")
            self.assertEqual(self.run_step()[1], "")

    def test_a_new_compiler_starts_over(self):
        self.compiler("c++", "old")
        self.compiler("other", "other")
        self.assertEqual(self.run_step()[0], f"{self.root} old")
        self.compiler("c++", "new")
        out, err = self.run_step()
        self.assertEqual(out, f"{self.root} new")
        self.assertIn("Setting up build/ again: the compiler has changed.\n", err)
        self.environment["CXX"] = "other"
        out, err = self.run_step()
        self.assertEqual(out, f"{self.root} other")
        self.assertIn("CXX is now other", err)
        del self.environment["CXX"]  # as in another terminal
        self.assertEqual(self.run_step(), (f"{self.root} other", ""))
        self.compiler("other", "newer")
        self.assertEqual(self.run_step()[0], f"{self.root} newer")  # its choice holds
        (self.folder / "bin/other").unlink()
        self.assertEqual(self.run_step()[0], f"{self.root} new")

    def test_a_moved_or_copied_folder_is_set_up_where_it_is(self):
        (self.root / "build").mkdir()
        done = self.shell('meson setup -Doptimization=1 "$root/build" "$root"')  # by hand, with an option
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.run_step()[0], f"{self.root} ")
        self.assertEqual(self.options()["optimization"], "1")
        copy, moved = self.folder / "a copy", self.folder / "moved"
        shutil.copytree(self.root, copy)
        before = {path: path.stat().st_mtime_ns for path in self.root.rglob("*")}
        for root in (copy, moved):
            with self.subTest(root.name):
                if root == moved:
                    self.root.rename(moved)
                (root / "meson.build").touch()  # rules that are older would configure again, in the first place
                out, err = self.run_step(root)
                self.assertEqual(out, f"{root} ")
                self.assertIn(f"Setting up build/ again: it was set up as {self.root}/build.\n", err)
                self.assertEqual(self.options(root)["optimization"], "1")
                self.assertEqual(self.run_step(root)[1], "")
            if root == copy:
                self.assertEqual({path: path.stat().st_mtime_ns for path in self.root.rglob("*")}, before)

    def test_what_is_not_compiled_stays(self):
        self.run_step()
        for name in ("corpus/one", "models/two", "download.log"):
            self.write(f"build/{name}", "")
        (self.root / "build/build.ninja").unlink()
        self.run_step()
        for name in ("corpus/one", "models/two", "download.log"):
            self.assertTrue((self.root / "build" / name).exists(), name)

    def test_two_tools_at_once(self):
        both = [self.start(), self.start()]
        done = [process.communicate() for process in both]
        self.assertEqual([out for out, _ in done], [f"{self.root} \n"] * 2, done)
        self.assertEqual(sorted(process.returncode for process in both), [0, 0])
        waiting = [err for _, err in done if "Another command is at work in" in err]
        self.assertLessEqual(len(waiting), 2)
        self.assertEqual(sum("Compiling into build/" in err for _, err in done), 1, done)

    def test_a_gpu_or_its_compiler_that_comes_later_is_found(self):
        hidden, there = "have_gpu() { false; }; prepare build", "have_gpu() { true; }; gpu() { echo %s; }; prepare build"
        self.assertEqual(self.shell(hidden).returncode, 0)
        self.assertEqual(self.options()["cuda"], "disabled")
        done = self.shell(there % "nvcc")
        self.assertEqual((self.options()["cuda"], done.stderr), ("auto", ""))
        before = (self.root / "build/setup.log").stat().st_mtime_ns
        self.shell(there % "nvcc")
        self.shell(hidden)
        self.assertEqual((self.root / "build/setup.log").stat().st_mtime_ns, before)  # asked once
        self.shell(there % "newer-nvcc")
        self.assertGreater((self.root / "build/setup.log").stat().st_mtime_ns, before)
        (self.root / "build/unfinished").touch()
        done = self.shell("have_gpu() { true; }; prepare build -Dcuda=disabled")
        self.assertIn("This machine has a GPU, but programs will not use it: it is disabled\n", done.stderr)

    def test_a_disabled_gpu_is_kept_only_if_a_person_disabled_it(self):
        for hand, kept in (("", "auto"), ("meson configure -Dcuda=disabled build", "disabled")):
            shutil.rmtree(self.root / "build", ignore_errors=True)
            self.shell(f"have_gpu() {{ {'false' if not hand else 'true'}; }}; cd \"$root\"; prepare build; {hand}")
            (self.root / "build/build.ninja").unlink()
            done = self.shell("have_gpu() { true; }; prepare build")
            self.assertEqual(self.options()["cuda"], kept, done.stderr)

    def test_a_folder_that_cannot_be_written_is_one_sentence(self):
        self.write("build", "")  # unlike permissions, it stops root as well
        process = self.start()
        out, err = process.communicate()
        self.assertEqual((process.returncode, out), (1, ""))
        self.assertRegex(err, rf"^Nothing can be written to {self.root}/build \([^\n]*exists\): [^\n]*\n$")


class Toolkit(Limited):
    """kernels/cuda/meson.build with an nvcc that finds its toolkit as the real one does: where it is called."""

    NVCC = ('#!/bin/sh\ncase "$*" in *compute_0*) echo "no such architecture" >&2; exit 1 ;; esac\n'
            '[ ! -e "$(dirname "$0")/nvcc.profile" ] || echo "#$ TOP=$(dirname "$0")/.." >&2\n')

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        self.toolkit, self.project, self.bin = (self.folder / name for name in ("cuda", "project", "person's bin"))
        for folder in (self.toolkit / "bin", self.toolkit / "include", self.toolkit / "lib64", self.project, self.bin):
            folder.mkdir(parents=True)
        self.program(self.toolkit / "bin/nvcc", self.NVCC)
        (self.toolkit / "bin/nvcc.profile").touch()
        for name in ("cublas", "cublasLt"):
            subprocess.run(["c++", "-shared", "-x", "c++", "/dev/null", "-o", self.toolkit / f"lib64/lib{name}.so"], check=True)
        subprocess.run(["ar", "rcs", self.toolkit / "lib64/libcudart_static.a"], check=True)
        shutil.copytree(ROOT / "kernels/cuda", self.project / "cuda")
        shutil.copy(ROOT / "meson_options.txt", self.project)
        (self.project / "meson.build").write_text(
            "project('cuda', 'cpp', meson_version: '>=1.0')\ncpp = meson.get_compiler('cpp')\nthreads = dependency('threads')\n"
            "root = include_directories('.')\nsubdir('cuda')\n")

    def program(self, path, text):
        path.write_text(text)
        path.chmod(0o755)

    def set_up(self, path, *options):
        """(status, the line of the summary about CUDA or the error)"""
        shutil.rmtree(self.folder / "build", ignore_errors=True)
        done = subprocess.run(["meson", "setup", *options, self.folder / "build", self.project], capture_output=True, text=True,
                              env={**os.environ, "PATH": f"{path}:{os.environ['PATH']}"})
        found = re.search(r"^ *CUDA +: (.*)$|ERROR: (.*)$", done.stdout, re.MULTILINE)
        return done.returncode, (found[1] or found[2]).strip() if found else done.stdout + done.stderr

    def test_a_link_or_a_wrapper_leads_to_the_toolkit(self):
        real = self.toolkit / "bin/nvcc"
        self.assertEqual(self.set_up(self.toolkit / "bin"), (0, f"{real}, for all-major"))
        (self.bin / "nvcc").symlink_to(real)
        self.assertEqual(self.set_up(self.bin), (0, f"{real}, for all-major"))
        (self.bin / "nvcc").unlink()
        self.program(self.bin / "nvcc", f'#!/bin/sh\nexec "{real}" "$@"\n')
        for options in ((), ("-Dcuda=enabled",)):
            self.assertEqual(self.set_up(self.bin, *options), (0, f"{self.bin}/nvcc, for all-major"))
        (self.toolkit / "targets/x86_64-linux").mkdir(parents=True)  # conda's folders
        for name in ("include", "lib64"):
            (self.toolkit / name).rename(self.toolkit / "targets/x86_64-linux" / name.removesuffix("64"))
        self.assertEqual(self.set_up(self.bin), (0, f"{self.bin}/nvcc, for all-major"))

    def test_a_list_of_architectures_may_have_blanks(self):
        self.assertEqual(self.set_up(self.toolkit / "bin", "-Dgpu_arch=sm_80, sm_90 ")[0], 0)
        self.assertIn("-gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=sm_90",
                      (self.folder / "build/build.ninja").read_text())

    def test_why_cuda_is_left_off(self):
        self.assertEqual(self.set_up(self.toolkit / "bin", "-Dgpu_arch=sm_0,sm_90"),
                         (0, "no: nvcc cannot compile for sm_0,sm_90 with this compiler"))
        self.assertEqual(self.set_up(self.toolkit / "bin", "-Dcuda=disabled"), (0, "no: it is disabled"))
        (self.toolkit / "bin/nvcc.profile").unlink()
        self.program(self.bin / "nvcc", self.NVCC)  # its toolkit is unknown
        status, line = self.set_up(self.bin)
        self.assertEqual(status, 0, line)
        self.assertTrue(line.startswith("no: cuBLAS is missing from") or shutil.which("nvcc"), line)


class Memory(Project):
    def jobs(self, available, limit=None, old_limit=None, mac=None):
        root = self.folder / "machine"
        shutil.rmtree(root, ignore_errors=True)
        for name, value in (("proc/meminfo", available and f"MemTotal: 99 kB\nMemAvailable:   {available} kB\n"),
                            ("sys/fs/cgroup/memory.max", limit), ("sys/fs/cgroup/memory/memory.limit_in_bytes", old_limit)):
            if value:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(f"{value}\n")
        sysctl = f"echo {mac}" if mac else "return 1"
        done = self.shell(f'nproc() {{ echo 8; }}; sysctl() {{ {sysctl}; }}; fitting_jobs "{root}/"')
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.strip()

    def test_as_many_jobs_as_fit_into_the_memory(self):
        self.assertEqual([self.jobs(gigabytes * 10**6) for gigabytes in (1, 2, 4, 8)], ["-j1", "-j2", "-j5", ""])
        self.assertEqual(self.jobs(100_000), "-j1")
        self.assertEqual(self.jobs(None), "")
        self.assertEqual([self.jobs(None, mac=gigabytes << 30) for gigabytes in (4, 8)], ["-j5", ""])
        self.assertEqual(self.jobs(64_000_000, limit="max"), "")
        self.assertEqual(self.jobs(64_000_000, limit=2 << 30), "-j2")  # a container
        self.assertEqual(self.jobs(64_000_000, old_limit=3 << 30), "-j4")
        self.assertEqual(self.jobs(64_000_000, old_limit=9223372036854771712), "")

    def test_ninja_gets_the_number(self):
        self.run_step()
        self.write("../bin/ninja", '#!/bin/sh\necho "$*" >>"$(dirname "$0")/calls"\n', executable=True)
        self.shell("fitting_jobs() { echo -j3; }; compile build it")
        self.shell("fitting_jobs() { :; }; compile build it")
        calls = [line for line in (self.folder / "bin/calls").read_text().splitlines() if " -n" not in line]
        self.assertEqual(calls, [f"-j3 -C {self.root}/build it", f"-C {self.root}/build it"])


class Shells(Limited):
    """However a tool is called, it finds its files."""

    def test_a_tool_called_by_sh_by_a_link_or_with_cdpath(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        (Path(folder.name) / "tools").mkdir()  # where CDPATH would lead
        for tool in BASH_TOOLS:
            first, second = Path(folder.name) / f"first-{tool}", Path(folder.name) / f"second-{tool}"
            first.symlink_to(second)
            second.symlink_to(ROOT / "tools" / tool)
            words = {"run": ["top"], "chat": ["-h"]}.get(tool, ["--help"])
            want = self.call([f"tools/{tool}", *words])
            self.assertIn("top" if tool == "run" else f"tools/{tool}", want.stdout + want.stderr)
            for command, environment in ((["sh", f"tools/{tool}"], {}), ([first], {}), ([f"tools/{tool}"], {"CDPATH": folder.name}),
                                         (["bash", "--posix", f"tools/{tool}"], {})):
                with self.subTest(tool, command=command, environment=environment):
                    done = self.call([*command, *words], **environment)
                    self.assertEqual((done.returncode, done.stdout, done.stderr), (want.returncode, want.stdout, want.stderr))

    def call(self, command, **environment):
        return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env={**os.environ, **environment}, timeout=30)

    def test_the_list_is_whole(self):
        found = {path.name for path in (ROOT / "tools").iterdir() if path.is_file() and re.match(rb"#!.*bash", path.read_bytes())}
        self.assertEqual(found, set(BASH_TOOLS))


if __name__ == "__main__":
    unittest.main()
