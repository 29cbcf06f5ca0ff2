"""What nvcc makes of CUDA kernels: registers and spills from ptxas, machine instructions (SASS) from nvdisasm.

`compiled` returns a dictionary for each kernel of a file, in the order of the file:

    kernel                        its name, without namespaces and parameters
    registers                     of a thread
    spilled_bytes                 of a thread: registers that do not fit, and go to memory
    shared_bytes                  of a block, without what the launch adds
    instructions                  of the kernel, without functions that it calls, as for the rare cases of a division
    loop_instructions             of its inner loop; 0: it has no loop
    loads, loaded_bytes           loads from global memory, and their bytes per lane: in the inner loop,
    shared_loads                  loads from shared memory                           or in the whole kernel
    multiplications               of a lane                                          if it has no loop
    spill_accesses                loads and stores of spilled registers

Only loops that load from global memory and multiply count; if none does both, those that multiply, or otherwise those
that load. Of these, the inner loop contains no other and has the most multiplications, then the most bytes of loads,
then comes first. So it neither waits nor copies only. The last seven figures need nvdisasm, which may be missing.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-DSTAIRCASE_NCCL=0", "-Xptxas=-v", "-I", ROOT)  # as kernels/cuda/meson.build

# Multiplications that an instruction does for each of 32 lanes.
MULTIPLICATIONS = {"FFMA": 1, "FMUL": 1, "FFMA2": 2, "FMUL2": 2, "HFMA2": 2, "HMUL2": 2, "IDP.4A": 4,
                   "HMMA.1688": 32, "HMMA.16816": 64, "IMMA.16816": 64, "IMMA.16832": 128}


class Failure(Exception):
    """A file cannot be compiled, in one sentence."""


class Toolkit(NamedTuple):
    """The paths of the programs; `disassembler` is None where nvdisasm is missing."""
    nvcc: str
    disassembler: str
    demangler: str


def toolkit():
    """The Toolkit of this machine, or None without nvcc."""
    places = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/cuda/bin"))
    nvcc, demangler = shutil.which("nvcc", path=places), shutil.which("c++filt")
    if not (nvcc and demangler):
        return None
    nvidia = importlib.util.find_spec("nvidia")  # the packages of PyPI
    packages = [Path(place) for place in (nvidia.submodule_search_locations if nvidia else [])]
    folders = [str(folder) for package in packages for folder in package.glob("*/bin")]
    return Toolkit(nvcc, shutil.which("nvdisasm", path=os.pathsep.join((places, *folders))), demangler)


def missing(tools):
    """A sentence about what the columns lack; empty if they are all there."""
    if tools is None:
        return "nvcc, which comes with the CUDA toolkit, would add registers and instructions."
    if tools.disassembler is None:
        return ("nvdisasm, which comes with the CUDA toolkit, or by `pip install nvidia-cuda-nvdisasm`, would add "
                "instructions.")
    return ""


def versions(tools, architecture):
    """Such as "nvcc 13.0.88, nvdisasm 13.2.51, for sm_90"."""
    def version(program):
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"\bV(\d+\.\d+\.\d+)", done.stdout)
        return f"{Path(program).name} {found[1] if found else 'of an unknown version'}"
    return ", ".join([*(version(tool) for tool in (tools.nvcc, tools.disassembler) if tool), f"for {architecture}"])


class Instruction(NamedTuple):
    predicate: str  # "@!P0", or empty
    opcode: str     # "LDG.E.128"
    operands: str   # "R4, desc[UR6][R4.64]"

    def is_a(self, *names):
        return self.opcode.split(".")[0] in names

    def width(self):
        """The bytes that a lane loads."""
        matrices = re.search(r"\.MT?88(?:\.([24]))?$", self.opcode)  # ldmatrix: 4 bytes of each
        if matrices:
            return 4 * int(matrices[1] or 1)
        bits = re.search(r"\.[US]?(8|16|64|128)\b", self.opcode)
        return int(bits[1]) // 8 if bits else 4

    def multiplications(self):
        if "-RZ, RZ" in self.operands:  # a way to write a constant into a register
            return 0
        parts = self.opcode.split(".")
        return MULTIPLICATIONS.get(parts[0], MULTIPLICATIONS.get(".".join(parts[:2]), 0))

    def loads(self):
        return self.is_a("LDG", "LDGSTS", "LD")


class Code(NamedTuple):
    instructions: list
    labels: dict  # name: the number of an instruction

    def target(self, at):
        """The number of the instruction that this one names; None if it names none here."""
        found = re.search(r"`\((\S+?)\)", self.instructions[at].operands)
        return self.labels.get(found[1]) if found else None

    def next(self, at):
        """The numbers of the instructions that may follow this one."""
        instruction, following = self.instructions[at], [at + 1] if at + 1 < len(self.instructions) else []
        is_conditional = bool(instruction.predicate)
        if instruction.is_a("EXIT", "RET"):
            return following if is_conditional else []
        if instruction.is_a("BSYNC"):  # goes on where the last BSSY of its register points
            register = instruction.operands.strip()
            starts = [i for i in range(at) if self.instructions[i].is_a("BSSY")
                      and self.instructions[i].operands.split(",")[0].strip() == register]
            place = self.target(starts[-1]) if starts else None
            return following if place is None else [place]
        # A branch for lanes that have diverged (BRA.DIV) leads to a copy of an exchange outside of the loops.
        if not instruction.is_a("BRA", "JMP") or ".DIV" in instruction.opcode or ".CONV" in instruction.opcode:
            return following
        place = self.target(at)
        is_conditional |= not instruction.operands.strip().startswith("`")  # "UP0, `(.L_x_1)"
        return ([] if place is None else [place]) + (following if is_conditional else [])

    def reached(self):
        """(what the kernel reaches from its beginning, its loops), each a set of numbers of instructions.

        Loops with the same first instruction are one.
        """
        before, turns, seen, path, stack = defaultdict(list), [], {0}, {0}, [(0, iter(self.next(0)))]
        while stack:
            at, rest = stack[-1]
            following = next(rest, None)
            if following is None:
                stack.pop()
                path.discard(at)
                continue
            before[following].append(at)
            if following in path:
                turns.append((at, following))
            elif following not in seen:
                seen.add(following)
                path.add(following)
                stack.append((following, iter(self.next(following))))
        loops = {}
        for last, first in turns:
            loop, reached = loops.setdefault(first, {first}), [last]
            while reached:
                at = reached.pop()
                if at not in loop:
                    loop.add(at)
                    reached += before[at]
        return seen, list(loops.values())


def read_listing(text, wanted=None):
    """{symbol: Code} of an output of nvdisasm; `wanted`: only of these symbols."""
    found, code = {}, None
    for line in text.splitlines():
        if line.lstrip().startswith(".section"):
            symbol = re.match(r"\s*\.section\s+\.text\.([^\s,]+)", line)
            code = None
            if symbol and (wanted is None or symbol[1] in wanted):
                code = found[symbol[1]] = Code([], {})
        if code is None:
            continue
        label = re.match(r"(\S+):", line)
        instruction = re.match(r"\s+/\*[0-9a-f]+\*/\s+(@\S+)?\s*([A-Z][\w.]*)\s*([^;]*?)\s*;", line)
        if label:
            code.labels[label[1]] = len(code.instructions)
        elif instruction:
            code.instructions.append(Instruction(instruction[1] or "", instruction[2], instruction[3]))
    return {symbol: code for symbol, code in found.items() if code.instructions}


def sums(instructions):
    """What `compiled` returns about the instructions of a loop."""
    instructions = [each for each in instructions if each.predicate != "@!PT"]  # never executed
    loads = [each for each in instructions if each.loads()]
    return {"loads": len(loads), "loaded_bytes": sum(each.width() for each in loads),
            "shared_loads": sum(each.is_a("LDS", "LDSM") for each in instructions),
            "multiplications": sum(each.multiplications() for each in instructions),
            "spill_accesses": sum(each.is_a("LDL", "STL") for each in instructions)}


def count(code):
    """What `compiled` returns about the instructions of a kernel."""
    own, loops = code.reached()
    figures = [(loop, sums([code.instructions[at] for at in loop])) for loop in sorted(loops, key=min)]
    conditions = (lambda of: of["multiplications"] and of["loads"], lambda of: of["multiplications"],
                  lambda of: of["loads"] + of["shared_loads"])
    working = next(filter(None, ([each for each in figures if condition(each[1])] for condition in conditions)), [])
    innermost = [(loop, of) for loop, of in working if not any(other < loop for other, _ in working)]
    loop, of = max(innermost, key=lambda each: (each[1]["multiplications"], each[1]["loaded_bytes"]),
                   default=((), sums([code.instructions[at] for at in own])))
    return {"instructions": len(own), "loop_instructions": len(loop), **of}


def read_report(text):
    """{symbol: {registers, spilled_bytes, shared_bytes}} of the output of ptxas -v."""
    found, kernel = {}, None
    for line in text.splitlines():
        entry = re.search(r"Compiling entry function '(\S+)'", line)
        spills, used = re.search(r"(\d+) bytes spill stores", line), re.search(r"Used (\d+) registers", line)
        if entry:
            kernel = found[entry[1]] = {"registers": 0, "spilled_bytes": 0, "shared_bytes": 0}
        elif kernel is not None and spills:
            kernel["spilled_bytes"] += int(spills[1])
        elif kernel is not None and used:
            shared = re.search(r"(\d+) bytes smem", line)
            kernel |= {"registers": int(used[1]), "shared_bytes": int(shared[1]) if shared else 0}
            kernel = None
    return found


def short_name(name):
    """multiply_one_row<32, 3> of `void staircase::cuda::multiply_one_row<32, 3>(float const*)`."""
    name = re.sub(r"\(anonymous namespace\)::|\bvoid |\bstaircase::|\bcuda::|\brungs::\w+::", "", name)
    depth = 0
    for at, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:at]
    return name


def names_of(symbols, demangler):
    """{symbol: short_name} of all."""
    done = subprocess.run([demangler], input="\n".join(symbols), capture_output=True, text=True, check=True)
    return dict(zip(symbols, map(short_name, done.stdout.splitlines())))


def is_current(result, depfile, key):
    """Whether a result was made by the same programs from files that have not changed since."""
    try:
        if json.loads(result.read_text())["key"] != key:
            return False
        used = depfile.read_text().replace("\\\n", " ").partition(":")[2].split()
        return all(os.path.getmtime(file) < result.stat().st_mtime for file in [*used, __file__])
    except (OSError, ValueError, KeyError):
        return False


def compiled(file, architecture, tools, folder):
    """Compiles a file for a GPU such as sm_90, unless `folder` has a current result. Raises Failure if nvcc does."""
    place = folder / architecture / file.parent.name / file.stem
    place.parent.mkdir(parents=True, exist_ok=True)
    binary, depfile, result = (place.with_suffix(suffix) for suffix in (".cubin", ".d", ".json"))
    key = versions(tools, architecture)
    if is_current(result, depfile, key):
        return json.loads(result.read_text())["kernels"]
    command = [tools.nvcc, *FLAGS, f"-arch={architecture}", "-MD", "-MF", depfile, "-cubin", "-o", binary, file]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr + done.stdout).strip().splitlines() or ["no message"]
        error = next((line for line in lines if re.search(r"\b(error|fatal)\b", line)), lines[-1])
        raise Failure(f"nvcc cannot compile {file.name} for {architecture}: {error.strip().rstrip('.')}")
    report = read_report(done.stderr + done.stdout)
    names = names_of(list(report), tools.demangler)
    figures = {symbol: {"kernel": names[symbol], **values} for symbol, values in report.items()}
    if tools.disassembler:
        listing = subprocess.run([tools.disassembler, "-c", str(binary)], capture_output=True, text=True, check=False)
        if listing.returncode:
            raise Failure(f"nvdisasm cannot read {file.name}, compiled by {key}: {listing.stderr.strip().rstrip('.')}")
        for symbol, code in read_listing(listing.stdout, figures).items():
            figures[symbol] |= count(code)
    text = file.read_text(encoding="utf-8")
    kernels = sorted(figures.values(), key=lambda each: text.find(f" {each['kernel']}("))
    result.write_text(json.dumps({"key": key, "kernels": kernels}))
    return kernels
