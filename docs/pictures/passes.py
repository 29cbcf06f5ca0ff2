"""How often a softmax reads its row, and who reads (kernels/rungs/cuda/softmax)."""

from svg import Picture, write

LEFT, WIDTH = 128, 150


def draw():
    picture = Picture("passes", 760, 330, "Passes over a row in the softmax's rungs",
                      "Rungs 1 and 2 read a row three times: for the largest number, for the sum, for the result. Rung 3 reads it twice. "
                      "Rung 4 reads it twice, too, but 50 blocks read their shares at once.")
    picture.text(20, 24, "One row of 50,257 logits; each bar is a pass over it", anchor="start", weight="600")
    rows = [("1-thread", ["largest", "sum", "result"], 1, "one thread"), ("2-block", ["largest", "sum", "result"], 1, "128 threads"),
            ("3-online", ["largest and sum", "result"], 1, "128 threads"),
            ("4-split", ["largest and sum", "result"], 8, "50 blocks at once, 6,400 threads")]
    for i, (name, passes, shares, who) in enumerate(rows):
        y, x = 48 + i * 66, LEFT
        picture.text(LEFT - 12, y + 19, name, anchor="end", size=13)
        for what in passes:
            wide = WIDTH if shares == 1 else 34
            kind = "orange" if what == "result" else "blue"
            for share in range(shares):
                picture.box(x, y + share * 28 / shares, wide, 28 / shares, kind, fill=0.25, round=1)
            if shares == 1:
                picture.text(x + wide / 2, y + 19, what, size=12)
            x += wide + 24
            if what != "result" and name != "1-thread":
                picture.line([(x - 12, y - 4), (x - 12, y + 32)], "red")
        picture.text(LEFT, y + 46, who, anchor="start", size=12, colour="grey")
    picture.text(LEFT + 150, 48 + 3 * 66 + 19, "red: all threads of a block meet, or a new kernel begins", anchor="start", size=12, colour="red")
    picture.text(20, 316, "Lengths are a sketch; no rung has been timed on a GPU yet.", size=12, anchor="start", colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
