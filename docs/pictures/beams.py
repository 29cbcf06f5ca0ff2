"""Three beams after "The wolf" (step 40): the greedy text begins best and ends second."""

from svg import Picture, write

X = [10, 120, 280, 440, 600]
# name: (pass, y, text, sum, parent, kind)
NODES = {
    "root": (0, 160, '"The wolf"', None, None, "grey"),
    "comma": (1, 60, ",", -1.4169, "root", "orange"),
    "was": (1, 160, " was", -2.5773, "root", "grey"),
    "said": (1, 260, " said", -2.7924, "root", "green"),
    "who": (2, 40, ", who", -2.8522, "comma", "orange"),
    "and": (2, 130, ", and", -3.7503, "comma", "grey"),
    "said,": (2, 260, " said,", -3.5411, "said", "green"),
    "who had": (3, 20, ", who had", -4.2399, "who", "orange"),
    "who was": (3, 110, ", who was", -4.5886, "who", "grey"),
    "quote": (3, 260, ' said, "', -3.7498, "said,", "green"),
    "been": (4, 20, ", who had been", -6.1117, "who had", "orange"),
    "It": (4, 180, ' said, "It', -6.8304, "quote", "grey"),
    "I": (4, 260, ' said, "I', -5.3937, "quote", "green"),
}
WIDTH, HEIGHT = 104, 44


def draw():
    picture = Picture("beams", 760, 392, "A search in which the greedy choice loses",
                      "Three beams after The wolf. The greedy text begins with a comma, the most likely token, and reaches a sum of "
                      "minus 6.11 after four tokens. The text said, I begins third and reaches minus 5.39.")
    for number in range(1, 5):
        picture.text(X[number] + WIDTH / 2, 20, f"pass {number}", size=12, colour="grey")
    for number, y, text, total, parent, kind in sorted(NODES.values(), key=lambda node: node[5] != "grey"):
        y += 14
        if parent:
            p_number, p_y, *_ = NODES[parent]
            middle = (X[p_number] + WIDTH + X[number]) / 2 + (-8 if p_number == 0 else 0)
            start = X[p_number] + (84 if p_number == 0 else WIDTH)
            picture.line([(start, p_y + 14 + HEIGHT / 2), (middle, p_y + 14 + HEIGHT / 2), (middle, y + HEIGHT / 2), (X[number], y + HEIGHT / 2)],
                         kind, width=3 if kind != "grey" else 1.5)
    for name, (number, y, text, total, parent, kind) in NODES.items():
        y += 14
        if not parent:
            picture.box(X[0], y, 84, HEIGHT, kind, text, size=13)
            continue
        picture.box(X[number], y, WIDTH + (36 if number == 4 else 0), HEIGHT, kind, fill=0.25 if kind != "grey" else 0.08)
        middle = X[number] + WIDTH / 2 + (18 if number == 4 else 0)
        picture.text(middle, y + 19, text.strip(), size=13, weight="600" if kind != "grey" else "")
        picture.text(middle, y + 36, f"{total:.4f}".replace("-", "−"), size=12)
    picture.text(X[1] + WIDTH / 2, 234, "given up", size=11, colour="grey")
    picture.box(20, 340, 14, 14, "orange", fill=0.25, round=2)
    picture.text(42, 352, "the greedy text: best at first, −6.1117 in the end", size=13, anchor="start")
    picture.box(20, 364, 14, 14, "green", fill=0.25, round=2)
    picture.text(42, 376, "what the search finds: third at first, −5.3937 in the end", size=13, anchor="start")
    return picture


if __name__ == "__main__":
    write(__file__)
