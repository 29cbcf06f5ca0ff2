"""The shell tools keep to what a Mac has: bash 3.2 and the commands of BSD."""

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from collections import Counter
from pathlib import Path

from support import ROOT, Limited

# (what a Mac lacks, a pattern for it, a line that has it). Some may come first of two: `nproc 2>/dev/null || ...`.
FALLBACK = r"(?![^|;\n]* 2>/dev/null \|\|)"
IDIOMS = [
    # Of bash 4 and 5.
    ("mapfile and readarray; read_lines in tools/lib.sh does it", r"\b(mapfile|readarray)\b", "mapfile -t names < <(ls)"),
    ("associative arrays", r"\b(declare|local|typeset) -\w*A", "local -A ages=([a]=1)"),
    ("references to names", r"\b(declare|local|typeset) -\w*n", "local -n list=$1"),
    ("declare -g", r"\bdeclare -\w*g", "declare -g found=1"),
    ("letters in lower or upper case", r"\$\{\w+(\[[^]]*\])?(,|\^)", 'echo "${word,,}"'),
    ("quoted values", r"\$\{\w+(\[[^]]*\])?@[A-Za-z]\}", 'echo "${word@Q}"'),
    ("the last element by -1", r"\$\{\w+\[-\d+\]", 'echo "${words[-1]}"'),
    ("a length from the end", r"\$\{\w+:[^}]*:\s*-\d+\}", 'echo "${word:0:-1}"'),
    ("wait -n", r"\bwait -n\b", "wait -n"),
    ("&>> and |&", r"&>>|\|&", "make &>>log"),
    ("coproc", r"\bcoproc\b", "coproc cat"),
    ("globstar, lastpipe and other options of bash 4", r"\bshopt -s (globstar|lastpipe|autocd|inherit_errexit)", "shopt -s globstar"),
    ("times by printf", r"%\([^)]*\)T", "printf '%(%F)T' -1"),
    ("[[ -v name ]]", r"\[\[ (! )?-v ", "[[ -v name ]] && echo"),
    ("descriptors that bash chooses", r"\{\w+\}[<>]", "exec {file}<log"),
    (";& and ;;& in case", r";;?&", "a) echo ;;&"),
    ("BASHPID and other variables of bash 4 and 5", r"\b(BASHPID|EPOCHSECONDS|EPOCHREALTIME|SRANDOM|BASH_ARGV0)\b", 'echo "$EPOCHSECONDS"'),
    (r"\u in $'...'", r"\$'[^']*\\[uU]", r"echo $'\u2713'"),
    ("read -N and fractions of a second", r"\bread [^|;\n]*-(\w*N\b|\w*t ?\d*\.\d)", "read -t 0.5 line"),
    ("leading zeros in {01..10}", r"\{0\d+\.\.", "echo {01..10}"),
    ("a case in $( ) whose patterns have no opening parenthesis", r"\$\(\s*case\b[^\n]* in [^(\s]+\)", "x=$(case $1 in a) echo 1 ;; esac)"),
    # Of GNU's commands.
    ("readlink -f, alone, and realpath", r"\b(realpath\b|readlink -\w*[ef]\b)" + FALLBACK, 'readlink -f "$0"'),
    ("sed -i, -u, -s and -z", r"\bsed (-\w+ )*-\w*[iusz]", "sed -i s/a/b/ file"),
    (r"\+, \? and \| in a basic pattern", r"\b(sed|grep)(?! [^|]*-\w*E)[^|;\n]* '[^']*\\[+?|]", r"sed 's/a\+/b/'"),
    ("grep -P", r"\bgrep [^|;\n]*-\w*P\b", "grep -oP 'a(?=b)' file"),
    ("date -d, --iso and %N", r"\bdate [^|;)\n]*(-d|--\w|%N)", "date -d yesterday"),
    ("stat -c", r"\bstat (-\w+ )*(-c|--)", "stat -c %s file"),
    ("md5sum, sha256sum and their like, alone", r"\b(md5|sha\d+)sum\b" + FALLBACK, "sha256sum file"),
    ("nproc, alone; processors in tools/lib.sh counts them", r"\bnproc\b" + FALLBACK, "make -j$(nproc)"),
    ("timeout, tac, setsid, getent, free and ldd", r"(^|[|(;&] *)(timeout|tac|setsid|getent|free|ldd)\b", "timeout 5 true"),
    ("xargs -r, -d and -a", r"\bxargs (-\w+ )*(-\w*[rda]\b|--)", "xargs -r rm"),
    ("all lines but the last N", r"\bhead -(n ?|c ?)-", "head -n -1 file"),
    ("find -printf and -regextype", r"\bfind [^|;\n]*-(printf|regextype)", "find . -printf '%p'"),
    ("paste without a file", r"\bpaste -\w*(,|\\n)?\s*(\)|$|\|)", "ls | paste -sd,"),
    ("long options of basic commands", r"\b(cp|mv|rm|ln|mkdir|mktemp|sort|tail|head|tr|cut|touch|wc|ls|du|base64|tee) [^|;&)\n]*--[a-z]", "cp --parents a b"),
    ("base64 -w, du -b, cp -u and ln -r", r"\b(base64 -w|du -\w*b|cp -\w*u|ln -\w*r)", "du -sb folder"),
]
PATTERNS = [(name, re.compile(pattern, re.MULTILINE)) for name, pattern, _ in IDIOMS]
COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)


