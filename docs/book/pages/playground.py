"""The terminal on the pages of steps: the programs that tools/wasm has built, and what runs them in a browser."""

import base64
import functools
import gzip
import hashlib
import json
import mimetypes
import re
import shutil
from html import escape
from pathlib import Path

from step_commands.series import ROOT

from . import presets

SCRIPTS = ROOT / "playground"
# In the order in which a page loads them; the worker is loaded by a run.
PAGE_SCRIPTS = ("beams.js", "rows.js", "blocks.js", "attention.js", "views.js", "disk.js", "shell.js", "link.js", "settings.js", "playground.js")
MODELS = ("tales-1m", "tales-6m")
# A page loads these where a command names them.
NAMED_MODELS = ("tales-gpt2-1m", "tales-neox-1m", "tales-olmo-1m", "tales-llama-1m", "tales-gqa-1m", "tales-qwen-1m",
                "tales-window-1m", "tales-moe-1m", "tales-gemma-1m")
# A single page: no columns next to the text, and links to other pages are text.
SINGLE_STYLE = """main { max-width: 62em; margin: 0 auto; padding: 1.5em 1.2em 4em; }
article a:not([href]) { color: inherit; text-decoration: none; }
.elsewhere { display: none; }
"""


def has(programs, step):
    """Whether the step was compiled for browsers and answers a page; `programs` is "" where no page is to run any."""
    answers = step.continues_prompts() or step.holds_conversations()
    return bool(programs) and (Path(programs) / f"{step.name}.wasm").is_file() and answers


def html(programs, step, base="../../playground"):
    """The terminal of a step, in a page from which `base` leads to the programs."""
    program = (Path(programs) / f"{step.name}.wasm").read_bytes()
    # A chat makes no events, though the library in it knows the option's name.
    flag = ' data-talks="yes"' if step.holds_conversations() else ' data-trace="yes"' if b"--trace" in program else ""
    if "dtype" in (step.folder / "main.cpp").read_text(encoding="utf-8"):
        flag += ' data-dtypes="yes"'
    offered = {"options": sorted(presets.options(step)), "presets": presets.presets(step), "heads": heads(step)}
    lines = "\n".join(step.command()).removeprefix(f"tools/run {step.number} ") or '--prompt "Once upon a time"'
    return (f'<div class="playground"{flag} data-step="{step.name}" data-base="{base}" data-models="{version()}" '
            f'data-glue="{glue(programs, step)[0]}" data-files="{escape(json.dumps(named(step)))}" '
            f'data-offered="{escape(json.dumps(offered))}" data-line="{escape(lines)}">'
            '<noscript><p>Programs run in a page with JavaScript alone.</p></noscript></div>')


def named(step):
    """The files of the repository that the commands of its page name, and those of a model or an adapter whose folder
    they name."""
    words = {word for line in step.readme().splitlines() if "tools/run" in line for word in re.findall(r"[\w./-]+", line)}
    models = [ROOT / word for word in words if "/" in word and
              any((ROOT / word / name).is_file() for name in ("config.json", "adapter_config.json"))]
    of_models = [str(path.relative_to(ROOT)) for model in models for path in model.iterdir() if path.name != "reference.json"]
    return sorted(of_models + [word for word in words if "." in word and "/" in word and (ROOT / word).is_file()])


def heads(step):
    """{model: [layers, heads]} of the models that the page's commands can name."""
    folders = [ROOT / "models" / name for name in (*MODELS, *NAMED_MODELS)] + [(ROOT / name).parent for name in named(step)]
    found = {}
    for folder in (folder for folder in folders if (folder / "config.json").is_file()):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        name = folder.name if folder.parent.name == "models" else folder.relative_to(ROOT).as_posix()
        counts = [config.get("n_layer", config.get("num_hidden_layers")), config.get("n_head", config.get("num_attention_heads"))]
        if all(isinstance(count, int) for count in counts):
            found[name] = counts
    return found


@functools.cache
def version():
    """A key of the models: a browser keeps them while it is the same."""
    found = hashlib.sha256()
    for model in (*MODELS, *NAMED_MODELS):
        for path in sorted((ROOT / "models" / model).iterdir()):
            found.update(path.read_bytes())
    return found.hexdigest()[:8]


def glue(programs, step):
    """(name, text) of what emscripten puts between a program and the browser. Most steps have the same, but for the
    name of the program, which the worker does not need; so the name is that of the text."""
    text = (Path(programs) / f"{step.name}.js").read_text(encoding="utf-8").replace(f"{step.name}.wasm", "program.wasm")
    return f"glue-{hashlib.sha256(text.encode()).hexdigest()[:8]}.js", text


def copy(programs, series, site):
    """Everything that the pages load, into the folder of the site."""
    folder = Path(site) / "playground"
    (folder / "steps").mkdir(parents=True)
    for step in series:
        if has(programs, step):
            shutil.copyfile(Path(programs) / f"{step.name}.wasm", folder / f"steps/{step.name}.wasm")
            name, text = glue(programs, step)
            (folder / name).write_text(text, encoding="utf-8")
            for name in named(step):
                (folder / "files" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / "files" / name)
    for model in (*MODELS, *NAMED_MODELS):
        shutil.copytree(ROOT / "models" / model, folder / "models" / model, ignore=shutil.ignore_patterns("*.md"))
    for name in ("pictures.css", *PAGE_SCRIPTS, "worker.js"):
        shutil.copyfile(SCRIPTS / name, folder / name)


def single_file(programs, step, site):
    """The page of a step with all that it loads inside, and no links to other pages: a browser needs no server for
    it."""
    folder, parts = site / "steps" / step.name, site / "playground"
    page = (folder / "index.html").read_text(encoding="utf-8")
    article = page[page.index("<article"):page.index("</article>")] + "</article>"
    article = re.sub(r'(<a\b[^>]*?) href="(?!#|\w+:)[^"]*"', r"\1", article)
    article = re.sub(r'(<img\b[^>]*? src=)"([^"]+)"', lambda found: f'{found[1]}"{data_address(folder / found[2])}"', article)
    styles = re.findall(r'<link rel="stylesheet"[^>]* href="([^"?]+)', page)
    scripts = re.findall(r'<script[^>]* src="([^"]+)"', page)
    style, script = ("".join((folder / name).read_text(encoding="utf-8") for name in names) for names in (styles, scripts))
    files = [parts / "worker.js", parts / glue(programs, step)[0], parts / f"steps/{step.name}.wasm",
             *(path for path in sorted(parts.glob("models/*/*"))
               if path.parent.name in MODELS or path.parent.name in step.readme()), *(parts / "files" / name for name in named(step))]
    inside = "".join(f'<script type="application/gzip" data-file="{path.relative_to(parts).as_posix()}">'
                     f'{base64.b64encode(gzip.compress(path.read_bytes(), mtime=0)).decode()}</script>\n' for path in files)
    return (f'<!doctype html>\n<html class="no-js" lang="en">\n<head><meta charset="utf-8"/>\n'
            f'<meta name="viewport" content="width=device-width,initial-scale=1"/>\n'
            f'<title>{escape(step.heading())} - Staircase</title>\n'
            f'<style>{style}\n{SINGLE_STYLE}</style>\n</head>\n<body data-theme="auto">\n'
            f'<main>\n{article}\n</main>\n<script>{script}</script>\n{inside}</body>\n</html>\n')


def data_address(path):
    return f"data:{mimetypes.guess_type(path)[0]};base64,{base64.b64encode(path.read_bytes()).decode()}"
