#!/usr/bin/env python3
"""Writes quantized/*.gguf and quantized.json: files of llama.cpp's quantizer, and the logits of the weights in them.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install llama-cpp-python==0.3.36 gguf numpy
    /tmp/venv/bin/python tests/reference/make_quantized.py

The model is a Llama of random weights. Its width of 256 suits blocks of 256 weights, and its MLP of 32 does not: there
the quantizer takes another type. `types` lists the type of each tensor. The logits are llama.cpp's, in float32 from the
weights as gguf-py dequantizes them: from the quantized file itself llama.cpp rounds what the weights are multiplied by.
"""
import ctypes
import json
import tempfile
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

HERE = Path(__file__).resolve().parent
VOCABULARY, CONTEXT, WIDTH, INNER, HEADS, KV_HEADS, HEAD_SIZE, LAYERS = 32, 64, 256, 32, 2, 1, 16, 1
TYPES = {"q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M, "q5_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q5_K_M}
SILENCE = llama_cpp.llama_log_callback(lambda level, text, data: None)
TOKENS = [7, 19, 3, 30, 11, 25, 0, 19, 14, 8, 2, 28, 21, 5, 17, 10, 31, 1, 23, 13]


def writer_of(path):
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_rope_dimension_count(HEAD_SIZE)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("none")
    writer.add_eos_token_id(VOCABULARY - 1)
    return writer


def write(path, tensors):
    writer = writer_of(path)
    for name, values in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_tensors():
    random = np.random.default_rng(43)
    shapes = {"token_embd": (VOCABULARY, WIDTH)}
    for layer in range(LAYERS):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in {
            "attn_q": (HEADS * HEAD_SIZE, WIDTH), "attn_k": (KV_HEADS * HEAD_SIZE, WIDTH),
            "attn_v": (KV_HEADS * HEAD_SIZE, WIDTH), "attn_output": (WIDTH, HEADS * HEAD_SIZE),
            "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}.items()}
    tensors = {f"{name}.weight": random.standard_normal(shape) * 3 / shape[1]**0.5 for name, shape in shapes.items()}
    norms = ["output_norm", *(f"blk.{layer}.{name}" for layer in range(LAYERS) for name in ("attn_norm", "ffn_norm"))]
    return tensors | {f"{name}.weight": 1 + random.standard_normal(WIDTH) / 4 for name in norms}


def quantize(source, target, file_type):
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = file_type, 1
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(options)):
        raise SystemExit(f"{source} was not quantized")


def logits_of(path):
    """After the last of TOKENS, in float32."""
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
    options = llama_cpp.llama_context_default_params()
    options.n_ctx, options.n_threads, options.n_threads_batch = CONTEXT, 1, 1
    options.type_k = options.type_v = 0  # float32
    options.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama_cpp.llama_init_from_model(model, options)
    tokens = (llama_cpp.llama_token * len(TOKENS))(*TOKENS)
    if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(tokens, len(TOKENS))):
        raise SystemExit(f"{path} was not computed")
    logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, -1), (VOCABULARY,)).copy()
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return [float(f"{logit:.7g}") for logit in logits]


def main():
    llama_cpp.llama_log_set(SILENCE, None)
    llama_cpp.llama_backend_init()
    (HERE / "quantized").mkdir(exist_ok=True)
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "plain.gguf"
        write(plain, random_tensors())
        for name, file_type in TYPES.items():
            target = HERE / "quantized" / f"{name}.gguf"
            quantize(plain, target, file_type)
            tensors = gguf.GGUFReader(target).tensors
            wide = Path(folder) / f"{name}.gguf"
            write(wide, {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1]) for t in tensors})
            files[name] = {"types": {t.name: t.tensor_type.name for t in tensors if len(t.shape) > 1},
                           "logits": logits_of(wide)}
    (HERE / "quantized.json").write_text(json.dumps({"tokens": TOKENS, "files": files}, indent=1) + "\n")


main()