def shell_of(path):
    """The shell in a tool: all of it, or in a Python tool the lines that hand some to bash."""
    text = path.read_text()
    if re.match(r"#!.*\b(bash|sh)$", text, re.MULTILINE) or re.search(r"shellcheck shell=\w+", text):
        return COMMENT.sub("", text)
    return "\n".join(line for line in text.splitlines() if 'source "$0"' in line or '"-c"' in line)


def unguarded_arrays(shell):
    """Arrays that may be empty, expanded as if they were not: for bash 3.2 they are unset variables."""
    may_be_empty = set(re.findall(r"(\w+)=\(\)", shell)) | set(re.findall(r"\bread (?:-\w+ )*-\w*a (\w+)", shell)) | \
        set(re.findall(r"\bread_lines (\w+)", shell)) | set(re.findall(r"(\w+)=\(\"\$@\"\)", shell))
    expanded = re.finditer(r"(?P<guard>\+)?\"?\$\{(?P<name>\w+)\[[@*]\](?=(?P<operator>:?[-+])?)", shell)
    return [found["name"] for found in expanded
            if found["name"] in may_be_empty and not found["guard"] and not found["operator"]]


def findings(shell):
    return [name for name, pattern in PATTERNS if pattern.search(shell)] + \
        [f"the array {name}, which may be empty: ${{{name}[@]+\"${{{name}[@]}}\"}}" for name in unguarded_arrays(shell)]


