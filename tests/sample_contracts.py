"""Strategies: contracts of every form that the registry accepts, for tests that hold for all of them."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import strategies as st
from sample_components import initial, manifest, shared

from compatkit.contracts.contract import (
    Contract,
    Data,
    FeatureStatistics,
    Label,
    Port,
    Protocol,
    Scaled,
    Statistical,
    Structural,
)
from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.kinds import Kind
from compatkit.contracts.labels import spelling
from compatkit.contracts.manifest import Manifest

NAMES = (
    "cat",
    "c\u0430t",
    "CAT",
    "dog",
    "D\u03bfG",
    "big_cat",
    "big cat",
    "stra\u00dfe",
    "\uff43at",
    "0",
    "O",
)
"""Class names that are equal, look equal, or neither."""
DTYPES = ("float32", "float32", "bfloat16", "float64", "int64")

few = st.integers(0, 2)
free = st.one_of(
    st.sampled_from([1, 2, 4, 7, 16]),
    st.sampled_from(["H", "W", "L", "H1"]),
    st.builds(
        Scaled,
        st.sampled_from("HW"),
        st.integers(0, 2),
        st.integers(1, 4),
        st.integers(0, 2),
        st.integers(1, 2),
    ),
)
channels = st.sampled_from([1, 4, 8])


@st.composite
def ports(draw: Any, name: str = "features") -> Port:
    """A port of any layout, with sizes seen at 8x8 or without."""
    layout = draw(st.sampled_from(["NCHW", "NHWC", "NLC", "NC", "other"]))
    sizes = {
        "NCHW": ("N", draw(channels), draw(free), draw(free)),
        "NHWC": ("N", draw(free), draw(free), draw(channels)),
        "NLC": ("N", draw(free), draw(channels)),
        "NC": ("N", draw(channels)),
        "other": tuple(draw(st.lists(st.one_of(free, st.just("N")), min_size=1, max_size=5))),
    }
    port = Port(
        name,
        sizes[layout],
        dtype=draw(st.sampled_from(DTYPES)),
        layout=layout,
        range=draw(st.sampled_from(["any", "signed", "nonnegative"])),
        pooled=draw(st.booleans()),
        prefix_tokens=draw(st.sampled_from([0, 0, 1, 5])) if layout == "NLC" else 0,
    )
    seen = tuple(draw(st.integers(0, 9)) for _ in port.spatial_axes)
    return attrs.evolve(port, measured={"8x8": seen} if draw(st.booleans()) else {})


@st.composite
def labels(draw: Any) -> tuple[Label, ...]:
    """Class names, no two of which are one name."""
    return tuple(map(Label, draw(st.lists(st.sampled_from(NAMES), unique_by=spelling, max_size=5))))


@st.composite
def data(draw: Any) -> Data:
    """Images of two sizes and kinds, with classes or without."""
    count = draw(st.sampled_from([1, 3]))
    size = draw(st.sampled_from([(8, 8), (8, 16)]))
    mean = (draw(st.sampled_from([0.0, 0.5])),) * count
    return Data(size, "L" if count == 1 else "RGB", mean, (0.25,) * count, labels=draw(st.none() | labels()))


statistics = st.builds(
    FeatureStatistics, st.floats(0, 9, width=16), st.floats(0, 9, width=16), st.integers(1, 5)
)
anchors = st.lists(
    st.sampled_from([initial("one"), initial("two"), shared("dcc"), shared("rp", "rotation")]),
    unique=True,
    max_size=3,
)
protocols = st.builds(Protocol, st.sampled_from(["batch", "none"]), anchors.map(tuple))


@st.composite
def manifests(draw: Any, kind: Kind) -> Manifest:
    """An extractor or a head with one or two feature ports."""
    names = draw(st.sampled_from([("features",), ("features",), ("features", "skip"), ("a", "b")]))
    seam = tuple(draw(ports(name)) for name in names)
    other = (Port("image", ("N", 1, "H", "W")),)
    structural = Structural(other, seam) if kind == "extractor" else Structural(seam, other)
    features = draw(st.none() | st.tuples(*[statistics] * len(seam)))
    return manifest(kind, Contract(structural, draw(data()), draw(protocols), Statistical(features)))


@st.composite
def cells(draw: Any) -> Cell:
    """A pair as it was measured, or could not be."""
    grade = draw(st.sampled_from(["stale", "undecided", "chance", "compatible", "perfect"]))
    figure = draw(st.none() | st.just(Figure(0.5, 50, 100, 0.4, 0.6)))
    return Cell("e", "h", "direct", "none", grade, figure, figure, 0.1, figure, 1.0)
