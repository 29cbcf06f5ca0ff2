"""How often a number of a matrix product is used on its way to the arithmetic (kernels/rungs/cuda/product)."""

from svg import Picture, write


def draw():
    picture = Picture("tiles", 760, 436, "Tiles of the product of prefill on a GPU",
                      "A tile of outputs needs a strip of x and a strip of W. In rung 2 a block computes 32 by 32 outputs from shared memory, in "
                      "rung 3 a thread computes 4 by 4 from registers, in rung 4 a warp computes 32 by 32 on tensor cores. Rung 5 copies three "
                      "tiles ahead while it multiplies one.")
    picture.text(20, 24, "A tile of outputs, and the strips of x and W that it needs", anchor="start", weight="600")
    for i, (name, who, side, cells) in enumerate((("2-shared-memory", "a block: 32 × 32 outputs", 64, 8), ("3-registers", "a thread: 4 × 4 outputs", 64, 4),
                                                  ("4-tensor-cores", "a warp: 2 × 4 matrices", 64, 0))):
        x, y = 60 + i * 240, 56
        picture.text(x + 80, y - 8, name, size=13, weight="600")
        picture.box(x, y + 40, 30, side, "orange", "x", fill=0.25, round=1, size=12)
        picture.box(x + 40, y, side, 30, "green", "W", fill=0.25, round=1, size=12)
        wide, tall = (side / cells, side / cells) if cells else (side / 4, side / 2)
        for row in range(int(side / tall)):
            for column in range(int(side / wide)):
                picture.box(x + 40 + column * wide, y + 40 + row * tall, wide, tall, "blue", fill=0.2, round=0)
        picture.text(x + 72, y + 122, who, size=12, colour="grey")
    for i, text in enumerate(("a number from memory: 32 products", "from shared memory: 4 products", "an instruction: 2,048 products")):
        picture.text(132 + i * 240, 194, text, size=12)
    picture.text(20, 236, "Time: copies to shared memory, barriers, products", anchor="start", weight="600")
    left, unit = 160, 42
    picture.text(left - 12, 272, "4-tensor-cores", anchor="end", size=13)
    for turn in range(4):
        x = left + turn * 3.2 * unit
        picture.box(x, 254, 2 * unit - 4, 26, "orange", f"tile {turn}", fill=0.25, round=1, size=12)
        picture.line([(x + 2 * unit - 2, 248), (x + 2 * unit - 2, 286)], "red")
        picture.box(x + 2 * unit, 254, 1.1 * unit - 4, 26, "blue", fill=0.25, round=1)
        picture.line([(x + 3.1 * unit - 1, 248), (x + 3.1 * unit - 1, 286)], "red")
    picture.text(left - 12, 336, "5-stages", anchor="end", size=13)
    for turn in range(8):
        x = left if turn < 3 else left + (2 + (turn - 3) * 1.2) * unit
        picture.box(x, 298 + turn % 4 * 14, 2 * unit - 4, 12, "orange", f"{turn}", fill=0.25, round=1, size=10)
    for turn in range(6):
        x = left + 2 * unit + turn * 1.2 * unit
        picture.line([(x - 2, 292), (x - 2, 384)], "red")
        picture.box(x, 358, 1.1 * unit - 2, 22, "blue", f"{turn}", fill=0.25, round=1, size=12)
    picture.text(left, 402, "orange: on its way from memory; blue: multiplied; red: a barrier", anchor="start", size=12, colour="grey")
    picture.text(20, 426, "Lengths are a sketch; no rung has been timed on a GPU yet.", size=12, anchor="start", colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
