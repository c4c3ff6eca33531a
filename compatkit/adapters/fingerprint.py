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
from compatkit.adapters.cutting.proof import restored_state
from compatkit.adapters.cutting.signals import NAME, port_signal, signal
from compatkit.adapters.ports.sizerules import call_part
from compatkit.contracts.contract import Probe
from compatkit.errors import CutError

PROJECTIONS = 16
RELATIVE_TOLERANCE = 1e-3


@attrs.frozen(eq=False)
class ProbeRun:
    """Forward pass on the fixed inputs: the outputs, one per port, and the probe computed from them.

    Attributes:
        draws: Whether the pass drew from torch's random state.
    """

    probe: Probe
    outputs: tuple[Tensor, ...]
    draws: bool


def probe(module: nn.Module, *shapes: Sequence[int], dtypes: Sequence[str] = ()) -> Probe:
    """Run fixed inputs, one per port, through the module in eval mode and project its outputs.

    Input i is ``port_signal(shape, i)``; several are given as one tuple. The sketch holds 16 numbers,
    ``sum_i output_i signal(k + 1)_i / sqrt(n)`` in float64 over the n elements of the float32 outputs, in row-major
    order, one output after the other. The digest of the outputs' bytes is only informative, as it differs between
    machines. The module's mode and buffers are restored. Random numbers that it draws in eval mode are seeded with 0.

    Args:
        module: Module to run.
        shapes: Shapes of the inputs.
        dtypes: Names of the inputs' dtypes; default: float32.

    Raises:
        CutError: The outputs are not tensors, or not finite.
    """
    return observe(module, *shapes, dtypes=dtypes, bounded=False).probe


def observe(
    module: nn.Module, *shapes: Sequence[int], dtypes: Sequence[str] = (), seed: int = 0, bounded: bool = True
) -> ProbeRun:
    """Return the probe with the outputs that it was computed from; see ``probe``.

    Args:
        module: As for ``probe``.
        shapes: As for ``probe``.
        dtypes: As for ``probe``.
        seed: Seed of random numbers that the module draws in eval mode; the global random state is restored.
        bounded: Whether to limit memory and compute; False for a trusted module.
    """
    outputs, draws = run_on_signals(module, *shapes, dtypes=dtypes, seed=seed, bounded=bounded)
    parts = [torch.view_as_real(output) if output.is_complex() else output for output in outputs]
    values = torch.cat([output.detach().to("cpu", torch.float32).contiguous().flatten() for output in parts])
    if not bool(torch.isfinite(values).all()):
        raise CutError(
            f"The output for the probe input of shape {shapes} is not finite; check the weights for inf and NaN."
        )
    scale = math.sqrt(max(1, values.numel()))
    sketch = tuple(
        float(values.double() @ signal((values.numel(),), k + 1).double()) / scale for k in range(PROJECTIONS)
    )
    digest = hashlib.sha256(values.numpy().astype("<f4").tobytes()).hexdigest()
    probe_result = Probe(
        NAME, tuple(map(tuple, shapes)), sketch, RELATIVE_TOLERANCE, f"value:sha256:{digest}"
    )
    return ProbeRun(probe_result, outputs, draws)


def run_on_signals(
    module: nn.Module, *shapes: Sequence[int], dtypes: Sequence[str] = (), seed: int = 0, bounded: bool = True
) -> tuple[tuple[Tensor, ...], bool]:
    """Run the fixed inputs of a probe through the module in eval mode.

    Args:
        module: As for ``observe``.
        shapes: As for ``observe``.
        dtypes: As for ``observe``.
        seed: As for ``observe``.
        bounded: As for ``observe``.

    Returns:
        The outputs, one per port, and whether the pass drew from torch's random state.
    """
    kinds = tuple(dtypes) or ("float32",) * len(shapes)
    taken = sum(math.prod(shape) for shape in shapes)
    bound = bounded_run(module, type(module).__name__, taken) if bounded else nullcontext()
    # Copies of the buffers, restored at the end, take no more than the weights; each would count as a call.
    with restored_state(module), torch.no_grad(), bound as compare:
        inputs = [
            port_signal(shape, i, kind) for i, (shape, kind) in enumerate(zip(shapes, kinds, strict=True))
        ]
        module.eval()
        torch.default_generator.manual_seed(seed)
        before = torch.get_rng_state()
        outputs = call_part(module, inputs)
        draws = not torch.equal(before, torch.get_rng_state())
        if compare is not None:
            compare(sum(output.numel() for output in outputs))
    return outputs, draws


def same_probe(a: Probe, b: Probe) -> bool:
    """Return whether two probes agree: ``|a - b| <= tolerance * max(|a|, |b|)`` over the sketches.

    Args:
        a: Probe of one module.
        b: Probe of another module; probes of different inputs or shapes never agree.
    """
    if (a.input, a.shapes, len(a.sketch)) != (b.input, b.shapes, len(b.sketch)):
        return False
    distance = math.dist(a.sketch, b.sketch)
    size = max(math.hypot(*a.sketch), math.hypot(*b.sketch))
    return distance <= min(a.relative_tolerance, b.relative_tolerance) * size
