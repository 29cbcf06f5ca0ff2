"""LiteLLM asks the server: completions, chats, streams, and errors as the exceptions by which its router chooses."""

import asyncio
import os
import sys
import unittest

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would download one

import litellm  # noqa: E402

KEYS = {"model": f"text-completion-openai/{os.environ['STAIRCASE_MODEL']}", "api_base": f"{os.environ['STAIRCASE_URL']}/v1",
        "api_key": os.environ["STAIRCASE_KEY"], "max_tokens": 8, "temperature": 0}


def complete(prompt="Once upon a time", **keys):
    return litellm.text_completion(prompt=prompt, **{**KEYS, **keys})


class LiteLlm(unittest.TestCase):
    def test_completions(self):
        one = complete()
        self.assertEqual((one.choices[0].finish_reason, one.usage.completion_tokens), ("length", 8))
        many = complete(["Once upon a time", "The fox"], n=2, logprobs=2, echo=True)
        self.assertEqual([choice.text for choice in many.choices[:2]], ["Once upon a time" + one.choices[0].text] * 2)
        self.assertEqual(len(many.choices), 4)
        other = asyncio.run(litellm.atext_completion(prompt="Once upon a time", **KEYS))
        self.assertEqual(other.choices[0].text, one.choices[0].text)

    def test_streams(self):
        parts = [part.choices[0].text or "" for part in complete(stream=True)]
        self.assertEqual("".join(parts), complete().choices[0].text)
        self.assertGreater(len(parts), 4)

    def test_chats(self):
        keys = {**KEYS, "model": f"openai/{os.environ['STAIRCASE_MODEL']}",
                "messages": [{"role": "user", "content": "Once upon a time"}]}
        one = litellm.completion(**keys)
        self.assertEqual((one.choices[0].finish_reason, one.usage.completion_tokens), ("length", 8))
        parts = litellm.completion(stream=True, **keys)
        self.assertEqual("".join(part.choices[0].delta.content or "" for part in parts), one.choices[0].message.content)
        other = asyncio.run(litellm.acompletion(**keys))
        self.assertEqual(other.choices[0].message.content, one.choices[0].message.content)
        for kind, wrong in ((litellm.ContextWindowExceededError, {"max_tokens": 100000}),
                            (litellm.NotFoundError, {"model": "openai/gpt-4"}),
                            (litellm.BadRequestError, {"messages": [{"role": "user", "content": []}]})):
            with self.assertRaises(kind):
                litellm.completion(**{**keys, **wrong})

    def test_errors(self):
        for kind, keys in ((litellm.AuthenticationError, {"api_key": "wrong"}), (litellm.BadRequestError, {"temperature": -1}),
                           (litellm.NotFoundError, {"model": "text-completion-openai/gpt-4"}),
                           (litellm.ContextWindowExceededError, {"max_tokens": 100000})):
            with self.assertRaises(kind):
                complete(**keys)


if __name__ == "__main__":
    sys.exit(unittest.main())
