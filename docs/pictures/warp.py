"""A warp's way through linear.cu: one output, 768 weights, 32 lanes."""

from svg import Picture, write

LANE, LEFT = 20.5, 88


def draw():
    picture = Picture("warp", 760, 520, "A warp's way through linear.cu",
                      "32 lanes read the weights of one output, 16 bytes each, 512 bytes at a time, in six turns. Each lane adds up "
                      "its own products. Five exchanges at the distances 16, 8, 4, 2 and 1 make one sum, which is finished and stored.")
    picture.text(20, 24, "one output of a product with 768 inputs, float32: 768 weights, 3,072 bytes", anchor="start", weight="600")
    picture.text(LEFT - 10, 52, "lane", anchor="end", size=12, colour="grey")
    for lane in (0, 1, 2, 15, 16, 30, 31):
        picture.text(LEFT + lane * LANE + LANE / 2, 52, str(lane), size=11, colour="grey")
    for turn in range(6):
        y = 60 + turn * 20
        picture.text(LEFT - 10, y + 13, f"turn {turn + 1}", anchor="end", size=12)
        for lane in range(32):
            picture.box(LEFT + lane * LANE, y, LANE - 2, 16, "blue", fill=0.16 + 0.06 * (turn % 2), round=1)
    picture.text(LEFT, 200, "A turn reads 32 · 16 = 512 bytes side by side, whole lines of memory. Four are under way at once.",
                 size=12, anchor="start")
    picture.line([(LEFT + 16 * LANE, 208), (LEFT + 16 * LANE, 228)], "ink", arrow=True)
    picture.text(LEFT - 10, 247, "sums", anchor="end", size=12)
    for lane in range(32):
        picture.box(LEFT + lane * LANE, 232, LANE - 2, 22, "green", fill=0.3, round=1)
    picture.text(LEFT, 274, "Each lane: 6 · 4 = 24 products x · w, added up in its own register.", size=12, anchor="start")

    y = 296
    picture.text(20, y, "warp_sum: everybody adds what the partner has (__shfl_xor_sync)", anchor="start", weight="600")
    for step, distance in enumerate((16, 8, 4, 2, 1)):
        top = y + 14 + step * 28
        picture.text(LEFT - 10, top + 14, f"⊕ {distance}", anchor="end", size=12)
        for lane in range(32):
            picture.box(LEFT + lane * LANE, top, LANE - 2, 18, "orange" if lane < distance else "grey", fill=0.32 if lane < distance else 0.08, round=1)
    picture.text(LEFT, y + 168, "Coloured: the number of different sums that are left: 16, 8, 4, 2, 1. At the end, each lane has the sum.", size=12,
                 anchor="start")
    picture.line([(LEFT + LANE / 2, y + 176), (LEFT + LANE / 2, y + 190)], "ink", arrow=True)
    picture.box(LEFT, y + 192, 300, 28, "violet", "lane 0: + bias, GELU or residual, store", size=13)
    picture.text(LEFT + 318, y + 211, "With 4 rows and 2 outputs, 8 lanes store 8 results.", size=12, anchor="start")
    return picture


if __name__ == "__main__":
    write(__file__)
