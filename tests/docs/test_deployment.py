"""What docs/ has for clusters: Kubernetes knows every key of the manifest, whose command serves; the job of SLURM runs,
and the programs know each option that the two give them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parallel"))
from mpi import ENVIRONMENT  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("STAIRCASE_BUILD", ROOT / "build"))
MANIFEST, JOB = ROOT / "docs/kubernetes.yaml", ROOT / "docs/staircase.sbatch"
VALIDATE, SHELLCHECK, MPIRUN = map(shutil.which, ("kubernetes-validate", "shellcheck", "mpirun"))


def call(*command, **options):
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                          **options)


def text_of(done):
    return json.loads(done.stdout)["sequences"][0]["text"]


def words(name):
    """The first list of that name in the manifest."""
    return json.loads(re.search(rf"^ +{name}: (\[.*\])$", MANIFEST.read_text(), re.MULTILINE)[1])


class Kubernetes(unittest.TestCase):
    @unittest.skipUnless(VALIDATE, "kubernetes-validate is not installed; PyPI has it")
    def test_every_key_of_the_manifest_is_one_of_kubernetes(self):
        done = call(VALIDATE, "--strict", MANIFEST)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(re.findall(r"(?m)^kind:", MANIFEST.read_text())), 3)

    @unittest.skipUnless(VALIDATE, "kubernetes-validate is not installed; PyPI has it")
    def test_a_key_that_kubernetes_does_not_know_is_found(self):
        wrong = MANIFEST.read_text().replace("serviceName:", "servicename:")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "wrong.yaml"
            file.write_text(wrong)
            done = call(VALIDATE, "--strict", file)
        self.assertEqual(done.returncode, 1)
        self.assertIn("'servicename' was unexpected", done.stdout + done.stderr)

    def test_labels_names_and_volumes_fit_together(self):
        text = MANIFEST.read_text()
        self.assertEqual(set(re.findall(r"\bapp: (\S+)", text)), {"staircase"})
        self.assertIn(f"name: {re.search(r'serviceName: (.+)', text)[1]}\n", text)
        mounted = re.findall(r"- name: (\S+)\n +mountPath:", text)
        defined = re.findall(r"- name: (\S+)\n +(?:persistentVolumeClaim|emptyDir):", text)
        self.assertEqual((mounted, len(mounted)), (defined, 3))

    def test_the_server_has_the_image_s_program_and_knows_its_options(self):
        program, options = words("command")[-1], words("args")
        self.assertIn(f"/build/steps/{program} ", (ROOT / "docs/Containerfile").read_text())
        known = call(BUILD / "steps" / program, "--help").stdout
        for option in [word for word in options if word.startswith("--")]:
            self.assertRegex(known, rf"{option}\b")
        port = options[options.index("--port") + 1]
        self.assertIn(f"containerPort: {port}\n", MANIFEST.read_text())

    @unittest.skipUnless(MPIRUN and (BUILD / "steps/97-chat-server").exists(), "mpirun or the server is missing")
    def test_the_command_serves_on_its_ranks_and_ends_as_the_pod_ends_it(self):
        command, options = words("command"), words("args")
        options[options.index("--model") + 1] = "tales-llama-1m"
        options[options.index("--host") + 1] = "127.0.0.1"
        options[options.index("--port") + 1] = "0"
        options[options.index("--threads") + 1] = "1"
        server = subprocess.Popen([*command[:-1], BUILD / "steps" / command[-1], *options], stdout=subprocess.PIPE,
                                  text=True, env=ENVIRONMENT)
        try:
            address = server.stdout.readline().split()[-1]
            path = re.search(r"path: (\S+)", MANIFEST.read_text())[1]
            with urllib.request.urlopen(address + path, timeout=30) as response:
                self.assertEqual(response.status, 200)
            self.assertIn("kill -USR1 1;", MANIFEST.read_text())
            server.send_signal(signal.SIGUSR1)
            self.assertEqual(server.wait(30), 0)
        finally:
            server.kill()
            server.stdout.close()


class Slurm(unittest.TestCase):
    @unittest.skipUnless(SHELLCHECK, "shellcheck is not installed")
    def test_shellcheck_finds_nothing(self):
        self.assertEqual(call(SHELLCHECK, JOB).stdout, "")

    def test_the_options_of_the_job_come_before_its_first_command(self):
        lines = JOB.read_text().splitlines()
        options = [number for number, line in enumerate(lines) if line.startswith("#SBATCH --")]
        commands = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
        self.assertGreater(len(options), 4)
        self.assertLess(max(options), min(commands))

    @unittest.skipUnless(MPIRUN and (BUILD / "steps/98-tensor-parallel").exists(), "mpirun or the step is missing")
    def test_the_job_runs_the_program_on_as_many_ranks_as_it_has_tasks(self):
        command = [BUILD / "steps/98-tensor-parallel", "--model", "tales-llama-1m", "--prompt", "A fox",
                   "--max-new-tokens", 8, "--json"]
        alone = call(*command)
        for tasks in (1, 3):
            done = call("bash", JOB, *command, env=dict(ENVIRONMENT, SLURM_NTASKS=str(tasks), SLURM_CPUS_PER_TASK="1"))
            self.assertEqual((done.returncode, text_of(done)), (0, text_of(alone)), done.stderr)

    def test_a_job_without_a_program_ends_with_how_to_start_it(self):
        done = call("bash", JOB)
        self.assertEqual((done.returncode, done.stderr.split()[0]), (2, "usage:"))


if __name__ == "__main__":
    unittest.main()
