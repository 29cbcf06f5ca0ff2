"""Measures one run of Hugging Face transformers for tools/bench --peers: generate(), with or without compiling."""

import argparse
import json
import time

import torch
import transformers

from peer_runs import measured


class Clock:
    """A streamer: generate() calls it with the prompt first, then with each token as it is chosen."""

    def __init__(self, now):
        self.now, self.times = now, []

    def put(self, _):
        self.times.append(self.now())

    def end(self):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], default="float32")
    parser.add_argument("--compiled", action="store_true", help="decode with a static cache and compiled code")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--new-tokens", type=int, required=True)
    parser.add_argument("--cpu-time", action="store_true", help="measure processor time instead of wall-clock time")
    parser.add_argument("--json", required=True)
    arguments = parser.parse_args()
    now = time.process_time if arguments.cpu_time else time.perf_counter
    with open(arguments.prompts, encoding="utf-8") as file:
        prompts = json.load(file)

    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=getattr(torch, arguments.dtype)).eval()
    model.generation_config.eos_token_id = None  # so that no sequence ends early
    model.generation_config.pad_token_id = 0
    options = {}
    if arguments.compiled:
        compiler = transformers.CompileConfig(fullgraph=False, dynamic=False, mode="default")
        compiler._compile_all_devices = True  # on a CPU, generate() compiles only with this set
        options = {"cache_implementation": "static", "compile_config": compiler}

    def generate(rows, count):
        """Returns the new tokens of the first row, the seconds to the end of the first step, and from there to the
        last."""
        clock, prompt = Clock(now), torch.tensor(rows)
        with torch.inference_mode():
            start = now()
            out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count,
                                 streamer=clock, **options)
        # times[0] is the prompt, times[1] the first new token
        return out[0, len(rows[0]):].tolist(), clock.times[1] - start, clock.times[-1] - clock.times[1]

    def gaps(tokens, first):
        """The margin of the best logit over the second, from the token after tokens[:first] on."""
        with torch.inference_mode():
            kept = len(tokens) - first + 1
            best = model(torch.tensor([tokens]), logits_to_keep=kept).logits[0].float().topk(2).values
        return (best[:, 0] - best[:, 1]).tolist()

    # Compiled code is specific to one cache size, so a warm-up uses the same size.
    result = {"version": f"transformers {transformers.__version__}, PyTorch {torch.__version__}",
              **measured(generate, prompts, arguments.new_tokens, whole_warm_up=arguments.compiled)}
    decode, prefill = prompts["decode"], prompts["prefill"]
    result["gaps"] = gaps(decode + result["token_ids"][:-1], len(decode))
    if prefill:
        result["prefill_gap"] = gaps(prefill, len(prefill))[0]
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
