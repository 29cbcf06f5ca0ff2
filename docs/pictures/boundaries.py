"""What the host and the GPU do where one layer ends and the next begins (kernels/rungs/cuda/boundaries)."""

from svg import Picture, write

LEFT, LAYER, ROW = 174, 90, 70


def draw():
    picture = Picture("boundaries", 760, 440, "Boundaries between layers in five rungs",
                      "In rung 1 the host waits for each layer. In rung 2 it launches ahead, in rung 3 it makes one call. In rung 4 weights are "
                      "requested while the layer before still runs, and in rung 5 one kernel computes all layers, with a barrier of all blocks "
                      "between them.")
    picture.text(20, 24, "Three layers; time runs to the right", anchor="start", weight="600")
    rows = [("1-waits", 80, "the host waits for each layer"), ("2-launches", 30, "launched ahead"), ("3-graph", 18, "one call for all"),
            ("4-before-the-wait", 4, "weights come while the layer before still runs"), ("5-one-kernel", 10, "one kernel, with grid barriers")]
    for i, (name, gap, what) in enumerate(rows):
        y = 52 + i * ROW
        picture.text(LEFT - 24, y + 19, name, anchor="end", size=13)
        for layer in range(3):
            x = LEFT + layer * (LAYER + gap)
            picture.box(x, y, LAYER, 24, "blue", f"layer {layer}", fill=0.25, round=1, size=12)
            if layer == 0 or name in ("1-waits", "2-launches", "4-before-the-wait"):
                called = x - 10 if name == "1-waits" else LEFT - 10 + layer * 12
                picture.line([(called, y - 14), (called, y - 2)], "green", arrow=True)
            if name in ("4-before-the-wait", "5-one-kernel") and layer > 0:
                picture.box(x - 40, y + 28, 36, 10, "orange", fill=0.35, round=1)
            if name == "5-one-kernel" and layer > 0:
                picture.line([(x - gap / 2, y - 6), (x - gap / 2, y + 42)], "red")
        picture.text(LEFT, y + 52, what, anchor="start", size=12, colour="grey")
    picture.text(20, 412, "green: a call of the host; orange: weights requested early; red: all blocks meet", anchor="start", size=12)
    picture.text(20, 430, "Lengths are a sketch; no rung has been timed on a GPU yet.", size=12, anchor="start", colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
