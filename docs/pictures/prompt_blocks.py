"""In which order rungs 5 and 6 of a prompt's attention compute the scores (kernels/rungs/cpu/prefill_attention)."""

from svg import Picture, write

SIDE, CELLS, TOP = 240, 8, 86


def triangle(picture, left, name, who):
    """Queries down, keys to the right; what lies above the diagonal is hidden."""
    picture.text(left + SIDE / 2, TOP - 30, name, size=13, weight="600")
    picture.text(left + SIDE / 2, TOP - 10, "keys", size=12, colour="grey")
    picture.text(left - 14, TOP + SIDE / 2, "queries", size=12, colour="grey", turn=-90)
    cell = SIDE / CELLS
    for row in range(CELLS):
        for column in range(CELLS):
            picture.box(left + column * cell, TOP + row * cell, cell, cell, "blue" if column <= row else "grey",
                        fill=0.12 if column <= row else 0.03, round=0)
    for i, line in enumerate(who):
        picture.text(left + SIDE / 2, TOP + SIDE + 24 + i * 18, line, size=12)


def draw():
    picture = Picture("prompt_blocks", 760, 420, "The order of the scores in rungs 5 and 6",
                      "A square of scores, queries down and keys to the right; those above the diagonal are hidden. Rung 5 goes along all keys "
                      "with six queries, then with the next six. Rung 6 goes down 96 queries with 256 keys, then with the next 256 keys, and "
                      "leaves out the tiles that see none of them.")
    picture.text(20, 24, "Scores of a prompt: each query sees the keys up to its own position", anchor="start", weight="600")
    cell = SIDE / CELLS
    left = 70
    triangle(picture, left, "5-query-tile", ("six queries, then the next six:", "all keys and values, 1 MB, pass for each"))
    for turn in range(3):
        y = TOP + 5 * cell + turn * cell / 3
        picture.box(left, y, 5 * cell + (turn + 1) * cell / 3, cell / 3 - 1, "orange", fill=0.45, round=0)
    picture.line([(left + 8, TOP + 5 * cell + 5), (left + 5 * cell, TOP + 5 * cell + 5)], "ink", arrow=True)
    left = 440
    triangle(picture, left, "6-online-softmax", ("256 keys and their values, 128 KB, stay", "while 96 queries use them"))
    for column in range(6):
        for tile in range(3):
            if column < 5 or tile > 0:
                picture.box(left + column * cell, TOP + 5 * cell + tile * cell / 3, cell - 1, cell / 3 - 1, "orange",
                            fill=0.6 if column == 1 else 0.2, round=0)
    picture.line([(left + 1.5 * cell, TOP + 5 * cell + 2), (left + 1.5 * cell, TOP + 6 * cell - 1)], "ink", arrow=True)
    picture.text(20, 408, "Pale squares are hidden: rung 1 computes them too, the others leave them out. Sizes are a sketch.", anchor="start",
                 size=12, colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
