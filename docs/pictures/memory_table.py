"""The table of memory.md, by the formulas of that page. `python3 docs/pictures/memory_table.py` prints it."""

MODELS = {  # n_layer, n_embd, vocab_size, n_positions
    "tales-6m": (6, 256, 4096, 512),
    "gpt2": (12, 768, 50257, 1024),
    "gpt2-medium": (24, 1024, 50257, 1024),
    "gpt2-large": (36, 1280, 50257, 1024),
    "gpt2-xl": (48, 1600, 50257, 1024),
}


def rows():
    for name, (layers, n, vocabulary, positions) in MODELS.items():
        inner = 4 * n
        matrices = layers * (4 * n * n + 2 * n * inner) + vocabulary * n
        others = layers * (5 * n + inner) + (2 * layers + 1) * 2 * n + positions * n
        sizes = [matrices * 4 + others * 4, matrices * 2 + others * 4, 2 * layers * positions * n * 4,
                 2 * layers * positions * n * 2, (positions * (5 * n + inner) + 3 * n + vocabulary) * 4]
        yield " | ".join([f"| {name}", f"{(matrices + others) / 1e6:,.1f} million",
                          *(f"{size / 2 ** 20:,.1f}" for size in sizes)]) + " |"


if __name__ == "__main__":
    print("\n".join(rows()))
