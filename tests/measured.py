"""Results made by hand: what a matrix would have kept of a pair, without measuring anything."""

from __future__ import annotations

import hashlib
from typing import Any

import attrs

from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.grades import Grade
from compatkit.contracts.manifest import Edge, Manifest, function_digest
from compatkit.evaluation.conditions import Conditions, ImageFacts, Settings
from compatkit.evaluation.records import record
from compatkit.registry.store import Store

ASKED = {
    "policy": "running",
    "batch_size": 256,
    "seed": 0,
    "precision": "float32",
    "data": "a/test",
    "data_digest": "data:sha256:" + hashlib.sha256(b"a/test").hexdigest(),
    "images": 100,
    "batch_norm": True,
    "bound": "",
}


def circumstances(
    *, data: str, data_digest: str, images: int, sample: bool = False, **kwargs: Any
) -> Settings:
    """Return the settings of a cell; the rest are fields of ``Conditions`` and arguments of its ``settings``."""
    conditions = Conditions(*(kwargs.pop(name) for name in ("policy", "batch_size", "seed", "precision")))
    return conditions.settings(ImageFacts(data, data_digest, images, sample=sample), **kwargs)


def settings(**changes: Any) -> Settings:
    """Return the settings of a cell; names of ``circumstances`` change the key, any other stand beside it."""
    inside: dict[str, Any] = {**ASKED, **{name: change for name, change in changes.items() if name in ASKED}}
    beside = {name: change for name, change in changes.items() if name not in ASKED}
    return {**circumstances(**inside), "device": "cpu", "own": False, **beside}


def cell(grade: Grade = "compatible", correct: int = 60, **changes: Any) -> Cell:
    """Return a measured cell of 100 images, ``correct`` of them right."""
    figure = Figure(correct / 100, correct, 100, max(0.0, correct / 100 - 0.1), min(1.0, correct / 100 + 0.1))
    plain = Cell("e", "h", "direct", "none", grade, figure, figure, 0.1, None, None, None, ("0", "1"))
    return attrs.evolve(plain, settings=settings(**changes))


def keep(store: Store, extractor: Manifest, head: Manifest, measured: Cell) -> Edge:
    """Keep a measured cell as evidence of a pair."""
    return store.evidence.add(function_digest(extractor), function_digest(head), **record(measured))
