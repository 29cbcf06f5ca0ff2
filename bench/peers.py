"""tools/bench --peers: compares our engine with others on the same weights, prompts and threads.

Every engine runs in a fresh process in every round, and each round begins with a different engine. So neither warm
caches nor a slow phase of the machine favours an engine.

$PEERS_DIR/peers.json lists engines that are not Python packages; see read_peers_file.
"""

import json
import os
import random
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
NEW_TOKENS, BATCH = 128, 8

# Logits closer than this are a near-tie, which rounding may decide either way.
NEAR_TIE = 1e-3

OURS, REFERENCE = "Staircase, float32", "transformers, float32"

# The precision of each type of weights. Only engines of the same precision are compared.
PRECISIONS = {"float32": "float32", "float16": "16 bits", "bfloat16": "16 bits", "int8": "8 bits", "int4": "4 bits"}


class Failure(Exception):
    """An error, in one sentence for a person."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with some engines' packages."""
    folder: str    # its name in the build folder
    variable: str  # names a folder to use instead
    packages: tuple
    modules: tuple  # the modules that the packages provide


MAIN = Environment("venv", "PEERS_VENV", ("torch", "transformers", "ctranslate2", "safetensors"),
                   ("torch", "transformers", "ctranslate2", "safetensors"))
# A separate environment: optimum needs an older transformers than the newest.
OPENVINO = Environment("venv-openvino", "OPENVINO_VENV", ("torch", "openvino", "optimum-intel[openvino]"),
                       ("torch", "openvino", "optimum.intel"))


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
    only: list
    cpu_time: bool = False  # processor time instead of wall-clock time
    context: int = 16  # tokens before decoding, in each sequence
    decode_only: bool = False
    cache_dtype: str = ""  # the type of keys and values; if empty, each engine's own
    texts: bool = True  # compare texts with those of transformers in float32
    prefill_is_context: bool = False  # the prompt before decoding is timed, instead of another prompt and a batch


@dataclass
class Engine:
    name: str
    dtype: str  # the type of the weights
    commands: list
    environment: dict
    ours: bool = False
    version: str = ""  # the version of an engine that does not report its own

    @property
    def precision(self):
        return PRECISIONS[self.dtype]


def run(*command, log, environment=None):
    """Runs a command and returns whether it succeeded. Its output goes to `log`."""
    with open(log, "w", encoding="utf-8") as stream:
        return subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=stream,
                              stderr=subprocess.STDOUT, env=environment, check=False).returncode == 0


def python_with_packages(build, environment):
    """Returns the Python of the environment that the variable names, or of a new environment with the latest
    releases."""
    given, packages = os.environ.get(environment.variable), ", ".join(environment.packages)
    venv = Path(given or build / environment.folder).absolute()
    python, log = venv / "bin" / "python", build / f"{environment.folder}.log"
    check = [python, "-c", "import importlib.util as u, sys; "
             f"sys.exit(not all(u.find_spec(name) for name in {environment.modules}))"]
    if python.exists() and run(*check, log=log):
        return python
    if given:
        raise Failure(f"{environment.variable}={given}: this is not a virtual environment with {packages}")
    print(f"Installing {packages} into build-bench/{environment.folder}/ (some 2 GB, once) ...", file=sys.stderr)
    if not python.exists() and not run(sys.executable, "-m", "venv", venv, log=log):
        raise Failure(f"python3 -m venv failed (Debian and Ubuntu have it in the package python3-venv); see {log}")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    # PyTorch's own index has builds without CUDA, a tenth of the size. If it cannot be reached, any build will do.
    run(*pip, "torch", "--index-url", "https://download.pytorch.org/whl/cpu", log=log)
    if not run(*pip, *environment.packages, log=log):
        raise Failure(f"pip could not install {packages}: is there a network? ({environment.variable}=DIR names an "
                      f"environment that has them; pip's output is in {log})")
    return python


