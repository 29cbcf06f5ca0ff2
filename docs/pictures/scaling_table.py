"""The tables of scaling.md, by the formulas of that page. `python3 docs/pictures/scaling_table.py` prints them."""

from math import ceil
from typing import NamedTuple


class Shape(NamedTuple):
    layers: int
    width: int
    vocabulary: int
    parameters: float


SHAPES = {
    "GPT-2 124M": Shape(12, 768, 50257, 124.4e6),
    "Llama 3.2 1B": Shape(16, 2048, 128256, 1.236e9),
    "Llama 3.1 8B": Shape(32, 4096, 128256, 8.030e9),
    "Llama 3.1 70B": Shape(80, 8192, 128256, 70.554e9),
}
TALES_LLAMA = Shape(4, 128, 4096, 1.3e6)  # with which the formula is tried

# Bytes per second, the seconds that a call takes before its first byte, and what reads the weights there.
LINKS = {"10 Gbit/s": (1.25e9, 50e-6), "100 Gbit/s": (12.5e9, 10e-6), "NVLink": (450e9, 10e-6)}
MEMORY = {"a server's memory": 60e9, "an H100's": 3.35e12}
FLOAT = 4  # what ranks exchange is float32


def tensor_parallel(shape, ranks, tokens=1):
    """Bytes that a rank receives in a pass of one sequence: two sums per block, one of the embedding, and the logits.
    The last block goes on with the last token alone."""
    sums = shape.width * ((2 * shape.layers - 1) * tokens + 2)
    return FLOAT * (ranks - 1) * (sums + ceil(shape.vocabulary / ranks) + 1)


def tensor_calls(shape):
    return 2 * shape.layers + 2


def pipeline(shape, tokens=1):
    """Bytes that a rank receives from the one before it, without the logits."""
    return FLOAT * shape.width * tokens


def logits(shape):
    return FLOAT * shape.vocabulary


def kilobytes(count):
    return f"{count / 1e3:,.0f}"


def bytes_per_token():
    for name, shape in SHAPES.items():
        yield "| " + " | ".join([name, *(kilobytes(tensor_parallel(shape, ranks)) for ranks in (2, 4, 8)),
                                 kilobytes(pipeline(shape)), kilobytes(logits(shape)), "0"]) + " |"


def milliseconds(seconds):
    return f"{1e3 * seconds:.2f}" if seconds < 0.1 else f"{1e3 * seconds:,.0f}"


def seconds_per_token():
    for name, shape in SHAPES.items():
        tensor = [tensor_parallel(shape, 2) / rate + tensor_calls(shape) * start for rate, start in LINKS.values()]
        stages = [(pipeline(shape) + logits(shape)) / rate + 2 * start for rate, start in LINKS.values()]
        reading = [2 * shape.parameters / rate for rate in MEMORY.values()]
        yield "| " + " | ".join([name, *map(milliseconds, tensor + stages + reading)]) + " |"


def tables():
    return {"bytes": list(bytes_per_token()), "seconds": list(seconds_per_token())}


if __name__ == "__main__":
    for rows in tables().values():
        print("\n".join(rows), end="\n\n")
