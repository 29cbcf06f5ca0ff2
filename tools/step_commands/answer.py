"""tools/step answer: an exercise of a step's README, and the answer to it."""

from .diff import BOLD, PLAIN, add_colour, coloured, page
from .series import ANSWERS, Problem, find


def add_commands(commands):
    parser = commands.add_parser("answer", help="the answer to an exercise",
                                 description="Prints exercise K of STEP with its answer, or all of them without K. The "
                                             "answers are in ANSWERS.md of the step's folder.")
    parser.add_argument("step", metavar="STEP", help="6, 06, 06-top-k or top-k")
    parser.add_argument("exercise", metavar="K", nargs="?", help="the number of the exercise")
    add_colour(parser)
    parser.set_defaults(run=answer)


def answer(options):
    step, _ = find(options.step)
    exercises, answers = step.exercises(), step.answers()
    if not answers:
        raise Problem(f"{step.name} has no {ANSWERS} yet.")
    numbers = [number for number in answers if options.exercise in (None, str(number))]
    if not numbers:
        raise Problem(f"{step.name} has no exercise '{options.exercise}'; it has 1 to {len(exercises)}.", 2)
    strong, plain = (BOLD, PLAIN) if coloured(options) else ("", "")
    page("\n".join(f"{strong}{number}. {exercises[number]}{plain}\n\n   {answers[number]}\n" for number in numbers))
