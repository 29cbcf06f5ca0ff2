#!/usr/bin/env python3
"""Writes small tokenizer.json files, one of each shape that models have, and the ids that Hugging Face's tokenizers and
transformers give for some texts: tests/reference/tokenizers/.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers==0.23.3 transformers==5.24.0
    /tmp/venv/bin/python tests/reference/make_tokenizers.py
"""
import copy
import json
import shutil
import tempfile
from pathlib import Path

import tokenizers
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = Path(__file__).parent
OUT = HERE / "tokenizers"
MARK = "\u2581"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")

# What the shapes differ in, and what others got wrong.
TEXTS = [
    "", " ", "  ", "   ", "a", " a", "  a", "a ", "Hello", "Hello world", " Hello  world ", "\n", " \n \n", "a\r\n\r\nb",
    "\ta\t\tb", "a" + " " * 9 + "b", "x" + " " * 30 + "y", "   \n  a", "I'm you'll it's HE'S we'VE", "it'\u017f don'\u017f",
    "0", "007", "1234567890", "3.14159", " 12 345", "v2.0", "\u0663\u0664\u0665 \u00bd", "x != y, x!=y ; (a.b)",
    "C\u1eeda Vi\u1ec7t", "Cu\u031b\u0309a Vie\u0323\u0302t", "e\u0301te\u0301 \u00e9t\u00e9", "\u212b \u1100\u1161\u11a8",
    "a\u0316\u0301 a\u0301\u0316", "\u4e2d\u6587\u5b57 \u65e5\u672c\u8a9e", "\U0001f600 \U0001f468\u200d\U0001f469",
    "a\u180eb \u180e c", "a\u00a0b\u3000c\u2028d", MARK, "a" + MARK + "b", MARK + MARK + "a", "<0x41>", "<0x0A>",
    "\U00100000\U000f0000\U00040000", "\u0001\u001d\u007f", "The wolf and the lamb", "the the the", "Once upon a time",
    "<|endoftext|>", "a<|endoftext|>b", "a <|endoftext|> b", "<|endoftext|", "<|endoftext|><|endoftext|>",
    "</s>", "</s>Hi", "<s> Hi</s>", "Hi </s> you", " </s>  you", "<s>", "<unk>", "<|user|>Hello", "<|user|> Hello",
    "a<|user|>", "a  <|left|>  b", "a  <|right|>  b", "<|left|><|right|>", "\u00a0<|left|>\u3000", "<|le", "<|left|>|>",
    "word", "a word b", "a_word b", "sword words", "(word)", "word\u0301", "wordword", "abcd", "abcde", "xabcdex", "ABC",
    "a ABC  b", "<think>hm</think>", "<|begin|>x", "bb", "abbb", "1,000", "\ufb01 \u2460", "ba\u0323t \u1ea1t", "a,b,,c", "\u0130\u0131",
]


def corpus():
    for line in (HERE / "unseen.txt").read_text().splitlines():
        yield line
    for case in json.loads((HERE / "tokenizer_gpt2.json").read_text())["cases"]:
        yield case["text"]


def train(tokenizer, size, special, alphabet):
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet,
                                  limit_alphabet=max(len(alphabet), 120), show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def byte_level(pre_tokenizer, normalizer=None, special=("<|endoftext|>",), alphabet=None, size=460):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, size, list(special), alphabet or pre_tokenizers.ByteLevel.alphabet())


def begins_with(tokenizer, token):
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A $B", special_tokens=[(token, tokenizer.token_to_id(token))])
    return tokenizer


def gpt2():
    """Merges as texts, as older files have them."""
    made = json.loads(byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)).to_str())
    made["model"]["merges"] = [" ".join(merge) for merge in made["model"]["merges"]]
    return made


def smollm2():
    """Each digit alone, and no tokens for bytes that texts hardly have."""
    alphabet = [c for c in pre_tokenizers.ByteLevel.alphabet() if ord(c) < 0x11D or ord(c) > 0x120]
    alphabet = [c for c in alphabet if c not in "\u00f1\u00f2\u00f3\u00f4\u00c0\u00c1" and not "\u00f5" <= c <= "\u00ff"]
    return byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)]),
                      special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"), alphabet=alphabet)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern) if isinstance(pattern, str) else pattern[0], behavior, invert),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3():
    """A word of the vocabulary is one token although no merges lead there."""
    tokenizer = byte_level(split(LLAMA3), special=("<|begin|>", "<|endoftext|>"))
    made = json.loads(begins_with(tokenizer, "<|begin|>").to_str())
    made["model"]["ignore_merges"] = True
    for text in ("C\u1eeda", " Vi\u1ec7t", " wolf", "abcd"):
        written = "".join(byte_character(b) for b in text.encode())
        made["model"]["vocab"].setdefault(written, len(made["model"]["vocab"]))
    return made


def byte_character(byte):
    prints = [b for b in range(256) if 33 <= b <= 126 or (b >= 161 and b != 173)]
    return chr(byte) if byte in prints else chr(256 + [b for b in range(256) if b not in prints].index(byte))


def qwen2():
    tokenizer = byte_level(split(QWEN), normalizers.NFC())
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False)])
    return tokenizer


def pythia():
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC())
    tokenizer.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    return tokenizer


def prefix_space():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), size=400)


def removed():
    """GPT-4's files specify it; the text between two matches is lost."""
    return byte_level(split(r"[^\s\p{L}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s{2,}", "removed", invert=True), size=400)


def literal():
    return byte_level(split([", "]), size=400)


