"""Two small networks and a slow float64 copy of each, written as loops over channels."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Floats = NDArray[np.float64]


class Features(nn.Module):
    """Gray image to a map of 4 channels: weights, batch normalization, ReLU, dropout."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weights, self.norm, self.dropout = nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), nn.Dropout(0.5)
        fill(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.norm(self.weights(x)).relu())


class Classes(nn.Module):
    """Map of 4 channels to logits: weights, batch normalization, ReLU, average, linear."""

    def __init__(self, seed: int, outputs: int = 3) -> None:
        super().__init__()
        self.weights, self.norm, self.linear = nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5), nn.Linear(5, outputs)
        fill(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(self.weights(x)).relu().mean(dim=(2, 3)))


def fill(module: nn.Module, seed: int) -> None:
    """Draw all weights and stored statistics; variances are positive."""
    draw = torch.Generator().manual_seed(seed)
    for name, value in module.state_dict().items():
        if value.is_floating_point():
            drawn = torch.randn(value.shape, generator=draw)
            value.copy_(drawn.abs() + 0.5 if "running_var" in name else drawn)


def reference(module: nn.Module, x: Floats, own_statistics: bool) -> Floats:
    """Return what ``Features`` or ``Classes`` gives in float64, with statistics of ``x`` or stored ones."""
    state = {name: value.double().numpy() for name, value in module.state_dict().items()}
    weight, bias = state["weights.weight"][:, :, 0, 0], state["weights.bias"]
    mapped = np.zeros((x.shape[0], len(bias), *x.shape[2:]))
    for out in range(len(bias)):
        for index in range(x.shape[1]):
            mapped[:, out] += weight[out, index] * x[:, index]
        mapped[:, out] += bias[out]
        mean, variance = mapped[:, out].mean(), mapped[:, out].var()
        if not own_statistics:
            mean, variance = state["norm.running_mean"][out], state["norm.running_var"][out]
        scale = state["norm.weight"][out] / math.sqrt(variance + 1e-5)
        mapped[:, out] = np.maximum((mapped[:, out] - mean) * scale + state["norm.bias"][out], 0)
    if "linear.weight" not in state:
        return mapped
    return mapped.mean(axis=(2, 3)) @ state["linear.weight"].T + state["linear.bias"]