def write_prompts(setting, config):
    """Random tokens, but never the vocabulary's last one, which ends the text."""
    positions = config.get("n_positions") or config["max_position_embeddings"]
    if positions < setting.context + NEW_TOKENS:
        raise Failure(f"--context {setting.context}: with {NEW_TOKENS} new tokens that is more than the {positions} positions "
                      f"of {setting.model.name}")
    count = setting.context if setting.prefill_is_context else setting.prompt_tokens or min(512, positions)
    if count > positions:
        raise Failure(f"--prompt-tokens {count}: the context of {setting.model.name} is {positions} positions")
    choice = random.Random(1)

    def tokens(length):
        return [choice.randrange(config["vocab_size"] - 1) for _ in range(length)]

    prompts = {"prefill": tokens(count), "decode": tokens(setting.context),
               "batch": [tokens(setting.context) for _ in range(BATCH)]}
    if setting.decode_only or setting.prefill_is_context:  # what has no prompt is not measured
        prompts["prefill"], prompts["batch"] = [], []
    file = setting.build / "peers" / "prompts.json"
    file.write_text(json.dumps(prompts))
    # The prompts as plain text for programs that cannot read JSON: one per line, "decode", "prefill" and then the
    # batch.
    lines = [line for line in (prompts["decode"], prompts["prefill"], *prompts["batch"]) if line]
    file.with_suffix(".txt").write_text("".join(" ".join(map(str, line)) + "\n" for line in lines))
    return file, count


def converted_model(setting, name, command):
    """Returns the folder with the model that `command` converts for this engine. Converts it again if the file has
    changed."""
    source = (setting.model / "model.safetensors").stat()
    folder = setting.build / "peers" / f"{setting.model.name}-{name}"
    stamp, stamped = folder / "made-from", f"{setting.model} {source.st_size} {source.st_mtime_ns}"
    if stamp.exists() and stamp.read_text() == stamped:
        return folder
    print(f"Converting {setting.model.name} for {name} ...", file=sys.stderr)
    log = setting.build / "peers" / "convert.log"
    if not run(*command, "--convert", setting.model, folder, log=log):
        raise Failure(f"{name} could not convert {setting.model}; see {log}")
    stamp.write_text(stamped)
    return folder


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def agreement(run_, reference):
    """How many tokens equal the reference's before the first difference, and whether this difference was a near-tie."""
    tokens, wanted = run_["token_ids"], reference["token_ids"]
    same = next((i for i, (a, b) in enumerate(zip(tokens, wanted)) if a != b), len(wanted))
    tie = same < len(wanted) and min(reference["gaps"][same], run_.get("gaps", reference["gaps"])[same]) < NEAR_TIE
    prefill = ("prefill_token" not in reference or run_.get("prefill_token") == reference["prefill_token"]
               or reference["prefill_gap"] < NEAR_TIE)
    return {"same_tokens": same, "of": len(wanted), "near_tie": tie,
            "agrees": prefill and (same == len(wanted) or tie)}


