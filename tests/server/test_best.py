"""The best of several texts: by their mean log-probability, by a vote, and by a beam search."""

import collections
import concurrent.futures
import json
import unittest

from support import BUILD, CHATS, PROGRAM, ROOT, ChatServer, Server, wait_until

TURNS = BUILD / "steps/122-urgent-requests"
ADAPTERS = ("--adapter", f"aesop={ROOT / 'models/adapters/aesop'}", "--adapter", "arabian-nights=arabian-nights")


def mean(choice):
    logprobs = choice["logprobs"]["token_logprobs"]
    return sum(logprobs) / len(logprobs)


def reference(name):
    return json.loads((ROOT / "tests/reference" / name).read_text())["cases"]


class Sampled(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server("--max-batch-size", 4))

    def test_the_n_texts_with_the_highest_mean_log_probability_are_returned(self):
        for keys in ({"max_tokens": 12}, {"max_tokens": 30, "stop": [" the"]}, {"max_tokens": 9, "temperature": 0.6}):
            keys = {"seed": 5, **keys}
            whole = self.server.complete(["Once upon a time", "A fox"], n=7, logprobs=0, **keys)
            wanted = []
            for prompt in (0, 1):
                texts = whole["choices"][7 * prompt:7 * prompt + 7]
                wanted += sorted(texts, key=mean, reverse=True)[:3]
            best = self.server.complete(["Once upon a time", "A fox"], best_of=7, n=3, logprobs=0, **keys)
            self.assertEqual([{**choice, "index": i} for i, choice in enumerate(wanted)], best["choices"])
            self.assertEqual(best["usage"]["completion_tokens"], whole["usage"]["completion_tokens"], "all of them cost")
            plain = self.server.complete(["Once upon a time", "A fox"], best_of=7, n=3, best_by="logprob", **keys)
            self.assertEqual([choice["text"] for choice in plain["choices"]], [choice["text"] for choice in wanted])
            self.assertIsNone(plain["choices"][0]["logprobs"])

    def test_a_vote_elects_the_most_frequent_answer(self):
        keys = {"seed": 3, "max_tokens": 1, "temperature": 0.8}
        for prompt in ("The fox is", "The king's son was very", "He said"):
            texts = self.server.complete(prompt, n=25, logprobs=0, **keys)["choices"]
            votes = collections.Counter(text["text"].strip() for text in texts)
            votes.pop("", None)
            wanted = max(texts, key=lambda text: (votes[text["text"].strip()], mean(text)))
            [found] = self.server.complete(prompt, best_of=25, best_by="vote", logprobs=0, **keys)["choices"]
            self.assertEqual(found, {**wanted, "index": 0, "votes": votes[wanted["text"].strip()]})
            self.assertGreater(found["votes"], 1)

    def test_a_chat_votes_too_and_its_answer_is_known_in_the_next_turn(self):
        with ChatServer() as server:
            messages = [{"role": "user", "content": "Hello"}]
            body = {"messages": messages, "best_of": 9, "best_by": "vote", "seed": 1, "max_tokens": 30,
                    "guided_choice": ["a fox", "a lion"]}
            ask = lambda body: server.ask("POST", "/v1/chat/completions", json.dumps(body), Content_Type="application/json")
            status, _, answer = ask(body)
            self.assertEqual(status, 200, answer)
            [choice] = answer["choices"]
            self.assertGreaterEqual(choice["votes"], 5)
            messages += [choice["message"], {"role": "user", "content": "And?"}]
            use = ask({"messages": messages, "max_tokens": 1})[2]["usage"]
            self.assertGreater(use["prompt_tokens_details"]["cached_tokens"], answer["usage"]["prompt_tokens"])

    def test_a_server_without_searches_refuses_one(self):
        for program in (PROGRAM, CHATS):
            with Server(program=program) as server:
                status, _, answer = server.post({"prompt": "A", "n": 2, "use_beam_search": True})
                self.assertEqual((status, answer["error"]["param"]), (400, "use_beam_search"))
                self.assertIn("is not implemented", answer["error"]["message"])
                schema = server.ask("GET", "/openapi.json")[2]["components"]["schemas"]["CompletionRequest"]
                self.assertNotIn("use_beam_search", schema["properties"])


