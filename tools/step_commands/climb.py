"""tools/step climb: carries an edit of one step through all steps that continue it.

Each step passes the edits that it received on to every step that continues it. For a child, the base is its parent
before the climb, theirs is the parent as it is now, and ours is the child. So a conflict that was resolved in a step
does not recur after it. Earlier edits of a later step are kept in the merge, but never passed on.

A file that has landed is in common/decoding as well, identical to that of the step that finished it: when the climb has
reached that step, it writes that file again. The later steps find it there and have no copy that an edit could reach.

The climb records for each step what has been carried, together with the version of the commit that it was carried from.
The next climb starts there, so it carries only new edits.
"""

import argparse
import base64
import difflib
import functools
import json
import os
import re
import subprocess
import tempfile
import textwrap
from collections import Counter
from pathlib import Path

from .series import ANSWERS, OWN, ROOT, Problem, find, steps
from .series import git as plain_git

git = functools.partial(plain_git, settings=True)  # a person's settings may be what makes the repository safe to read

LINK, PROGRAM, PLAIN = "120000", "100755", "100644"  # git's modes


EPILOG = """the words for a file:
  follows       the step's file equalled its parent's before the edit, and equals it again
  merged        the step had changed the file itself: both changes are in it now
  already so    the step's file already has the result of the edit
  left out      the step has no such file
  CONFLICT      both changed the same lines; the file shows them between <<<<<<< and >>>>>>>, with what was there before
                after |||||||. Write what is right for this step, delete the markers, then --continue.
"""


def add_commands(commands):
    parser = commands.add_parser(
        "climb", help="carries an edit of a step through all that continue it",
        formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EPILOG,
        description=textwrap.fill(
            "Merges the changes of STEP since the revision REV, or since its last climb, into every step that continues it, "
            "directly or through others. Stops at a conflict. Writes a finished file to common/decoding when it reaches "
            "the file's step. Leaves README.md, ANSWERS.md and test.cpp alone, since each step has its own. Commits nothing, and "
            "compiles nothing without --test.", 100))
    parser.add_argument("step", metavar="STEP", nargs="?", help="6, 06, 06-top-k or top-k")
    parser.add_argument("--base", metavar="REV", default="HEAD", help="the step before the edit (HEAD)")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="after a conflict has been resolved")
    parser.add_argument("--abort", action="store_true", help="put every file back as it was before the climb")
    parser.add_argument("--test", action="store_true", help="then run the checks of each step that the climb has "
                        "changed, up to the first failure")
    parser.set_defaults(run=climb)


def climb(options):
    if sum(map(bool, (options.step, options.go_on, options.abort))) != 1:
        raise Problem("climb needs either a STEP or one of --continue and --abort.", 2)
    state = State()
    if options.abort:
        return abort(state)
    if options.go_on:
        return go_on(state, options.test)
    return start(state, *find(options.step), options.base, options.test)


# A step's lesson is {name: [mode, content]} here; an absent file is None.

def read(step):
    """The lesson as it lies on the disk, without what git ignores."""
    names = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", f"steps/{step.name}").decode().split("\0")
    files = {}
    for name in filter(None, names):
        path, name = ROOT / name, name.split("/", 2)[2]
        if name in (*OWN, ANSWERS):
            continue
        if path.is_symlink():
            files[name] = [LINK, os.readlink(path).encode()]
        elif path.is_file():
            files[name] = [PROGRAM if path.stat().st_mode & 0o100 else PLAIN, path.read_bytes()]
    return files


def tree_of(step, revision):
    """The id of the step's folder in a commit, or ''."""
    try:
        return git("rev-parse", "--verify", "-q", f"{revision}:./steps/{step.name}").decode().strip()
    except Problem:
        return ""


