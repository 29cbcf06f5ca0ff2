"""Calls of functions as clients see them: their arguments are valid under the schemas, streams say the same, results go
back, and texts without calls are what they are without functions. The judge is test_constraints' validator."""

import contextlib
import importlib.util
import io
import json
import random
import re
import unittest

from support import ROOT, ChatServer
from test_chat import chat, content, events, post, user
from test_constraints import is_valid, schema

def tool(name, properties, required=()):
    return {"type": "function", "function": {"name": name, "description": f"About {name}.", "parameters": {
        "type": "object", "properties": properties, "required": list(required), "additionalProperties": False}}}


def choice_of(name):
    return {"type": "function", "function": {"name": name}}


ANIMAL = tool("animal", {"kind": {"enum": ["fox", "lion"]}, "age": {"type": "integer", "minimum": 1, "maximum": 9}}, ["kind", "age"])
NOTHING = {"type": "function", "function": {"name": "nothing"}}


class Tools(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ChatServer("--max-batch-size", 4))

    def choice(self, **keys):
        keys = {"tools": [ANIMAL, NOTHING], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 150,
                "temperature": 1, **keys}
        return chat(self.server, "Who?", **keys)["choices"][0]

    def merged(self, **keys):
        """The message that a stream's events make, and its last reason."""
        message, reason = {"content": None, "tool_calls": []}, None
        for event in events(self.server, "Who?", max_tokens=150, temperature=1, **keys):
            choice = event["choices"][0]
            reason = choice["finish_reason"] or reason
            if choice["delta"].get("content") is not None:
                message["content"] = (message["content"] or "") + choice["delta"]["content"]
            for call in choice["delta"].get("tool_calls", []):
                if "id" in call:
                    self.assertEqual(call["index"], len(message["tool_calls"]))
                    message["tool_calls"].append(call["function"])
                else:
                    self.assertEqual(call["index"], len(message["tool_calls"]) - 1)
                    message["tool_calls"][-1]["arguments"] += call["function"]["arguments"]
        return message, reason

    def test_arguments_are_valid_under_random_schemas_and_a_stream_says_the_same(self):
        ended = 0
        for seed in range(30):
            draw = random.Random(seed)
            properties = {name: schema(draw, 1) for name in draw.sample(["zoo", "age", "é"], draw.randint(1, 2))}
            made = tool("tell", properties, draw.sample(list(properties), 1))
            keys = {"tools": [ANIMAL, made], "tool_choice": draw.choice(["required", choice_of("tell")]), "seed": seed}
            with self.subTest(keys):
                choice = self.choice(**keys)
                said, reason = self.merged(parallel_tool_calls=False, **keys)
                message = choice["message"]
                self.assertIsNone(message["content"])
                self.assertEqual(reason, choice["finish_reason"])
                self.assertEqual(said["tool_calls"], [call["function"] for call in message.get("tool_calls", [])])
                self.assertIsNone(said["content"])
                if choice["finish_reason"] == "length":
                    continue
                ended += 1
                self.assertEqual(choice["finish_reason"], "tool_calls")
                (call,) = message["tool_calls"]
                self.assertEqual((call["type"], set(call)), ("function", {"id", "type", "function"}))
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                if keys["tool_choice"] != "required":
                    self.assertEqual(name, "tell")
                parameters = {one["function"]["name"]: one["function"]["parameters"] for one in keys["tools"]}[name]
                self.assertTrue(is_valid(arguments, parameters), arguments)
        self.assertGreater(ended, 15)

    def test_several_calls_have_ids_of_their_own(self):
        most = 0
        (line,) = post(self.server, "/tokenize", {"prompt": "\n", "add_special_tokens": False})[2]["tokens"]
        for seed in range(12):
            calls = self.choice(seed=seed, parallel_tool_calls=True, tools=[NOTHING], logit_bias={str(line): 8})["message"]["tool_calls"]
            self.assertEqual(len({call["id"] for call in calls}), len(calls))
            self.assertEqual({call["function"]["name"] for call in calls}, {"nothing"})
            most = max(most, len(calls))
        self.assertGreater(most, 1)

    def test_without_a_call_the_answer_is_that_of_the_same_prompt(self):
        for talk in ("Who?", "Tell me of the king."):
            asked = {"messages": [user(talk)], "tools": [ANIMAL, NOTHING]}
            prompt = post(self.server, "/apply-template", asked)[2]["prompt"]
            self.assertIn("About animal.", prompt)
            tokens = post(self.server, "/tokenize", asked)[2]["tokens"]
            text = self.server.texts(tokens, max_tokens=60, temperature=0)[0]
            choice = chat(self.server, talk, tools=asked["tools"], tool_choice="auto", max_tokens=60, temperature=0)["choices"][0]
            self.assertEqual(choice["message"]["content"], text)
            self.assertNotIn("tool_calls", choice["message"])
            said, reason = self.merged(tools=asked["tools"], seed=1)
            self.assertEqual(self.choice(tools=asked["tools"], tool_choice="auto", seed=1)["message"]["content"], said["content"])
            self.assertEqual(said["tool_calls"], [])
            self.assertIn(reason, ("stop", "length"))

    def test_beside_a_format_an_answer_is_calls_or_a_text_of_it(self):
        form = {"type": "object", "properties": {"word": {"enum": ["fox", "<tool_call>"]}}, "required": ["word"],
                "additionalProperties": False}
        keys = {"tools": [NOTHING], "response_format": {"type": "json_schema", "json_schema": {"name": "form", "schema": form}}}
        (brace,) = post(self.server, "/tokenize", {"prompt": "{", "add_special_tokens": False})[2]["tokens"]
        (less,) = post(self.server, "/tokenize", {"prompt": "<", "add_special_tokens": False})[2]["tokens"]
        for seed in range(6):
            for choice, bias in (("auto", {brace: 60}), ("auto", {less: 60}), ("required", {}), ("none", {}), (choice_of("nothing"), {})):
                with self.subTest(choice=choice, bias=bias, seed=seed):
                    more = {**keys, "tool_choice": choice, "seed": seed, "logit_bias": {str(id): value for id, value in bias.items()}}
                    answer = self.choice(**more)
                    said, reason = self.merged(parallel_tool_calls=False, **more)
                    message = answer["message"]
                    self.assertEqual((said["tool_calls"], reason),
                                     ([call["function"] for call in message.get("tool_calls", [])], answer["finish_reason"]))
                    self.assertEqual(said["content"] or None, message["content"])
                    if choice == "none" or bias == {brace: 60}:
                        self.assertIn(json.loads(message["content"])["word"], form["properties"]["word"]["enum"])
                        self.assertEqual(answer["finish_reason"], "stop")
                    else:
                        self.assertIsNone(message["content"])
                        self.assertEqual([(call["function"]["name"], json.loads(call["function"]["arguments"]))
                                          for call in message["tool_calls"]], [("nothing", {})])
                        self.assertEqual(answer["finish_reason"], "tool_calls")
        status, _, refused = post(self.server, "/v1/chat/completions", {"messages": [user("Who?")], "tools": [NOTHING], "guided_regex": ".*"})
        self.assertEqual((status, refused["error"]["param"]), (400, "tools"))

    def test_a_conversation_goes_on_with_the_results_of_its_calls(self):
        messages = [user("Who?")]
        for seed in range(3):
            answer = chat(self.server, messages, tools=[NOTHING], tool_choice="required", parallel_tool_calls=False, seed=seed)
            message = answer["choices"][0]["message"]
            messages += [message, {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "Done."}]
        prompt = post(self.server, "/apply-template", {"messages": messages})[2]["prompt"]
        self.assertEqual(len(re.findall(r'<tool_call>\n\{"name": "nothing", "arguments": \{\}\}\n</tool_call>', prompt)), 3)
        self.assertEqual(prompt.count("tool:Done."), 3)
        status, _, refused = post(self.server, "/v1/chat/completions", {"messages": messages + messages[-1:]})
        self.assertEqual((status, refused["error"]["param"]), (400, "messages[7].tool_call_id"))

    def test_an_agent_runs_what_is_called_and_ends(self):
        described = importlib.util.spec_from_file_location("agent", ROOT / "tests/clients/agent.py")
        agent = importlib.util.module_from_spec(described)
        described.loader.exec_module(agent)
        called, texts = [], 0
        for name, function in list(agent.RUN.items()):
            agent.RUN[name] = lambda name=name, function=function, **arguments: called.append(name) or function(**arguments)
        for seed in range(4):
            before = len(called)
            with contextlib.redirect_stderr(io.StringIO()):
                said = agent.answer(f"http://127.0.0.1:{self.server.port}", "Who?", max_tokens=120, temperature=1, seed=seed)
            texts += said is not None
            self.assertIn(len(called) - before, range(1, agent.MOST_TURNS + 1))
        self.assertGreater(texts, 0)

    def test_a_model_whose_template_knows_no_calls_makes_them_too(self):
        with ChatServer(template="{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}") as server:
            messages = [user("Who?")]
            for turn in range(2):
                answers = (chat(server, messages, tools=[ANIMAL, NOTHING], tool_choice="required", parallel_tool_calls=False,
                                max_tokens=100, temperature=1, seed=seed)["choices"][0] for seed in range(10))
                choice = next(choice for choice in answers if choice["finish_reason"] == "tool_calls")  # others are cut off
                [call] = choice["message"]["tool_calls"]
                arguments = json.loads(call["function"]["arguments"])
                is_animal = call["function"]["name"] == "animal"
                properties = ANIMAL["function"]["parameters"] if is_animal else {"type": "object", "properties": {}, "required": []}
                self.assertTrue(is_valid(arguments, properties), arguments)
                messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": f"result {turn}"}]
            prompt = post(server, "/apply-template", {"messages": messages, "tools": [NOTHING]})[2]["prompt"]
            self.assertEqual(prompt.count("<tool_call>"), 3)  # one is in the instructions
            self.assertIn("user:<tool_response>\nresult 1\n</tool_response>\n", prompt)
            self.assertTrue(content(chat(server, "Who?", tools=[], max_tokens=5)))


if __name__ == "__main__":
    unittest.main()
