#!/usr/bin/env python3
"""Gives programs nonsensical inputs: each has to end with status 0, 1 or 2, and with one sentence if it refuses.

    tests/program/hostile_inputs.py build                         # as many cases as 20 seconds hold
    tests/program/hostile_inputs.py build-sanitize --seconds 1800 # the more, the better
    tests/program/hostile_inputs.py build --only options --seed 7 # one kind of input, another order

A finding is printed with its command, and the files that it needs are kept. The same seed makes the same cases.
"""

import argparse
import concurrent.futures
import json
import os
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("01", "07", "11", "14", "17", "33", "34", "37", "38", "39", "40", "46", "51", "64", "70")
MODEL = ROOT / "models/tales-1m"
FAMILIES = ROOT / "tests/reference/families"
GGUF = ROOT / "tests/reference/gguf-families"

VALUES = [b"", b"-1", b"0", b"1", b"2", b"7", b"1e300", b"-1e300", b"3e38", b"1e-300", b"nan", b"inf", b"-inf", b"0.5",
          b"2147483647", b"2147483648", b"-2147483648", b"4294967296", b"18446744073709551616", b"9" * 400, b"0x10", b" 1",
          b"1,2", b",", b"0,0", b"-", b"--", b"--json", b"\x1b[31mred", "\u009b31m".encode(), b"\x7f", b"two\nlines",
          b"\xff\xfe\x80", b"\xc3", "Ä é 🙂".encode(), b"x" * 100_000, b"\x1b" * 5000, b"/", b".", b"/dev/null", b"/dev/full"]
JSON_VALUES = [None, True, False, -1, 0, 1, 2, 2.0, 0.5, 1e300, -1e300, 1e-300, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, 10**400,
               "", "x", "\x1b[31m", "\x00", "\u009b", "x" * 100_000, [], [[]], [None], [1, "a"], {}, {"a": {}}, "\ud800"]
# Legal work without an end: a run that is still busy with it has passed.
AMOUNTS = ("--max-new-tokens", "--num-return-sequences", "--num-beams", "--num-tokens", "--num-assistant-tokens", "--repeat",
           "--prompt-lookup-num-tokens", "--max-batch-size", "--draft-tokens", "--kv-blocks", "--min-new-tokens")
# A library's message to its programmer, not to a person.
FOREIGN = re.compile(r"std::|basic_\w+|vector::|\bstoi\b|\bstod\b|json\.exception|filesystem error|terminate called|Assertion"
                     r"|At Most|At Least|regex_error|bad_alloc|iostream error|length_error|out_of_range|map::at|optional access")
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f]")
SANITIZER = re.compile(r"Sanitizer|runtime error:")
NO_MEMORY = re.compile(r"out-of-memory|allocation-size-too-big|requested allocation size|hard rss limit|failed to allocate")


@dataclass
class Case:
    kind: str
    step: str
    arguments: list
    files: dict = field(default_factory=dict)  # name: bytes, in the folder in which the program runs
    model: tuple = ()   # the name of a copy, the folder to copy, and a function that damages the copy
    stdin: bytes = b""
    streams: str = ""   # a shell's redirections
    many: bool = False  # several errors are right: one a line of requests


# -------------------------------------------------------------------------------------------------------------- options


def options_of(program):
    """{option: whether it takes a value}, from the program's own help."""
    help_text = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    options = {}
    for line in help_text.splitlines():
        if found := re.match(r"  (--[\w-]+)(?:,(--[\w-]+)\{\w+\})?(.*)", line):
            name, other, rest = found.groups()
            # A kind of value comes after one blank, a flag's help after more.
            options[name] = other is None and re.match(r" (?:[A-Z]\S*|\w+\|\S+)", rest) is not None
            if other:
                options[other] = False
    return options


def base(program, *more, prompt=b"Once upon"):
    """Arguments that end soon; what follows may replace them."""
    given = [argument.split(b"=")[0] for argument in map(to_bytes, more)]
    arguments = []
    for name, value in (("--model", str(MODEL)), ("--prompt", prompt), ("--max-new-tokens", "3"), ("--threads", "1")):
        excluded = name == "--prompt" and (b"--prompts" in given or b"--requests" in given)
        if name in program.options and name.encode() not in given and not excluded:
            arguments += [name, value]
    return arguments + list(more)


