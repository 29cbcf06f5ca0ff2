"""The way of n tokens through GPT-2: the residual stream in the middle, what a block adds to it on the right."""

from svg import Picture, write

STREAM, RIGHT = 250, 330
WORDS = [('"The"', 321), ('" wolf"', 1682), ('" ran"', 897), ('" into"', 434)]


def branch(picture, y, steps):
    """From the stream through boxes and back into it at a plus sign; steps are (text, kind, shape after it)."""
    picture.line([(STREAM, y), (RIGHT, y)], "ink", arrow=True)
    x = RIGHT
    for i, (text, kind, shape, width) in enumerate(steps):
        picture.box(x, y - 19, width, 38, kind, text, size=13)
        if i + 1 < len(steps):
            picture.line([(x + width, y), (x + width + 14, y)], "ink", arrow=True)
        if shape:
            picture.text(x + width / 2 - (8 if i + 1 == len(steps) else 0), y + 34, shape, size=11, mono=True, colour="grey")
        x += width + 14
    end, back = x - 14, y + 52
    picture.line([(end - 8, y + 19), (end - 8, back), (STREAM + 10, back)], "ink", arrow=True)
    picture.add(f'<circle cx="{STREAM}" cy="{back}" r="10" fill="none" stroke="currentColor" stroke-width="1.5"/>')
    picture.line([(STREAM - 6, back), (STREAM + 6, back)], "ink")
    picture.line([(STREAM, back - 6), (STREAM, back + 6)], "ink")


def draw():
    picture = Picture("forward", 760, 640, "The way of tokens through GPT-2",
                      "Token ids become rows of a table plus rows of positions. Six blocks each add what attention and an MLP "
                      "give to the residual stream. The last row, normed, times the token table gives the logits.")
    for i, (word, token) in enumerate(WORDS):
        picture.box(72 + i * 90, 10, 84, 40, "grey", fill=0.1)
        picture.text(114 + i * 90, 27, word, size=13)
        picture.text(114 + i * 90, 43, str(token), size=11, colour="grey")
    picture.text(446, 35, "token ids [4]", size=12, anchor="start", mono=True)
    picture.line([(STREAM, 52), (STREAM, 78)], "ink", arrow=True)
    picture.box(120, 78, 260, 38, "orange", "row of the token table + row of the place", size=12)
    picture.text(394, 101, "token table [4096, 256]", size=11, anchor="start", mono=True, colour="grey")
    picture.line([(STREAM, 116), (STREAM, 466)], "blue", width=5)
    picture.text(236, 138, "residual stream [4, 256]", size=12, anchor="end", mono=True)

    picture.box(60, 152, 682, 290, "grey", fill=0.05, round=10)
    picture.text(78, 176, "a block, 6 times", anchor="start", weight="600")
    branch(picture, 208, [("norm", "grey", "", 56), ("query, key, value", "violet", "[4, 768]", 126), ("attention", "green", "[4, 256]", 92),
                          ("mix heads", "violet", "[4, 256]", 88)])
    picture.text(78, 248, "tokens meet:", anchor="start", size=12)
    picture.text(78, 265, "each looks back", anchor="start", size=12)
    branch(picture, 340, [("norm", "grey", "", 56), ("wider, GELU", "violet", "[4, 1024]", 126), ("narrower", "violet", "[4, 256]", 92)])
    picture.text(78, 380, "each token", anchor="start", size=12)
    picture.text(78, 397, "for itself", anchor="start", size=12)

    picture.text(266, 464, "only the last token goes on", size=12, anchor="start")
    picture.line([(STREAM, 466), (STREAM, 480)], "ink", arrow=True)
    picture.box(200, 480, 100, 34, "grey", "norm [1, 256]", size=12)
    picture.line([(STREAM, 514), (STREAM, 534)], "ink", arrow=True)
    picture.box(120, 534, 260, 38, "orange", "times each row of the token table", size=13)
    picture.line([(560, 97), (751, 97), (751, 553), (382, 553)], "orange", dashes="5 4", arrow=True)
    picture.text(560, 545, "tied: the same table", size=12, colour="orange")
    picture.line([(STREAM, 572), (STREAM, 592)], "ink", arrow=True)
    picture.text(STREAM, 610, "logits [1, 4096]", size=13, mono=True)
    picture.text(STREAM, 630, 'softmax: " the" 90 %, " his" 5 %, " a" 3 % …', size=13)
    return picture


if __name__ == "__main__":
    write(__file__)
