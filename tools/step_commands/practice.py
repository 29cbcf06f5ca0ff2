"""tools/step practice and next: a folder in which a learner writes a step; the step's own test.cpp reports when it
is done."""

from pathlib import Path

from . import rungs
from .diff import coloured, page, paint
from .folder import PRACTICE, Folder, called, green_steps, is_practice, left, made, make, shown, update
from .series import ROOT, Problem, compare, find, steps


def add_commands(commands):
    parser = commands.add_parser(
        "practice", help="a folder in which you write a step yourself",
        description="Makes DIR (default: practice/NN-name) with the README.md and test.cpp of STEP and an outline of its "
                    "code. The outline has every declaration. A function that STEP changes keeps its previous body; a new one "
                    "throws. `tools/step check` is red there until you have written the step. A rung of docs/kernels/ is a "
                    "task in the same way: matvec/3 is the third of that ladder, and matvec alone lists its rungs.")
    parser.add_argument("step", metavar="STEP", help="6, 06, 06-top-k or top-k; matvec/3 or matvec/3-registers for a rung")
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--force", action="store_true", help="start again; your versions of the step's files move to DIR/old")
    what.add_argument("--update", action="store_true",
                      help="bring README.md and test.cpp of DIR up to date and add missing files; your code is unchanged")
    what.add_argument("--solution", action="store_true", help="only show what the step changes; make no folder")
    parser.set_defaults(run=practice, color="auto")

    parser = commands.add_parser("next", help="the practice folder of the step that comes next",
                                 description="Makes the practice folder of the next step that was never green. If the one you "
                                             "practised last is not green yet, prints what is left there.")
    parser.set_defaults(run=show_next)


def practice(options):
    if rungs.show(options.step):
        return 0
    rung = rungs.find(options.step)
    if rung:
        return rungs.practice(rung, options)
    step, _ = find(options.step)
    if options.solution:
        text = compare(step.parent, step)
        return page(paint(text) if coloured(options) else text)
    path = (options.folder or PRACTICE / step.name).absolute()
    source = (ROOT / "steps").resolve()
    if source in (path.resolve(), *path.resolve().parents):
        raise Problem(f"{path} belongs to the project's own steps; name a folder outside steps/.", 2)
    if path.exists() and not path.is_dir():
        raise Problem(f"{path} is a file; name a folder.", 2)
    if options.update:
        written = update(called(str(path)))
        print(f"{shown(path)}: {', '.join(written) + ' written' if written else 'everything is up to date'}; "
              "your code is unchanged.")
        return 0
    if path.is_dir() and any(path.iterdir()) and not options.force:
        if is_practice(path):
            raise Problem(f"{path} is not empty: you have begun there. tools/step check {Folder(path).short()} shows what is "
                          "left; --force starts again and moves your files to old/; --update refreshes README.md and "
                          "test.cpp and adds missing files.", 2)
        raise Problem(f"{path} is not empty; name another folder, or start again with --force.", 2)
    introduce(step, path, make(step, path, options.force))


def introduce(step, path, kinds):
    check = step.number if path == PRACTICE / step.name else Folder(path).short()
    prompt = " --prompt 'Once upon a time'" if step.continues_prompts() else ""
    print(f"{shown(path)} is yours: it has the checks of {step.name}, and its code without the parts that you write.",
          "  files       " + " · ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names),
          f"  read        {shown(path)}/README.md",
          f"  write       {left(step, path) or 'see README.md'}",
          f"  check       tools/step check {check}       red now, green when the step is written",
          f"  or          tools/step watch {check}       checks after each save",
          f"  run         {shown(path)}/build/program{prompt}       after a check",
          f"  give up     tools/step practice {step.number} --solution", sep="\n")


def coming(step, series, green):
    """The step to practise after `step` (None: at the very beginning): the next one by number that was not green
    yet."""
    behind = series[series.index(step) + 1:] if step else series
    return next((later for later in [*behind, *series] if later.name not in green), None)


def show_next(_):
    series, green = steps(), green_steps()
    last = Folder(made()[-1]).step.name if made() else None
    last = next((step for step in series if step.name == last), None)
    if last and last.name not in green:
        step = last
    else:
        step = coming(last, series, green)
    if not step:
        print("Every step is green. What is left is a step of your own: CONTRIBUTING.md explains how to add one.")
        return 0
    path = PRACTICE / step.name
    if not is_practice(path):
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise Problem(f"{path} is in the way and is not a practice folder; move it, then run tools/step next again.", 2)
        introduce(step, path, make(step, path))
        return 0
    waits = left(step, path)
    print(f"{shown(path)} is not green yet{': ' + waits if waits else ''}. tools/step check {step.number} shows what is left.")
    return 0
