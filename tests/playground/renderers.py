"""How much memory the pages of a browser take."""

import re
import subprocess
from pathlib import Path


def memory(browser):
    """Megabytes of the browser's renderers; what several share counts in parts."""
    ours, found = {browser.service.process.pid}, 0
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args=", "--sort=start_time"], capture_output=True, text=True, check=True).stdout
    for pid, parent, words in (line.split(None, 2) for line in listed.splitlines()):
        if int(parent) in ours:
            ours.add(int(pid))
            if "--type=renderer" in words:
                found += int(re.search(r"\nPss: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8"))[1])
    return found * 1024 / 1e6
