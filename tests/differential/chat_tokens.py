#!/usr/bin/env python3
"""Compares the token ids of chats with those of transformers' apply_chat_template, for the templates of real models.

    ninja -C build tests/render-templates
    PEERS_VENV/bin/python tests/differential/chat_tokens.py      # needs transformers; fetches the templates from PyPI
    PEERS_VENV/bin/python tests/differential/chat_tokens.py --templates DIR

The templates and the conversations are those of templates.py. Each template meets tokenizers of six families, which
are in tests/reference/tokenizers: their own rules, with a small vocabulary. To each the markers of the template are
added as special tokens, and its thoughts and calls as other added tokens, as its model has them.

A marker in a message is a token for transformers and text for us. Where ids differ, the script therefore compares once
more with other words in place of the markers in messages; our ids must have no more special tokens than then. Any other
difference is printed, and the exit status is 1. Not part of the test suite. Without transformers or PyPI it reports
that and ends with status 0.
"""

import argparse
import collections
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import templates as all_templates

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = ("gpt2", "pythia", "llama-2", "llama-3", "qwen2", "smollm2")
MARKERS = re.compile(r"<\|[^|<>\s{}'\"]{1,40}\|>|<｜[^｜<>\s{}'\"]{1,40}｜>|<(?:start|end)_of_turn>|\[/?[A-Z_]{3,20}\]")
OTHERS = re.compile(r"</?(?:think|tool_call|tool_response|tools)>")
RESULTS = re.compile(r"</?(?:tool_response|tools)>")  # of the others, those that are markers for us
BEGIN, END = all_templates.OWN["bos_token"], all_templates.OWN["eos_token"]


def write_tokenizer(family, template, folder):
    """tokenizer.json with the markers of a template, and the same for transformers."""
    from transformers import PreTrainedTokenizerFast
    description = json.loads((ROOT / f"tests/reference/tokenizers/{family}.json").read_text(encoding="utf-8"))
    added = description["added_tokens"]
    present = {token["content"]: token for token in added}
    vocabulary = description["model"]["vocab"]
    last = max(itertools.chain(vocabulary.values(), (token["id"] for token in added)))
    roles = {f"<|{role}|>" for role in ("system", "user", "assistant")} if "'<|' +" in template else set()
    marks = [(text, True) for text in sorted({BEGIN, END, *roles, *MARKERS.findall(template)})]
    for text, special in marks + [(text, False) for text in sorted(set(OTHERS.findall(template)))]:
        if text in present:
            present[text]["special"] = special
            continue
        last += 1
        added.append({"id": vocabulary.get(text, last), "content": text, "single_word": False, "lstrip": False,
                      "rstrip": False, "normalized": False, "special": special})
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(description), encoding="utf-8")
    return file, PreTrainedTokenizerFast(tokenizer_file=str(file), bos_token=BEGIN, eos_token=END)


def without_markers(value, marks):
    """The same messages, with another letter in the place of each marker's first."""
    if isinstance(value, str):
        for mark in marks:
            value = value.replace(mark, "§" + mark[1:])
        return value
    if isinstance(value, list):
        return [without_markers(one, marks) for one in value]
    if isinstance(value, dict):
        return {key: without_markers(one, marks) for key, one in value.items()}
    return value


def ids_of(tokenizer, template, data):
    """What transformers makes of a chat: ids, or an error."""
    arguments = {**data}
    messages = arguments.pop("messages")
    try:
        return {"ids": tokenizer.apply_chat_template(messages, chat_template=template, tokenize=True, return_dict=False,
                                                     **arguments)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def asked(file, tokenizer, data, about):
    return {"template": str(file), "data": data, "own": all_templates.OWN, "now": int(time.time()),
            "tokenizer": str(tokenizer), "about": about}


def answers(program, requests):
    lines = "\n".join(json.dumps(request) for request in requests)
    done = subprocess.run([program], input=lines, stdout=subprocess.PIPE, check=True, text=True, encoding="utf-8")
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def compare(file, family, program, folder):
    """(counts, differences) of one template and one family."""
    template = file.read_text(encoding="utf-8")
    path, tokenizer = write_tokenizer(family, template, folder)
    marks = sorted(token.content for token in tokenizer.added_tokens_decoder.values()
                   if token.special or RESULTS.fullmatch(token.content))
    requests, expected = [], []
    for (talk, messages), (option, more) in itertools.product(all_templates.conversations(), all_templates.options()):
        if not messages:  # the server and transformers refuse this whatever the template is
            continue
        data = {"messages": messages, "tools": None, "documents": None, **more}
        requests.append(asked(file, path, data, f"{file.name}, {family}, {talk}, {option}"))
        expected.append(ids_of(tokenizer, template, data))
    counts, differences = collections.Counter(), []
    for request, theirs, ours in zip(requests, expected, answers(program, requests), strict=True):
        if "error" in theirs and "error" in ours:
            counts["refused by both"] += 1
        elif "error" not in theirs and theirs.get("ids") == ours.get("ids"):
            counts["the same ids"] += 1
        else:
            differences.append((request, theirs, ours))
    return counts, differences, tokenizer, template, marks


def explained(request, _, ours, tokenizer, template, marks, program):
    """Whether both encode messages without markers alike, and ours has the same number of special tokens as before."""
    data = {**request["data"], "messages": without_markers(request["data"]["messages"], marks)}
    if data["messages"] == request["data"]["messages"] or "ids" not in ours:
        return False
    plain = answers(program, [{**request, "data": data}])[0]
    special = set(tokenizer.convert_tokens_to_ids(marks))

    def count(ids):
        return sum(one in special for one in ids)
    theirs = ids_of(tokenizer, template, data)
    return theirs.get("ids") == plain.get("ids") and count(ours["ids"]) == count(plain["ids"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--templates", type=Path, help="a folder with *.jinja, instead of PyPI's")
    parser.add_argument("--families", nargs="+", default=FAMILIES, help="those of the tokenizers")
    parser.add_argument("--show", type=int, default=5, help="differences to print")
    given = parser.parse_args()
    os.environ["TZ"] = "UTC"
    time.tzset()
    try:
        import transformers
    except ImportError:
        print("skipped: this Python has no transformers; run the script with one that has")
        return 0
    transformers.logging.set_verbosity_error()
    program = given.build / "tests/render-templates"
    total, left = collections.Counter(), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = sorted((given.templates or all_templates.fetched(folder)).glob("*.jinja"))
        for file, family in itertools.product(files, given.families):
            counts, differences, *about = compare(file, family, program, folder)
            total += counts
            for difference in differences:
                if explained(*difference, *about, program):
                    total["a marker in a message, which is text for us"] += 1
                else:
                    left.append(difference)
    for request, theirs, ours in left[:given.show]:
        print(f"{request['about']}:\n  transformers {str(theirs)[:400]}\n  ours         {str(ours)[:400]}")
    print(f"{len(files)} templates, {len(given.families)} tokenizers, {sum(total.values()) + len(left)} chats:",
          ", ".join(f"{count} {name}" for name, count in total.items()) + f", {len(left)} different")
    per_file = collections.Counter(Path(request["template"]).name for request, _, _ in left)
    for name, count in per_file.most_common():
        print(f"  {count} of {name}")
    return len(left) > 0


if __name__ == "__main__":
    sys.exit(main())
