"""Hosts with a link each: network namespaces on one bridge, made inside the sandbox and gone with it."""

import json
import subprocess

from cluster import Host

NET = "198.18.0"


def sh(command):
    subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def build(count):
    """Makes `count` hosts. The sandbox itself is a further host on the bridge, where the load comes from."""
    sh("mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns")
    sh(f"ip link add br0 type bridge && ip addr add {NET}.254/24 dev br0 && ip link set br0 up")
    hosts = []
    for i in range(count):
        sh(f"ip netns add h{i} && ip link add v{i} type veth peer name e0 netns h{i} && ip link set v{i} master br0 up")
        sh(f"ip -n h{i} link set lo up && ip -n h{i} addr add {NET}.{i + 1}/24 dev e0 && ip -n h{i} link set e0 up")
        hosts.append(Host(f"{NET}.{i + 1}", ("ip", "netns", "exec", f"h{i}")))
    return hosts


def shape(count, mbit):
    """Gives the links of the first hosts this rate, each way; frames count whole."""
    how = f"root tbf rate {mbit}mbit burst 128kb latency 20ms"
    for i in range(count):
        sh(f"tc qdisc replace dev v{i} {how} && tc -n h{i} qdisc replace dev e0 {how}")


def unshape(count):
    """Gives the links of the first hosts back the rate that they had."""
    for i in range(count):
        sh(f"tc qdisc del dev v{i} root && tc -n h{i} qdisc del dev e0 root")


def link_bytes(i):
    """What went over the shaped link of a host so far, with the headers of every frame: received by it, sent by it."""
    return tuple(shaped_bytes(where) for where in (["dev", f"v{i}"], ["-n", f"h{i}", "dev", "e0"]))


def shaped_bytes(where):
    # The interface counts a batch of packets with one header, its queue with one for each.
    options = where[:-2]
    shown = subprocess.run(["tc", *options, "-s", "-j", "qdisc", "show", *where[-2:]], check=True, capture_output=True)
    return json.loads(shown.stdout)[0]["bytes"]


def cut_command(i):
    return f"ip -n h{i} link set e0 down"


def heal(i):
    # An address stays when its link goes down; IPv4 brings its route back with the link.
    sh(f"ip -n h{i} link set e0 up")