def read_peers_file(setting, threads, left_out):
    """The engines of $PEERS_DIR/peers.json: a list of

        {"name": "llama.cpp, q8_0", "dtype": "int8",
         "prepare": "convert {model} {converted}",               once per model, if {converted} is missing
         "commands": ["bench {converted} {prompts} {new_tokens} {clock}"],
         "threads": 2,                                           optional: the only number that it supports
         "version": "llama.cpp b1234"}                           optional: for the page of figures

    `dtype` is the type of ours to compare with: "int8" for any engine that keeps weights in 8 bits, and so on. Commands
    run in $PEERS_DIR and print a line 'RESULT {...}' with any of decode_tok_s, batch8_tok_s, prefill_ms (a list),
    prompt_ms (the time until the first token before decoding), tokens and prefill_token. Later commands add only values
    that earlier ones did not print. {prompts} is a text file in the format of write_prompts, with a single line for
    --decode-only and for several contexts. {threads} is the number of threads, and {clock} "wall", or "cpu" for
    processor time. {cache} is our type to keep keys and values in, or "default".
    `left_out` records engines that cannot be prepared, or that lack such a clock or cannot choose the cache's type.
    """
    folder = os.environ.get("PEERS_DIR")
    if not folder:
        return []
    try:
        engines = []
        for entry in json.loads(Path(folder, "peers.json").read_text(encoding="utf-8")):
            name, dtype = entry["name"], entry["dtype"]
            if dtype not in PRECISIONS:
                raise ValueError(f"{name} has weights in '{dtype}'; it must be one of {', '.join(PRECISIONS)}")
            if entry.get("threads", threads) != threads or not wanted(setting, name):
                continue
            converted = Path(folder, f"{setting.model.name}-{dtype}-{name.split(',')[0].replace(' ', '-')}")
            words = {"model": setting.model, "converted": converted.absolute(), "threads": threads,
                     "new_tokens": NEW_TOKENS, "prompts": setting.build / "peers" / "prompts.txt",
                     "clock": "cpu" if setting.cpu_time else "wall", "cache": setting.cache_dtype or "default"}
            words = {word: shlex.quote(str(value)) for word, value in words.items()}
            commands = [command.format(**words) for command in entry["commands"]]
            prepare = entry.get("prepare", "").format(**words)
            if setting.cpu_time and not all("{clock}" in command for command in entry["commands"]):
                left_out[name] = f"{name}: it cannot measure processor time, since its commands take no {{clock}}"
                continue
            if setting.cache_dtype and not all("{cache}" in command for command in entry["commands"]):
                left_out[name] = f"{name}: its cache cannot be {setting.cache_dtype}, since its commands take no {{cache}}"
                continue
            if prepare and not converted.exists():
                log = setting.build / "peers" / "prepare.log"
                print(f"Preparing {setting.model.name} for {name} ...", file=sys.stderr)
                if not run("bash", "-c", f"cd {shlex.quote(folder)} && {prepare}", log=log):
                    log.rename(log.with_name("failed.log"))
                    left_out[name] = f"{name}: preparing the model failed; see {log.with_name('failed.log')}"
                    continue
            engines.append(Engine(name, dtype,
                                  [["bash", "-c", f"cd {shlex.quote(folder)} && {command}"] for command in commands], {},
                                  version=entry.get("version", "")))
        return engines
    except KeyError as error:
        raise Failure(f"PEERS_DIR={folder}: peers.json cannot be used (there is no {error})") from error
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise Failure(f"PEERS_DIR={folder}: peers.json cannot be used ({error})") from error


def wanted(setting, name):
    return not setting.only or any(text in name for text in setting.only)


def with_such_a_cache(setting, names, left_out):
    """The engines of {engine: dtype} whose cache has the type of --cache-dtype. They keep the cache in the type that
    they compute in, which is never int8."""
    if not setting.cache_dtype:
        return names
    kept = {name: dtype for name, dtype in names.items() if dtype == setting.cache_dtype != "int8" or name == REFERENCE}
    left_out.update({name: f"{name}: its cache cannot be {setting.cache_dtype}" for name in names if name not in kept})
    return kept


def ctranslate2_engines(setting, arguments, left_out):
    names = {f"CTranslate2, {dtype}": dtype for dtype in ("float32", "bfloat16", "int8")}
    # CTranslate2 chooses MKL or oneDNN by the processor's vendor. The faster of the two is the peer.
    names = {"CTranslate2 with oneDNN, float32": "float32", **names}
    names = with_such_a_cache(setting, {name: dtype for name, dtype in names.items() if wanted(setting, name)}, left_out)
    if not names:
        return []
    command = [python_with_packages(setting.build, MAIN), HERE / "peer_ctranslate2.py"]
    model = converted_model(setting, "CTranslate2", command)
    command += ["--model", model, *arguments, "--compute-type"]
    return [Engine(name, dtype, [[*command, dtype]], {"CT2_USE_MKL": "0"} if "with oneDNN" in name else {})
            for name, dtype in names.items()]


