"""Runs the checks of a practice folder and reports what is red, so a learner knows where to look.

The test program reports each test case as it begins and ends (`lines` in tests/doctest_main.cpp). One that hangs is
ended, and one that crashes ends the program: it is started again after that case."""

import hashlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time

TOLD_AFTER = 10  # seconds of a test case before it is named
IDLE = 10        # seconds without any computing after which the case is given up


class Case:
    """A test case, and its messages if it was red."""

    def __init__(self, name, line):
        self.name, self.line, self.green, self.failures = name, line, False, []
        self.ended, self.trace = "", []  # how it ended the program, and where
        self.start = self.moved = time.monotonic()  # when it began, and when it was last seen computing
        self.before = self.now = None  # the result of Started.computed() then


class Runner:
    """Runs the test cases of folder/build/test; `limit` seconds of computing for each."""

    def __init__(self, folder, limit, sanitize=False):
        self.folder, self.limit, self.sanitize = folder.path, limit, sanitize
        self.program = self.folder / "build/test"
        self.record = self.folder / "build/green.json"

    def known(self):
        """The names of all test cases, in the order of test.cpp."""
        with self.started("--list-test-cases") as (_, events):
            return [event["known"] for event in map(parsed, events) if "known" in event]

    def started(self, *arguments):
        return Started(self.program, self.folder, arguments, self.sanitize)

    def digest(self):
        """A fingerprint of both programs: what was green stays green while they are the same."""
        digest = hashlib.sha256()
        for name in ("test", "program"):
            digest.update((self.folder / "build" / name).read_bytes())
        return digest.hexdigest()

    def green_before(self):
        try:
            said = json.loads(self.record.read_text(encoding="utf-8"))
            return set(said["green"]) if said["digest"] == self.digest() else set()
        except (OSError, ValueError, KeyError, TypeError):
            return set()

    def run(self, only="", told=lambda case: None):
        """[Case] in order, and how many were green before and so did not run; `told` gets each red one as it ends."""
        names = self.known()
        skipped = self.green_before() if not only else set()
        wanted = [(i, name) for i, name in enumerate(names) if name not in skipped and only.lower() in name.lower()]
        cases, hung = [], 0
        while wanted and hung < 2:  # so a person does not wait for a minute ten times
            first, last = wanted[0][0], wanted[0][0]  # a run of neighbours
            while len(wanted) > last - first + 1 and wanted[last - first + 1][0] == last + 1:
                last += 1
            done = self.run_some(first, last, told)
            cases += done
            wanted = wanted[max(1, len(done)):]
            hung += bool(done and done[-1].ended.startswith("took longer"))
        if wanted:
            print(f"({len(wanted)} more did not run, since two took too long)")
        if not only:
            green = skipped | {case.name for case in cases if case.green}
            text = json.dumps({"digest": self.digest(), "green": sorted(green)})
            self.record.write_text(text, encoding="utf-8")
        return cases, len(skipped & set(names)), names

    def overdue(self, case, computed):
        """Why the case has to be ended, if it has to. If other programs keep the processors busy, it computes
        slowly; so only its own computing time counts."""
        time_now = time.monotonic()
        if computed is None:  # the system does not report it
            used, idle = time_now - case.start, 0.0
        else:
            if computed != case.now:
                case.now, case.moved = computed, time_now
            used, idle = computed[0] - case.before[0], time_now - case.moved
        if used >= self.limit:
            return f"took longer than {self.limit:g} seconds of computing, and was ended; an endless loop? " \
                   "--limit SECONDS gives it more"
        if idle >= max(IDLE, self.limit):
            return f"exceeded its time: it has waited for {idle:.0f} seconds without computing, and was ended"
        return ""

    def run_some(self, first, last, told):
        """The Cases from number `first` to `last`, or to the one that ended the program."""
        cases, case, shown = [], None, 0
        with self.started(f"--first={first + 1}", f"--last={last + 1}") as (process, events):
            for line in events.until(lambda: min(1.0, self.limit) if case else None):
                if line is None:  # time has passed
                    case.ended = self.overdue(case, process.computed())
                    if case.ended:
                        process.kill()
                        break
                    waited = time.monotonic() - case.start
                    if waited >= TOLD_AFTER and case is not shown:
                        print(f"  {waited:.0f} s in \"{case.name}\" ...", file=sys.stderr, flush=True)
                        shown = case
                    continue
                event = parsed(line)
                if "case" in event:
                    case = Case(event["case"], event["line"])
                    case.before = case.now = process.computed()
                elif "failure" in event:
                    case.failures.append(event)
                elif "exception" in event and not event["crash"]:
                    case.failures.append({**event, "failure": reached(event), "values": f"threw: {event['exception']}"})
                elif "exception" in event:
                    case.ended = crash(event["exception"])
                    case.trace = [f"{place(event)}, {reached(event)}"]
                    case.trace += [f"where {'; '.join(event['logged'])}"] if event["logged"] else []
                elif "end" in event and not case.ended:
                    case.green = event["green"]
                    cases.append(case)
                    if not case.green:
                        told(case)
                    case = None
        if case:
            complaint = events.complaint()
            case.ended = complaint[0] if complaint and not case.ended.startswith("took longer") else case.ended or crash("")
            case.trace += complaint[1:]
            cases.append(case)
            told(case)
        return cases


