"""The local reverse pass: each layer separately, from its output back to its input.

Paper: "Reviving Autoencoder Pretraining", Sec. 2 (equations 3 and 10) and App. A.3 (equations 25 and 26).
Equations: d'_m = M_m' (d_{m+1} - b_m), where d_{m+1} = M_m d_m + b_m is the layer's own output. The loss is the sum
    over m of lambda_m times the mean over batch and elements of (M_m' M_m d_m - d_m)^2.
Cost: for each layer a transposed convolution and its two gradients, about as much as the layer itself in a step.
    Inputs and outputs are recorded anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from compatkit import LayerCall

from .adjoint import adjoint, without_bias

Records = Mapping[str, Sequence[LayerCall]]


def local_loss(
    records: Records,
    factors: Mapping[str, float],
    *,
    detach_target: bool = False,
    names: Iterable[str] | None = None,
) -> Tensor | None:
    """Return the sum over layers and their calls of factor times the mean square of d - d'.

    Args:
        records: Inputs and outputs of each layer.
        factors: lambda_m by layer; a layer with factor 0 is skipped.
        detach_target: Whether d_m receives no gradient.
        names: Layers to use instead of all in ``records``.

    Returns:
        A float32 scalar, or None if no layer was called.
    """
    terms: list[Tensor] = []
    for name in records if names is None else names:
        factor = factors[name]
        if factor == 0:
            continue
        for call in records[name]:
            loss = residual(call, detach_target)
            terms.append(loss if factor == 1 else factor * loss)
    return torch.stack(terms).sum() if terms else None


def residual(call: LayerCall, detach_target: bool = False) -> Tensor:
    """Return the mean square of M'(y - b) - x for one call of a layer, in at least float32.

    Args:
        call: Input x and output y of the layer.
        detach_target: Whether x receives no gradient as the target.

    Returns:
        A scalar.
    """
    taken, output, layer = call
    back = adjoint(layer, taken, without_bias(layer, output))
    target = taken.detach() if detach_target else taken
    return F.mse_loss(wide(back), wide(target))


def wide(value: Tensor) -> Tensor:
    """Return ``value`` in at least float32: squares in bfloat16 are too coarse."""
    return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