def openvino_engines(setting, arguments, _):
    names = {f"OpenVINO, {dtype}": dtype for dtype in ("float32", "bfloat16", "int8")}
    names = {name: dtype for name, dtype in names.items() if wanted(setting, name)}
    if not names:
        return []
    python, engines = python_with_packages(setting.build, OPENVINO), []
    for name, dtype in names.items():
        command = [python, HERE / "peer_openvino.py", "--dtype", dtype]
        if setting.cache_dtype:
            command += ["--cache-dtype", setting.cache_dtype]
        model = converted_model(setting, "OpenVINO-int8" if dtype == "int8" else "OpenVINO", command)
        engines.append(Engine(name, dtype, [[*command, "--model", model, *arguments]], {}))
    return engines


def find_engines(setting, threads, prompts):
    """Returns the engines, the names of the engines that run only for their text, and why others are left out."""
    part = setting.build / "peers" / "result.json"
    arguments = ["--threads", threads, "--prompts", prompts, "--new-tokens", NEW_TOKENS, "--json", part]
    if setting.cpu_time:
        arguments.append("--cpu-time")
    transformers = [python_with_packages(setting.build, MAIN), HERE / "peer_transformers.py", "--model", setting.model,
                    *arguments]
    engines, left_out = [], {}
    for dtype in PRECISIONS:
        cache = ["--cache-dtype", setting.cache_dtype] if setting.cache_dtype and dtype != "float32" else []
        engines.append(Engine(f"Staircase, {dtype}", dtype,
                              [[setting.program, "generation", "--model", setting.model, "--dtype", dtype, *cache, *arguments]],
                              {}, True))
    ways = {f"transformers{way}, {dtype}": dtype for dtype in ("float32", "bfloat16") for way in ("", " compiled")}
    for name, dtype in with_such_a_cache(setting, ways, left_out).items():
        command = [*transformers, "--dtype", dtype, *(["--compiled"] if "compiled" in name else [])]
        engines.append(Engine(name, dtype, [command], {}))
    for family, find in (("CTranslate2", ctranslate2_engines), ("OpenVINO", openvino_engines)):
        try:
            engines += find(setting, arguments, left_out)
        except Failure as failure:
            left_out[family] = f"{family}: {failure}"
    engines += read_peers_file(setting, threads, left_out)
    return *chosen(setting, engines, left_out), left_out


def chosen(setting, engines, left_out):
    """Returns the engines that --only selects, and ours of the same types. Unless --no-texts is given, our float32 and
    the reference also run, but only for their texts: the second list has their names. Weights in float32 are not
    measured with a cache of fewer bits."""
    for text in setting.only:
        if not any(text in name for name in (*(engine.name for engine in engines), *left_out)):
            raise Failure(f"--only {text}: no engine's name contains that; a name is an engine and a type, like "
                          f"'CTranslate2, int8', and our types are {', '.join(PRECISIONS)}")
    fitting = [engine for engine in engines if setting.cache_dtype in ("", "float32") or engine.dtype != "float32"]
    dtypes = {engine.dtype for engine in fitting if wanted(setting, engine.name)}
    measured = [engine.name for engine in fitting
                if wanted(setting, engine.name) or (engine.ours and engine.dtype in dtypes)]
    if not measured:
        raise Failure(f"--only {','.join(setting.only)}: weights in float32 are not measured beside a cache in "
                      f"{setting.cache_dtype}; choose another type, or leave out --cache-dtype")
    texts = [name for name in (OURS, REFERENCE) if name not in measured and setting.texts]
    return [engine for engine in engines if engine.name in (*measured, *texts)], texts


def result_line(text):
    """The values of the last line 'RESULT {...}', under our names."""
    lines = [line for line in text.splitlines() if line.startswith("RESULT ")]
    if not lines:
        raise ValueError("no line that begins with RESULT")
    said = json.loads(lines[-1].removeprefix("RESULT "))
    names = {"decode_tok_s": "decode_tokens_per_s", "batch8_tok_s": "batch_tokens_per_s", "prefill_ms": "prefill_ms",
             "prompt_ms": "prompt_ms", "tokens": "token_ids", "prefill_token": "prefill_token"}
    return {ours: said[theirs] for theirs, ours in names.items() if said.get(theirs)}


