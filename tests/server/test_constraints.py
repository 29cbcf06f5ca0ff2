"""Constrained texts as clients see them: valid answers in a busy batch, the same texts as alone, failures that end one
request only, and chats. The judge is a validator of a few lines, which knows nothing of grammars."""

import concurrent.futures
import json
import random
import re
import unittest

from support import CHATS, ChatServer, Server, wait_until
from test_chat import SMOLLM2, chat, content, events, post, user

PROMPTS = ["The animal in the tale: ", "Once upon a time", "The king said: ", "It was "]
CUT = "(fox ){9}(a?){2100}b"  # after nine foxes it is in more states than are followed


def schema(draw, depth=2):
    kind = draw.choice(["integer", "string", "boolean", "enum", "object", "array"] if depth else ["integer", "string", "boolean", "enum"])
    if kind == "enum":
        return {"enum": draw.sample(["fox", "lion", 3, None, [1]], 2)}
    if kind == "integer":
        return {"type": kind, "minimum": draw.randint(-20, 5), "maximum": draw.randint(6, 400)}
    if kind == "string":
        return {"type": kind, "minLength": draw.randint(0, 2), "maxLength": draw.randint(3, 9)}
    if kind == "array":
        return {"type": kind, "items": schema(draw, depth - 1), "minItems": draw.randint(0, 1), "maxItems": 2}
    if kind == "object":
        names = draw.sample(["zoo", "age", "name", "é"], draw.randint(1, 3))
        return {"type": kind, "properties": {name: schema(draw, depth - 1) for name in names},
                "required": draw.sample(names, draw.randint(0, len(names))), "additionalProperties": False}
    return {"type": kind}


def is_valid(value, schema):
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    kind = {"integer": int, "string": str, "boolean": bool, "array": list, "object": dict}[schema["type"]]
    if type(value) is not kind:
        return False
    if kind is int:
        return schema["minimum"] <= value <= schema["maximum"]
    if kind is str:
        return schema["minLength"] <= len(value) <= schema["maxLength"]
    if kind is list:
        return schema["minItems"] <= len(value) <= schema["maxItems"] and all(is_valid(one, schema["items"]) for one in value)
    if kind is dict:
        known = schema["properties"]
        return all(name in known and is_valid(one, known[name]) for name, one in value.items()) and \
            all(name in value for name in schema["required"])
    return True


def as_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **more}}


def drawn(number):
    """A request, and the judge of its texts: None for any text."""
    draw = random.Random(number)
    body = {"prompt": draw.choice(PROMPTS), "max_tokens": draw.choice([40, 90]), "seed": number,
            "temperature": draw.choice([0, 1]), "n": draw.choice([1, 1, 2])}
    if draw.random() < 0.3:
        body["repetition_penalty"] = 1.2
    if draw.random() < 0.2:
        body["min_p"] = 0.1
    kind = draw.randrange(5)
    if kind == 0:
        return body, None
    if kind == 1:
        pattern = draw.choice(["(fox|lion){2,3}", "[A-Z][a-z]{2,8}( [a-z]+){1,3}\\.", "\\d{4}-\\d{2}", "[é-ü]{3}"])
        return {**body, "guided_regex": pattern}, lambda text: re.fullmatch(pattern, text, re.ASCII)
    if kind == 2:
        choices = ["the fox", "the lion", "the fox and the lion"]
        return {**body, "guided_choice": choices}, lambda text: text in choices
    if kind == 3:
        return {**body, "response_format": {"type": "json_object"}}, lambda text: type(json.loads(text)) is dict
    made = {"type": "object", "properties": {"a": schema(draw)}, "required": ["a"], "additionalProperties": False}
    return {**body, "response_format": as_format(made)}, \
        lambda text: set(value := json.loads(text)) == {"a"} and is_valid(value["a"], made["properties"]["a"])


