"""How a practice folder is compiled, and how the compiler's messages are shown to a learner.

The commands are those with which the project builds the step itself, so new dependencies need no change here; but
with debug information, little optimization and the assertions of the standard library. Unchanging parts are compiled
in advance, once for all practice folders."""

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

from .folder import LIBRARY, write
from .outline import Header, normal
from .series import ROOT, Problem, full_disk

PROGRAM = "-DSTAIRCASE_STEP_PROGRAM="  # passes to test.cpp which program is the step's
PRODUCTS = {"test": "test.cpp", "program": "main.cpp"}
HEADERS = {"precompiled_test.h": "tests/precompiled", "precompiled.h": "common/program"}  # of the project's own build
# A crash needs lines and functions; the values of variables would cost three seconds more.
CHECKED = ["-O1", "-g1", "-D_GLIBCXX_ASSERTIONS", "-DDOCTEST_CONFIG_SUPER_FAST_ASSERTS"]
SANITIZED = [*CHECKED, "-fno-omit-frame-pointer", "-fno-sanitize-recover=undefined",
             "-fsanitize=address,undefined"]


def compile_folder(folder, build, sanitize=False, jobs=None):
    """Compiles build/test and build/program. Returns the Diagnostics of both, those of test.cpp first; an error
    among them means that there is nothing to run."""
    flags, kind = (SANITIZED, "sanitized") if sanitize else (CHECKED, "checked")
    commands = {product: project_commands(folder.step, build, product) for product in PRODUCTS}
    for compiler, linker in commands.values():
        for program in (linker[0], *compiler[:options_begin(compiler)]):
            if not shutil.which(program):
                raise Problem(f"there is no compiler: {program} is not found; tools/setup installs it.")
    if not (folder.path / "build/test").is_file():
        print(f"Compiling {folder.step.name} and its checks for the first time ...", file=sys.stderr, flush=True)
    libraries = sorted({word for _, linker in commands.values() for word in linker
                        if word.endswith(".a") and Path(word).is_relative_to(build)})
    headers = folder_of_headers(build / "practice", kind, [compiler for compiler, _ in commands.values()])
    with locked(build / "practice"):
        compile_project(build, [os.path.relpath(word, build) for word in libraries])
        precompile(headers, {product: compiler for product, (compiler, _) in commands.items()}, flags)
    text = ""
    for product, (compiler, linker) in commands.items():
        text += rules(product, [*with_flags(compiler, flags, headers), "-I" + LIBRARY], linker, flags, libraries)
    folder.rules(text)
    # Both at once, but one at a time if memory is short.
    amount = ["-j", str(jobs)] if jobs else ["-k0"]
    done = subprocess.run(["ninja", "-C", folder.path, *amount, "build/test", "build/program"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    logs = [folder.path / f"build/{name}.log" for product in PRODUCTS for name in (product + ".o", product)]
    said = {log: log.read_text(encoding="utf-8", errors="replace") for log in logs if log.is_file()}
    found = unique(diagnostic for text in said.values() for diagnostic in diagnostics(text, folder.path))
    if done.returncode and not any(diagnostic.is_error for diagnostic in found):
        raise Problem(reason("\n".join([*said.values(), done.stdout + done.stderr]), folder.path))
    return found


@contextlib.contextmanager
def locked(path, waiting=""):
    """One process at a time works in that folder; the others print `waiting` and wait."""
    path.mkdir(parents=True, exist_ok=True)
    with open(path / "lock", "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting:
                print(waiting, file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_project(build, targets):
    if build == ROOT / "build":
        return library('compile build "$@"', *targets)
    subprocess.run(["ninja", "-C", build, *targets], check=True, stdout=subprocess.DEVNULL)


def library(script, *arguments):
    """Runs functions of tools/lib.sh, which builds without noise."""
    done = subprocess.run(["bash", "-c", f'set -eo pipefail; source "$0"; {script}', ROOT / "tools/lib.sh", *arguments])
    if done.returncode:
        raise Problem("the project itself does not build; the lines above show why.")


def project_commands(step, build, product):
    """(how the project compiles, how it links) the step's test or program, without inputs and outputs."""
    target = f"tests/test-{step.number}" if product == "test" else f"steps/{step.name}"
    done = subprocess.run(["ninja", "-C", build, "-t", "commands", target], capture_output=True, text=True)
    commands = [shlex.split(line) for line in done.stdout.splitlines() if step.folder.name in line or target in line]
    compilers = [words for words in commands if Path(words[-1]).name == PRODUCTS[product] and "-c" in words]
    linkers = [words for words in commands if "-o" in words and words[words.index("-o") + 1] == target]
    if done.returncode or not compilers or not linkers:
        raise Problem(f"{build} does not know how to build {target}; tools/test {step.number} shows whether it builds.")
    return tuple(absolute(without(words[-1], step.folder, build), build) for words in (compilers, linkers))


def without(words, folder, build):
    """A command without its inputs, its outputs, its optimization, and the project's own copies of the step, of
    finished lessons and of precompiled headers. Warnings stay warnings."""
    own = [folder.resolve(), (ROOT / "common/decoding").resolve()]
    kept, words = [], iter(words)
    for word in words:
        if word in ("-MQ", "-MF", "-o", "-c"):
            next(words)
        elif not (word in ("-MD", "-Werror") or word.endswith((".o", ".cpp"))
                  or re.match(r"-(O\w*|g\d?|fdiagnostics-color.*)$", word)
                  or word.startswith("-I") and (word.endswith(".p") or (build / word[2:]).resolve() in own)):
            kept.append(word)
    return kept


def absolute(words, build):
    """Meson's commands run in the build directory, ours do not."""
    def place(word):
        if word.startswith("-I"):
            return "-I" + os.path.normpath(build / word[2:])
        return os.path.normpath(build / word) if "/" in word and not word.startswith("-") else word
    return [place(word) for word in words]


def options_begin(words):
    """Where a command's options begin: a compiler cache may precede the compiler."""
    return next(i for i, word in enumerate(words) if word.startswith("-"))


def with_flags(compiler, flags, headers):
    """The compiler's command with our flags and our precompiled headers. A function that throws uses no parameter."""
    words = [f'{PROGRAM}"build/program"' if word.startswith(PROGRAM) else word for word in compiler]
    begin = options_begin(words)
    return [*words[:begin], f"-I{headers}", *words[begin:], *flags, "-Wno-unused-parameter", "-fdiagnostics-color=never"]


def folder_of_headers(place, kind, compilers):
    """Where the precompiled headers are. Chats need other options than most steps; if both had one folder, each check
    would compile the headers of another one anew, even while it reads them."""
    words = [word for compiler in compilers for word in compiler if not word.startswith(PROGRAM)]
    return place / f"{kind}-{zlib.crc32(shlex.join(words).encode()):08x}"


def precompile(headers, compilers, flags):
    """Compiles the headers that the project's build precompiles, with our flags."""
    text = ("rule header\n  command = $compiler -MD -MF $out.d -o $out -x c++-header $in 2>$out.log\n"
            "  depfile = $out.d\n  deps = gcc\n")
    for compiler in compilers.values():
        name = compiler[compiler.index("-include") + 1] if "-include" in compiler else None
        if name not in HEADERS:
            continue  # another compiler, which has none
        words = [word for i, word in enumerate(compiler) if "-include" not in compiler[max(0, i - 1):i + 1]]
        words = [word for word in with_flags(words, flags, headers) if not word.startswith(PROGRAM)]
        text += (f"build {name}.gch: header {quote(ROOT / HEADERS[name] / name)}\n"
                 f"  compiler = {in_ninja(shlex.join([*words, f'-I{ROOT}/common/decoding']))}\n")
    build_file = headers / "build.ninja"
    if not build_file.is_file() or build_file.read_text(encoding="utf-8") != text:
        write(build_file, text.encode())
    if not all((headers / f"{name}.gch").is_file() for name in re.findall(r"^build (\S+)\.gch:", text, re.MULTILINE)):
        print("Compiling what all practice folders share, once ...", file=sys.stderr, flush=True)
    done = subprocess.run(["ninja", "-C", headers], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        logs = "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in headers.glob("*.log"))
        raise Problem(reason(logs + done.stdout + done.stderr, headers))


def rules(product, compiler, linker, flags, libraries):
    """The rule of a product in build.ninja. It names no path in the folder, so a compiler cache recognizes the same
    code anywhere. The compiler's messages go to a log, since a warning still counts after the next check."""
    sanitize = [flag for flag in flags if flag.startswith("-fsanitize=")]
    link = [linker[0], *sanitize, "-o"]
    return f"""
rule compile-{product}
  command = LC_ALL=C {in_ninja(shlex.join(compiler))} -MD -MF $out.d -o $out -c $in 2>$out.log
  depfile = $out.d
  deps = gcc
rule link-{product}
  command = LC_ALL=C {in_ninja(shlex.join(link))} $out $in {in_ninja(shlex.join(linker[1:]))} 2>$out.log
build build/{product}.o: compile-{product} {PRODUCTS[product]}
build build/{product}: link-{product} build/{product}.o | {" ".join(map(quote, libraries))}
"""


def in_ninja(command):
    return command.replace("$", "$$")


def quote(path):
    """The words in ninja's syntax."""
    return re.sub(r"([$ :])", r"$\1", str(path))


def reason(said, place):
    """One sentence about what kept the compiler from its work in that folder."""
    if "No space left on device" in said or shutil.disk_usage(place).free < 1 << 20:  # then it could not even report that
        return full_disk(place)
    if re.search(r"[Kk]illed|out of memory|cannot allocate memory", said):
        return "the compiler ran out of memory; close something and check again."
    lines = [line for line in said.splitlines() if line.strip() and not re.match(r"ninja:|\[\d+/\d+\]|FAILED:|LC_ALL=C ", line)]
    return "the compiler ended without a message about your code; its last ones: " + "; ".join(lines[-2:])


class Diagnostic:
    """The compiler's or linker's message about one place."""

    def __init__(self, kind, file, line, message, shown):
        self.kind, self.file, self.line, self.message, self.shown = kind, file, line, message, shown
        self.is_error = kind != "warning"

    def place(self):
        return f"{self.file}:{self.line}" if self.line else self.file


SAID = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)? (?P<kind>(?:fatal )?error|warning|note): (?P<message>.*)$")
REQUIRED = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:\d+:)?\s+(?:required|recursively required|in 'constexpr)")
EXCERPT = re.compile(r"^ *\d* \|")  # lines of the source, and marks below them
LINKER = re.compile(r"(?P<place>\S*?): (?P<message>(?:undefined reference|multiple definition).*)$")


def diagnostics(text, folder):
    """Errors and warnings, each with the place in the folder that it is about: a misuse of library code also names
    the user's line."""
    found, before, current = [], [], None
    text = text.replace(str(folder) + "/", "")
    for line in text.splitlines():
        said = SAID.match(line)
        if said and said["kind"] == "note":
            current = None
        elif said:
            file, number = said["file"], int(said["line"])
            if file.startswith("/"):  # a library's line; who uses it?
                users = filter(None, map(REQUIRED.match, before))
                user = next((match for match in users if not match["file"].startswith("/")), None)
                file, number = (user["file"], int(user["line"])) if user else (os.path.relpath(file, ROOT), number)
            current = Diagnostic(said["kind"], file, number, said["message"], [])
            found.append(current)
            before = []
        elif EXCERPT.match(line):
            if current and len(current.shown) < 2 and not said:
                current.shown.append(line)
            before = []
        elif LINKER.search(line):
            said = LINKER.search(line)
            found.append(Diagnostic("error", "the linker", 0, said["message"].replace("`", "'"), []))
        else:
            before.append(line)
    return found


def unique(found):
    """Each Diagnostic once, although two programs include the same header."""
    return list({(one.kind, one.file, one.line, one.message): one for one in found}.values())


# GCC's and Clang's messages about a missing name.
ABSENT = [re.compile(pattern) for pattern in (
    r"'(?P<name>[^']+)' was not declared in this scope", r"use of undeclared identifier '(?P<name>[^']+)'",
    r"'(?P<name>[^']+)' has not been declared", r"'(?P<name>[^']+)' does not name a type",
    r"unknown type name '(?P<name>[^']+)'",
    r"'(?:const )?(?:class |struct )?(?P<of>[^']+)' has no member named '(?P<name>[^']+)'",
    r"no member named '(?P<name>[^']+)' in '(?P<of>[^']+)'",
    r"'(?P<of>[^']+)' has no non-static data member named '(?P<name>[^']+)'",
    r"field designator '(?P<name>[^']+)' does not refer to any field in type '(?P<of>[^']+)'",
    r"'(?P<name>[^']+)' is not a member of '(?P<of>[^']+)'",
    r"undefined reference to '(?:staircase::)?(?P<name>[^'(]+)",
)]


def absent_names(found):
    """{name that test.cpp or main.cpp needs and the learner's files lack: places}, and the Diagnostics of other
    kinds."""
    names, others = {}, []
    for one in found:
        match = next(filter(None, (pattern.search(one.message) for pattern in ABSENT)), None)
        if not match:
            others.append(one)
            continue
        said = match.groupdict()
        of = re.sub(r"^(const )?(staircase::)?", "", said.get("of") or "")
        name = said["name"].removeprefix("staircase::")
        names.setdefault(f"{of}::{name}" if of and of != "staircase" else name, []).append(one)
    return names, others


def told(found, step):
    """Errors as a learner reads them: the learner's own first, then all names that the checks miss."""
    errors = [one for one in found if one.is_error]
    given = [one for one in errors if one.file in (*PRODUCTS.values(), "the linker")]
    own = [one for one in errors if one not in given]
    lines = []
    for one in own[:3]:
        lines += [f"Your own {one.place()}: {one.message}", *one.shown]
    if own[3:]:
        lines.append(f"and {len(own) - 3} more in {', '.join(dict.fromkeys(one.file for one in own[3:]))}")
    names, others = absent_names(given)
    if names:
        declared = declarations(step)
        lines.append("These names are needed and not there:")
        for name, uses in names.items():
            at = ", ".join(dict.fromkeys(one.place() for one in uses[:3]))
            home = declared.get(name) or declared.get(name.split("::")[-1])
            lines.append(f"  {name:28} {at}{f'; the outline has it in {home}' if home else ''}")
    if not own and not names:  # else they may be of the same origin
        for one in others[:3]:
            lines += [f"{one.place()}: {one.message}", *one.shown]
        if others[3:]:
            lines.append(f"and {len(others) - 3} more in {', '.join(dict.fromkeys(one.file for one in others[3:]))}")
    whose = f"{own[0].file} does not compile" if own else "test.cpp does not fit your code" \
        if any(one.file == "test.cpp" for one in given) else f"{given[0].file} does not fit your code"
    return lines, whose


def declarations(step):
    """{name, with its class and without: `sampling.h: its declaration`} of all that the step's files declare."""
    homes = {}
    for file, path in step.lesson().items():
        if not file.endswith(".h"):
            continue
        header = Header(path.read_text(encoding="utf-8"))
        for function in header.functions:
            what = f"{file}: {normal(header.text[function.start:function.head])}"
            homes.setdefault("::".join((*function.scope, function.name)), what)
            homes.setdefault(function.name, what)
        for scope, name in header.declared:
            homes.setdefault("::".join((*scope, name)), file)
            homes.setdefault(name, file)
    return homes


def warnings(found):
    """The lines of the learner's own warnings, with their places."""
    return [line for one in found if not one.is_error and not one.file.startswith(("/", ".."))
            for line in (f"warning, {one.place()}: {one.message}", *one.shown)]
