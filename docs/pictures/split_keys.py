"""Which blocks read which keys in the rungs of attention on a GPU (kernels/rungs/cuda/attention)."""

from svg import Picture, write

LEFT, WIDTH, ROW = 128, 480, 18


def draw():
    picture = Picture("split_keys", 760, 440, "Blocks and keys in the rungs of attention",
                      "Nine query heads share three heads of keys. In rung 4 nine blocks read all keys of a head each, so each key is read "
                      "three times. In rung 5 three blocks read each key once. In rung 7 eight blocks share the keys of a head, and the last "
                      "to finish merges.")
    picture.text(20, 24, "9 query heads, 3 heads of keys, 1,024 positions; each bar is what a block reads", anchor="start", weight="600")
    y = 46
    kinds = ("blue", "green", "violet")
    for name, who, rows, splits in (("4-online", "9 blocks", 3, 1), ("5-groups", "3 blocks", 1, 1), ("7-last-block", "24 blocks", 1, 8)):
        height = 3 * rows * ROW if rows > 1 else 3 * 24
        picture.text(LEFT - 12, y + height / 2, name, anchor="end", size=13)
        picture.text(LEFT - 12, y + height / 2 + 17, who, anchor="end", size=12, colour="grey")
        for kv_head, kind in enumerate(kinds):
            for row in range(rows):
                tall = ROW if rows > 1 else 24
                top = y + (kv_head * rows + row) * tall
                wide = WIDTH / splits
                for split in range(splits):
                    picture.box(LEFT + split * wide, top, wide - 2, tall - 3, kind, fill=0.25, round=1)
            middle = y + (kv_head + 0.5) * height / 3
            picture.text(LEFT + WIDTH + 10, middle + 3, f"keys and values {kv_head}", anchor="start", size=12, colour=kind)
        y += height + 20
    picture.text(LEFT, y + 8, "Rung 4 reads each key for each of three query heads, rungs 5 to 7 once for all three.", anchor="start", size=12,
                 colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
