"""The library as another project uses it: what is installed, and what its headers require."""

import os
import re
import shlex
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/tales-6m"

# Which folders of common/ a folder may include. All of them may include kernels/.
ROOMS = {
    "base": set(),
    "parallel": {"base"},
    "model": {"base", "parallel"},
    "text": {"base", "model"},  # a GGUF file holds the tokenizer of its model
    "decoding": {"base", "model", "text"},
    "measure": {"base", "parallel", "model", "decoding"},
    "program": {"base", "parallel", "model", "text", "decoding", "measure"},
    "server": {"base", "model", "text", "decoding", "measure", "program"},
}
LIBRARY = ["base", "parallel", "model", "text", "decoding"]

# What only sources include: JSON, and the insides of models and tokenizers.
PRIVATE = ["base/hash.h", "base/json_file.h", "base/json_options.h", "base/misspelling.h", "base/precompiled.h",
           "base/whole_match.h", "base/xxh64.h", "model/adapter.h",
           "decoding/constrained_model.h", "decoding/constraint.h", "decoding/known_tokens.h",
           "decoding/sorted_tokens.h", "model/family.h",
           "model/fingerprint.h", "model/gguf_config.h", "model/gguf_types.h", "model/lead_passes.h", "model/llama.h",
           "model/pass.h", "model/plain_weights.h", "model/rotary.h", "model/llama3_scaling.h", "model/settings.h",
           "model/share.h", "model/weights.h", "parallel/mpi_ranks.h", "parallel/rank_monitor.h",
           "parallel/thread_ranks.h", "parallel/wait_limit.h", "text/added_token_reader.h", "text/added_tokens.h",
           "text/byte_alphabet.h", "text/chat_template.h", "text/code_points.h", "text/gguf_tokenizer.h",
           "text/gguf_vocabulary.h", "text/intersection.h", "text/jinja.h", "text/json_value.h", "text/merger.h",
           "text/nfc.h", "text/normalizer.h", "text/number_ranges.h", "text/pattern.h", "text/pre_tokenizer.h",
           "text/pre_types.h", "text/schema_reader.h", "text/spelling.h", "text/stack_automaton.h",
           "text/tokenizer_config.h", "text/tokenizer_files.h", "text/tokenizer_json.h", "text/vocabulary_reader.h"]


def call(*command, **options):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL,
                          **options)


def includes(path):
    return re.findall(r'^#include ["<]([^">]+)[">]', path.read_text(encoding="utf-8"), re.MULTILINE)


class Rooms(unittest.TestCase):
    def test_every_room_is_known(self):
        self.assertEqual({path.name for path in (ROOT / "common").iterdir() if path.is_dir()}, set(ROOMS))

    def test_includes_go_one_way(self):
        for room, below in ROOMS.items():
            for path in (ROOT / "common" / room).iterdir():
                if path.suffix not in (".h", ".cpp"):
                    continue
                for name in includes(path):
                    with self.subTest(f"{room}/{path.name} includes {name}"):
                        self.assertFalse(name.startswith(("steps/", "tests/", "bench/")))
                        if name.startswith("common/"):
                            self.assertIn(name.split("/")[1], below | {room})
                        if name.startswith("kernels/"):
                            self.assertIn(name, ("kernels/device.h", "kernels/hadamard.h", "kernels/half.h", "kernels/host_arrays.h", "kernels/platform.h", "kernels/tensor.h", "kernels/tuning.h"))
        for path in (ROOT / "kernels").rglob("*"):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
                self.assertFalse([name for name in includes(path) if name.startswith(("common/", "steps/"))], path)

    def test_what_landed_needs_no_source_of_its_own(self):
        manifest = (ROOT / "common/decoding/landed.txt").read_text(encoding="utf-8")
        landed = [line.split()[0] for line in manifest.splitlines() if line and not line.startswith("#")]
        self.assertEqual([name for name in landed if not name.endswith(".h")], [])


class Example(unittest.TestCase):
    def check(self, program):
        """It prints the same as a step with the same options."""
        prompt = "Once upon a time"
        done = call(program, MODEL, prompt)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        step = call(os.environ["STAIRCASE_STEP"], "--model", MODEL, "--device", "cpu", "--prompt", prompt, "--max-new-tokens", 100,
                    "--do-sample", "--seed", 8, "--temperature", 0.8, "--top-k", 40)
        self.assertEqual(step.returncode, 0, step.stderr)
        self.assertEqual(done.stdout, step.stdout)
        self.assertGreater(len(done.stdout), 100)
        for arguments, fault in ((["/no/such/folder", "a"], "/no/such/folder"), ([], "0 arguments")):
            done = call(program, *arguments)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, rf"\Aerror: .*{fault}.*\n\Z")

    def test_it_says_what_a_step_says(self):
        self.check(os.environ["STAIRCASE_EXAMPLE"])

    def test_it_is_about_forty_lines(self):
        lines = (ROOT / "docs/example.cpp").read_text(encoding="utf-8").splitlines()
        self.assertLessEqual(len([line for line in lines if line and not line.startswith("//")]), 40)


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = Path(folder.name).resolve()
        done = call("meson", "install", "-C", os.environ["STAIRCASE_BUILD"], "--no-rebuild", "--tags", "devel",
                    "--destdir", cls.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        cls.description = next(cls.folder.rglob("staircase.pc"))
        # As if the folder were the root of the machine, for this library alone.
        text = cls.description.read_text(encoding="utf-8")
        cls.description.write_text(text.replace("prefix=/", f"prefix={cls.folder}/", 1), encoding="utf-8")
        cls.headers = next(cls.folder.rglob("include/staircase"))

    def flags(self, *options):
        """The flags of pkg-config, and nothing of the project's own tree."""
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.description.parent)}
        done = call("pkg-config", *options, "staircase", env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(str(ROOT), done.stdout)
        return shlex.split(done.stdout)

    def compile(self, source, *flags):
        done = call(*shlex.split(os.environ["STAIRCASE_COMPILER"]), "-std=c++20", "-Wall", "-Wextra", "-Werror", source, *flags,
                    cwd=self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_the_example_is_built_by_pkg_config_alone(self):
        source = self.folder / "example.cpp"
        source.write_bytes((ROOT / "docs/example.cpp").read_bytes())
        self.compile(source, "-o", "example", *self.flags("--cflags", "--libs"))
        Example().check(self.folder / "example")

    def test_every_public_header_is_there_and_compiles(self):
        want = {path.relative_to(ROOT) for room in LIBRARY for path in (ROOT / "common" / room).glob("*.h")}
        want |= {path.relative_to(ROOT) for path in (ROOT / "kernels").glob("*.h")}
        want -= {Path("common") / name for name in PRIVATE}
        found = {path.relative_to(self.headers) for path in self.headers.rglob("*") if path.is_file()}
        self.assertEqual(found, want)
        source = self.folder / "all.cpp"
        source.write_text("".join(f'#include "{name}"\n' for name in sorted(map(str, found))), encoding="utf-8")
        # A program of one's own needs none of these.
        seen = self.compile(source, "-M", *self.flags("--cflags"))
        for name in ("nlohmann", "CLI/", "doctest", "hwy/", "pcre2"):
            self.assertNotIn(name, seen)
        self.compile(source, "-fsyntax-only", *self.flags("--cflags"))


if __name__ == "__main__":
    unittest.main()