class Portable(Limited):
    def test_the_tools_use_nothing_that_a_mac_lacks(self):
        tools = [path for path in [*(ROOT / "tools").iterdir(), *(ROOT / "tools/step_commands").glob("*.py")] if path.is_file()]
        checked = [path for path in tools if shell_of(path)]
        self.assertGreaterEqual(len(checked), 12)
        for path in checked:
            with self.subTest(path.relative_to(ROOT)):
                self.assertEqual(findings(shell_of(path)), [])

    def test_each_idiom_is_found(self):
        for name, _, planted in IDIOMS:
            with self.subTest(name):
                self.assertEqual(findings(planted), [name])
                self.assertEqual(findings(COMMENT.sub("", f"true  # {planted}")), [])

    def test_a_second_command_takes_the_place_of_a_missing_one(self):
        for line in ('nproc 2>/dev/null || getconf _NPROCESSORS_ONLN', '{ md5sum 2>/dev/null || md5; } <<<"a"',
                     'readlink -f "$0" 2>/dev/null || echo "$0"'):
            self.assertEqual(findings(line), [])

    def test_an_array_that_may_be_empty_is_found(self):
        for planted in ('a=()\nf "${a[@]}"', 'local b a=()\nfor x in "${a[@]}"; do', 'read -r -a a <<<"$1"\nf "${a[@]}"',
                        'read_lines a < <(ls)\necho "${a[*]}"', 'a=()\nf "${a[@]/#/x}"', 'a=("$@")\nf "${a[@]}"', 'a=()\nb=("${a[@]}" 1)'):
            with self.subTest(planted):
                self.assertEqual(len(findings(planted)), 1)
        for good in ('a=(1)\nf "${a[@]}"', 'a=()\nf ${a[@]+"${a[@]}"}', 'a=()\nf ${a[@]+"${a[@]/#/x}"}', 'a=()\n((${#a[@]}))',
                     'a=()\necho "${a[*]-}"', 'a=()\necho "${a[0]:+x}"', 'f "${@:2}"'):
            with self.subTest(good):
                self.assertEqual(findings(good), [])

    def test_each_name_of_a_file_is_one_on_a_mac_and_on_windows(self):
        """Neither tells upper from lower case, and Windows takes neither these characters nor names of its devices."""
        names = [path.relative_to(ROOT).as_posix() for folder in ROOT.iterdir()
                 if folder.is_dir() and not folder.name.startswith(("build", ".git")) and folder.name not in ("practice", ".venv")
                 for path in folder.rglob("*") if "__pycache__" not in path.parts]
        self.assertGreater(len(names), 1500)
        self.assertEqual([name for name, count in Counter(name.casefold() for name in names).items() if count > 1], [])
        refused = re.compile(r'[<>:"|?*\\\x00-\x1f]|[. ](/|$)|(^|/)(con|prn|aux|nul|com\d|lpt\d)(\.|/|$)', re.IGNORECASE)
        self.assertEqual([name for name in names if refused.search(name)], [])
        for planted in ("a/b:c", "docs/aux.md", "a./b", "tests/CON", 'a"b', "a/b."):
            self.assertTrue(refused.search(planted), planted)

    @unittest.skipUnless(shutil.which("git"), "git is not installed")
    def test_a_clone_by_git_for_windows_has_the_same_bytes(self):
        files = {"tools/run": b"#!/bin/sh\necho\n", "tests/fuzz/corpus/http_request/get": b"GET / HTTP/1.1\r\n\r\n",
                 "models/a/model.safetensors": b"text\nand\r\nmore\n", "a.gguf": b"GGUF\n", "b.gguf.gz": b"a\r\n", "a.md": b"# A\n"}
        with tempfile.TemporaryDirectory() as folder:
            there, clone = Path(folder, "there"), Path(folder, "clone")
            for name, content in files.items():
                (there / name).parent.mkdir(parents=True, exist_ok=True)
                (there / name).write_bytes(content)
            shutil.copy(ROOT / ".gitattributes", there)
            windows = ["-c", "core.autocrlf=true", "-c", "core.eol=crlf", "-c", "user.name=a", "-c", "user.email=a@example.org"]
            for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"], ["clone", "-q", there, clone]):
                subprocess.run(["git", *windows, *command], cwd=there, check=True, env={**os.environ, "GIT_CONFIG_NOSYSTEM": "1"})
            for name, content in files.items():
                self.assertEqual((clone / name).read_bytes(), content, name)

    def test_the_workflow_runs_the_commands_of_the_readme(self):
        readme = (ROOT / "README.md").read_text()
        commands = re.findall(r"^    (tools/\w+)", readme[readme.index("## Three commands"):readme.index("## The staircase")], re.MULTILINE)
        self.assertEqual(commands[:3], ["tools/demo", "tools/chat", "tools/test"])
        jobs = re.split(r"^  (?=\w+:$)", (ROOT / ".github/workflows/test.yml").read_text().split("\njobs:\n")[1], flags=re.MULTILINE)[1:]
        self.assertEqual([job.split(":")[0] for job in jobs], ["linux", "ubuntu", "macos", "windows"])
        for job in jobs:
            for command in commands[:3]:
                self.assertRegex(job, rf"- run: (cd ~/staircase && )?{command}\b")


if __name__ == "__main__":
    unittest.main()
