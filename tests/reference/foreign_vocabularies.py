#!/usr/bin/env python3
"""Encodes texts with the vocabularies that llama.cpp tests itself with, and compares the ids with its own.

    ninja -C build tests/encode-texts
    tests/reference/foreign_vocabularies.py [SDIST]

The vocabularies are in the source package of llama-cpp-python: SDIST, or else as pip downloads it (75 MB) into
build-clients/. Without PyPI there is nothing to compare, which is said. Vocabularies of other kinds must be refused by
name. The last line counts.
"""
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "build-clients"
PYTHON = HOME / "vocabularies/bin/python"
PROGRAM = ROOT / "build/tests/encode-texts"
SEPARATOR = "\n__ggml_vocab_test__\n"
REFUSED = {"bert-bge": "model", "nomic-bert-moe": "model", "gemma-4": "model", "deepseek-coder": "pre",
           "deepseek-llm": "pre", "falcon": "pre", "qwen35": "pre"}


def prepare():
    """A Python with gguf, and the source package; or the reason why there is none."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 900}
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check", "--retries", "1"]
    HOME.mkdir(exist_ok=True)
    if not PYTHON.exists() and subprocess.run([sys.executable, "-m", "venv", PYTHON.parents[1]], **quiet).returncode:
        return None, "python3 -m venv failed"
    if subprocess.run([*pip, "install", "gguf"], **quiet).returncode:
        return None, "gguf cannot be installed from PyPI"
    if len(sys.argv) > 1:
        return Path(sys.argv[1]), None
    if not list(HOME.glob("llama_cpp_python-*.tar.gz")):
        subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", HOME, "llama-cpp-python"], **quiet)
    found = next(HOME.glob("llama_cpp_python-*.tar.gz"), None)
    return found, None if found else "the source package of llama-cpp-python cannot be had from PyPI"


def keys_of(path):
    import gguf
    keys = {}
    for name, field in gguf.GGUFReader(path).fields.items():
        if name.endswith((".tokens", ".merges")):
            keys[name] = [bytes(field.parts[i]).decode("utf-8", "replace") for i in field.data]
        elif name == "general.architecture" or (name.startswith("tokenizer.ggml.") and not name.endswith("charsmap")):
            keys[name] = field.contents()
    return keys


def compare(name, gguf_file, inputs, outputs):
    """What is wrong with a vocabulary, or nothing."""
    texts = inputs.decode("utf-8").split(SEPARATOR) if inputs else []
    wanted = [[int(number) for number in line.split()] for line in outputs.decode().split("\n")] if outputs else []
    wanted = wanted[:len(texts)]
    path = HOME / "vocabulary.gguf"
    path.write_bytes(gguf_file)
    done = subprocess.run([PROGRAM], input=json.dumps({**keys_of(path), "texts": texts}), capture_output=True, text=True,
                          timeout=300)
    if name in REFUSED:
        refused = done.returncode == 1 and f"tokenizer.ggml.{REFUSED[name]} is" in done.stderr
        return None if refused else f"it was not refused for its {REFUSED[name]}: {done.stderr.strip()}"
    if done.returncode:
        return done.stderr.strip()
    different = [(text, ids, want) for text, ids, want in zip(texts, json.loads(done.stdout), wanted, strict=True)
                 if ids != want]
    return f"{len(different)} of {len(texts)} differ, as {different[0]}" if different else None


def main():
    package, missing = prepare()
    if missing:
        print(f"Skipped: {missing}.")
        return 0
    if Path(sys.executable) != PYTHON:
        return subprocess.run([PYTHON, __file__, package], timeout=3600).returncode
    with tarfile.open(package) as archive:
        files = {Path(member.name).name: io.BytesIO(archive.extractfile(member).read()).getvalue()
                 for member in archive if "/models/ggml-vocab-" in member.name}
    wrong = 0
    vocabularies = sorted(file for file in files if file.endswith(".gguf"))
    for file in vocabularies:
        name = file.removeprefix("ggml-vocab-").removesuffix(".gguf")
        fault = compare(name, files[file], files.get(file + ".inp"), files.get(file + ".out"))
        wrong += fault is not None
        passed = "refused by name" if name in REFUSED else "as llama.cpp" if file + ".inp" in files else "loads; no texts"
        print(f"{name}: {fault or passed}", flush=True)
    print(f"{len(vocabularies) - wrong} of {len(vocabularies)} vocabularies passed.")
    return 1 if wrong or not vocabularies else 0


sys.exit(main())
