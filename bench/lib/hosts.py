"""Hosts with a link each: network namespaces on one bridge, made inside the sandbox and gone with it."""

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


def cut_command(i):
    return f"ip -n h{i} link set e0 down"


def heal(i):
    # An address stays when its link goes down; IPv4 brings its route back with the link.
    sh(f"ip -n h{i} link set e0 up")