def run_engine(engine, setting, threads):
    """Returns the figures of one run, or throws a Failure with the reason."""
    part, log = setting.build / "peers" / "result.json", setting.build / "peers" / "engine.log"
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), MKL_NUM_THREADS=str(threads),
                       TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", **engine.environment)
    figures = {}
    for command in engine.commands:
        part.unlink(missing_ok=True)
        went_well, said = run(*command, log=log, environment=environment), log.read_text(errors="replace")
        try:
            if not went_well:
                raise ValueError((said.strip().splitlines() or ["no output"])[-1])
            figures = {**(json.loads(part.read_text()) if part.exists() else result_line(said)), **figures}
        except ValueError as error:
            log.rename(log.with_name("failed.log"))
            raise Failure(f"{engine.name} failed ({error}); see {log.with_name('failed.log')}") from error
    return figures


def median(values):
    return statistics.median(values) if values else None


# The columns of an engine's row: the key, the heading, digits, and whether more is better.
COLUMNS = (("prefill_ms", "prefill {} tokens, ms", 1, False), ("decode_tokens_per_s", "decode, tokens/s", 1, True),
           ("batch_tokens_per_s", f"batch {BATCH}, tokens/s", 0, True))


def lead(ours, theirs, more_is_better):
    """How many times as fast our engine is."""
    return ours / theirs if more_is_better else theirs / ours


def table(engines, prompt_tokens):
    """The lines of a table in Markdown. A ratio is how many times as fast our engine is with weights of the same dtype.
    The bold ratio in a row of ours compares with the fastest other engine."""
    columns = [column for column in COLUMNS if any(e[column[0]] for e in engines.values())]
    with_text = any(e["agreement"] for e in engines.values())
    yield ("| engine" + "".join(f" | {heading.format(prompt_tokens)} | ratio" for _, heading, _, _ in columns)
           + (" | greedy tokens as in transformers |" if with_text else " |"))
    yield "|---" * (1 + 2 * len(columns) + with_text) + "|"
    for name, e in engines.items():
        cells = []
        for key, _, digits, more_is_better in columns:
            ours = median(engines.get(f"Staircase, {e['dtype']}", {}).get(key))
            others = [lead(ours, median(other[key]), more_is_better) for other in (engines.values() if e["ours"] else [e])
                      if ours and other[key] and other["dtype"] == e["dtype"] and not other["ours"]]
            mark = "**" if e["ours"] else ""
            cells.append(spread(e[key], digits) if e[key] else "–")
            cells.append(f"{mark}{min(others):.2f}{mark}" if others and e[key] else "–")
        same = e["agreement"]
        words = "–" if same is None or name == REFERENCE else (
            f"{same['same_tokens']} of {same['of']}" + (", then a near-tie" if same["near_tie"] else ""))
        yield " | ".join([f"| {name}", *cells, *([words] if with_text else [])]) + " |"


def print_tables(result, prompt_tokens):
    engines = result["engines"]
    clock = ", processor time" if result["cpu_time"] else ""
    cache = f" with a cache in {result['cache_dtype']}" if result["cache_dtype"] else ""
    print(f"\n{result['model']}, {result['threads']} threads, decoding after {result['decode_prompt_tokens']} tokens{cache}, "
          f"{result['rounds']} rounds{clock}: median (min–max); a ratio is how many times faster ours with weights of the "
          "same dtype is, and in bold beside the fastest other engine")
    for precision in dict.fromkeys(PRECISIONS.values()):
        group = {name: e for name, e in engines.items() if e["precision"] == precision}
        if group:
            print(f"\n{precision}:\n", *table(group, prompt_tokens), sep="\n")
    print()
    for precision, leads in result["leads"].items():
        for key, heading, _, _ in COLUMNS:
            if key in leads:
                found = leads[key]
                print(f"{precision}, {heading.format(prompt_tokens).split(',')[0]}: {found['ours']} is "
                      f"{found['lead']:.2f} times as fast as the fastest peer, {found['peer']}")


