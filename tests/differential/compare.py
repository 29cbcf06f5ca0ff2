#!/usr/bin/env python3
"""Compares the programs of the steps with Hugging Face transformers, on random models of odd shapes.

    tools/test 01 11 46 64                           # builds the programs
    python tests/differential/compare.py --cases 50  # a minute or two; needs torch, transformers and safetensors

Each case is a model from a seed, of one of the families that the engine runs. It may have odd widths and numbers of
heads, heads that share keys, a part of a head that rotates, stretched positions, parallel blocks, or experts. It may
also have a feed-forward layer of any size, rows without a token (padding), a separate output layer, shards, and weights
in any type. The programs print their results for a prompt with --json, and transformers computes the same in float64:

    greedy         texts that are not drawn, of steps 01, 11 and 46 (with and without a cache)
    distribution   what penalties, temperature, top-k and top-p leave of the probabilities, at each new token
    beams          the best text of a search, and its score
    perplexity     the log-probability of each token of a prompt, and the perplexity
    stop           where a stop sequence ends a text
    requests       texts of a file of requests in one batch, many of them drawn
    tokens         texts in all scripts, cut up with the vocabulary of GPT-2

float32 rounds. A difference is explained, and only counted, if the choice depended on less than 1e-4 of a logit or of
the deciding probability. The same holds below four times the difference between transformers' own float32 and its
float64. Any other difference is printed with the seed of its case, which `--cases 1 --seed SEED` repeats, and the exit
status is 1. Not part of the test suite.
"""

import argparse
import collections
import contextlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

try:
    import numpy
    import tokenizers
    import torch
    import transformers
    from safetensors.torch import save_file
except ImportError as error:
    sys.exit(f"{error.name} is missing for this Python: pip install torch transformers safetensors numpy")

ROOT = Path(__file__).resolve().parents[2]
GPT2 = ROOT / "tests/reference/gpt2-tokenizer"
END = "<|endoftext|>"
FAMILIES = {  # (configuration, heads share keys, a head has its own size, the key of epsilon)
    "gemma3_text": (transformers.Gemma3TextConfig, True, True, "rms_norm_eps"),
    "gpt_neox": (transformers.GPTNeoXConfig, False, False, "layer_norm_eps"),
    "llama": (transformers.LlamaConfig, True, True, "rms_norm_eps"),
    "mistral": (transformers.MistralConfig, True, True, "rms_norm_eps"),
    "mixtral": (transformers.MixtralConfig, True, True, "rms_norm_eps"),
    "olmo": (transformers.OlmoConfig, True, False, ""),
    "olmoe": (transformers.OlmoeConfig, True, False, "rms_norm_eps"),
    "qwen2": (transformers.Qwen2Config, True, False, "rms_norm_eps"),
    "qwen3": (transformers.Qwen3Config, True, True, "rms_norm_eps"),
    "qwen3_moe": (transformers.Qwen3MoeConfig, True, True, "rms_norm_eps"),
}
TIE = 1e-4


class Report:
    """What was compared, by kind."""

    def __init__(self):
        self.counts = collections.defaultdict(collections.Counter)

    def add(self, kind, result, about):
        """The result is "equal", "explained", or a sentence with the difference."""
        known = result in ("equal", "explained")
        self.counts[kind][result if known else "unexplained"] += 1
        if not known and self.counts[kind]["unexplained"] <= 5:
            print(f"{kind}: {result} [{about}]", flush=True)

    def show(self):
        for kind, count in self.counts.items():
            print(f"{kind:13}{sum(count.values()):7} compared, {count['explained']} explained, "
                  f"{count['unexplained']} unexplained")
        return any(count["unexplained"] for count in self.counts.values())


