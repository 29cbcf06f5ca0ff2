#!/usr/bin/env python3
"""An agent with two harmless tools: it lets a served model add numbers and search in tales until it answers.

    tests/clients/agent.py "Who finds a bronze ring?" --url http://127.0.0.1:8080
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

MOST_TURNS = 4
TALES = (Path(__file__).resolve().parent.parent / "reference/unseen.txt").read_text(encoding="utf-8").splitlines()


def tool(name, description, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}}}


NUMBER = {"type": "integer", "minimum": -1000, "maximum": 1000}
TOOLS = [tool("add", "Adds two numbers.", a=NUMBER, b=NUMBER),
         tool("search", "Finds a line of the tales that has this word.", word={"type": "string", "minLength": 1, "maxLength": 20})]
RUN = {"add": lambda a, b: str(a + b), "search": lambda word: next((line for line in TALES if word in line), "nothing")}


def ask(url, **body):
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def answer(url, question, **options):
    """The model's answer, or None if it goes on calling."""
    messages = [{"role": "user", "content": question}]
    for turn in range(MOST_TURNS):
        # It has to look something up at first, and is free after that.
        message = ask(url, messages=messages, tools=TOOLS, parallel_tool_calls=False,
                      tool_choice="auto" if turn else "required", **options)
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            result = RUN[name](**arguments)
            print(f"{name}({arguments}) = {result}", file=sys.stderr)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    given = parser.parse_args()
    try:
        said = answer(given.url, given.question, max_tokens=200)
    except urllib.error.HTTPError as error:
        sys.exit(f"error: {json.load(error)['error']['message']}")
    except OSError as error:
        sys.exit(f"error: {given.url} does not answer: {error}")
    print(said if said is not None else f"There is no answer after {MOST_TURNS} turns.")


if __name__ == "__main__":
    main()
