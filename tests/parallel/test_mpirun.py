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

from mpi import ENVIRONMENT

BUILD, SOURCE = Path(os.environ["STAIRCASE_BUILD"]), Path(__file__).resolve().parents[2]
PROGRAM, STAGES, WITHOUT = (BUILD / "steps" / name for name in ("98-tensor-parallel", "99-pipeline-parallel",
                                                                "01-greedy-decoding"))
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
        texts = [tokens(self.on(3, *TEXT, "--json", "--do-sample", "--seed", "9", "--dtype", "int4")) for _ in range(2)]
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
                (3, (*TEXT, "--dtype", "int8"), 1, "error: 3 ranks do not fit: in int8, 64 weights share a scale"),
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
        self.assertIn("rank 1 has a different model from rank 0", self.refused((PROGRAM, *TEXT), (PROGRAM, *other)))

    def test_a_rank_with_another_tokenizer_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "model"
            shutil.copytree(SOURCE / "models/tales-llama-1m", copy)
            vocabulary = copy / "vocab.json"
            vocabulary.write_text(vocabulary.read_text() + " ")
            other = [option if option != "tales-llama-1m" else copy for option in TEXT]
            error = self.refused((PROGRAM, *TEXT), (PROGRAM, *other))
            self.assertIn("rank 1 has a different model from rank 0", error)

    def test_a_rank_with_another_option_is_refused_by_its_name(self):
        for first, second, said in (((), ("--seed", "9"), "a different --seed from rank 0, where it is 0"),
                                    (("--do-sample",), (), "a different --do-sample from rank 0, where it is true"),
                                    ((), ("--no-use-cache",), "a different --use-cache from rank 0, where it is true"),
                                    (("--dtype", "int8"), (), "a different --dtype from rank 0, where it is int8")):
            with self.subTest(said):
                error = self.refused((PROGRAM, *TEXT, *first), (PROGRAM, *TEXT, *second))
                self.assertIn(f"error: rank 1 has {said}", error)

    def test_help_for_some_ranks_alone_is_refused(self):
        for first, second, said in (((), ("--help",), "off"), (("--help",), (), "true")):
            error = self.refused((PROGRAM, *TEXT, *first), (PROGRAM, *TEXT, *second), status=2)
            self.assertIn(f"error: rank 1 has a different --help from rank 0, where it is {said}", error)
        done = self.on(2, "--help")
        self.assertEqual((done.returncode, done.stdout), (0, call(PROGRAM, "--help").stdout), done.stderr)

    def test_a_bad_option_of_one_rank_ends_all(self):
        for first, second in (((), ("--wrong",)), (("--wrong",), ())):
            self.assertIn("--wrong", self.refused((PROGRAM, *TEXT, *first), (PROGRAM, *TEXT, *second), status=2))

    def test_a_rank_with_another_prompt_is_refused(self):
        other = [option if option != "A fox" else "A dog" for option in TEXT]
        error = self.refused((PROGRAM, *TEXT), (PROGRAM, *other))
        self.assertIn('error: rank 1 has a different --prompt from rank 0, where it is "A fox"', error)

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
            self.assertIn("rank 1 runs a different build of this program from rank 0", error)

    def test_a_rank_with_a_wrong_option_ends_all(self):
        error = self.refused((PROGRAM, *TEXT), (PROGRAM, *TEXT, "--top-k", "-1"), status=2)
        self.assertTrue(error.startswith("error: rank 1: --top-k"), error)

    def test_the_error_of_one_rank_ends_all_and_names_it(self):
        lost = [option if option != "tales-llama-1m" else "no-such-model" for option in TEXT]
        done = call("mpirun", "-np", 1, PROGRAM, *TEXT, ":", "-np", 1, PROGRAM, *lost)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(errors(done)), 1, done.stderr)
        self.assertTrue(errors(done)[0].startswith("error: rank 1: "), done.stderr)

    def end(self, ranks, hit, *options, program=PROGRAM):
        """hit(mpirun, processes of the ranks) once a text has begun, which takes seconds to its end. All must end soon;
        status and standard error."""
        model = Path(self.enterContext(tempfile.TemporaryDirectory())) / "long"
        shutil.copytree(SOURCE / "models/tales-llama-1m", model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
        texts = (*(option if option != "tales-llama-1m" else model for option in TEXT[:-1]), "4000", "--ignore-eos")
        process = subprocess.Popen(["mpirun", *options, "-np", str(ranks), program, *texts], env=ENVIRONMENT,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            process.stdout.read(1)  # the first token: all have their models
            children = list(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))
            hit(process.pid, children)
            begun = time.monotonic()
            _, err = process.communicate(timeout=30)
            self.assertLess(time.monotonic() - begun, 5)
            while any(Path(f"/proc/{child}/exe").exists() for child in children):  # the system may take longer than mpirun
                self.assertLess(time.monotonic() - begun, 10)
                time.sleep(0.05)
            return process.returncode, err
        finally:
            process.kill()

    def test_a_rank_that_is_killed_ends_the_others_soon_and_is_named_once(self):
        for program in (PROGRAM, STAGES):
            for ranks, lost in ((2, 0), (2, 1), (3, 0), (3, 1), (4, 3)):
                with self.subTest(program=program.name, ranks=ranks, lost=lost):
                    status, err = self.end(ranks, lambda _, processes: os.kill(processes[lost], signal.SIGKILL),
                                           program=program)
                    self.assertEqual(status, 128 + signal.SIGKILL)
                    self.assertEqual([line for line in err.splitlines() if line.startswith("error:")],
                                     [f"error: rank {lost} ended before the other ranks, so all ranks end: it failed "
                                      "or was killed, perhaps because memory ran out"], err)

    def test_a_quiet_mpirun_leaves_the_sentence_alone(self):
        status, err = self.end(3, lambda _, processes: os.kill(processes[2], signal.SIGKILL), "--quiet")
        self.assertEqual(status, 128 + signal.SIGKILL)
        said, error = err.splitlines()
        self.assertTrue(said.startswith("by formula: "), err)
        self.assertTrue(error.startswith("error: rank 2 ended"), err)

    def test_two_ranks_that_are_killed_are_one_sentence(self):
        def hit(_, processes):
            for lost in (0, 2):
                os.kill(processes[lost], signal.SIGKILL)
        status, err = self.end(4, hit)
        self.assertNotEqual(status, 0)
        self.assertEqual(err.count("error: rank 0 ended before the other ranks"), 1, err)
        self.assertEqual(err.count("error: "), 1, err)

    def test_a_person_who_ends_mpirun_gets_no_sentence(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                status, err = self.end(3, lambda mpirun, _: os.kill(mpirun, number))
                self.assertNotEqual(status, 0)
                self.assertNotIn("error:", err)

    def test_a_program_that_shares_nothing_refuses_to_run_as_copies(self):
        done = self.on(2, "--prompt", "A fox", program=WITHOUT)
        self.assertEqual(done.returncode, 2)
        self.assertEqual(errors(done), ["error: mpirun has started 2 copies of this program, but each would run alone: start "
                                        "it without mpirun, or run 98-tensor-parallel or a server, built with MPI"])
        self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    if not shutil.which("mpirun"):
        print("mpirun is missing")
        raise SystemExit(77)
    unittest.main()