class Case:
    """A model, its folder and what is asked of it. Everything comes from the seed."""

    def __init__(self, seed, folder, build):
        self.choose, self.folder, self.build = random.Random(seed), Path(folder), build
        self.seed = seed
        choose = self.choose
        vocab = json.loads((ROOT / "models/tales-1m/vocab.json").read_text(encoding="utf-8"))
        merges = (ROOT / "models/tales-1m/merges.txt").read_text(encoding="utf-8").split("\n")
        merges = [line for line in merges if line and not line.startswith("#version")][:choose.randint(0, 150)]
        signs = sorted((token for token in vocab if len(token) == 1), key=vocab.get)
        self.tokens = [*signs, *(line.replace(" ", "") for line in merges), END]
        stored = choose.choice(["float32", "float16", "bfloat16"])
        self.family = choose.choice(["gpt2", "gpt2", *FAMILIES])
        self.config = (self.gpt2() if self.family == "gpt2" else self.rotary(*FAMILIES[self.family]))
        self.n_positions = self.config.max_position_embeddings
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(self.config, attn_implementation="eager").float().eval()
        if self.family in ("mixtral", "olmoe", "qwen3_moe"):
            model.set_experts_implementation("eager")  # the only one in float64
        scale = choose.choice([0.1, 0.3, 0.6])
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                is_gain = ("norm" in name or ".ln_" in name) and name.endswith("weight")
                parameter.normal_(1.0 if is_gain else 0.0, scale)
            model.get_output_embeddings().weight.mul_(min(1.0, 3 / scale / self.config.hidden_size ** 0.5))
        for parameter in model.parameters():  # not the speeds of rotary positions, which are not weights
            parameter.data = parameter.data.to(getattr(torch, stored))
        self.write(model, choose.choice(["", "transformer."]), merges)
        self.model = model.double()
        self.about = f"{self.family}, --cases 1 --seed {seed}"

    def common(self):
        """What all families' configurations call alike."""
        choose = self.choose
        return {"vocab_size": len(self.tokens) + choose.choice([0, 0, 1, choose.randint(2, 70)]),
                "max_position_embeddings": choose.randint(24, 90), "num_hidden_layers": choose.randint(1, 3),
                "tie_word_embeddings": choose.random() < 0.6, "eos_token_id": len(self.tokens) - 1,
                "bos_token_id": len(self.tokens) - 1}

    def gpt2(self):
        choose, heads = self.choose, self.choose.randint(1, 5)
        return transformers.GPT2Config(
            n_embd=heads * choose.choice([1, 3, 5, 7, 8, 12, 17, 32]), n_head=heads,
            n_inner=choose.choice([None, choose.randint(1, 150)]), layer_norm_epsilon=choose.choice([1e-5, 1e-6, 1e-3]),
            activation_function=choose.choice(["gelu_new", "gelu_pytorch_tanh"]), **self.common())

    def rotary(self, kind, shares, own_size, epsilon):
        """A configuration of that class. `shares`: heads may share keys; `own_size`: a head may have any size."""
        choose = self.choose
        kv_heads, group = choose.randint(1, 3), choose.randint(1, 4) if shares else 1
        heads, size = kv_heads * group, choose.choice([2, 4, 6, 8, 12, 14, 32])
        more = {"hidden_size": heads * size, "num_attention_heads": heads, "intermediate_size": choose.randint(1, 150)}
        rope = {"rope_type": "default", "rope_theta": choose.choice([100.0, 10000.0, 500000.0])}
        if kind is transformers.GPTNeoXConfig:
            more.update(use_parallel_residual=choose.random() < 0.5,
                        hidden_act=choose.choice(["gelu", "gelu_new", "gelu_pytorch_tanh"]))
            rope["partial_rotary_factor"] = choose.choice([n for n in range(2, size + 1, 2)]) / size
        else:
            more["num_key_value_heads"] = kv_heads
        if kind is transformers.LlamaConfig and choose.random() < 0.4:
            rope.update(rope_type="llama3", factor=choose.choice([2.0, 8.0]), low_freq_factor=1.0, high_freq_factor=4.0,
                        original_max_position_embeddings=choose.choice([8, 16, 32]))
        if own_size:
            more["head_dim"] = size
            if choose.random() < 0.5:  # the queries together are wider or narrower than the model
                more["hidden_size"] = heads * choose.randint(1, 12)
        if epsilon:
            more[epsilon] = choose.choice([1e-5, 1e-6, 1e-3])
        common = self.common()
        if kind is transformers.Gemma3TextConfig:
            layers = "full_attention", "sliding_attention"
            more.update(query_pre_attn_scalar=choose.choice([size, choose.randint(1, 300)]), sliding_window=choose.randint(1, 40),
                        layer_types=[choose.choice(layers) for _ in range(common["num_hidden_layers"])])
            rope = {layers[0]: rope, layers[1]: {"rope_type": "default", "rope_theta": choose.choice([100.0, 10000.0])}}
            if choose.random() < 0.5:
                rope[layers[0]].update(rope_type="linear", factor=choose.choice([2.0, 8.0]))
        if kind in (transformers.MixtralConfig, transformers.OlmoeConfig, transformers.Qwen3MoeConfig):
            experts = choose.randint(1, 9)
            more.update({"num_local_experts" if kind is transformers.MixtralConfig else "num_experts": experts},
                        num_experts_per_tok=choose.randint(1, experts))
        if kind in (transformers.OlmoeConfig, transformers.Qwen3MoeConfig):
            more["norm_topk_prob"] = choose.random() < 0.5
        if kind is transformers.Qwen3MoeConfig:
            more.update(moe_intermediate_size=choose.randint(1, 90), decoder_sparse_step=choose.choice([1, 1, 2]),
                        mlp_only_layers=[layer for layer in range(common["num_hidden_layers"]) if choose.random() < 0.2])
            if choose.random() < 0.3:
                more.update(use_sliding_window=True, sliding_window=choose.randint(1, 40))
        if kind is transformers.MixtralConfig and choose.random() < 0.3:
            more["sliding_window"] = choose.randint(1, 40)
        return kind(rope_parameters=rope, **more, **common)

    def write(self, model, prefix, merges):
        if self.family == "gpt2":
            tensors = {prefix + name: value.contiguous().clone() for name, value in model.transformer.state_dict().items()}
            if not self.config.tie_word_embeddings:
                tensors["lm_head.weight"] = model.lm_head.weight.detach().clone()
            save_file(tensors, self.folder / "model.safetensors")
            (self.folder / "config.json").write_text(json.dumps(self.config.to_dict()))
        elif "experts" in str(list(model.state_dict())) and self.choose.random() < 0.3:  # of all experts in one tensor
            tensors = {name: value.contiguous().clone() for name, value in model.state_dict().items()}
            if self.config.tie_word_embeddings:
                del tensors["lm_head.weight"]
            save_file(tensors, self.folder / "model.safetensors")
            (self.folder / "config.json").write_text(json.dumps(self.config.to_dict()))
        else:
            model.save_pretrained(self.folder, max_shard_size=self.choose.choice(["5GB", "20KB"]))
            (self.folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", "eos_token": END}))
        (self.folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(self.tokens)}))
        (self.folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")

    def run(self, step, *options, text=None):
        """The sequences that the program of a step prints."""
        return run(self.build, step, self.folder, "--threads", self.choose.randint(1, 3), *options, text=text)

    def prompt(self, most):
        """A text of at most this many bytes, and so of at most this many tokens."""
        letters = self.choose.choice(["the wolf and his house", "aeint .,'s", "Zürich ñ λ"])
        text = "".join(self.choose.choice(letters) for _ in range(self.choose.randint(1, most)))
        return text.encode()[:most].decode(errors="ignore").strip() or "a"

    def room(self):
        """(a prompt, how many new tokens fit after it)"""
        new = self.choose.randint(1, 16)
        return self.prompt(self.n_positions - new), new

    def logits(self, tokens):
        """(the logits after each token, how far those of another order of sums may be from them)"""
        with torch.no_grad():
            logits = self.model(torch.tensor([tokens])).logits[0]
            rounded = self.model.float()(torch.tensor([tokens])).logits[0]
        self.model.double()
        return logits, max(TIE, 4 * float((rounded - logits).abs().max()))

    def sampling(self):
        """Some of the options that change the logits."""
        choose, some = self.choose, {}
        for name, value in {"presence_penalty": round(choose.uniform(-2, 2), 2),
                            "frequency_penalty": round(choose.uniform(-1, 1), 2),
                            "repetition_penalty": round(choose.uniform(0.6, 1.8), 2),
                            "temperature": round(choose.uniform(0.3, 2), 2),
                            "top_k": choose.randint(1, 40), "top_p": round(choose.uniform(0.05, 0.99), 3)}.items():
            if choose.random() < 0.5:
                some[name] = value
        return some


def run(build, step, folder, *options, text=None):
    program = next(path for path in sorted((build / "steps").glob(f"{step}-*")) if path.is_file())
    command = [program, "--model", folder, "--device", "cpu", "--json", *options]
    done = subprocess.run(list(map(str, command)), input=text, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{program.name} ends with {done.returncode}: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout)["sequences"]


def as_options(values):
    return [word for name, value in values.items() for word in ("--" + name.replace("_", "-"), value)]


def processed(logits, tokens, prompt, end, options, nudge=0.0, uncounted=0):
    """The logits after `tokens`, as transformers' processors leave them; it lacks OpenAI's two penalties, which skip
    the first `uncounted` tokens. The nudge moves top-p's border."""
    ids, scores = torch.tensor([tokens]), logits[None].clone()
    steps = transformers.LogitsProcessorList()
    if options.get("min_new_tokens"):
        steps.append(transformers.MinNewTokensLengthLogitsProcessor(prompt, options["min_new_tokens"], [end]))
    for token, times in collections.Counter(tokens[uncounted:]).items():
        scores[0, token] -= options.get("presence_penalty", 0) + times * options.get("frequency_penalty", 0)
    if "repetition_penalty" in options:
        steps.append(transformers.RepetitionPenaltyLogitsProcessor(options["repetition_penalty"]))
    if "temperature" in options:
        steps.append(transformers.TemperatureLogitsWarper(options["temperature"]))
    if "top_k" in options:
        steps.append(transformers.TopKLogitsWarper(options["top_k"]))
    if "top_p" in options:
        steps.append(transformers.TopPLogitsWarper(min(max(options["top_p"] + nudge, 1e-6), 1.0)))
    return steps(ids, scores)[0]


def same_text(case, sequence, options, most, ends=True, seed=None, counts_prompt=False):
    """Whether each token of a text is what transformers chooses after those before it: the most likely one, or with
    a seed the one that the same random number falls on. Before step 31, OpenAI's penalties count the prompt."""
    prompt, new = sequence["prompt_token_ids"], sequence["token_ids"]
    end, explained = case.config.eos_token_id, False
    numbers = None if seed is None else numpy.random.RandomState(seed)
    logits, slack = case.logits(prompt + new)
    uncounted = 0 if counts_prompt else len(prompt)
    for i, token in enumerate(new):
        scores = processed(logits[len(prompt) + i - 1], prompt + new[:i], len(prompt), end, options, 0.0, uncounted)
        if numbers is None:
            wanted, near = int(scores.argmax()), float(scores.max() - scores[token]) < slack
        else:
            # If a border moves, the tokens after it move as well.
            number, sums = numbers.random_sample(), scores.softmax(0).cumsum(0)
            wanted = min(int((sums <= number).sum()), len(sums) - 1)
            near = all(abs(float(sums[at]) - number) < slack for at in (min(wanted, token), max(wanted, token) - 1))
            for nudge in (-slack, slack):
                scores = processed(logits[len(prompt) + i - 1], prompt + new[:i], len(prompt), end, options, nudge,
                                   uncounted)
                near = near or int((scores.softmax(0).cumsum(0) <= number).sum()) == token
        if token != wanted:
            if not near:
                return f"new token {i} is {token}, not {wanted}, after {prompt} with {options}"
            explained = True
        if token == end and ends and i + 1 < len(new):
            return f"the text continues after its end, token {i} of {new}"
    reason = "eos" if ends and new[-1:] == [end] else "length"
    if sequence["finish_reason"] != reason or (reason == "length" and len(new) != most):
        return f"it ends after {len(new)} of {most} tokens by {sequence['finish_reason']}, after {prompt}"
    return "explained" if explained else "equal"


def greedy(case, report):
    for _ in range(4):
        prompt, new = case.room()
        common = ["--prompt", prompt, "--max-new-tokens", new]
        report.add("greedy", same_text(case, case.run("01", *common)[0], {}, new, ends=False), case.about)
        options = {name: value for name, value in case.sampling().items() if name.endswith("penalty")}
        sequence = case.run("11", *common, *as_options(options))[0]
        report.add("greedy", same_text(case, sequence, options, new, counts_prompt=True), case.about)
        options["min_new_tokens"] = case.choose.randint(0, new)
        for cache in ("--use-cache", "--no-use-cache"):
            sequence = case.run("46", *common, cache, *as_options(options))[0]
            report.add("greedy", same_text(case, sequence, options, new), case.about)


def same_distribution(shown, logits, slack, tokens, prompt, end, options):
    got = {one["token_id"]: one["probability"] for one in shown}
    for near, nudge in ((TIE, 0.0), (slack, 0.0), (slack, -slack), (slack, slack)):
        near /= options.get("temperature", 1.0)
        scores = processed(logits, tokens, prompt, end, options, nudge)
        wanted = scores.softmax(0)
        # float32 has no number as small as some probabilities.
        ids = {int(i) for i in (scores > -torch.inf).nonzero() if wanted[i] > 1e-30 or int(i) in got}
        if ids == set(got) and all(abs(got[i] - wanted[i]) <= near * max(wanted[i], 0.01) for i in got):
            return "equal" if near <= TIE / options.get("temperature", 1.0) and nudge == 0.0 else "explained"
    return f"{len(got)} tokens, the first {shown[0]}, not {len(ids)}, the largest {float(wanted.max()):.7f}, with {options}"


def distributions(case, report):
    for _ in range(4):
        prompt, new = case.room()
        options = case.sampling()
        sequence = case.run("11", "--prompt", prompt, "--max-new-tokens", new, "--do-sample", "--seed", case.seed,
                            "--show-candidates", case.config.vocab_size, *as_options(options))[0]
        prompt, new = sequence["prompt_token_ids"], sequence["token_ids"]
        logits, slack = case.logits(prompt + new)
        for i, shown in enumerate(sequence["candidates"]):
            report.add("distribution", same_distribution(shown, logits[len(prompt) + i - 1], slack, prompt + new[:i],
                                                         len(prompt), case.config.eos_token_id, options), case.about)


def beams(case, report):
    for _ in range(4):
        prompt, new = case.room()
        options = {"num_beams": case.choose.randint(2, 6), "length_penalty": case.choose.choice([-1.0, 0.0, 0.7, 1.0, 2.0])}
        stopping = case.choose.choice([True, False, "never"])
        if case.choose.random() < 0.4:
            options["repetition_penalty"] = round(case.choose.uniform(0.7, 1.6), 2)
        if case.choose.random() < 0.3:
            options["min_new_tokens"] = case.choose.randint(1, new)
        sequence = case.run("46", "--prompt", prompt, "--max-new-tokens", new, *as_options(options), "--early-stopping",
                            str(stopping).lower(), case.choose.choice(["--use-cache", "--no-use-cache"]))[0]
        ids = torch.tensor([sequence["prompt_token_ids"]])

        def search():
            found = case.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, early_stopping=stopping,
                pad_token_id=case.config.eos_token_id, return_dict_in_generate=True, output_scores=True, **options)
            text = found.sequences[0, ids.shape[1]:].tolist()
            end = case.config.eos_token_id
            return text[:text.index(end) + 1] if end in text else text, float(found.sequences_scores[0])
        text, score = search()
        near = abs(score - sequence["score"]) < TIE * max(1.0, abs(score))
        if text == sequence["token_ids"] and near:
            result = "equal"
        else:
            case.model.float()  # where its own rounding changes the text, a choice hung on it
            explained = text != sequence["token_ids"] and (near or search()[0] != text)
            case.model.double()
            result = "explained" if explained else (f"{sequence['token_ids']} with {sequence['score']}, not {text} with {score}, "
                                                    f"after {ids[0].tolist()} with {options}, early stopping {stopping}")
        report.add("beams", result, case.about)