def read_tree(tree):
    files = {}
    for line in filter(None, git("ls-tree", "-r", "-z", "--full-tree", tree).decode().split("\0") if tree else ()):
        (mode, kind, blob), name = line.split("\t")[0].split(), line.split("\t", 1)[1]
        if kind == "blob" and name not in (*OWN, ANSWERS):
            files[name] = [mode, git("cat-file", "blob", blob)]
    return files


def write(step, files, names):
    """Writes these files of the step to the disk, as they are in `files`."""
    for name in names:
        path, file = step.folder / name, files.get(name)
        if file is None or path.is_symlink() or file[0] == LINK:
            path.unlink(missing_ok=True)
        if file is None:
            for _ in name.split("/")[1:]:  # folders that are empty now
                path = path.parent
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if file[0] == LINK:
            path.symlink_to(file[1].decode())
        else:
            path.write_bytes(file[1])
            path.chmod(path.stat().st_mode & ~0o111 | (0o111 if file[0] == PROGRAM else 0) & ~current_umask())


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


class State:
    """Two files in git's own folder: the climb under way, and what earlier climbs have carried."""

    def __init__(self):
        try:
            folder = ROOT / git("rev-parse", "--git-path", "staircase-climb").decode().strip()
        except Problem as problem:
            reason = str(problem).splitlines()[0].removeprefix("git rev-parse failed: ")
            raise Problem(f"{ROOT} is not a git repository that git can read, so the step before the edit is unknown; "
                          "where there is none, `git init`, add and commit the unedited staircase first. "
                          f"git's message: {reason}") from None
        self.under_way, self.carried = folder / "under-way.json", folder / "carried.json"

    @staticmethod
    def load(path):
        def bytes_back(item):
            return base64.b64decode(item["b64"]) if set(item) == {"b64"} else item
        return json.loads(path.read_text(), object_hook=bytes_back) if path.exists() else None

    @staticmethod
    def save(path, value):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(value, default=lambda content: {"b64": base64.b64encode(content).decode()})
        new = path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, path)  # a state is whole or absent


def start(state, step, series, revision, test):
    if state.under_way.exists():
        raise Problem("a climb is under way; finish it with --continue or undo it with --abort.", 2)
    if not tree_of(step, revision):
        try:
            git("rev-parse", "--verify", "-q", f"{revision}^{{commit}}")
        except Problem:
            raise Problem(f"'{revision}' is not a commit of this repository.", 2) from None
        raise Problem(f"{step.name} is not in {revision}; --base names a commit that has it from before the edit.", 2)
    above = step.descendants()
    if not above and step not in [landed.owner for landed in step.library.values()]:
        raise Problem(f"{step.name} is the last step of its line; there is none to carry its edit to.", 2)
    carried = state.load(state.carried) or {}
    trees = {later.name: tree_of(later, "HEAD") for later in above}
    for child in step.children:
        if child.name in carried and read(child) == read_tree(trees[child.name]) != carried[child.name]["files"]:
            carried = {}  # the last climb's changes were discarded since, with `git checkout` perhaps

    def known(name, tree):
        record = carried.get(name)
        return record["files"] if record and record["tree"] == tree else read_tree(tree)

    old, new = known(step.name, tree_of(step, revision)), read(step)
    for name, landed in step.library.items():
        if landed.owner in step.ancestors() and old.get(name) != new.get(name):
            raise Problem(f"{name} is finished by {landed.owner.name} and has landed in common/decoding; edit it there, "
                          f"or make {step.name} its owner in landed.txt.")
    if old == new and not stale(step):
        print(f"Nothing to carry: {step.name} is as in {revision}, or as the last climb carried it "
              "(its README.md, ANSWERS.md and test.cpp stay where they are).")
        return 0
    climb = {
        "step": step.name,
        "todo": [later.name for later in above],  # each after the step that it continues
        "before": {},     # step: its files before the climb wrote into it, which --abort puts back
        "landed": {},     # the same for the files of common/decoding that the climb has written
        "written": {},    # step: the files that the climb has written
        "conflicts": [],  # in the step todo[0], the conflicts of a person; None while that step is being written
        "base": {name: known(name, tree) for name, tree in trees.items()},
        "records": {step.name: {"tree": tree_of(step, revision), "files": new}},
        "trees": trees,
        "passed": {step.name: [old, new]},  # by each finished step to those that continue it
    }
    markers = conflicts_left({name: step.folder / name for name in new})
    if markers:
        raise Problem(f"steps/{step.name}/{markers[0]} still has conflict markers; resolve them before the climb.")
    State.save(state.under_way, climb)
    return run(state, climb, test)


