"""The outline of a header: all its declarations with their documentation, and of its functions what the previous step
had.

A function that the lesson adds throws. This reads the text of clang-formatted headers, not all of C++: at an unknown
construct, the solution's own text stays."""

import re

YOUR_TURN = 'throw Error("your turn: {}");'  # the function's name; its documentation and README.md say what to write
ERROR = '"common/base/error.h"'

NO_CODE = re.compile(  # comments, raw strings, strings, characters (but 1'000) and the preprocessor's lines
    r"""//[^\n]*|/\*.*?\*/|R"(?P<end>[^()\s\\]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+'"""
    r"""|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*""", re.MULTILINE | re.DOTALL)
PAIRS = {"(": ")", "[": "]", "{": "}"}
OPERATOR = re.compile(r"\boperator\s*(\(\)|\[\]|[^\s\w(]+|[\w:]+)")
INCLUDE = re.compile(r'^#include ([<"][^>"\n]+[>"])$', re.MULTILINE)


class Function:
    """A definition: text[start:head] declares it, text[head:body] initialises members, text[body:end] is its body."""

    def __init__(self, text, scope, name, signature, head, body, end, start):
        self.text, self.scope, self.name, self.signature = text, scope, name, signature
        self.start, self.head, self.body, self.end = start, head, body, end

    def body_text(self):
        return self.text[self.head:self.end]

    def title(self):
        """The definition's usual name: sample, KvCache::append, operator==."""
        name = self.name if self.name != "operator" else "operator" + OPERATOR.search(self.signature).group(1)
        return "::".join((*self.scope, name))


class Header:
    """What a header defines and declares."""

    def __init__(self, text):
        self.text = text
        self.code = NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)
        self.functions = []
        self.declared = {}  # {(scope, name): the declarations of that name, without values}
        self.read(0, len(self.code), ())

    def close(self, start):
        """The position of the bracket that closes the one at `start`."""
        waiting = []
        for position in range(start, len(self.code)):
            letter = self.code[position]
            if letter in PAIRS:
                waiting.append(PAIRS[letter])
            elif waiting and letter == waiting[-1]:
                waiting.pop()
                if not waiting:
                    return position
        return len(self.code) - 1

    def read(self, position, end, scope):
        """Reads the declarations in code[position:end], which belong to these classes."""
        start = head = None  # of a declaration; of its member initialisers
        while position < end:
            letter = self.code[position]
            if start is None:
                label = re.compile(r"(public|private|protected)\s*:(?!:)").match(self.code, position)
                if letter.isspace() or letter == ";" or label:
                    position = label.end() if label else position + 1
                    continue
                start, head = position, None
            if letter in "([":
                position = self.close(position)
            elif letter == ";":
                self.declare(self.code[start:position], scope)
                start = None
            elif letter == ":" and head is None and re.search(r"\)\s*(noexcept\s*)?$", flat(self.code[start:position])) \
                    and self.code[position + 1] != ":":
                head = position
            elif letter == "{":
                last = self.close(position)
                words = re.sub(r"^(template\b|\s)+", "", re.sub(r"\balignas\(\)", "", flat(self.code[start:position])))
                kind = re.match(r"(namespace|class|struct|union|enum|extern)\b", words)
                if kind and "(" not in words and "=" not in words:
                    self.read_inside(kind.group(1), words, position, last, scope)
                    if kind.group(1) in ("namespace", "extern"):
                        start = None
                elif head is not None and re.search(r"[\w>]\s*$", self.code[head:position]):
                    pass  # a member in braces
                elif "(" in words and "=" not in words:
                    signature = self.code[start:position if head is None else head]
                    function = Function(self.text, scope, name_of(words), normal(signature),
                                        position if head is None else head, position, last + 1, start)
                    self.functions.append(function)
                    self.declared.setdefault((scope, function.name), set()).add(function.signature)
                    start = None
                position = last
            position += 1

    def read_inside(self, kind, words, first, last, scope):
        """The part of a namespace, a class or an enum between its braces."""
        if kind in ("namespace", "extern"):
            return self.read(first + 1, last, scope)
        name = re.match(r"(?:enum\s+)?(?:class|struct|union|enum)\s+(\w*)", words).group(1)
        self.declared.setdefault((scope, name), set()).add(normal(words))
        if kind != "enum":
            return self.read(first + 1, last, (*scope, name))
        for word in flat(self.code[first + 1:last]).split(","):
            if word.strip():
                self.declared.setdefault(((*scope, name), re.match(r"\s*(\w*)", word).group(1)), set()).add("")

    def declare(self, statement, scope):
        """A declaration that ends with a semicolon: a field, a constant, an alias, a function without a body."""
        words = flat(statement)
        if re.match(r"\s*(class|struct|union|enum|friend)\b", words):
            return  # read already, or yet to come
        alias = re.match(r"\s*using\s+(\w+)\s*=", words)
        if alias:
            self.declared.setdefault((scope, alias.group(1)), set()).add(normal(statement))
        elif "(" in re.split("=", words)[0]:
            self.declared.setdefault((scope, name_of(words)), set()).add(normal(statement))
        else:
            parts = [re.search(r"(\w+)\s*$", part.split("=")[0]) for part in words.split(",")]  # double a = 0.0, b = 0.0;
            names = [part.group(1) for part in parts if part]
            kind = re.search(rf"(.*?)\b{names[0]}\s*([,={{\[]|$)", statement, re.DOTALL) if names else None
            for name in names:
                self.declared.setdefault((scope, name), set()).add(normal(kind.group(1)) if kind else "")