def perplexities(case, report):
    for _ in range(4):
        sequence = case.run("46", "--prompt", case.prompt(case.n_positions), "--max-new-tokens", 0, "--echo",
                            "--logprobs", 3)[0]
        tokens = sequence["prompt_token_ids"]
        logits, slack = case.logits(tokens)
        logprobs = logits.log_softmax(1)
        result, perplexity = "equal", None
        if len(tokens) > 1:
            own = logprobs[range(len(tokens) - 1), tokens[1:]]
            perplexity = float(torch.exp(-own.mean()))
            got = [one["logprob"] for one in sequence["prompt_logprobs"]][1:]
            top = [[other["logprob"] for other in one["top_logprobs"]] for one in sequence["prompt_logprobs"]][1:]
            difference = max(float((torch.tensor(got) - own).abs().max()),
                             float((torch.tensor(top) - logprobs[:-1].topk(3).values).abs().max()),
                             abs(math.log(sequence["perplexity"] / perplexity)))
            if difference > TIE:
                result = "explained" if difference < 2 * slack else (  # that of a logit, and of the sum
                    f"{difference:.1e} between the log-probabilities of {tokens}, where rounding explains {2 * slack:.1e}")
        if sequence["prompt_logprobs"][0]["logprob"] is not None or (perplexity is None) != (sequence["perplexity"] is None):
            result = f"the first of {tokens} has a log-probability, or the perplexity is {sequence['perplexity']}, not {perplexity}"
        report.add("perplexity", result, case.about)


