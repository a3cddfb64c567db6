"""Parties of one node each that train together, in rounds that take no time to compute: what a round costs by itself."""

import json
import os
import shutil
import subprocess
import threading
import time
from datetime import datetime

from cluster import Mesh
from data import machine_cpu_seconds
from harness import Stop
from proc import children, field, wait_until

# Memory for files of the sandbox alone. What nodes and workers share lies here, and so it can be counted, and is gone with it.
SHARED = "/dev/shm"
PYTHON = "/usr/bin/python3"
JOINING_SECONDS = 120
# As bench/worker does, and Flower's client in lib/echo.
PYTHON_WORKER = """
import random
import mesh
import numpy as np

megabytes, draw = int(mesh.param("megabytes")), np.random.default_rng()
for round in mesh.rounds():
    model = round.weights()
    if not model:
        model = {f"t{n}": draw.standard_normal(megabytes * 25_000, dtype=np.float32) for n in range(10)}
    factor = np.float32(1 + random.random() * 1e-3)
    round.submit({name: array * factor for name, array in model.items()}, examples=1)
"""


def make_shared():
    """Gives the sandbox memory of its own for files. Once a run, before anything is started."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", SHARED], check=True)


class Parties(Mesh):
    """A mesh of as many parties as nodes, `p0` and so on. All of them train for the first one."""

    def found(self):
        at = [("--listen", f"{host.address}:0") for host in self.hosts]
        self.mesh(0, "init", "--name", "p0", "--party", "p0", *at[0])
        self.learn(0)
        for i in range(1, self.size):
            ticket = self.mesh(0, "ticket", "new", "--new-party").splitlines()[-1]
            self.join(i, ticket, at[i])
            self.learn(i)
        leader = self.wait_settled()
        for i in range(1, self.size):
            self.mesh(i, "node", "label", f"p{i}", "trains=p0")
        return leader

    def join(self, i, ticket, at):
        """From the third party on those who are there have to agree, while the newcomer waits."""
        joined = threading.Event()

        def agree():
            while not joined.wait(0.1):
                for j in range(i):
                    self.grant_all(j)

        agreeing = threading.Thread(target=agree)
        agreeing.start()
        try:
            self.mesh(i, "join", ticket, "--name", f"p{i}", "--party", f"p{i}", *at)
        finally:
            joined.set()
            agreeing.join()

    def grant_all(self, i):
        for request in self.ask(i, "/v1/requests")["items"]:
            self.call(i, "POST", f"/v1/requests/{request['id']}/grant", {})

    def course(self, job):
        return self.ask(0, f"/v1/jobs/{job}/course", JOINING_SECONDS)["item"]


class Job:
    """A training that was submitted. Ends with `done`."""

    def __init__(self, parties, worker, megabytes, rounds, aggregators, deadline="600s"):
        self.parties, self.rounds, self.megabytes = parties, rounds, megabytes
        name = f"r{time.monotonic_ns()}"
        dir = os.path.join(parties.dir, name)
        code = os.path.join(dir, "code")
        os.makedirs(code)
        command = write_worker(parties.run, worker, code)
        names = [f"p{i}" for i in range(parties.size)]
        with open(os.path.join(dir, "job.toml"), "w") as file:
            file.write(f"""
name = "{name}"
kind = "federated"
[run]
command = {json.dumps(command)}
code = "code"
[params]
megabytes = {megabytes}
[resources]
cpus = 1
memory = "{256 + 6 * megabytes}MiB"
[federated]
parties = {json.dumps(names)}
rounds = {rounds}
min_parties = {parties.size}
deadline = "{deadline}"
aggregators = {json.dumps(aggregators)}
""")
        told = json.loads(parties.mesh(0, "submit", "--detach", "--json", os.path.join(dir, "job.toml")))
        self.id = told["item"]["id"]

    def done(self, patience):
        """Waits for its end: how many seconds each round took, from the second one on."""
        job = wait_until(self.ended, patience, 0.2)
        if job is None or job["state"] != "done":
            raise Stop("a training did not come to its end", json.dumps(job or self.parties.course(self.id))[:3000],
                       "look at the nodes' logs")
        return self.seconds()

    def ended(self):
        job = self.parties.ask(0, f"/v1/jobs/{self.id}", JOINING_SECONDS)["item"]
        return job if job["is_final"] else None

    def seconds(self):
        points = self.parties.course(self.id)["curve"]
        moments = {point["round"]: datetime.fromisoformat(point["at"].replace("Z", "+00:00")) for point in points}
        # The first one is also the time that tasks took to start.
        return [(moments[n] - moments[n - 1]).total_seconds() for n in sorted(moments) if n >= 2 and n - 1 in moments]


def write_worker(run, worker, dir):
    """Writes the program of a task, and says how it is called."""
    if worker == "rust":
        shutil.copy(run.worker_binary, os.path.join(dir, "worker"))
        return ["./worker"]
    with open(os.path.join(dir, "worker.py"), "w") as file:
        file.write(PYTHON_WORKER)
    return [PYTHON, "worker.py"]


class Meter:
    """The most memory that some processes and their children have had at a time, with the files in memory; and the CPU of all."""

    def __init__(self, pids):
        """`pids` says where the trees begin."""
        self.pids, self.peak, self.over = pids, 0.0, threading.Event()
        self.shared = self.own = 0.0
        self.cpu, self.began = machine_cpu_seconds(), time.monotonic()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while not self.over.wait(0.25):
            own, shared = memory_mb(self.pids()), shared_mb()
            if own + shared > self.peak:
                self.peak, self.own, self.shared = own + shared, own, shared

    def stop(self):
        self.over.set()
        self.thread.join()
        self.cores = (machine_cpu_seconds() - self.cpu) / (time.monotonic() - self.began)
        return self


def memory_mb(pids):
    """What these processes and their children have in memory, without the files in memory, which are counted by themselves.

    A page that several have, such as one of their program, is counted once in all: what would be free without them."""
    tree, kids = set(), children()
    waiting = [pid for pid in pids if pid is not None]
    while waiting:
        pid = waiting.pop()
        if pid not in tree:
            tree.add(pid)
            waiting += kids.get(pid, [])
    total = 0
    for pid in tree:
        try:
            about = f"/proc/{pid}/smaps_rollup"
            total += field(about, "Pss_Anon") + field(about, "Pss_File")
        except OSError:
            pass
    return total / 1024


def shared_mb():
    about = os.statvfs(SHARED)
    return (about.f_blocks - about.f_bfree) * about.f_frsize / (1 << 20)
