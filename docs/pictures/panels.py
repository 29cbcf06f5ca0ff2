"""How the CPU's product cuts its weights into panels, and what a tile keeps in registers (kernels/cpu/tile-inl.h)."""

from svg import Picture, write


def draw():
    picture = Picture("panels", 760, 470, "Panels and tiles of the product on a CPU",
                      "The weights lie in panels of 64 columns. A tile of 6 rows of x and 64 columns keeps 24 registers of sums while "
                      "the depth runs by. One row reads each panel once; 512 rows use it again and again.",
                      "@media (prefers-reduced-motion: no-preference) {\n"
                      "  {id} .scan { animation: panels-scan 4s linear infinite; }\n"
                      "  @keyframes panels-scan { from { transform: translateY(0); } to { transform: translateY(176px); } }\n}")
    kinds = ["blue", "green", "orange", "violet"]
    left, top, width, height = 300, 62, 88, 192
    picture.text(left + 2 * width, 24, "W [in, out], in panels of 64 columns", weight="600")
    picture.text(left - 12, top + height / 2, "in", anchor="end", size=13)
    for i, kind in enumerate(kinds):
        x = left + i * width
        picture.box(x + 2, top, width - 4, height, kind, fill=0.12)
        picture.text(x + width / 2, top - 10, f"{64 * i} … {64 * i + 63}", size=12)
        picture.line([(x + 16, top + 12), (x + 16, top + height - 10)], kind, arrow=True)
        picture.text(x + width / 2 + 8, top + height / 2 + 4, f"panel {i}", size=12)
    picture.text(left + 4 * width + 14, top + height / 2 + 5, "…", size=18)
    picture.box(left + 4, top + 8, width - 8, 10, "red scan", fill=0.55, round=2)
    picture.text(left + width / 2, top + height + 20, "64 weights of one depth", size=12, colour="red")

    picture.text(130, 24, "x [rows, in]", weight="600")
    for r in range(6):
        picture.box(30, top + r * 15, 200, 12, "grey", fill=0.25 if r < 6 else 0.1, round=2)
    for r in range(6, 12):
        picture.box(30, top + 12 + r * 15, 200, 12, "grey", fill=0.06, round=2)
    picture.text(130, top + 16 + 13 * 15 - 2, "6 rows, then the next 6 …", size=12)

    y = 302
    picture.text(20, y, "the tile: 6 rows × 64 columns, in registers", anchor="start", weight="600")
    for r in range(6):
        for v in range(4):
            picture.box(30 + v * 76, y + 14 + r * 17, 72, 14, "blue", fill=0.28, round=2)
    picture.text(30 + 152, y + 132, "24 registers of 16 sums (AVX-512)", size=12)
    picture.text(360, y + 26, "for each depth k:", size=13, anchor="start", weight="600")
    picture.text(360, y + 46, "4 loads: the 64 weights of depth k", size=13, anchor="start")
    picture.text(360, y + 66, "6 broadcasts: x[row, k]", size=13, anchor="start")
    picture.text(360, y + 86, "24 multiply-adds of 16 numbers: sum += x · w", size=13, anchor="start")
    picture.text(360, y + 110, "1 row: every weight is used once, as it comes from memory", size=12, anchor="start", colour="grey")
    picture.text(360, y + 127, "512 rows: the panel stays in the cache for 86 tiles", size=12, anchor="start", colour="grey")
    picture.text(20, 458, "In memory: panel 0 from top to bottom, then panel 1, … one stream for a reader of all of it.", size=12,
                 anchor="start", colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
