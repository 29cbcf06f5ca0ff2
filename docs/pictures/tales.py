"""tales-6m in plain Python, for the numbers of the docs: the weights of the file, and the forward pass of a few tokens.

Slow and short on purpose: lists of floats, one loop for one formula. The engine's way is common/model/gpt2.cpp."""

import json
import math
import struct
from operator import mul
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "models/tales-6m"


class Model:
    """The weights by name, each a list of rows (a vector is a list of numbers), and the way through them."""

    def __init__(self, folder=FOLDER):
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        self.token_id = {token.replace("Ġ", " "): index for token, index in vocabulary.items()}
        self.token = {index: token for token, index in self.token_id.items()}
        self.weights = dict(read(folder / "model.safetensors"))

    def weight(self, name):
        return self.weights.get(name) or self.weights[f"transformer.{name}"]

    def norm(self, name, rows):
        """Layer norm of each row."""
        scale, shift = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        found = []
        for row in rows:
            mean = sum(row) / len(row)
            variance = sum((x - mean) ** 2 for x in row) / len(row)
            found.append([(x - mean) / math.sqrt(variance + self.config["layer_norm_epsilon"]) * g + b
                          for x, g, b in zip(row, scale, shift)])
        return found

    def linear(self, name, rows):
        """x W + b for each row x; W is [in, out]."""
        columns = list(zip(*self.weight(f"{name}.weight")))
        return [[dot(row, column) + b for column, b in zip(columns, self.weight(f"{name}.bias"))] for row in rows]

    def heads(self, block, x):
        """Of each head: (queries, keys, values, scores, weights, results), each a list with a row for each token."""
        width, n_head = self.config["n_embd"], self.config["n_head"]
        size = width // n_head
        qkv = self.linear(f"h.{block}.attn.c_attn", self.norm(f"h.{block}.ln_1", x))
        found = []
        for head in range(n_head):
            q, k, v = ([row[part * width + head * size:part * width + (head + 1) * size] for row in qkv]
                       for part in range(3))
            scores = [[dot(q[i], k[j]) / math.sqrt(size) for j in range(i + 1)] for i in range(len(x))]
            weights = [softmax(row) for row in scores]
            results = [[sum(w * v[j][f] for j, w in enumerate(row)) for f in range(size)] for row in weights]
            found.append((q, k, v, scores, weights, results))
        return found

    def embed(self, tokens):
        return [[t + p for t, p in zip(self.weight("wte.weight")[token], self.weight("wpe.weight")[position])]
                for position, token in enumerate(tokens)]

    def block(self, index, x):
        heads = self.heads(index, x)
        joined = [[f for head in heads for f in head[5][i]] for i in range(len(x))]
        x = add(x, self.linear(f"h.{index}.attn.c_proj", joined))
        hidden = self.linear(f"h.{index}.mlp.c_fc", self.norm(f"h.{index}.ln_2", x))
        return add(x, self.linear(f"h.{index}.mlp.c_proj", [[gelu(f) for f in row] for row in hidden]))

    def forward(self, tokens):
        """(the residual stream after the embedding and after each block, the logits after the last token)."""
        stream = [self.embed(tokens)]
        for index in range(self.config["n_layer"]):
            stream.append(self.block(index, stream[-1]))
        last = self.norm("ln_f", stream[-1][-1:])[0]
        return stream, [dot(last, row) for row in self.weight("wte.weight")]


def read(file):
    """(name, rows) of each tensor of a safetensors file in float16, bfloat16 or float32."""
    content = file.read_bytes()
    length = struct.unpack_from("<Q", content)[0]
    for name, tensor in json.loads(content[8:8 + length]).items():
        if name == "__metadata__":
            continue
        first, last = (8 + length + offset for offset in tensor["data_offsets"])
        letter, size = {"F16": ("e", 2), "BF16": ("H", 2), "F32": ("f", 4)}[tensor["dtype"]]
        numbers = struct.unpack(f"<{(last - first) // size}{letter}", content[first:last])
        if tensor["dtype"] == "BF16":  # the upper half of a float32
            numbers = struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}I", *(n << 16 for n in numbers)))
        *rows, columns = tensor["shape"]
        yield name, [numbers[i:i + columns] for i in range(0, len(numbers), columns)] if rows else numbers


def dot(a, b):
    return sum(map(mul, a, b))


def add(a, b):
    return [[x + y for x, y in zip(*rows)] for rows in zip(a, b)]


def softmax(values):
    largest = max(values)
    powers = [math.exp(x - largest) for x in values]
    return [power / sum(powers) for power in powers]


def gelu(x):
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))
