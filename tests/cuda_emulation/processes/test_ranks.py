"""Ranks with an emulated GPU each: whatever happens to one of them, all end soon, with one sentence and a status that
is not 0. Their GPUs exchange numbers by a stand-in for NCCL (nccl.cpp), which makes the faults."""

import http.client
import json
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "parallel"))
from test_mpirun import BUILD, ENVIRONMENT, TEXT, errors, tokens  # noqa: E402

PROGRAMS = BUILD / "tests/cuda_emulation/processes"
MATRICES, BLOCKS, SERVER = (PROGRAMS / name for name in ("98-tensor-parallel", "99-pipeline-parallel", "97-chat-server"))
TEXT = (*TEXT[:-1], "3", "--device", "cuda")
WAIT = 1.0  # for another rank's GPU, in seconds, where one does not answer; else a minute
SOON = 25.0  # for all to end: emulated GPUs compute slowly, where other tests run as well
NO_ANSWER = f"error: another rank has not answered for {WAIT:.1f} seconds: it has ended, is stopped or cannot be reached"


def start(*options, program=MATRICES, fault=None, wait=60, visible=None):
    variables = dict(ENVIRONMENT, STAIRCASE_LONGEST_WAIT=str(round(1000 * wait)))
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    if fault:
        variables["STAIRCASE_FAULT"] = fault
    if visible is not None:
        variables["CUDA_VISIBLE_DEVICES"] = visible
    return subprocess.Popen(["mpirun", "-np", "2", str(program), *map(str, options)], env=variables,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def port_of(server):
    """Where it listens, once it does."""
    line = server.stdout.readline()
    assert line.startswith("listening on http://"), line
    return int(line.rsplit(":", 1)[1])


class Ranks(unittest.TestCase):
    def ended(self, process):
        """The process, once it has ended, with its output."""
        try:
            process.stdout, process.stderr = process.communicate(timeout=SOON)
        except subprocess.TimeoutExpired:
            process.kill()
            self.fail("they wait for ever")
        return process

    def test_the_text_is_that_of_a_cpu(self):
        cpu = subprocess.run([MATRICES, *TEXT[:-1], "cpu", "--json"], capture_output=True, text=True, timeout=60, check=True)
        for program in (MATRICES, BLOCKS):
            with self.subTest(program=program.name):
                done = self.ended(start(*TEXT, "--json", program=program))
                self.assertEqual((done.returncode, errors(done)), (0, []), done.stderr)
                self.assertEqual(tokens(done), tokens(cpu))

    def fails(self, status, sentence, *options, **others):
        done = self.ended(start(*(options or TEXT), **others))
        self.assertEqual((done.returncode, len(errors(done))), (status, 1), done.stderr)
        self.assertRegex(errors(done)[0], sentence)

    def test_an_error_of_nccl(self):
        self.fails(1, "^error: rank 1: NCCL failed while numbers of all ranks were gathered: unhandled system error$",
                   fault="1 5 error")
        self.fails(1, "^error: NCCL failed while GPUs of several ranks computed: remote process exited or there was a "
                      "network error$", fault="0 5 lost")

    def test_memory_that_runs_out_in_a_pass(self):
        for rank, who in ((0, ""), (1, "rank 1: ")):
            with self.subTest(rank=rank):
                self.fails(1, f"^error: {who}the GPU has too little memory: ", fault=f"{rank} 1 memory")

    def test_a_rank_that_is_killed(self):
        self.fails(128 + 9, "^error: rank 1 ended before the other ranks", fault="1 5 kill")

    def test_a_rank_that_is_stopped_is_noticed_by_the_wait_for_its_gpu(self):
        self.fails(1, f"^{NO_ANSWER.replace('error:', 'error: rank 1:')}$", fault="0 5 stop", wait=WAIT)

    def test_a_rank_that_is_stopped_is_noticed_by_its_neighbour_within_seconds(self):
        self.fails(1, "^error: rank 1 is stopped and the other ranks wait for it, so all ranks end$", fault="1 5 stop")

    def test_gpus_that_wait_for_each_other_for_ever(self):
        self.fails(1, f"^{NO_ANSWER}$", fault="1 2 silent", wait=WAIT, program=BLOCKS)

    def test_memory_that_grows_waits_no_longer(self):
        self.fails(1, f"^{NO_ANSWER}$", *TEXT, "--no-use-cache", fault="1 14 silent", wait=WAIT)

    SERVED = ("--model", "tales-llama-1m", "--device", "cuda", "--port", "0")

    def test_a_port_that_is_taken_and_the_end_of_the_server_that_has_it(self):
        server = start(*self.SERVED, program=SERVER)
        try:
            port = port_of(server)
            self.fails(1, f"^error: .*{port}", *self.SERVED[:-1], port, program=SERVER)
        finally:
            server.send_signal(signal.SIGUSR1)  # mpirun passes it on
            done = self.ended(server)
        self.assertEqual((done.returncode, errors(done)), (0, []), done.stderr)

    def test_a_stopped_rank_of_a_server(self):
        server = start(*self.SERVED, fault="1 14 stop", wait=WAIT, program=SERVER)
        client = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=SOON)
        client.request("POST", "/v1/completions", json.dumps({"prompt": "A fox", "max_tokens": 3}),
                       {"Content-Type": "application/json"})
        done = self.ended(server)
        client.close()
        self.assertEqual((done.returncode, errors(done)), (1, [NO_ANSWER]), done.stderr)

    def test_gpus_that_a_person_hides_or_shares(self):
        self.fails(1, "^error: --device cuda: the NVIDIA driver finds no GPU with CUDA_VISIBLE_DEVICES=$", visible="")
        self.fails(1, "^error: NCCL failed while GPUs were linked: invalid usage .Duplicate GPU detected.$", visible="2")
        self.fails(1, "^error: rank 1: --device cuda: the NVIDIA driver finds no GPU with CUDA_VISIBLE_DEVICES=-?[0-9]*$",
                   visible="2,7")


if __name__ == "__main__":
    if not shutil.which("mpirun"):
        print("mpirun is missing")
        raise SystemExit(77)
    unittest.main()
