#!/usr/bin/env python3
"""Makes tests/reference/draft_heads.json: what PyTorch computes with the draft heads of tales-6m.

Needs torch and transformers.

    python tests/reference/make_draft_heads.py
"""

import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parents[1] / "models"


def main():
    model = transformers.AutoModelForCausalLM.from_pretrained(MODELS / "tales-6m", dtype=torch.float32).eval()
    heads = load_file(MODELS / "draft-heads" / "medusa_lm_head.safetensors")
    draw = torch.Generator().manual_seed(1)
    cases = []
    for length in (1, 7, 40):
        tokens = torch.randint(4095, (length,), generator=draw)
        with torch.no_grad():
            h = model.transformer(tokens[None]).last_hidden_state[0, -1]
            found = []
            for k in range(3):
                x = heads[f"{k}.0.linear.weight"].float() @ h + heads[f"{k}.0.linear.bias"].float()
                logits = model.lm_head(h + torch.nn.functional.silu(x))
                places = torch.randint(4096, (5,), generator=draw)
                found.append({"argmax": logits.argmax().item(), "places": places.tolist(),
                              "logits": [float(f"{logit:.7g}") for logit in logits[places]]})
        cases.append({"tokens": tokens.tolist(), "heads": found})
    (HERE / "draft_heads.json").write_text(json.dumps({"cases": cases}, indent=1) + "\n")


if __name__ == "__main__":
    main()
