"""LangChain's OpenAI models ask the server: whole, in streams, in batches, and without blocking."""

import asyncio
import os
import sys
import unittest
from typing import Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

PROMPT = "Once upon a time"


def model(kind=OpenAI, **keys):
    return kind(base_url=f"{os.environ['STAIRCASE_URL']}/v1", api_key=os.environ["STAIRCASE_KEY"],
                  model=os.environ["STAIRCASE_MODEL"], max_retries=0, **{"temperature": 0, "max_tokens": 8, **keys})


class Animal(BaseModel):
    """An animal of a tale."""
    kind: Literal["fox", "lion", "crow"]
    age: int = Field(ge=1, le=20)
    is_wild: bool


@tool
def age_of(animal: Literal["fox", "lion", "crow"]) -> int:
    """Returns the age of an animal."""
    return {"fox": 3, "lion": 9, "crow": 5}[animal]


class LangChain(unittest.TestCase):
    def test_the_same_text_in_each_way(self):
        one = model()
        text = one.invoke(PROMPT)
        self.assertGreater(len(text), 8)
        self.assertEqual("".join(one.stream(PROMPT)), text)
        self.assertEqual(one.batch([PROMPT] * 5), [text] * 5)
        self.assertEqual(model(streaming=True).invoke(PROMPT), text)
        self.assertEqual(one.invoke(PROMPT, stop=[text[-4:]]), text[:text.index(text[-4:])])

        async def ask():
            return await one.ainvoke(PROMPT), "".join([part async for part in one.astream(PROMPT)])

        self.assertEqual(asyncio.run(ask()), (text, text))

    def test_several_prompts_and_texts(self):
        told = model().generate([PROMPT, "The fox"])
        self.assertEqual((len(told.generations), told.llm_output["token_usage"]["completion_tokens"]), (2, 16))
        drawn = model(temperature=0.8, n=3, best_of=3, seed=1, frequency_penalty=0.1, presence_penalty=0.1, top_p=0.9,
                      logit_bias={"5": -100})
        self.assertEqual(len(drawn.generate(["A"]).generations[0]), 3)
        scored = model(logprobs=2).generate(["A"]).generations[0][0]
        self.assertEqual(len(scored.generation_info["logprobs"]["tokens"]), 8)

    def test_a_chat(self):
        one = model(ChatOpenAI)
        messages = [("system", "Tell tales."), ("human", PROMPT)]
        answer = one.invoke(messages)
        self.assertEqual(answer.response_metadata["finish_reason"], "length")
        self.assertEqual(answer.usage_metadata["output_tokens"], 8)
        self.assertIn("cache_read", answer.usage_metadata["input_token_details"])
        parts = list(model(ChatOpenAI, stream_usage=True).stream(messages))
        self.assertEqual("".join(part.content for part in parts), answer.content)
        self.assertEqual([message.content for message in one.batch([messages] * 5)], [answer.content] * 5)
        again = one.invoke([*messages, answer, ("human", "And then?")])
        self.assertGreater(again.usage_metadata["input_token_details"]["cache_read"], 0)
        scored = model(ChatOpenAI, logprobs=True, top_logprobs=2).invoke(messages)
        self.assertEqual(len(scored.response_metadata["logprobs"]["content"]), 8)

        async def ask():
            whole = await one.ainvoke(messages)
            return whole.content, "".join([part.content async for part in one.astream(messages)])

        self.assertEqual(asyncio.run(ask()), (answer.content, answer.content))

    def test_structured_output(self):
        one = model(ChatOpenAI, temperature=1, max_tokens=100)
        for method in ("json_schema", "function_calling"):
            drawn = one.with_structured_output(Animal, method=method)
            found = [drawn.invoke(f"Which animal is number {number}?", seed=number) for number in range(10)]
            self.assertEqual({type(animal) for animal in found}, {Animal})
            self.assertGreater(len({animal.model_dump_json() for animal in found}), 1)

    def test_tools(self):
        asked = HumanMessage("How old is the fox?")
        one = model(ChatOpenAI, max_tokens=100)
        answer = one.bind_tools([age_of], tool_choice="any", parallel_tool_calls=False).invoke([asked])
        [call] = answer.tool_calls
        result = age_of.invoke(call)
        self.assertIsInstance(result, ToolMessage)
        self.assertIn(result.content, ("3", "9", "5"))
        self.assertTrue(one.bind_tools([age_of], tool_choice="none").invoke([asked, answer, result]).content)


if __name__ == "__main__":
    sys.exit(unittest.main())
