"""What the commands share: the steps as a tree, their files and READMEs, the library of finished lessons, and git
without a person's settings.

A step continues its parent: the previous step, and after the documented history the step that its README names. A
finished file has *landed* in common/decoding, where the steps after the one that finished it find it; landed.txt
names its owner."""

import errno
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWN = ("README.md", "test.cpp")  # every step has its own; the lesson is the other files
ANSWERS = "ANSWERS.md"           # to the exercises of README.md; no command but `answer` shows or copies it


class Problem(Exception):
    """A Problem: what is wrong and what would be right, in one sentence; `status` is 2 for wrong usage."""

    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


def is_full(error):
    """Whether this OSError means that a disk, or a person's share of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def full_disk(path):
    return f"the disk that holds {path} is full; free some space and try again. Your files are unchanged."


def git(*arguments, cwd=ROOT, ok=(0,), settings=False, env={}, **options):
    """The output of git as bytes; the same on every machine unless a person's `settings` count."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    if not settings:
        environment.update(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
    environment.update(LC_ALL="C", **env)
    try:
        done = subprocess.run(["git", *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, **options)
    except FileNotFoundError:
        raise Problem("git is missing; tools/setup installs it.") from None
    if done.returncode not in ok:
        raise Problem(f"git {arguments[0]} failed: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


# The branches: the name of each, what you can do after it, one case of what goes wrong without it, and the steps that
# begin it, without their numbers. Every other step belongs to the branch of the step that it continues.
BRANCHES = [
    ("The main path", "Generate text: greedy decoding, sampling, penalties, 16-bit weights, KV caches, batches, speculation.",
     'Greedy decoding continues "1 2 3 4 5 6" with "of the story" 19 times in a row. Without a cache, each of 400 tokens '
     'takes 5.41 ms on two cores of an AMD EPYC (Zen 5); with one, 0.21 ms.',
     {"greedy-decoding"}),
    ("Cache drift and speculation", "Measure what a sliding cache costs, and speculate without a draft model.",
     'Continue "Once upon a time" with a sliding cache, and token 548 is not the one that the exact window would have '
     'chosen. Nothing warns you.',
     {"cache-drift", "prompt-lookup"}),
    ("Batches and texts", "Feed a batch from a queue, stop at a string, report log-probabilities and perplexity.",
     "Sixteen samples of one prompt have 3 to 400 tokens, 1,177 in all. A batch that keeps its finished rows computes "
     "6,400 rows for them.",
     {"leaving-rows"}),
    ("Beam search", "Find the most likely texts, rank them, and draw the search as a tree.",
     'After "The wolf", greedy decoding takes a comma and cannot go back. Four tokens on, its text is half as likely as '
     'one that begins with " said".',
     {"beam-search"}),
    ("Continuous batching", "Schedule requests between passes, chunk their prompts, measure TTFT and TPOT.",
     "Serve requests for 6, 2, 2 and 2 tokens one after another, with 10 ms per pass: the last waits 110 ms for its "
     "first token. In two slots of a continuous batch it waits 50.",
     {"requests"}),
    ("Paged cache and server", "Page the KV cache, preempt, share prefixes, serve over HTTP, plan the capacity.",
     "A static cache gives each text of tales-6m a row of 512 positions. A text of 40 tokens leaves 472 of them idle, so "
     "92 % of the memory serves no user.",
     {"paged-kv-cache"}),
    ("Small weights", "Quantize to int8 and int4, and compare size, speed and quality.",
     "Llama 3 8B has 16 GB of weights in 16 bits. A laptop that reads 50 GB/s from memory spends a third of a second on "
     "each token, just reading.",
     {"int8-weights"}),
    ("The model, opened", "Write GPT-2 loop by loop, then turn it into Llama and Qwen, one change per step.",
     "Llama's rotary positions pair each feature of a head with the one half a head further on. Pair adjacent features "
     "instead, and the model still runs, but it writes gibberish.",
     {"plain-loops"}),
    ("Chat", "Turn messages into a model's own format, hold a conversation, keep its cache, serve chats.",
     "Ask SmolLM2 plainly what the capital of France is, and its text ends at once. Ask in the form that it was trained "
     "on, and it answers Paris.",
     {"prompt-tokens", "chat-server"}),
    ("Several machines", "Split a model over processes that `mpirun` starts: each reads, keeps and computes its part.",
     "In 16 bits, 70 billion parameters take 140 GB, and a GPU with 80 GB cannot hold them.",
     {"tensor-parallel", "pipeline-parallel"}),
    ("Answers that parse", "Make an answer match a pattern, a grammar or a JSON Schema: the model is offered no other token.",
     'A program that sorts letters needs `complaint` or `praise`. It gets "I would say that this is a complaint, because '
     '…".',
     {"choices"}),
    ("Windows, experts, adapters", "Keep only a window of the cache in most layers, route each token to two of eight MLPs, and "
     "adapt a model with small matrices.",
     "A static cache for 32,000 positions of tales-window-1m takes 62.5 MiB, and most of it is never read again. Ten "
     "fine-tuned styles of a 16 GB model take 160 GB.",
     {"window-layers", "experts", "lora"}),
    ("Urgent and patient", "Let urgent requests overtake others, draft tokens in a batch, and serve both.",
     "Four long documents arrive, and a moment later a person asks a short question. First come, first served makes the "
     "person wait until a document is done.",
     {"priorities", "urgent-requests"}),
    ("Text into tokens", "Learn a vocabulary from a text, and turn prompts into its ids.",
     'With an id for each byte, "The Fox" is seven tokens, and a context of 512 positions ends after half a page. With an '
     'id for each word, a typing error has none.',
     {"learn-merges"}),
    ("Long texts", "Store the cache of a long text in 8 or 4 bits, and that of a conversation in a file.",
     "After 4,000 tokens, SmolLM2-135M reads 92 MB of bfloat16 cache for each further token. When its program ends, the next "
     "one computes all of it again.",
     {"int8-cache", "saved-cache"}),
]

CHAIN = 19          # the documented history: up to here each step continues the one before
CLOSED = (18, 19)   # its benchmarks, which no later step continues
CONTINUES = re.compile(r"^Continues \[([^]\n]*)\]\(\.\./([^)\n]*)\)(, as a detour)?\.$", re.MULTILINE)
MANIFEST = "common/decoding/landed.txt"


class Step:
    """One folder. steps() links it with its parent, its children and the library."""

    def __init__(self, folder):
        self.folder = folder
        self.name = folder.name           # 06-top-k
        self.number, _, self.slug = folder.name.partition("-")  # 06, top-k
        self.parent, self.children, self.library = None, [], {}
        self.detour = False            # measures, draws or shows a variant; nothing continues it

    def files(self):
        """{name: path} of the step, without the answers to its exercises and without editors' back-ups."""
        paths = (path for path in sorted(self.folder.rglob("*")) if path.is_file())
        files = {path.relative_to(self.folder).as_posix(): path for path in paths}
        return {name: path for name, path in files.items()
                if name != ANSWERS and not name.endswith("~") and not any(part.startswith(".") for part in name.split("/"))}

    def lesson(self):
        return {name: path for name, path in self.files().items() if name not in OWN}

    def continues_prompts(self):
        """Whether its program takes a prompt; those of a server and of a simulation declare that they do not."""
        return not re.search(r"Program program\(.*, false\);", (self.folder / "main.cpp").read_text(encoding="utf-8"))

    def holds_conversations(self):
        """Whether a person talks with its program, line by line."""
        return "hold_conversation(" in (self.folder / "main.cpp").read_text(encoding="utf-8")

    def ancestors(self):
        """The steps from its parent down to the first."""
        step, found = self.parent, []
        while step:
            found.append(step)
            step = step.parent
        return found

    def descendants(self):
        """All steps that continue this one, each after its parent."""
        return [step for child in self.children for step in (child, *child.descendants())]

    def visible(self):
        """{name: Landed} of the library that the step uses or could use."""
        ancestors = {step.name for step in self.ancestors()}
        return {name: landed for name, landed in self.library.items() if landed.at.name in ancestors}

    def resolve(self, include):
        """The file that `#include "include"` means to the step's code, or None."""
        here, decoding = self.folder / include, ROOT / "common/decoding"
        if here.is_file():
            return here
        if include in self.library:
            return self.library[include].path if include in self.visible() else None
        return next((path for path in (decoding / include, ROOT / include) if path.is_file()), None)

    def stands_on(self):
        """The landed files that its code includes, directly or through landed files; by name."""
        visible, found = self.visible(), {}
        waiting = [name for path in self.lesson().values() for name in includes(path)]
        while waiting:
            name = waiting.pop().removeprefix("common/decoding/")
            if name in visible and name not in found and not (self.folder / name).is_file():
                found[name] = visible[name]
                waiting += includes(visible[name].path)
        return [found[name] for name in sorted(found)]

    def relations(self):
        """The line that its README has below the summary: which step it continues. On the main path it is left out."""
        if not self.parent or int(self.number) <= CHAIN:
            return []
        room = ", as a detour" if self.detour else ""
        return [f"Continues [{self.parent.name}](../{self.parent.name}){room}."]

    def included(self):
        """The lines that its README ends with: the files of earlier steps that its code includes, folded."""
        files = [f"[{landed.name}](../../common/decoding/{landed.name}) from {landed.owner.number}" for landed in self.stands_on()]
        if not files:
            return []
        text = textwrap.wrap(f"This step includes {', '.join(files)}.", 120, break_long_words=False, break_on_hyphens=False)
        return ["<details>", "<summary>Files of earlier steps</summary>", "", *text, "", "</details>"]

    def readme(self):
        path = self.folder / "README.md"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def branch(self):
        """The name of the branch that it belongs to."""
        began = {slug: name for name, *_, beginners in BRANCHES for slug in beginners}
        return next((began[step.slug] for step in (self, *self.ancestors()) if step.slug in began), BRANCHES[0][0])

    def command(self):
        """The commands that show its idea in one screen: the block of code below the headline."""
        block = re.search(r"^\*.+\*\n\n((?:    .+\n)+)", self.introduction(), re.MULTILINE)
        return [line.strip() for line in block[1].splitlines()] if block else []

    def introduction(self):
        """The README up to its first section."""
        return re.split(r"^## ", self.readme(), maxsplit=1, flags=re.MULTILINE)[0]

    def heading(self):
        """`06 Top-k`, the title of its README."""
        match = re.match(r"# (\d\d+ .+)", self.readme())
        return match.group(1).strip() if match else self.name.replace("-", " ")

    def section(self, title):
        return section(self.readme(), title)

    def exercises(self):
        """{number: text} of the exercises of its README."""
        return items(self.section("Exercises"))

    def answers(self):
        """{number: text} of the answers to its exercises; empty if there is no such file."""
        path = self.folder / ANSWERS
        return items(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def summary(self):
        """Its headline, the sentence in italics below the title; the title if there is none. All lists take it from
        here."""
        match = re.search(r"^\*(.+)\*$", self.introduction(), re.MULTILINE)
        return match.group(1) if match else self.heading().removeprefix(f"{self.number} ")


def section(text, title):
    """The section of a README below that title."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return match.group(1).strip() if match else ""


def items(text):
    """{number: text} of a numbered list; lines after an item's first one keep their indentation."""
    parts = re.split(r"^(\d+)\. +", text, flags=re.MULTILINE)
    return {int(number): item.strip() for number, item in zip(parts[1::2], parts[2::2])}


def includes(path):
    """What a file includes in quotation marks."""
    return re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)


def steps():
    """All steps by number, linked; a staircase that contradicts itself is a Problem."""
    folders = [path for path in (ROOT / "steps").glob("[0-9][0-9]*-*") if path.is_dir()]
    series = sorted(map(Step, folders), key=lambda step: (int(step.number), step.name))
    if not series:
        raise Problem(f"There are no steps in {ROOT / 'steps'}.")
    for before, step in zip([None, *series], series):
        link(step, before, series)
    for step in series:
        line, above = [step], step.parent
        while above and above is not step and above not in line:
            line.append(above)
            above = above.parent
        if above is step:
            raise Problem("The parents form a cycle: " + ", which continues ".join(s.name for s in [*line, step]) + ".")
    for step in series:
        if step.parent and step.parent.detour:
            raise Problem(f"{step.name} continues {step.parent.name}, which is a detour; nothing continues a detour.")
        if step.parent and int(step.number) > CHAIN and int(step.parent.number) in CLOSED:
            raise Problem(f"{step.name} continues {step.parent.name}, a benchmark of the documented history; "
                          f"it must continue the step whose code it changes.")
    library = landed_files(series)
    for step in series:
        step.library = library
    return series


def link(step, before, series):
    """Finds the parent of `step`; `before` is the step before by number."""
    if before and before.number == step.number:
        raise Problem(f"{before.name} and {step.name} have the same number.")
    step.parent = before
    if before and int(step.number) > CHAIN:
        said = CONTINUES.search(step.introduction())
        if not said:
            raise Problem(f"The README.md of {step.name} does not name the step that it continues; add a line like "
                          f"`Continues [{before.name}](../{before.name}).` below its summary.")
        name, target, room = said.groups()
        if name != target:
            raise Problem(f"The README.md of {step.name} names {name} as its parent, but its link leads to {target}.")
        step.parent = next((other for other in series if other.name == name), None)
        if not step.parent:
            raise Problem(f"{step.name} continues {name}, but there is no such step.")
        step.detour = bool(room)
    if step.parent:
        step.parent.children.append(step)


def branches(series):
    """[(name, what you can do afterwards, what goes wrong without it, its steps)] of the branches that have steps."""
    found = [(name, told, story, [step for step in series if step.branch() == name]) for name, told, story, _ in BRANCHES]
    return [branch for branch in found if branch[-1]]


class Landed:
    """A file of common/decoding that a lesson has finished."""

    def __init__(self, name, owner):
        self.name, self.owner = name, owner
        self.path = ROOT / "common/decoding" / name
        self.at = owner  # all that it includes has landed there as well; landed_files() checks it

    def includes(self, library):
        return [library[name] for name in (name.removeprefix("common/decoding/") for name in includes(self.path))
                if name in library]


def landed_files(series):
    """{name: Landed} of the manifest."""
    library = {}
    manifest = ROOT / MANIFEST
    for line in manifest.read_text(encoding="utf-8").splitlines() if manifest.is_file() else ():
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise Problem(f"{MANIFEST}: '{line}' must be a file and the step that finished it, as in 'sampling.h 11-repetition-penalty'.")
        name, owner = words[0], next((step for step in series if step.name == words[1]), None)
        if name in library:
            raise Problem(f"{MANIFEST}: {name} is listed twice; keep the step that finished it.")
        if not owner:
            raise Problem(f"{MANIFEST}: {name} belongs to {words[1]}, but there is no such step.")
        library[name] = Landed(name, owner)
        for path in (library[name].path, owner.folder / name):
            if not path.is_file():
                raise Problem(f"{MANIFEST}: {name} belongs to {owner.name}, but there is no {path.relative_to(ROOT).as_posix()}.")
    for landed in library.values():
        needed, waiting = {landed.name: landed}, [landed]
        while waiting:
            new = [other for other in waiting.pop().includes(library) if other.name not in needed]
            needed.update({other.name: other for other in new})
            waiting += new
        for other in needed.values():
            if landed.at in other.owner.ancestors():
                landed.at = other.owner
            elif other.owner is not landed.at and other.owner not in landed.at.ancestors():
                raise Problem(f"{MANIFEST}: {landed.name} of {landed.owner.name} includes {other.name} of "
                              f"{other.owner.name}, but no step descends from both {landed.at.name} and {other.owner.name}.")
    return library


def find(name):
    """The step called 6, 06, 06-top-k or by a part of its name that no other has, and steps()."""
    series = steps()
    for step in series:
        if name == step.name or (name.isascii() and name.isdigit() and len(name) <= 3 and int(name) == int(step.number)):
            return step, series
    found = [step for step in series if name and not name.isdigit() and name in step.slug]
    if len(found) == 1:
        return found[0], series
    if found:
        raise Problem(f"'{name}' is in the names of {len(found)} steps: {', '.join(step.name for step in found)}.", 2)
    raise Problem(f"There is no step '{name}'; these are the steps:\n" + columns([step.name for step in series]), 2)


def columns(names):
    """The names one below another, in as many columns as fit into the terminal."""
    width = max(map(len, names)) + 2
    rows = -(-len(names) // max(1, (shutil.get_terminal_size().columns - 2) // width))
    return "\n".join("  " + "".join(f"{name:{width}}" for name in names[row::rows]).rstrip() for row in range(rows))


def landings(before, after):
    """The files that landed on the way from one step to a later one, so that its folder needs them no longer."""
    if not before:
        return []
    used = {landed.name for landed in after.stands_on()}
    known = before.visible()
    return [landed for name, landed in sorted(after.visible().items())
            if name not in known and (name in used or name in before.files())]


def compare(before, after, own=False, *flags):
    """git's diff of two steps (`before` may be None), their lessons only unless `own`. A file that has landed on the
    way is neither changed nor gone."""
    landed = {file.name for file in landings(before, after)}
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for step in (before, after):
            # The names appear in the diff, so that `patch -p1` works inside a step.
            names.append(step.name if step else "nothing")
            (Path(folder) / names[-1]).mkdir()
            for name, path in (step.files() if own else step.lesson()).items() if step else ():
                if name in landed and step is before and name not in after.files():
                    continue
                copy = Path(folder) / names[-1] / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
        return git("-c", "core.quotepath=off", "diff", "--no-index", "--no-ext-diff", "--no-textconv", "--no-color",
                   "--no-renames", "--no-prefix", "--histogram", *flags, *names, cwd=folder, ok=(0, 1)).decode("utf-8", "replace")


def by_file(text):
    """[(file, header lines, hunk lines)] of a diff that compare() made."""
    parts = []
    for line in text.splitlines():
        if line.startswith("diff --git "):
            # Below an empty file's first line, no other has its name.
            parts.append((re.fullmatch(r"diff --git [^/]+/(.*) [^/]+/\1", line)[1], [line], []))
            continue
        _, header, hunks = parts[-1]
        (hunks if line.startswith("@@") or hunks else header).append(line)
    return parts


def changes(before, after, own=False):
    """{file: (lines added, lines removed)}"""
    return {name: tuple(sum(line.startswith(sign) for line in hunks) for sign in "+-")
            for name, _, hunks in by_file(compare(before, after, own))}


def lines(step):
    """(lines that its lesson adds, lines that it removes)"""
    counts = changes(step.parent, step).values()
    return sum(added for added, _ in counts), sum(removed for _, removed in counts)


# On the main path: a rule whose proof needs its loop, and two lessons that measure, as detours do.
LONG = {"17-speculative-decoding", "18-benchmark-speculative", "19-benchmark-kv-cache"}


def limits(added):
    """[(what is limited, the most that is found, the most that may be, the steps where it is)] for {step: lines
    added}."""
    def highest(what, weights, most):
        top = max(weights.values(), default=0)
        return what, top, most, [step for step, weight in weights.items() if weight == top]

    long = {step: lines for step, lines in added.items() if step.detour or step.name in LONG}
    mains = {step: step.files()["main.cpp"] for step in added if "main.cpp" in step.files()}
    return [
        highest("most added lines", {step: lines for step, lines in added.items() if step not in long}, 100),
        highest("in a detour, and in 17 to 19", long, 120),
        ("median of all", statistics.median(added.values()), 50, []),
        highest("most files of code in a folder", {step: len(step.lesson()) for step in added}, 8),
        highest("longest main.cpp", {step: len(path.read_bytes().splitlines()) for step, path in mains.items()}, 40),
    ]