def flat(code):
    """The code without the contents of brackets; of round ones () stays."""
    code = OPERATOR.sub("operator", code)
    kept, waiting = [], []
    for position, letter in enumerate(code):
        opens = letter in "([{" or letter == "<" and re.search(r"(\w|template )$", code[max(0, position - 9):position])
        if opens:
            if not waiting and letter == "(":
                kept.append("()")
            waiting.append(PAIRS.get(letter, ">"))
        elif waiting and letter == waiting[-1]:
            waiting.pop()
        elif not waiting:
            kept.append(letter)
    return "".join(kept)


def name_of(words):
    match = re.search(r"(~?\w+)\s*\(\)", words)
    return match.group(1) if match else ""


def normal(code):
    return " ".join(re.sub(r"\binline\b", " ", code).split())


def identifiers(code):
    return set(re.findall(r"[A-Za-z_]\w*", code))


def changed_names(before, after):
    """The names that the headers `before` declare and `after` do not, or otherwise."""
    def all_of(headers):
        found = {}
        for header in headers:
            for key, declarations in header.declared.items():
                found.setdefault(key, set()).update(declarations)
        return found

    now = all_of(after)
    return {name for (scope, name), declarations in all_of(before).items()
            if not declarations <= now.get((scope, name), set())}


def outline(solution, before, changed, parent="", others=(), checks=""):
    """The text of the Header `solution` without what the lesson teaches. `before` are the headers of the previous step,
    the one of the same name first. `changed` are the names that have another meaning than there. `others` are the other
    headers of this step: names that they still have are unchanged. `checks` is the text of test.cpp: sentences that it
    requires word for word are given."""
    known = {}  # {(scope, signature): the function in the previous step}
    for header in before:
        for function in header.functions:
            known.setdefault((function.scope, function.signature), (header, function))
    own = {(function.scope, function.signature) for header in (solution, *others) for function in header.functions}
    text, throws, sources = [], False, []
    position = 0
    for function in solution.functions:
        old = known.get((function.scope, function.signature))
        kept = keep(solution, function, old, changed, sources)
        if kept is None:
            gone = [was for key, was in known.items() if key not in own and was[1].name == function.name]
            # Of the same class, or what has become a member of one.
            former = [old] if old else [was for was in gone if was[1].scope == function.scope] or gone
            kept, throws = turn(solution, function, former, parent), True
        kept = with_sentences(kept, sentences(solution.text[function.body:function.end], checks))
        text += [solution.text[position:function.head], kept]
        position = function.end
    result = "".join(text) + solution.text[position:]
    for header in sources:  # an old body may need what only its old file included
        for include in INCLUDE.findall(header.text):
            if include.startswith(("<", '"common/', '"kernels/')):
                result = add_include(result, include)
    return add_include(result, ERROR) if throws else result