def parsed(line):
    try:
        return json.loads(line)
    except ValueError:
        return {}


def reached(event):
    """How far a test case had come, in the line of the event, when it threw."""
    return "after this check" if event["checked"] else "before the first check of this case"


def place(event):
    return f"{os.path.basename(event['file'])}:{event['line']}"


def crash(said):
    names = {"SIGSEGV": "it used memory that is not its own, or called itself without end (SIGSEGV)",
             "SIGABRT": "it was aborted (SIGABRT)", "SIGFPE": "it divided an integer by zero (SIGFPE)"}
    return "crashed: " + next((text for name, text in names.items() if name in said), said or "the program ended")


class Started:
    """The test program, its events and what it writes to standard error, until the end of the scope."""

    def __init__(self, program, folder, arguments, sanitize):
        self.folder, self.lines = folder, b""
        self.said = StandardError()
        self.main = {}  # {process: ticks that its main thread has computed}
        events, write = os.pipe()
        asan = "detect_leaks=0:color=never:handle_segv=2:handle_abort=2:handle_sigfpe=2"  # and not doctest, which has no stack
        environment = {**os.environ, "ASAN_OPTIONS": asan, "UBSAN_OPTIONS": "print_stacktrace=1"} if sanitize else None
        sys.stdout.flush()
        try:
            self.process = subprocess.Popen(
                [program, "--reporters=lines", f"--out=/dev/fd/{write}", *arguments], cwd=folder, stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE, pass_fds=[write], start_new_session=True, env=environment)
        except BaseException:
            os.close(events)
            raise
        finally:
            os.close(write)
        self.events = events
        os.set_blocking(events, False)
        os.set_blocking(self.process.stderr.fileno(), False)

    def __enter__(self):
        return self, self

    def __exit__(self, *_):
        self.kill()
        self.process.wait()
        os.close(self.events)
        self.process.stderr.close()

    def computed(self):
        """(seconds that the main threads of the program and of those that it has started have computed, ticks of all
        their threads), or None if the system does not report it. The main thread runs the learner's loops; its time
        does not depend on how many processors help."""
        if not os.path.exists("/proc/self/stat"):
            return None
        ticks = 0
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.getsid(int(entry)) != self.process.pid:
                    continue
                whole, main = (stat_of(f"/proc/{entry}{place}/stat") for place in ("", f"/task/{entry}"))
            except (OSError, IndexError):  # it has ended meanwhile
                continue
            self.main[entry] = max(main, self.main.get(entry, 0))
            ticks += whole
        return sum(self.main.values()) / os.sysconf("SC_CLK_TCK"), ticks

    def kill(self):
        """Ends the process and the programs that it has started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def __iter__(self):
        return self.until(lambda: None)

    def until(self, patience):
        """Each event's line; None when `patience()` seconds have passed without one."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.events, selectors.EVENT_READ, "events")
            selector.register(self.process.stderr, selectors.EVENT_READ, "stderr")
            seen = time.monotonic()
            while selector.get_map():
                seconds = patience()
                ready = selector.select(seconds)
                if not ready or seconds and time.monotonic() >= seen + seconds:  # even if it writes without end
                    seen = time.monotonic()
                    yield None
                for key, _ in ready:
                    chunk = os.read(key.fd, 65536)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    elif key.data == "stderr":
                        sys.stderr.buffer.write(self.said.own_lines(chunk))
                        sys.stderr.flush()
                    else:
                        *lines, self.lines = (self.lines + chunk).split(b"\n")
                        yield from (line.decode(errors="replace") for line in lines)

    def complaint(self):
        """[what the standard library or a sanitizer found wrong, where ...], or nothing."""
        return complaint((self.said.messages + self.said.begun).decode(errors="replace"), str(self.folder))


