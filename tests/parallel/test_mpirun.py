"""A model shared by processes that mpirun starts: one text, one voice, and one end for all."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

BUILD, SOURCE = Path(os.environ["STAIRCASE_BUILD"]), Path(__file__).resolve().parents[2]
PROGRAM, WITHOUT = BUILD / "steps/97-tensor-parallel", BUILD / "steps/01-greedy-decoding"
# Where the tests run there may be fewer processors than ranks, and no other user than root.
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", OMPI_MCA_hwloc_base_binding_policy="none")
TEXT = ("--model", "tales-llama-1m", "--prompt", "A fox", "--threads", "1", "--max-new-tokens", "20")


def call(*command, **options):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, env=ENVIRONMENT, **options)


def tokens(done):
    """The tokens of the one printed text. mpirun provides a terminal, so a text would have colours."""
    return json.loads(done.stdout)["sequences"][0]["token_ids"]


def errors(done):
    """What the programs said, without what mpirun adds."""
    return [line for line in done.stderr.splitlines() if line.startswith("error:")]


class Mpirun(unittest.TestCase):
    def on(self, ranks, *options, program=PROGRAM, **others):
        return call("mpirun", "-np", ranks, program, *options, **others)

    def test_one_text_of_any_number_of_ranks(self):
        alone = call(PROGRAM, *TEXT, "--json")
        self.assertEqual(alone.returncode, 0, alone.stderr)
        for ranks in (1, 2, 3, 4):
            for options in ((), ("--own-pass",), ("--no-use-cache",)):
                with self.subTest(ranks=ranks, options=options):
                    done = self.on(ranks, *TEXT, "--json", *options)
                    self.assertEqual((done.returncode, tokens(done)), (0, tokens(alone)), done.stderr)
                    self.assertEqual(done.stderr.count("prompt tokens, prefill"), 1)

    def test_a_text_that_is_drawn_is_the_same_in_two_runs(self):
        texts = [tokens(self.on(3, *TEXT, "--json", "--do-sample", "--seed", "9", "--dtype", "int8")) for _ in range(2)]
        self.assertEqual(texts[0], texts[1])
        self.assertEqual(len(texts[0]), 20)

    def test_the_prompt_of_standard_input_reaches_all(self):
        options = [option if option != "A fox" else "-" for option in TEXT]
        done = self.on(3, *options, "--json", input="A fox")
        self.assertEqual((done.returncode, tokens(done)), (0, tokens(call(PROGRAM, *TEXT, "--json"))), done.stderr)

    def test_an_error_of_all_is_said_once(self):
        for ranks, options, status, message in (
                (5, TEXT, 1, "error: the model has 4 heads and 352 columns of an MLP; 5 ranks do not fit"),
                (2, (*TEXT, "--max-new-tokens", "-1"), 2, "error: --max-new-tokens"),
                (3, ("--model", "tales-1m", "--prompt", "A fox"), 1, "error: the model has 2 heads and 512 columns"),
                (2, (*TEXT, "--trace", "x"), 2, "error: --trace needs one process")):
            with self.subTest(message):
                done = self.on(ranks, *options)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertEqual(len(errors(done)), 1, done.stderr)
                self.assertIn(message, errors(done)[0])
                self.assertEqual(done.stdout, "")

    def test_all_families_have_the_text_of_one_process(self):
        for model, ranks in (("tales-6m", 4), ("tales-neox-1m", 3), ("tales-gqa-1m", 2), ("tales-qwen-1m", 3)):
            with self.subTest(model=model, ranks=ranks):
                options = [option if option != "tales-llama-1m" else model for option in TEXT]
                alone, done = call(PROGRAM, *options, "--json"), self.on(ranks, *options, "--json")
                self.assertEqual((done.returncode, tokens(done)), (0, tokens(alone)), done.stderr)

    def refused(self, first, second, status=1):
        """The one error of two ranks, each with its own program and options."""
        done = call("mpirun", "-np", 1, *first, ":", "-np", 1, *second)
        self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
        self.assertEqual(len(errors(done)), 1, done.stderr)
        return errors(done)[0]

    def test_ranks_with_different_models_are_refused(self):
        other = [option if option != "tales-llama-1m" else "tales-olmo-1m" for option in TEXT]
        self.assertIn("the model of rank 1 is not that of rank 0", self.refused((PROGRAM, *TEXT), (PROGRAM, *other)))

    def test_a_rank_with_another_tokenizer_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "model"
            shutil.copytree(SOURCE / "models/tales-llama-1m", copy)
            vocabulary = copy / "vocab.json"
            vocabulary.write_text(vocabulary.read_text() + " ")
            other = [option if option != "tales-llama-1m" else copy for option in TEXT]
            error = self.refused((PROGRAM, *TEXT), (PROGRAM, *other))
            self.assertIn("the model of rank 1 is not that of rank 0", error)

    def test_a_rank_with_another_option_is_refused_by_its_name(self):
        for first, second, said in (((), ("--seed", "9"), "another --seed than rank 0, where it is 0"),
                                    (("--do-sample",), (), "another --do-sample than rank 0, where it is true"),
                                    ((), ("--no-use-cache",), "another --use-cache than rank 0, where it is true"),
                                    (("--dtype", "int8"), (), "another --dtype than rank 0, where it is int8")):
            with self.subTest(said):
                error = self.refused((PROGRAM, *TEXT, *first), (PROGRAM, *TEXT, *second))
                self.assertIn(f"error: rank 1 has {said}", error)

    def test_a_rank_with_another_prompt_is_refused(self):
        other = [option if option != "A fox" else "A dog" for option in TEXT]
        error = self.refused((PROGRAM, *TEXT), (PROGRAM, *other))
        self.assertIn('error: rank 1 has another --prompt than rank 0, where it is "A fox"', error)

    def test_a_rank_may_have_another_number_of_threads(self):
        one, two = ([PROGRAM, *TEXT, "--json"] for _ in range(2))
        two[two.index("--threads") + 1] = "2"
        done = call("mpirun", "-np", 1, *one, ":", "-np", 1, *two)
        self.assertEqual((done.returncode, tokens(done)), (0, tokens(call(PROGRAM, *TEXT, "--json"))), done.stderr)

    def test_a_rank_of_another_build_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            other = Path(folder) / "program"
            shutil.copy(PROGRAM, other)
            with other.open("ab") as program:
                program.write(b"another")
            error = self.refused((PROGRAM, *TEXT), (other, *TEXT))
            self.assertIn("rank 1 runs another build of this program than rank 0", error)

    def test_a_rank_with_a_wrong_option_ends_all(self):
        error = self.refused((PROGRAM, *TEXT), (PROGRAM, *TEXT, "--top-k", "-1"), status=2)
        self.assertTrue(error.startswith("error: rank 1: --top-k"), error)

    def test_the_error_of_one_rank_ends_all_and_names_it(self):
        lost = [option if option != "tales-llama-1m" else "no-such-model" for option in TEXT]
        done = call("mpirun", "-np", 1, PROGRAM, *TEXT, ":", "-np", 1, PROGRAM, *lost)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(errors(done)), 1, done.stderr)
        self.assertTrue(errors(done)[0].startswith("error: rank 1: "), done.stderr)

    def test_a_rank_that_is_killed_ends_the_others_soon(self):
        process = subprocess.Popen(["mpirun", "-np", "3", PROGRAM, *TEXT[:-1], "480", "--no-use-cache", "--ignore-eos"],
                                   env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            process.stdout.read(1)  # the first token: all have their models
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(children[1]), signal.SIGKILL)
            killed = time.monotonic()
            process.communicate(timeout=30)
            self.assertLess(time.monotonic() - killed, 5)
            self.assertNotEqual(process.returncode, 0)
            self.assertFalse([child for child in children if Path(f"/proc/{child}/exe").exists()])
        finally:
            process.kill()

    def test_a_program_that_shares_nothing_refuses_to_run_as_copies(self):
        done = self.on(2, "--prompt", "A fox", program=WITHOUT)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(errors(done), ["error: mpirun has started 2 copies of this program, but each would run alone: start "
                                        "it without mpirun, or run 97-tensor-parallel or a server, built with MPI"])
        self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    if not shutil.which("mpirun"):
        print("mpirun is missing")
        raise SystemExit(77)
    unittest.main()
