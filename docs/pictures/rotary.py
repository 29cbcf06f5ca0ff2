"""How pairs of features turn: one dial for each position, one row for each of three pairs of a head of 32 features."""

import math

from svg import Picture, write

POSITIONS = (0, 1, 2, 3, 4, 5, 6, 7)
PAIRS = (0, 4, 8)
LEFT, TOP, STEP, RADIUS = 190, 78, 68, 26


def dial(picture, x, y, angle, kind, others=()):
    """A circle with an arm at that angle; the positive direction is counter-clockwise."""
    picture.add(f'<circle cx="{x}" cy="{y}" r="{RADIUS}" fill="none" stroke="#8b949e" stroke-opacity="0.6"/>')
    for each, colour in [*others, (angle, kind)]:
        end = (x + (RADIUS - 3) * math.cos(each), y - (RADIUS - 3) * math.sin(each))
        picture.line([(x, y), end], colour, width=2, arrow=True)


def draw():
    picture = Picture("rotary", 760, 470, "Rotary positions: pairs of features turn",
                      "Three pairs of a head of 32 features at positions 0 to 7. Pair 0 turns by 1 radian a position, pair 4 by a "
                      "tenth and pair 8 by a hundredth. Below: a query three positions after a key has the same angle to it at "
                      "positions 7 and 4 as at positions 107 and 104.")
    picture.text(20, 30, "one feature pair is an arrow; each position turns it a bit further", anchor="start", weight="600")
    for column, position in enumerate(POSITIONS):
        picture.text(LEFT + column * STEP, TOP - 34 + 12, str(position), size=12, colour="grey")
    picture.text(LEFT - 50, TOP - 22, "position", size=12, anchor="end", colour="grey")
    for row, pair in enumerate(PAIRS):
        y = TOP + 24 + row * 74
        speed = 10000 ** (-2 * pair / 32)
        picture.text(20, y - 4, f"pair {pair}", anchor="start", weight="600")
        picture.text(20, y + 14, f"{speed:g} radian a position", anchor="start", size=12, colour="grey")
        for column, position in enumerate(POSITIONS):
            dial(picture, LEFT + column * STEP, y, position * speed, "blue")
    y = 362
    picture.text(20, y - 28, "the angle between a query and a key depends on their distance alone (pair 0)", anchor="start", weight="600")
    for column, (query, key) in enumerate(((7, 4), (107, 104))):
        x = 130 + column * 330
        dial(picture, x, y + 40, query, "orange", [(key, "blue")])
        picture.text(x + 46, y + 30, f"query at position {query}", anchor="start", size=13, colour="orange")
        picture.text(x + 46, y + 50, f"key at position {key}", anchor="start", size=13, colour="blue")
        picture.text(x + 46, y + 70, f"between them: {query - key} radians", anchor="start", size=13)
    return picture


if __name__ == "__main__":
    write(__file__)
