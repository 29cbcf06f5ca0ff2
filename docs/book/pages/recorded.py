"""The commands in the book's pages and what they print: recorded in docs/book/recorded/, one file a command, and
replayed by a test."""

import os
import platform
import pty
import re
import shlex
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from step_commands.series import ROOT, Problem, steps

FOLDER = ROOT / "docs/book/recorded"
PATIENCE = 300  # seconds that a command may take

# Why a command has no recording, by its text.
NOT_RECORDED = [
    (r"\b(FILE|DIR|FOLDER|NN)\b", "it names a file or a step of your own"),
    (r"--(draft-)?model (gpt2|smollm2|pythia|build-|DIR)", "its model is not in the box"),
    (r"^time ", "it is about time alone"),
    (r"--help\b", "the program itself lists its options"),
    (r"tools/run (6[678]|97|12[23])\b", "it is a server, which ends on a signal"),
]
# What it prints is another thing each time: recorded, but not replayed.
BENCHMARKS = re.compile(r"--plain-loops|--benchmark\b|--compare-caches\b")
# Sums in another order move a logit's last bits, and sooner or later another token is drawn: such texts are the same
# only with the same instruction set, which this file records. The same holds for inputs that are rounded to integers.
DRAWN = re.compile(r"--do-sample\b|--requests\b|dtype int")
PROCESSOR = FOLDER / "processor"


def instruction_set():
    """What the kernels of this machine compute with, as far as it changes their sums."""
    try:
        flags = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        flags = []
    return next((name for name in ("avx512bw", "avx2", "sse4_1") if name in flags), platform.machine())


@dataclass
class Command:
    block: object  # its place
    line: int
    text: str      # as written there
    setup: str     # what the page defines before it
    input: str     # what is typed in
    number: int = 0

    @property
    def place(self):
        return f"{self.block.page.name}:{self.line}"

    @property
    def path(self):
        return FOLDER / f"{self.block.page.label}-{self.number}.txt"

    @property
    def why_not(self):
        """Why it is not recorded, or None."""
        return next((why for pattern, why in NOT_RECORDED if re.search(pattern, self.text)), None)

    @property
    def runnable(self):
        """The command with what the page defines before it in place of its variables."""
        text = self.text
        for line in self.setup.splitlines():
            found = re.fullmatch(r"(\w+)=(?:\$'([^']*)'|\"([^\"$]*)\"|([^\s\"'$]+))", line)
            if found:
                name, escaped, quoted, plain = found.groups()
                value = (escaped or "").replace("\\n", "\n") or quoted or plain or ""
                text = re.sub(rf"\"?\$(?:{name}\b|\{{{name}\}})\"?", lambda _: '"' + value + '"', text)
        return text

    @property
    def is_benchmark(self):
        return bool(BENCHMARKS.search(self.text))

    @property
    def is_by_the_clock(self):
        return bool(BY_THE_CLOCK.search(self.text))

    @property
    def is_drawn(self):
        return bool(DRAWN.search(self.text))

    def recording(self):
        """What it printed, with the colours of a terminal, or None. The file begins with the command itself."""
        if not self.path.is_file():
            return None
        first, _, output = self.path.read_text(encoding="utf-8").partition("\n\n")
        return output if first == "$ " + self.text else None


def logical_lines(block):
    """[(line, text)]: a loop is one, and so is what a backslash continues."""
    found, depth = [], 0
    for number, line in enumerate(block.lines, block.line):
        line = line.removeprefix("$ ")
        if found and (depth or found[-1][1].endswith("\\")):
            found[-1] = (found[-1][0], found[-1][1] + "\n" + line)
        elif line.strip():
            found.append((number, line))
        depth += len(re.findall(r"^\s*(?:for|while)\b", line)) - len(re.findall(r"^\s*done\b", line))
    return found


def is_commands(block):
    return block.language in ("", "console", "bash", "sh", "shell") and bool(
        re.match(r"(\$ |tools/|time tools/|for |printf |grep |\w+=|git |ninja |meson )", block.lines[0]))


def is_session(block):
    """Whether a block shows a command with a dollar sign and its output below."""
    return block.lines[0].startswith("$ ")


