"""Policies that bind: a new version is measured with the released parts, and its number follows from that."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from small import data_set, quick
from torch import Tensor

import compatkit as ck
from compatkit.errors import (
    PolicyBroken,
)
from compatkit.outcomes import Outcome
from compatkit.registry.manifest import Manifest

EXTRACTOR, HEAD = "digits/left.extractor", "digits/left.head"
DATA = data_set("left")
SPLIT = DATA.test


@pytest.fixture(scope="module")
def fit() -> ck.Fit:
    task = ck.Task("left", DATA, "resnet8_cifar", "layer2", size=(16, 16))
    return quick(steps=30, seed=0).fit([task], ["dcc"])


@pytest.fixture(scope="module")
def released(fit: ck.Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry that is only copied: an extractor, its auxiliary head and its head, all 1.0.0."""
    made = ck.Registry.init(tmp_path_factory.mktemp("promises") / "released")
    made.publish(fit, prefix="digits")
    return made.store.root


@pytest.fixture
def registry(released: Path, tmp_path: Path) -> ck.Registry:
    return ck.Registry.open(shutil.copytree(released, tmp_path / "parts"))


def policy(registry: ck.Registry, mode: str = "backward", scope: str = EXTRACTOR, **more: Any) -> None:
    registry.set_policy(scope, mode, **{"data": SPLIT, "tolerance": 0.05, **more})


def state(registry: ck.Registry, reference: str) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in registry.build(reference).state_dict().items()}


def nearly(values: dict[str, Tensor], by: float = 1e-4) -> dict[str, Tensor]:
    """Other weights with nearly the same function."""
    return {key: value * (1 + by) if value.is_floating_point() else value for key, value in values.items()}


def spoilt(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of nobody's: the channels in another order, which no head expects."""
    return {key: value.flip(0) if value.ndim else value for key, value in values.items()}


def bare(manifest: Manifest, **changes: Any) -> Manifest:
    """A manifest whose probe is taken anew, as the weights are others."""
    statistical = attrs.evolve(manifest.contract.statistical, probe=None)
    return attrs.evolve(
        manifest, contract=attrs.evolve(manifest.contract, statistical=statistical), **changes
    )


def register(
    registry: ck.Registry,
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    name: str = EXTRACTOR,
    **more: Any,
) -> str:
    """Register a changed version of what is released under a name."""
    manifest = bare(registry.manifest(f"{name}@1.0.0"))
    return registry.register(
        name, manifest, change(state(registry, f"{name}@1.0.0")), **{"data": [SPLIT], **more}
    )


def test_what_works_with_the_released_heads_stays_within_the_line(registry: ck.Registry) -> None:
    policy(registry)
    assert register(registry, nearly) == f"{EXTRACTOR}@1.1.0"


def test_what_breaks_with_them_is_refused_with_the_matrix_and_offered_as_the_next_major(
    registry: ck.Registry,
) -> None:
    policy(registry)
    with pytest.raises(PolicyBroken, match=r"It is offered only as 2\.0\.0") as refused:
        register(registry, spoilt)
    outcome = refused.value.subject
    assert isinstance(outcome, Outcome) and not outcome.passed and outcome.offered == "2.0.0"
    (answer,) = outcome.answers
    assert answer.accuracy is not None and answer.bound is not None
    assert answer.accuracy.accuracy < answer.bound.accuracy - 0.05
    cell = outcome.matrix.cell(f"{EXTRACTOR}@candidate", HEAD)
    assert cell.restricted == answer.accuracy
    assert [str(one) for one in registry.store.versions(EXTRACTOR)] == ["1.0.0"]
    assert register(registry, spoilt, major=True) == f"{EXTRACTOR}@2.0.0"


def test_probe(registry: ck.Registry) -> None:
    print(torch.__version__)
