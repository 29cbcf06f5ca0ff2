"""The openai package asks the server: completions, chats, streams, log-probabilities, and errors as its exception
classes."""

import asyncio
import json
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
                              stop=["\n"], user="a-person", extra_body={"top_k": 20, "repetition_penalty": 1.1, "min_tokens": 2})
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


class Chats(unittest.TestCase):
    MESSAGES = [{"role": "system", "content": "Tell tales."},
                {"role": "user", "content": [{"type": "text", "text": "Once upon a time"}]}]

    def setUp(self):
        self.keys = {"base_url": f"{URL}/v1", "api_key": os.environ["STAIRCASE_KEY"], "max_retries": 0}
        self.client = openai.OpenAI(**self.keys)
        self.addCleanup(self.client.close)

    def chat(self, messages=None, **keys):
        return self.client.chat.completions.create(model=MODEL, messages=messages or self.MESSAGES,
                                                   **{"temperature": 0, "max_completion_tokens": 8, **keys})

    def test_answers(self):
        one = self.chat()
        self.assertEqual((one.object, one.choices[0].message.role, one.choices[0].finish_reason),
                         ("chat.completion", "assistant", "length"))
        self.assertEqual(one.usage.total_tokens, one.usage.prompt_tokens + 8)
        again = self.chat().usage
        self.assertEqual(again.prompt_tokens_details.cached_tokens, (again.prompt_tokens - 1) // 16 * 16)
        # What came is sent again, with all that the package makes of it.
        again = self.chat([*self.MESSAGES, one.choices[0].message, {"role": "user", "content": "And then?"}])
        self.assertTrue(again.choices[0].message.content)
        drawn = self.chat(temperature=1, seed=3, n=3, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5,
                          stop=["\n"], user="a-person", tool_choice="none", response_format={"type": "text"},
                          extra_body={"top_k": 20, "min_p": 0.01, "chat_template_kwargs": {"mood": "calm"}})
        self.assertEqual([choice.index for choice in drawn.choices], [0, 1, 2])

    def test_streams(self):
        whole = self.chat()
        parts = list(self.chat(stream=True, stream_options={"include_usage": True}))
        deltas = [part.choices[0].delta for part in parts if part.choices]
        self.assertEqual("".join(delta.content or "" for delta in deltas), whole.choices[0].message.content)
        self.assertEqual([delta.role for delta in deltas], ["assistant"] + [None] * (len(deltas) - 1))
        self.assertEqual([part.choices[0].finish_reason for part in parts if part.choices][-2:], [None, "length"])
        self.assertEqual(parts[-1].usage.completion_tokens, 8)
        self.assertEqual(len({part.id for part in parts}), 1)
        with self.client.chat.completions.stream(model=MODEL, messages=self.MESSAGES, temperature=0,
                                                 max_tokens=8) as stream:
            for _ in stream:
                pass
            held = stream.current_completion_snapshot
            self.assertEqual(held.choices[0].message.content, whole.choices[0].message.content)

    def test_log_probabilities(self):
        choice = self.chat(logprobs=True, top_logprobs=3).choices[0]
        told = choice.logprobs.content
        self.assertEqual(bytes(byte for token in told for byte in token.bytes).decode(), choice.message.content)
        for token in told:
            self.assertEqual(len(token.top_logprobs), 3)
            self.assertEqual((token.top_logprobs[0].token, token.top_logprobs[0].logprob), (token.token, token.logprob))

    def test_without_blocking(self):
        async def ask():
            async with openai.AsyncOpenAI(**self.keys) as client:
                keys = {"model": MODEL, "messages": self.MESSAGES, "temperature": 0, "max_tokens": 8}
                wholes = await asyncio.gather(*[client.chat.completions.create(**keys) for _ in range(8)])
                stream = await client.chat.completions.create(stream=True, **keys)
                text = "".join([part.choices[0].delta.content or "" async for part in stream])
                return {whole.choices[0].message.content for whole in wholes} | {text}

        self.assertEqual(asyncio.run(ask()), {self.chat().choices[0].message.content})

    def test_answers_that_parse(self):
        made = {"name": "animal", "strict": True, "schema": {
            "type": "object", "properties": {"kind": {"enum": ["fox", "lion"]}, "wild": {"type": "boolean"}},
            "required": ["kind", "wild"], "additionalProperties": False}}
        keys = {"response_format": {"type": "json_schema", "json_schema": made}, "max_completion_tokens": 100}
        answer = self.chat(**keys).choices[0]
        self.assertEqual(answer.finish_reason, "stop")
        self.assertEqual(list(json.loads(answer.message.content)), ["kind", "wild"])
        stream = self.chat(stream=True, **keys)
        self.assertEqual("".join(part.choices[0].delta.content or "" for part in stream), answer.message.content)
        fails = {"guided_regex": "(fox ){9}(a?){2100}b"}  # in too many states after nine foxes
        with self.assertRaises(openai.BadRequestError):
            self.chat(extra_body=fails, max_completion_tokens=60)
        with self.assertRaisesRegex(openai.APIError, "at most 2000 are followed"):
            list(self.chat(stream=True, extra_body=fails, max_completion_tokens=60))

    def test_calls_of_functions(self):
        tools = [{"type": "function", "function": {"name": name, "description": "Works with two numbers.", "parameters": {
            "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9},
                                             "b": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["a", "b"], "additionalProperties": False}}} for name in ("add", "multiply")]
        work = {"add": lambda a, b: a + b, "multiply": lambda a, b: a * b}
        messages = [{"role": "user", "content": "3 times 4?"}]
        for turn in range(3):  # the loop of an agent
            keys = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False, "seed": turn, "temperature": 1,
                    "max_completion_tokens": 100}
            answer = self.chat(messages, **keys).choices[0]
            self.assertEqual(answer.finish_reason, "tool_calls")
            with self.client.chat.completions.stream(model=MODEL, messages=messages, **keys) as stream:
                kinds = {event.type for event in stream}
                streamed = stream.get_final_completion().choices[0]
            self.assertIn("tool_calls.function.arguments.delta", kinds)
            self.assertEqual(streamed.finish_reason, "tool_calls")
            (call,), (same,) = answer.message.tool_calls, streamed.message.tool_calls
            self.assertEqual((call.function.name, call.function.arguments), (same.function.name, same.function.arguments))
            result = work[call.function.name](**json.loads(call.function.arguments))
            messages += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": str(result)}]
        one = self.chat(messages, tools=tools, tool_choice={"type": "function", "function": {"name": "add"}}, max_completion_tokens=100)
        self.assertEqual([call.function.name for call in one.choices[0].message.tool_calls], ["add"])
        self.assertTrue(self.chat(messages, tools=tools).choices[0].message.content)
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat([*messages, {"role": "tool", "tool_call_id": "call_of_nobody", "content": "7"}], tools=tools)
        self.assertEqual(caught.exception.param, "messages[7].tool_call_id")

    def test_errors(self):
        picture = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
        for key, keys in (("messages", {"max_completion_tokens": 100000}), ("temperature", {"temperature": -1}),
                          ("messages[0].content[0]", {"messages": picture}),
                          ("messages", {"messages": [{"role": "user", "content": "a fox " * 2000}]}),
                          ("tools[1].function.name", {"tools": [{"type": "function", "function": {"name": "f"}}] * 2}),
                          ("response_format", {"response_format": {"type": "json_schema", "json_schema": {
                              "name": "a", "schema": {"uniqueItems": True}}}})):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**keys)
            self.assertEqual(caught.exception.param, key)
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt-4", messages=self.MESSAGES)
        with self.assertRaises(openai.AuthenticationError):
            self.client.with_options(api_key="wrong").chat.completions.create(model=MODEL, messages=self.MESSAGES)


if __name__ == "__main__":
    sys.exit(unittest.main())
