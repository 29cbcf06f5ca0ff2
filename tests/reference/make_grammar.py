#!/usr/bin/env python3
"""Writes grammar.json: greedy texts of tales-6m that follow grammars, by Hugging Face transformers.

`prefix_allowed_tokens_fn` offers each token with which the text can still become one of the grammar; an Earley
recogniser of bytes (Earley 1970) decides that, whose rules are written beside ours by hand. Not part of the test suite:
needs torch and transformers.

    python tests/reference/make_grammar.py
"""

import json
import pathlib
import string

import torch
from transformers import GPT2LMHeadModel

from make_regex import FOLDER, HERE, PROMPTS, token_bytes

LONGEST = 24
LOWER = frozenset(string.ascii_lowercase.encode())
DIGITS = frozenset(b"0123456789")
QUOTED = frozenset(range(32, 127)) - set(b'"\\')

# Our grammar, and the same rules: each has alternatives, which are sequences of rules (texts) and of sets of bytes.
CASES = [
    ('root ::= " (" root* ")"', {"root": [[" ", "(", "roots", ")"]], "roots": [[], ["root", "roots"]]}),
    ('root ::= (" " [a-z]+ (","? " " [a-z]+){0,5} | " \\"" root "\\"") "."',
     {"root": [["body", "."]], "body": [["words"], [" ", '"', "root", '"']], "words": [[" ", "word", "more5"]],
      "word": [[LOWER], [LOWER, "word"]], "comma": [[], [","]], "one": [["comma", " ", "word"]], "more0": [[]],
      **{f"more{i}": [[], ["one", f"more{i - 1}"]] for i in range(1, 6)}}),
    ('root ::= " " sum\nsum ::= product ([-+] product)*\nproduct ::= unit ([*/] unit)*\nunit ::= [0-9]+ | "(" sum ")"',
     {"root": [[" ", "sum"]], "sum": [["product"], ["sum", frozenset(b"-+"), "product"]],
      "product": [["unit"], ["product", frozenset(b"*/"), "unit"]], "unit": [["number"], ["(", "sum", ")"]],
      "number": [[DIGITS], [DIGITS, "number"]]}),
    ('root ::= " " value\nvalue ::= "{" (pair (", " pair)*)? "}" | "[" (value (", " value)*)? "]" | string | [0-9]+\n'
     'pair ::= string ": " value\nstring ::= "\\"" [\\x20-!#-\\[\\]-~]* "\\""',
     {"root": [[" ", "value"]], "value": [["{", "}"], ["{", "pairs", "}"], ["[", "]"], ["[", "values", "]"], ["string"], ["number"]],
      "pairs": [["pair"], ["pairs", ",", " ", "pair"]], "values": [["value"], ["values", ",", " ", "value"]],
      "pair": [["string", ":", " ", "value"]], "string": [['"', "quoted", '"']], "quoted": [[], [QUOTED, "quoted"]],
      "number": [[DIGITS], [DIGITS, "number"]]}),
    ('root ::= "a" root "b" | ""', {"root": [[], ["a", "root", "b"]]}),
    ('root ::= same | other\nsame ::= " the" same | " king"\nother ::= " the" other " said" | " fox"',
     {"root": [["same"], ["other"]], "same": [[*" the", "same"], [*" king"]],
      "other": [[*" the", "other", *" said"], [*" fox"]]}),
    ('root ::= (" " name){2,3} "!"\nname ::= [A-Z] [a-z]* ("-" name)?',
     {"root": [[" ", "name", " ", "name", "third", "!"]], "third": [[], [" ", "name"]],
      "name": [[frozenset(string.ascii_uppercase.encode()), "letters"], [frozenset(string.ascii_uppercase.encode()), "letters", "-", "name"]],
      "letters": [[], [LOWER, "letters"]]}),
    ('root ::= line+\nline ::= "\\n" [0-9] "." (" " [A-Za-z]+)+',
     {"root": [["line"], ["root", "line"]], "line": [["\n", DIGITS, ".", "words"]],
      "words": [["word"], ["words", "word"]], "word": [[" ", "letters"]],
      "letters": [[frozenset(string.ascii_letters.encode())], [frozenset(string.ascii_letters.encode()), "letters"]]}),
]


def closed(rules, chart, items, at):
    """All items of a set: (rule, alternative, position of the dot, where the rule began)."""
    items, todo = set(items), list(items)
    while todo:
        rule, number, dot, start = todo.pop()
        parts = rules[rule][number]
        if dot == len(parts):
            origins = items if start == at else chart[start]
            found = [(r, n, d + 1, s) for r, n, d, s in origins if d < len(rules[r][n]) and rules[r][n][d] == rule]
        elif isinstance(parts[dot], str) and parts[dot] in rules:
            found = [(parts[dot], n, 0, at) for n in range(len(rules[parts[dot]]))]
            # What is empty may be complete already.
            if any(r == parts[dot] and s == at and d == len(rules[r][n]) for r, n, d, s in items):
                found.append((rule, number, dot + 1, start))
        else:
            found = []
        for item in found:
            if item not in items:
                items.add(item)
                todo.append(item)
    return items


def read(rules, chart, byte):
    """The next set, empty if no text begins so."""
    items = []
    for rule, number, dot, start in chart[-1]:
        parts = rules[rule][number]
        if dot == len(parts) or (isinstance(parts[dot], str) and parts[dot] in rules):
            continue
        if byte in (parts[dot].encode() if isinstance(parts[dot], str) else parts[dot]):
            items.append((rule, number, dot + 1, start))
    return closed(rules, chart, items, len(chart)) if items else set()


def main():
    model = GPT2LMHeadModel.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="eager").eval()
    end = model.config.eos_token_id
    tokens = token_bytes()
    tokens.pop(end, None)
    cases = []
    for number, (grammar, rules) in enumerate(CASES):
        prompt = PROMPTS[number % len(PROMPTS)]
        counts = []

        def allowed(_, ids):
            chart = [closed(rules, [], [("root", n, 0, 0) for n in range(len(rules["root"]))], 0)]
            for byte in b"".join(tokens[id] for id in ids[len(prompt):].tolist()):
                chart.append(read(rules, chart, byte))
            known, found = {b"": chart}, []
            for id, text in sorted(tokens.items(), key=lambda token: token[1]):
                for size in range(1, len(text) + 1):
                    if text[:size] not in known:
                        before = known[text[:size - 1]]
                        known[text[:size]] = before and [*before, after] if before and (after := read(rules, before, text[size - 1])) else None
                if text and known[text]:
                    found.append(id)
            if any(r == "root" and s == 0 and d == len(rules[r][n]) for r, n, d, s in chart[-1]):
                found.append(end)
            counts.append(len(found))
            return found

        made = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=LONGEST, pad_token_id=end,
                              prefix_allowed_tokens_fn=allowed, return_dict_in_generate=True, output_scores=True)
        ids = made.sequences[0, len(prompt):].tolist()
        two = [torch.topk(scores[0], 2).values for scores in made.scores]
        gaps = [min(99.0, float(f"{best - second:.3g}")) for best, second in two]
        cases.append({"grammar": grammar, "prompt_ids": prompt, "ids": ids, "allowed": counts, "gaps": gaps})
        print(grammar, b"".join(tokens.get(id, b"<end>") for id in ids))
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (HERE / "grammar.json").write_text(f'{{"max_new_tokens": {LONGEST}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