def to_bytes(argument):
    return argument if isinstance(argument, bytes) else str(argument).encode()


def option_cases(program, rng):
    for name, takes_value in program.options.items():
        if not takes_value:
            yield Case("options", program.step, base(program, name))
            yield Case("options", program.step, base(program, name, name))
            yield Case("options", program.step, base(program, name + "=1"))
            continue
        yield Case("options", program.step, base(program, name))  # without a value
        yield Case("options", program.step, base(program, name, "1", name, "2"))
        for value in VALUES:
            if name == "--draft-model" and value == b"-":
                continue
            yield Case("options", program.step, base(program, name.encode() + b"=" + value))
            yield Case("options", program.step, base(program, name, value))
    for unknown in (b"--unknown", b"--\x1b[31m", b"-x", b"stray", b"--prompt\xff=1", b"--=", b"x" * 100_000, b"\xff", b"",
                    b"---", b"--Prompt=a", b"--max-new-tokens\x00"[:-1] + b"\x7f"):
        yield Case("options", program.step, base(program, unknown))


def pair_cases(program, rng, count=60):
    names = list(program.options)
    small = [b"0", b"1", b"2", b"3", b"17", b"0.5", b"2147483647", b"1073741824", b"33506", b"-1", b"nan", b"65536", b"auto",
             b"int4", b"float16", b"never", b"recompute", str(MODEL).encode(), b"a"]
    for _ in range(count):
        chosen = []
        for name in rng.sample(names, min(len(names), rng.choice((2, 2, 3, 4)))):
            chosen.append(name.encode() + b"=" + rng.choice(small) if program.options[name] else name)
        yield Case("pairs", program.step, base(program, *chosen))


# ---------------------------------------------------------------------------------------------------- prompts, requests


def prompt_cases(program, rng):
    texts = [b"", b" ", b"\n", b"\x00", b"a\x00b", b"\xef\xbb\xbf", b"\xef\xbb\xbfOnce", b"word " * 200_000, b"x" * 1_000_000,
             bytes(range(256)), rng.randbytes(5000), b"\xff" * 3000, "🙂".encode() * 2000, b"<|endoftext|>" * 300, b"\r\n\r\n",
             b"\xed\xa0\x80", b"\xf4\x90\x80\x80", "e\u0301".encode() * 3000, b" " * 20_000, b"\x1b[31m"]
    for text in texts:
        yield Case("prompts", program.step, base(program, prompt=b"-"), stdin=text)
        if len(text) < 100_000 and b"\x00" not in text:
            yield Case("prompts", program.step, base(program, prompt=text))
    if "--prompts" not in program.options:
        return
    for text in texts + [b"", b"a\nb\n\n\nc", b"a\r\nb\r\n", b"\n" * 300, b"no end"]:
        yield Case("prompts", program.step, base(program, "--prompts", "prompts"), files={"prompts": text})
    for name in ("missing", ".", "/dev/full", "/dev/null", "/proc/self/mem", ""):
        yield Case("prompts", program.step, base(program, "--prompts", name))


def request_cases(program, rng):
    if "--requests" not in program.options:
        return
    keys = [name[2:].replace("-", "_") for name in program.options] + ["prompt", "arrival", "unknown", "\x1b[31m", ""]
    lines = [b"null", b"[]", b"1", b'"a"', b"{}", b'{"prompt":null}', b'{"prompt":1}', b'{"prompt":"a"', b'{"prompt":"a"}}', b"{",
             b"\x00", b'{"prompt":"a\x00b"}', b"\xff\xfe", b'{"prompt":"\xff"}', b"[" * 100_000, b'{"a":' * 100_000,
             b'{"prompt":' + b"[" * 100_000, b'\xef\xbb\xbf{"prompt":"a"}', b'{"prompt":"a"}\r', b'{"prompt":"a","prompt":"b"}',
             b'{"prompt":"\\ud800"}', b'{"prompt":"\\u0000"}', b'{"prompt":"' + b"a" * 10_000_000 + b'"}', b"x" * 10_000_000,
             b'{"prompt":"a","max_new_tokens":1e400}', b'{"prompt":"a","seed":' + b"9" * 5000 + b"}", b'{"prompt":"a","top_p":-0.0}',
             b'{"prompt":"a","seed":1e300}', b'{"prompt":""}', b'{"prompt":"a","stop":[""]}', b'{"prompt":"a","stop":"\x1b"}',
             b'{"prompt":"' + b"word " * 200_000 + b'"}', b'{"prompt":"a","arrival":1e300}', b'{"prompt":"a","arrival":-0.1}']
    for key in keys:
        for value in JSON_VALUES:
            if key == "arrival" and value in (1, 2, 2.0) and not isinstance(value, bool):
                continue
            lines.append(json.dumps({"prompt": "a", key: value}).encode())
    good = b'{"prompt":"a","max_new_tokens":2}'
    while lines:
        some = [lines.pop(rng.randrange(len(lines))) for _ in range(min(len(lines), rng.choice((1, 1, 4, 16))))]
        if rng.random() < 0.5:
            some.insert(rng.randrange(len(some) + 1), good)
        yield Case("requests", program.step, base(program, "--requests", "requests"), many=True,
                   files={"requests": rng.choice((b"\n", b"\r\n", b"\n\n")).join(some)})


