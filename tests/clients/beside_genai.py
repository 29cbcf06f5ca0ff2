#!/usr/bin/env python3
"""The same requests by our continuous batching and by that of OpenVINO GenAI, in turns.

  python3 -m venv genai && genai/bin/pip install openvino-genai
  tests/clients/beside_genai.py --genai genai --exported FOLDER --model DIR [--dtype bfloat16] [--streams 64]

FOLDER has the model for OpenVINO as optimum-intel exports it: tools/bench --peers leaves it in
build-bench/peers/NAME-OpenVINO/exported. All prompts are there from the beginning, and GenAI gets the tokens of ours.
Ours runs twice a turn: step 65 from a file, and step 68 as a server with a stream for each request. Times leave out
loading and a first request. Greedy texts in float32 should be equal up to a near-tie.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import load  # noqa: E402
from load import support  # noqa: E402


def in_genai(given):
    """In GenAI's own environment: reads prompts as tokens, prints seconds, processor time and new tokens."""
    import numpy
    import openvino
    import openvino_genai

    prompts = json.load(sys.stdin)
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = len(prompts)
    scheduler.max_num_batched_tokens = 4096
    scheduler.cache_size = given.cache
    scheduler.enable_prefix_caching = True  # as in ours
    properties = {"INFERENCE_NUM_THREADS": given.threads, "NUM_STREAMS": 1,
                  "INFERENCE_PRECISION_HINT": "bf16" if given.dtype == "bfloat16" else "f32",
                  "KV_CACHE_PRECISION": "bf16" if given.dtype == "bfloat16" else "f32"}
    pipeline = openvino_genai.ContinuousBatchingPipeline(given.exported, scheduler, "CPU", properties)

    def generate(rows, count):
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        tokens = [openvino.Tensor(numpy.array([row], dtype=numpy.int64)) for row in rows]
        return [list(result.m_generation_ids[0]) for result in pipeline.generate(tokens, [config] * len(rows))]

    generate([[1, 2, 3]], 4)
    start, used = time.monotonic(), time.process_time()
    texts = generate(prompts, given.tokens)
    print(json.dumps({"seconds": time.monotonic() - start, "processor": time.process_time() - used,
                      "token_ids": texts}))


def of_genai(given, prompts):
    command = [given.genai / "bin/python", __file__, "--inside", "--exported", given.exported, "--dtype", given.dtype,
               "--threads", given.threads, "--tokens", given.tokens, "--cache", given.cache]
    done = subprocess.run(list(map(str, command)), input=json.dumps(prompts), stdout=subprocess.PIPE, text=True,
                          check=True)
    return json.loads(done.stdout.splitlines()[-1])


def of_step(options, bodies):
    """What step 65 makes of the requests, and the processor time with that of loading."""
    lines = [json.dumps({"prompt": body["prompt"], "max_new_tokens": body["max_tokens"], "ignore_eos": True}) + "\n"
             for body in bodies]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([support.ALONE, *options, "--json", "--requests", "-"], input="".join(lines), text=True,
                          capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return json.loads(done.stdout), after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def same_beginning(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--genai", type=Path, help="virtual environment with openvino-genai")
    parser.add_argument("--exported", type=Path, required=True)
    parser.add_argument("--model", default="")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--cache", type=int, default=4, help="GiB for GenAI's cache")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.inside:
        return in_genai(given)
    if not given.genai or not given.model:
        parser.error("--genai and --model are needed")
    bodies = load.requests(given.streams, given.tokens)
    options = ["--dtype", given.dtype, "--threads", str(given.threads), "--max-batch-size", str(given.streams)]
    alone = ["--model", given.model, "--device", "cpu", *options]
    tokens, rows = given.streams * given.tokens, []
    loading = of_step(alone, load.requests(1, 1))[1]
    for turn in range(given.turns):
        step, used = of_step(alone, bodies)
        with support.Server(*options, model=given.model) as server:
            seconds, server_used, _ = load.stream_all(server, bodies)
        theirs = of_genai(given, [sequence["prompt_token_ids"] for sequence in step["sequences"]])
        rows.append((step["stats"]["tokens_per_second"], tokens / seconds, tokens / theirs["seconds"],
                     used - loading, server_used, theirs["processor"]))
        same = [same_beginning(ours["token_ids"], other)
                for ours, other in zip(step["sequences"], theirs["token_ids"])]
        print(("turn {}: step 65 {:.1f} tokens/s, step 68 {:.1f}, GenAI {:.1f}; processor time {:.2f} s, {:.2f} and "
               "{:.2f}").format(turn + 1, *rows[-1])
              + f"; {sum(count == given.tokens for count in same)} of {len(same)} texts are equal, and all begin with "
              f"{min(same)} equal tokens")
    for number, name in ((0, "step 65"), (1, "step 68")):
        clock, processor = (statistics.median(row[number] / row[2] for row in rows),
                            statistics.median(row[5] / row[3 + number] for row in rows))
        print(f"{name} has {clock:.2f} times GenAI's throughput by the clock, {processor:.2f} times by processor time")


if __name__ == "__main__":
    main()
