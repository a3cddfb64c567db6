"""What every benchmark here shares: its options, its packages and builds, a sandbox, and its report.

A benchmark runs twice. Outside, it installs what is missing, builds, and watches whether other programs
compute meanwhile. Inside network, pid and mount namespaces of its own, with nothing but `lo`, it measures:
nothing it starts can reach another address, and everything it started ends with it, also on Ctrl-C.
"""

import argparse
import atexit
import ctypes
import io
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import threading
import time

INSIDE = "MESH_BENCH_INSIDE"
BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(BENCH)
# What only those need that speak to etcd: a command that must be there, and the Debian package that brings it.
CLIENT_PACKAGES = {
    "etcd": "etcd-server",
    "protoc": "protobuf-compiler",
    "/usr/include/google/protobuf/any.proto": "libprotobuf-dev",
}
PACKAGES = CLIENT_PACKAGES | {"ip": "iproute2", "unshare": "util-linux"}
SLURM_PACKAGES = {"slurmctld": "slurmctld", "slurmd": "slurmd", "srun": "slurm-client", "munged": "munge"}
LIBTORRENT = "libtorrent==2.1.1"
RAY = "ray[default]==2.60.0"
FLOWER = ("flwr==1.41.0", "numpy")
# Python of the system's own, with PyTorch (which brings gloo) and numpy.
TORCH_PACKAGES = {"/usr/lib/python3/dist-packages/torch": "python3-torch", "/usr/lib/python3/dist-packages/numpy": "python3-numpy"}
# What works for us on the other side of Docker's socket, outside of the sandbox. Their children are containers.
DOCKER_PROGRAMS = ("dockerd", "containerd", "containerd-shim", "fuse-overlayfs")
# Another program above this share of a core is named in the report.
LOUD = 0.2
TICKS = os.sysconf("SC_CLK_TCK")


class Stop(Exception):
    """Ends the benchmark with three lines: error, cause, try."""

    def __init__(self, error, cause, attempt):
        super().__init__(error)
        self.short = f"{error}: {cause}"
        self.lines = f"error: {error}\ncause: {cause}\ntry:   {attempt}"


