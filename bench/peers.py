"""tools/bench --peers: other engines on the same weights, prompts and threads, in turns with ours.

Every engine is a fresh process in every round, and the rounds begin with another engine each time, so that neither
what a process leaves in the caches nor a machine that slows down favours one of them.
"""

import json
import os
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("torch", "transformers", "ctranslate2", "safetensors")
HERE = Path(__file__).resolve().parent
DECODE_PROMPT, NEW_TOKENS, BATCH = 16, 128, 8

# A choice between logits that lie closer than this is a near-tie, which rounding may decide either way.
NEAR_TIE = 1e-3

OURS, REFERENCE = "Staircase", "transformers, float32"


class Failure(Exception):
    """What went wrong, in one sentence for a person."""


@dataclass
class Setting:
    root: Path
    build: Path
    program: Path
    model: Path
    threads: list
    prompt_tokens: int
    rounds: int
    busy: float


def run(*command, log, environment=None):
    """True if it went well; all that it said is in `log`."""
    with open(log, "w", encoding="utf-8") as stream:
        return subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=stream,
                              stderr=subprocess.STDOUT, env=environment, check=False).returncode == 0


def python_with_packages(build):
    """The Python of $PEERS_VENV, or of an environment of our own with the newest releases."""
    given = os.environ.get("PEERS_VENV")
    venv = Path(given or build / "venv").absolute()
    python, log = venv / "bin" / "python", build / "venv.log"
    check = [python, "-c", "import importlib.util as u, sys; "
             f"sys.exit(not all(u.find_spec(name) for name in {PACKAGES}))"]
    if python.exists() and run(*check, log=log):
        return python
    if given:
        raise Failure(f"PEERS_VENV={given}: this is no virtual environment with {', '.join(PACKAGES)}")
    print("Installing PyTorch, transformers and CTranslate2 into build-bench/venv/ (some 2 GB, once) ...",
          file=sys.stderr)
    if not python.exists() and not run(sys.executable, "-m", "venv", venv, log=log):
        raise Failure(f"python3 -m venv failed (Debian and Ubuntu have it in the package python3-venv); see {log}")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    # PyTorch's own index has builds without CUDA, a tenth of the size; where it is out of reach, any build does.
    run(*pip, "torch", "--index-url", "https://download.pytorch.org/whl/cpu", log=log)
    if not run(*pip, *PACKAGES, log=log):
        raise Failure("pip could not install PyTorch, transformers and CTranslate2: is there a network? (PEERS_VENV=DIR "
                      f"names an environment that has them; all that pip said is in {log})")
    return python


def write_prompts(setting, config):
    """Random tokens; the last of the vocabulary is the end of the text and stays out."""
    positions = config["n_positions"]
    if positions < DECODE_PROMPT + NEW_TOKENS:
        raise Failure(f"{setting.model.name} has a context of {positions} positions, and the comparison needs "
                      f"{DECODE_PROMPT + NEW_TOKENS}")
    count = setting.prompt_tokens or min(512, positions)
    if count > positions:
        raise Failure(f"--prompt-tokens {count}: the context of {setting.model.name} is {positions} positions")
    choice = random.Random(1)
    prompts = {name: [choice.randrange(config["vocab_size"] - 1) for _ in range(length)]
               for name, length in (("prefill", count), ("decode", DECODE_PROMPT))}
    prompts["batch"] = [[choice.randrange(config["vocab_size"] - 1) for _ in range(DECODE_PROMPT)] for _ in range(BATCH)]
    file = setting.build / "peers" / "prompts.json"
    file.write_text(json.dumps(prompts))
    return file, count


def convert(python, setting):
    """The model in CTranslate2's format, converted anew when the file has changed."""
    source = (setting.model / "model.safetensors").stat()
    folder = setting.build / "peers" / f"{setting.model.name}-ct2"
    stamp, stamped = folder / "made-from", f"{setting.model} {source.st_size} {source.st_mtime_ns}"
    if stamp.exists() and stamp.read_text() == stamped:
        return folder
    print(f"Converting {setting.model.name} for CTranslate2 ...", file=sys.stderr)
    log = setting.build / "peers" / "convert.log"
    if not run(python, HERE / "peer_ctranslate2.py", "--convert", setting.model, folder, log=log):
        raise Failure(f"CTranslate2 could not convert {setting.model}; see {log}")
    stamp.write_text(stamped)
    return folder


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def agreement(run_, reference):
    """How many tokens equal the reference's before the first that differs, and whether that one was a near-tie."""
    tokens, wanted = run_["token_ids"], reference["token_ids"]
    same = next((i for i, (a, b) in enumerate(zip(tokens, wanted)) if a != b), len(wanted))
    tie = same < len(wanted) and min(reference["gaps"][same], run_.get("gaps", reference["gaps"])[same]) < NEAR_TIE
    prefill = (run_["prefill_token"] == reference["prefill_token"] or reference["prefill_gap"] < NEAR_TIE)
    return {"same_tokens": same, "of": len(wanted), "near_tie": tie,
            "agrees": prefill and (same == len(wanted) or tie)}


