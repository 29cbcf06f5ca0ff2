#!/usr/bin/python3
"""How soon, how fast and in how much memory steps run in pages, in headless Chromium: the figures of
docs/playground.md.

  tests/playground/measure.py [SITE]      of the site in build-book, from `tools/book --wasm`; on an idle machine

Where tools/download has brought SmolLM2 from PyPI, a page runs that from the disk as well.

It asserts nothing: times belong to a machine."""

import functools
import re
import statistics
import sys
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from renderers import memory
from selenium import webdriver
from selenium.webdriver.common.by import By

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build-book")
SMOLLM2 = ROOT / "models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf"
PROMPT, DRAFT = '--prompt "Once upon a time"', " --draft-model tales-1m"
# What became of a run, what it wrote, and the seconds from the click to the first text that is not the prompt's.
RUN = """
    const [line, done] = arguments, box = document.querySelector("#playground-line"), begun = performance.now();
    const seen = new Set(document.querySelectorAll(".run"));
    let first;
    box.value = line;
    box.form.requestSubmit();
    const look = () => {
      const run = document.querySelector(".run"), [state, text] = seen.has(run) || !run ? ["", ""] : [".state", "pre"].map((of) => run.querySelector(of).textContent);
      if (text.replace("Once upon a time", "").trim()) first ??= (performance.now() - begun) / 1000;
      if (/^(done|ended|cannot)/.test(state)) done([state, text, first]);
      else setTimeout(look, 2);
    };
    look();"""


def open_page(step):
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    browser = webdriver.Chrome(options=options)
    browser.get(f"{ADDRESS}/steps/{next((SITE / 'steps').glob(f'{step}-*')).name}/index.html")
    return browser


def run(browser, line):
    state, text, first = browser.execute_async_script(RUN, f"{PROMPT} {line}")
    return (text, first) if state.startswith("done") else sys.exit(f"{line}: {state}\n{text}")


def converse(browser, dtype):
    """Runs SmolLM2 from the disk: what it wrote, the state, the seconds to the first text, and the renderers' peak in
    megabytes."""
    peaks, running = [0], True

    def watch():
        while running:
            peaks.append(memory(browser))
            time.sleep(0.05)
    watcher = threading.Thread(target=watch)
    watcher.start()
    line = (f'--model disk/{SMOLLM2.name} --dtype {dtype} --prompt "Write a poem about a cat." --max-new-tokens 100 --show-use')
    state, text, first = browser.execute_async_script(RUN.replace("text.replace", "text.replace(/.*more memory/, '').replace"), line)
    running = False
    watcher.join()
    if not state.startswith("done"):
        sys.exit(f"{line}: {state}\n{text}")
    return text, state, first, max(peaks)


SimpleHTTPRequestHandler.log_message = lambda *_: None
server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(SimpleHTTPRequestHandler, directory=SITE))
threading.Thread(target=server.serve_forever, daemon=True).start()
ADDRESS = f"http://127.0.0.1:{server.server_port}"

for step, options in {"01": "", "17": f"--dtype bfloat16 {DRAFT}", "55": ""}.items():
    firsts, laters = [], []
    for _ in range(3):
        with open_page(step) as browser:
            seconds = [run(browser, f"--max-new-tokens 20 {options}")[1] for _ in range(4)]
        firsts.append(seconds[0])
        laters += seconds[1:]
    print(f"{step}: first text {min(firsts):.2f} to {max(firsts):.2f} s after the click, later {min(laters):.2f} to {max(laters):.2f} s")

with open_page("17") as browser:
    speeds = {f"--dtype {dtype}{draft}": [] for draft in ("", DRAFT) for dtype in ("float32", "bfloat16")}
    for _ in range(5):
        for options, found in speeds.items():
            text, _ = run(browser, f"--ignore-eos --max-new-tokens 300 {options}")
            found.append(float(re.search(r"([\d.]+) tokens/s", text)[1]))
for options, found in speeds.items():
    print(f"17 {options}: {statistics.median(found):.0f} tokens/s, {min(found):.0f} to {max(found):.0f}")

with open_page("17") as browser:
    time.sleep(3)
    print(f"17: {memory(browser):.0f} MB before the first run")
    for number in range(1, 61):
        run(browser, f"--ignore-eos --max-new-tokens 100 --dtype bfloat16 {DRAFT}")
        if number in (20, 60):
            time.sleep(6)
            print(f"17: {memory(browser):.0f} MB six seconds after run {number}")

if SMOLLM2.is_file():
    speeds = {dtype: [] for dtype in ("float32", "bfloat16", "int8", "int4")}
    with open_page("96") as browser:
        browser.set_script_timeout(120)
        browser.find_elements(By.CSS_SELECTOR, ".playground input[type=file]")[0].send_keys(str(SMOLLM2))
        time.sleep(3)
        for _ in range(3):
            for dtype, found in speeds.items():
                text, state, first, peak = converse(browser, dtype)
                prefill, speed = re.search(r"first token after (\d+) ms; \d+ new tokens, ([\d.]+) tokens/s", text).groups()
                found.append((first, float(prefill), float(speed), peak, re.search(r"had (.*) of", state)[1]))
        time.sleep(6)
        print(f"96: {memory(browser):.0f} MB six seconds after the last run")
    for dtype, found in speeds.items():
        first, prefill, speed, peak = (statistics.median(values) for values in list(zip(*found, strict=True))[:4])
        print(f"96 --dtype {dtype}: first text {first:.1f} s after the click, TTFT {prefill:.0f} ms, {speed:.1f} tokens/s; "
              f"the program had {found[0][-1]}, renderers up to {peak:.0f} MB")
