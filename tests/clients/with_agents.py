"""OpenAI's Agents SDK, unchanged: its loop calls functions of this file, hands one agent's work to another, and gets an
answer of a type."""

import asyncio
import os
import sys
import unittest
from typing import Literal

import openai
from agents import (Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, ToolCallItem, ToolCallOutputItem,
                    function_tool, set_tracing_disabled)
from pydantic import BaseModel, Field

set_tracing_disabled(True)
called = []


@function_tool
def age_of(animal: Literal["fox", "lion", "crow"]) -> int:
    """Returns the age of an animal."""
    called.append(animal)
    return {"fox": 3, "lion": 9, "crow": 5}[animal]


class Animal(BaseModel):
    kind: Literal["fox", "lion", "crow"]
    age: int = Field(ge=1, le=20)


class Agents(unittest.TestCase):
    def agent(self, name="Teller", **keys):
        client = openai.AsyncOpenAI(base_url=f"{os.environ['STAIRCASE_URL']}/v1", api_key=os.environ["STAIRCASE_KEY"], max_retries=0)
        settings = ModelSettings(temperature=0, max_tokens=80, parallel_tool_calls=False, **keys.pop("settings", {})) if keys.get("tools") \
            else ModelSettings(temperature=0, max_tokens=80)
        return Agent(name=name, instructions="Tell tales.", model=OpenAIChatCompletionsModel(os.environ["STAIRCASE_MODEL"], client),
                     model_settings=settings, **keys)

    def test_an_answer(self):
        self.assertTrue(Runner.run_sync(self.agent(), "Who came?").final_output)

    def test_a_function_is_called_and_its_result_goes_back(self):
        called.clear()
        done = Runner.run_sync(self.agent(tools=[age_of], settings={"tool_choice": "required"}), "How old is the fox?", max_turns=4)
        calls = [item for item in done.new_items if isinstance(item, ToolCallItem)]
        results = [item for item in done.new_items if isinstance(item, ToolCallOutputItem)]
        self.assertGreaterEqual(len(calls), 1)
        self.assertEqual((len(results), len(called)), (len(calls), len(calls)))
        self.assertTrue(done.final_output)

    def test_the_same_in_a_stream(self):
        async def streamed():
            run = Runner.run_streamed(self.agent(tools=[age_of], settings={"tool_choice": "required"}), "How old is the fox?", max_turns=4)
            kinds = {event.type async for event in run.stream_events()}
            return kinds, run.final_output

        kinds, output = asyncio.run(streamed())
        self.assertLessEqual({"raw_response_event", "run_item_stream_event"}, kinds)
        self.assertEqual(output, Runner.run_sync(self.agent(tools=[age_of], settings={"tool_choice": "required"}), "How old is the fox?",
                                                 max_turns=4).final_output)

    def test_an_answer_of_a_type(self):
        self.assertIsInstance(Runner.run_sync(self.agent(output_type=Animal), "Which animal?").final_output, Animal)


if __name__ == "__main__":
    sys.exit(unittest.main(warnings="ignore"))  # the SDK leaves its streams to the end of the loop