def stale(step):
    """The files that this step has finished and that are otherwise in common/decoding."""
    return [landed for landed in step.library.values() if landed.owner.name == step.name and
            (step.folder / landed.name).is_file() and
            (step.folder / landed.name).read_bytes() != landed.path.read_bytes()]


def land(state, climb, step):
    """Writes the files that the step has finished into common/decoding."""
    for landed in stale(step):
        climb["landed"].setdefault(landed.name, landed.path.read_bytes())
        State.save(state.under_way, climb)
        landed.path.write_bytes((step.folder / landed.name).read_bytes())
        print(f"common/decoding/{landed.name}: follows {step.name}")


def run(state, climb, test):
    """Merges the edits that each step passed on into the remaining steps."""
    known = {step.name: step for step in steps()}
    land(state, climb, known[climb["step"]])
    untouched = 0
    while climb["todo"]:
        step = known[climb["todo"][0]]
        ours = read(step)
        merged, report, conflicts = merge(*climb["passed"][step.parent.name], ours, step)
        changed = [name for name in {**ours, **merged} if ours.get(name) != merged.get(name)]
        climb["before"][step.name] = ours  # it may have been edited while the climb was stopped below
        climb["written"][step.name], climb["conflicts"] = changed, None
        State.save(state.under_way, climb)
        write(step, merged, changed)
        for name, what in report:
            print(f"{step.name}/{name}: {what}")
        untouched += not report
        if conflicts:
            climb["conflicts"] = conflicts
            State.save(state.under_way, climb)
            told(untouched)
            print(f"\n{step.name} needs you: edit {', '.join(f'steps/{step.name}/{name}' for name in conflicts)}, then\n"
                  "  tools/step climb --continue     goes on with the steps above\n"
                  "  tools/step climb --abort        puts every file back as it was")
            if test:
                run_tests([name for name in climb["written"] if name != step.name and climb["written"][name]], climb["step"])
            return 1
        settle(climb, step, ours, merged)
        climb["conflicts"] = []
        State.save(state.under_way, climb)
        land(state, climb, step)
    records = state.load(state.carried) or {}
    records.update(climb["records"])
    State.save(state.carried, records)
    state.under_way.unlink()
    told(untouched)
    print(f"The edit of {climb['step']} is in every step that continues it.")
    changed = [name for name in climb["written"] if climb["written"][name]]
    if test:
        return run_tests(changed, climb["step"])
    print("Nothing was compiled yet. Next: tools/test steps, or, to see the first step that breaks, "
          f"tools/test {' '.join(name.partition('-')[0] for name in [climb['step'], *changed][:3])}{' ...' if changed[2:] else ''}")
    return 0


def told(untouched):
    if untouched:
        print(f"nothing to change in {untouched} {'other steps' if untouched > 1 else 'other step'}")