def stat_of(path):
    """The ticks that a process or a thread has computed, in its own code and in the system's."""
    with open(path, encoding="utf-8", errors="replace") as file:
        words = file.read().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


# A sanitizer's report begins; the program ends with it.
REPORT = re.compile(rb"^(AddressSanitizer:|==\d+==ERROR|=====+$|\S+:\d+:\d+: runtime error:)")
REFUSAL = re.compile(rb"Assertion '.*' failed\.$")


class StandardError:
    """What a program writes there, in pieces. Each line is read once, since an endless loop may print millions."""

    def __init__(self):
        self.messages, self.reported = bytearray(), False  # of the library and the sanitizers
        self.begun = b""  # a line that has not ended

    def own_lines(self, piece):
        """The lines that the learner's own code has written."""
        *lines, self.begun = (self.begun + piece).split(b"\n")
        if len(self.begun) > 65536:  # it never ends
            lines, self.begun = [*lines, self.begun], b""
        own = []
        for line in lines:
            self.reported = self.reported or bool(REPORT.match(line.rstrip()))
            if self.reported or REFUSAL.search(line.rstrip()):
                self.messages += line + b"\n"
            else:
                own.append(line + b"\n")
        return b"".join(own)


def complaint(said, folder):
    report = re.search(r"ERROR: AddressSanitizer: ([\w-]+)|^.+?:\d+:\d+: runtime error: (.*)$", said, re.MULTILINE)
    places = []
    if report:
        stack = re.search(r"(?:^ +#\d+ .*\n?)+", said[report.start():], re.MULTILINE)
        frames = re.findall(r"^ +#\d+ \S+ in (.+?) (/.+?:\d+)(?::\d+)?$", stack.group() if stack else "", re.MULTILINE)
        places = [f"in {re.sub(r'[(].*', '', name.replace('staircase::', ''))}, {place[len(folder) + 1:]}"
                  for name, place in frames if place.startswith(folder + "/")]
        places = [re.sub(r"in DOCTEST_ANON_FUNC_\d+", "called", place) for place in places[:5]]
    refused = re.search(r"^(\S+?):\d+: (.*): Assertion '(.*)' failed\.$", said, re.MULTILINE)
    if refused:
        function = re.sub(r" \[with .*", "", refused.group(2)).replace("std::__cxx11::", "std::")
        container = re.search(r"(std::\w+).*?::(\w+|operator\W+)\(", function)
        where = f"{container.group(1)}::{container.group(2)}" if container else os.path.basename(refused.group(1))
        return [f"crashed: the standard library refuses {where}, since {refused.group(3).replace('__', '')} is not so", *places]
    if report:
        kind = report.group(2) or crash({"SEGV": "SIGSEGV", "ABRT": "SIGABRT", "FPE": "SIGFPE"}.get(report.group(1), "")
                                        or f"AddressSanitizer found {report.group(1)}").removeprefix("crashed: ")
        return [f"crashed: {kind}", *places]
    return []


