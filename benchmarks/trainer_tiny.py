"""A network as small as networks get, its images, and its optimizer: what loops are compared on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

STEPS = 100
"""A turn: a short one, of which there are many, tells more on a machine that is not quiet."""
IMAGES, SIDE, CLASSES, BATCH = 4096, 8, 10, 16
MEAN, STD, RATE, MOMENTUM = 0.5, 0.25, 0.01, 0.9


def network() -> tuple[nn.Module, nn.Module]:
    """Return extractor and head, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.ReLU()), nn.Linear(32, CLASSES)


def pictures() -> tuple[Tensor, Tensor]:
    """Return uint8 images and labels, the same each time."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (IMAGES, 1, SIDE, SIDE), dtype=torch.uint8, generator=draw)
    return images, torch.randint(0, CLASSES, (IMAGES,), generator=draw)


def make_optimizer(kind: str, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """Return the fused optimizer that everybody uses."""
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, fused=True)
    return torch.optim.Adam(parameters, lr=RATE, fused=True)
