"""The worked example of how-gpt2-works.md: "The wolf ran into" through tales-6m, as the tables of the page.

`python3 docs/pictures/example.py` prints them; tests/docs looks that the page has every one of them."""

import math

from tales import Model, dot, softmax

WORDS = ["The", " wolf", " ran", " into"]
BLOCK = 4
HEADS = (1, 3)


def quoted(word):
    return f'"{word}"'


def row(*cells):
    return f"| {' | '.join(cells)} |"


def table(*rows):
    return "\n".join([row(*rows[0]), "|" + "---|" * len(rows[0]), *(row(*cells) for cells in rows[1:])])


def numbers(values, form=".3f"):
    return [f"{value:{form}}".replace("-", "−") for value in values]


class Example:
    def __init__(self):
        self.model = Model()
        self.tokens = [self.model.token_id[word] for word in WORDS]
        self.stream, self.logits = self.model.forward(self.tokens)
        self.heads = self.model.heads(BLOCK, self.stream[BLOCK])

    def embedding(self):
        token, place = (self.model.weight(f"{name}.weight")[index][:4] for name, index in (("wte", self.tokens[1]), ("wpe", 1)))
        return table(["", "0", "1", "2", "3"], ['" wolf", row 1682', *numbers(token)], ["position 1", *numbers(place)],
                     ["sum", *numbers(self.stream[0][1][:4])])

    def head(self, index):
        """What the last token sees in a head of block 4."""
        scores, weights = self.heads[index][3][-1], self.heads[index][4][-1]
        return table([f"head {index}, \" into\" sees", *map(quoted, WORDS), "sum"], ["score", *numbers(scores, ".2f"), ""],
                     ["exp(score)", *numbers(map(math.exp, scores), ".2f"), *numbers([sum(map(math.exp, scores))], ".2f")],
                     ["weight", *numbers(weights), "1"])

    def result(self):
        weights, values = self.heads[3][4][-1], [value[0] for value in self.heads[3][2]]
        terms = " + ".join(f"{w:.3f} · {v:.2f}" for w, v in zip(weights, values)).replace("-", "−")
        return f"    {terms} = {dot(weights, values):.2f}"

    def product(self):
        """(the query of " into" times the key of " wolf" in head 3, the length of its row at first and at last)."""
        queries, keys = self.heads[3][:2]
        return dot(queries[3], keys[1]), *(math.sqrt(dot(rows[-1], rows[-1])) for rows in (self.stream[0], self.stream[-1]))

    def answer(self):
        rows = [["after", "the most likely next tokens", "", ""]]
        for index, rows_of_block in enumerate(self.stream):
            last = self.model.norm("ln_f", rows_of_block[-1:])[0]
            found = softmax([dot(last, row) for row in self.model.weight("wte.weight")])
            best = sorted(range(len(found)), key=lambda token: -found[token])[:3]
            rows.append([f"block {index - 1}" if index else "the embedding",
                         *(f"{quoted(self.model.token[token])} {100 * found[token]:.1f} %" for token in best)])
        return table(*rows)

    def parts(self):
        """{the marker in the page's outline: the text}."""
        return {"embedding": self.embedding(), "head 3": self.head(3), "head 1": self.head(1), "result": self.result(),
                "answer": self.answer()}


if __name__ == "__main__":
    print("\n\n".join(Example().parts().values()))