def describe(case):
    """The lines that a red test case gets: at most two failures, each with its values."""
    yield f"RED  {case.name}"
    for one in case.failures[:2]:
        turn = re.match(r'threw(?: another type)?:? "?(your turn: [\w:=()<>~-]+)', one["values"])
        if turn:
            yield f"     {turn.group(1)}"  # and so will be the rest of it
            break
        if one["failure"]:
            yield f"     {place(one)}  {shortened(one['failure'])}"
        if one["values"] and one["values"] != one["failure"]:
            yield f"     {'  ' if one['failure'] else ''}{compared(one['values'])}"
        logged = [shortened(text) for text in one["logged"]]
        if logged:
            yield f"       where {'; '.join(logged)}"
    if case.ended:
        yield f"     {case.ended}"
    yield from (f"       {line}" for line in case.trace)


def squeezed(text):
    """The text with one space in place of several in a row, except in a string literal."""
    parts = re.split(r'("(?:\\.|[^"\\\n])*")', text)
    return "".join(part if part.startswith('"') else re.sub(r"\s+", " ", part) for part in parts).strip()


def shortened(text, most=160):
    text = squeezed(text)
    return text if len(text) <= most else text[:most - 40] + " … " + text[-36:]


NOWHERE = 2**64 - 1  # the result of std::string::find for a text that is not there


def different_spaces(text):
    """Where the two sides of `got == want` begin to differ if they differ only in spaces and line ends; else ""."""
    def shown(side, place):
        part = side[max(place - 12, 0):place + 16]
        return part.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥")
    for match in re.finditer(" == ", text):
        got, want = text[:match.start()], text[match.end():]
        if got != want and got.split() == want.split():
            place = next((i for i, pair in enumerate(zip(got, want)) if pair[0] != pair[1]), min(len(got), len(want)))
            return f"only spaces or line ends differ: got {shown(got, place)}   want: {shown(want, place)}"
    return ""


def compared(text):
    """`got == want` in words; for two long lists, where they begin to differ."""
    if spaces := different_spaces(text.strip()):
        return spaces
    text = " ".join(text.split())
    if re.fullmatch(rf"{NOWHERE} != {NOWHERE}", text):
        return "want it to be there, and it is not"
    if re.fullmatch(rf"\d+ == {NOWHERE}", text):
        return "want it not to be there, and it is"
    if text.startswith("null "):  # of a program's JSON
        return f"got nothing of that name   want: {text.removeprefix('null ').removeprefix('== ').strip()}"
    match = re.fullmatch(r"(.*) == ?(.*)", text)
    lists = re.fullmatch(r"[\[{](.*)[\]}] == [\[{](.*)[\]}]", text)  # of numbers, or of lists
    if lists and len(text) > 100:
        got, want = (re.split(r", ", side) for side in lists.groups())
        place = next((i for i, pair in enumerate(zip(got, want)) if pair[0] != pair[1]), min(len(got), len(want)))
        def around(side):
            return ", ".join(side[place:place + 4]) + (" …" if len(side) > place + 4 else "") or "nothing"
        return f"got {len(got)} values, want {len(want)}; from number {place} on: got {around(got)}, want {around(want)}"
    if match and len(text) <= 400:  # an empty text on the right: what differs is said on the left
        return f"got: {match.group(1)}" + (f"   want: {match.group(2)}" if match.group(2) else "")
    return shortened(text, 400)


def case_name(literals):
    """The name of a test case from its C++ literals: a long name is several of them, one a line."""
    name = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', literals))
    return name.replace('\\"', '"').replace("\\\\", "\\")


def program_cases(text):
    """The names of the test cases in test.cpp that run the whole program: promises of the program, not of the lesson's
    core."""
    marker, helpers, found = "STAIRCASE_STEP_PROGRAM", [], set()
    for block in re.split(r"\n(?=\S)", text):
        if not re.search("|".join([marker, *(rf"\b{name}\(" for name in helpers)]), block):
            continue
        case = re.match(r'TEST_CASE\(\s*((?:"(?:\\.|[^"\\])*"\s*)+)[)*]', block)
        helper = re.match(r"[^\n=]*?(\w+)\(", block) if not case else None
        if case:
            found.add(case_name(case.group(1)))
        elif helper:
            helpers.append(helper.group(1))
    return found
