"""A cache of eight positions that fills and overflows: slide and recompute."""

from svg import Picture, write

CELL, GAP = 44, 4
LEFT = 190


def row(picture, y, label, tokens, note="", places=None, kinds=None):
    """Eight places with tokens (None: empty); below each token the position that its entry was made for."""
    picture.text(LEFT - 14, y + 26, label, anchor="end")
    for i, token in enumerate(tokens):
        x = LEFT + i * (CELL + GAP)
        if token is None:
            picture.box(x, y, CELL, CELL, "grey", fill=0.04)
            continue
        kind = kinds[i] if kinds else "blue"
        picture.box(x, y, CELL, CELL, kind, "", 0.28 if kind != "blue" else 0.18)
        picture.text(x + CELL / 2, y + 20, token, weight="600")
        picture.text(x + CELL / 2, y + 37, str(places[i]), size=12)
    if note:
        picture.text(LEFT + 8 * (CELL + GAP) + 10, y + 27, note, anchor="start", size=13)


def draw():
    picture = Picture("cache", 760, 520, "A cache that fills, slides, or is refilled",
                      "Eight positions. The prompt fills three, then each token one. When all are full, sliding moves the "
                      "entries with the positions that they were made for; recomputing empties the cache and fills it again.")
    for i in range(8):
        picture.text(LEFT + i * (CELL + GAP) + CELL / 2, 24, str(i), size=12, colour="grey")
    picture.text(LEFT - 14, 24, "position in the cache", size=12, anchor="end", colour="grey")
    tokens = list("abcdefghijk")
    row(picture, 36, "prefill of a b c", tokens[:3] + [None] * 5, "3 in one pass", range(3))
    row(picture, 92, "decode", tokens[:4] + [None] * 4, "1 in each pass", range(4), ["blue"] * 3 + ["green"])
    row(picture, 148, "full", tokens[:8], "and i has no place", range(8), ["blue"] * 7 + ["green"])

    picture.text(20, 224, "--on-overflow slide", anchor="start", mono=True, weight="600")
    picture.text(204, 224, "one copy, one token through the model; the keys still say where they were", anchor="start", size=13)
    row(picture, 238, "i comes", tokens[1:9], "7 stale entries", [1, 2, 3, 4, 5, 6, 7, 7], ["orange"] * 7 + ["green"])
    row(picture, 294, "j and k come", tokens[3:11], "in the end all say 7", [3, 4, 5, 6, 7, 7, 7, 7], ["orange"] * 7 + ["green"])

    picture.text(20, 372, "--on-overflow recompute --refill 4", anchor="start", mono=True, weight="600")
    picture.text(318, 372, "four tokens through the model, then one at a time again", anchor="start", size=13)
    row(picture, 386, "i comes", tokens[5:9] + [None] * 4, "exact, but short", range(4), ["violet"] * 3 + ["green"])
    row(picture, 442, "j and k come", tokens[5:11] + [None] * 2, "room for two more", range(6), ["violet"] * 4 + ["green"] * 2)
    picture.text(LEFT, 508, "Big: the token. Small: the position that its key and value were computed for.", anchor="start", size=12,
                 colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
