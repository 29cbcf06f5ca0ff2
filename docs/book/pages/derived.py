"""What is made from other files and written into the repository: the steps' picture, the page of all steps, two parts
of the README, and the CPU's figures."""

import re
import sys

from step_commands.diff import lines, page_of_steps, table_of_branches
from step_commands.series import ROOT, Problem, git, steps

from . import map

sys.path.append(str(ROOT / "bench"))
import cpu_page  # noqa: E402

UNKNOWN = "Clone this repository by its address, or unpack an archive of it. Then, in its folder:"


def files():
    """{path: text} of all that is derived."""
    series = steps()
    readme = ROOT / "README.md"
    found = {map.PICTURE: map.svg(series), ROOT / "docs/steps.md": page_of_steps(series, {step: lines(step) for step in series}),
             cpu_page.PAGE: cpu_page.text(cpu_page.read())}
    text = readme.read_text(encoding="utf-8")
    found[readme] = with_part(with_part(text, "branches", table_of_branches(series)), "clone", clone(text))
    return found


def with_part(text, name, part):
    """The text between two comments replaced; unchanged if there are none."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}\n{part.strip(chr(10))}\n\n{found[2]}", text)


def repository():
    """The public address of this clone's origin; "" where none is known."""
    try:
        if git("rev-parse", "--show-prefix").strip():
            return ""  # the sources lie in another repository
        return public(git("remote", "get-url", "origin").decode().strip())
    except Problem:  # no git, no repository, or no origin
        return ""


def edit_address(address, page):
    """Where the repository's host edits a page; "" for a host whose addresses are unknown."""
    parts = {"github.com": "edit", "gitlab.com": "-/edit", "codeberg.org": "_edit"}
    part = parts.get(re.sub(r"^https://([^/]+)/.*", r"\1", address))
    return f"{address.removesuffix('.git')}/{part}/main/{page}" if part else ""


def clone(text):
    """How to get the source: by the address of this clone's origin, or as the text has it."""
    address = repository()
    if address:
        return f"    git clone {address} staircase\n    cd staircase"
    found = re.search(r"<!-- clone -->\n(.*?)<!-- end of clone -->", text, re.DOTALL)
    return found[1] if found else UNKNOWN


def public(remote):
    """The address at which others find a remote, without a name or password; "" for one that only this machine
    reaches."""
    ssh = re.fullmatch(r"(?:ssh://)?(?:[^@/]+@)([\w.-]+)[:/](.+)", remote)
    if ssh:
        return f"https://{ssh[1]}/{ssh[2]}"
    web = re.fullmatch(r"https?://(?:[^@/]*@)?([\w.-]+\.[a-z]+)/(.+)", remote)
    return f"https://{web[1]}/{web[2]}" if web else ""
