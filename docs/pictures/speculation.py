"""Accept, reject, residual: one drafted token, with p and q of three tokens in numbers."""

from svg import Picture, write

TOKENS = ["a", "b", "c"]
Q = [0.2, 0.2, 0.6]  # the draft
P = [0.5, 0.3, 0.2]  # the target
SCALE = 230


def draw():
    picture = Picture("speculation", 760, 500, "Accept, reject and resample with three tokens",
                      "The draft gives 0.2, 0.2 and 0.6, the target 0.5, 0.3 and 0.2. What both give is accepted, 0.6 altogether. "
                      "The rest, 0.4, is drawn again from the residual 0.75, 0.25 and 0. The sum is the target.")
    base = 206
    both = [min(p, q) for p, q in zip(P, Q)]
    more = [max(0, p - q) for p, q in zip(P, Q)]
    rejected = sum(q - b for q, b in zip(Q, both))
    residual = [m / sum(more) for m in more]

    def bars(left, title, stacks, notes):
        """stacks: for each token a list of (height, kind) from the ground up."""
        picture.text(left + 110, 26, title, weight="600")
        picture.line([(left, base), (left + 220, base)], "grey")
        for i, stack in enumerate(stacks):
            x, y = left + 16 + i * 70, base
            for height, kind in stack:
                if height > 0:
                    y -= height * SCALE
                    picture.box(x, y, 48, height * SCALE, kind, fill=0.3, round=2)
            picture.text(x + 24, base + 20, TOKENS[i], weight="600")
            picture.text(x + 24, y - 8, notes[i], size=12)

    form = lambda values: [f"{value:.1f}" for value in values]  # noqa: E731
    bars(14, "1  the draft draws from q", [[(b, "green"), (q - b, "red")] for b, q in zip(both, Q)], form(Q))
    bars(270, "2  the residual, max(0, p − q)", [[(m, "orange")] for m in more], form(more))
    bars(526, "3  the result is p", [[(b, "green"), (m, "orange")] for b, m in zip(both, more)], form(P))

    picture.box(24, 242, 14, 14, "green", fill=0.3, round=2)
    picture.text(44, 254, "accepted: min(p, q)", size=12, anchor="start")
    picture.box(184, 242, 14, 14, "red", fill=0.3, round=2)
    picture.text(204, 254, "rejected", size=12, anchor="start")
    picture.box(284, 242, 14, 14, "orange", fill=0.3, round=2)
    picture.text(304, 254, "drawn again, in the place of what was rejected", size=12, anchor="start")

    x = [30, 100, 190, 290, 400, 520, 640]
    heads = ["token", "q", "p", "accepted with", "drawn and", "drawn again", "altogether"]
    lower = ["", "", "", "min(1, p/q)", "accepted", "and then this", ""]
    for left, head, low in zip(x, heads, lower):
        picture.text(left, 292, head, size=12, anchor="start", weight="600")
        picture.text(left, 308, low, size=12, anchor="start", weight="600")
    picture.line([(24, 316), (736, 316)], "grey")
    for i, token in enumerate(TOKENS):
        accept = min(1, P[i] / Q[i])
        cells = [token, f"{Q[i]}", f"{P[i]}", f"{accept:.2f}", f"{Q[i]} · {accept:.2f} = {both[i]:.1f}",
                 f"{rejected:.1f} · {residual[i]:.2f} = {rejected * residual[i]:.1f}", f"{both[i]:.1f} + {rejected * residual[i]:.1f} = {both[i] + rejected * residual[i]:.1f}"]
        for left, cell in zip(x, cells):
            picture.text(left, 338 + i * 24, cell, size=13, anchor="start")
    picture.line([(24, 396), (736, 396)], "grey")
    for left, cell in zip(x, ["sum", "1", "1", "", f"{sum(both):.1f}", f"{rejected:.1f}", "1"]):
        picture.text(left, 416, cell, size=13, anchor="start", weight="600")
    picture.text(30, 452, "Rejected: 0.6 · (1 − 0.33) = 0.4, always token c, which the draft overrates.", size=13, anchor="start")
    picture.text(30, 474, "The residual 0.3, 0.1, 0 divided by its sum, 0.4, is 0.75, 0.25, 0. The next token is drawn from it.", size=13,
                 anchor="start")
    return picture


if __name__ == "__main__":
    write(__file__)
