"""The timeline of a static and of a continuous batch: four texts of 6, 2, 2 and 2 tokens in two slots."""

from svg import Picture, write

KINDS = {"A": "blue", "B": "orange", "C": "green", "D": "violet"}
STATIC = ["AAAAAACC", "BB    DD"]
CONTINUOUS = ["AAAAAA  ", "BBCCDD  "]
CELL, LEFT = 72, 120
# With motion the whole is seen for a while, and then each pass appears in its turn.
STYLE = "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(
    f"  {{id}} .pass{i} {{ animation: {{name}}-pass{i} 12s infinite; }}\n"
    f"  @keyframes {{name}}-pass{i} {{ 0%, 25% {{ opacity: 1; }} 28%, {30 + 8 * i}% {{ opacity: 0.12; }} {33 + 8 * i}%, 100% {{ opacity: 1; }} }}"
    for i in range(8)) + "\n}"


def timeline(picture, y, title, slots, notes):
    picture.text(20, y, title, anchor="start", weight="600")
    for number, row in enumerate(slots):
        top = y + 14 + number * 48
        picture.text(LEFT - 12, top + 27, f"slot {number + 1}", anchor="end", size=13)
        for i, text in enumerate(row):
            x = LEFT + i * CELL
            if text == " ":
                picture.box(x + 2, top, CELL - 4, 42, "grey", "", 0.03, round=3)
            else:
                first = row[:i].count(text) == 0
                picture.box(x + 2, top, CELL - 4, 42, f"{KINDS[text]} pass{i}", text + (" joins" if first and i else ""), 0.28, round=3, size=13)
    picture.text(LEFT, y + 128, notes, size=13, anchor="start")


def draw():
    picture = Picture("batching", 760, 342, "A static and a continuous batch over time",
                      "Four texts generate 6, 2, 2 and 2 tokens in two slots. The static batch takes 8 passes, since C and "
                      "D wait for A. The continuous batch takes 6: C joins when B leaves, and D when C leaves.",
                      STYLE.replace("{name}", "batching"))
    for i in range(8):
        picture.text(LEFT + i * CELL + CELL / 2, 20, str(i + 1), size=12, colour="grey")
    picture.text(LEFT - 12, 20, "pass", size=12, anchor="end", colour="grey")
    timeline(picture, 44, "static: the next batch begins when all of the last one have ended", STATIC,
             "8 passes for 12 tokens, 1.5 rows a pass; D has its first token after pass 7")
    timeline(picture, 204, "continuous: a finished text leaves, a waiting one takes its slot", CONTINUOUS,
             "6 passes for 12 tokens, 2 rows a pass; D has its first token after pass 5")
    return picture


if __name__ == "__main__":
    write(__file__)
