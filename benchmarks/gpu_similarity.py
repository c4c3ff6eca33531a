"""CKA of all pairs of layers, with activations on the device, beside loops on the same device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from contest import Contestant, compete, ratios
from gpu_size import FULL, Size, expect_close
from similarity import WIDTHS, grams_once, layers, ours, torch_cka
from torch import Tensor

RIVALS: dict[str, Callable[[dict[str, Tensor], dict[str, Tensor]], np.ndarray]] = {
    "Grams once": grams_once,
    "torch_cka": torch_cka,
}
CLOSE = 1e-3
"""Float32 products of large Grams, in other orders."""


def cka(rounds: int, size: Size = FULL, *, rival: str) -> list[float]:
    """Return how many times as long compatkit takes as a rival, in each round."""
    widths = size.of(WIDTHS, WIDTHS[-4:])
    left, right = (
        {name: layer.to(size.device) for name, layer in layers(size.of(1000, 40), widths, seed).items()}
        for seed in (1, 2)
    )
    results = dict[str, Tensor]()

    def contestant(
        label: str, work: Callable[[dict[str, Tensor], dict[str, Tensor]], np.ndarray]
    ) -> Contestant:
        def keep(table: np.ndarray) -> None:
            results[label] = torch.as_tensor(table)

        return Contestant(lambda: work(left, right), size.wait, keep)

    times = compete(
        {"ours": contestant("ours", ours), rival: contestant(rival, RIVALS[rival])}, rounds, size.seed
    )
    expect_close(f"CKA by compatkit and by {rival}", results["ours"], results[rival], CLOSE)
    return ratios(times, "ours", rival, processor=not size.on_gpu)
