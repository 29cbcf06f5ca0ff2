"""The unit of docs/ for systemd: it has no key that systemd does not know, and allows every call that the server
makes."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from support import CHATS, ROOT, SANITIZED, ChatServer

ANALYZE = shutil.which("systemd-analyze")
STRACE = shutil.which("strace")
UNIT = (ROOT / "docs/staircase.service").read_text()


@unittest.skipUnless(ANALYZE, "systemd is not installed")
class Unit(unittest.TestCase):
    def test_systemd_knows_all_of_it(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "staircase.service"
            text, count = re.subn(r"(?m)^ExecStart=\S+", f"ExecStart={CHATS}", UNIT)
            self.assertEqual(count, 1)
            file.write_text(text)
            done = subprocess.run([ANALYZE, "verify", file], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    @unittest.skipUnless(STRACE and not SANITIZED, "strace is not installed")
    def test_the_server_makes_no_call_that_is_filtered(self):
        allowed = calls("@system-service") - calls("@privileged")
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "calls"
            server = ChatServer("--max-batch-size", 2)
            server.options = [STRACE, "-f", "-qq", "-o", str(log), *server.options]
            with server:
                body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3})
                self.assertEqual(server.ask("POST", "/v1/chat/completions", body, Content_Type="application/json")[0], 200)
                program = int(re.match(r"\d+", log.read_text())[0])
                os.kill(program, 15)
                server.process.wait(60)
            made = set(re.findall(r"^\d+ +(\w+)\(", log.read_text(), re.MULTILINE))
        self.assertGreater(len(made), 20)
        self.assertEqual(made - allowed, set())


def calls(group):
    """The names of all calls in a group of systemd's."""
    lines = subprocess.run([ANALYZE, "syscall-filter", group], capture_output=True, text=True, check=True).stdout.splitlines()
    names = {line.strip() for line in lines if line.startswith("    ") and not line.strip().startswith("#")}
    groups = {name for name in names if name.startswith("@")}
    return (names - groups).union(*(calls(one) for one in groups))


if __name__ == "__main__":
    unittest.main()