class Searched(unittest.TestCase):
    """With few slots and blocks, so that beams wait and are preempted."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(
            *ADAPTERS, "--max-batch-size", 5, "--kv-blocks", 40, "--max-queue", 1000, "--prompt-lookup-num-tokens", 4,
            program=TURNS))

    def text(self, ids):
        answer = self.server.ask("POST", "/detokenize", json.dumps({"tokens": ids}), Content_Type="application/json")
        return answer[2]["prompt"]

    def check(self, cases):
        """All at once, with others beside them."""
        def found(case):
            keys = {"prompt": case["prompt"], "model": case.get("adapter", "tales-6m"), "n": case["num_beams"],
                    "max_tokens": case["max_new_tokens"], "length_penalty": case["length_penalty"],
                    "early_stopping": case["early_stopping"], "use_beam_search": True, "temperature": 0}
            self.server.post({"prompt": case["prompt"], "max_tokens": 20})
            return [choice["text"] for choice in self.server.post(keys)[2]["choices"]]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for case, texts in zip(cases, pool.map(found, cases)):
                wanted = [beam["text"] if isinstance(beam, dict) else self.text(beam) for beam in case["beams"]]
                self.assertEqual(texts, wanted, case)

    def test_the_beams_are_those_of_transformers(self):
        self.check([case for case in reference("beam.json") if case["margin"] > 1e-3] * 3)

    def test_the_beams_of_an_adapter_are_those_of_transformers_with_peft(self):
        self.check(reference("adapter_beams.json") * 2)

    def test_of_best_of_beams_the_client_gets_the_best_n(self):
        keys = {"use_beam_search": True, "max_tokens": 12}
        for prompts in ("A fox", ["A fox", "The king", "A fox"]):
            all_beams = self.server.complete(prompts, n=4, **keys)["choices"]
            best = self.server.complete(prompts, best_of=4, n=2, **keys)["choices"]
            self.assertEqual([choice["text"] for choice in best],
                             [choice["text"] for i, choice in enumerate(all_beams) if i % 4 < 2])
            self.assertEqual([choice["index"] for choice in best], list(range(len(best))))

    def test_beams_obey_penalties_stops_and_constraints(self):
        keys = {"use_beam_search": True, "n": 4, "max_tokens": 20}
        plain = self.server.texts("The king and the king and the", **keys)
        self.assertNotEqual(plain, self.server.texts("The king and the king and the", repetition_penalty=1.5, **keys))
        for text in self.server.texts("The king and the king and the", stop=[" the"], **keys):
            self.assertNotIn(" the", text)
        for text in self.server.texts("It was", guided_regex="[a-z ]{5,12}!", **keys):
            self.assertRegex(text, "^[a-z ]{5,12}!$")
        answers = self.server.complete("It was", guided_choice=[" a fox", " a lion"], **keys)["choices"]
        self.assertEqual({answer["text"] for answer in answers}, {" a fox", " a lion"}, "some of them in other tokens")
        self.assertEqual(self.server.texts("It was", guided_choice=["A"], **keys), ["A"], "there are no more")
        self.assertEqual([choice["text"] for choice in self.server.complete("A", **{**keys, "max_tokens": 0})["choices"]], [""] * 4)

    def test_a_search_does_not_push_conversations_out_of_the_cache(self):
        prompt = list(range(300, 320))
        with Server("--max-batch-size", 4, "--kv-blocks", 400, program=TURNS) as server:
            def cached():
                use = server.complete(prompt + list(range(500, 505)), max_tokens=1)["usage"]
                return use["prompt_tokens_details"]["cached_tokens"]

            server.complete(prompt, max_tokens=1)
            self.assertEqual(cached(), 20, "the last block is not full")
            server.complete(prompt, max_tokens=1)
            for number in range(3):
                server.complete([600 + number], use_beam_search=True, n=4, max_tokens=300, ignore_eos=True)
            self.assertEqual(cached(), 20)

    def test_others_go_on_beside_a_search_and_a_client_that_leaves_ends_it(self):
        body = {"prompt": "The wolf", "use_beam_search": True, "n": 4, "max_tokens": 480, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            search = pool.submit(self.server.post, body)
            self.assertTrue(wait_until(lambda: sum(self.server.load()) == 4 or search.done()))
            self.assertEqual(len(self.server.texts("A fox", max_tokens=5)), 1)
            self.assertFalse(search.done(), "the short text came later and ended first")
            connection = self.server.connect()
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            self.assertTrue(wait_until(lambda: sum(self.server.load()) == 8 or search.done()))
            connection.close()
            self.assertEqual(search.result()[0], 200)
        self.assertTrue(wait_until(lambda: self.server.load() == (0, 0)))


if __name__ == "__main__":
    unittest.main()
