"""A small convolutional network learns MNIST, with PyTorch. Each party has its own images, and they stay there.

    mesh submit job.toml
    MESH_TRY=3 MESH_DATA_TRAIN=../../mnist python3 train.py          without a mesh
"""

import gzip

import mesh
import numpy as np
import torch
from torch import nn

LR = mesh.param("lr", default=0.05)
MOMENTUM = mesh.param("momentum", default=0.9)
BATCH = mesh.param("batch", default=32)
IMAGES = mesh.param("images", default=2000)
# So many images of those held back are looked at in a round.
HELD_BACK = 2000


def idx(folder, name):
    """An idx file, packed or not: four bytes of which the last is the number of sides, the sides, the values."""
    path = folder / name
    with open(path, "rb") if path.exists() else gzip.open(folder / (name + ".gz")) as file:
        sides = file.read(4)[3]
        shape = np.frombuffer(file.read(4 * sides), ">u4")
        # A copy: PyTorch wants memory that can be written to.
        return torch.from_numpy(np.frombuffer(file.read(), np.uint8).reshape(shape).copy())


def examples(folder, which):
    """Images from 0 to 255, and their digits."""
    images, digits = idx(folder, which + "-images-idx3-ubyte"), idx(folder, which + "-labels-idx1-ubyte")
    return images.unsqueeze(1), digits.long()


def network():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 5 * 5, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = mesh.data("train")
    images, digits = examples(folder, "train")
    held_back, held_back_digits = (part[:HELD_BACK] for part in examples(folder, "t10k"))
    scaled = lambda pixels: pixels.to(device).float() / 255  # noqa: E731
    entropy = nn.CrossEntropyLoss()
    model = network().to(device)

    for round in mesh.rounds():
        torch.manual_seed(1000 * mesh.job.task + round.number)
        state = round.state_dict()
        if state:
            model.load_state_dict(state)
            model.eval()
            with torch.no_grad():
                scores = model(scaled(held_back)).cpu()
            right = (scores.argmax(dim=1) == held_back_digits).float().mean()
            loss = entropy(scores, held_back_digits)
            round.evaluated(examples=len(held_back), metrics={"accuracy": right, "loss": loss})

        model.train()
        # A new one each round: the momentum of an earlier model is of no use.
        optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
        chosen = torch.randperm(len(images))[:IMAGES]
        total = 0.0
        for at in range(0, len(chosen), BATCH):
            batch = chosen[at : at + BATCH]
            optimiser.zero_grad()
            loss = entropy(model(scaled(images[batch])), digits[batch].to(device))
            loss.backward()
            optimiser.step()
            total += loss.item() * len(batch)
            round.progress((at + len(batch)) / len(chosen))
        round.submit(model.state_dict(), examples=len(chosen), metrics={"train-loss": total / len(chosen)})


if __name__ == "__main__":
    main()
