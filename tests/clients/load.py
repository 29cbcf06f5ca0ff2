#!/usr/bin/env python3
"""What HTTP costs: the same requests as streams of a server, and from a file to the step before, in turns.

  tests/clients/load.py --model DIR [--dtype bfloat16] [--streams 256] [--tokens 32] [--turns 3]
  tests/clients/load.py --beside COMMAND   another server with the same requests as well; COMMAND has {port}
  tests/clients/load.py --chats            streams of chats beside completions of the same prompts
  tests/clients/load.py --mixed            mixed traffic: priorities and drafts (step 122) beside a server without (97)
  tests/clients/load.py --memory 10000     the server's memory over this many requests

Throughput is reported twice: by the clock, and by the processor time of the program alone, without the client's.
"""

import argparse
import concurrent.futures
import json
import os
import random
import resource
import selectors
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))
import support  # noqa: E402

WORDS = "the king and his three sons went out into the wide world to seek a golden bird that sang at night".split()


SAME_PROMPT = "{% for message in messages %}{{ message.content }}{% endfor %}"


def processor_time(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid):
    """Resident, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def requests(count, tokens):
    choose = random.Random(1)
    return [{"prompt": " ".join(choose.choices(WORDS, k=choose.randint(8, 24))), "max_tokens": tokens, "temperature": 0,
             "ignore_eos": True} for _ in range(count)]


def chat_of(body):
    """The same request as a chat, if the template is SAME_PROMPT."""
    rest = {key: value for key, value in body.items() if key != "prompt"}
    return {"messages": [{"role": "user", "content": body["prompt"]}], **rest}


def stream_all(server, bodies, path="/v1/completions"):
    """(seconds, processor time of the server, seconds to the first byte of each) of streams that begin at once."""
    selector, first, open_streams = selectors.DefaultSelector(), [], 0
    sent = []
    for body in bodies:
        text = json.dumps({**body, "stream": True})
        sent.append(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
                    f"Content-Length: {len(text)}\r\n\r\n{text}".encode())
    start, used = time.monotonic(), processor_time(server.process.pid)
    for request in sent:
        client = server.socket()
        client.sendall(request)
        client.setblocking(False)
        selector.register(client, selectors.EVENT_READ, [None, b""])
        open_streams += 1
    while open_streams:
        for key, _ in selector.select():
            data = key.fileobj.recv(1 << 16)
            if data and key.data[0] is None:
                key.data[0] = time.monotonic() - start
            key.data[1] = key.data[1][-40:] + data
            if data:
                continue
            if b"data: [DONE]" not in key.data[1]:
                raise SystemExit(f"a stream ends with {key.data[1]!r}")
            first.append(key.data[0])
            selector.unregister(key.fileobj)
            key.fileobj.close()
            open_streams -= 1
    seconds, used = time.monotonic() - start, processor_time(server.process.pid) - used
    if used == 0:
        raise SystemExit("the server needed no time that could be measured; give it more --streams or --tokens")
    return seconds, used, first


class Other(support.Client):
    """Another server that listens on {port} of its command, for a `with`; /health shows when it has begun."""

    def __init__(self, command):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.command = shlex.split(command.format(port=self.port))

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 120
        while not self.answers():
            if time.monotonic() > end or self.process.poll() is not None:
                self.process.kill()
                raise SystemExit(f"--beside: {self.command[0]} does not answer at /health of its port {self.port}")
            time.sleep(0.1)
        return self

    def answers(self):
        try:
            return self.ask("GET", "/health")[0] == 200
        except OSError:
            return False

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)


def from_file(options, bodies):
    """(seconds, processor time without that of an empty run) of the step before."""
    lines = "".join(json.dumps({"prompt": body["prompt"], "max_new_tokens": body["max_tokens"], "ignore_eos": True}) + "\n"
                    for body in bodies)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([support.ALONE, *options, "--json", "--requests", "-"], input=lines, capture_output=True, text=True,
                          cwd=ROOT, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    stats = json.loads(done.stdout)["stats"]
    return (stats["new_tokens"] / stats["tokens_per_second"],
            after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def compare_chats(given, bodies):
    """What the template, its thread and the form of a chat cost."""
    clock, processor, tokens = [], [], given.streams * given.tokens
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write(SAME_PROMPT)
        file.flush()
        options = ["--dtype", given.dtype, "--max-batch-size", given.streams, "--chat-template", file.name]
        for turn in range(given.turns):
            with support.Server(*options, model=given.model, program=support.CHATS) as server:
                seconds, used, first = stream_all(server, bodies)
            with support.Server(*options, model=given.model, program=support.CHATS) as server:
                chat_seconds, chat_used, chat_first = stream_all(server, [chat_of(body) for body in bodies],
                                                                 "/v1/chat/completions")
            clock.append(seconds / chat_seconds)
            processor.append(used / chat_used)
            print(f"turn {turn + 1}: completions {tokens / seconds:.1f} tokens/s and {used:.2f} s of processor time, first byte "
                  f"{statistics.median(first):.2f} s (p50); chats {tokens / chat_seconds:.1f} and {chat_used:.2f} s, "
                  f"{statistics.median(chat_first):.2f} s")
    print(f"chats have {100 * statistics.median(clock):.1f} % of the throughput of completions by the clock, "
          f"{100 * statistics.median(processor):.1f} % by processor time")


def mixed_requests(count):
    """Short and long prompts, chats that share their beginning, and texts that repeat themselves."""
    choose = random.Random(2)

    def words(least, most):
        return " ".join(choose.choices(WORDS, k=choose.randint(least, most)))

    common, story = words(120, 120), "The fox said to the lion: come with me to the well, and the lion went to the well. "
    kinds = [lambda: {"prompt": words(6, 16), "max_tokens": 48},
             lambda: {"prompt": words(180, 240), "max_tokens": 16, "priority": 5},
             lambda: {"prompt": f"{common}. {words(6, 16)}", "max_tokens": 32},
             lambda: {"prompt": story * choose.randint(3, 6), "max_tokens": 96}]
    return [{**kinds[i % len(kinds)](), "temperature": 0, "ignore_eos": True} for i in range(count)]


def small_latencies(server, count):
    """Seconds that each small request takes while four long ones of a lower priority are decoded all the time."""
    choose, stop = random.Random(3), threading.Event()

    def grow(number):
        while not stop.is_set():
            prompt = " ".join(random.Random(number).choices(WORDS, k=240))
            server.complete(prompt, max_tokens=150, ignore_eos=True, temperature=0, priority=5)

    def small(_):
        begin = time.monotonic()
        server.complete(" ".join(choose.choices(WORDS, k=8)), max_tokens=8, ignore_eos=True, temperature=0, priority=0)
        return time.monotonic() - begin

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        for number in range(4):
            pool.submit(grow, number)
        time.sleep(0.5)
        waits = []
        for number in range(count):
            waits.append(pool.submit(small, number))
            time.sleep(choose.expovariate(40))
        waits = sorted(wait.result() for wait in waits)
        stop.set()
    return waits


def compare_mixed(given):
    """Priorities and drafts beside the server without them."""
    bodies, slots = mixed_requests(given.streams), 16
    tokens = sum(body["max_tokens"] for body in bodies)
    drafts = ["--prompt-lookup-num-tokens", 8]
    servers = {"97": (support.CHATS, []), "122": (support.BUILD / "steps/122-urgent-requests", drafts)}
    gains, used_gains, tails = [], [], []
    for turn in range(given.turns):
        seconds, used, p50, p99 = {}, {}, {}, {}
        for name, (program, options) in list(servers.items())[::1 if turn % 2 else -1]:
            with support.Server("--dtype", given.dtype, "--max-batch-size", slots, "--max-queue", 10000, *options,
                                model=given.model, program=program) as server:
                seconds[name], used[name], _ = stream_all(server, bodies)
            with support.Server("--dtype", given.dtype, "--max-batch-size", 4, "--max-queue", 10000, *options,
                                model=given.model, program=program) as server:
                waits = small_latencies(server, 200)
                p50[name], p99[name] = waits[100], waits[197]
        gains.append(seconds["97"] / seconds["122"])
        used_gains.append(used["97"] / used["122"])
        tails.append(p99["122"] / p99["97"])
        print(f"turn {turn + 1}: " + "; ".join(
            f"{name} {tokens / seconds[name]:.0f} tokens/s and {used[name]:.2f} s of processor time, small requests "
            f"{1000 * p50[name]:.0f} ms (p50) and {1000 * p99[name]:.0f} ms (p99)" for name in servers), flush=True)
    for what, values in (("throughput by the clock", gains), ("by processor time", used_gains), ("p99", tails)):
        print(f"{what}: {statistics.median(values):.2f} times ({min(values):.2f} to {max(values):.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tales-6m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--beside", metavar="COMMAND")
    parser.add_argument("--chats", action="store_true")
    parser.add_argument("--mixed", action="store_true")
    parser.add_argument("--memory", type=int, default=0)
    given = parser.parse_args()
    if given.memory:
        with support.Server("--dtype", given.dtype, model=given.model) as server:
            for done in range(0, given.memory, 250):
                if done % 1000 == 0 or done == 250:
                    print(f"{done} requests: {memory(server.process.pid):.1f} MiB")
                stream_all(server, requests(250, 8))
            print(f"{given.memory} requests: {memory(server.process.pid):.1f} MiB")
        return
    if given.mixed:
        return compare_mixed(given)
    bodies = requests(given.streams, given.tokens)
    if given.chats:
        return compare_chats(given, bodies)
    options = ["--model", given.model, "--dtype", given.dtype, "--device", "cpu", "--max-batch-size", str(given.streams)]
    tokens = given.streams * given.tokens
    idle = from_file(options, requests(1, 1))[1]  # loading, and a token
    rows, leads = [], []
    for turn in range(given.turns):
        seconds, used = from_file(options, bodies)
        with support.Server(*options[2:4], *options[6:], model=given.model) as server:
            mine = time.process_time()
            http_seconds, http_used, first = stream_all(server, bodies)
            mine = time.process_time() - mine
        rows.append((tokens / seconds, tokens / http_seconds, (used - idle) / http_used))
        print(f"turn {turn + 1}: without HTTP {tokens / seconds:.1f} tokens/s and {used - idle:.2f} s of processor time; "
              f"with HTTP {tokens / http_seconds:.1f} and {http_used:.2f} s, besides {mine:.2f} s of the client; time to first "
              f"byte {statistics.median(first):.2f} s (p50), {max(first):.2f} s (all)")
        if given.beside:
            with Other(given.beside) as other:
                seconds, used, first = stream_all(other, bodies)
            leads.append((seconds / http_seconds, used / http_used))
            print(f"turn {turn + 1}: the other server {tokens / seconds:.1f} tokens/s and {used:.2f} s of processor time; time to "
                  f"first byte {statistics.median(first):.2f} s (p50), {max(first):.2f} s (all)")
    clock = statistics.median(row[1] / row[0] for row in rows)
    processor = statistics.median(row[2] for row in rows)
    if leads:
        clock_lead, processor_lead = (statistics.median(lead[i] for lead in leads) for i in range(2))
        print(f"{clock_lead:.2f} times the other server's throughput by the clock, {processor_lead:.2f} times by processor time")
    print(f"with HTTP {100 * clock:.1f} % of the throughput by the clock, {100 * processor:.1f} % by processor time")


if __name__ == "__main__":
    main()
