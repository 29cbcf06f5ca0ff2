#!/usr/bin/env python3
"""Writes bfloat16.json: how far bfloat16 moves the logits of tales-6m, by Hugging Face transformers.

The tokens are those of greedy.json, prompt and continuation. Not part of the test suite: needs torch and transformers.

    python tests/reference/make_bfloat16.py
"""

import json
import pathlib

import torch
from transformers import GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

HERE = pathlib.Path(__file__).resolve().parent


def load(dtype=torch.float32):
    folder = HERE.parent.parent / "models" / "tales-6m"
    return GPT2LMHeadModel.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


def rounded(x):
    return x.bfloat16().float()


def with_rounded_weights(round_inputs):
    """The matrices that products multiply by, in bfloat16; on request what they multiply as well. Sums in float32."""
    model = load()
    for module in model.modules():
        if isinstance(module, (Conv1D, torch.nn.Linear)):  # the output layer's matrix is the token embedding
            module.weight.data = rounded(module.weight.data)
            if round_inputs:
                module.register_forward_pre_hook(lambda _, inputs: (rounded(inputs[0]),))
    return model


def main():
    exact = load()
    models = {"weights": with_rounded_weights(False), "operands": with_rounded_weights(True),
              "everything": load(torch.bfloat16)}
    cases = []
    for run in json.loads((HERE / "greedy.json").read_text())["cases"]:
        tokens = run["prompt_ids"] + run["ids"]
        logits = {}
        with torch.inference_mode():
            for name, model in {"exact": exact, **models}.items():
                logits[name] = model(torch.tensor([tokens])).logits[0, -1].float()
        case = {"name": run["name"], "tokens": tokens}
        for name in models:
            moved = (logits[name] - logits["exact"]).abs()
            case[name] = {"max_abs_diff": float(f"{moved.max():.4g}"), "mean_abs_diff": float(f"{moved.mean():.4g}")}
        cases.append(case)
        print(case["name"], {name: case[name] for name in models})
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (HERE / "bfloat16.json").write_text(f'{{"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