class Constraints(unittest.TestCase):
    def test_random_ones_in_a_busy_batch_are_valid_and_equal_to_those_alone(self):
        requests = [drawn(number) for number in range(60)]
        # Few blocks: texts are preempted and computed again.
        with Server("--max-batch-size", 6, "--kv-blocks", 40, program=CHATS) as server, \
                concurrent.futures.ThreadPoolExecutor(12) as threads:
            together = list(threads.map(lambda request: server.complete(**request[0]), requests))
            alone = [server.complete(**body) for body, _ in requests]
        ended = 0
        for (body, judge), answer, other in zip(requests, together, alone):
            with self.subTest(body):
                for choice, same in zip(answer["choices"], other["choices"], strict=True):
                    self.assertEqual(choice["text"], same["text"])
                    self.assertEqual(choice["finish_reason"], same["finish_reason"])
                    if judge and choice["finish_reason"] == "stop":
                        ended += 1
                        self.assertTrue(judge(choice["text"]), choice["text"])
        self.assertGreater(ended, 40)

    def test_other_options(self):
        with Server(program=CHATS) as server:
            def texts(**keys):
                return server.texts("The animal: ", **{"max_tokens": 30, "seed": 1, **keys})

            self.assertIn(texts(guided_choice=["fox", "lion"], logit_bias={"5": 100})[0], ("fox", "lion"))
            self.assertEqual(texts(guided_regex="(fox ){9}", stop=" fox"), ["fox"])
            self.assertEqual(texts(guided_regex="fox{9}", max_tokens=0), [""])
            self.assertEqual(texts(guided_regex="fox", echo=True), ["The animal: fox"])
            self.assertEqual(texts(guided_regex="", temperature=0), [""])
            self.assertEqual(set(texts(guided_choice=["fox", "lion"], n=20, temperature=5)), {"fox", "lion"})
            # Log-probabilities are the model's own, before the mask.
            free = server.complete("The animal: ", max_tokens=1, temperature=0, logprobs=3)["choices"][0]["logprobs"]
            kept = server.complete("The animal: ", max_tokens=1, temperature=0, logprobs=3, guided_regex="é+")["choices"][0]["logprobs"]
            self.assertEqual([top for top in kept["top_logprobs"][0].items() if top in free["top_logprobs"][0].items()],
                             list(free["top_logprobs"][0].items()))
            self.assertLess(kept["token_logprobs"][0], free["token_logprobs"][0])
            answer = server.complete("The animal: ", max_tokens=3, temperature=0, guided_regex="(fox)+")
            self.assertEqual(answer["choices"][0]["finish_reason"], "length")

    def test_a_text_without_a_way_on_ends_its_request_and_no_other(self):
        with Server("--max-batch-size", 4, program=CHATS) as server:
            def free():
                return server.complete("The fox", max_tokens=80, temperature=0, ignore_eos=True)["choices"][0]["text"]

            expected = free()
            with concurrent.futures.ThreadPoolExecutor(4) as threads:
                texts = [threads.submit(free) for _ in range(3)]
                failed = [server.post({"prompt": "The fox", "max_tokens": 60, "guided_regex": CUT, "n": n}) for n in (1, 3)]
                self.assertEqual({text.result() for text in texts}, {expected})
            for status, _, answer in failed:
                self.assertEqual((status, answer["error"]["param"], answer["error"]["type"]),
                                 (400, "guided_regex", "invalid_request_error"))
                self.assertIn("at most 2000 are followed", answer["error"]["message"])
            *first, last = server.stream("The fox", max_tokens=60, guided_regex=CUT)
            self.assertRegex("fox " * 9, "".join(event["choices"][0]["text"] for event in first))
            self.assertGreater(len(first), 3)
            self.assertIn("at most 2000 are followed", last["error"]["message"])
            self.assertTrue(wait_until(lambda: server.load() == (0, 0)))
            self.assertEqual(free(), expected)

    def test_no_other_request_waits_for_one_that_takes_long_to_compile(self):
        slow = "root ::= " + " ".join('("a"?) ("b"?)' for _ in range(980))
        with ChatServer() as server, concurrent.futures.ThreadPoolExecutor(2) as threads:
            for path, body in (("/v1/completions", {"prompt": "The fox"}), ("/v1/chat/completions", {"messages": [user("Hello")]})):
                # Another grammar each time: one that has compiled is kept.
                waits = threads.submit(post, server, path, {**body, "grammar": f'{slow} "{len(path)}"'})
                for _ in range(3):
                    server.complete("The fox", max_tokens=1)
                    chat(server, "Hello", max_tokens=1)
                self.assertFalse(waits.done())
                status, _, answer = waits.result()  # a faster machine may be done within the two seconds
                if status != 200:
                    self.assertEqual((status, answer["error"]["param"]), (400, "grammar"))
                    self.assertIn("take longer than 2 seconds", answer["error"]["message"])

    def test_each_vocabulary(self):
        for model in ("tales-llama-1m", "tales-neox-1m", "tales-qwen-1m"):
            with self.subTest(model), Server(model=model, program=CHATS) as server:
                made = {"type": "object", "properties": {"é": {"type": "string", "maxLength": 6}}, "required": ["é"],
                        "additionalProperties": False}
                for seed in range(4):
                    text = server.texts("The fox", max_tokens=60, seed=seed, response_format=as_format(made))[0]
                    self.assertLessEqual(len(json.loads(text)["é"]), 6)
                self.assertEqual(server.texts("The fox", guided_choice=["ä fox"]), ["ä fox"])
                self.assertEqual(server.texts("The fox", guided_choice=["</s><|endoftext|>"], max_tokens=40), ["</s><|endoftext|>"])

    def test_chats(self):
        made = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
                "required": ["age", "name"], "additionalProperties": False}
        with ChatServer() as server:
            messages = [user("Who is it?")]
            for seed in range(5):
                keys = {"response_format": as_format(made, strict=True), "seed": seed, "max_tokens": 120, "temperature": 1}
                text = content(chat(server, messages, **keys))
                self.assertEqual(list(json.loads(text)), ["name", "age"])
                if len(messages) == 1:
                    parts = events(server, messages[-1]["content"], **keys)
                    self.assertEqual("".join(part["choices"][0]["delta"].get("content", "") for part in parts), text)
                messages += [{"role": "assistant", "content": text}, user("And now?")]
                messages = messages[-3:]
            status, _, answer = post(server, "/v1/chat/completions", {"messages": [user("Hello")], "guided_regex": CUT})
            self.assertEqual((status, answer["error"]["param"]), (400, "guided_regex"))
            failed = events(server, "Hello", guided_regex=CUT)
            self.assertEqual(failed[-1]["error"]["param"], "guided_regex")
        thinking = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
        with ChatServer(template=thinking) as server:
            status, _, answer = post(server, "/v1/chat/completions", {"messages": [user("Hello")], "guided_regex": "a", "separate_reasoning": True})
            self.assertEqual((status, answer["error"]["param"]), (400, "separate_reasoning"))
            self.assertEqual(content(chat(server, "Hello", guided_regex="a", max_tokens=5)), "a")


