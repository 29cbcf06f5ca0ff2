"""Measures one greedy run of CTranslate2 for tools/bench --peers, and converts a model for it."""

import argparse
import json
import time
from pathlib import Path

import ctranslate2

from peer_runs import measured


def convert(source, target):
    converter = ctranslate2.converters.TransformersConverter(source)
    converter.convert(target, quantization="float32", force=True)


def measure(arguments):
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    prompts = json.loads(Path(arguments.prompts).read_text(encoding="utf-8"))
    words = json.loads(Path(arguments.model, "vocabulary.json").read_text(encoding="utf-8"))
    # The stored weights are float32 and converted while loading; an unsupported type must be an error, not a fallback.
    if arguments.compute_type not in ctranslate2.get_supported_compute_types("cpu"):
        raise SystemExit(f"CTranslate2 does not compute in {arguments.compute_type} on this processor")
    generator = ctranslate2.Generator(arguments.model, device="cpu", compute_type=arguments.compute_type,
                                      inter_threads=1, intra_threads=arguments.threads)

    def generate(rows, count):
        """Returns the new tokens of the first row, the seconds to the end of the first step, and from there to the
        last."""
        times = {}

        def note(result):
            times[result.step] = clock()  # the last row's call counts
            return False

        start = clock()
        # min_length keeps the text from ending early
        out = generator.generate_batch([[words[token] for token in tokens] for tokens in rows], beam_size=1,
                                       sampling_topk=1, min_length=count, max_length=count,
                                       include_prompt_in_result=False, max_batch_size=0, callback=note)
        if any(len(row.sequences_ids[0]) != count for row in out) or len(times) != count:
            raise SystemExit(f"{len(times)} steps instead of {count}")
        steps = sorted(times.values())
        return out[0].sequences_ids[0], steps[0] - start, steps[-1] - steps[0]

    result = {"version": f"CTranslate2 {ctranslate2.__version__}", **measured(generate, prompts, arguments.new_tokens)}
    Path(arguments.json).write_text(json.dumps(result), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--convert", nargs=2, metavar=("MODEL", "FOLDER"))
    parser.add_argument("--model")
    parser.add_argument("--compute-type", default="float32")
    parser.add_argument("--prompts")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="measure processor time instead of wall-clock time")
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.convert:
        convert(*arguments.convert)
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