def commands(page):
    """The commands of a page that run a step, in their order."""
    found, setup = [], []
    for index, block in enumerate(page.blocks):
        if not is_commands(block):
            continue
        for number, text in logical_lines(block):
            if is_session(block) and not block.lines[number - block.line].startswith("$ "):
                continue
            if re.match(r"\w+=\S|printf .*> *\w+$", text):
                setup.append(text)
            elif re.search(r"tools/run \S+ +[^\s#]", text) and "…" not in text:
                typed = page.blocks[index + 1].text if re.search(r"--requests -(\s|$)", text) and "<" not in text else ""
                # A remark after the command is for the reader.
                found.append(Command(block, number, re.sub(r"\s+# .*$", "", text, flags=re.MULTILINE), "\n".join(setup), typed))
    recorded = 0
    for command in found:
        if not command.why_not:
            recorded += 1
            command.number = recorded
    return found


class Machine:
    """A folder in which the commands find tools/run, the models and the requests, and where they may write."""

    def __init__(self, build):
        self.build, self.outputs = Path(build), {}
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        for name in ("bench", "models", "tests"):
            (self.folder / name).symlink_to(ROOT / name)
        self.names = {step.number: step.name for step in steps()}
        cases = "".join(f"{number} | {name}) name={name} ;;\n" for number, name in self.names.items())
        (self.folder / "tools").mkdir()
        run = self.folder / "tools/run"
        run.write_text('#!/usr/bin/env bash\ncase $1 in\n' + cases +
                       '*) echo "There is no step $1." >&2; exit 127 ;;\nesac\nshift\n'
                       f'exec {shlex.quote(str(self.build))}/steps/"$name" "$@"\n')
        run.chmod(0o755)

    def close(self):
        self.temporary.cleanup()

    def programs(self, command):
        """The programs that it runs; one that is not there is a Problem."""
        for number in re.findall(r"tools/run (\S+)", command.text):
            name = self.names.get(number, number if number in self.names.values() else None)
            if not name:
                raise Problem(f"{command.place}: there is no step '{number}', so the output of this command cannot be "
                              "recorded.")
            if not (self.build / "steps" / name).is_file():
                raise Problem(f"{command.place}: the program of {name} is not built, so this command cannot run; "
                              f"tools/book --record builds it.")

    def run(self, command):
        """What the command writes to a terminal; the same command runs once."""
        key = command.setup, command.text, command.input
        if key not in self.outputs:
            self.outputs[key] = self.output(command)
        return self.outputs[key]

    def output(self, command):
        self.programs(command)
        script = f"{command.setup}\n{command.text}\n"
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "STAIRCASE_MODELS")}
        environment.update(LC_ALL="C.UTF-8", TERM="xterm", STAIRCASE_MODELS=str(ROOT / "models"))
        ours, its = pty.openpty()
        pieces = []

        def read():
            while True:
                try:
                    piece = os.read(ours, 65536)
                except OSError:  # the last one has closed it
                    return
                pieces.append(piece)

        with tempfile.TemporaryFile() as typed:
            typed.write(command.input.encode() + b"\n" if command.input else b"")
            typed.seek(0)
            process = subprocess.Popen(["bash", "-u", "-c", script], stdin=typed, stdout=its, stderr=its, cwd=self.folder,
                                       env=environment, start_new_session=True)
        os.close(its)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Problem(f"{command.place}: the command did not end within {PATIENCE} seconds, so its output cannot be "
                          "recorded.")
        reader.join(10)
        os.close(ours)
        output = on_a_terminal(b"".join(pieces).decode("utf-8", "replace"))
        # Programs refuse wrong usage with 2 and fail with 1; both are worth showing. The shell's own messages are not.
        if status not in (0, 1, 2) or re.search(r"^bash: line \d+: ", output, re.MULTILINE):
            last = output.strip().splitlines()[-1] if output.strip() else "it wrote nothing"
            raise Problem(f"{command.place}: the output of this command cannot be recorded, since it ended with status "
                          f"{status}: {last}")
        return output


def on_a_terminal(text):
    """What stays on the screen: a line of progress that was overwritten does not."""
    text = text.replace("\r\n", "\n")
    text = re.sub(r"[^\n]*\r\033\[K", "", text)
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines()) + "\n"


def plain(text):
    return re.sub(r"\033\[[0-9;]*[A-Za-z]", "", text)


FIGURES = re.compile(r"""
    \d[\d,]*(?:\.\d+)?(?=\s(?:ms|µs|s|seconds|tokens/s|GB/s)\b)   # times and speeds
  | (?<="prefill_ms":)[\d.e+-]+ | (?<="ms_per_token":)[\d.e+-]+ | (?<="tokens_per_second":)[\d.e+-]+
  | (?<=_ms_p\d\d":)[\d.e+-]+ | (?<=_ms":)[\d.e+-]+
  | (?<=takes\s)[\d.]+(?=\sof\sthe\starget's) | (?<=verifies\s)[\d.]+ | (?<=speed-up\s)[\d.]+ | (?<=formula\s)[\d.]+
  | [\d.]+(?=\s\((?:p\d\d|max)\)) | [\d.]+(?=\srows\sa\spass)                        # percentiles, what arrived together
""", re.VERBOSE)