def keep(solution, function, old, changed, sources):
    """The text from the member initialisers to the end that can stay, or None if it is the learner's turn."""
    own = solution.text[function.head:function.end]
    body = solution.code[function.body + 1:function.end - 1].strip()
    if old:
        header, was = old
        text = header.text[was.head:was.end]
        if normal(text) == normal(own):
            return own
        if identifiers(header.code[was.body:was.end]) & changed:
            return None
        sources.append(header)
        # The members may be others now: the solution initialises them.
        return solution.text[function.head:function.body] + header.text[was.body:was.end]
    start = solution.code[function.start:function.head]
    if re.search(r"\b(constexpr|consteval)\b|\bauto\b(?!.*->)", flat(start)):
        return own  # the compiler must see what it returns
    if function.scope and (not body or re.fullmatch(r"return \w+(\[\w+\])?;", body) or function.name.startswith("~")):
        return own  # nothing to write
    return None


def turn(solution, function, former, parent):
    """A body that throws, with the previous step's version as a comment."""
    line = solution.text.rfind("\n", 0, function.start) + 1
    indent = re.match(r" *", solution.text[line:]).group()
    lines = [f"{indent}  {YOUR_TURN.format(function.title())}"]
    base = re.search(rf"\b(?:class|struct) {function.scope[-1]} : public (\w+)", solution.code) if function.scope else None
    if base and function.signature.endswith("override"):
        lines.append(f"{indent}  // {base.group(1)}, or a class above it, documents what it has to do.")
    for header, was in former:
        first = header.text.rfind("\n", 0, was.start) + 1
        outer = re.match(r" *", header.text[first:]).group()
        body = header.text[was.body + 1:was.end - 1].strip("\n").rstrip().splitlines()
        if len(body) == 1:
            body = [f"{outer}  {body[0].strip()}"]
        if was.signature != function.signature:
            body = [*(header.text[was.start:was.body].rstrip() + " {").splitlines(), *body, outer + "}"]
        lines += [f"{indent}  // In {parent} it was:",
                  *(f"{indent}  // {line.removeprefix(outer)}".rstrip() for line in body)]
    return solution.text[function.head:function.body] + "\n".join(["{", *lines, indent + "}"])


def literals(text):
    """The texts in quotation marks; adjacent ones are joined."""
    return re.findall(r'"((?:[^"\\\n]|\\.)*)"', re.sub(r'"\s*\n\s*"', "", text))


def sentences(body, checks):
    """Those of a function's texts whose words test.cpp demands, and the statistics that it reads. A placeholder and the
    number that a check has in its place are the same word."""
    def words(text):
        return re.sub(r"\{[^}]*\}|\d+(\.\d+)?", "{}", text)

    demanded = [words(text) for text in literals(checks) if " " in text]
    found = []
    for text in literals(body):
        parts = [part.strip() for part in words(text).split("{}") if len(part.strip()) > 8]
        if " " in text and (any(part in said for part in parts for said in demanded)
                            or any(said in words(text) for said in demanded if len(said) > 10)):
            found.append(text)
    return found + [name for name in re.findall(r'add_statistic\("(\w+)"', body) if f'"{name}"' in checks]


def with_sentences(body, texts):
    """A body that begins with these texts, unless it has them already; one on a single line stays unchanged."""
    own = literals(body)
    texts = [text for text in dict.fromkeys(texts) if text not in own]
    first = re.search(r"\{\n( +)(throw Error\(\"your turn[^\n]*\n)?", body)
    if not texts or not first:
        return body
    lines = ["// The checks know these words:", *(f'//   "{text}"' for text in texts)]
    return body[:first.end() if first.group(2) else first.start() + 2] + \
        "".join(f"{first.group(1)}{line}\n" for line in lines) + body[first.end() if first.group(2) else first.start() + 2:]


def add_include(text, include):
    """The text with this include in its place, once."""
    found = list(INCLUDE.finditer(text))
    if include in [match.group(1) for match in found]:
        return text
    alike = [match for match in found if match.group(1)[0] == include[0]]
    later = next((match for match in alike if match.group(1) > include), None)
    if later:
        return f"{text[:later.start()]}#include {include}\n{text[later.start():]}"
    if alike:
        return f"{text[:alike[-1].end()]}\n#include {include}{text[alike[-1].end():]}"
    if include[0] == "<" and found:
        return f"{text[:found[0].start()]}#include {include}\n\n{text[found[0].start():]}"
    place = found[-1].end() if found else text.find("#pragma once\n") + len("#pragma once") if "#pragma once\n" in text else 0
    return f"{text[:place]}\n\n#include {include}{text[place:]}" if place else f"#include {include}\n\n{text}"
