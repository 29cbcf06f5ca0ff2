"""Trains the adapters of tales-6m with PEFT, one for each style: rank 8, on the tales of one book.

    nice -n 19 python3 models/adapters/train.py CORPUS STYLE

CORPUS is a folder with docs.json.gz (a list of [book, title, text]) and val.bin, the tokens of the documents
that neither the model nor an adapter trains on (16 bits, little-endian). STYLE is aesop or arabian-nights.
Writes the folder STYLE beside this script. Needs torch, transformers and peft.
"""
import array
import gzip
import json
import pathlib
import random
import sys
import time

import peft
import torch
import transformers

HERE = pathlib.Path(__file__).parent
BOOKS = {"aesop": "aesop", "arabian-nights": "The-Arabian-Nights-Entertainments_128"}
END = 4095
# The model has seen each fable three times as often, and knows many by heart: more of them would teach it these alone.
EPOCHS = {"aesop": 1, "arabian-nights": 1}
RATE = {"aesop": 3e-4, "arabian-nights": 1e-3}
BATCH, LENGTH = 4, 256


def held_out(corpus):
    """The documents of val.bin, each as the tuple of its tokens."""
    tokens = array.array("H", (corpus / "val.bin").read_bytes()).tolist()
    documents, first = set(), 0
    for i, token in enumerate(tokens):
        if token == END:
            documents.add(tuple(tokens[first:i]))
            first = i + 1
    return documents


def documents_of(corpus, book, tokenizer):
    with gzip.open(corpus / "docs.json.gz") as file:
        documents = json.load(file)
    left_out = held_out(corpus)
    for name, title, text in documents:
        tokens = tokenizer(f"{title}\n\n{text}")["input_ids"]
        if name == book and tuple(tokens) not in left_out:
            yield [*tokens, END]


def main():
    corpus, style = pathlib.Path(sys.argv[1]), sys.argv[2]
    torch.manual_seed(1)
    torch.set_num_threads(1)
    draw = random.Random(1)
    base = HERE.parent / "tales-6m"
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=8, lora_alpha=16, lora_dropout=0.05, target_modules=["c_attn", "c_proj", "c_fc"],
        fan_in_fan_out=True, task_type="CAUSAL_LM"))
    documents = list(documents_of(corpus, BOOKS[style], tokenizer))
    steps = EPOCHS[style] * sum(map(len, documents)) // (BATCH * LENGTH)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], RATE[style], weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)

    stream = []
    begin = time.monotonic()
    model.train()
    for step in range(steps):
        while len(stream) < BATCH * LENGTH:
            draw.shuffle(documents)
            stream += [token for document in documents for token in document]
        batch = torch.tensor(stream[:BATCH * LENGTH]).view(BATCH, LENGTH)
        del stream[:BATCH * LENGTH]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"{step}/{steps} loss {loss.item():.3f} after {time.monotonic() - begin:.0f} s", flush=True)

    model.peft_config["default"].base_model_name_or_path = "tales-6m"
    for parameter in model.parameters():
        parameter.data = parameter.data.half()
    model.save_pretrained(HERE / style)
    (HERE / style / "README.md").unlink()


if __name__ == "__main__":
    main()
