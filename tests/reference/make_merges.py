"""Writes merges.json: what Hugging Face's tokenizers learns from bench/fables.txt, in the order of the bytes.

    python3 tests/reference/make_merges.py      needs the package tokenizers
"""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
COUNT = 500

text = (HERE.parents[1] / "bench/fables.txt").read_text(encoding="ascii")
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(GPT2), "isolated")
letters = sorted(set(text))
trainer = trainers.BpeTrainer(vocab_size=len(letters) + COUNT, min_frequency=2, initial_alphabet=letters, show_progress=False)
tokenizer.train_from_iterator([text], trainer)
merges = json.loads(tokenizer.to_str())["model"]["merges"]
(HERE / "merges.json").write_text(json.dumps({"merges": merges}) + "\n", encoding="ascii")
