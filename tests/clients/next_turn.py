#!/usr/bin/env python3
"""The cost of a chat's next turn: its time to first token compared with that of its new tokens alone, in turns.

  tests/clients/next_turn.py [--model smollm2-135m-instruct] [--dtype float32] [--pairs 10] [--temperature 0]

Each pair has a conversation of some 900 tokens, the server's own answer in it, and a question after it; and a
conversation of as many tokens as that question adds. Texts are new each time, and the order within a pair is drawn.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))
import support  # noqa: E402

WORDS = "the king and his three sons went out into the wide world to seek a golden bird that sang at night".split()


def text(choose, count):
    return " ".join(choose.choices(WORDS, k=count))


def processor_ms(pid):
    """Of all threads so far, to a fraction of a millisecond."""
    threads = Path(f"/proc/{pid}/task")
    return sum(int((threads / thread / "schedstat").read_text().split()[0]) for thread in os.listdir(threads)) / 1e6


def first_token(server, messages):
    """(milliseconds until the answer of one token, those of the processor, usage)."""
    before, start = processor_ms(server.process.pid), time.perf_counter()
    usage = answer(server, messages, 1)["usage"]
    taken = 1000 * (time.perf_counter() - start)
    time.sleep(0.01)  # what the server has to do after it
    return taken, processor_ms(server.process.pid) - before, usage


def post(server, path, body):
    status, _, reply = server.ask("POST", path, json.dumps(body), Content_Type="application/json")
    if status != 200:
        raise SystemExit(f"{path}: {status}: {reply}")
    return reply


def answer(server, messages, tokens, temperature=0, seed=0):
    return post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "temperature": temperature,
                                                 "seed": seed, "ignore_eos": True})


def count(server, messages):
    return post(server, "/tokenize", {"messages": messages})["count"]


def pair(server, choose, temperature):
    """[(continued, alone)] by the clock and by the processor, and the tokens computed and new."""
    talk = [{"role": "system", "content": text(choose, 40)}, {"role": "user", "content": text(choose, 790)}]
    said = answer(server, talk, 68, temperature, choose.randrange(2**31))
    talk += [{"role": "assistant", "content": said["choices"][0]["message"]["content"]},
             {"role": "user", "content": text(choose, 14)}]
    new = count(server, talk) - said["usage"]["total_tokens"]
    questions = ([{"role": "system", "content": text(choose, 3)}, {"role": "user", "content": text(choose, words)}]
                 for _ in range(9) for words in range(1, new))
    alone = next((one for one in questions if count(server, one) == new), None)
    if not alone:
        raise SystemExit(f"no conversation has {new} tokens: the template writes more")
    results = {}
    for name, messages in choose.sample([("talk", talk), ("alone", alone)], 2):
        results[name] = first_token(server, messages)
    usage = results["talk"][2]
    computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
    return [(results["talk"][i], results["alone"][i]) for i in (0, 1)], computed, new


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--temperature", type=float, default=0.0)
    given = parser.parse_args()
    choose = random.Random()
    with support.Server("--dtype", given.dtype, model=given.model, program=support.CHATS) as server:
        pair(server, choose, given.temperature)  # to warm up
        pairs = [pair(server, choose, given.temperature) for _ in range(given.pairs)]
    print(f"tokens computed {statistics.mean(one[1] for one in pairs):.1f}, new {statistics.mean(one[2] for one in pairs):.1f}")
    for i, name in enumerate(("by the clock", "of the processor")):
        talk, alone = zip(*(one[0][i] for one in pairs))
        ratios = sorted(a / b for a, b in zip(talk, alone))
        print(f"{name}: continued {statistics.median(talk):.1f} ms, alone {statistics.median(alone):.1f} ms; "
              f"ratio of pairs {statistics.median(ratios):.2f} ({ratios[0]:.2f}–{ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
