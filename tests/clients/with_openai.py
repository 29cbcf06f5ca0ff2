"""The openai package asks the server: completions, streams, log-probabilities, and errors as its exception classes."""

import os
import sys
import unittest

import openai

URL = os.environ["STAIRCASE_URL"]
MODEL = os.environ["STAIRCASE_MODEL"]


class OpenAi(unittest.TestCase):
    def setUp(self):
        self.client = openai.OpenAI(base_url=f"{URL}/v1", api_key=os.environ["STAIRCASE_KEY"], max_retries=0)
        self.addCleanup(self.client.close)

    def complete(self, prompt="Once upon a time", **keys):
        return self.client.completions.create(model=MODEL, prompt=prompt, **{"temperature": 0, "max_tokens": 8, **keys})

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])

    def test_completions(self):
        one = self.complete()
        self.assertEqual(one.object, "text_completion")
        self.assertEqual(one.choices[0].finish_reason, "length")
        self.assertEqual(one.usage.total_tokens, one.usage.prompt_tokens + 8)
        many = self.complete(["Once upon a time", "The fox"], n=2)
        self.assertEqual([choice.index for choice in many.choices], [0, 1, 2, 3])
        self.assertEqual([choice.text for choice in many.choices[:2]], [one.choices[0].text] * 2)
        drawn = self.complete(temperature=1, seed=3, n=3, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5,
                              stop=["\n"], user="somebody", extra_body={"top_k": 20, "repetition_penalty": 1.1, "min_tokens": 2})
        self.assertEqual(len(drawn.choices), 3)

    def test_streams(self):
        whole = self.complete()
        parts = list(self.complete(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(part.choices[0].text for part in parts if part.choices), whole.choices[0].text)
        self.assertEqual(parts[-1].usage, whole.usage)
        self.assertGreater(len(parts), 8)

    def test_leaving_a_stream(self):
        with self.complete(stream=True, n=20, max_tokens=400, extra_body={"ignore_eos": True}) as stream:
            next(iter(stream))
        self.assertEqual(self.complete().choices[0].finish_reason, "length")

    def test_log_probabilities(self):
        choice = self.complete(logprobs=2, echo=True).choices[0]
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertEqual(len(choice.logprobs.top_logprobs[1] | {}), len(choice.logprobs.top_logprobs[1]))
        self.assertEqual(choice.logprobs.text_offset[1], len(choice.logprobs.tokens[0]))

    def test_errors(self):
        for kind, call in [
                (openai.BadRequestError, lambda: self.complete(max_tokens=100000)),
                (openai.BadRequestError, lambda: self.complete(best_of=3)),
                (openai.BadRequestError, lambda: self.complete(temperature=-1)),
                (openai.BadRequestError, lambda: self.complete("")),
                (openai.NotFoundError, lambda: self.client.completions.create(model="gpt-4", prompt="a")),
                (openai.NotFoundError, lambda: self.client.chat.completions.create(model=MODEL, messages=[])),
                (openai.AuthenticationError, lambda: self.client.with_options(api_key="wrong").models.list())]:
            with self.assertRaises(kind) as caught:
                call()
            self.assertTrue(caught.exception.body["message"], kind)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(best_of=3)
        self.assertEqual((caught.exception.param, caught.exception.code), ("best_of", "unsupported_parameter"))

    def test_a_full_queue(self):
        streams = [self.complete(["The"] * 12, n=10, max_tokens=400, stream=True, extra_body={"ignore_eos": True})
                   for _ in range(1)]
        with self.assertRaises(openai.RateLimitError) as caught:
            for _ in range(20):
                self.complete(["The"] * 12, n=10)
        self.assertEqual(caught.exception.response.headers["retry-after"], "1")
        for stream in streams:
            stream.close()


if __name__ == "__main__":
    sys.exit(unittest.main())
