"""The worked examples of todays-models.md, as the tables of the page: what each new part makes of real numbers.

`python3 docs/pictures/todays_example.py` prints them; tests/docs looks that the page has every one of them."""

import json
import math

from example import numbers, table
from tales import FOLDER, add, dot, read

SPEEDS = (0, 4, 8, 15)  # the pairs that the page follows
POSITION = 3


def project(matrix, x):
    """y of [out, in] and [in]."""
    return [dot(row, x) for row in matrix]


def rms(x, epsilon=1e-5):
    return math.sqrt(dot(x, x) / len(x) + epsilon)


def rms_norm(x, gain, epsilon=1e-5):
    return [f / rms(x, epsilon) * g for f, g in zip(x, gain)]


def layer_norm(x, gain=None, bias=None, epsilon=1e-5):
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((f - mean) ** 2 for f in x) / len(x) + epsilon)
    return [(f - mean) / deviation * g + b for f, g, b in zip(x, gain or [1] * len(x), bias or [0] * len(x))]


class Weights:
    """Of one of the small models: its tensors by name, without the family's prefix."""

    def __init__(self, name):
        folder = FOLDER.parent / name
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.token_id = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        self.tensors = {key.removeprefix("model.").removeprefix("gpt_neox."): rows for key, rows in read(folder / "model.safetensors")}

    def __getitem__(self, name):
        return self.tensors[f"{name}.weight"]

    def bias(self, name):
        return self.tensors[f"{name}.bias"]


def rotation():
    """The key of " wolf" in head 0 of the first block, at position 3: four of its 16 pairs, before and after."""
    weights = Weights("tales-neox-1m")
    x = weights["embed_in"][weights.token_id["Ġwolf"]]
    block = "layers.0."
    normed = layer_norm(x, weights[block + "input_layernorm"], weights.bias(block + "input_layernorm"))
    key = [f + b for f, b in zip(project(weights[block + "attention.query_key_value"][32:64], normed),
                                 weights.bias(block + "attention.query_key_value")[32:64])]  # queries of the head come first
    rows = [["pair", "features", "radians per position", "angle at position 3", "before", "after"]]
    for pair in SPEEDS:
        speed = 10000 ** (-2 * pair / 32)
        a, b = key[pair], key[pair + 16]
        cosine, sine = math.cos(POSITION * speed), math.sin(POSITION * speed)
        before, after = (", ".join(numbers(both, ".2f")) for both in ((a, b), (a * cosine - b * sine, a * sine + b * cosine)))
        rows.append([str(pair), f"{pair} and {pair + 16}", f"{speed:.4f}", f"{POSITION * speed:.4f}", f"({before})", f"({after})"])
    return table(*rows)


def gate():
    """The first block's MLP for a text that is " wolf" alone: four of its 352 places."""
    weights = Weights("tales-olmo-1m")
    x = weights["embed_tokens"][weights.token_id["Ġwolf"]]
    value = project(weights["layers.0.self_attn.v_proj"], layer_norm(x))
    normed = layer_norm(add([x], [project(weights["layers.0.self_attn.o_proj"], value)])[0])
    gates, ups = (project(weights[f"layers.0.mlp.{part}_proj"], normed) for part in ("gate", "up"))
    passed = [g / (1 + math.exp(-g)) for g in gates]
    places = sorted(sorted(range(len(ups)), key=lambda i: -abs(ups[i]))[:4])
    return table(["feature", *map(str, places)], ["up", *numbers([ups[i] for i in places], ".2f")],
                 ["gate", *numbers([gates[i] for i in places], ".2f")], ["silu(gate)", *numbers([passed[i] for i in places], ".2f")],
                 ["up · silu(gate)", *numbers([ups[i] * passed[i] for i in places], ".2f")])


def norms():
    """The row of " wolf" in the token table of tales-llama-1m, by both norms without gains."""
    weights = Weights("tales-llama-1m")
    x = weights["embed_tokens"][weights.token_id["Ġwolf"]]
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((f - mean) ** 2 for f in x) / len(x))
    return (f"{mean:.4f}".replace("-", "−"), f"{deviation:.4f}", f"{rms(x, 0):.4f}",
            table(["", "0", "1", "2", "3"], ["x", *numbers(x[:4])], ["layer norm", *numbers(layer_norm(x)[:4])],
                  ["RMSNorm", *numbers(rms_norm(x, [1] * len(x))[:4])]))


def parts():
    return {"rotation": rotation(), "gate": gate(), "norms": norms()[3]}


if __name__ == "__main__":
    print("\n\n".join(parts().values()))
    print(norms()[:3])
