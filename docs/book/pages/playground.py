"""The terminal on the pages of steps: the programs that tools/wasm has built, and what runs them in a browser."""

import functools
import hashlib
import shutil
from pathlib import Path

from step_commands.series import ROOT

SCRIPTS = ROOT / "playground"
MODELS = ("tales-1m", "tales-6m")


def has(programs, step):
    """Whether the step was compiled for browsers; `programs` is "" where no page is to run any."""
    return bool(programs) and (Path(programs) / f"{step.name}.wasm").is_file()


def html(step):
    return (f'<div class="playground" data-step="{step.name}" data-base="../../playground" data-models="{version()}">'
            '<noscript><p>Programs run in a page with JavaScript alone.</p></noscript></div>')


@functools.cache
def version():
    """Names the models: a browser keeps them as long as they are the same."""
    found = hashlib.sha256()
    for model in MODELS:
        for path in sorted((ROOT / "models" / model).iterdir()):
            found.update(path.read_bytes())
    return found.hexdigest()[:8]


def copy(programs, series, site):
    """Everything that the pages load, into the folder of the site."""
    folder = Path(site) / "playground"
    (folder / "steps").mkdir(parents=True)
    for step in series:
        if has(programs, step):
            for kind in ("js", "wasm"):
                shutil.copyfile(Path(programs) / f"{step.name}.{kind}", folder / f"steps/{step.name}.{kind}")
    for model in MODELS:
        shutil.copytree(ROOT / "models" / model, folder / "models" / model, ignore=shutil.ignore_patterns("*.md"))
    for name in ("playground.js", "worker.js"):
        shutil.copyfile(SCRIPTS / name, folder / name)
