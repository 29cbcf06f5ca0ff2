"""Prints the perplexity of each style under each adapter and none: of this project's program, and of transformers with
PEFT.

    python3 models/adapters/perplexities.py CORPUS build/steps/113-lora

CORPUS is that of train.py. The texts are those of val.bin, which neither the model nor an adapter was trained on: 11
fables of Aesop, and one tale of the Arabian Nights in pieces of 500 tokens. Needs torch, transformers and peft.
"""
import gzip
import json
import math
import pathlib
import re
import subprocess
import sys

import peft
import torch
import transformers
from train import BOOKS, HERE, held_out

PIECE = 500


def pieces(corpus, style, tokenizer):
    left_out = held_out(corpus)
    with gzip.open(corpus / "docs.json.gz") as file:
        documents = json.load(file)
    for book, title, text in documents:
        tokens = tokenizer(f"{title}\n\n{text}")["input_ids"]
        if book == BOOKS[style] and tuple(tokens) in left_out:
            yield from (tokenizer.decode(tokens[i:i + PIECE]) for i in range(0, len(tokens), PIECE))


def program_loss(program, text, adapter):
    """The mean loss of a text, as the program prints its perplexity."""
    done = subprocess.run([program, "--prompt", "-", "--max-new-tokens", "1", "--adapter", adapter or "aesop"],
                          input=text, capture_output=True, text=True, check=True)
    words = "with" if adapter else "without"
    return math.log(float(re.search(rf"prompt {words} the adapter: (\S+)", done.stderr)[1]))


def main():
    corpus, program = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(HERE.parent / "tales-6m")
    texts = {style: [text for text in pieces(corpus, style, tokenizer)] for style in BOOKS}
    for adapter in (None, *BOOKS):
        model = transformers.AutoModelForCausalLM.from_pretrained(HERE.parent / "tales-6m", dtype=torch.float32)
        if adapter:
            model = peft.PeftModel.from_pretrained(model, HERE / adapter)
        model.eval()
        for style, own in texts.items():
            sums = [0.0, 0.0]
            count = 0
            for text in own:
                ids = torch.tensor([tokenizer(text)["input_ids"]])
                n = ids.shape[1] - 1
                with torch.no_grad():
                    sums[0] += n * model(input_ids=ids, labels=ids).loss.item()
                sums[1] += n * program_loss(program, text, adapter)
                count += n
            print(f"{style} with {adapter or 'no adapter'}: {count} tokens, transformers "
                  f"{math.exp(sums[0] / count):.2f}, this program {math.exp(sums[1] / count):.2f}", flush=True)


if __name__ == "__main__":
    main()
