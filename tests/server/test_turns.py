"""The server with priorities and drafts: whatever shares its batch, each text is what the plain server writes alone."""

import concurrent.futures
import json
import os
import random
import subprocess
import unittest

from support import BUILD, CHATS, ROOT, SANITIZED, Server, wait_until

TURNS = BUILD / "steps/122-urgent-requests"
DRAFTS = BUILD / "steps/123-draft-models"
REQUESTS = int(os.environ.get("STAIRCASE_REQUESTS", "40" if SANITIZED else "200"))
ADAPTERS = ("--adapter", f"fables={ROOT / 'models/adapters/aesop'}", "--adapter", "nights=arabian-nights")
PROMPTS = ["Once upon a time there was a king", "A Fox and a Lion, a Fox and a Lion, a Fox and a",
           "The Sultan said to the merchant, and the merchant said to the Sultan, and the Sultan",
           "For want of a nail the shoe was lost. For want of a shoe the horse was lost. For want of a horse"]


def some_request(draw):
    body = {"prompt": draw.choice(PROMPTS), "max_tokens": draw.randint(1, 40), "seed": draw.randint(0, 3),
            "temperature": draw.choice([0, 0, 0.7]), "model": draw.choice(["tales-6m", "fables", "nights"])}
    if draw.random() < 0.2:
        body["repetition_penalty"] = 1.2
    if draw.random() < 0.2:
        body["stop"] = [" the"]
    if draw.random() < 0.2:
        body["guided_regex"] = r" ?[a-z ]{10,30}(, [a-z ]{5,20}){1,3}\."
    kind = draw.random()
    if kind < 0.1:
        body.update(use_beam_search=True, best_of=draw.randint(2, 4), length_penalty=draw.choice([0.5, 1]), temperature=1)
    elif kind < 0.2:
        body.update(best_of=4, temperature=0.7)
        body.update(draw.choice([{"n": 2}, {"best_by": "vote", "max_tokens": 2}]))
    return body


class Turns(unittest.TestCase):
    def test_each_text_of_a_busy_server_is_what_it_is_alone(self):
        draw = random.Random(6)
        bodies = [some_request(draw) for _ in range(REQUESTS)]
        with Server(*ADAPTERS, "--max-batch-size", 1, program=CHATS) as plain, \
                Server(*ADAPTERS, "--max-batch-size", 4, program=TURNS) as searching:
            alone = {}
            for body in bodies:
                key = json.dumps(body)
                if key not in alone:
                    server = searching if "use_beam_search" in body else plain
                    alone[key] = server.post(body)[2]["choices"]

        def ask(body):
            if draw.random() < 0.1:
                leaver = server.stream(body["prompt"], model=body["model"], max_tokens=60)
                leaver.leave()
            return server.post({**body, "priority": draw.randint(0, 3)})[2]["choices"]

        for program, *drafts in ((TURNS, "--prompt-lookup-num-tokens", 6, "--max-matching-ngram-size", 1),
                                 (DRAFTS, "--draft-model", "tales-1m", "--num-speculative-tokens", "auto")):
            with self.subTest(drafts[0]), \
                    Server(*ADAPTERS, "--max-batch-size", 6, "--kv-blocks", 24, "--max-queue", 1000, "--patience", 20, *drafts,
                           program=program) as server:
                with concurrent.futures.ThreadPoolExecutor(12) as pool:
                    for body, answer in zip(bodies, pool.map(ask, bodies)):
                        self.assertEqual(answer, alone[json.dumps(body)], body)
                drafted, kept = (server.metrics()[f"staircase_spec_decode_num_{kind}_tokens_total"] for kind in ("draft", "accepted"))
                self.assertTrue(0 < kept <= drafted, (kept, drafted))

    def test_an_urgent_request_passes_patient_ones_unless_patience_is_0(self):
        def order(patience):
            with Server("--max-batch-size", 1, "--patience", patience, program=TURNS) as server:
                ended = []

                def ask(name, tokens, priority, texts=1):
                    server.post({"prompt": "The wolf", "max_tokens": tokens, "ignore_eos": True, "priority": priority, "n": texts})
                    ended.append(name)

                with concurrent.futures.ThreadPoolExecutor(3) as pool:
                    first = pool.submit(ask, "patient", 480, 50, 4)
                    self.assertTrue(wait_until(lambda: server.load()[1] > 0 or first.done()))
                    pool.submit(ask, "urgent", 60, 0)  # not so few that it may end before the thread of the other one goes on
                return ended

        self.assertEqual(order(100), ["urgent", "patient"])
        self.assertEqual(order(0), ["patient", "urgent"])

    def test_the_metrics_count_the_drafts_and_how_many_are_kept(self):
        names = [f"staircase_spec_decode_num_{kind}_tokens_total" for kind in ("draft", "accepted")]
        with Server("--prompt-lookup-num-tokens", 4, program=TURNS) as server:
            self.assertEqual([server.metrics()[name] for name in names], [0, 0])
            tokens = server.complete("the fox and the lion " * 8, max_tokens=60, temperature=0,
                                     ignore_eos=True)["usage"]["completion_tokens"]
            drafted, accepted = (server.metrics()[name] for name in names)
        self.assertGreater(accepted, 0)
        self.assertLessEqual(accepted, min(drafted, tokens))
        with Server(program=CHATS) as plain:
            self.assertFalse([name for name in plain.metrics() if "spec_decode" in name])

    def test_a_draft_model_that_does_not_fit_ends_the_program_with_a_sentence(self):
        for options, status, sentence in (
                (("--draft-model", "tales-7m"), 1, "error: --draft-model tales-7m: "),
                (("--draft-model", "tales-1m", "--draft-model", "tales-1m"), 2, "error: --draft-model is given 2 times"),
                (("--draft-model", "tales-1m", "--prompt-lookup-num-tokens", "4"), 2,
                 "error: --draft-model and --prompt-lookup-num-tokens both draft: leave one out"),
                (("--draft-model", "tales-1m", "--num-speculative-tokens", "17"), 2, "error: --num-speculative-tokens")):
            with self.subTest(options):
                done = subprocess.run([DRAFTS, "--port", "0", *options], capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(sentence, done.stderr)
                self.assertEqual(done.stderr.count("error: "), 1)

    def test_a_number_of_drafts_without_a_draft_model_is_named(self):
        for options, warns in (((), False), (("--num-speculative-tokens", 8), True), (("--num-speculative-tokens", "auto"), True),
                               (("--num-speculative-tokens", 8, "--draft-model", "tales-1m"), False)):
            with self.subTest(options), Server(*options, program=DRAFTS) as server:
                self.assertEqual("warning: --num-speculative-tokens does nothing without --draft-model" in server.said(), warns)

    def test_a_priority_that_is_none_is_refused_in_both_interfaces(self):
        with Server(program=TURNS) as server:
            for wrong in (-1, 101, 1.5, "high", [1]):
                status, _, answer = server.post({"prompt": "A", "priority": wrong})
                self.assertEqual((status, answer["error"]["param"]), (400, "priority"), wrong)
            self.assertEqual(server.post({"prompt": "A", "max_tokens": 1, "priority": None})[0], 200)


if __name__ == "__main__":
    unittest.main()
