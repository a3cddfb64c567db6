"""What the kernel counts for a process, and for the network of this sandbox."""

import os
import time

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / TICKS


def rss_mb(pid):
    """Resident memory, shared pages of the binary included, in MB (as notes/baselines counts: 2^20 bytes)."""
    return field(f"/proc/{pid}/status", "VmRSS") / 1024


def disk_bytes(pid):
    """Bytes that the process caused to be sent to the disk."""
    return field(f"/proc/{pid}/io", "write_bytes")


def field(path, key):
    with open(path) as file:
        for line in file:
            if line.startswith(key + ":"):
                return int(line.split()[1])
    return 0


def wire_bytes(device="lo"):
    with open("/proc/net/dev") as file:
        for line in file:
            if line.strip().startswith(device + ":"):
                return int(line.split(":")[1].split()[8])
    return 0


def reap(pid):
    """Waits for the end of a process that may be an orphan: in the sandbox we are its parent then."""
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        while os.path.exists(f"/proc/{pid}"):
            time.sleep(0.002)


def bury():
    """Takes the last word of all who have ended. In the sandbox we are the parent of every orphan, and while its dead
    are not buried many a daemon waits for them. For when nobody else waits for a child to hear how it ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def children():
    """Who has started whom, of all processes that are seen from here: pids by the parent's."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                parent = int(file.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        found.setdefault(parent, []).append(int(pid))
    return found


def wait_until(ready, seconds, step=0.02):
    """The first answer that is not None or False; None once the time is over."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = ready()
        if answer is not None and answer is not False:
            return answer
        time.sleep(step)
    return None
