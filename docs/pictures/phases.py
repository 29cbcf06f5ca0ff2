"""Prefill and decode on one scale of time: 512 tokens of a prompt, then one token after the other."""

from svg import Picture, write

PREFILL, TOKEN = 206.0, 1000 / 96  # ms: GPT-2 in the 124M shape, float32, two threads (README.md, Speed)
SCALE = 1.65


def draw():
    picture = Picture("phases", 760, 236, "Prefill and decode on one scale of time",
                      "A prompt of 512 tokens takes 206 milliseconds in one pass. In the same time decode makes 20 tokens, a "
                      "pass for each, and reads all weights for each.")
    left, top = 30, 62
    width = PREFILL * SCALE
    picture.text(left + width / 2, 30, "prefill: 1 pass, 512 tokens", weight="600")
    picture.text(left + width / 2, 50, "the weights are read once", size=12)
    picture.box(left, top, width, 74, "violet", "206 ms for the prompt", weight="600")
    decode = left + width
    picture.text(decode + width / 2, 30, "decode: 20 passes, 20 tokens", weight="600")
    picture.text(decode + width / 2, 50, "the weights are read 20 times, 494 MB each", size=12)
    for i in range(20):
        picture.box(decode + i * TOKEN * SCALE + 1, top, TOKEN * SCALE - 2, 74, "green", str(i + 1), 0.28, size=10, round=2)
    picture.line([(left, 154), (decode, 154)], "ink", arrow=True)
    picture.line([(decode, 154), (left, 154)], "ink", arrow=True)
    picture.text(left + width / 2, 174, "time to first token (TTFT)", size=13)
    first = decode + TOKEN * SCALE
    picture.line([(decode, 146), (decode, 162)], "ink")
    picture.line([(first, 146), (first, 162)], "ink")
    picture.text(decode + 4, 178, "10.4 ms: time per output token (TPOT)", size=13, anchor="start")
    picture.text(380, 216, "GPT-2 in the 124M shape, float32, two threads of a CPU; drawn to scale", size=12, colour="grey")
    return picture


if __name__ == "__main__":
    write(__file__)
