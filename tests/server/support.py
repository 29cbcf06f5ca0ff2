"""A server that runs, and clients of it with nothing but Python's library."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))
sys.path.append(str(ROOT / "tests"))
PROGRAM = BUILD / "steps/68-graceful-shutdown"
CHATS = BUILD / "steps/97-chat-server"      # answers conversations as well
ALONE = BUILD / "steps/65-prefix-eviction"  # continues the same requests without HTTP
# With the calls of Hermes and Qwen; schemas would fill the context of a small model.
TEMPLATE = """{% for tool in tools or [] %}{{ tool.function.name }}: {{ tool.function.description }}
{% endfor %}{% for message in messages %}{{ message.role }}:{{ message.content }}{% for call in message.tool_calls or [] %}
{{ '\\n' if not loop.first }}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|endoftext|>
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""
PATIENCE = float(os.environ.get("STAIRCASE_PATIENCE", "1"))  # a sanitizer makes all of it slower
SANITIZED = PATIENCE > 1


class Client:
    """Sends requests to a completion server on a port of this machine."""

    def __init__(self, port):
        self.port = port

    def connect(self, timeout=60):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * PATIENCE)

    def socket(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout * PATIENCE)

    def ask(self, method, path, body=None, **fields):
        """(status, header, body as JSON where it is some)"""
        connection = self.connect()
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in fields.items()})
            response = connection.getresponse()
            data = response.read()
            is_json = response.headers.get("Content-Type") == "application/json"
            return response.status, response.headers, json.loads(data) if is_json and data else data.decode()
        finally:
            connection.close()

    def post(self, body, **fields):
        """The same for a completion; the body is text, or becomes it."""
        text = body if isinstance(body, (str, bytes)) else json.dumps(body)
        return self.ask("POST", "/v1/completions", text, **{"Content_Type": "application/json", **fields})

    def complete(self, prompt, **keys):
        """The answer to a request that must be taken."""
        status, _, answer = self.post({"prompt": prompt, **keys})
        if status != 200:
            raise AssertionError(f"{status}: {answer}")
        return answer

    def texts(self, prompt, **keys):
        return [choice["text"] for choice in self.complete(prompt, **keys)["choices"]]

    def stream(self, prompt, fields={}, **keys):
        return Stream(self, {"prompt": prompt, "stream": True, **keys}, fields)

    def metrics(self):
        """{name, with its labels: value}"""
        lines = [line for line in self.ask("GET", "/metrics")[2].splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def load(self):
        """How many texts wait, and how many grow."""
        metrics = self.metrics()
        return int(metrics["staircase_texts_waiting"]), int(metrics["staircase_texts_growing"])


def memory(server):
    """Resident bytes of a server that this test began; 0 under AddressSanitizer, which holds back what is freed."""
    status = Path(f"/proc/{server.process.pid}/status") if hasattr(server, "process") else None
    if SANITIZED or not status or not status.exists():
        return 0
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1])


class Server(Client):
    """The program on a free port, for a `with`; at the end it must go when it is asked to."""

    def __init__(self, *options, model="tales-6m", ends_well=True, program=None):
        self.options = [str(program or PROGRAM), "--model", model, "--device", "cpu", "--port", "0", *map(str, options)]
        self.ends_well = ends_well
        self.listens = r"http://127\.0\.0\.1"

    def __enter__(self):
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.options, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                                        cwd=ROOT)
        line = self.process.stdout.readline()
        found = re.fullmatch(rf"listening on {self.listens}:(\d+)\n", line)
        if not found:
            self.process.kill()
            raise AssertionError(f"{line!r} on standard output, and {self.said()}")
        self.port = int(found[1])
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(60 * PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"it does not end: {self.said()}") from None
        finally:
            self.process.stdout.close()
        said = self.said()
        self.errors.close()
        if kind is None and self.ends_well and status != 0:
            raise AssertionError(f"it ends with {status}: {said}")

    def said(self):
        self.errors.seek(0)
        return self.errors.read()


class ChatServer(Server):
    """The embedded model with a template, as an instruct model has one: "talker"."""

    def __init__(self, *options, template=TEMPLATE, **keys):
        self.folder = tempfile.TemporaryDirectory()
        self.model = Path(self.folder.name) / "talker"
        self.model.mkdir()
        for file in (ROOT / "models/tales-6m").iterdir():
            (self.model / file.name).symlink_to(file)
        (self.model / "chat_template.jinja").write_text(template, encoding="utf-8")
        super().__init__(*options, model=str(self.model), program=CHATS, **keys)

    def __exit__(self, *error):
        super().__exit__(*error)
        self.folder.cleanup()


def recommending(**settings):
    """A server of a model with these settings in its generation_config.json."""
    server = ChatServer()
    (server.model / "generation_config.json").unlink()
    (server.model / "generation_config.json").write_text(json.dumps(settings))
    return server


class Stream:
    """A completion as it comes; iterating gives the events."""

    def __init__(self, server, body, fields={}):
        self.connection = server.connect()
        self.connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **fields})
        self.response = None

    def __iter__(self):
        self.response = self.response or self.connection.getresponse()
        if self.response.status != 200:
            raise AssertionError(f"{self.response.status}: {self.response.read()}")
        for line in self.response:
            if line.startswith(b"data: ") and line != b"data: [DONE]\n":
                yield json.loads(line[len(b"data: "):])
            elif line == b"data: [DONE]\n":
                self.response.read()
                self.connection.close()
                return
        raise AssertionError("a stream without its end")

    def leave(self):
        if self.connection.sock:
            self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def wait_until(condition, seconds=20):
    """Whether the condition becomes true."""
    end = time.monotonic() + seconds * PATIENCE
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return False


def alone(requests, *options, model="tales-6m"):
    """The texts of the same requests by the program that reads them from a file, one at a time."""
    renamed = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
    texts = []
    for request in requests:
        line = {renamed.get(key, key): value for key, value in {"max_tokens": 16, "temperature": 1, **request}.items()}
        line["do_sample"] = line["temperature"] > 0
        done = subprocess.run([ALONE, "--model", model, "--device", "cpu", "--json", "--requests", "-", *map(str, options)],
                              input=json.dumps(line), capture_output=True, text=True, timeout=300, cwd=ROOT)
        if done.returncode:
            raise AssertionError(done.stderr)
        texts.append(json.loads(done.stdout)["sequences"][0]["text"])
    return texts
