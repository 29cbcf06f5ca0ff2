"""What four tokens see of each other in two heads of tales-6m, with the real weights."""

from example import BLOCK, HEADS, WORDS, Example, quoted
from svg import Picture, write

CELL = 62


def draw():
    picture = Picture("attention", 760, 372, "Weights of two heads of attention for four tokens",
                      "In head 1 the token into looks at ran and at itself; in head 3 it looks at wolf. No token looks ahead.")
    heads = Example().heads
    for number, head in enumerate(HEADS):
        left = 96 + number * 380
        picture.text(left + 2 * CELL, 22, f"block {BLOCK}, head {head}", weight="600")
        for i, word in enumerate(WORDS):
            picture.text(left + i * CELL + CELL / 2, 52, quoted(word), size=13)
            picture.text(left - 10, 60 + i * CELL + CELL / 2 + 5, quoted(word), size=13, anchor="end")
            for j in range(len(WORDS)):
                x, y = left + j * CELL, 60 + i * CELL
                if j > i:
                    picture.line([(x + 22, y + CELL / 2), (x + CELL - 22, y + CELL / 2)], "grey", opacity=0.5)
                    continue
                weight = heads[head][4][i][j]
                picture.box(x + 2, y + 2, CELL - 4, CELL - 4, "blue", f"{100 * weight:.0f} %", 0.05 + 0.68 * weight,
                            weight="600" if weight > 0.4 else "")
        picture.text(left + 2 * CELL, 60 + 4 * CELL + 24, ('" into" finds what happens', '" into" finds the subject')[number], size=13)
    picture.text(380, 356, "A row looks at the columns; its weights sum to 100 %. What comes later is not seen.", size=12, colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
