#!/usr/bin/env python3
"""Makes the adapters of tests/reference/adapters, and what transformers with PEFT computes with them.

Each belongs to the model of its name in tests/reference/families. Their matrices are random, from a seed, and large
enough that each changes the logits. Together they use each setting that the engine obeys. Needs torch, transformers and
peft.

    python tests/reference/make_adapters.py
"""

import json
import pathlib

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).parent
OUT = HERE / "adapters"
QKVO = ["q_proj", "k_proj", "v_proj", "o_proj"]
SETTINGS = {
    "gpt2": ({"r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
             torch.float32),
    "pythia": ({"r": 3, "lora_alpha": 5, "use_rslora": True,
                "target_modules": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]}, torch.bfloat16),
    "neox-sequential": ({"r": 2, "lora_alpha": 4, "target_modules": "all-linear"}, torch.float16),
    "olmo": ({"r": 2, "target_modules": r".*\.(q|v)_proj|model\.layers\.[02]\.mlp\.(gate|down)_proj"},
             torch.float16),
    "llama-3": ({"r": 3, "lora_alpha": 6, "target_modules": "all-linear",
                 "rank_pattern": {"layers.1.self_attn.q_proj": 7, "down_proj": 1},
                 "alpha_pattern": {"k_proj": 5, r"^model\.layers\.0\.mlp\.(up|gate)_proj": 3}}, torch.float32),
    "smollm2": ({"r": 2, "target_modules": ["model.layers.1.mlp.up_proj", "k_proj"]}, torch.float32),
    "mistral-window": ({"r": 2, "target_modules": QKVO, "layers_to_transform": [0, 2], "layers_pattern": "layers"},
                       torch.float32),
    "qwen2": ({"r": 2, "lora_alpha": 3, "target_modules": QKVO + ["gate_proj", "up_proj", "down_proj"],
               "exclude_modules": ["v_proj"]}, torch.float32),
    "qwen3": ({"r": 1, "target_modules": QKVO + ["up_proj"], "layers_to_transform": 1}, torch.float32),
    "gemma3": ({"r": 2, "target_modules": "all-linear"}, torch.float16),
    "qwen3-moe": ({"r": 2, "target_modules": QKVO}, torch.float16),
}


def logits(model, ids):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].float()


def make(family, settings, dtype):
    reference = json.loads((HERE / "families" / family / "reference.json").read_text())
    base = transformers.AutoModelForCausalLM.from_pretrained(
        HERE / "families" / family, dtype=torch.float32, attn_implementation="eager").eval()
    plain = [logits(base, case["ids"]) for case in reference["cases"]]
    torch.manual_seed(len(family))
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **settings))
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, 0.0, 0.25)
            parameter.data = parameter.data.to(dtype).float()
    model.peft_config["default"].base_model_name_or_path = family
    model.eval()
    model.save_pretrained(OUT / family)
    (OUT / family / "README.md").unlink()
    file = OUT / family / "adapter_model.safetensors"
    save_file({name: value.to(dtype) for name, value in load_file(file).items()}, file)
    cases = []
    for case, before in zip(reference["cases"], plain):
        after = logits(model, case["ids"])
        cases.append({"ids": case["ids"], "places": case["places"],
                      "logits": [round(after[place].item(), 6) for place in case["places"]],
                      "log_sum_exp": round(after.logsumexp(0).item(), 6)})
        print(family, "changes a logit by", (after - before).abs().max().item())
    lines = {"peft": peft.__version__, "transformers": transformers.__version__, "cases": cases}
    (OUT / family / "reference.json").write_text(json.dumps(lines) + "\n")


for name, (chosen, stored) in SETTINGS.items():
    make(name, chosen, stored)