def stops(case, report):
    """Which tokens come is for `greedy` to say; here, where the text ends, by a search for the words in the whole of
    it."""
    printed = byte_of_sign()
    for _ in range(4):
        prompt, new = case.room()
        common = ["46", "--prompt", prompt, "--max-new-tokens", new, "--ignore-eos"]
        ids = case.run(*common)[0]["token_ids"]
        parts = [bytes(printed[sign] for sign in case.tokens[i]) if i < len(case.tokens) - 1 else
                 (END if i < len(case.tokens) else "").encode() for i in ids]
        text = b"".join(parts).decode(errors="replace")
        words = []
        for _ in range(case.choose.randint(1, 3) if text else 0):
            at = case.choose.randrange(len(text))
            words.append(text[at:at + case.choose.randint(1, 4)].replace("\ufffd", "").replace("\0", "") or "no")
        words = [word for word in words if not word.startswith("-")] or ["no"]
        got = case.run(*common, *[option for word in words for option in ("--stop", word)])[0]
        # The first token after which one of the words is complete; the text ends where the first of them begins.
        wanted = b"".join(parts), new, "length"
        for count in range(1, new + 1):
            begun = b"".join(parts[:count])
            places = [begun.find(word.encode()) for word in words if word.encode() in begun]
            if places:
                wanted = begun[:min(places)], count, "stop"
                break
        found = got["text"], len(got["token_ids"]), got["finish_reason"]
        wanted = wanted[0].decode(errors="replace"), *wanted[1:]
        same = found[1:] == wanted[1:] and found[0].replace("\ufffd", "") == wanted[0].replace("\ufffd", "")
        report.add("stop", "equal" if same else f"{found}, not {wanted}, at {words}", case.about)