def run_tests(names, edited):
    """Runs the checks of the edited step and of these steps, in their order, up to the first that breaks."""
    for name in [edited, *names]:
        done = subprocess.run([ROOT / "tools/test", name.partition("-")[0]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            print(done.stdout.rstrip(), f"{name} is the first step whose checks break.", sep="\n")
            return 1
        print(f"{name}: {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else 'passed'}", flush=True)
    return 0


def settle(climb, step, ours, now):
    """The step is done: its children get what it received. Its own earlier edits stay, and do not count as carried."""
    old, new = climb["passed"][step.parent.name]
    base, tree = climb["base"][step.name], climb["trees"][step.name]
    if ours == base:
        climb["records"][step.name] = {"tree": tree, "files": now}
    elif tree:
        merged, _, conflicts = merge(old, new, base, step)
        climb["records"][step.name] = {"tree": tree, "files": {
            name: base[name] if name in conflicts and name in base else file
            for name, file in merged.items() if name not in conflicts or name in base}}
    climb["todo"].pop(0)
    # A file that only an uncommitted edit had added here, and that the climb changed, is new to the next step.
    climb["passed"][step.name] = [{name: file for name, file in ours.items() if name in base or file == now.get(name)}, now]
    waiting = {later.parent.name for later in steps() if later.name in climb["todo"]}
    climb["passed"] = {name: files for name, files in climb["passed"].items() if name in waiting}


def merge(old, new, ours, step):
    """(the step's files with the edit old -> new, [(file, what was done)], the files in conflict)"""
    merged, report, conflicts = dict(ours), [], []
    for name in sorted({*old, *new}):
        base, theirs, mine = old.get(name), new.get(name), ours.get(name)
        if base == theirs:
            continue
        if mine == theirs:
            what = "already so"
        elif mine == base:
            merged[name] = theirs
            what = "deleted" if theirs is None else "added" if mine is None else "follows"
        elif mine is None:
            what = ("has landed in common/decoding" if name in step.visible() else
                    "left out, since this step has no such file")
        else:
            file, extra, what = merge_file(base, theirs, mine, step)
            merged[name] = file
            if extra:  # no markers possible: the other version is written next to it
                merged[name + ".theirs"] = extra
            if what.startswith("CONFLICT"):
                conflicts += [name, name + ".theirs"] if extra else [name]
        report.append((name, what))
        if merged.get(name) is None:
            merged.pop(name, None)
    return merged, report, conflicts


def merge_file(base, theirs, mine, step):
    """(the merged file, theirs if a person must choose one of them, what was done)"""
    if theirs is None:
        ends = b"" if mine[1].endswith(b"\n") else b"\n"
        if LINK == mine[0] or b"\0" in mine[1]:
            return mine, [PLAIN, b"deleted\n"], "CONFLICT, deleted below and changed here; keep it or delete it too"
        text = (f"<<<<<<< {step.name}\n".encode() + mine[1] + ends +
                f"=======\n>>>>>>> {step.parent.name} with your edit, which deletes it\n".encode())
        return [mine[0], text], None, "CONFLICT, deleted below and changed here; keep it or delete it too"
    mode = theirs[0] if base and mine[0] == base[0] else mine[0]
    if base and mine[1] == base[1]:
        return [mode, theirs[1]], None, "follows"
    if mine[1] == theirs[1] or (base and theirs[1] == base[1]):
        return [mode, mine[1]], None, "merged (its mode)"
    versions = [theirs, base or [PLAIN, b""], mine]
    if any(mode == LINK or b"\0" in content for mode, content in versions):
        return mine, theirs, "CONFLICT, not a text; choose between it and the file .theirs, and delete that"
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("theirs", "base", "ours")]
        for path, (_, content) in zip(paths, versions):
            path.write_bytes(content)
        done = subprocess.run(["git", "merge-file", "-p", "--diff3", "-L", f"{step.parent.name} with your edit",
                               "-L", "before your edit", "-L", step.name, *map(str, paths)], capture_output=True)
    if done.returncode > 127:
        raise Problem(f"git merge-file failed: {done.stderr.decode(errors='replace').strip()}")
    text, left = merge_neighbours(done.stdout) if done.returncode else (done.stdout, 0)
    return [mode, text], None, f"CONFLICT, {left} to resolve" if left else "merged"


CONFLICT = re.compile(rb"^<<<<<<< [^\n]*\n(?P<theirs>.*?)^\|\|\|\|\|\|\| [^\n]*\n(?P<base>.*?)"
                      rb"^=======\n(?P<ours>.*?)^>>>>>>> [^\n]*\n", re.MULTILINE | re.DOTALL)


def merge_neighbours(text):
    """(the text with those conflicts resolved in which the two sides change different lines, how many are left). Git
    reports neighbouring lines as a conflict."""
    left = 0

    def resolved(match):
        nonlocal left
        base, *sides = (match[name].splitlines(keepends=True) for name in ("base", "theirs", "ours"))
        merged = merge_lines(base, *sides)
        left += merged is None
        return match.group() if merged is None else b"".join(merged)
    return CONFLICT.sub(resolved, text), left


def merge_lines(base, one, other):
    """Both sides' changes of `base`, or None if they meet in one line or insert at the same place. A line added next
    to one that the other side rewrites has its place; next to a removed line, it has none."""
    edits = sorted({(start, end, tuple(side[low:high])) for side in (one, other)
                    for tag, start, end, low, high in difflib.SequenceMatcher(None, base, side, autojunk=False).get_opcodes()
                    if tag != "equal"})
    merged, position, before = [], -1, None
    for start, end, lines in edits:
        added, rewritten = start == end, end - start == len(lines)
        if start < position or start == position and (
                before == "added" and not rewritten or added and before != "rewritten" or added and before == "added"):
            return None
        merged += [*base[max(position, 0):start], *lines]
        position, before = end, "added" if added else "rewritten" if rewritten else "other"
    return merged + base[max(position, 0):]


def conflicts_left(paths):
    """The names of {name: path} that still have markers."""
    def marked(path):
        if path.name.endswith(".theirs"):
            return True
        lines = path.read_bytes().splitlines() if path.is_file() else []
        return any(line.startswith((b"<<<<<<< ", b"||||||| ", b">>>>>>> ")) for line in lines)
    return [name for name, path in paths.items() if path.exists() and marked(path)]


def go_on(state, test):
    climb = state.load(state.under_way)
    if climb is None:
        raise Problem("no climb is under way; tools/step climb STEP starts one.", 2)
    if climb["conflicts"] is None:
        raise Problem("the climb was interrupted while it wrote; --abort puts every file back.", 1)
    if climb["conflicts"]:
        step = next(step for step in steps() if step.name == climb["todo"][0])
        left = conflicts_left({name: step.folder / name for name in climb["conflicts"]})
        if left:
            raise Problem(f"steps/{step.name}/{left[0]} " + (
                "is still there; take what you need of it and delete it." if left[0].endswith(".theirs") else
                "still has conflict markers; resolve them first."))
        for name, line in lost(climb, step):
            print(f"steps/{step.name}/{name} has no line `{line}`, which the edit adds; was that meant?")
        settle(climb, step, climb["before"][step.name], read(step))
        climb["conflicts"] = []
        State.save(state.under_way, climb)
        land(state, climb, step)
    return run(state, climb, test)


def lost(climb, step):
    """[(file, line)] of what the edit adds and what the resolved files do not have."""
    old, new = climb["passed"][step.parent.name]
    found, now = [], read(step)
    for name in climb["conflicts"]:
        if name not in new or name not in now:
            continue
        before, after, here = (
            Counter(line.strip() for line in files.get(name, [PLAIN, b""])[1].decode(errors="replace").splitlines())
            for files in (old, new, now))
        found += [(name, line) for line in after - before if re.search(r"\w", line) and line not in here]
    return found


def abort(state):
    climb = state.load(state.under_way)
    if climb is None:
        raise Problem("no climb is under way.", 2)
    folders = {step.name: step for step in steps()}
    for name, written in climb["written"].items():
        write(folders[name], climb["before"][name], {*written, *climb["before"][name]})
    for name, content in climb["landed"].items():
        (ROOT / "common/decoding" / name).write_bytes(content)
    state.under_way.unlink()
    print(f"Every file is as it was before the climb of {climb['step']}.")
    return 0
