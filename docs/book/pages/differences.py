"""A step's diff to its parent as HTML that reads without JavaScript: unified, the changed words marked, unchanged lines
folded, a link for each line."""

import re
from functools import cache
from html import escape
from pathlib import PurePath

from pygments.lexers import get_lexer_for_filename
from pygments.lexers.special import TextLexer
from pygments.token import Token
from pygments.util import ClassNotFound
from step_commands import hunks
from step_commands.diff import NO_REVERSE, REVERSE, differing_words
from step_commands.series import OWN, by_file, compare, landings

CONTEXT = 3  # unchanged lines that stay open around a change
# What has a colour, the first that fits.
ELEMENTS = [(Token.Comment.Preproc, "em"), (Token.Comment.PreprocFile, "u"), (Token.Comment, "i"), (Token.Keyword, "b"),
            (Token.Literal.String, "u"), (Token.Name.Function, "var"), (Token.Name.Class, "var")]


@cache
def element_of(kind):
    """What colours a token of that kind."""
    return next((element for token, element in ELEMENTS if kind in token), None)


@cache
def lexer_for(file):
    """Looking for one takes 10 ms, so each file name is looked up once."""
    try:
        return get_lexer_for_filename(file, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return TextLexer(stripnl=False, ensurenl=False)


@cache
def highlighted(name, text):
    """The lines of a file, each with the few elements that book.css colours: much shorter than spans with classes, and
    there are fifty thousand of them. Most files of a step equal its parent's, so each text is coloured once."""
    if name.endswith(".md"):
        return tuple(escape(line, quote=False) for line in text.splitlines())
    lexer = lexer_for(PurePath(name).name)
    pieces, before, waiting = [], None, ""

    def flush():
        for index, part in enumerate(waiting.split("\n")):
            pieces.append("\n" if index else "")
            code = escape(part, quote=False)
            pieces.append(f"<{before}>{code}</{before}>" if before and part.strip() else code)

    for kind, value in lexer.get_tokens(text):
        element = element_of(kind)
        if element != before and not value.isspace():
            flush()
            before, waiting = element, ""
        waiting += value
    flush()
    return tuple("".join(pieces).split("\n")[:len(text.splitlines())])


def marked(line, ranges):
    """The highlighted line with the characters of `ranges`, [(begin, end)], between <mark>s."""
    if not ranges:
        return line
    inside = {position for begin, end in ranges for position in range(begin, end)}
    pieces, position, marking = [], 0, False
    for piece in re.findall(r"<[^>]*>|&[^;]*;|.", line):
        if piece.startswith("<"):
            if marking:  # a mark and a span must not overlap
                pieces.append("</mark>")
                marking = False
            pieces.append(piece)
            continue
        if (position in inside) != marking:
            marking = not marking
            pieces.append("<mark>" if marking else "</mark>")
        pieces.append(piece)
        position += 1
    return "".join(pieces) + ("</mark>" if marking else "")


def ranges(line):
    """Where the words are in reverse."""
    found, position, begin = [], 0, 0
    for piece in re.split(rf"({re.escape(REVERSE)}|{re.escape(NO_REVERSE)})", line):
        if piece == REVERSE:
            begin = position
        elif piece == NO_REVERSE:
            found.append((begin, position))
        else:
            position += len(piece)
    return found


def pairs(removed, added):
    """[(index of a removed line, of the added line that resembles it, marks in the one, marks in the other)]"""
    found, start = [], 0
    for i, old in enumerate(removed):
        for j in range(start, len(added)):
            words = differing_words(old, added[j])
            if words:
                found.append((i, j, ranges(words[0]), ranges(words[1])))
                start = j + 1
                break
    return found


class FileDiff:
    """What happened to one file: `lines` are (sign, old number, new number, text)."""

    def __init__(self, name, hunks, before, after):
        self.name, self.lines = name, []
        old = new = 0
        for line in hunks:
            if line.startswith(("@@", "\\")):
                continue
            sign, text = line[:1] or " ", line[1:]
            old += sign != "+"
            new += sign != "-"
            self.lines.append((sign, old, new, text))
        self.added = sum(line[0] == "+" for line in self.lines)
        self.removed = sum(line[0] == "-" for line in self.lines)
        self.is_new, self.is_gone = not before, not after
        self.before, self.after = (highlighted(name, text) if text else () for text in (before, after))

    @property
    def counts(self):
        return f"+{self.added}" + (f" −{self.removed}" if self.removed else "")

    def groups(self):
        """Runs of lines with and without changes: [(changed, lines)]."""
        found = []
        for line in self.lines:
            changed = line[0] != " "
            if not found or found[-1][0] != changed:
                found.append((changed, []))
            found[-1][1].append(line)
        return found

    def html(self):
        pieces = []
        groups = self.groups()
        for index, (changed, lines) in enumerate(groups):
            if changed:
                pieces.append(self.change(lines))
                continue
            first = 0 if index == 0 else CONTEXT
            last = len(lines) - (0 if index == len(groups) - 1 else CONTEXT)
            if last - first < 3:
                pieces.append(self.unchanged(lines))
                continue
            pieces.append(self.unchanged(lines[:first]) + f'<details class="same"><summary>{last - first} unchanged lines</summary>'
                          + self.unchanged(lines[first:last]) + "</details>" + self.unchanged(lines[last:]))
        return "".join(pieces)

    def block(self, tag, prefix, lines):
        """Lines of one kind, [(number, code)]. Those of the tests and the text are one element, since they are many."""
        if not lines:
            return ""
        if self.name in OWN:
            return f"<{tag}>" + "".join(f"{code}\n" for _, code in lines) + f"</{tag}>"
        name = f"{self.name}-{prefix}"
        return "".join(f"<{tag} id={name}{number}><a href=#{name}{number} tabindex=-1>{number}</a>{code}\n</{tag}>"
                       for number, code in lines)

    def unchanged(self, lines):
        return self.block("span", "", [(new, self.after[new - 1]) for _, _, new, _ in lines])

    def change(self, lines):
        removed = [line for line in lines if line[0] == "-"]
        added = [line for line in lines if line[0] == "+"]
        marks = {}
        for i, j, old_marks, new_marks in pairs([line[3] for line in removed], [line[3] for line in added]):
            marks["-", i], marks["+", j] = old_marks, new_marks
        return ("<div>"
                + self.block("del", "old-", [(old, marked(self.before[old - 1], marks.get(("-", i))))
                                             for i, (_, old, _, _) in enumerate(removed)])
                + self.block("ins", "", [(new, marked(self.after[new - 1], marks.get(("+", i))))
                                         for i, (_, _, new, _) in enumerate(added)]) + "</div>")

    @property
    def is_rewritten(self):
        """Whether so little stays that a diff would only show two texts."""
        kept = len(self.lines) - self.added - self.removed
        return self.name in OWN and kept < self.added


def file_diffs(step):
    """What the step changes, its lesson first, then test.cpp and README.md."""
    texts = [{name: path.read_text(encoding="utf-8", errors="replace") for name, path in one.files().items()} if one else {}
             for one in (step.parent, step)]
    found = [FileDiff(name, hunks, texts[0].get(name, ""), texts[1].get(name, ""))
             for name, _, hunks in by_file(compare(step.parent, step, True, "--unified=100000")) if hunks]
    order = {name: place for place, name in enumerate(reversed(OWN), 1)}
    return sorted(found, key=lambda one: order.get(one.name, 0))


def hunk_part(step, hunk, added):
    """A hunk of the text, with the colours of the diff; each line leads to its place there. `added` are the numbers of
    the lines that the step adds to the file. Raises ValueError with a line that is not in it."""
    text = step.lesson()[hunk.file].read_text(encoding="utf-8") if hunk.file in step.lesson() else ""
    numbers, source, code = hunk.numbers(text), text.splitlines(), highlighted(hunk.file, text)
    indent = len(source[numbers[0] - 1]) - len(hunk.lines[0])
    pieces = []
    for number in numbers:
        if number is None:
            pieces.append(f"<span><i>{hunks.LEFT_OUT}</i>\n</span>")
            continue
        tag = "ins" if number in added else "span"
        line = re.sub(rf"^((?:<[^>]*>)*) {{{indent}}}", r"\1", code[number - 1])
        pieces.append(f"<{tag}><a href=#{hunk.file}-{number} tabindex=-1>{number}</a>{line}\n</{tag}>")
    name = escape(hunk.file)
    return (f'<figure class="hunk"><figcaption><a href="#{name}-{numbers[0]}">{name}</a></figcaption>'
            f'<div tabindex="0" role="group" aria-label="lines of {name}"><div class="code">'
            + "".join(pieces) + "</div></div></figure>")


def page_part(step, pathto):
    """The section of the step's page; `pathto(document)` gives a link."""
    pieces = []
    landed = landings(step.parent, step)
    if landed:
        links = ", ".join(f'<a href="{pathto("source/common/decoding/" + file.name)}">{escape(file.name)}</a>' for file in landed)
        pieces.append(f'<p class="landed">Landed: {links}. Finished files are in <code>common/decoding</code> from here on, '
                      'as it was, and no longer in the folder.</p>')
    for one in file_diffs(step):
        folded = one.name in OWN
        state = "new" if one.is_new else "gone" if one.is_gone else ""
        if one.is_rewritten and one.name == "test.cpp":
            body = ("<p>Little of it stayed, so here it is as a whole:</p>" if step.parent else "") + (
                '<div class="diff" tabindex="0" role="group" aria-label="test.cpp"><div class="code">'
                + one.block("span", "", list(enumerate(one.after, 1))) + "</div></div>")
        elif one.is_rewritten:
            body = "<p>This page shows it" + (f', and <a href="../{step.parent.name}/index.html">{escape(step.parent.heading())}</a> '
                                              "the text before it" if step.parent else "") + ": little of it stayed.</p>"
        else:
            body = (f'<div class="diff" tabindex="0" role="group" aria-label="what changes in {escape(one.name)}">'
                    f'<div class="code">{one.html()}</div></div>')
        pieces.append(
            f'<details class="file{" own" if folded else ""}"{"" if folded else " open"} id="{escape(one.name)}"><summary>'
            f'<code>{escape(one.name)}</code> <span class="counts">{one.counts}</span>{f" <em>{state}</em>" if state else ""}'
            f'</summary>{body}</details>')
    return "".join(pieces)
