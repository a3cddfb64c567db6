"""Data-parallel training with torch.distributed, in its plainest form.

Each worker has points of its own on the line y = 3 x + 2; together they find the line. Nothing here knows of mesh:

    mesh submit job.toml
    torchrun --nproc-per-node 4 train.py
"""

import torch
import torch.distributed as dist

STEPS = 300
RATE = 0.1


def main():
    # Finds the others by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    who = f"rank {rank} of {size}"

    ranks = torch.tensor([rank])
    dist.all_reduce(ranks)
    print(f"{who}: the sum of all ranks is {ranks.item()}", flush=True)

    torch.manual_seed(rank)
    x = 2 * torch.rand(64, 1) - 1
    y = 3 * x + 2
    model = torch.nn.Linear(1, 1)
    for parameter in model.parameters():
        # All begin with the same model, and take the same steps.
        dist.broadcast(parameter.data, src=0)
    for _ in range(STEPS):
        model.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter -= RATE * parameter.grad / size

    weight, bias = (parameter.item() for parameter in model.parameters())
    print(f"{who}: y = {weight:.2f} x + {bias:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
