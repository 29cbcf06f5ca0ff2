"""The run that first_screen.py draws, from its trace: the drafts of each round, and the target's verdict.

    python3 docs/pictures/draft_run.py build     runs step 17 again and writes draft_run.json"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
FILE = FOLDER / "draft_run.json"
STEP, PROMPT = "speculative-decoding", "In the middle of the wood the children found a little house"
OPTIONS = ["--draft-model", "tales-1m", "--prompt", PROMPT, "--max-new-tokens", "15"]


def rounds(events):
    """[{"drafted": [text], "tokens": [[text, origin]]}] of a trace with one text."""
    vocabulary, found, passes = None, [], 0
    for event in events:
        if event["event"] == "start":
            vocabulary = event["vocabulary"]
        elif event["event"] == "pass":
            fed = event["rows"][0]["tokens"]
            target = event["model"] != "tales-1m"
            if target:
                found.append({"drafted": [vocabulary[token] for token in fed[-passes:]] if passes else [], "tokens": []})
            passes = 0 if target else passes + 1
        elif event["event"] == "token":
            found[-1]["tokens"].append([vocabulary[event["token"]], event["origin"]])
    return found


def run(build):
    """The same from the program itself."""
    program = next(path for path in sorted((Path(build) / "steps").glob(f"*-{STEP}")) if path.is_file())
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace"
        subprocess.run([program, *OPTIONS, "--trace", trace], check=True, capture_output=True, timeout=120)
        events = [json.loads(line) for line in trace.read_text(encoding="utf-8").splitlines()]
    return {"step": program.name[:2], "prompt": PROMPT, "rounds": rounds(events)}


if __name__ == "__main__":
    FILE.write_text(json.dumps(run(sys.argv[1]), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
