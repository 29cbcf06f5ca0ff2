#!/usr/bin/env python3
"""Writes gguf.gguf and gguf.safetensors: blocks of every type that GGUF files may hold, and what gguf-py makes of them.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install gguf numpy safetensors
    /tmp/venv/bin/python tests/reference/make_gguf.py [REFERENCE]

gguf.gguf has two tensors for each type. One has random bytes, and scales that are finite numbers of all sizes. The
other has extremes: every byte 0, 255, 127 and 128, with scales of 0, -0, the largest, the smallest and the least
subnormal float16. There the fields of few bits are also set one by one while all others are 0. gguf.safetensors holds
the float32 numbers of both.

REFERENCE holds families/NAME, small models as transformers saves them, and gguf/NAME-f32.gguf.gz, the same as
llama.cpp's converter writes them. For each, gguf-families/NAME.gguf keeps the metadata (smollm2 with the lists of the
tokenizer), the first block, the norms, and eight rows of the MLP and of the vocabulary's matrices. gguf-families.json
holds config.json and a hash (FNV-1a, 64 bits) of the float32 numbers of these tensors in Hugging Face's order and
names.
"""

import gzip
import json
import struct
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent
# The places of float16 scales in a block.
SCALES = {Type.Q8_0: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.IQ4_NL: [0],
          Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}
PLAIN = {Type.F32: 4, Type.F16: 2, Type.BF16: 2}
EXTREMES = np.array([0.0, -0.0, 65504.0, -65504.0, 2.0**-14, 2.0**-24, -(2.0**-24), 1.0, -1.0], np.float16)


def with_scales(blocks, places, scales):
    """`blocks` [n, bytes] with scales [n, len(places)] in their places."""
    for number, place in enumerate(places):
        blocks[:, place:place + 2] = scales[:, number:number + 1].astype(np.float16).view(np.uint8)
    return blocks


def random_blocks(random, quantization, rows, blocks_per_row):
    _, size = gguf.GGML_QUANT_SIZES[quantization]
    n = rows * blocks_per_row
    blocks = random.integers(0, 256, (n, size), np.uint8)
    places = SCALES[quantization]
    scales = random.standard_normal((n, len(places))) * 2.0 ** random.integers(-20, 12, (n, len(places)))
    return with_scales(blocks, places, np.clip(scales, -65504, 65504)).reshape(rows, -1)


