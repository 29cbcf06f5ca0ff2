"""Trains the draft heads of tales-6m: head k predicts the token k places after the next one, from one hidden state.

    nice -n 10 python3 models/draft-heads/train.py CORPUS SCRATCH

CORPUS is a folder with train.bin and val.bin, tokens of 16 bits (little-endian); SCRATCH keeps the hidden states of
the frozen model, 0.6 GB. Writes config.json and
medusa_lm_head.safetensors beside this script, and prints the accuracy of each head on val.bin. Needs torch and
transformers.
"""
import json
import pathlib
import sys
import time

import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).parent
BASE = HERE.parent / "tales-6m"
HEADS, EPOCHS, BATCH, RATE, LENGTH = 3, 1, 1024, 3e-3, 512
EVERY = 4  # windows of train.bin: one in four is enough to see what heads gain


def fnv1a(data):
    """Of the weights that the heads belong to (Fowler, Noll and Vo; 64 bits)."""
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 % 2**64
    return f"{value:016x}"


def windows_of(path, every):
    tokens = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.int16).long()
    return tokens[:len(tokens) // LENGTH * LENGTH].view(-1, LENGTH)[::every]


def hidden_states(model, tokens, path):
    """The hidden states after the final norm, [windows, LENGTH, width] as bfloat16."""
    if not path.exists():
        states = torch.empty(*tokens.shape, model.config.n_embd, dtype=torch.bfloat16)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            for first in range(0, len(tokens), 16):
                states[first:first + 16] = model.transformer(tokens[first:first + 16]).last_hidden_state
                print(f"hidden states of {first} windows of {len(tokens)}", end="\r", flush=True)
        torch.save(states, path)
    return torch.load(path, mmap=True)


def logits_of(head, states, output):
    """The head of Medusa: h + SiLU(W h + b), and then the output layer of the model."""
    return (states + torch.nn.functional.silu(head(states))) @ output.T


def places_of(states, tokens, at):
    """The states at these places, and the tokens that follow each: [places, width], [places, 1 + HEADS]. Each window
    has LENGTH - 1 - HEADS places."""
    inside = LENGTH - 1 - HEADS
    window, place = at // inside, at % inside
    return states[window, place].float(), torch.stack([tokens[window, place + 1 + k] for k in range(1 + HEADS)], 1)


def accuracies(heads, states, tokens, output):
    """The share of the places where the model's likeliest token, and each head's, is the one in the text."""
    right, places = torch.zeros(1 + HEADS), len(tokens) * (LENGTH - 1 - HEADS)
    with torch.no_grad():
        for at in torch.arange(places).split(BATCH):
            h, following = places_of(states, tokens, at)
            guesses = [h @ output.T, *(logits_of(head, h, output) for head in heads)]
            right += torch.stack([(guess.argmax(1) == following[:, k]).sum() for k, guess in enumerate(guesses)])
    return (right / places).tolist()


def main():
    corpus, scratch = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    torch.manual_seed(1)
    torch.set_num_threads(2)
    model = transformers.AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32).eval()
    output, width = model.transformer.wte.weight.detach(), model.config.n_embd
    tokens = {"train": windows_of(corpus / "train.bin", EVERY), "val": windows_of(corpus / "val.bin", 2)}
    states = {name: hidden_states(model, texts, scratch / f"{name}.pt") for name, texts in tokens.items()}

    heads = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(HEADS))
    for head in heads:  # so each head starts from the model's own prediction of the next token
        torch.nn.init.zeros_(head.weight)
        torch.nn.init.zeros_(head.bias)
    places = len(tokens["train"]) * (LENGTH - 1 - HEADS)
    batches = [at for _ in range(EPOCHS) for at in torch.randperm(places).split(BATCH)]
    optimizer = torch.optim.AdamW(heads.parameters(), RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / len(batches))
    begin = time.monotonic()
    for step, at in enumerate(batches):
        h, following = places_of(states["train"], tokens["train"], at)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = sum(torch.nn.functional.cross_entropy(logits_of(head, h, output).float(), following[:, k])
                       for k, head in enumerate(heads, 1)) / HEADS
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"{step}/{len(batches)} loss {loss.item():.3f} after {time.monotonic() - begin:.0f} s", flush=True)

    for head in heads:
        head.bfloat16()
    tensors = {f"{k}.0.linear.{name}": value.detach().contiguous()
               for k, head in enumerate(heads) for name, value in head.named_parameters()}
    safetensors.torch.save_file(tensors, HERE / "medusa_lm_head.safetensors")
    config = {"base_model_name_or_path": BASE.name, "base_model_fnv1a": fnv1a((BASE / "model.safetensors").read_bytes()),
              "medusa_num_heads": HEADS, "medusa_num_layers": 1}
    (HERE / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shares = accuracies(heads.float(), states["val"], tokens["val"], output)
    for k, share in enumerate(shares):
        print(f"{f'head {k}' if k else 'the model'}: {100 * share:.1f} %")


if __name__ == "__main__":
    main()
