"""Measures one model in Hugging Face transformers on an NVIDIA GPU, for tools/gpu-check: eager, or compiled with a
static cache.

Greedy decoding is written out instead of calling generate(), so the clock measures only the compiled step.
"""

import argparse
import json
import statistics
import time

import torch
import transformers

DECODE_PROMPT = 16  # as in bench/gpu.cpp
WARM_UPS = 3        # compiling and recording CUDA graphs happen in the first one or two calls


def median_seconds(sample, rounds):
    """The median of `rounds` calls of `sample`, which returns seconds, after some calls to warm up."""
    for _ in range(WARM_UPS):
        sample()
    return statistics.median(sample() for _ in range(rounds))


def some_tokens(count, vocab_size, batch=1):
    return [[(i * 7919 + 13) % vocab_size for i in range(count)]] * batch


def measure(arguments):
    torch.set_grad_enabled(False)
    transformers.logging.set_verbosity_error()
    device = arguments.device
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype))
    model = model.eval().to(device)
    vocab_size, step_model = model.config.vocab_size, model
    if arguments.compile:
        # Not dynamic: a step is compiled separately for every batch size.
        step_model = torch.compile(model, mode="reduce-overhead", fullgraph=True, dynamic=False)

    def forward(network, tokens, cache, position):
        places = torch.arange(position, position + tokens.shape[1], device=device)
        logits = network(tokens, past_key_values=cache, cache_position=places, position_ids=places[None],
                         use_cache=True, logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True).clone()

    prompt = torch.tensor(some_tokens(arguments.prompt_tokens, vocab_size), device=device)

    def first_token():
        start = time.perf_counter()
        forward(model, prompt, transformers.DynamicCache(), 0).tolist()  # waits for the GPU
        return time.perf_counter() - start

    first = median_seconds(first_token, arguments.rounds)

    decode = []
    for batch in arguments.batches:
        tokens = torch.tensor(some_tokens(DECODE_PROMPT, vocab_size, batch), device=device)
        # All rounds share one cache: a CUDA graph holds the addresses of its cache, so another cache would need another
        # graph.
        static_cache = transformers.StaticCache(
            config=model.config, max_batch_size=batch, max_cache_len=DECODE_PROMPT + arguments.new_tokens,
            device=device, dtype=model.dtype) if arguments.compile else None

        def seconds_per_step():
            if static_cache is None:
                cache = transformers.DynamicCache()
            else:
                cache = static_cache
                cache.reset()
            newest = forward(model, tokens, cache, 0)
            newest.tolist()  # the prompt is done before the clock starts
            start = time.perf_counter()
            for i in range(arguments.new_tokens - 1):
                newest = forward(step_model, newest, cache, DECODE_PROMPT + i)
                newest.tolist()  # a program that prints its tokens waits for each of them
            return (time.perf_counter() - start) / (arguments.new_tokens - 1)

        seconds = median_seconds(seconds_per_step, arguments.rounds)
        decode.append({"batch": batch, "tokens_per_s": batch / seconds, "ms_per_step": 1e3 * seconds})
    return {"version": f"transformers {transformers.__version__}, PyTorch {torch.__version__}",
            "ttft_ms": 1e3 * first, "decode": decode}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    result = measure(arguments)
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