def byte_of_sign():
    """The byte that each printable stand-in of GPT-2's vocabulary means (encoder.py of openai/gpt-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


def requests(case, report):
    lines = []
    for _ in range(case.choose.randint(1, 24)):
        prompt, new = case.room()
        line = {"prompt": prompt, "max_new_tokens": new, "min_new_tokens": case.choose.randint(0, new), **case.sampling()}
        if case.choose.random() < 0.7:
            line.update(do_sample=True, seed=case.choose.randint(0, 10**6))
        lines.append(line)
    options = ["--max-batch-size", case.choose.randint(1, 9), case.choose.choice(["--prefix-caching", "--no-prefix-caching"])]
    if case.choose.random() < 0.6:
        options += ["--prefill-chunk", case.choose.randint(1, 40)]
    sequences = case.run("64", "--requests", "-", *options, text="\n".join(map(json.dumps, lines)))
    for line, sequence in zip(lines, sequences, strict=True):
        seed = line.get("seed")
        report.add("requests", same_text(case, sequence, line, line["max_new_tokens"], seed=seed), case.about)


def tokens(case, report):
    """Characters of Unicode 3.2 and some emoji: libraries of different age agree about them."""
    other = tokenizers.ByteLevelBPETokenizer(str(GPT2 / "vocab.json"), str(GPT2 / "merges.txt"))
    with tempfile.TemporaryDirectory(prefix="staircase-") as folder:
        for name in ("vocab.json", "merges.txt"):
            os.symlink(GPT2 / name, Path(folder, name))
        config = transformers.GPT2Config(n_embd=2, n_head=1, n_layer=1, n_positions=4096)
        model = transformers.GPT2LMHeadModel(config).transformer
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, Path(folder, "model.safetensors"))
        Path(folder, "config.json").write_text(json.dumps(config.to_dict()))
        known = [chr(i) for i in range(0x20000) if unicodedata.ucd_3_2_0.category(chr(i)) not in ("Cn", "Cs", "Co")]
        groups = [known, [*"abcdef ghij'"], [*" \n\t\r\u00a0\u2003\u3000x"], [*"'stredmvl "], [*"0123456789.,-+ "],
                  [*"\U0001f600\U0001f44d\U0001f3fd\u200d\ufe0fa "], [*map(chr, range(128))], [*"ñé\u0301üЖдж漢字かな한글 "]]
        texts = ["".join(case.choose.choice(case.choose.choice(groups)) if mixed else case.choose.choice(group)
                         for _ in range(case.choose.randint(1, 60)))
                 for group in groups for mixed in (False, True) for _ in range(10)]
        lines = "\n".join(json.dumps({"prompt": text, "max_new_tokens": 0}) for text in texts)
        sequences = run(case.build, "64", folder, "--requests", "-", text=lines)
    for text, sequence in zip(texts, sequences, strict=True):
        wanted = other.encode(text).ids
        report.add("tokens", "equal" if wanted == sequence["prompt_token_ids"] else
                   f"{text!r} becomes {sequence['prompt_token_ids']}, not {wanted}", case.about)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20, help="how many models (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first model; each further one has the next (default: %(default)s)")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="where the programs are (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    report = Report()
    with contextlib.suppress(KeyboardInterrupt):  # what was compared until then is shown
        for seed in range(options.seed, options.seed + options.cases):
            with tempfile.TemporaryDirectory(prefix="staircase-") as folder:
                case = Case(seed, folder, options.build)
                for kind in (greedy, distributions, beams, perplexities, stops, requests, tokens):
                    try:
                        kind(case, report)
                    except RuntimeError as error:
                        report.add(kind.__name__, str(error), case.about)
    return 1 if report.show() else 0


if __name__ == "__main__":
    sys.exit(main())