# -------------------------------------------------------------------------------------------------------- broken models


def places(value, path=()):
    """The paths to all that a JSON document holds; of a long list or object only some."""
    yield path
    if isinstance(value, dict):
        for key in list(value)[:40]:
            yield from places(value[key], path + (key,))
    elif isinstance(value, list):
        for index in range(min(len(value), 5)):
            yield from places(value[index], path + (index,))


def mutated(document, rng):
    """The document with one value or key replaced or left out."""
    paths = [path for path in places(document) if path]
    if not paths:
        return rng.choice(JSON_VALUES)
    path, value = rng.choice(paths), document
    for part in path[:-1]:
        value = value[part]
    if isinstance(value, dict) and rng.random() < 0.2:
        value[rng.choice(("", "x", "\x1b[31m", "é" * 1000))] = value.pop(path[-1])
    elif rng.random() < 0.2:
        del value[path[-1]]
    else:
        value[path[-1]] = rng.choice(JSON_VALUES)
    return document


def number_of(rng):
    bits = rng.choice((1, 2, 4, 8))
    value = rng.choice((0, 1, 2, 3, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1))
    return (value % 2**(8 * bits)).to_bytes(bits, "little")


def damaged_bytes(bytes_, rng, head):
    """Of binary files most of what can go wrong is in the head."""
    changed = bytearray(bytes_)
    kind = rng.randrange(6)
    if kind == 0:
        return bytes(changed[:rng.choice((0, 1, 4, 7, 8, 9, 23, 24, 25, head, len(changed) // 2, max(len(changed) - 1, 0),
                                          rng.randrange(len(changed) + 1)))])
    if kind == 1:
        return bytes(changed + rng.randbytes(rng.choice((1, 8, 100_000))))
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        end = rng.choice((32, head, head, len(changed)))
        place = rng.randrange(max(1, min(end, len(changed))))
        if kind in (2, 3):
            new = number_of(rng)
            changed[place:place + len(new)] = new
        elif kind == 4:
            changed[place] ^= 1 << rng.randrange(8)
        else:
            cut = rng.randrange(1, 64)
            changed[place:place + cut] = changed[place:place + cut] * rng.choice((0, 2))
    return bytes(changed)


def damaged_text(text, rng):
    kind = rng.randrange(9)
    if kind == 0:
        return text[:rng.randrange(len(text) + 1)]
    if kind == 1:
        return rng.choice((b"", b"{}", b"[]", b"null", b"\x00", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"1", b'""'))
    if kind == 2:
        return b"\xef\xbb\xbf" + text
    if kind == 3:
        return text.replace(b"\n", b"\r\n")
    if kind == 4:
        return text + rng.choice((b"\x00", b"x", b"{}", text))
    if kind == 5:
        return damaged_bytes(text, rng, len(text))
    lines = text.split(b"\n")
    place = rng.randrange(len(lines))
    lines[place:place + 1] = rng.choice(([], [lines[place]] * 2, [b"\x1b[31m a"], [b"one"], [b"a b c"], [b"\xff \xff"]))
    return b"\n".join(lines)


