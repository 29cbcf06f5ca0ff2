"""Heads of queries that share heads of keys and values: none, in pairs, and all of them."""

from svg import Picture, write

KINDS = (("each head has its own", "tales-llama-1m", 4), ("groups of two share", "tales-gqa-1m", 2), ("all share one", "multi-query", 1))
HEADS, BOX, GAP = 4, 40, 12


def draw():
    picture = Picture("groups", 760, 250, "Grouped queries",
                      "Four heads of queries above, heads of keys and values below. On the left each head of queries has its own, in "
                      "the middle two neighbours share one, on the right all four share one. The cache holds what is below: 1,024, "
                      "512 and 256 numbers for each token.")
    for column, (title, example, shared) in enumerate(KINDS):
        left = 30 + column * 250
        width = HEADS * BOX + (HEADS - 1) * GAP
        picture.text(left + width / 2, 28, title, weight="600")
        picture.text(left + width / 2, 48, example, size=12, colour="grey")
        own = HEADS // shared
        for head in range(HEADS):
            x = left + head * (BOX + GAP)
            picture.box(x, 66, BOX, 34, "orange", f"q{head}")
            group = head // own
            centre = left + (group * own + (own - 1) / 2) * (BOX + GAP) + BOX / 2
            picture.line([(x + BOX / 2, 102), (centre, 150)], "grey", arrow=True)
        for group in range(shared):
            centre = left + (group * own + (own - 1) / 2) * (BOX + GAP) + BOX / 2
            picture.box(centre - BOX / 2, 153, BOX, 34, "blue", f"k{group}", round=4)
            picture.box(centre - BOX / 2, 190, BOX, 22, "green", f"v{group}", size=12)
        picture.text(left + width / 2, 236, f"2 · 4 · {shared} · 32 = {2 * 4 * shared * 32:,} numbers a token", size=12)
    return picture


if __name__ == "__main__":
    write(__file__)
