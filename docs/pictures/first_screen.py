"""A small model drafts, a large one verifies: the rounds of a real run, one after another."""

import json

from draft_run import FILE
from svg import Picture, write

ROUND, REST = 2.6, 4.0           # seconds of a round, and of the whole text at the end
LEFT, WIDTH, STEP = 84, 98, 106
LETTER = 9.63                    # the width of a letter of 16 pixels where all have the same width
VERDICTS = {"accepted": "green", "corrected": "orange", "bonus": "blue"}


def moving(rounds):
    """Inside of the media query: what is hidden first, and when it shows."""
    whole = rounds * ROUND + REST
    style = ["  {id} .part { opacity: 0; }"]

    def show(name, start, end):
        a, b = 100 * start / whole, 100 * end / whole
        style.append(f"  @keyframes first-{name} {{ 0%, {a:.2f}% {{ opacity: 0; }} {a + 1:.2f}%, {b - 0.4:.2f}% {{ opacity: 1; }} "
                     f"{b:.2f}%, 100% {{ opacity: 0; }} }}")
        style.append(f"  {{id}} .{name} {{ animation: first-{name} {whole:g}s infinite; }}")

    for number in range(rounds):
        start, last = number * ROUND, number == rounds - 1
        end = whole if last else start + ROUND
        for i in range(4):
            show(f"d{number}-{i}", start + 0.25 * i, end)
        show(f"v{number}", start + 1.3, end)
        show(f"t{number}", start + 1.7, whole)
        show(f"n{number}", start + 1.7, end)
    return "@media (prefers-reduced-motion: no-preference) {\n" + "\n".join(style) + "\n}"


def draw():
    run = json.loads(FILE.read_text(encoding="utf-8"))
    rounds = run["rounds"]
    still = "\n".join(f"{{id}} .r{number} {{ opacity: 0; }}" for number in range(1, len(rounds)))
    picture = Picture("first_screen", 620, 336, "Speculative decoding, round by round",
                      f"A draft model proposes four tokens; the target verifies them in one pass. After \"{run['prompt']}\" "
                      f"{sum(len(one['tokens']) for one in rounds)} tokens take {len(rounds)} passes.",
                      style="@media (prefers-reduced-motion: reduce) {\n" + still + "\n  {id} .first { opacity: 0; }\n}\n"
                      + moving(len(rounds)))
    picture.text(14, 28, f"$ tools/run {run['step']}", anchor="start", size=16, mono=True, weight="600")
    picture.text(606, 28, "draft small, verify large", anchor="end", size=16, colour="grey")
    for y, name, size in ((72, "draft", "1 M"), (140, "target", "6 M")):
        picture.text(14, y, name, anchor="start", size=16, weight="600")
        picture.text(14, y + 19, size, anchor="start", size=14, colour="grey")

    shown, x, y = 0, 14, 250
    picture.text(14, 224, run["prompt"], anchor="start", size=16, mono=True, colour="grey")
    for number, one in enumerate(rounds):
        kept = sum(origin == "accepted" for _, origin in one["tokens"])
        for i, token in enumerate(one["drafted"]):
            picture.box(LEFT + i * STEP, 50, WIDTH, 40, f"grey part r{number} d{number}-{i}", token.strip(), size=16)
        for i in range(kept, len(one["drafted"])):  # not accepted, or never looked at
            picture.line([(LEFT + i * STEP + 10, 70), (LEFT + i * STEP + WIDTH - 10, 70)],
                         f"{'red' if i == kept else 'grey'} part r{number} v{number}", width=2.5)
        for i, (token, origin) in enumerate(one["tokens"]):
            colour = VERDICTS[origin]
            picture.box(LEFT + i * STEP, 118, WIDTH, 40, f"{colour} part r{number} v{number}", token.strip(), fill=0.28, size=16,
                        weight="600")
            picture.text(LEFT + i * STEP + WIDTH / 2, 177, origin, kind=f"part r{number} v{number}", colour=colour)
            if x + LETTER * len(token) > 600:
                x, y = 14, y + 26
            picture.text(x + LETTER * (len(token) - len(token.lstrip())), y, token.strip(), anchor="start", size=16, mono=True,
                         weight="600", kind=f"part t{number}", colour=colour)
            x += LETTER * len(token)
            shown += 1
        last = number == len(rounds) - 1
        picture.text(14, 318, f"{shown} tokens in {number + 1} {'pass' if number == 0 else 'passes'} of the large model", anchor="start",
                     size=17, weight="600", kind=f"part n{number}" + ("" if last else " first"))
    return picture


if __name__ == "__main__":
    write(__file__)