def leads_of(engines):
    """For each precision, the fastest of ours against the fastest peer."""
    result = {}
    for precision in dict.fromkeys(PRECISIONS.values()):
        for key, _, _, more_is_better in COLUMNS:
            best = {}
            for ours in (True, False):
                candidates = [(median(e[key]), name) for name, e in engines.items()
                              if e["precision"] == precision and e["ours"] == ours and e[key]]
                if candidates:
                    best[ours] = (max if more_is_better else min)(candidates)
            if len(best) == 2:
                result.setdefault(precision, {})[key] = {
                    "ours": best[True][1], "peer": best[False][1],
                    "lead": lead(best[True][0], best[False][0], more_is_better)}
    return result


def compare_with_threads(setting, threads, prompts, prompt_tokens):
    engines, texts, left_out = find_engines(setting, threads, prompts)
    runs = {engine.name: [] for engine in engines}
    for number in range(setting.rounds):
        turn = number % len(engines)
        for engine in engines[turn:] + engines[:turn]:
            if engine.name in left_out or (number and engine.name in texts):
                continue
            if sys.stderr.isatty():
                print(f"\r\033[Kround {number + 1} of {setting.rounds}: {engine.name}", end="", file=sys.stderr, flush=True)
            try:
                runs[engine.name].append(run_engine(engine, setting, threads))
            except Failure as failure:
                if engine.ours or engine.name == REFERENCE:
                    raise
                left_out[engine.name] = str(failure)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)

    result = {"model": setting.model.name, "threads": threads, "rounds": setting.rounds, "prompt_tokens": prompt_tokens,
              "cpu_time": setting.cpu_time, "decode_prompt_tokens": setting.context, "new_tokens": NEW_TOKENS, "batch": BATCH,
              "cache_dtype": setting.cache_dtype, "prefill_is_context": setting.prefill_is_context, "engines": {}, "left_out": left_out}
    for engine in engines:
        of_engine = runs[engine.name]
        if engine.name in left_out or not of_engine:
            continue
        measured = [] if engine.name in texts else of_engine
        figures = {key: [one[key] for one in measured if key in one] for key, _, _, _ in COLUMNS}
        figures["prefill_ms"] = [statistics.median(one) for one in figures["prefill_ms"]]
        if setting.prefill_is_context:
            figures["prefill_ms"] = [one["prompt_ms"] for one in measured if "prompt_ms" in one]
        first = of_engine[0]
        result["engines"][engine.name] = {
            "version": first.get("version", engine.version), "dtype": engine.dtype, "precision": engine.precision,
            "ours": engine.ours, **figures,
            "agreement": agreement(first, runs[REFERENCE][0]) if setting.texts and "token_ids" in first else None,
        }
    result["leads"] = leads_of(result["engines"])
    print_tables(result, prompt_tokens)
    for failure in left_out.values():
        print(f"left out: {failure}")
    return result


def compare(settings):
    """Compares the engines on the same model, once for each number of threads."""
    first = settings[0]
    (first.build / "peers").mkdir(exist_ok=True)
    runs = []
    try:
        config = json.loads((first.model / "config.json").read_text())
        for setting in sorted(settings, key=lambda setting: setting.context, reverse=True):
            write_prompts(setting, config)  # fails at once if the longest context has no room
    except (OSError, ValueError, KeyError) as error:
        raise Failure(f"{first.model}/config.json cannot be used: {error}") from error
    for setting in settings:
        prompts, prompt_tokens = write_prompts(setting, config)
        runs += [compare_with_threads(setting, threads, prompts, prompt_tokens) for threads in setting.threads]
    for version in dict.fromkeys(engine["version"] for engine in runs[0]["engines"].values() if engine["version"]):
        print(version)
    agree = not first.texts or all(run_["engines"][OURS]["agreement"]["agrees"] for run_ in runs)
    return {"busy_before": first.busy, "agree": agree, "runs": runs}


def picture(result):
    """Draws lines over several contexts as SVG. With several numbers of threads, it draws the first."""
    import long_texts  # it needs docs/pictures, which a book of few pages lacks
    runs = [run_ for run_ in result["runs"] if run_["threads"] == result["runs"][0]["threads"]]
    return long_texts.drawn(runs, long_texts.caption_of(runs[0], "")).svg()
