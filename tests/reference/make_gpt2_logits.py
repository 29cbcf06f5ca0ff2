#!/usr/bin/env python3
"""Compares the engine with Hugging Face transformers at the real size of GPT-2: 124M parameters.

The weights are random, from a seed, so nothing is downloaded; they are larger than those of a fresh model, so that
every part influences the logits. For each layout of the file (with and without the prefix, float32, float16, bfloat16)
and each length, it prints the largest difference from the logits of transformers. These are computed in float32 from
the same stored weights. Not part of the test suite: needs torch, transformers, safetensors and numpy, 2 GB of memory
and a minute or two.

    python tests/reference/make_gpt2_logits.py build/tests/print-logits [--folder DIR]
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

LENGTHS = [1, 17, 512, 1024]
POSITIONS = 16  # the compared logits are those after each of this many last tokens
TOLERANCE = 1e-3


def make_model() -> GPT2LMHeadModel:
    torch.manual_seed(124)
    model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager")).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".ln_" in name and name.endswith("weight"):
                parameter.normal_(1.0, 0.2)
            else:
                parameter.normal_(0.0, 0.2 if name.endswith("bias") else 0.05)
    return model


def write_folder(folder: pathlib.Path, model: GPT2LMHeadModel, dtype: torch.dtype, prefix: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        prefix + name: value.to(dtype).contiguous() for name, value in model.transformer.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(model.config.to_dict()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program", help="the built print-logits")
    parser.add_argument("--folder", help="where to put the model (default: a temporary folder)")
    options = parser.parse_args()

    model = make_model()
    original = {name: value.clone() for name, value in model.state_dict().items()}
    generator = numpy.random.default_rng(124)
    worst = 0.0
    with tempfile.TemporaryDirectory(prefix="staircase-") as temporary:
        folder = pathlib.Path(options.folder or temporary)
        for dtype, prefix in [
            (torch.float32, ""),
            (torch.float32, "transformer."),
            (torch.float16, "transformer."),
            (torch.bfloat16, ""),
        ]:
            model.load_state_dict({name: value.to(dtype).float() for name, value in original.items()})
            write_folder(folder, model, dtype, prefix)
            for length in LENGTHS:
                tokens = generator.integers(0, model.config.vocab_size, length).tolist()
                count = min(POSITIONS, length)
                with torch.no_grad():
                    want = model(torch.tensor([tokens]), logits_to_keep=count).logits[0].numpy()
                result = subprocess.run(
                    [options.program, folder, str(count)],
                    input=" ".join(map(str, tokens)).encode(),
                    stdout=subprocess.PIPE,
                    check=True,
                )
                got = numpy.frombuffer(result.stdout, numpy.float32).reshape(want.shape)
                difference = float(numpy.abs(got - want).max())
                worst = max(worst, difference)
                same = int((got.argmax(1) == want.argmax(1)).sum())
                print(
                    f"{str(dtype)[6:]:8} prefix {prefix or 'none':12} length {length:4}: largest difference "
                    f"{difference:.2e} of logits up to {numpy.abs(want).max():.1f}, "
                    f"argmax equal at {same} of {count}",
                    flush=True,
                )
    print(f"largest difference of all: {worst:.2e} (tolerance {TOLERANCE})")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
