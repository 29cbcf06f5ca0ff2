#!/usr/bin/env python3
"""Writes regex.json: greedy texts of tales-6m that match regular expressions, by Hugging Face transformers.

`prefix_allowed_tokens_fn` offers each token with which the text can still become a match; the package `regex` decides
that, by its partial matches on bytes. Not part of the test suite: needs torch, transformers and regex.

    python tests/reference/make_regex.py
"""

import json
import pathlib

import regex
import torch
from transformers import GPT2LMHeadModel

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE.parent.parent / "models" / "tales-6m"
PROMPTS = [[464], *(run["prompt_ids"] for run in json.loads((HERE / "greedy.json").read_text())["cases"][:4])]
LONGEST = 24

PATTERNS = r"""
yes|no
 (yes|no|maybe)
 [0-9]{2} years old\.
[0-9]+
 -?[0-9]+(\.[0-9]+)?
[a-z]+
[A-Z][a-z]*( [a-z]+){2}\.
 the (fox|wolf|lion)s?
(ab)*
(ab)+c
(a|b)*abb
a{3}
a{2,4}
a{5,}
 a?b?c?
[^a-z]{3}
[^aeiou ]+
\w+@\w+\.(com|org)
\d\d:\d\d
\d{4}-\d{2}-\d{2}
(19|20)\d\d
\s\S+\s
.{10}
. . .
".*"
"[^"\n]*"
\{"name": "[A-Za-z ]{1,12}", "age": [0-9]{1,3}\}
\[([0-9](, [0-9])*)?\]
(true|false|null)
[-+]?\d+
#[0-9a-f]{6}
([01]\d|2[0-3]):[0-5]\d
[A-Z]{2,3}-\d{3}
\(\d+\)
Once upon a time(, there was a [a-z]+)?
( [a-z]+,){3} and [a-z]+
((the|a) (king|queen) )+
x*
(x|)y
(|x)y
(a*)*b
((a|b)+c?)+d
<b>[^<]*</b>
[.!?]
[\]\[]
[\w-]+
\\n
[\n]
\t?\d
(one|two|three)(, (one|two|three)){0,2}
""".splitlines()[1:]


def token_bytes():
    """The bytes of each token, by GPT-2's alphabet (Radford et al. 2019)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    vocabulary = json.loads((FOLDER / "vocab.json").read_text())
    return {id: bytes(alphabet[c] for c in text) for text, id in vocabulary.items()}


def main():
    model = GPT2LMHeadModel.from_pretrained(FOLDER, dtype=torch.float32, attn_implementation="eager").eval()
    end = model.config.eos_token_id
    tokens = token_bytes()
    tokens.pop(end, None)
    cases = []
    for number, pattern in enumerate(PATTERNS):
        prompt = PROMPTS[number % len(PROMPTS)]
        compiled = regex.compile(pattern.encode(), regex.V1)
        counts = []

        def allowed(_, ids):
            written = b"".join(tokens[id] for id in ids[len(prompt):].tolist())
            found = [id for id, text in tokens.items() if compiled.fullmatch(written + text, partial=True)]
            found += [end] if compiled.fullmatch(written) else []
            counts.append(len(found))
            return found

        made = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=LONGEST, pad_token_id=end,
                              prefix_allowed_tokens_fn=allowed, return_dict_in_generate=True, output_scores=True)
        ids = made.sequences[0, len(prompt):].tolist()
        two = [torch.topk(scores[0], 2).values for scores in made.scores]
        gaps = [min(99.0, float(f"{best - second:.3g}")) for best, second in two]
        cases.append({"pattern": pattern, "prompt_ids": prompt, "ids": ids, "allowed": counts, "gaps": gaps})
        print(repr(pattern), b"".join(tokens.get(id, b"<end>") for id in ids))
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (HERE / "regex.json").write_text(f'{{"max_new_tokens": {LONGEST}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
