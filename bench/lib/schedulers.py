"""Slurm and Ray on one node each, inside the sandbox, as one who tries them out would run them."""

import http.client
import os
import shutil
import socket
import subprocess

from harness import Stop
from proc import bury, wait_until

# A short path that every user may enter, which the scratch directory is not: Ray's sockets lie deep below their
# directory, and munged refuses to keep its own where others cannot come. Nobody outside the sandbox sees it.
SHORT = "/mnt"
STARTING_SECONDS = 90
ENDING_SECONDS = 15
RAY_PORT, RAY_JOBS_PORT = 6379, 8265


def make_short(run):
    dir = os.path.join(run.dir, "short")
    os.makedirs(dir)
    os.chmod(dir, 0o755)
    subprocess.run(["mount", "--bind", dir, SHORT], check=True)


class Slurm:
    """Debian's slurmctld, slurmd and munged. What would slow it down and can be left out is: cgroups, accounting."""

    dir, munge = os.path.join(SHORT, "slurm"), os.path.join(SHORT, "munge")

    def __init__(self):
        self.daemons = []
        self.env = {**os.environ, "SLURM_CONF": os.path.join(self.dir, "slurm.conf")}
        for path in (self.dir, self.munge, *(os.path.join(self.dir, name) for name in ("state", "spool"))):
            os.mkdir(path)

    def start(self):
        """Returns its version once it takes jobs."""
        host = socket.gethostname().split(".")[0]
        self.name_host(host)
        self.write_files(host)
        self.spawn("runuser", "-u", "munge", "--", "munged", "--foreground", *(
            word for name in ("key", "pid", "log", "seed") for word in (f"--{name}-file", f"{self.munge}/{name}")),
            "--socket", f"{self.munge}/socket")
        if not wait_until(lambda: os.path.exists(f"{self.munge}/socket"), STARTING_SECONDS):
            raise self.fell("munged made no socket")
        self.spawn("slurmctld", "-D")
        self.spawn("slurmd", "-D", "-N", host)
        if not wait_until(lambda: self.ask("sinfo", "-h", "-o", "%t") == "idle", STARTING_SECONDS, 0.2):
            raise self.fell("its node did not become idle")
        return self.ask("sinfo", "-V")

    def name_host(self, host):
        # It looks names up with AI_ADDRCONFIG, which wants an address that is not loopback: that of a bridge to nowhere.
        bridge = (("ip", "link", "add", "br0", "type", "bridge"), ("ip", "addr", "add", "198.18.1.1/24", "dev", "br0"),
                  ("ip", "link", "set", "br0", "up"))
        for command in bridge:
            subprocess.run(command, check=True)
        hosts = os.path.join(self.dir, "hosts")
        with open(hosts, "w") as file:
            file.write(f"127.0.0.1 localhost {host}\n")
        subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)

    def write_files(self, host):
        key = os.path.join(self.munge, "key")
        with open(key, "wb") as file:
            file.write(os.urandom(1024))
        os.chmod(key, 0o600)
        for path in (self.munge, key):
            shutil.chown(path, "munge", "munge")
        with open(self.env["SLURM_CONF"], "w") as file:
            file.write(f"""ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self.munge}/socket
StateSaveLocation={self.dir}/state
SlurmdSpoolDir={self.dir}/spool
SlurmctldPidFile={self.dir}/slurmctld.pid
SlurmdPidFile={self.dir}/slurmd.pid
SlurmctldLogFile={self.dir}/slurmctld.log
SlurmdLogFile={self.dir}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=p Nodes={host} Default=YES MaxTime=10 State=UP OverSubscribe=FORCE:8
""")

    def spawn(self, *command):
        with open(os.path.join(self.dir, "errors"), "ab") as errors:
            started = subprocess.Popen(command, env=self.env, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        self.daemons.append(started)

    def ask(self, *command):
        return subprocess.run(command, env=self.env, capture_output=True, text=True).stdout.strip()

    def fell(self, what):
        """Why it does not work. The scratch directory is gone when someone reads it."""
        logs = [f"{self.dir}/{name}" for name in ("errors", "slurmctld.log", "slurmd.log")] + [f"{self.munge}/log"]
        return Stop("Slurm did not start", what + "".join(tail(log) for log in logs), "slurmctld -D, and look")

    def command(self, *words):
        return ["srun", "-n1", *words], self.env

    def stop(self):
        for daemon in reversed(self.daemons):
            daemon.terminate()
            if not wait_until(lambda: ended(daemon), ENDING_SECONDS):
                daemon.kill()
                daemon.wait()


class Ray:
    """PyPI's ray: a head with its dashboard, which is what takes jobs."""

    dir = os.path.join(SHORT, "ray")

    def __init__(self, python):
        bin = os.path.dirname(python)
        self.ray = os.path.join(bin, "ray")
        home = os.path.join(SHORT, "home")
        for path in (self.dir, home):
            os.mkdir(path)
        self.env = {
            **os.environ, "PATH": f"{bin}:{os.environ['PATH']}", "RAY_USAGE_STATS_ENABLED": "0",
            # The token that it makes for whoever is on this machine lies there.
            "HOME": home,
            "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1",
        }
        # Without the last it reads its own sources again for every command.
        for name in ("RAY_ADDRESS", "RAY_TMPDIR", "PYTHONDONTWRITEBYTECODE"):
            self.env.pop(name, None)

    def start(self):
        """Returns its version once it takes jobs."""
        began = self.call(
            "start", "--head", "--node-ip-address=127.0.0.1", f"--port={RAY_PORT}", "--dashboard-host=127.0.0.1",
            f"--dashboard-port={RAY_JOBS_PORT}", "--disable-usage-stats", f"--num-cpus={os.cpu_count()}",
            "--object-store-memory=500000000", f"--temp-dir={self.dir}",
        )
        if began.returncode != 0:
            raise Stop("Ray did not start", began.stdout[-1000:].strip(), "ray start --head")
        if not wait_until(self.takes_jobs, STARTING_SECONDS, 0.1):
            raise Stop("Ray did not start", "nobody answers where it takes jobs", "ray start --head")
        return self.call("--version").stdout.strip().replace(", version", "")

    def call(self, *words):
        return subprocess.run([self.ray, *words], env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=2 * STARTING_SECONDS)

    def takes_jobs(self):
        connection = http.client.HTTPConnection("127.0.0.1", RAY_JOBS_PORT, timeout=1)
        try:
            connection.request("GET", "/api/version")
            # 401: it is there, and wants the token that its own command knows.
            return connection.getresponse().status in (200, 401)
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def command(self, *words):
        return [self.ray, "job", "submit", f"--address=http://127.0.0.1:{RAY_JOBS_PORT}", "--", *words], self.env

    def stop(self):
        # By names; none but ours are to be seen in the sandbox.
        stopping = subprocess.Popen([self.ray, "stop", "--force"], env=self.env, stdin=subprocess.DEVNULL,
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if not wait_until(lambda: ended(stopping), STARTING_SECONDS):
            raise Stop("Ray did not stop", f"not within {STARTING_SECONDS} s", "ray stop --force")


def ended(process):
    """Whether it has; those that it started are buried."""
    bury()
    return process.poll() is not None


def tail(path):
    if not os.path.exists(path):
        return ""
    with open(path, errors="replace") as file:
        text = file.read()[-600:].strip()
    return f"\n{os.path.basename(path)}: {text}" if text else ""
