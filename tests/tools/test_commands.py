"""Arguments and refusals of the shell tools; what needs no build."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from support import ROOT, Limited, run


class Commands(Limited):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def test_help(self):
        for tool in ("setup", "demo", "run", "test", "download", "verify", "count-tests", "gpu-check", "book"):
            with self.subTest(tool):
                done = run(f"tools/{tool}", "--help")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(f"tools/{tool}", done.stdout + done.stderr)

    def test_a_file_that_a_tool_or_a_program_of_the_library_names_is_there(self):
        """In its help, messages and comments. Capitals stand for a name, and what is built need not be there."""
        files = [path for path in (ROOT / "tools").rglob("*") if path.is_file() and path.suffix in ("", ".py", ".sh")]
        for folder, ends in (("bench", ("py", "cpp", "h")), ("docs", ("py",)), ("common", ("cpp", "h")), ("kernels", ("cpp", "h", "cu", "cuh"))):
            files += [path for end in ends for path in (ROOT / folder).rglob(f"*.{end}")]
        missing, count = set(), 0
        for file in files:
            text = file.read_text(encoding="utf-8")
            for found in re.finditer(r"(?<![\w./{}$*<>-])(docs|tools|common|kernels|tests|bench|playground)/([\w./-]*\w\.(py|h|cpp|cu|md|json|txt|svg)\b|[\w-]+/(?![\w<{*$.\[\"']))", text):
                if not re.search(r"[A-Z]{4}", found[0]):
                    count += 1
                    if not (ROOT / found[0]).exists() and not (file.parent / found[0]).exists():
                        missing.add((str(file.relative_to(ROOT)), found[0]))
        self.assertEqual(missing, set())
        self.assertGreater(count, 1000)

    def test_an_unknown_step(self):
        for step in ("00", "x", "-1", "01-no-such-name", "0x1", ""):
            with self.subTest(step):
                done = run("tools/run", step)
                self.assertEqual(done.returncode, 2)
                self.assertEqual(done.stdout, "")
                self.assertIn("steps:\n", done.stderr)
                for known in sorted((ROOT / "steps").glob("[0-9][0-9]*-*")):
                    headline = re.search(r"^\*(.+)\*$", (known / "README.md").read_text(), re.MULTILINE)[1]
                    self.assertRegex(done.stderr, rf"(?m)^  {known.name} +{re.escape(headline)}$")

    def test_a_part_of_a_name_that_several_steps_have(self):
        done = run("tools/run", "top")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertEqual(done.stderr.splitlines()[0], "'top' matches several steps; name one of them:")
        self.assertEqual([line.strip() for line in done.stderr.splitlines()[1:]],
                         sorted(path.name for path in (ROOT / "steps").glob("*-*top*")))

    def test_a_book_in_a_folder_that_takes_no_files(self):
        (self.folder / "file").write_text("")  # unlike permissions, it stops root as well
        done = subprocess.run([sys.executable, ROOT / "docs/book/build.py", "site", self.folder / "file/site"], capture_output=True,
                              text=True)
        if "is missing" in done.stderr:
            self.skipTest(done.stderr)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"^tools/book: \S+/file/site\S*: Not a directory\.\n$")

    def test_an_old_python_is_told_the_minimum(self):
        """Its parser reads each tool up to the sentence; 3.8 is played by this Python."""
        for tool in ("bench", "count-tests", "download", "gpu-check", "step", "trace", "verify", "../docs/book/build.py"):
            with self.subTest(tool):
                path = ROOT / "tools" / tool
                ast.parse(path.read_text(), feature_version=(3, 6))
                done = subprocess.run([sys.executable, "-c", "import runpy, sys; sys.version_info = (3, 8, 1); sys.argv = sys.argv[1:]; "
                                       "runpy.run_path(sys.argv[0], run_name='__main__')", path], capture_output=True, text=True)
                name = "book" if tool.endswith(".py") else tool
                self.assertEqual((done.returncode, done.stderr), (1, f"tools/{name} needs Python 3.9 or newer; this is 3.8.\n"))

    def test_an_unknown_option(self):
        for tool in ("setup", "test", "book"):
            done = run(f"tools/{tool}", "--frobnicate")
            self.assertEqual(done.returncode, 2)
            self.assertIn("'--frobnicate'", done.stderr)

    def test_a_page_of_its_own_wants_one_step_that_a_page_can_run(self):
        for arguments, words in {(): "--single-file needs a step", ("00",): "There is no step '00'", ("x",): "There is no step 'x'",
                                 ("66",): "66-http-server does neither", ("69",): "69-capacity does neither",
                                 ("01", "02"): "one option"}.items():
            with self.subTest(arguments):
                done = run("tools/book", "--single-file", *arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn(words, done.stderr)

    def commands(self, *names):
        """A PATH with the named programs only."""
        for name in names:
            (self.folder / name).symlink_to(shutil.which(name))
        return {"PATH": str(self.folder)}

    def fake(self, name, script):
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    BASICS = ("bash", "env", "dirname", "readlink", "sed", "head", "xargs", "echo", "cut")

    def test_setup_without_a_known_package_manager(self):
        done = run("tools/setup", env=self.commands(*self.BASICS))
        self.assertEqual(done.returncode, 1)
        self.assertIn("not found here: g++ meson ninja", done.stderr)
        self.assertIn("libfmt-dev", done.stderr)

    def test_setup_names_the_command_of_other_systems(self):
        environment = self.commands(*self.BASICS)
        for manager, words in {"brew": "brew install meson ninja", "pacman": "sudo pacman -S --needed gcc meson",
                               "dnf": "sudo dnf install gcc-c++ meson", "zypper": "sudo zypper install gcc-c++ meson",
                               "apk": "as root: apk add g++ meson"}.items():
            self.fake(manager, "exit 1")  # named, never called
            with self.subTest(manager):
                done = run("tools/setup", env=environment)
                self.assertEqual(done.returncode, 1)
                self.assertIn(words, done.stderr)
                command = re.search(r"^This installs them.*?: (.*)$", done.stderr, re.MULTILINE)[1]
                packages = subprocess.run(["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True).stdout.splitlines()
                for name in ("fmt", "doctest", "cli11", "json", "pcre2", "utf8proc", "boost", "git", "gnuplot", "python"):
                    self.assertTrue(any(name in package for package in packages), name)
            (self.folder / manager).unlink()
        done = run("tools/setup", env={**environment, "OSTYPE": "darwin24"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("With Homebrew (https://brew.sh), this installs them: brew install meson", done.stderr)

    def homebrew(self):
        """A brew that has doctest, in a folder which the compiler does not know; it gives the folder."""
        prefix = self.folder / "homebrew"
        (prefix / "include/doctest").mkdir(parents=True)
        (prefix / "include/doctest/doctest.h").write_text("#define DOCTEST 1\n")
        self.fake("brew", f'[ "$*" = --prefix ] && echo "{prefix}"')
        return prefix

    def test_setup_finds_the_headers_of_homebrew(self):
        environment = self.commands(*self.BASICS, "git", "python3")
        for name in ("g++", "c++", "ninja", "pkg-config"):
            self.fake(name, 'case "$*" in *doctest*) exit 1 ;; esac')
        self.fake("meson", "echo 1.4.0")
        done = run("tools/setup", env=environment)
        self.assertEqual((done.returncode, done.stderr.splitlines()[0]), (1, "The build needs packages that were not found here: doctest."))
        prefix = self.homebrew()
        self.assertEqual(run("tools/setup", env=environment).returncode, 0)
        (prefix / "include/doctest/doctest.h").unlink()
        self.assertEqual(run("tools/setup", env=environment).stderr.splitlines()[0],
                         "The build needs packages that were not found here: doctest.")

    def test_the_build_finds_the_headers_of_homebrew(self):
        """The lines of meson.build about them, with a header that no other folder has."""
        lines = (ROOT / "meson.build").read_text()
        lines = lines[lines.index("brew = "):lines.index("required: not in_browser)\n") + len("required: not in_browser)\n")]
        self.homebrew()
        (self.folder / "homebrew/include/doctest").rename(self.folder / "homebrew/include/doc")
        (self.folder / "tiny").mkdir()
        (self.folder / "tiny/meson.build").write_text("project('tiny', 'cpp')\ncpp = meson.get_compiler('cpp')\nin_browser = false\n" +
                                                 lines.replace("doctest/", "doc/") + "executable('it', 'it.cpp')\n")
        (self.folder / "tiny/it.cpp").write_text("#include <doc/doctest.h>\nint main() { return DOCTEST - 1; }\n")
        for path, good in ((f"{self.folder}:{os.environ['PATH']}", True), (os.environ["PATH"], False)):
            with self.subTest(good):
                build = self.folder / f"build-{good}"
                done = subprocess.run(["meson", "setup", build, self.folder / "tiny"], capture_output=True, text=True,
                                      env={**os.environ, "PATH": path})
                self.assertEqual(done.returncode == 0, good, done.stdout + done.stderr)
                if good:
                    subprocess.run(["ninja", "-C", build], check=True, capture_output=True)
                    subprocess.run([build / "it"], check=True)
                else:
                    self.assertIn("doc/doctest.h' not found", done.stdout)

    def test_the_build_names_a_compiler_that_is_too_old(self):
        """The lines of meson.build about it, and a compiler that has the version of an older one."""
        lines = (ROOT / "meson.build").read_text()
        lines = lines[lines.index("oldest = "):].split("\nendif\n")[0]
        (self.folder / "tiny").mkdir()
        (self.folder / "tiny/meson.build").write_text(f"project('tiny', 'cpp')\ncpp = meson.get_compiler('cpp')\n{lines}\nendif\n")
        gcc, clang = shutil.which("g++") or shutil.which("c++"), shutil.which("clang++")
        scripts = {f"gcc {version}": f'exec {gcc} -U__GNUC__ -D__GNUC__={version} "$@"' for version in (10, 11)}
        if clang:
            scripts |= {f"clang {version}": f'[ "$*" != --version ] || {{ echo "clang version {version}.0.1"; exit; }}\nexec {clang} "$@"'
                        for version in (13, 14)}
        for compiler, script in scripts.items():
            with self.subTest(compiler):
                self.fake("c++", script)
                done = subprocess.run(["meson", "setup", self.folder / f"build-{compiler}", self.folder / "tiny"], capture_output=True,
                                      text=True, env={**os.environ, "CXX": str(self.folder / "c++")})
                too_old = compiler in ("gcc 10", "clang 13")
                self.assertEqual(done.returncode != 0, too_old, done.stdout)
                if too_old:
                    self.assertRegex(done.stdout, rf"{compiler}\S* is too old: the build needs GCC 11 or clang 14, or a newer one")

    def test_homebrew_keeps_its_libedit_beside_the_systems(self):
        prefix = self.homebrew()
        self.fake("meson", f'echo "$PKG_CONFIG_PATH" >>"{self.folder}/paths"; exit 1')
        for before, after in (("", ""), ("/a:/b", ":/a:/b")):
            environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "PKG_CONFIG_PATH": before}
            run(shutil.which("bash"), "-c", f"source '{ROOT}/tools/lib.sh'; set_up '{self.folder}'", env=environment)
            self.assertEqual((self.folder / "paths").read_text().splitlines()[-1], f"{prefix}/opt/libedit/lib/pkgconfig{after}")

    def test_setup_goes_on_where_everything_was_installed_by_hand(self):
        environment = self.commands(*self.BASICS, "git", "python3")
        for name in ("g++", "c++", "ninja", "pkg-config"):
            self.fake(name, "exit 0")
        self.fake("meson", "echo 1.4.0")
        done = run("tools/setup", env=environment)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_a_small_setup_leaves_the_other_packages_for_later(self):
        environment = self.commands(*self.BASICS, "grep", "mkdir", "tail", "tee")
        installed = self.folder / "installed"
        self.fake("dpkg-query", "exit 1")
        self.fake("sudo", 'while [ "$1" = -n ] || [ "$1" = env ]; do shift; done; exec "$@"')
        self.fake("apt-get", f'echo "$*" >>"{installed}"')
        root = self.copied("tools/setup", "tools/lib.sh")
        extras = {"libboost-dev", "libdnnl-dev", "gnuplot-nox"}
        for options, left_out in ((("--small",), extras), ((), set())):
            with self.subTest(options):
                installed.unlink(missing_ok=True)
                run(root / "tools/setup", *options, env=environment)
                packages = set(installed.read_text().split())
                self.assertLessEqual({"g++", "meson", "libutf8proc-dev"}, packages)
                self.assertEqual(packages & extras, extras - left_out)

    def debian(self, *absent):
        """tools/setup, and a machine with all that the build needs but these; its apt-get fails and counts calls."""
        environment = self.commands(*self.BASICS, "grep", "mkdir", "tail", "tee", "cat", "rm", "flock", "tr")
        for name in ("g++", "c++", "ninja", "git", "gnuplot"):
            self.fake(name, "exit 0")
        self.fake("meson", "echo 1.4.0")
        self.fake("python3", "exit 0")
        self.fake("pkg-config", f'for name; do case " {" ".join(absent)} " in *" $name "*) exit 1 ;; esac; done')
        self.fake("dpkg-query", 'for name; do case $name in *-dev) [ $name = libedit-dev ] || echo "ii $name" ;; esac; done')
        self.fake("apt-get", f'echo "$*" >>"{self.folder}/calls"; echo "E: no network" >&2; exit 100')
        self.fake("sudo", 'while [ "$1" = -n ] || [ "$1" = env ]; do shift; done; exec "$@"')
        return self.copied("tools/setup", "tools/lib.sh") / "tools/setup", environment

    def apt_calls(self):
        calls = self.folder / "calls"
        found = calls.read_text().splitlines() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return len(found)

    def test_an_optional_package_is_tried_once(self):
        setup, environment = self.debian("libedit")
        sentence = "Continuing without libedit, which could not be installed (build/packages.log); tools/setup tries again."
        done = run(setup, "--once", "--small", env=environment)
        self.assertEqual((done.returncode, done.stderr.splitlines()[-1]), (0, sentence))
        self.assertGreater(self.apt_calls(), 0)
        again = run(setup, "--once", "--small", env=environment)
        self.assertEqual((again.returncode, again.stderr, self.apt_calls()), (0, sentence + "\n", 0))
        self.assertEqual(run(setup, "--small", env=environment).stderr.splitlines()[-1], sentence)  # called by a person
        self.assertGreater(self.apt_calls(), 0)

    @unittest.skipIf(os.geteuid() == 0 and not shutil.which("setpriv"), "root needs no sudo")
    def test_a_person_without_sudo(self):
        as_person = [shutil.which("setpriv"), "--reuid=65534", "--clear-groups"] if os.geteuid() == 0 else []
        for absent, status, last in (("libedit", 0, "Continuing without libedit, which could not"), ("fmt", 1, "The build needs these packages.")):
            with self.subTest(absent):
                for path in self.folder.iterdir():
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                setup, environment = self.debian(absent)
                (self.folder / "sudo").unlink()
                for path in (self.folder, self.folder / "tools"):
                    path.chmod(0o777)
                done = subprocess.run([*as_person, setup, "--once", "--small"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                      env=environment, timeout=50)
                lines = done.stderr.splitlines()
                self.assertEqual((done.returncode, len(lines), self.apt_calls()), (status, 2, 0), done.stderr)
                self.assertIn("there is no sudo; as root: apt-get install", lines[0])
                self.assertIn(last, lines[1])

    def test_a_pkg_config_that_looks_elsewhere_is_named(self):
        setup, environment = self.debian("fmt", "libhwy")
        self.fake("dpkg-query", 'for name; do echo "ii $name"; done')
        done = run(setup, "--once", "--small", env=environment)
        self.assertEqual((done.returncode, self.apt_calls()), (1, 0))
        self.assertEqual(done.stderr, f"{self.folder}/pkg-config does not find fmt libhwy, which are installed: it looks elsewhere, as "
                         "conda's does. 'conda deactivate', or 'export PKG_CONFIG=/usr/bin/pkg-config'.\n")
        self.fake("another", "exit 0")
        self.assertEqual(run(setup, "--once", "--small", env={**environment, "PKG_CONFIG": str(self.folder / "another")}).returncode, 0)

    def test_packages_that_come_later_are_found(self):
        """A program that needs Boost has no rule in a build folder that was prepared without."""
        root = self.copied("tools/lib.sh")
        self.fake("tools/setup", "")
        self.fake("meson", f'echo "$*" >>"{root}/calls"')
        (root / "build").mkdir()
        (root / "build/packages.log").write_text("")
        (root / "build/build.ninja").write_text("")
        environment = {"PATH": f"{root}:{os.environ['PATH']}"}
        for newer, calls in (("build.ninja", []), ("packages.log", [f"setup --reconfigure {root.resolve()}/build {root.resolve()}"])):
            with self.subTest(newer):
                for name in ("build.ninja", "packages.log"):
                    os.utime(root / "build" / name, (2e9 if name == newer else 1e9,) * 2)
                done = run(shutil.which("bash"), "-c", f'source "{root}/tools/lib.sh"; configure build', env=environment)
                self.assertEqual(done.returncode, 0, done.stderr)
                known = (root / "calls").read_text().splitlines() if (root / "calls").exists() else []
                self.assertEqual(known, calls)

    def test_continuous_integration_tries_what_a_commit_changes_beside_its_sample(self):
        root = self.copied("tools/lib.sh", "tests/chosen.py")
        git = ["git", "-C", root, "-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
        subprocess.run([*git, "init", "-q"], check=True)
        for name in ("steps/01-a/main.cpp", "steps/02-b/main.cpp", "steps/03-c/main.cpp"):
            (root / name).parent.mkdir(parents=True)
            (root / name).write_text(name)
            subprocess.run([*git, "add", name], check=True)
            subprocess.run([*git, "commit", "-qm", name], check=True)
        (root / "steps/04-d").mkdir()
        (root / "steps/04-d/main.cpp").write_text("not committed")

        def touched(*command, **environment):
            others = {name: value for name, value in os.environ.items() if name != "STAIRCASE_SINCE"}
            done = run(*command, env={**others, **environment})
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.split()

        shell = [shutil.which("bash"), "-euc", f'source "{root}/tools/lib.sh"\n'
                 'for step in 01-a 02-b 03-c 04-d; do if touched "^steps/$step/"; then echo "$step"; fi; done']
        python = [sys.executable, "-c", f"import sys; sys.path.insert(0, '{root}/tests'); import chosen\n"
                  "print(*(step for step in ('01-a', '02-b', '03-c', '04-d') if chosen.touched(f'steps/{step}')))"]
        for command in (shell, python):
            self.assertEqual(touched(*command), ["03-c", "04-d"])
            self.assertEqual(touched(*command, STAIRCASE_SINCE="HEAD~2"), ["02-b", "03-c", "04-d"])
            self.assertEqual(touched(*command, STAIRCASE_SINCE="no-commit"), ["04-d"])

    def test_a_step_and_what_checks_it_is_tried_when_its_files_change(self):
        done = run(shutil.which("bash"), "-euc", f"source '{ROOT}/tools/lib.sh'; eval \"$(sed -n '/^files_of()/,/^}}/p' '{ROOT}/tools/test')\"\n"
                   "files_of finished-14; files_of finished-63; files_of inherited-100-38; files_of 05-multinomial; files_of 101-regex; files_of model")
        finished = "^steps/63-|^common/decoding/(block_pool.h|paged_engine.h|paged_kv_cache.h|preemption.h)$"
        inherited = "^steps/100-|^steps/38-[^/]*/test.cpp$"
        self.assertEqual(done.stdout.split("\n"), ["^steps/14-|^common/decoding/(static_kv_cache.h)$", finished, inherited, "^steps/05-", "^steps/101-", "^$", ""], done.stderr)

    def test_setup_refuses_an_old_meson(self):
        environment = self.commands(*self.BASICS, "git", "python3")
        for name in ("g++", "c++", "ninja", "pkg-config"):
            self.fake(name, "exit 0")
        self.fake("meson", "echo 0.61.2")
        done = run("tools/setup", env=environment)
        self.assertEqual(done.returncode, 1)
        self.assertIn("Meson 0.61.2 is too old", done.stderr)

    def copied(self, *names):
        """A project with these files of ours."""
        for name in names:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.folder / name)
        return self.folder

    def test_bench_in_a_folder_that_takes_no_files(self):
        root = self.copied("tools/bench", "tools/lib.sh", "bench/cpu_page.py", "bench/peers.py", "bench/rungs_output.py",
                           "bench/sass.py", "bench/schemas.py", "docs/pictures/svg.py")
        self.fake("tools/setup", "")
        (root / "build-bench").write_text("")  # where a folder belongs; unlike permissions, it stops root as well
        self.fake("meson", "exit 0")
        done = run(root / "tools/bench", env={"PATH": f"{root}:{os.environ['PATH']}"})
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn(f"Nothing can be written to {root.resolve() / 'build-bench'} (", done.stderr)
        self.assertEqual(done.stderr.splitlines()[1:], ["tools/bench: the benchmark could not be built; the lines above show why."])

    def demo(self, program):
        """A project in which tools/demo has nothing to build, and its program is this script."""
        root = self.copied("tools/demo", "tools/lib.sh")
        name = re.search(r"^step=(\S+)", (ROOT / "tools/demo").read_text(), re.MULTILINE)[1]
        self.fake("tools/setup", "")
        self.fake("ninja", "echo 'no work to do'")
        (root / "build/steps").mkdir(parents=True)
        (root / "build/build.ninja").write_text("")
        (root / "steps" / name).mkdir(parents=True)
        self.fake(f"build/steps/{name}", program)
        self.environment = {"PATH": f"{root}:{os.environ['PATH']}"}
        return root / "tools/demo"

    def test_a_demo_with_arguments_of_its_own_adds_none(self):
        demo = self.demo("for argument; do echo \"$argument\"; done")
        for arguments in (["--prompts", "a file"], ["--num-beams", "4"], ["--prompt", "", "--echo"], ["--bogus"]):
            done = run(demo, *arguments, env=self.environment)
            self.assertEqual((done.returncode, done.stdout.splitlines()), (0, arguments), done.stderr)
        lines = run(demo, env=self.environment).stdout.splitlines()
        self.assertEqual(lines[:2], ["One day a Fox--prompt", "One day a Fox"])  # a pipe gets the prompt, too
        self.assertIn("--do-sample", lines)

    def test_a_demo_begins_with_the_story_and_ends_with_how_long_it_took(self):
        demo = self.demo("echo 'by formula: 1 MiB' >&2; echo ' met a Crow.'; echo; echo '9 tokens' >&2")
        together = subprocess.run([demo], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  env=self.environment, timeout=60).stdout
        lines = [line for line in together.splitlines() if line]
        self.assertEqual(lines[:3], ["One day a Fox met a Crow.", "by formula: 1 MiB", "9 tokens"])
        self.assertRegex(lines[3], r"^Step \S+ wrote this\. It took \d+ s, including \d+ s to install and compile\.$")
        self.assertEqual(run(demo, env=self.environment).stdout, "One day a Fox met a Crow.\n\n")
        verbose = subprocess.run([demo, "--verbose"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 text=True, env=self.environment, timeout=60).stdout
        self.assertEqual(verbose.splitlines()[:3], ["One day a Fox", "by formula: 1 MiB", " met a Crow."])

    def test_a_demo_whose_program_fails_shows_why(self):
        demo = self.demo("echo 'error: the model is gone' >&2; exit 3")
        done = run(demo, env=self.environment)
        self.assertEqual((done.returncode, done.stderr), (3, "\nerror: the model is gone\n"))

    def test_a_step_without_arguments_prints_its_commands_and_runs_them(self):
        root = self.copied("tools/run", "tools/lib.sh")
        self.fake("tools/setup", "")
        self.fake("ninja", "echo 'no work to do'")
        (root / "build/steps").mkdir(parents=True)
        (root / "build/build.ninja").write_text("")
        (root / "steps/07-top-p").mkdir(parents=True)
        (root / "steps/07-top-p/README.md").write_text(
            "# 07 Top-p\n\n*Keep few.*\n\n    tools/run 07 --prompt \"A B\" --top-p 1\n    tools/run 07 --bad 'C D'\n\n"
            "Continues.\n\n## The idea\n\n    tools/run 07 --not-this\n")
        self.fake("build/steps/07-top-p", 'for argument; do echo "<$argument>"; [ "$argument" != --bad ] || status=2; done; exit $status')
        environment = {"PATH": f"{root}:{os.environ['PATH']}"}
        done = run(root / "tools/run", "7", env=environment, cwd=self.folder.parent)
        self.assertEqual((done.returncode, done.stdout.splitlines()),
                         (2, ["<--prompt>", "<A B>", "<--top-p>", "<1>", "<--bad>", "<C D>"]), done.stderr)
        self.assertEqual(done.stderr, "$ tools/run 07 --prompt \"A B\" --top-p 1\n\n$ tools/run 07 --bad 'C D'\n\n")
        self.assertEqual(run(root / "tools/run", "07", "--x", env=environment).stdout, "<--x>\n")
        self.assertIn("07-top-p: Keep few.\n", run(root / "tools/run", "07", "--help", env=environment).stdout)

    def test_the_demo_leads_to_the_first_step(self):
        self.assertIn("tools/step practice 01 ", (ROOT / "tools/demo").read_text())

    def test_the_changelog_begins_with_the_version_of_the_build(self):
        version = re.search(r"^  version: '(.+)',$", (ROOT / "meson.build").read_text(), re.MULTILINE).group(1)
        self.assertEqual(re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE).group(1), version)

    def test_contributing_names_what_is_there(self):
        text = (ROOT / "CONTRIBUTING.md").read_text()
        places = set(re.findall(r"`((?:common|docs|kernels|steps|tests|tools)/[\w./-]*)`", text))
        self.assertGreater(len(places), 10)
        for place in places:
            self.assertTrue((ROOT / place).exists() or "NAME" in place or "NN" in place, place)

    def test_counting(self):
        summary = "[doctest] test cases:  3 |  {} passed | {} failed | 0 skipped"
        log = self.folder / "build" / "testlog.json"
        log.parent.mkdir()

        def count(*tests):
            lines = [json.dumps({"name": "x / y", "result": result, "duration": 0.1, "stdout": output})
                     for result, output in tests]
            log.write_text("\n".join(lines))
            done = run("tools/count-tests", log)
            return done.returncode, done.stdout.splitlines()[-1]

        self.assertEqual(count(("OK", summary.format(3, 0))), (0, "3 passed, 0 failed"))
        self.assertEqual(count(("FAIL", summary.format(1, 2))), (1, "1 passed, 2 failed"))
        self.assertEqual(count(("FAIL", summary.format(3, 0))), (1, "3 passed, 1 failed"))  # a leak, after the tests
        self.assertEqual(count(("TIMEOUT", "")), (1, "0 passed, 1 failed"))
        self.assertEqual(count(("OK", "no count")), (0, "1 passed, 0 failed"))
        self.assertEqual(count(("OK", "Ran 7 tests in 1.2s\n\nOK (skipped=2)")), (0, "5 passed, 0 failed"))
        self.assertEqual(count(("FAIL", "Ran 7 tests in 1.2s\n\nFAILED (failures=1, errors=2)")),
                         (1, "4 passed, 3 failed"))
        self.assertEqual(count(("OK", summary.format(3, 0)), ("OK", summary.format(3, 0))), (0, "6 passed, 0 failed"))
        self.assertEqual(count(("EXPECTEDFAIL", "")), (0, "1 passed, 0 failed"))
        self.assertEqual(count(("OK", summary.format(3, 0)), ("FAIL", "\n".join(f"line {i}" for i in range(81)))), (1, "3 passed, 1 failed"))
        shown = run("tools/count-tests", log).stdout
        self.assertTrue(shown.startswith("--- build y: FAIL\nline 1\nline 2\n"), shown)
        self.assertIn("\nline 80\n         passed  failed  seconds\nbuild y       3       0      0.1\nbuild y       0       1      0.1\n", shown)
        self.assertEqual(count(("SKIP", "")), (1, "0 passed, 0 failed"))
        self.assertEqual(count(("SKIP", "Skipped: no model.")), (1, "0 passed, 0 failed"))
        self.assertIn("Skipped: no model.\n", run("tools/count-tests", log).stdout)
        log.unlink()
        done = run("tools/count-tests", log)
        self.assertEqual((done.returncode, done.stdout.splitlines()[-1]), (1, "0 passed, 1 failed"))


@unittest.skipUnless(Path("build.ninja").exists(), "outside of a build folder")
class Dependencies(Limited):
    def test_what_a_precompiled_header_holds_is_a_reason_to_compile(self):
        known = run(shutil.which("ninja"), "-C", Path.cwd(), "-t", "deps").stdout.split("\n\n")
        for part, header in (("steps/17-[^:]*main.cpp.o", "common/model/kv_cache.h"),
                             ("tests/test-17[^:]*test.cpp.o", "kernels/device.h")):
            for entry in (entry for entry in known if re.search(f"^{part}:", entry, re.MULTILINE)):
                self.assertRegex(entry, rf"\n +\.\./{header}(\n|$)")


if __name__ == "__main__":
    unittest.main()
