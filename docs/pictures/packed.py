"""Three prompts in one batch: as a rectangle with padding, and packed with offsets (the numbers of step 16)."""

from svg import Picture, write

ROWS = [[321, 1682], [2054, 687, 258, 516, 427, 307, 258, 539], [4095]]
NEXT = [11, 386, 321]
KINDS = ["blue", "green", "orange"]
CELL = 52


def packed(picture, y, rows, starts, title):
    picture.text(20, y, title, anchor="start", weight="600")
    picture.text(20, y + 42, "tokens", anchor="start", size=13)
    picture.text(20, y + 80, "offsets", anchor="start", size=13)
    picture.text(20, y + 104, "starts", anchor="start", size=13)
    place = 0
    for row, kind, start in zip(rows, KINDS, starts):
        x = 100 + place * CELL
        picture.line([(x, y + 62), (x, y + 68)], "ink")
        picture.text(x, y + 81, str(place), size=13, mono=True)
        picture.text(x + CELL / 2, y + 104, str(start), size=13, mono=True, colour=kind)
        for i, token in enumerate(row):
            picture.box(x + i * CELL + 2, y + 18, CELL - 4, 38, kind, str(token), size=13)
        place += len(row)
    x = 100 + place * CELL
    picture.line([(x, y + 62), (x, y + 68)], "ink")
    picture.text(x, y + 81, str(place), size=13, mono=True)


def draw():
    picture = Picture("packed", 760, 470, "A batch of three prompts, padded and packed",
                      "As a rectangle of three rows and eight columns 13 of 24 places are padding. Packed, 11 tokens follow one "
                      "after another, with the offsets 0, 2, 10 and 11.")
    picture.text(20, 24, "a rectangle: 3 · 8 places, 13 of them padding", anchor="start", weight="600")
    names = ['"The wolf"', '"Once upon a time …"', "(empty)"]
    for r, (row, kind) in enumerate(zip(ROWS, KINDS)):
        y = 38 + r * 40
        picture.text(168, y + 23, names[r], anchor="end", size=13)
        for i in range(8):
            x = 180 + i * CELL
            if i < len(row):
                picture.box(x + 2, y, CELL - 4, 36, kind, str(row[i]), size=13)
            else:
                picture.box(x + 2, y, CELL - 4, 36, "grey", "", 0.04)
                picture.line([(x + 14, y + 26), (x + CELL - 14, y + 10)], "grey", opacity=0.6)
    packed(picture, 190, ROWS, [0, 0, 0], "packed: 11 tokens are 11 tokens (the prefill)")
    packed(picture, 326, [[token] for token in NEXT], [2, 8, 1], "the next pass: a token of each row, after those in its cache")
    picture.text(100, 456, "offsets: where a row's tokens begin among all. starts: at which position of its text.", size=12, anchor="start",
                 colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
