"""Flower as one who tries it out runs it: a SuperLink and SuperNodes on loopback, without TLS, its state in memory.

It starts a process for every node and round, and both sides ask for news every 3 seconds: that is most of what its rounds
take. How much of them is the one and how much the other was not measured.
"""

import json
import os
import shutil
import signal
import socket
import subprocess

from data import fresh
from harness import Stop
from proc import bury, children, wait_until

APP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "flower_app")
PORT = 8000
STARTING_SECONDS, ENDING_SECONDS = 90, 15


class Flower:
    """As many SuperNodes as `nodes`."""

    def __init__(self, run, nodes):
        self.run, self.nodes, self.daemons = run, nodes, []
        self.dir = fresh(run.dir, "flower")
        self.bin = os.path.dirname(run.flower_python)
        home = fresh(self.dir, "home")
        with open(os.path.join(home, "config.toml"), "w") as file:
            file.write(f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "127.0.0.1:{PORT}"\ninsecure = true\n')
        shutil.copytree(APP, os.path.join(self.dir, "app"), ignore=shutil.ignore_patterns("__pycache__"))
        self.env = {
            **os.environ, "FLWR_HOME": home, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{self.bin}:{os.environ['PATH']}", "NO_COLOR": "1", "COLUMNS": "200",
        }

    def start(self):
        self.spawn("flower-superlink", "--insecure", "--disable-runtime-dependency-installation")
        if not wait_until(listens, STARTING_SECONDS, 0.1):
            raise self.fell("its SuperLink does not listen")
        for i in range(self.nodes):
            self.spawn("flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{PORT}", "--port", str(9100 + i),
                       "--node-config", f"partition-id={i}")

    def spawn(self, name, *words):
        with open(os.path.join(self.dir, "log"), "ab") as log:
            command = [os.path.join(self.bin, name), *words]
            self.daemons.append(subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def pids(self):
        return [daemon.pid for daemon in self.daemons]

    def rounds(self, megabytes, rounds, patience):
        """How many seconds each round took, from the second one on."""
        out = os.path.join(self.dir, "rounds.jsonl")
        open(out, "w").close()
        config = f'nodes={self.nodes} rounds={rounds} megabytes={megabytes} out="{out}"'
        command = [os.path.join(self.bin, "flwr"), "run", ".", "bench", "--run-config", config]
        done = subprocess.run(command, cwd=os.path.join(self.dir, "app"), env=self.env, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise self.fell(f"flwr run ended with {done.returncode}: {done.stderr[-500:]}")

        def moments():
            with open(out) as file:
                told = [json.loads(line) for line in file]
            return told[:-1] if told and told[-1]["round"] is None else None

        told = wait_until(moments, patience, 0.2)
        if told is None:
            raise self.fell(f"{rounds} rounds did not end within {patience} s")
        at = {line["round"]: line["at"] for line in told}
        return [at[n] - at[n - 1] for n in sorted(at) if n >= 2]

    def fell(self, what):
        with open(os.path.join(self.dir, "log"), errors="replace") as log:
            return Stop(f"Flower: {what}", log.read()[-1500:].strip(), f"bench/run {self.run.bench} --quick")

    def stop(self):
        """It leaves processes behind that it started: all of them go."""
        for daemon in self.daemons:
            daemon.terminate()
        wait_until(lambda: all(daemon.poll() is not None for daemon in self.daemons), ENDING_SECONDS)
        kids, waiting = children(), self.pids()
        while waiting:
            pid = waiting.pop()
            waiting += kids.get(pid, [])
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        bury()
        shutil.rmtree(self.dir, ignore_errors=True)


def listens():
    with socket.socket() as door:
        door.settimeout(0.2)
        return door.connect_ex(("127.0.0.1", PORT)) == 0