ANIMALS = ["fox", "lion", "crow", "wolf", "hen", "hare", "dog", "goat", "ass", "stork"]
PLACES = ["the wood", "a farm", "the market", "a castle", "the river", "the sea", "a mill", "the hills", "a palace", "the road"]
FORM = {"type": "object", "properties": {
    "animal": {"enum": ANIMALS}, "name": {"type": "string", "minLength": 1, "maxLength": 20},
    "age": {"type": "integer", "minimum": 1, "maximum": 30}, "friends": {"type": "array", "items": {"enum": ANIMALS}, "minItems": 1, "maxItems": 3},
    "lives_in": {"type": "string", "minLength": 1, "maxLength": 40}},
    "required": ["animal", "name", "age", "friends", "lives_in"], "additionalProperties": False}
ASKED = (f"Answer only with a JSON object that has the keys animal (one of {', '.join(ANIMALS)}), name (a text), age (a whole number "
         "from 1 to 30), friends (a list of one to three of these animals) and lives_in (a text).")


class Forms(unittest.TestCase):
    """A hundred forms, each for another animal in another place: with a schema all are filled."""

    def filled(self, server, numbers, **keys):
        def is_filled(number):
            question = f"Describe a {ANIMALS[number % 10]} that lives in {PLACES[number // 10]}. {ASKED}"
            text = content(chat(server, question, max_tokens=250, seed=number, **keys))
            try:
                return is_valid(json.loads(text), FORM)
            except ValueError:
                return False
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            return sum(threads.map(is_filled, numbers))

    def test_a_model_of_tales_fills_all_and_without_a_schema_none(self):
        with ChatServer("--max-batch-size", 8) as server:
            self.assertEqual(self.filled(server, range(100), temperature=1, response_format=as_format(FORM)), 100)
            self.assertEqual(self.filled(server, range(10), temperature=1), 0)

    @unittest.skipUnless(SMOLLM2.is_dir(), "the model is not here: tools/download smollm2-135m-instruct brings it")
    def test_a_small_chat_model_fills_all(self):
        with Server("--max-batch-size", 8, "--context", 1024, model=str(SMOLLM2), program=CHATS) as server:
            for temperature in (0, 1):
                self.assertEqual(self.filled(server, range(100), temperature=temperature, response_format=as_format(FORM)), 100)
            self.assertLess(self.filled(server, range(10), temperature=0), 5)


if __name__ == "__main__":
    unittest.main()
