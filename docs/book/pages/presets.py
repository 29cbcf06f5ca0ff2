"""What the terminal of a step's page offers: the options that the step has, and presets of those that its branch got
last."""

import functools
import re

from step_commands.series import ROOT, includes

# Below what a step must have, its presets: a name and the options that it sets. "no" leaves out an option with its
# value, and "not" a flag. Without dashes it is the name of a step without its number, or "a chat".
PRESETS = """
--ignore-eos
    Stop at the end      not --ignore-eos
    Write past the end   --ignore-eos
--temperature
    Cold                 --temperature 0.3 --show-candidates 5
    Usual                no --temperature --show-candidates 5
    Hot                  --temperature 2 --show-candidates 5
--do-sample
    Cold                 --do-sample --temperature 0.3
    Usual                --do-sample no --temperature
    Hot                  --do-sample --temperature 1.7
--top-k
    Keep 2               --do-sample --top-k 2 --max-new-tokens 40
    Keep 40              --do-sample --top-k 40 --max-new-tokens 40
    Keep all             --do-sample no --top-k --max-new-tokens 40
--top-p
    Keep half            --do-sample --top-p 0.5 --max-new-tokens 40
    Keep 95 %            --do-sample --top-p 0.95 --max-new-tokens 40
    Keep all             --do-sample no --top-p --max-new-tokens 40
--presence-penalty
    No penalty           no --presence-penalty --max-new-tokens 60
    Penalty 0.5          --presence-penalty 0.5 --max-new-tokens 60
    Penalty 2            --presence-penalty 2 --max-new-tokens 60
--frequency-penalty
    No penalty           no --frequency-penalty --max-new-tokens 60
    Penalty 0.3          --frequency-penalty 0.3 --max-new-tokens 60
    Penalty 1.5          --frequency-penalty 1.5 --max-new-tokens 60
--repetition-penalty
    No penalty           no --repetition-penalty --max-new-tokens 60
    Penalty 1.1          --repetition-penalty 1.1 --max-new-tokens 60
    Penalty 1.5          --repetition-penalty 1.5 --max-new-tokens 60
--dtype
    float32              --dtype float32
    float16              --dtype float16
    bfloat16             --dtype bfloat16
--use-cache
    Without the cache    --no-use-cache
    With the cache       not --no-use-cache
--on-overflow
    Slide                --on-overflow slide --context 48 --ignore-eos --max-new-tokens 120
    Recompute            --on-overflow recompute --context 48 --ignore-eos --max-new-tokens 120
variable-batching
    One of each          --do-sample --num-return-sequences 1 --max-new-tokens 30
    Three of each        --do-sample --num-return-sequences 3 --max-new-tokens 30
--draft-model
    Draft 1              --draft-model tales-1m --num-speculative-tokens 1
    Draft 4              --draft-model tales-1m --num-speculative-tokens 4
    Draft 12             --draft-model tales-1m --num-speculative-tokens 12
--prompt-lookup-num-tokens
    Look up 2            no --draft-model --prompt-lookup-num-tokens 2
    Look up 10           no --draft-model --prompt-lookup-num-tokens 10
adaptive-drafts
    Draft 2              --num-speculative-tokens 2
    Draft 12             --num-speculative-tokens 12
    Adapt                --num-speculative-tokens auto
--heads
    One head             --num-speculative-tokens 1
    Three heads          --num-speculative-tokens 3
    No heads             no --heads
leaving-rows
    One of each          --do-sample --num-return-sequences 1 --max-new-tokens 30
    Three of each        --do-sample --num-return-sequences 3 --max-new-tokens 30
--max-batch-size
    One at a time        --max-batch-size 1
    Two                  --max-batch-size 2
    All at once          no --max-batch-size
shared-prefill
    One text             --num-return-sequences 1
    Five texts           --num-return-sequences 5
--stop
    Stop at a full stop  --stop .
    Stop at a name       --stop Wolf
    Do not stop          no --stop
--min-new-tokens
    End at any time      no --min-new-tokens
    At least 30          --min-new-tokens 30
--logprobs
    The token alone      --logprobs 0
    The best 5           --logprobs 5
--min-p
    Keep all             --do-sample --temperature 2 no --min-p
    At least 5 %         --do-sample --temperature 2 --min-p 0.05
    At least 40 %        --do-sample --temperature 2 --min-p 0.4
choices
    Two animals          --choice " fox" --choice " lion"
    One of three texts   --choice " fox" --choice " lion" --choice " very old lion"
    Any text             no --choice
--regex
    A number             --regex " [0-9]{1,3}"
    One sentence         --regex " [a-z ]{10,60}[.]"
    Any text             no --regex
--jump-ahead
    Ask at each token    not --jump-ahead
    Jump ahead           --jump-ahead
--tools
    Only written calls   not --tools
    With results         --tools
--num-beams
    No search            no --num-beams
    2 beams              --num-beams 2
    6 beams              --num-beams 6
n-best
    The best             --num-beams 4 --num-return-sequences 1
    The best 4           --num-beams 4 --num-return-sequences 4
--length-penalty
    Short                --num-beams 4 --length-penalty -1
    Usual                --num-beams 4 no --length-penalty
    Long                 --num-beams 4 --length-penalty 3
--early-stopping
    By estimate          --num-beams 4 no --early-stopping
    At once              --num-beams 4 --early-stopping true
    When certain         --num-beams 4 --early-stopping never
--prefill-chunk
    Whole prompts        no --prefill-chunk
    Chunks of 16         --prefill-chunk 16
    Chunks of 4          --prefill-chunk 4
--kv-blocks
    5 blocks             --kv-blocks 5
    8 blocks             --kv-blocks 8
    Enough blocks        no --kv-blocks
--prefix-caching
    Share prefixes       not --no-prefix-caching
    Share nothing        --no-prefix-caching
int8-weights
    float32              --dtype float32
    int8                 --dtype int8
int4-weights
    float32              --dtype float32
    int8                 --dtype int8
    int4                 --dtype int4
int8-cache
    bfloat16             --cache-dtype bfloat16
    int8                 --cache-dtype int8
    int4                 --cache-dtype int4
--plain-loops
    Plain loops          --plain-loops
    Kernels              not --plain-loops
--show-tokens
    Show the tokens      --show-tokens
    Only the text        not --show-tokens
--special-tokens
    Read special tokens  --special-tokens
    Read them as text    not --special-tokens
a chat
    Short answers        --max-new-tokens 10
    Varied answers       --do-sample --temperature 1.3
"""
OF_ONE_TEXT = {"--num-return-sequences", "--use-cache", "--on-overflow", "--refill"}  # a chat decides these itself
# With them a command plots, measures or compares, and its options are chosen for that.
MEASURES = ("--benchmark", "--drift", "--streaming", "--timeline", "--compare-ranks", "--compare-caches")


