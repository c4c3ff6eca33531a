"""The probe: an input that no random generator decides, and a comparison with tolerance."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import nn

from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.fingerprint import probe, same_probe
from compatkit.errors import CutError


def slow_value(index: int, stream: int) -> float:
    """The documented formula, in Python's own integers."""
    mask = 2**64 - 1
    z = (index + (stream << 40) + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return ((z ^ (z >> 31)) >> 40) / 2**23 - 1


@pytest.mark.parametrize("stream", [0, 1, 16])
def test_the_signal_is_the_documented_hash(stream):
    expected = [slow_value(i, stream) for i in range(24)]
    assert signal((2, 3, 4), stream).flatten().tolist() == expected


def test_splitmix_starts_as_published():
    # First output of splitmix64 for seed 0 is 0xE220A8397B1DCDAF (Vigna's reference code).
    assert slow_value(0, 0) == (0xE220A8397B1DCDAF >> 40) / 2**23 - 1


def test_the_signal_fills_its_range_evenly():
    values = signal((100_000,))
    assert values.dtype == torch.float32
    assert -1 <= float(values.min()) < -0.999 < 0.999 < float(values.max()) < 1
    assert abs(float(values.mean())) < 0.01
    assert float(values.var()) == pytest.approx(1 / 3, rel=0.02)


def test_the_sketch_holds_sixteen_projections_of_the_output():
    module = nn.Linear(4, 3).eval()
    result = probe(module, (2, 4))
    output = module(signal((2, 4))).detach().double().flatten()
    expected = [float(output @ signal((6,), k + 1).double()) / 6**0.5 for k in range(16)]
    assert result.sketch == pytest.approx(expected, rel=1e-12)
    assert (result.input, result.shapes, result.relative_tolerance) == ("hash-1", ((2, 4),), 1e-3)
    assert result.digest.startswith("value:sha256:")


def test_the_probe_runs_in_eval_mode_and_leaves_mode_and_buffers_alone():
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(0.5))
    module[1].eval()
    before = module[0].running_mean.clone()
    assert probe(module, (8, 4)) == probe(module, (8, 4))
    assert (module.training, module[0].training, module[1].training) == (True, True, False)
    assert torch.equal(module[0].running_mean, before)


def test_probes_agree_within_the_tolerance_only():
    module = nn.Linear(4, 3)
    result = probe(module, (2, 4))
    near = attrs.evolve(
        result, sketch=tuple(value * (1 + 5e-4) for value in result.sketch), digest="value:sha256:0"
    )
    far = attrs.evolve(result, sketch=tuple(value * (1 + 5e-3) for value in result.sketch))
    assert same_probe(result, near)
    assert not same_probe(result, far)
    assert not same_probe(result, attrs.evolve(result, shapes=((3, 4),)))
    assert not same_probe(result, attrs.evolve(result, input="hash-2"))


def test_trained_further_the_probe_differs():
    module = nn.Linear(4, 3)
    before = probe(module, (2, 4))
    with torch.no_grad():
        module.weight.mul_(1.1)
    assert not same_probe(before, probe(module, (2, 4)))


def test_outputs_that_are_not_finite_are_refused():
    module = nn.Linear(4, 3)
    with torch.no_grad():
        module.bias.fill_(float("nan"))
    with pytest.raises(CutError, match="not finite"):
        probe(module, (2, 4))
