"""Runs steps as WebAssembly in Node.js: their tokens must be those of the native programs, and what recorded commands
print must be what the native programs printed.

  tests/playground/test_wasm.py [STEP ...]      by their whole names; tools/wasm --test builds them first

Times and speeds aside, as where the native programs are tested with the same recordings. There texts that are drawn are
left out: the last bits of a logit depend on the instruction set, and after some hundred draws so does a token."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WASM = ROOT / "build-wasm"
sys.path[:0] = [str(ROOT / "docs/book"), str(ROOT / "tools")]

from pages import markdown, recorded  # noqa: E402

WANTED = sys.argv[1:]
# Each with the options that a step has.
WAYS = [[], ["--do-sample", "--num-return-sequences", "3", "--seed", "7"], ["--num-beams", "4"], ["--draft-model", "tales-1m"]]
# From 16 tokens on the kernels pack keys and values.
LONG = "The king said that he would go to the wood and find the wolf who had eaten his sheep, his goats and his horse."


def tokens(output):
    return [sequence["token_ids"] for sequence in json.loads(output)["sequences"]]


@unittest.skipUnless(shutil.which("node"), "node is not installed; tools/wasm --install installs it")
class InNode(unittest.TestCase):
    def setUp(self):
        """A build folder whose programs hand over to WebAssembly."""
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "steps").mkdir()
        self.built = sorted(path.stem for path in WASM.glob("steps/*.wasm") if not WANTED or path.stem in WANTED)
        for name in self.built:
            program = self.folder / "steps" / name
            program.write_text(f"#!/bin/sh\nexec node {shlex.quote(str(ROOT / 'playground/run.js'))} "
                               f"{shlex.quote(str(WASM / 'steps' / name))}.js \"$@\"\n")
            program.chmod(0o755)

    def test_tokens_are_those_of_the_native_program(self):
        """In float32: rows of x in other types are rounded where the processor has an instruction for it."""
        for name in self.built:
            native = ROOT / "build/steps" / name
            options = subprocess.run([native, "--help"], capture_output=True, text=True, check=True).stdout
            if "--json" not in options:
                continue  # a simulation, or a chat
            ways = [way for way in WAYS if not way or f"{way[0]} " in options]
            for prompt, way in [(LONG, []), *(("The old king", way) for way in ways)]:
                with self.subTest(f"{name} {' '.join(way)}", prompt=prompt):
                    words = ["--prompt", prompt, "--max-new-tokens", "40", "--json", *way]
                    there, here = (subprocess.run([folder / name, *words], capture_output=True, text=True, check=True)
                                   for folder in (native.parent, self.folder / "steps"))
                    self.assertEqual(tokens(here.stdout), tokens(there.stdout))

    def test_a_tokenizer_that_composes_characters_is_read(self):
        """Unicode's normal form C, with which Qwen's tokenizers begin: an e and its accent become one character."""
        model = self.folder / "model"
        shutil.copytree(ROOT / "models/tales-1m", model)
        (model / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
        composed, apart = "The caf\u00e9", "The cafe\u0301"
        for name in self.built:
            native = ROOT / "build/steps" / name
            options = subprocess.run([native, "--help"], capture_output=True, text=True, check=True).stdout
            if "--json" not in options:
                continue
            with self.subTest(name):
                prompts = []
                for program, prompt in ((native, apart), (self.folder / "steps" / name, apart),
                                        (self.folder / "steps" / name, composed)):
                    done = subprocess.run([program, "--model", model, "--prompt", prompt, "--max-new-tokens", "1", "--json"],
                                          capture_output=True, text=True, check=True)
                    prompts.append(json.loads(done.stdout)["sequences"][0]["prompt_token_ids"])
                self.assertEqual(prompts[1:], prompts[:1] * 2)

    def test_programs_print_what_is_recorded(self):
        machine = recorded.Machine(self.folder)
        self.addCleanup(machine.close)
        played = set()
        for page in markdown.pages():
            for command in recorded.commands(page):
                numbers = {machine.names.get(number, number) for number in re.findall(r"tools/run (\S+)", command.text)}
                left_out = command.why_not or command.is_benchmark or command.is_drawn or ".svg" in command.text  # no gnuplot
                if left_out or not numbers <= set(self.built):
                    continue
                with self.subTest(command.place):
                    now = machine.run(command)
                    differs = recorded.difference(command.recording(), now, command.is_by_the_clock)
                    self.assertIsNone(differs, differs and f"{command.text}\nprinted\n{differs[0]}\nand as WebAssembly\n{differs[1]}")
                played |= numbers
        if not played:
            self.skipTest("no recorded command of it is without draws")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
