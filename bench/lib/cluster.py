"""Real processes of mesh and of etcd behind one face: start, find the leader, kill, restart."""

import glob
import http.client
import json
import os
import signal
import socket
import subprocess
from typing import NamedTuple

from harness import Stop
from proc import reap, wait_until

ANSWER_SECONDS = 2
SETTLE_SECONDS = 120


class Seen(NamedTuple):
    """What one node says of itself."""

    leads: bool
    term: int
    index: int
    pid: int
    votes: bool


class Host(NamedTuple):
    """Where a node lives: its address, and the words before its command if that is a namespace."""

    address: str = "127.0.0.1"
    enter: tuple = ()


class Cluster:
    """Some nodes of one kind, each in a directory of its own below `dir`."""

    kind = ""

    def __init__(self, run, name, size, hosts=None):
        self.run, self.name, self.size = run, name, size
        self.dir = os.path.join(run.dir, name)
        self.hosts = hosts or [Host()] * size
        self.pids = [None] * size
        os.makedirs(self.dir)

    def node_dir(self, i):
        return os.path.join(self.dir, f"n{i}")

    def spawn(self, i, command, env=None):
        """In the background; output goes to the node's log."""
        with open(os.path.join(self.dir, f"n{i}.log"), "ab") as log:
            started = subprocess.Popen(
                [*self.hosts[i].enter, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **(env or {})},
            )
        self.pids[i] = started.pid

    def look(self):
        """What every node says; None where one does not answer."""
        return [self.status(i) for i in range(self.size)]

    def settled(self):
        """The leader, if all agree on one, and all have what any had at first sight. Else None."""
        first = self.look()
        if None in first or sum(seen.leads for seen in first) != 1:
            return None
        # A node that only watches need not know the term.
        terms = [seen.term for seen in first if seen.votes]
        if len(terms) != self.voters() or len(set(terms)) != 1:
            return None
        newest = max(seen.index for seen in first)
        if not all(seen and seen.index >= newest for seen in self.look()):
            return None
        return next(i for i, seen in enumerate(first) if seen.leads)

    def wait_settled(self):
        leader = wait_until(self.settled, SETTLE_SECONDS)
        if leader is None:
            raise Stop(
                f"{self.kind} of {self.size}: no settled leader within {SETTLE_SECONDS} s",
                f"the nodes say {self.look()}; the end of the first one's log:\n{self.log_tail(0)}",
                f"bench/run {self.run.bench} --quick",
            )
        return leader

    def log_tail(self, i):
        """The last lines that a node wrote: the scratch directory is gone when someone reads the error."""
        logs = [os.path.join(self.dir, f"n{i}.log"), *glob.glob(os.path.join(self.node_dir(i), "logs", "*"))]
        newest = max(filter(os.path.isfile, logs), key=os.path.getmtime, default=None)
        if newest is None:
            return "(none)"
        with open(newest, errors="replace") as log:
            return log.read()[-1500:].strip()

    def others(self, i):
        return [self.target(j) for j in range(self.size) if j != i]

    def kill(self, i):
        """Not asked, not warned."""
        try:
            os.kill(self.pids[i], signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.gone(i)

    def gone(self, i):
        """Waits for the end of a node that someone killed."""
        reap(self.pids[i])
        self.pids[i] = None

    def stop(self):
        for pid in self.pids:
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        for i, pid in enumerate(self.pids):
            if pid is not None:
                self.gone(i)

    def start(self):
        """Starts all nodes that are not running, and returns the leader once they have settled."""
        for i in range(self.size):
            if self.pids[i] is None:
                self.restart(i)
        return self.wait_settled()

    def voters(self):
        return self.size


class Etcd(Cluster):
    """Debian's etcd, as it comes; heartbeat and election time-out are its two knobs for failover."""

    kind = "etcd"

    def __init__(self, run, name, size, heartbeat_ms=100, election_ms=1000, hosts=None):
        super().__init__(run, name, size, hosts)
        self.heartbeat_ms, self.election_ms = heartbeat_ms, election_ms

    def url(self, i, port):
        return f"http://{self.hosts[i].address}:{port + 10 * i}"

    def restart(self, i):
        client, peer = self.url(i, 2379), self.url(i, 2380)
        self.spawn(i, [
            "etcd", "--name", f"n{i}", "--data-dir", self.node_dir(i), "--logger", "zap", "--log-level", "warn",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", ",".join(f"n{j}={self.url(j, 2380)}" for j in range(self.size)),
            "--heartbeat-interval", str(self.heartbeat_ms), "--election-timeout", str(self.election_ms),
        ])

    def found(self):
        return self.start()

    def target(self, i):
        return self.url(i, 2379)

    def status(self, i):
        connection = http.client.HTTPConnection(self.hosts[i].address, 2379 + 10 * i, timeout=ANSWER_SECONDS)
        try:
            connection.request("POST", "/v3/maintenance/status", "{}")
            answer = json.loads(connection.getresponse().read())
            header, leader = answer["header"], answer.get("leader", "0")
            leads = leader != "0" and header["member_id"] == leader
            if leader == "0":
                return None
            return Seen(leads, int(answer["raftTerm"]), int(answer["raftAppliedIndex"]), self.pids[i], True)
        except (OSError, ValueError, KeyError, http.client.HTTPException):
            return None
        finally:
            connection.close()


class Mesh(Cluster):
    """mesh, driven as DESIGN.md's conventions say: init, ticket, join, up, and HTTP on the Unix socket."""

    kind = "mesh"
    party = None

    def mesh(self, i, *words):
        """Runs a command of the CLI to its end and returns what it printed."""
        # Files, not pipes: a node that goes on in the background may keep them open.
        out, err = (os.path.join(self.dir, f"n{i}.{kind}") for kind in ("out", "err"))
        with open(out, "w") as stdout, open(err, "w") as stderr:
            done = subprocess.run(
                [*self.hosts[i].enter, self.run.mesh, *words], stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                env={**os.environ, "MESH_DIR": self.node_dir(i)}, timeout=SETTLE_SECONDS,
            )
        if done.returncode != 0:
            with open(err) as stderr:
                raise Stop(f"mesh {words[0]} ended with {done.returncode}", stderr.read().strip(), "mesh --help")
        with open(out) as stdout:
            return stdout.read()

    def found(self):
        """Makes the mesh: one node that founds it, the others with one ticket."""
        self.mesh(0, "init", "--listen", f"{self.hosts[0].address}:0")
        self.learn(0)
        if self.size > 1:
            ticket = self.mesh(0, "ticket", "new", "--uses", str(self.size - 1)).splitlines()[-1]
        for i in range(1, self.size):
            self.mesh(i, "join", ticket, "--listen", f"{self.hosts[i].address}:0")
            self.learn(i)
        return self.wait_settled()

    def learn(self, i):
        item = self.ask(i, "/v1/status")["item"]
        self.pids[i], self.party = item["pid"], item["party"] or item["party_id"]

    def restart(self, i):
        self.spawn(i, [self.run.mesh, "up"], {"MESH_DIR": self.node_dir(i)})

    def voters(self):
        return 1 if self.size < 3 else 3 if self.size < 5 else 5

    def socket(self, i):
        return os.path.join(self.node_dir(i), "run", "mesh.sock")

    def target(self, i):
        return f"unix:{self.socket(i)}#{self.party}"

    def status(self, i):
        try:
            item = self.ask(i, "/v1/status")["item"]
            if not item.get("leader"):
                return None
            votes = item["role"] == "voter"
            return Seen(item["is_leader"], item["term"], item["index"], item["pid"], votes)
        except (OSError, ValueError, KeyError, http.client.HTTPException):
            return None

    def ask(self, i, path, patience=ANSWER_SECONDS):
        return self.call(i, "GET", path, None, patience)

    def call(self, i, method, path, body, patience=ANSWER_SECONDS):
        connection = UnixConnection(self.socket(i), patience)
        try:
            given = (None, {}) if body is None else (json.dumps(body), {"content-type": "application/json"})
            connection.request(method, path, *given)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, patience=ANSWER_SECONDS):
        super().__init__("localhost", timeout=patience)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)