def damage(rng, name):
    """A function that damages this file in a folder."""
    seed = rng.random()

    def change(folder):
        file, rng = folder / name, random.Random(seed)
        before, kind = file.read_bytes(), rng.randrange(12)
        file.unlink()  # it is a link
        if kind == 0:
            return
        if kind == 1:
            file.mkdir()
            return
        if kind == 2:
            file.symlink_to("nowhere")
            return
        if name.endswith(".safetensors"):
            length = int.from_bytes(before[:8], "little")
            if rng.random() < 0.6:
                header = json.dumps(mutated(json.loads(before[8:8 + length]), rng)).encode()
                after = len(header).to_bytes(8, "little") + header + before[8 + length:]
            else:
                after = damaged_bytes(before, rng, 8 + length)
        elif name.endswith(".json") and rng.random() < 0.7:
            after = json.dumps(mutated(json.loads(before), rng)).encode()
        else:
            after = damaged_text(before, rng)
        file.write_bytes(after)

    return change


def model_cases(program, rng, count=40):
    folders = [MODEL] + sorted(FAMILIES.iterdir())
    for _ in range(count):
        folder = rng.choice(folders)
        name = rng.choice([file.name for file in sorted(folder.iterdir())
                           if file.name not in ("README.md", "reference.json")])
        copy = rng.choice((b"model", b"model", b"m\x1b[31m", b"m\xff\x9b31m", b"m\n"))
        yield Case("models", program.step, base(program, "--model", copy), model=(copy, folder, damage(rng, name)))


def gguf_cases(program, rng, count=40):
    for _ in range(count):
        original = rng.choice(sorted(GGUF.iterdir())).read_bytes()
        yield Case("gguf", program.step, base(program, "--model", "model.gguf"),
                   files={"model.gguf": damaged_bytes(original, rng, rng.choice((256, 2048, 40_000)))})


# ------------------------------------------------------------------------------------------------------- closed streams


def stream_cases(program, rng):
    for streams in (">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>/dev/full"):
        for more in ((), ("--json",), ("--trace", "trace"), ("--trace", "/dev/full"), ("--top-k", "0"), ("--help",)):
            yield Case("streams", program.step, base(program, *more), streams=streams)
        yield Case("streams", program.step, base(program, prompt=b"-"), streams=streams)


KINDS = {"options": option_cases, "pairs": pair_cases, "prompts": prompt_cases, "requests": request_cases,
         "models": model_cases, "gguf": gguf_cases, "streams": stream_cases}


# ------------------------------------------------------------------------------------------------------------ a program


class Program:
    def __init__(self, path):
        self.path, self.step = path, path.name
        self.options = options_of(path)


def command(case, path):
    """For a shell, which closes streams."""
    def quote(argument):
        return b"'" + argument.replace(b"'", b"'\\''") + b"'"
    return b" ".join([b"exec"] + [quote(to_bytes(part)) for part in [path, *case.arguments]] + [case.streams.encode()])


def limit_memory(sanitized):
    def limit():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if not sanitized:  # whose shadow is larger than any limit
            resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    return limit


def is_busy(case):
    """Whether the case requests endless work."""
    text = b" ".join(map(to_bytes, case.arguments)) + b" ".join(case.files.values())[:1_000_000]
    return any(name.encode() in text or name[2:].replace("-", "_").encode() in text for name in AMOUNTS) \
        and re.search(rb"\d{5}", text) is not None


def judge(case, status, out, err, sanitized):
    """What is wrong with how it ended, or nothing."""
    text = err.decode(errors="replace")
    if sanitized and NO_MEMORY.search(text):
        return None  # a sanitizer ends a program that could have said so; without one this is tried as well
    if SANITIZER.search(text):
        return "a sanitizer's report"
    if status not in (0, 1, 2):
        return f"status {status}"
    if found := FOREIGN.search(text):
        return f"{found.group()!r} is not for a person"
    try:
        err.decode()
    except UnicodeDecodeError:
        return "standard error is not UTF-8"
    if found := CONTROLS.search(text):
        return f"{found.group()!r} on standard error"
    errors = [line for line in text.split("\n") if line.startswith("error: ")]
    if any(len(line) > 2000 for line in text.split("\n")) and "--show-candidates" not in " ".join(map(str, case.arguments)):
        return "a line of more than 2000 characters on standard error"
    if "2>" in case.streams:
        return None
    if status == 0:
        return "an error, but status 0" if errors else None
    if not errors:
        return f"status {status}, but no error"
    if len(errors) > 1 and not case.many:
        return "more than one error"
    return None