@functools.cache
def included(path):
    return includes(path)


@functools.cache
def declared(path):
    return frozenset(re.findall(r'"(--[a-z][\w-]*)"', path.read_text(encoding="utf-8")))


@functools.cache
def options(step):
    """The options that a step's lesson and earlier ones declare, with those of a type, a draft and several prompts."""
    waiting, seen = list(step.lesson().values()), set()
    while waiting:
        path = waiting.pop()
        if path in seen or path.suffix not in (".h", ".cpp"):
            continue
        seen.add(path)
        files = (step.resolve(name) for name in included(path))
        waiting += [file for file in files if file and (ROOT / "common/program") not in file.parents]
    program = (step.folder / "main.cpp").read_text(encoding="utf-8")
    found = {option for path in seen for option in declared(path)}
    if step.holds_conversations():
        found -= OF_ONE_TEXT
    return {*found, *(f"--{name.replace('_', '-')}" for name in re.findall(r"program\.add_(\w+)_option\(", program))}


def has(step, need):
    if need.startswith("--"):
        return need in options(step)
    return need in (step.slug, "a chat" if step.holds_conversations() else "")


def settings(line):
    """[name, {option: value}] of a line: True sets a flag, False leaves it out, None an option with its value."""
    name, words = re.split(r" {2,}", line.strip(), maxsplit=1)
    found = {}
    for prefix, option, value in re.findall(r"(not? )?(--[\w-]+)(?: (?!not? |--)(\S+))?", words):
        found[option] = {"no ": None, "not ": False, "": value or True}[prefix]
    return [name, found]


@functools.cache
def groups():
    """{what a step must have: its presets}."""
    parts = re.split(r"^(\S.*)\n", PRESETS.strip() + "\n", flags=re.MULTILINE)[1:]
    return {need: [settings(line) for line in lines.splitlines()] for need, lines in zip(parts[::2], parts[1::2])}


def presets(step):
    """[[name, settings]] of what its branch got last: with this step, or with the nearest one that it continues."""
    if any(f"{option} " in f"{line} " for line in step.command() for option in MEASURES):
        return []
    line = [step, *step.ancestors()]
    found = {
        need: next((i for i, one in enumerate(line) if not has(one, need)), len(line))
        for need in groups()
        if has(step, need)
    }
    newest = min(reversed(found), key=found.get, default=None)  # the last of those that came together
    return groups().get(newest, [])
