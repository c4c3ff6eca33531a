"""The probe: a fingerprint of a module's function that survives another machine, kernel or thread count."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import nn

from compatkit.adapters.signals import NAME, signal
from compatkit.contract import Probe
from compatkit.errors import CutError

PROJECTIONS = 16
RELATIVE_TOLERANCE = 1e-3


def probe(module: nn.Module, *shapes: Sequence[int]) -> Probe:
    """Run the fixed inputs of these shapes, one for each port, through the module in eval mode and project its output.

    The sketch holds 16 numbers, ``sum_i output_i signal(k + 1)_i / sqrt(n)`` in float64 over the n elements of the
    float32 output in row-major order. The digest is of the output's bytes; it only informs, as it differs
    between machines. The module's mode and buffers are as before.

    Raises:
        CutError: The output is no tensor, or holds values that are not finite.
    """
    device = next((tensor.device for tensor in module.state_dict().values()), torch.device("cpu"))
    modes = [(one, one.training) for one in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            output = module(*(signal(shape).to(device) for shape in shapes))
    finally:
        for one, training in modes:
            one.training = training
    if not isinstance(output, torch.Tensor):
        raise CutError(f"A probe needs one tensor as output, got {type(output).__name__}.")
    values = output.detach().to("cpu", torch.float32).contiguous().flatten()
    if not bool(torch.isfinite(values).all()):
        raise CutError(
            f"The output for the probe input of shape {shapes} is not finite; look at the weights for "
            "infinite or not-a-number values."
        )
    scale = math.sqrt(max(1, values.numel()))
    sketch = tuple(
        float(values.double() @ signal((values.numel(),), k + 1).double()) / scale for k in range(PROJECTIONS)
    )
    digest = hashlib.sha256(values.numpy().astype("<f4").tobytes()).hexdigest()
    return Probe(NAME, tuple(map(tuple, shapes)), sketch, RELATIVE_TOLERANCE, f"value:sha256:{digest}")


def same_probe(a: Probe, b: Probe) -> bool:
    """Whether two probes show the same function: ``|a - b| <= tolerance * max(|a|, |b|)`` over the sketches."""
    if (a.input, a.shapes, len(a.sketch)) != (b.input, b.shapes, len(b.sketch)):
        return False
    distance = math.dist(a.sketch, b.sketch)
    size = max(math.hypot(*a.sketch), math.hypot(*b.sketch))
    return distance <= min(a.relative_tolerance, b.relative_tolerance) * size
