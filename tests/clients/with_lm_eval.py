"""lm-eval on the server, with local-completions and local-chat-completions, and on the same folder, with its hf
backend. Both must give the same scores and answers. The tasks are made here, from sentences of the tales' test set."""

import json
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

URL, MODEL, FOLDER = os.environ["STAIRCASE_URL"], os.environ["STAIRCASE_MODEL"], os.environ["STAIRCASE_FOLDER"]
SENTENCES = [
    "Once upon a time there was a king who had three sons", "A Fox once saw a Crow fly off with a piece of cheese",
    "The Wolf said to the Lamb that it was muddying the water", "There was once an old woman who lived in a little cottage",
    "The miller's daughter sat down and began to weep", "A Lion lay asleep in the forest when a Mouse ran over his nose",
    "In the middle of the night the princess woke and looked out", "The two brothers went out into the wide world",
    "The Hare laughed at the Tortoise for being so slow", "He opened the door and saw a great golden bird",
    "The Ass put on the skin of a Lion", "She took the ring from her finger and gave it to him"]
TASKS = {
    # The likelier of two endings, of which one belongs to another sentence.
    "endings": """
task: endings
dataset_path: json
dataset_kwargs: {data_files: {test: %(choices)s}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{start}}"
doc_to_choice: "{{ends}}"
doc_to_target: 0
metric_list: [{metric: acc}, {metric: acc_norm}]
""",
    "surprise": """
task: surprise
dataset_path: json
dataset_kwargs: {data_files: {test: %(texts)s}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""}
CHATS = {
    "answers": """
task: answers
dataset_path: json
dataset_kwargs: {data_files: {test: %(choices)s}}
test_split: test
output_type: generate_until
doc_to_text: "{{start}}"
doc_to_target: "{{ends[0]}}"
generation_kwargs: {until: ["The Fox said"], max_gen_toks: 24, do_sample: false, temperature: 0.0}
metric_list: [{metric: exact_match}]
"""}


def evaluate(folder, model, arguments, tasks, **options):
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=list(tasks), task_manager=manager,
                                   bootstrap_iters=0, **options)


def answers(folder, model, arguments, **options):
    """To each start of a sentence, as a chat."""
    result = evaluate(folder, model, arguments, CHATS, apply_chat_template=True, log_samples=True, **options)
    return {sample["doc"]["start"]: sample["resps"][0][0] for sample in result["samples"]["answers"]}


def scores(folder, model, arguments):
    result = evaluate(folder, model, arguments, TASKS, batch_size=4)
    return {f"{task} {name}": value for task, values in result["results"].items() for name, value in values.items()
            if isinstance(value, float)}


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        halves = [sentence.split(" ") for sentence in SENTENCES]
        choices = [{"start": " ".join(words[:5]), "ends": [" " + " ".join(words[5:]), " " + " ".join(other[5:])]}
                   for words, other in zip(halves, halves[1:] + halves[:1])]
        files = {"choices": choices, "texts": [{"text": sentence + "."} for sentence in SENTENCES]}
        for kind, lines in files.items():
            (folder / f"{kind}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for task, text in {**TASKS, **CHATS}.items():
            (folder / f"{task}.yaml").write_text(text % {kind: folder / f"{kind}.json" for kind in files})
        tokenizer = f"tokenizer={FOLDER},tokenizer_backend=huggingface"
        ours = scores(folder, "local-completions", f"model={MODEL},base_url={URL}/v1/completions,{tokenizer},"
                      "num_concurrent=4,max_length=512,max_retries=1")
        on_cpu = f"pretrained={FOLDER},dtype=float32,device=cpu,max_length=512"
        theirs = scores(folder, "hf", on_cpu)
        said = answers(folder, "local-chat-completions", f"model={MODEL},base_url={URL}/v1/chat/completions,"
                       "num_concurrent=4,max_retries=1")
        wanted = answers(folder, "hf", on_cpu, batch_size=1)
    different = 0
    for start, answer in wanted.items():
        if answer != said[start]:
            different += 1
            print(f"{start}: {said[start]!r} by the server, {answer!r} by transformers")
    print(f"{len(wanted)} answers of chats, {different} of which differ; the longest is {max(said.values(), key=len)!r}")
    for score, value in theirs.items():
        is_same = abs(ours[score] - value) <= 1e-3 * max(1.0, abs(value))
        different += not is_same
        print(f"{score}: {ours[score]:.6f} by the server, {value:.6f} by transformers{'' if is_same else ', which differs'}")
    return 1 if different or not theirs or not any(wanted.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
