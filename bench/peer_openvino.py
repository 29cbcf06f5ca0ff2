"""Measures one greedy run of OpenVINO for tools/bench --peers, and converts a model for it.

It runs a text as OpenVINO's own GenAI library does: with a stateful model that keeps keys and values inside, and an
output layer that computes only the last token.
"""

import argparse
import json
import time
from pathlib import Path

import numpy
import openvino
from openvino import opset13

from peer_runs import measured

FILE = "openvino_model.xml"
INT8 = "int8"
CACHE_TYPES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "u8", "int4": "u4"}


def keep_last_token(model):
    """Drops the rows of all other tokens before the last product, the output layer."""
    logits = next(result for result in model.get_results() if "logits" in result.input_value(0).get_names())
    product = logits.input_value(0).get_node()
    while product.get_type_name() != "MatMul":
        product = product.input_value(0).get_node()
    last, past_end, forward, axis = (numpy.array([n], dtype=numpy.int64) for n in (-1, 2**62, 1, 1))
    rows = opset13.slice(product.input_value(0), last, past_end, forward, axis)
    product.input(0).replace_source_output(rows.output(0))
    model.validate_nodes_and_infer_types()


def convert(source, target, weights):
    from optimum.intel import OVModelForCausalLM, OVWeightQuantizationConfig  # slow to import
    choice = ({"quantization_config": OVWeightQuantizationConfig(bits=8)} if weights == INT8 else {"load_in_8bit": False})
    exported = Path(target, "exported")
    OVModelForCausalLM.from_pretrained(source, export=True, compile=False, **choice).save_pretrained(exported)
    model = openvino.Core().read_model(exported / FILE)
    keep_last_token(model)
    openvino.save_model(model, Path(target, FILE), compress_to_fp16=False)


def compiled(arguments):
    kept = CACHE_TYPES[arguments.cache_dtype or ("float32" if arguments.dtype == "float32" else "bfloat16")]
    settings = {"INFERENCE_NUM_THREADS": arguments.threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "bf16" if arguments.dtype == "bfloat16" else "f32",
                "KV_CACHE_PRECISION": kept}
    if arguments.dtype == INT8:
        settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 32
    core = openvino.Core()
    return core.compile_model(core.read_model(Path(arguments.model, FILE)), "CPU", settings)


class Texts:
    """Decodes rows of tokens together."""

    def __init__(self, model):
        self.request = model.create_infer_request()
        self.inputs = {name for part in model.inputs for name in part.names}

    def begin(self):
        self.request.reset_state()
        self.length = 0

    def next_tokens(self, tokens):
        """Returns the most likely token after each row of `tokens`, which is [rows, new tokens]."""
        rows, count = tokens.shape
        positions = numpy.arange(self.length, self.length + count, dtype=numpy.int64)
        self.length += count
        offered = {"input_ids": tokens, "attention_mask": numpy.ones((rows, self.length), numpy.int64),
                   "position_ids": numpy.tile(positions, (rows, 1)), "beam_idx": numpy.arange(rows, dtype=numpy.int32)}
        wanted = {name: value for name, value in offered.items() if name in self.inputs}
        logits = self.request.infer(wanted, share_inputs=True, share_outputs=True)["logits"]
        return logits[:, -1].argmax(-1).astype(numpy.int64)


def measure(arguments):
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    prompts = json.loads(Path(arguments.prompts).read_text(encoding="utf-8"))
    model = compiled(arguments)
    texts = Texts(model)

    def generate(rows, count):
        """Returns the new tokens of the first row, the seconds to the end of the first step, and from there to the
        last."""
        texts.begin()
        start = clock()
        steps = [texts.next_tokens(numpy.array(rows, dtype=numpy.int64))]
        first = clock()
        while len(steps) < count:
            steps.append(texts.next_tokens(steps[-1][:, None]))
        return [int(step[0]) for step in steps], first - start, clock() - first

    result = {"version": f"OpenVINO {openvino.get_version().split('-')[0]}", **measured(generate, prompts, arguments.new_tokens)}
    Path(arguments.json).write_text(json.dumps(result), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--convert", nargs=2, metavar=("MODEL", "FOLDER"))
    parser.add_argument("--model")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", INT8], default="float32")
    parser.add_argument("--cache-dtype", choices=CACHE_TYPES, help="by default, 16 bits or that of the weights")
    parser.add_argument("--prompts")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="measure processor time instead of wall-clock time")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.convert:
        convert(*arguments.convert, arguments.dtype)
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
