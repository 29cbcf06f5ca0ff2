"""Runs the sampling chain of bench/sampling.cpp with Hugging Face transformers on one thread, for comparison.

    python bench/transformers_sampling.py [ROUNDS]

Needs torch and transformers. Prints the median time in microseconds.
"""

import statistics
import sys
import time

import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

VOCABULARY = 50257


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    inputs = [2.5 * torch.randn(1, VOCABULARY, generator=generator) for _ in range(16)]
    warpers = [TemperatureLogitsWarper(0.8), TopKLogitsWarper(50), TopPLogitsWarper(0.9)]
    times = []
    with torch.inference_mode():
        for i in range(rounds + 20):  # the first few warm up
            logits = inputs[i % len(inputs)].clone()
            start = time.perf_counter()
            for warper in warpers:
                logits = warper(None, logits)
            torch.multinomial(torch.softmax(logits, dim=-1), 1, generator=generator).item()
            times.append(1e6 * (time.perf_counter() - start))
    print(f"{VOCABULARY} logits, median of {rounds} rounds, in microseconds")
    print(f"{'temperature, top-k 50, top-p 0.9, draw':<45} {statistics.median(times[20:]):8.1f}")


if __name__ == "__main__":
    main()
