"""The probe: a fingerprint of a module's function that survives another machine, kernel or thread count."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from contextlib import nullcontext

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.bounds import bounded_run
from compatkit.adapters.cutting.proof import unchanged
from compatkit.adapters.cutting.signals import NAME, port_signal, signal
from compatkit.adapters.ports.sizerules import outputs_of
from compatkit.contracts.contract import Probe
from compatkit.errors import CutError

PROJECTIONS = 16
RELATIVE_TOLERANCE = 1e-3


@attrs.frozen(eq=False)
class ProbeRun:
    """One forward pass on the fixed inputs: its outputs, one for each port, and the probe made of them.

    Attributes:
        draws: Whether the pass drew from torch's random state.
    """

    probe: Probe
    outputs: tuple[Tensor, ...]
    draws: bool


def probe(module: nn.Module, *shapes: Sequence[int], dtypes: Sequence[str] = ()) -> Probe:
    """Run the fixed inputs of these shapes, one for each port, through the module in eval mode and project its output.

    Input i is ``port_signal(shape, i)``; several are given as one tuple. The sketch holds 16 numbers,
    ``sum_i output_i signal(k + 1)_i / sqrt(n)`` in float64 over the n elements of the float32 outputs, in row-major
    order, one output after the other. The digest is of the outputs' bytes; it only informs, as it differs between
    machines. The module's mode and buffers are as before. What it draws in eval mode is drawn from seed 0.

    Args:
        module: Takes the inputs.
        shapes: Of the inputs.
        dtypes: Of the inputs; float32 where left out.

    Raises:
        CutError: Something else than tensors comes out, or values that are not finite.
    """
    return observe(module, *shapes, dtypes=dtypes, bounded=False).probe


def observe(
    module: nn.Module, *shapes: Sequence[int], dtypes: Sequence[str] = (), seed: int = 0, bounded: bool = True
) -> ProbeRun:
    """Return the probe as ``probe`` does, with the outputs that it was made of.

    Args:
        module: As for ``probe``.
        shapes: As for ``probe``.
        dtypes: As for ``probe``.
        seed: Of what the module draws although it is in eval mode; the global random state is as before.
        bounded: Whether to refuse a run that takes too much; False for a module of the caller's own.
    """
    kinds = tuple(dtypes) or ("float32",) * len(shapes)
    taken = sum(math.prod(shape) for shape in shapes)
    bound = bounded_run(module, type(module).__name__, taken) if bounded else nullcontext()
    with bound as compare, unchanged(module), torch.no_grad():
        inputs = [
            port_signal(shape, i, kind) for i, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
        ]
        module.eval()
        torch.default_generator.manual_seed(seed)
        before = torch.get_rng_state()
        outputs = outputs_of(module, inputs)
        draws = not torch.equal(before, torch.get_rng_state())
        if compare is not None:
            compare(sum(output.numel() for output in outputs))
    parts = [torch.view_as_real(output) if output.is_complex() else output for output in outputs]
    values = torch.cat([output.detach().to("cpu", torch.float32).contiguous().flatten() for output in parts])
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
    made = Probe(NAME, tuple(map(tuple, shapes)), sketch, RELATIVE_TOLERANCE, f"value:sha256:{digest}")
    return ProbeRun(made, outputs, draws)


def same_probe(a: Probe, b: Probe) -> bool:
    """Whether two probes show the same function: ``|a - b| <= tolerance * max(|a|, |b|)`` over the sketches.

    Args:
        a: A probe of one module.
        b: Of the other; probes of other inputs or shapes never agree.
    """
    if (a.input, a.shapes, len(a.sketch)) != (b.input, b.shapes, len(b.sketch)):
        return False
    distance = math.dist(a.sketch, b.sketch)
    size = max(math.hypot(*a.sketch), math.hypot(*b.sketch))
    return distance <= min(a.relative_tolerance, b.relative_tolerance) * size