def main(script, measure, needs=("client",)):
    """Runs `measure(run)` inside the sandbox. `script` is the benchmark's own file; see NEEDS for what it may need."""
    options = argparse.ArgumentParser(prog=os.path.basename(script))
    options.add_argument("--quick", action="store_true", help="fewer samples: does it work at all")
    options.add_argument("--json", action="store_true", help="one object per goal")
    options = options.parse_args()
    # Also where a shell that started us in the background had it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        if os.environ.get(INSIDE):
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            measure(Run(script, options))
        else:
            sys.exit(outside(script, options, needs))
    except Stop as stop:
        print(stop.lines, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def say(text):
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


# Outside the sandbox


def outside(script, options, needs):
    when_parent_dies(signal.SIGTERM)
    install(needs)
    env = dict(os.environ, **{INSIDE: "1"}, MESH_BIN=build_mesh())
    for need in needs:
        try:
            env[variable(need)] = NEEDS[need]()
        except Stop as stop:
            if need not in OPTIONAL:
                raise
            say(stop.lines)
            env[variable(need) + LACKS] = stop.short
    if not options.quick:
        wait_for_quiet()
    unshare = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child=KILL"]
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
    command = [*unshare, sys.executable, script, *sys.argv[1:]]
    child = subprocess.Popen(command, env=env, preexec_fn=lambda: when_parent_dies(signal.SIGKILL))
    watch = Watch(child.pid, DOCKER_PROGRAMS if variable("docker") in env else ())
    try:
        status = child.wait()
    except BaseException:
        end(child)
        raise
    note = watch.stop()
    print(note, file=sys.stderr if options.json else sys.stdout)
    return status if status >= 0 else 1


def when_parent_dies(number):
    ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def end(unshare):
    """Kills the first process of the sandbox, and all others with it; returns when they are gone."""
    for pid in children_of(unshare.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    unshare.wait()


def install(needs):
    wanted = {key: name for key, name in PACKAGES.items() if "client" in needs or key not in CLIENT_PACKAGES}
    install_packages(wanted)


def install_packages(wanted):
    """Debian packages, by what must be there: a command or a file."""
    missing = [name for need, name in wanted.items() if not (shutil.which(need) or os.path.exists(need))]
    if not missing:
        return
    command = ["apt-get", "install", "-y", *missing]
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Stop(f"this benchmark needs {' '.join(missing)}", "not installed", "sudo " + " ".join(command))
    say(f"installing Debian packages: {' '.join(missing)}")
    done = subprocess.run(command, stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Stop(f"could not install {' '.join(missing)}", f"apt-get ended with {done.returncode}", "apt-get update")


def target_dir():
    return os.path.abspath(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"))


def build_own(name):
    # A directory of its own: other features of the same crates would rebuild each other's.
    target = os.path.join(target_dir(), f"bench-{name}")
    manifest = os.path.join(BENCH, name, "Cargo.toml")
    cargo("build", "--release", "--locked", "--quiet", "--manifest-path", manifest, "--target-dir", target)
    return os.path.join(target, "release", f"mesh-bench-{name}")


def install_python(name, packages, module):
    """A Python of its own that has packages from PyPI."""
    packages = (packages,) if isinstance(packages, str) else packages
    venv = os.path.join(target_dir(), f"bench-{name}")
    python = os.path.join(venv, "bin", "python")
    asked = [python, "-c", f"import {module}"]
    if not os.path.exists(python) or subprocess.run(asked, stderr=subprocess.DEVNULL).returncode != 0:
        say(f"installing from PyPI: {' '.join(packages)}")
        commands = [[sys.executable, "-m", "venv", venv], [python, "-m", "pip", "install", "--quiet", *packages]]
        for command in commands:
            # What it prints is no part of a report.
            if subprocess.run(command, stdout=sys.stderr).returncode != 0:
                raise Stop(f"could not install {name}", "see above", " ".join(command))
    return python


def install_torch():
    install_packages(TORCH_PACKAGES)
    return "/usr/bin/python3"


def install_slurm():
    if os.geteuid() != 0:
        name = os.path.basename(sys.argv[0])
        raise Stop("Slurm cannot be started", "its daemons want to be root", f"sudo bench/run {name}")
    install_packages(SLURM_PACKAGES)
    return shutil.which("srun")


def import_image():
    """A small image in the Docker of this machine, which lies outside of the sandbox; gone when this process ends."""
    install_packages({"busybox": "busybox-static"})
    image = f"mesh-bench-{os.getpid()}"
    networks = docker("network", "ls", "--format", "{{.Name}}").split()
    # Mesh makes one for its containers; whoever had it before keeps it.
    atexit.register(forget_image, image, None if "mesh" in networks else "mesh")
    files = io.BytesIO()
    with tarfile.open(fileobj=files, mode="w") as tar:
        tar.add(os.path.realpath(shutil.which("busybox")), "bin/busybox")
        for name in ("echo", "sh"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    docker("import", "-", image, given=files.getvalue())
    docker("run", "--rm", "--pull", "never", image, "echo", "it works")
    return image


def forget_image(image, network):
    left = docker("ps", "--all", "--quiet", "--filter", f"ancestor={image}", check=False).split()
    if left:
        docker("rm", "--force", *left, check=False)
    docker("rmi", "--force", image, check=False)
    if network:
        # Refused while others are on it.
        docker("network", "rm", network, check=False)


def docker(*words, given=None, check=True):
    """Runs a command of Docker's to its end, and returns what it printed."""
    what = f"docker {words[0]}"
    try:
        done = subprocess.run(["docker", *words], input=given, capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        if check:
            raise Stop(f"{what} did not run", str(error), "is Docker installed, and does it run?") from None
        return ""
    if check and done.returncode != 0:
        raise Stop(f"{what} ended with {done.returncode}", done.stderr.decode().strip(), "does Docker run? docker info")
    return done.stdout.decode()


def build_mesh():
    """The binary of this tree, or the one that MESH_BIN names."""
    if os.environ.get("MESH_BIN"):
        return os.path.abspath(os.environ["MESH_BIN"])
    cargo("build", "--release", "--locked", "--quiet", "--package", "mesh-cli")
    return os.path.join(target_dir(), "release", "mesh")


def cargo(*words):
    if subprocess.run(["cargo", *words], cwd=ROOT).returncode != 0:
        raise Stop("a build failed", "see above", "cargo " + " ".join(words))


# What a benchmark may need besides mesh, and how to get it. Its path (an image's name) is in MESH_BENCH_NAME.
NEEDS = {
    "client": lambda: build_own("client"),
    "peers": lambda: build_own("peers"),
    "libtorrent": lambda: install_python("libtorrent", LIBTORRENT, "libtorrent"),
    "slurm": install_slurm,
    "ray": lambda: install_python("ray", RAY, "ray"),
    "worker": lambda: build_own("worker"),
    "flower": lambda: install_python("flower", FLOWER, "flwr"),
    "torch": install_torch,
    "docker": import_image,
}
# Without these the rest is measured. Why one is not there is in MESH_BENCH_NAME_LACKS.
OPTIONAL = ("slurm", "ray", "docker", "flower", "torch")
LACKS = "_LACKS"


def variable(need):
    return f"MESH_BENCH_{need.upper()}"


def wait_for_quiet(limit=300):
    began = time.monotonic()
    while time.monotonic() - began < limit:
        names = Watch.loud_names(Watch.sample(os.getpid()), 2)
        if not names:
            return
        say(f"waiting for other programs to finish: {' '.join(sorted(names))}")


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


class Watch:
    """Samples all processes that are not ours, and remembers the loud ones by name."""

    def __init__(self, own, helpers=()):
        """`helpers` are names of programs that work for us outside of our tree, with all their children."""
        self.own, self.helpers, self.seconds, self.done = own, helpers, {}, threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    @staticmethod
    def sample(own, helpers=()):
        """CPU seconds of every process outside the tree of `own` and outside this one, by (pid, name)."""
        # The kernel's own threads (children of 2) work for whoever writes and sends: for us.
        ours, stats = {os.getpid(), own, 2}, {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    head, tail = file.read().rsplit(")", 1)
            except OSError:
                continue
            words = tail.split()
            stats[int(pid)] = (head.split("(", 1)[1], int(words[1]), (int(words[11]) + int(words[12])) / TICKS)
        ours |= {pid for pid, (name, _, _) in stats.items() if name in helpers}
        grew = True
        while grew:
            more = {pid for pid, (_, parent, _) in stats.items() if parent in ours} - ours
            ours |= more
            grew = bool(more)
        return {(pid, name): cpu for pid, (name, _, cpu) in stats.items() if pid not in ours}

    @staticmethod
    def loud_names(before, seconds):
        time.sleep(seconds)
        now = Watch.sample(os.getpid())
        return {key[1] for key, cpu in now.items() if cpu - before.get(key, 0.0) > LOUD * seconds and key in before}

    def run(self):
        before, moment = self.sample(self.own, self.helpers), time.monotonic()
        while not self.done.wait(1):
            now, later = self.sample(self.own, self.helpers), time.monotonic()
            for key, cpu in now.items():
                used = cpu - before.get(key, 0.0)
                # One that is new may have worked before: it counts by what one sample can hold.
                if min(used, later - moment) > LOUD * (later - moment):
                    self.seconds[key[1]] = self.seconds.get(key[1], 0.0) + later - moment
            before, moment = now, later

    def stop(self):
        self.done.set()
        self.thread.join()
        if not self.seconds:
            return "quiet: no other program used more than 20 % of a core meanwhile"
        loudest = sorted(self.seconds.items(), key=lambda item: -item[1])
        listed = ", ".join(f"{name} {round(seconds)} s" for name, seconds in loudest[:8])
        return f"DISTURBED: other programs used more than 20 % of a core meanwhile: {listed}"


# Inside the sandbox


class Run:
    """One run: how thorough, where to put files, and what came out."""

    def __init__(self, script, options):
        self.bench = os.path.basename(script)
        self.quick, self.json = options.quick, options.json
        self.dir = os.environ.get("TMPDIR") or "/tmp"
        self.mesh = os.environ["MESH_BIN"]
        self.client_binary = os.environ.get(variable("client"))
        self.peers_binary = os.environ.get(variable("peers"))
        self.libtorrent_python = os.environ.get(variable("libtorrent"))
        self.worker_binary = os.environ.get(variable("worker"))
        self.flower_python = os.environ.get(variable("flower"))
        self.torch_python = os.environ.get(variable("torch"))
        self.ray_python = os.environ.get(variable("ray"))
        self.image = os.environ.get(variable("docker"))
        self.goals = read_goals(script)

    def client(self, *words):
        """Calls the load client; its answer is one JSON object."""
        env = dict(os.environ, RUST_BACKTRACE="0")
        command = [self.client_binary, *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
        if done.returncode != 0:
            raise Stop(f"the load client failed: {words[0]}", done.stderr.strip(), "look at the nodes' logs")
        return json.loads(done.stdout)

    def sync(self, count):
        """p50 in ms of a 256-byte write and fdatasync on the same disk: in a growing file, in a preallocated one."""
        answer = self.client("sync", self.dir, count)
        return answer["growing_p50_ms"], answer["preallocated_p50_ms"]

    def row(self, what, unit, values):
        """One line of the table: a median and its spread."""
        if self.json:
            return
        values = sorted(value for value in values if value is not None)
        if not values:
            print(f"{what:<62} {'-':>10}", flush=True)
            return
        middle = statistics.median(values)
        spread = f"{figure(values[0])} – {figure(values[-1])}"
        print(f"{what:<62} {figure(middle):>10} {unit:<12} {spread:<19} n={len(values)}", flush=True)

    def heading(self, text):
        if not self.json:
            print(f"\n{text:<62} {'median':>10} {'':<12} spread", flush=True)

    def line(self, text):
        if not self.json:
            print(text, flush=True)

    def lacks(self, need):
        """Why something that may be missing is; None if it is there."""
        return os.environ.get(variable(need) + LACKS)

    def skipped(self, what, why):
        text = f"SKIPPED: {what}: {' '.join(why.split())}"
        print(text, file=sys.stderr if self.json else sys.stdout, flush=True)

    def goal(self, name, got, n, peer, limit=None):
        """States whether a goal was met. A name without a goal in the header has no bound."""
        sign, want, unit = self.goals.get(name, (None, None, unit_of(name)))
        if self.json:
            record = {"bench": self.bench, "goal": name, "got": plain(got), "want": want, "unit": unit, "n": n}
            record |= {"peer": {key: plain(value) for key, value in peer.items()}, "limit": plain(limit)}
            print(json.dumps(record), flush=True)
            return
        if sign is None:
            verdict, bound = "", ""
        else:
            met = got is not None and (got <= want if sign == "<=" else got >= want if sign == ">=" else got == want)
            verdict, bound = "met" if met else "MISSED", f"{sign} {want:g}"
        beside = "; ".join(f"{key} {figure(value)}" for key, value in peer.items())
        if limit is not None:
            beside += f"; limit {figure(limit)}"
        print(f"{name:<30} {figure(got):>10} {unit:<9} {bound:<7} {verdict:<6} ({beside})", flush=True)


def read_goals(script):
    """The goals of a benchmark stand in its header, and nowhere else."""
    goals = {}
    with open(script) as file:
        for name, sign, want, unit in re.findall(r"^# goal: (\S+) (<=|>=|=) (\S+) (\S+)", file.read(), re.M):
            goals[name] = (sign, float(want) if "." in want else int(want), unit)
    return goals


def unit_of(name):
    return next((unit for unit in ("ms", "bytes", "percent") if name.endswith("_" + unit)), "")


def plain(value):
    """A number as JSON can hold it."""
    if value is None or not math.isfinite(value):
        return None
    return round(value, 4)


def figure(value):
    if value is None or not math.isfinite(value):
        return "-"
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def quantile(values, q):
    values = sorted(values)
    return values[round((len(values) - 1) * q)] if values else None


def median(values):
    return statistics.median(values) if values else None


def over(a, b):
    """a / b, or nothing if one of them is missing."""
    return a / b if a is not None and b else None
