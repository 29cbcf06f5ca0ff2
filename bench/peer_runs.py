"""The measurements of an engine in Python for tools/bench --peers."""


WARM_UP = 1024  # a warm-up uses at most this many tokens of a prompt


def measured(generate, prompts, count, whole_warm_up=False):
    """Returns the measured speeds, and the tokens that show whether the engines agree.

    generate(rows, count) returns the new tokens of the first row, the seconds to the end of the first step, and the
    seconds from there to the last. An empty prompt is not measured. A short warm-up precedes each measurement or, with
    `whole_warm_up`, one of the same length.
    """
    decode, prefill, batch = (prompts[name] for name in ("decode", "prefill", "batch"))
    generate([decode if whole_warm_up else decode[:WARM_UP]], count if whole_warm_up else 8)
    tokens, first, seconds = generate([decode], count)
    result = {"prompt_ms": 1e3 * first, "decode_tokens_per_s": (count - 1) / seconds, "token_ids": tokens}
    if prefill:
        runs = [generate([prefill], 1) for _ in range(4)][1:]  # the first warms up
        result |= {"prefill_ms": [1e3 * run[1] for run in runs], "prefill_token": runs[0][0][0]}
    if batch:
        generate(batch, count if whole_warm_up else 4)
        result["batch_tokens_per_s"] = len(batch) * (count - 1) / generate(batch, count)[2]
    return result