def print_table(result, prompt_tokens):
    engines = result["engines"]
    decode, prefill = (statistics.median(engines[OURS][key]) for key in ("decode_tokens_per_s", "prefill_ms"))
    print(f"\n{result['model']}, {result['threads']} threads, {result['rounds']} rounds: median (min–max); a ratio above 1 "
          "means that ours is faster\n")
    print(f"| engine | prefill {prompt_tokens} tokens, ms | ratio | decode, tokens/s | ratio "
          "| greedy tokens as in transformers |")
    print("|---|---|---|---|---|---|")
    for name, e in engines.items():
        same = e["agreement"]
        words = f"{same['same_tokens']} of {same['of']}" + (", then a near-tie" if same["near_tie"] else "")
        print(f"| {name} | {spread(e['prefill_ms'], 2)} | {statistics.median(e['prefill_ms']) / prefill:.2f} "
              f"| {spread(e['decode_tokens_per_s'], 1)} | {decode / statistics.median(e['decode_tokens_per_s']):.2f} "
              f"| {words if name != REFERENCE else '–'} |")


def compare_with_threads(setting, threads, python, converted, prompts, prompt_tokens):
    part, log = setting.build / "peers" / "result.json", setting.build / "peers" / "engine.log"
    common = ["--threads", threads, "--prompts", prompts, "--new-tokens", NEW_TOKENS, "--json", part]
    ctranslate2 = [python, HERE / "peer_ctranslate2.py", "--model", converted, *common]
    engines = [
        (OURS, {}, [setting.program, "generation", "--model", setting.model, *common]),
        (REFERENCE, {}, [python, HERE / "peer_transformers.py", "--model", setting.model, *common]),
        # CTranslate2 chooses between MKL and oneDNN by the maker of the processor; whichever is faster is the peer.
        ("CTranslate2, float32, oneDNN", {"CT2_USE_MKL": "0"}, ctranslate2),
        ("CTranslate2, float32", {}, ctranslate2),
    ]
    runs = {name: [] for name, _, _ in engines}
    for number in range(setting.rounds):
        turn = number % len(engines)
        for name, variables, command in engines[turn:] + engines[:turn]:
            environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads),
                               TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", **variables)
            part.unlink(missing_ok=True)
            if sys.stderr.isatty():
                print(f"\r\033[Kround {number + 1} of {setting.rounds}: {name}", end="", file=sys.stderr, flush=True)
            if not run(*command, log=log, environment=environment) or not part.exists():
                lines = log.read_text().strip().splitlines()
                raise Failure(f"{name} failed ({lines[-1] if lines else 'without a word'}); see {log}")
            runs[name].append(json.loads(part.read_text()))
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)

    result = {"model": setting.model.name, "threads": threads, "rounds": setting.rounds, "prompt_tokens": prompt_tokens,
              "decode_prompt_tokens": DECODE_PROMPT, "new_tokens": NEW_TOKENS, "engines": {}}
    for name, of_engine in runs.items():
        result["engines"][name] = {
            "version": of_engine[0].get("version", ""),
            "prefill_ms": [statistics.median(one["prefill_ms"]) for one in of_engine],
            "decode_tokens_per_s": [one["decode_tokens_per_s"] for one in of_engine],
            "agreement": agreement(of_engine[0], runs[REFERENCE][0]),
        }
    print_table(result, prompt_tokens)
    return result


def compare(setting):
    python = python_with_packages(setting.build)
    (setting.build / "peers").mkdir(exist_ok=True)
    try:
        config = json.loads((setting.model / "config.json").read_text())
        prompts, prompt_tokens = write_prompts(setting, config)
    except (OSError, ValueError, KeyError) as error:
        raise Failure(f"{setting.model}/config.json cannot be used: {error}") from error
    converted = convert(python, setting)
    runs = [compare_with_threads(setting, threads, python, converted, prompts, prompt_tokens)
            for threads in setting.threads]
    for name, engine in runs[0]["engines"].items():
        if engine["version"]:
            print(("\n" if name == REFERENCE else "") + f"{name}: {engine['version']}")
    return {"busy_before": setting.busy, "agree": all(run_["engines"][OURS]["agreement"]["agrees"] for run_ in runs),
            "runs": runs}
