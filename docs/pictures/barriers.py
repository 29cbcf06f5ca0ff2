"""The barriers of a layer norm on a GPU (kernels/rungs/cuda/layer_norm)."""

from svg import Picture, write

LEFT, WIDTH = 150, 560


def draw():
    picture = Picture("barriers", 760, 330, "Barriers of the layer norm's rungs",
                      "A row of 768 numbers in the rungs. The tree passes 18 barriers in two sums, sums by warps pass four, one "
                      "reduction for mean and variance passes one, and a warp of its own passes none. From rung 4 on, x is read once.")
    picture.text(20, 24, "One row: reading (blue), adding up (green), barriers (red lines), writing (orange)", anchor="start", weight="600")
    rows = [("2-tree", [("blue", 70, 0), ("green", 130, 9), ("blue", 70, 0), ("green", 130, 9), ("blue", 70, 0), ("orange", 40, 0)]),
            ("3-warp-sums", [("blue", 70, 0), ("green", 46, 2), ("blue", 70, 0), ("green", 46, 2), ("blue", 70, 0), ("orange", 40, 0)]),
            ("4-registers", [("blue", 70, 0), ("green", 46, 2), ("green", 46, 2), ("orange", 40, 0)]),
            ("5-one-reduction", [("blue", 70, 0), ("green", 60, 1), ("orange", 40, 0)]),
            ("6-warp", [("blue", 70, 0), ("green", 34, 0), ("green", 34, 0), ("orange", 40, 0)])]
    for i, (name, parts) in enumerate(rows):
        y, x = 48 + i * 50, LEFT
        picture.text(LEFT - 12, y + 19, name, anchor="end", size=13)
        for kind, width, barriers in parts:
            picture.box(x, y, width, 28, kind, fill=0.25, round=2)
            for b in range(barriers):
                at = x + width * (b + 1) / (barriers + 1)
                picture.line([(at, y - 4), (at, y + 32)], "red")
            x += width + 3
    picture.text(20, 316, "Lengths are a sketch; no rung has been timed on a GPU yet.", size=12, anchor="start", colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
