#!/usr/bin/env python3
"""Encodes texts with the vocabularies that llama.cpp tests itself with, and compares the ids with its own.

    ninja -C build tests/encode-texts
    tests/reference/foreign_vocabularies.py [SDIST]

The vocabularies are in the source package of llama-cpp-python: SDIST, otherwise the version below, which pip downloads
(77 MB) into build-clients/ and checks by its hash. Without PyPI there is nothing to compare, and the script reports
that. Vocabularies of other kinds must be refused by name. The last line counts.
"""
import json
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "build-clients"
PYTHON = HOME / "vocabularies/bin/python"
PROGRAM = ROOT / "build/tests/encode-texts"
VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SEPARATOR = "\n__ggml_vocab_test__\n"
REFUSED = {"bert-bge": "model", "nomic-bert-moe": "model", "gemma-4": "model", "deepseek-coder": "pre",
           "deepseek-llm": "pre", "falcon": "pre", "qwen35": "pre"}


def prepare():
    """The source package; or the reason why there is none."""
    if len(sys.argv) > 1:
        return Path(sys.argv[1]), None
    package, wanted = HOME / f"llama_cpp_python-{VERSION}.tar.gz", HOME / "llama-cpp-python.txt"
    if package.exists():
        return package, None
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 900}
    pip = [PYTHON, "-m", "pip", "--disable-pip-version-check", "--retries", "1"]
    HOME.mkdir(exist_ok=True)
    wanted.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{SHA256}\n")
    if not PYTHON.exists() and subprocess.run([sys.executable, "-m", "venv", PYTHON.parents[1]], **quiet).returncode:
        return None, "python3 -m venv failed"
    # Pip learns the name and the version of a source package from what would build it.
    subprocess.run([*pip, "install", "scikit-build-core"], **quiet)
    subprocess.run([*pip, "download", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--require-hashes",
                    "--requirement", wanted, "--dest", HOME], **quiet)
    return package, None if package.exists() else f"llama-cpp-python {VERSION} cannot be downloaded from PyPI"


def compare(name, gguf_file, inputs, outputs):
    """What is wrong with a vocabulary, or nothing."""
    texts = inputs.decode("utf-8").split(SEPARATOR) if inputs else []
    wanted = [[int(number) for number in line.split()] for line in outputs.decode().split("\n")] if outputs else []
    wanted = wanted[:len(texts)]
    path = HOME / "vocabulary.gguf"
    path.write_bytes(gguf_file)
    done = subprocess.run([PROGRAM, path], input=json.dumps(texts), capture_output=True, text=True, timeout=300)
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
    with tarfile.open(package) as archive:
        files = {Path(member.name).name: archive.extractfile(member).read()
                 for member in archive if "/models/ggml-vocab-" in member.name}
    HOME.mkdir(exist_ok=True)
    wrong = texts = 0
    vocabularies = sorted(file for file in files if file.endswith(".gguf"))
    for file in vocabularies:
        name = file.removeprefix("ggml-vocab-").removesuffix(".gguf")
        inputs = files.get(file + ".inp")
        fault = compare(name, files[file], inputs, files.get(file + ".out"))
        count = inputs.decode().count(SEPARATOR) + 1 if inputs else 0
        wrong += fault is not None
        texts += count if fault is None and name not in REFUSED else 0
        passed = "refused by name" if name in REFUSED else f"{count} texts as llama.cpp" if inputs else "loads; no texts"
        print(f"{name}: {fault or passed}", flush=True)
    print(f"{len(vocabularies) - wrong} of {len(vocabularies)} vocabularies passed, with {texts} texts.")
    return 1 if wrong or not vocabularies else 0


sys.exit(main())