def flags():
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC(), size=400)
    tokenizer.add_special_tokens([AddedToken("<|left|>", lstrip=True, normalized=False, special=True),
                                  AddedToken("<|right|>", rstrip=True, normalized=False, special=True),
                                  AddedToken("<|user|>", rstrip=True, lstrip=True, normalized=False, special=True)])
    tokenizer.add_tokens([AddedToken("word", single_word=True, normalized=False), AddedToken("abcd", normalized=False),
                          AddedToken("abcde", normalized=False), AddedToken("bb", normalized=False),
                          AddedToken("ABC", lstrip=True, rstrip=True, normalized=False),
                          AddedToken("a\u0323t", normalized=True)])
    return tokenizer


def sentence_pieces(normalizer, pre_tokenizer, decoder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    train(tokenizer, 330, [], [])
    made = json.loads(tokenizer.to_str())
    first = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = first + sorted(made["model"]["vocab"], key=made["model"]["vocab"].get)
    made["model"].update(vocab={piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>", fuse_unk=True,
                         byte_fallback=True)
    made.update(normalizer=None, pre_tokenizer=None)
    tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre_tokenizer, decoder
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in first[:3]])
    return begins_with(tokenizer, "<s>")


def llama2():
    return sentence_pieces(normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None,
                           decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                              decoders.Strip(" ", 1, 0)]))


def metaspace(scheme, split):
    return sentence_pieces(None, pre_tokenizers.Metaspace(MARK, scheme, split=split),
                           decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                              decoders.Strip(" ", 0 if scheme == "never" else 1, 0)]))


SHAPES = {
    "gpt2": gpt2, "smollm2": smollm2, "llama-3": llama3, "qwen2": qwen2, "pythia": pythia, "flags": flags,
    "prefix-space": prefix_space, "removed": removed, "literal": literal, "llama-2": llama2,
    "metaspace-first": lambda: metaspace("first", False), "metaspace-always": lambda: metaspace("always", True),
    "metaspace-never": lambda: metaspace("never", True),
}


def expected(tokenizer):
    """Of each text: its ids; its ids with special tokens, where they differ; what they decode to, where it differs."""
    cases = []
    for text in TEXTS:
        tokenizer.encode_special_tokens = True
        case = {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}
        tokenizer.encode_special_tokens = False
        special = tokenizer.encode(text, add_special_tokens=False).ids
        if special != case["ids"]:
            case["special_ids"] = special
        decoded = tokenizer.decode(case["ids"], skip_special_tokens=False)
        if decoded != text:
            case["decoded"] = decoded
        cases.append(case)
    return cases


# Folders that say more than tokenizer.json or vocab.json: transformers is the judge.
TOKEN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
FOLDERS = [
    {"name": "a begin-of-text token", "base": "tales",
     "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "<|endoftext|>",
                               "eos_token": "<|endoftext|>"}},
    {"name": "a space in front", "base": "tales",
     "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True,
                               "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}},
    {"name": "tokens that only the configuration adds", "base": "tales",
     "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|endoftext|>", "eos_token": "<|bot|>",
                               "added_tokens_decoder": {"4096": {"content": "<|user|>", **TOKEN},
                                                        "4097": {"content": "<|bot|>", **TOKEN},
                                                        "4098": {"content": "<tool>", **TOKEN, "special": False}}}},
    {"name": "the template's begin-of-text token and no wish for another", "base": "llama-3",
     "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False,
                               "bos_token": "<|begin|>", "eos_token": "<|endoftext|>"}},
    {"name": "the template's begin-of-text token and another's wish for it", "base": "llama-3",
     "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True,
                               "clean_up_tokenization_spaces": True, "bos_token": {"__type": "AddedToken", "content": "<|begin|>", **TOKEN},
                               "eos_token": "<|endoftext|>"}},
    {"name": "the template's begin-of-text token alone", "base": "llama-3",
     "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>",
                               "eos_token": "<|endoftext|>"}},
]
FOLDER_TEXTS = ["Once", "", " Once", "<|user|>Once<|bot|>", "a<|endoftext|>b", "<|begin|>Once", "<tool>x", "x != y , z ."]


def folder_cases(folder):
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        if folder["base"] == "tales":
            for file in ("vocab.json", "merges.txt"):
                shutil.copy(HERE.parents[1] / "models/tales-1m" / file, place)
        else:
            shutil.copy(OUT / f"{folder['base']}.json", place / "tokenizer.json")
        (place / "tokenizer_config.json").write_text(json.dumps(folder["tokenizer_config.json"]))
        recognizes = transformers.AutoTokenizer.from_pretrained(place)
        reads_text = transformers.AutoTokenizer.from_pretrained(place, split_special_tokens=True)
        return [{"text": text, "special_ids": recognizes(text)["input_ids"], "ids": reads_text(text)["input_ids"]}
                for text in FOLDER_TEXTS]


def write(path, value):
    path.write_text(json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace('{"text"', '\n{"text"') + "\n")


def main():
    OUT.mkdir(exist_ok=True)
    cases = {}
    for name, make in SHAPES.items():
        made = make()
        made = made if isinstance(made, dict) else json.loads(made.to_str())
        cases[name] = expected(Tokenizer.from_str(json.dumps(made)))
        write(OUT / f"{name}.json", made)
    folders = []
    for folder in FOLDERS:
        folders.append({**copy.deepcopy(folder), "cases": folder_cases(folder)})
    write(OUT / "expected.json", {"tokenizers": tokenizers.__version__, "transformers": transformers.__version__,
                                  "shapes": cases, "folders": folders})


main()
