"""Minimal network, images and optimizer for the comparison of loops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

STEPS = 100
"""Steps per turn: many short turns are more robust on a busy machine."""
IMAGES, SIDE, CLASSES, BATCH = 4096, 8, 10, 16
MEAN, STD, RATE, MOMENTUM = 0.5, 0.25, 0.01, 0.9


def network() -> tuple[nn.Module, nn.Module]:
    """Return extractor and head with fixed weights."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 32), nn.ReLU()), nn.Linear(32, CLASSES)


def pictures() -> tuple[Tensor, Tensor]:
    """Return fixed uint8 images and labels."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (IMAGES, 1, SIDE, SIDE), dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, CLASSES, (IMAGES,), generator=generator)


def make_optimizer(kind: str, parameters: Sequence[Tensor]) -> torch.optim.Optimizer:
    """Return the fused optimizer of all contestants."""
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM, fused=True)
    return torch.optim.Adam(parameters, lr=RATE, fused=True)
