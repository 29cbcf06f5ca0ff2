"""What a warp's request touches in memory, and when weights are requested (kernels/rungs/cuda/matvec)."""

from svg import Picture, write

LEFT, SECTOR = 128, 36


def draw():
    picture = Picture("sectors", 760, 500, "Requests and sectors of the GPU's rungs",
                      "In rung 1, 32 lanes read 4 bytes each in 32 sectors far apart. In rung 2 they read 128 bytes in 4 neighbouring "
                      "sectors, in rung 3 512 bytes in 16. Rung 5 requests weights after the kernel before has ended, rung 6 before, "
                      "and rung 7 requests all of them before.")
    picture.text(20, 24, "One request of a warp: what it uses (blue) of the sectors that memory moves", anchor="start", weight="600")
    picture.text(LEFT - 12, 60, "1-thread", anchor="end", size=13)
    for i in range(6):
        x = LEFT + i * 78
        picture.box(x, 46, SECTOR, 20, "grey", fill=0.1, round=1)
        picture.box(x, 46, SECTOR / 8, 20, "blue", fill=0.6, round=1)
        picture.text(x + SECTOR / 2, 82, f"row {i}", size=11, colour="grey")
        if i < 5:
            picture.text(x + SECTOR + 21, 61, "…", size=13, colour="grey")
    picture.text(LEFT + 6 * 78 - 20, 61, "… to row 31: 32 sectors", size=12, anchor="start")
    picture.text(LEFT - 12, 124, "2-warp", anchor="end", size=13)
    for i in range(4):
        picture.box(LEFT + i * SECTOR, 110, SECTOR, 20, "blue", fill=0.6, round=1)
    picture.text(LEFT + 4 * SECTOR + 14, 125, "32 lanes, 4 bytes each: 4 sectors", size=12, anchor="start")
    picture.text(LEFT - 12, 164, "3-wide-loads", anchor="end", size=13)
    for i in range(16):
        picture.box(LEFT + i * SECTOR, 150, SECTOR, 20, "blue", fill=0.6, round=1)
    picture.text(LEFT, 190, "32 lanes, 16 bytes each: 16 sectors, and a quarter of the requests", size=12, anchor="start")

    top = 236
    picture.text(20, top, "When weights are requested and used: time runs to the right", anchor="start", weight="600")
    picture.box(LEFT, top + 16, 230, 22, "grey", "the kernel before: writes x", fill=0.15, size=12)
    picture.line([(LEFT + 230, top + 10), (LEFT + 230, top + 212)], "red", dashes="4 4")
    picture.text(LEFT + 236, top + 32, "x is there", size=12, anchor="start", colour="red")
    rows = [("5-split-rows", [(240, 110, "request"), (460, 60, "use")]),
            ("6-before-the-wait", [(60, 110, "request"), (240, 60, "use"), (304, 84, "the rest")]),
            ("7-async-copies", [(60, 160, "request all of W"), (240, 60, "use")])]
    for i, (name, parts) in enumerate(rows):
        y = top + 58 + i * 54
        picture.text(LEFT - 12, y + 15, name, anchor="end", size=13)
        for start, width, what in parts:
            kind = "green" if what == "use" else "orange"
            picture.box(LEFT + start, y, width, 22, kind, what, fill=0.28, size=12)
    picture.text(LEFT + 354, top + 73, "700 ns of waiting", size=11, anchor="start", colour="grey")
    picture.text(20, 486, "Lengths are a sketch; no rung has been timed on a GPU yet.", size=12, anchor="start", colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
