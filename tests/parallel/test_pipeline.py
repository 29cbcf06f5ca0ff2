"""A model whose blocks are on several processes: the texts of one process, printed once."""

import json
import shutil
import sys
import unittest

from test_mpirun import BUILD, call, errors

PROGRAM = BUILD / "steps/99-pipeline-parallel"
PROMPTS = ("A fox", "The wolf", "Once upon a time there was a king", "", "The lion said")
TEXTS = [*(part for prompt in PROMPTS for part in ("--prompt", prompt)),
         "--threads", "1", "--max-new-tokens", "20", "--json"]


def tokens(done):
    return [text["token_ids"] for text in json.loads(done.stdout)["sequences"]]


class Pipeline(unittest.TestCase):
    def on(self, ranks, *options):
        return call("mpirun", "-np", ranks, PROGRAM, *TEXTS, *options)

    def test_the_texts_of_any_number_of_ranks_and_micro_batches_are_those_of_one_process(self):
        for model in ("tales-6m", "tales-neox-1m", "tales-qwen-1m"):
            alone = call(PROGRAM, *TEXTS, "--model", model)
            self.assertEqual(alone.returncode, 0, alone.stderr)
            for ranks, micro_batches in ((1, 4), (2, 1), (2, 4), (4, 3)):
                with self.subTest(model=model, ranks=ranks, micro_batches=micro_batches):
                    done = self.on(ranks, "--model", model, "--micro-batches", micro_batches)
                    self.assertEqual((done.returncode, tokens(done)), (0, tokens(alone)), done.stderr)
                    self.assertEqual(done.stderr.count("prompt tokens, prefill"), 1)

    def test_texts_that_are_drawn_are_the_same_in_two_runs_and_in_one_process(self):
        drawn = ("--do-sample", "--seed", "9", "--dtype", "int8", "--max-batch-size", "2")
        alone = tokens(call(PROGRAM, *TEXTS, *drawn))
        for _ in range(2):
            self.assertEqual(tokens(self.on(3, *drawn)), alone)

    def test_each_rank_reads_its_blocks_alone(self):
        """The statistics are those of rank 0, which has 2 blocks of 6 and the embedding."""
        whole, part = (json.loads(run.stdout)["stats"] for run in (call(PROGRAM, *TEXTS), self.on(3)))
        self.assertLess(part["weight_bytes"], 0.51 * whole["weight_bytes"])
        self.assertEqual(3 * part["cache_bytes"], whole["cache_bytes"])

    def test_what_has_been_sent_is_freed_while_the_ranks_go_on(self):
        """The last rank sends the logits of 16 texts, 256 KiB, in each pass: 88 MiB in 350 passes."""
        texts = ("--model", "tales-llama-1m", "--threads", "1", "--ignore-eos", "--json", *["--prompt=A fox"] * 16)
        script = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
                  "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        short, long = (int(call(sys.executable, "-c", script, "mpirun", "-np", 2, PROGRAM, *texts, "--max-new-tokens", n).stdout)
                       for n in (50, 400))
        self.assertLess(long, short + 20 * 1024)

    def test_an_error_of_all_is_said_once(self):
        done = self.on(3, "--model", "tales-1m")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(errors(done), ["error: the model has 2 blocks; 3 ranks do not fit"], done.stderr)

    def test_ranks_with_other_micro_batches_are_refused(self):
        run = (PROGRAM, *TEXTS, "--micro-batches")
        done = call("mpirun", "-np", 1, *run, 1, ":", "-np", 1, *run, 5)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(errors(done)), 1, done.stderr)
        self.assertIn("all ranks need the same options", errors(done)[0])


if __name__ == "__main__":
    if not shutil.which("mpirun"):
        print("mpirun is missing")
        raise SystemExit(77)
    unittest.main()
