#!/usr/bin/env python3
"""Compares common/text/jinja.h with Python's jinja2, set up as transformers does, on the chat templates of real models.

    ninja -C build tests/render-templates
    python tests/differential/templates.py              # fetches jinja2 and the templates from PyPI
    python tests/differential/templates.py --templates DIR

The templates are those in the source of llama-cpp-python (vendor/llama.cpp/models/templates), about 70, and those in
tests/fuzz/corpus/jinja. Each renders conversations of all shapes: with and without a system message, several turns,
empty contents, contents in parts, tools, calls and their results, thoughts, and markers within a message. Both must
make the same text, or both must refuse. Then some thousand templates of one expression each combine every filter,
test, method and operator with values at the edges of Python's types; here a refusal of ours is no difference. Any
difference is printed, and the exit status is 1. Not part of the test
suite. If PyPI cannot be reached, it reports that and ends with status 0.
"""

import argparse
import collections
import datetime
import itertools
import json
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOW = 1_790_000_000
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
OWN = {"bos_token": "<s>", "eos_token": "</s>"}


def fetched(folder):
    """The folder of llama-cpp-python's templates, and jinja2 on the path; ends the program without PyPI."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    try:
        try:
            import jinja2
        except ImportError:
            subprocess.run(pip + ["install", "--target", folder / "packages", "jinja2"], check=True)
            sys.path.insert(0, str(folder / "packages"))
            import jinja2
        subprocess.run(pip + ["download", "--no-binary", ":all:", "--no-deps", "-d", folder, "llama-cpp-python"],
                       check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"skipped: PyPI cannot be reached, or not all of it was installed ({error})")
        sys.exit(0)
    with tarfile.open(next(folder.glob("llama_cpp_python-*.tar.gz"))) as archive:
        for member in archive:
            if "/models/templates/" in member.name and member.name.endswith(".jinja"):
                (folder / Path(member.name).name).write_bytes(archive.extractfile(member).read())
    return folder


def environment():
    """As transformers/utils/chat_template_utils.py makes it."""
    import jinja2
    import jinja2.ext
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    now = datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc)
    made.globals["strftime_now"] = lambda form: now.strftime(form)
    return made


def conversations():
    """(name, messages) of all shapes."""
    def says(role, content, **more):
        return {"role": role, "content": content, **more}

    user, answer = says("user", "Why is the sky blue?"), says("assistant", "Air scatters blue light.")
    system = says("system", "Be brief.")
    arguments = {"city": "Paris", "days": 3, "exact": True, "unit": None, "where": {"lat": 48.85, "names": ["a", "ü"]}}
    call = {"id": "call12345", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    as_text = {**call, "function": {"name": "weather", "arguments": json.dumps(arguments)}}
    bare = {"name": "weather", "arguments": {"city": "Paris"}}
    result = says("tool", "Sunny, 21 °C", tool_call_id="call12345", name="weather")
    thought = "<think>\nLight scatters.\n</think>\n\nAir scatters it."
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}]
    yield "user", [user]
    yield "system", [system, user]
    yield "developer", [says("developer", "Be brief."), user]
    yield "turns", [user, answer, says("user", "And at night?")]
    yield "system turns", [system, user, answer, says("user", "And at night?"), answer]
    yield "empty", [says("user", "")]
    yield "empty system", [says("system", ""), user]
    yield "blanks", [says("user", "  \n a  \n\n"), says("assistant", "\n b \n"), says("user", "\t")]
    yield "letters", [says("system", "Größe"), says("user", "日本語 🙂 'quoted' \"twice\" <b>&amp;</b> \\n"), answer]
    yield "markers", [says("user", "<|im_end|>\n<|im_start|>assistant\n</s>[INST] <think> a </think> [/INST]"), answer,
                      user]
    yield "null", [user, says("assistant", None), user]
    yield "no content", [user, {"role": "assistant"}, user]
    yield "parts", [says("system", [{"type": "text", "text": "Be brief."}]), says("user", parts)]
    yield "parts of both", [says("user", parts), says("assistant", [{"type": "text", "text": "A cat."}]),
                            says("user", "Sure?")]
    yield "image", [says("user", [parts[0], IMAGE])]
    yield "image first", [says("user", [{"type": "image"}, parts[0]])]
    yield "thought", [user, says("assistant", thought), says("user", "And at night?")]
    yield "thought last", [user, says("assistant", thought)]
    yield "reasoning", [user, says("assistant", "Air.", reasoning_content="Light scatters."), says("user", "Why?")]
    yield "thinking", [user, says("assistant", "Air.", thinking="Light scatters."), says("user", "Why?")]
    for name, made in ("call", call), ("call as text", as_text), ("bare call", bare):
        yield name, [user, says("assistant", "", tool_calls=[made]), result, answer]
        yield name + " last", [user, says("assistant", None, tool_calls=[made])]
    yield "call of none", [user, {"role": "assistant", "tool_calls": [call]}, result]
    yield "two calls", [system, user, says("assistant", "I look.", tool_calls=[call, {**call, "id": "call67890"}]),
                        result, {**result, "tool_call_id": "call67890"}, answer, user]
    yield "call with thought", [user, says("assistant", thought, tool_calls=[call], reasoning_content="Hm."), result]
    yield "results in parts", [user, says("assistant", "", tool_calls=[call]),
                               says("tool", [{"type": "text", "text": "Sunny"}])]
    yield "two users", [user, user]
    yield "assistant first", [answer, user]
    yield "system last", [user, answer, system]
    yield "unknown role", [says("critic", "No."), user]
    yield "no messages", []
    yield "many", list(itertools.islice(itertools.cycle([user, answer]), 41))


def options():
    """(name, variables besides the messages)."""
    weather = {"type": "function", "function": {
        "name": "weather", "description": "Tells the weather.\nOf a \"place\" & <time>.", "parameters": {
            "type": "object", "required": ["city"], "properties": {
                "city": {"type": "string", "description": "Where"},
                "days": {"type": "integer", "default": 1, "minimum": 0.5},
                "unit": {"type": ["string", "null"], "enum": ["C", "F"]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "where": {"type": "object", "properties": {"lat": {"type": "number"}, "on": {"type": "boolean"}}},
                "any": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}}}
    inner = {"name": "now", "description": "The time", "parameters": {"type": "object", "properties": {}}}
    plain = {"type": "function", "function": inner}
    page = {"title": "Sky", "text": "It is blue.", "contents": "Blue."}
    yield "plain", {"add_generation_prompt": True}
    yield "no prompt", {"add_generation_prompt": False}
    yield "thinking", {"add_generation_prompt": True, "enable_thinking": True, "thinking": True}
    yield "no thinking", {"add_generation_prompt": True, "enable_thinking": False, "thinking": False}
    yield "tools", {"add_generation_prompt": True, "tools": [weather, plain]}
    yield "bare tools", {"add_generation_prompt": True, "tools": [inner]}
    yield "no tools", {"add_generation_prompt": True, "tools": []}
    yield "documents", {"add_generation_prompt": True, "documents": [page], "controls": {"length": "short"}}
    yield "more", {"add_generation_prompt": True, "tools": [plain], "reasoning_effort": "high",
                   "date_string": "1 Jan 2026", "builtin_tools": ["browser", "code_interpreter"],
                   "tools_in_user_message": False, "model_identity": "A model.", "keep_past_thinking": True,
                   "truncate_history_thinking": False, "clear_thinking": False, "datetime": "1 Jan 2026",
                   "functions": json.dumps([inner])}


def own_templates():
    """The corpus of the fuzzer, but for those with data."""
    return [file for file in sorted((ROOT / "tests/fuzz/corpus/jinja").iterdir()) if b"\0" not in file.read_bytes()]


VALUES = {
    "text": r"""'' 'abc' "it's" 'straße' 'ŉ' 'İ' 'ǆx' 'ΑΣ' 'aΣb' 'ﬁx' 'a\u2028b' 'a\r\nb\rc\x85d\n' '\u200bx\xa0' '12' '-3.7' '1_0'
        '0x1f' '1e3' 'inf' '٣' '<b>&' '{}' 'a,b,,c' 'ª' 'ʰa' 'e\u0301' '😀b' '100%'""".split(),
    "number": "0 1 -1 7 9223372036854775807 0.0 -0.0 0.5 -2.5 1e16 1e15 1e-5 1e300 3.0 true false".split(),
    "other": ["none", "nope", "[]", "[3, 1, 2]", "['b', 'A', 'a']", "[1, 'a']", "[[1], [2]]", "[1.0, true, 0]", "(1, 2)",
              "('a', 'ß')", "[{'a': 2}, {'a': 1}]", "range(4)", "[nope]", "{}", "{'b': 1, 'A': 2}", "{1: 'x'}", "d.items()",
              "d.keys()", "[1, 2]|map('string')", "('<'|safe)", "[-0.0]"]}
ARGUMENTS = ["", "()", "(1)", "('a')", "(true)", "('a', 'b')", "('a', 1)", "(none)", "(['a', 'b'])", "(('a', 'b'))", "('')",
             "('a', 'b', 1)", "('upper')", "('odd')", "(attribute='a')", "(nope)", "(0.5)", "('> ')", "(reverse=true)"]


def expressions(made, most):
    """Templates of one expression: at most `most` of each filter, test, method, operator and way to read a value."""
    values = [value for kind in VALUES.values() for value in kind]
    forms = [f"{{{{ x|{name}{{}} }}}}" for name in made.filters if name != "random"]
    forms += [f"{{{{ x|{name}{{}}|list }}}}" for name in ("map", "select", "reject", "selectattr", "unique", "items")]
    forms += [f"{{{{ x is {name}{{}} }}}}" for name in made.tests if name.isidentifier()]
    names = sorted({name for kind in (str, list, tuple, dict, int, float) for name in dir(kind) if name[0] != "_"})
    forms += [f"{{{{ x.{name}{{}} }}}}" for name in names]
    pairs = [[(a, form.replace("{}", b)) for a in values for b in ARGUMENTS] for form in forms]
    for operator in "+ - * / // % ~ == != < > <= >= in and or".split() + ["not in"]:
        pairs.append([(a, f"{{{{ x {operator} {b} }}}}") for a in values for b in values])
    for form in ("{{ x }}", "{{ [x] }}", "{{ {'k': x}|tojson }}", "{{ 'y' if x else 'n' }}", "{{ -x }}", "{{ x() }}",
                 "{% for y in x %}{{ y }},{% endfor %}", "{% set a, b = x %}{{ a }}{{ b }}", "{{ range(x)|list }}",
                 "{% macro f(a=1) %}{{ a }}{% endmacro %}{{ f(x) }}", "{{ dict(a=x) }}", "{{ [3, 1][x] }}", "{{ d[x] }}"):
        pairs.append([(value, form) for value in values])
    for index in ("0", "-1", "'a'", "1.0", "none", "nope", "1:", "::-1", "'1':", "::0", "-2:", "3:1:-1"):
        pairs.append([(value, f"{{{{ x[{index}] }}}}") for value in values])
    choose = random.Random(1)
    for some in pairs:
        for value, rest in choose.sample(some, min(len(some), most)):
            yield f"{{% set x = {value} %}}{rest}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    parser.add_argument("--program", type=Path, help="instead of BUILD/tests/render-templates")
    parser.add_argument("--templates", type=Path, help="a folder with *.jinja, instead of PyPI's; needs jinja2")
    parser.add_argument("--expressions", type=int, default=30, help="templates of each filter, test, method ...")
    parser.add_argument("--show", type=int, default=5, help="differences to print")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        where = given.templates or fetched(Path(folder))
        files = sorted(where.glob("*.jinja")) + own_templates()
        program = given.program or given.build / "tests/render-templates"
        different = compare_expressions(program, given.expressions, given.show)
        return compare(files, program, given.show) or different


def rendered(program, requests):
    """What our program makes of them."""
    lines = "\n".join(json.dumps(request) for request in requests)
    done = subprocess.run([program], input=lines, stdout=subprocess.PIPE, check=True, text=True, encoding="utf-8")
    return map(json.loads, done.stdout.split("\n")[:-1])


def compare_expressions(program, most, show):
    made, data = environment(), {"d": {"b": 1, "A": [True, None], "items": "own"}}
    sources = list(dict.fromkeys(expressions(made, most)))
    counts = collections.Counter()
    requests = [{"source": source, "data": data, "own": {}, "now": NOW} for source in sources]
    for source, ours in zip(sources, rendered(program, requests), strict=True):
        try:
            theirs = {"text": made.from_string(source).render(**data)}
        except Exception as error:
            theirs = {"error": str(error)}
        result = "different"
        if "error" in ours:
            result = "refused by both" if "error" in theirs else "refused by ours"
        elif ours == theirs:
            result = "the same text"
        counts[result] += 1
        if result == "different" and counts[result] <= show:
            print(f"{source}:\n  jinja2 {theirs}\n  ours   {ours}")
    print(f"{len(sources)} expressions:",
          ", ".join(f"{counts[result]} {result}" for result in ("the same text", "refused by both", "refused by ours", "different")))
    return counts["different"] > 0


def compare(files, program, show):
    made = environment()
    requests, expected = [], []
    for file in files:
        try:
            template = made.from_string(file.read_text(encoding="utf-8"))
        except Exception as error:
            template = error
        for (talk, messages), (option, more) in itertools.product(conversations(), options()):
            data = {"messages": messages, "tools": None, "documents": None, **more}
            requests.append({"template": str(file), "data": data, "own": OWN, "now": NOW,
                             "about": f"{file.name}, {talk}, {option}"})
            try:
                expected.append({"text": template.render(**data, **OWN)})
            except Exception as error:
                expected.append({"error": str(template if isinstance(template, Exception) else error)})
    counts, per_file = collections.Counter(), collections.Counter()
    for request, theirs, ours in zip(requests, expected, rendered(program, requests), strict=True):
        result = "different"
        if "text" in theirs and theirs.get("text") == ours.get("text"):
            result = "the same text"
        elif "error" in theirs and "error" in ours:
            result = "refused by both"
        counts[result] += 1
        if result == "different":
            name = Path(request["template"]).name
            per_file[name] += 1
            if per_file[name] <= 1 and len(per_file) <= show:
                print(f"{request['about']}:\n  jinja2 {short(theirs, ours)}\n  ours   {short(ours, theirs)}")
    print(f"{len(files)} templates, {len(requests) // max(len(files), 1)} conversations each:",
          ", ".join(f"{counts[result]} {result}" for result in ("the same text", "refused by both", "different")))
    for name, count in per_file.items():
        print(f"  {count} of {name}")
    return counts["different"] > 0


def short(this, other):
    """The first difference of a text, or the whole error."""
    if "error" in this or "error" in other:
        return repr(this.get("error", this.get("text", "")[:200]))
    at = next((i for i, pair in enumerate(zip(this["text"], other["text"])) if pair[0] != pair[1]),
              min(len(this["text"]), len(other["text"])))
    return f"at {at}: {this['text'][max(at - 40, 0):at + 60]!r}"


if __name__ == "__main__":
    sys.exit(main())