def extreme_blocks(quantization):
    _, size = gguf.GGML_QUANT_SIZES[quantization]
    places = SCALES[quantization]
    blocks, scales = [], []
    for byte in (0, 255, 127, 128, 15, 240):
        for first in EXTREMES:
            blocks.append(np.full(size, byte, np.uint8))
            scales.append([first, EXTREMES[len(blocks) % len(EXTREMES)]][:len(places)])
    fields = range(size) if size < 100 else [*range(24), *range(24, 192, 13), *range(190, size)]
    for place in fields:  # each byte alone; where blocks are large, most bytes of the header and some of the others
        if place >= size:
            break
        block = np.zeros(size, np.uint8)
        block[place] = 0b10110111
        blocks.append(block)
        scales.append([1.0, 2.0][:len(places)])
    blocks = blocks[:len(blocks) // 3 * 3]  # three a row
    scales = scales[:len(blocks)]
    return with_scales(np.array(blocks), places, np.array(scales, np.float16)).reshape(len(blocks) // 3, -1)


def main():
    random = np.random.default_rng(41)
    writer = gguf.GGUFWriter(str(HERE / "gguf.gguf"), "none")
    expected = {}

    def add(name, data, quantization):
        writer.add_tensor(name, data, raw_dtype=quantization)
        expected[name] = np.ascontiguousarray(gguf.quants.dequantize(data, quantization).astype(np.float32))

    for quantization, size in PLAIN.items():
        numbers = random.integers(0, 256, (5, 33 * size), np.uint8).view({4: np.uint32, 2: np.uint16}[size])
        # all bits of the exponent set would be infinity or NaN
        numbers &= numbers.dtype.type({Type.F32: 0xFF7FFFFF, Type.F16: 0xFBFF, Type.BF16: 0xFF7F}[quantization])
        data = numbers.view({Type.F32: np.float32, Type.F16: np.float16, Type.BF16: np.uint8}[quantization])
        add(f"random.{quantization.name}", data, quantization)
    for quantization in SCALES:
        per_row = 3 if gguf.GGML_QUANT_SIZES[quantization][0] == 256 else 5
        add(f"random.{quantization.name}", random_blocks(random, quantization, 4, per_row), quantization)
        add(f"extremes.{quantization.name}", extreme_blocks(quantization), quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, HERE / "gguf.safetensors")


KEPT_ROWS = 8  # of an MLP's matrices and those of the vocabulary


def is_kept(name):
    """Whether a tensor of that name, Hugging Face's or GGUF's, is in the small file."""
    is_block = any(part in name for part in ("blk.", ".layers.", ".h."))
    return not is_block or any(part in name for part in ("blk.0.", ".layers.0.", ".h.0."))


def shortened(name, numbers, vocabulary):
    if ".mlp.c_" in name and name.endswith(".weight"):
        return numbers[:, :KEPT_ROWS]  # GPT-2's have the outputs second
    is_mlp = ".mlp." in name or "ffn" in name and "norm" not in name
    return numbers[:KEPT_ROWS] if is_mlp or numbers.shape[0] == vocabulary else numbers


def stored_tensors(folder):
    """name: float32 array, of all safetensors files in the folder."""
    for path in sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        for name, tensor in json.loads(content[8:8 + length]).items():
            if name == "__metadata__":
                continue
            begin, end = tensor["data_offsets"]
            data = content[8 + length + begin:8 + length + end]
            if tensor["dtype"] == "BF16":
                numbers = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                numbers = np.frombuffer(data, {"F32": np.float32, "F16": np.float16}[tensor["dtype"]]).astype(np.float32)
            yield name, numbers.reshape(tensor["shape"])


def fnv(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"


def write_small(source, target, with_lists):
    reader = gguf.GGUFReader(source)
    fields = reader.fields
    writer = gguf.GGUFWriter(str(target), fields["general.architecture"].contents())
    for name, field in fields.items():
        is_list = field.types[0] == gguf.GGUFValueType.ARRAY
        if name.startswith("GGUF.") or name == "general.architecture" or is_list and not with_lists:
            continue
        writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if is_list else None)
    vocabulary = max(tensor.data.shape[0] for tensor in reader.tensors)
    for tensor in reader.tensors:
        if is_kept(tensor.name):
            writer.add_tensor(tensor.name, np.array(shortened(tensor.name, tensor.data, vocabulary)), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_families(reference):
    (HERE / "gguf-families").mkdir(exist_ok=True)
    models = {}
    for folder in sorted((reference / "families").iterdir()):
        with tempfile.NamedTemporaryFile(suffix=".gguf") as whole:
            whole.write(gzip.decompress((reference / "gguf" / f"{folder.name}-f32.gguf.gz").read_bytes()))
            whole.flush()
            write_small(whole.name, HERE / "gguf-families" / f"{folder.name}.gguf", folder.name == "smollm2")
        config = json.loads((folder / "config.json").read_text())
        tensors = {}
        for name, numbers in stored_tensors(folder):
            if is_kept(name):
                numbers = shortened(name, numbers, config["vocab_size"])
                tensors[name] = {"shape": numbers.shape, "hash": fnv(np.ascontiguousarray(numbers).tobytes())}
        models[folder.name] = {"config": config, "tensors": tensors}
    (HERE / "gguf-families.json").write_text(json.dumps(models, indent=1) + "\n")


if __name__ == "__main__":
    main()
    if len(sys.argv) > 1:
        write_families(Path(sys.argv[1]))
