"""A paged cache: three rows of 40, 20 and 5 positions, their lines of the block table, and the pool."""

from svg import Picture, write

ROWS = [("row 0", 40, [0, 3, 5], "blue"), ("row 1", 20, [1, 4], "green"), ("row 2", 5, [2], "orange")]
BLOCKS, SIZE, CELL = 8, 16, 80


def draw():
    picture = Picture("paging", 760, 330, "A pool of blocks, and the block table of three rows",
                      "Row 0 has 40 positions in the blocks 0, 3 and 5, row 1 has 20 in 1 and 4, row 2 has 5 in block 2. "
                      "The last block of each is filled in part. The blocks 6 and 7 are free.")
    picture.text(20, 24, "the block table", anchor="start", weight="600")
    owners = {}
    for r, (name, length, blocks, kind) in enumerate(ROWS):
        y = 38 + r * 44
        picture.text(130, y + 23, f"{name}, {length} positions", anchor="end", size=13)
        for i, block in enumerate(blocks):
            picture.box(144 + i * 52, y, 46, 36, kind, str(block), size=13)
            owners[block] = (kind, min(SIZE, length - i * SIZE))
    picture.text(330, 61, "position 37: entry 37 / 16 = 2 is block 5,", anchor="start", size=13)
    picture.text(330, 81, "at offset 37 % 16 = 5", anchor="start", size=13)
    picture.text(20, 204, "the pool", anchor="start", weight="600")
    for block in range(BLOCKS):
        x = 60 + block * CELL
        kind, filled = owners.get(block, ("grey", 0))
        picture.text(x + CELL / 2 - 3, 232, str(block), size=13, mono=True)
        picture.box(x, 240, CELL - 6, 36, kind, "" if filled else "free", 0.05, size=13)
        if filled:
            picture.box(x, 240, (CELL - 6) * filled / SIZE, 36, kind, "", 0.3)
            picture.text(x + CELL / 2 - 3, 263, f"{filled} of {SIZE}", size=13)
    picture.text(60, 306, "65 positions in 6 blocks: 31 of 96 are empty, less than one block a row", anchor="start", size=13)
    return picture


if __name__ == "__main__":
    write(__file__)
