"""Bytes to move, and programs that move them: mesh's own commands, and the contenders of bench/peers."""

import json
import mmap
import os
import random
import shutil
import subprocess
import time

from harness import Stop
from proc import cpu_seconds

MIB = 1 << 20
PATIENCE_SECONDS = 600


def random_file(path, mib, seed):
    """Bytes that nothing can compress and no two seeds share."""
    source = random.Random(seed)
    with open(path, "wb") as file:
        for _ in range(mib):
            file.write(source.randbytes(MIB))
    return path


def fresh(*path):
    """An empty directory."""
    path = os.path.join(*path)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def settle(mib=0):
    """What was written before is not to be written out meanwhile, and so much memory is at hand.

    A virtual machine gives memory that is free back to its host, and gets it again page by page at 0.4 GB/s: whoever
    comes first would pay for that, and whoever comes second would not.
    """
    os.sync()
    time.sleep(0.5)
    if mib:
        with mmap.mmap(-1, mib * MIB) as memory:
            for at in range(0, mib * MIB, MIB):
                memory[at:at + MIB] = FULL


FULL = b"\1" * MIB


def machine_cpu_seconds():
    """What all cores have worked so far, interrupts included."""
    with open("/proc/stat") as file:
        words = [int(word) for word in file.readline().split()[1:8]]
    return (sum(words) - words[3] - words[4]) / os.sysconf("SC_CLK_TCK")


class Moved:
    """One transfer: how long until the last one had it, and the CPU of those who took part."""

    def __init__(self, seconds, cpu):
        self.seconds, self.cpu = seconds, cpu


class Talker:
    """A program that says a JSON value a line, and goes on when it is sent one."""

    def __init__(self, command):
        self.command = [str(word) for word in command]
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise Stop(f"{' '.join(self.command[:2])} ended", f"with {self.process.wait()}, see above", "bench/run --list")
        return json.loads(line)

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def move_with(run, kind, file, getters, words=()):
    """One of bench/peers: a server of `file`, and so many that get it at the same time."""
    dirs = [fresh(run.dir, f"{kind}{i}") for i in range(getters + 1)]
    serve = [run.peers_binary, f"{kind}-serve", file, *([dirs[0]] if kind == "iroh" else [])]
    server = Talker(serve)
    address = server.hear()["address"]
    talkers = [server, *(Talker([run.peers_binary, f"{kind}-get", address, dir, *words]) for dir in dirs[1:])]
    for getter in talkers[1:]:
        getter.hear()
    settle(room_for(os.path.getsize(file), getters))
    before = sum(talker.cpu() for talker in talkers)
    began = time.monotonic()
    for getter in talkers[1:]:
        getter.go()
    answers = [getter.hear() for getter in talkers[1:]]
    moved = Moved(time.monotonic() - began, sum(talker.cpu() for talker in talkers) - before)
    for talker in talkers[1:] + talkers[:1]:
        talker.end()
    wrong = [answer["bytes"] for answer in answers if answer["bytes"] != os.path.getsize(file)]
    if wrong:
        raise Stop(f"{kind} moved {wrong[0]} bytes", f"the file has {os.path.getsize(file)}", "look at bench/peers")
    for dir in dirs:
        shutil.rmtree(dir)
    return moved


def room_for(size, getters):
    """What so many copies take in the page cache, and what programs take, in MiB."""
    return size // MIB * (getters + 1) + 1024


def push(cluster, i, path, name):
    """A version that only node `i` holds."""
    cluster.mesh(i, "data", "push", path, "--name", name, "--copies", "1")
    # All others have heard of it before the clock runs.
    cluster.wait_settled()


def start_pull(cluster, i, name):
    with open(os.path.join(cluster.dir, f"pull{i}.log"), "ab") as log:
        return subprocess.Popen(
            [*cluster.hosts[i].enter, cluster.run.mesh, "data", "pull", name, "--store-only", "--json"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "MESH_DIR": cluster.node_dir(i)},
        )


def end_pull(cluster, i, process):
    if process.wait(PATIENCE_SECONDS) != 0:
        with open(os.path.join(cluster.dir, f"pull{i}.log")) as log:
            raise Stop(f"node {i} could not pull", log.read()[-1000:], f"bench/run {cluster.run.bench} --quick")


def pull_all(cluster, nodes, name, size):
    """These nodes pull at the same time. The CPU is that of all nodes; that of the commands is left out."""
    settle(room_for(size, len(nodes)))
    before = sum(map(cpu_seconds, cluster.pids))
    began = time.monotonic()
    pulls = [(i, start_pull(cluster, i, name)) for i in nodes]
    for i, process in pulls:
        end_pull(cluster, i, process)
    return Moved(time.monotonic() - began, sum(map(cpu_seconds, cluster.pids)) - before)