# Where requests arrive by the clock, the machine's speed decides which of them share a pass, and so how much moves.
BY_THE_CLOCK = re.compile(r"--requests (?!-)")
MOVED = re.compile(r"""
    (?<=activations\s)[\d.]+(?=\sMiB) | [\d.]+(?=\sMiB\scopied)
  | (?<=at\smost\s)\d+(?=\sof\s\d+\sblocks) | [\d.]+(?=\s%\sof\stheir\spositions)    # of a paged cache
  | \d+(?=\s%\sof\sthe\stime)
  | \d+(?=\spreemptions) | \d+\sof\s\d+(?=\stokens\sof\stexts)
  | \d+\sof\s\d+(?=\sdrafts\saccepted)                                            # they pay or not
""", re.VERBOSE)


# What a program adds where something has moved. A machine may be so fast that each text ends before the next one comes.
HAS_MOVED = re.compile(r" \([\d.]+ MiB allocated, [\d.#]+ MiB copied\)")


def masked(text, by_the_clock=False):
    """Without the figures that are another thing on another machine: times, speeds."""
    text = FIGURES.sub("#", text)
    return MOVED.sub("#", HAS_MOVED.sub("", text)) if by_the_clock else text


NUMBER = re.compile(r"-?\d+\.\d+")
BAR = re.compile(r" ?[█▉▊▋▌▍▎▏]+")


def difference(recorded, now, by_the_clock=False):
    """The first line in which two outputs differ, as (recorded, now), or None. Processors add in different orders, so a
    number with decimals may differ by one in its last digit, and a bar by its end."""
    before, after = (masked(text, by_the_clock).splitlines() for text in (recorded, now))
    for old, new in zip(before, after):
        if not alike(old, new):
            return old, new
    if len(before) != len(after):
        longer = max(before, after, key=len)
        line = longer[min(len(before), len(after))]
        return (line, "nothing") if longer is before else ("nothing", line)
    return None


def alike(old, new):
    if NUMBER.sub("#", BAR.sub("", old)) != NUMBER.sub("#", BAR.sub("", new)):
        return False
    for a, b in zip(NUMBER.findall(old), NUMBER.findall(new)):
        digits = len(a.split(".")[1])
        if abs(float(a) - float(b)) > max(1.5 * 10 ** -min(digits, 5), 5e-6 * abs(float(a))):  # float32 has no more
            return False
    return True


# In these sections, a block that is not a command shows what one printed.
SHOWN = ("How to check it", "What to measure")


def shown(page):
    """The blocks of a page that show an output: [(block, its lines)], several where a block has several commands."""
    found = []
    for index, block in enumerate(page.blocks):
        before = page.blocks[index - 1] if index else None
        typed = before and is_commands(before) and re.search(r"--requests -(\s|$)", before.text)
        if is_commands(block):
            if is_session(block):
                for line in block.lines:
                    if line.startswith("$ "):
                        found.append((block, []))
                    else:
                        found[-1][1].append(line)
        elif block.language in ("", "console", "text") and block.section in SHOWN and not typed:
            found.append((block, block.lines))
    return found


def replayed():
    """The commands of all pages that print on this machine what is recorded, times and speeds aside."""
    from .markdown import pages
    same_processor = instruction_set() == PROCESSOR.read_text().strip()
    return [command for page in pages() for command in commands(page)
            if not (command.why_not or command.is_benchmark or (command.is_drawn and not same_processor))]


def record(build, report, benchmarks=False):
    """Runs the commands of all pages and records what they print; calls `report` for each. The output of a
    benchmark stays unless `benchmarks`, or its command has changed."""
    from .markdown import pages
    machine = Machine(build)
    try:
        FOLDER.mkdir(exist_ok=True)
        written = set()
        for page in pages():
            for command in commands(page):
                if command.why_not:
                    report(f"{command.place}: not recorded, since {command.why_not}")
                    continue
                written.add(command.path)
                if command.is_benchmark and not benchmarks and command.recording():
                    continue
                report(f"{command.place}: {command.text.splitlines()[0]}")
                command.path.write_text(f"$ {command.text}\n\n{machine.run(command)}", encoding="utf-8")
        PROCESSOR.write_text(instruction_set() + "\n")
        for path in set(FOLDER.glob("*.txt")) - written:
            path.unlink()
    finally:
        machine.close()
