"""One run of CTranslate2 for tools/bench --peers: float32, greedy; and the conversion of a model for it."""

import argparse
import json
import time
from pathlib import Path

import ctranslate2


def convert(source, target):
    converter = ctranslate2.converters.TransformersConverter(source)
    converter.convert(target, quantization="float32", force=True)


def measure(arguments):
    prompts = json.loads(Path(arguments.prompts).read_text(encoding="utf-8"))
    words = json.loads(Path(arguments.model, "vocabulary.json").read_text(encoding="utf-8"))
    generator = ctranslate2.Generator(arguments.model, device="cpu", compute_type="float32", inter_threads=1,
                                      intra_threads=arguments.threads)

    def generate(tokens, count):
        times = []

        def note(_):
            times.append(time.perf_counter())
            return False

        start = time.perf_counter()
        # min_length: nothing ends the text early
        out = generator.generate_batch([[words[token] for token in tokens]], beam_size=1, sampling_topk=1,
                                       min_length=count, max_length=count, include_prompt_in_result=False,
                                       callback=note)
        generated = out[0].sequences_ids[0]
        if len(generated) != count or len(times) != count:
            raise SystemExit(f"{len(generated)} tokens and {len(times)} steps where {count} were asked for")
        return generated, times[0] - start, times[-1] - times[0]

    count = arguments.new_tokens
    generate(prompts["decode"], 8)
    tokens, _, seconds = generate(prompts["decode"], count)
    prefill_runs = [generate(prompts["prefill"], 1) for _ in range(4)][1:]  # the first warms up
    result = {
        "version": f"CTranslate2 {ctranslate2.__version__}",
        "prefill_ms": [1e3 * run[1] for run in prefill_runs],
        "prefill_token": prefill_runs[0][0][0],
        "decode_tokens_per_s": (count - 1) / seconds,
        "token_ids": tokens,
    }
    Path(arguments.json).write_text(json.dumps(result), encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--convert", nargs=2, metavar=("MODEL", "FOLDER"))
    parser.add_argument("--model")
    parser.add_argument("--prompts")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    if arguments.convert:
        convert(*arguments.convert)
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