def try_case(case, folder, patience, sanitized, program):
    """(what is wrong, how it ended, what it said); the folder stays if anything is wrong."""
    folder.mkdir(parents=True)
    for name, content in case.files.items():
        (folder / name).write_bytes(content)
    if case.model:
        name, original, change = case.model
        copy = folder / os.fsdecode(name)
        copy.mkdir()
        for file in original.iterdir():
            (copy / file.name).symlink_to(file)
        change(copy)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:exitcode=99:hard_rss_limit_mb=4000:allocator_may_return_null=1",
                   "UBSAN_OPTIONS": "halt_on_error=1:exitcode=99:print_stacktrace=1", "LC_ALL": "C"}
    line = command(case, program)
    (folder / "command").write_bytes(line + b"\n")
    # Through a file: one argument cannot be as long as the line.
    try:
        done = subprocess.run(["sh", "command"], cwd=folder, input=case.stdin, capture_output=True, timeout=patience,
                              env=environment, preexec_fn=limit_memory(sanitized), check=False)
        fault = judge(case, done.returncode, done.stdout, done.stderr, sanitized)
        ended, said = f"status {done.returncode}", done.stderr
    except subprocess.TimeoutExpired as late:
        fault = None if is_busy(case) else f"no end after {patience:g} seconds"
        ended, said = "busy", late.stderr or b""
    if fault is None:
        shutil.rmtree(folder)
    else:
        (folder / "stdin").write_bytes(case.stdin)
    return fault, ended, said


def all_cases(programs, kinds, seed):
    """Each kind is tried early: they take turns, in random order of their cases."""
    queues = []
    for kind in kinds:
        rng = random.Random(f"{seed} {kind}")
        cases = [case for program in programs.values() for case in KINDS[kind](program, rng)]
        rng.shuffle(cases)
        queues.append(cases)
    while any(queues):
        for queue in queues:
            if queue:
                yield queue.pop()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path, help="a build folder")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=KINDS, action="append")
    parser.add_argument("--step", action="append", help="a number; by default some of each branch")
    parser.add_argument("--patience", type=float, help="seconds for one case")
    arguments = parser.parse_args()
    options = json.loads((arguments.build / "meson-info/intro-buildoptions.json").read_text())
    sanitized = any(option["name"] == "b_sanitize" and option["value"] not in ("none", []) for option in options)
    patience = arguments.patience or (60 if sanitized else 10)
    end = time.monotonic() + arguments.seconds

    programs = {}
    for number in arguments.step or STEPS:
        for path in (arguments.build / "steps").resolve().glob(f"{number}-*"):
            if path.is_file() and os.access(path, os.X_OK):
                programs[path.name] = Program(path)
    if not programs:
        sys.exit("there is no program to try")

    tried, ends, findings = {}, {}, 0
    scratch = Path(tempfile.mkdtemp(prefix="hostile-"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        running, number = {}, 0
        cases = all_cases(programs, arguments.only or list(KINDS), arguments.seed)
        while True:
            while len(running) < (os.cpu_count() or 1) and time.monotonic() < end and (case := next(cases, None)):
                number += 1
                running[pool.submit(try_case, case, scratch / str(number), patience, sanitized,
                                    programs[case.step].path)] = case, scratch / str(number)
            if not running:
                break
            done, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                case, folder = running.pop(future)
                fault, ended, said = future.result()
                ends[ended] = ends.get(ended, 0) + 1
                tried[case.kind] = tried.get(case.kind, 0) + 1
                if fault:
                    findings += 1
                    shown = " ".join(shlex.quote(to_bytes(part).decode(errors="backslashreplace")) for part in case.arguments)
                    print(f"{case.kind}: {fault}\n  cd {folder} && sh command < stdin\n  {case.step} {shown[:400]} "
                          f"{case.streams}\n  {said[:1500]!r}", flush=True)
    counts = ", ".join(f"{count} of {kind}" for kind, count in tried.items())
    how = ", ".join(f"{count} with {ended}" for ended, count in sorted(ends.items()))
    print(f"seed {arguments.seed}: {counts}; {how}; {findings} findings")
    if not findings:
        shutil.rmtree(scratch)
    return 1 if findings or len(tried) < len(arguments.only or KINDS) else 0


if __name__ == "__main__":
    sys.exit(main())
