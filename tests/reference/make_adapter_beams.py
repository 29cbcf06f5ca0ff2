#!/usr/bin/env python3
"""Makes tests/reference/adapter_beams.json: what transformers' beam search finds with PEFT's adapters of tales-6m.

Each case is searched in float32 and in float64, and both must find the same texts: then no near tie decides. Needs
torch, transformers and peft.

    python tests/reference/make_adapter_beams.py
"""

import json
import pathlib

import peft
import torch
import transformers

ROOT = pathlib.Path(__file__).parents[2]
PROMPTS = ["Once upon a time there was a king", "A Fox and a Lion", "The Sultan said to the merchant,"]
SEARCHES = [{"num_beams": 4, "length_penalty": 1.0, "early_stopping": False, "max_new_tokens": 30},
            {"num_beams": 3, "length_penalty": 0.3, "early_stopping": "never", "max_new_tokens": 24}]


def search(adapter, ids, settings, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(ROOT / "models/tales-6m", dtype=dtype,
                                                              attn_implementation="eager")
    model = peft.PeftModel.from_pretrained(model, ROOT / "models/adapters" / adapter).to(dtype).eval()
    with torch.no_grad():
        found = model.generate(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                               do_sample=False, num_return_sequences=settings["num_beams"], pad_token_id=4095,
                               return_dict_in_generate=True, output_scores=True, **settings)
    texts = []
    for sequence in found.sequences.tolist():
        new = sequence[len(ids):]
        texts.append(new[:new.index(4095)] if 4095 in new else new)
    return texts


def main():
    tokenizer = transformers.AutoTokenizer.from_pretrained(ROOT / "models/tales-6m")
    cases = []
    for adapter in ("aesop", "arabian-nights"):
        for prompt in PROMPTS:
            for settings in SEARCHES:
                ids = tokenizer(prompt)["input_ids"]
                texts = search(adapter, ids, settings, torch.float32)
                if texts != search(adapter, ids, settings, torch.float64):
                    print("a near tie decides:", adapter, prompt, settings)
                    continue
                cases.append({"adapter": adapter, "prompt": prompt, **settings, "beams": texts})
    lines = ",\n".join(json.dumps(case) for case in cases)
    (ROOT / "tests/reference/adapter_beams.json").write_text(
        f'{{"peft": "{peft.__version__}", "transformers": "{transformers.__version__}", "cases": [\n{lines}]}}\n')


main()
