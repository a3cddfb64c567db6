"""gloo's all-reduce, by PyTorch: as many processes as parties on loopback. Neither encrypted nor verified, and nothing of it is kept.

    gloo.py RANK PROCESSES MEGABYTES ROUNDS     the first of them prints how many seconds each took
"""

import json
import os
import subprocess
import sys
import time

PATIENCE_SECONDS = 300


def rounds(python, processes, megabytes, count):
    """How many seconds each took."""
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    words = [str(word) for word in (processes, megabytes, count)]
    members = [
        subprocess.Popen([python, os.path.abspath(__file__), str(rank), *words], env=env, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, text=True)
        for rank in range(processes)
    ]
    said, _ = members[0].communicate(timeout=PATIENCE_SECONDS)
    for member in members[1:]:
        member.communicate(timeout=PATIENCE_SECONDS)
    return json.loads(said)


def member(rank, processes, megabytes, count):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=processes)
    values, took = torch.randn(megabytes * 250_000), []
    # The first ones find memory and connections cold.
    for number in range(count + 2):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(values)
        values /= processes
        if number >= 2:
            took.append(time.perf_counter() - began)
    dist.barrier()
    if rank == 0:
        print(json.dumps(took))
    dist.destroy_process_group()


if __name__ == "__main__":
    member(*map(int, sys.argv[1:]))
