"""Which change of ports loses a partner: the rule, held against wiring with very many partners.

The slow truth: a partner is lost where `wiring` said "direct, nothing to warn of" and no longer does. The
rule must say so whenever one of them is lost; and when it says so, one of them is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, Literal

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compatkit.contracts.contract import Contract, Data, Dimension, Label, Port, Protocol, Scaled, Structural
from compatkit.contracts.match import wiring
from compatkit.contracts.ports import SizedPorts
from compatkit.contracts.report import Finding
from compatkit.registry.versions.partners import Side, lost_partners

Partner = tuple[tuple[Port, ...], Data]
GRAY = Data((16, 16), "L", (0.5,), (0.5,))
IMAGE, LOGITS = Port("image", ("N", 1, "H", "W")), Port("logits", ("N", 3), layout="NC", pooled=True)
DATA = [attrs.evolve(GRAY, size=size) for size in ((16, 16), (32, 16))]
RANK = {"NCHW": 4, "NHWC": 4, "NLC": 3, "NC": 2}
HALF = Scaled("H", 1, 2), Scaled("W", 1, 2)
POSITIONS: dict[str, list[tuple[Dimension, ...]]] = {
    "NCHW": [(8, 8), (16, 8), ("H", "W"), HALF],
    "NHWC": [(8, 8), ("H", "W")],
    "NLC": [(64,), (65,), (128,), ("L",)],
    "NC": [()],
}


def port(layout: Any, channels: Dimension, positions: tuple[Dimension, ...], **changes: Any) -> Port:
    middle = (channels, *positions) if layout in ("NCHW", "NC") else (*positions, channels)
    return Port("features", ("N", *middle), layout=layout, **changes)


@st.composite
def ports(draw: Callable[..., Any]) -> Port:
    layout = draw(st.sampled_from(list(POSITIONS)))
    made = port(
        layout,
        draw(st.sampled_from([4, 8, "C"])),
        draw(st.sampled_from(POSITIONS[layout])),
        dtype=draw(st.sampled_from(["float32", "bfloat16", "int64"])),
        range=draw(st.sampled_from(["nonnegative", "signed", "any"])),
        pooled=draw(st.booleans()),
        prefix_tokens=draw(st.sampled_from([0, 1])) if layout == "NLC" else 0,
    )
    seen = (8,) * len(made.spatial_axes)
    return attrs.evolve(made, measured={"16x16": seen}) if draw(st.integers(0, 4)) == 0 else made


@st.composite
def odd_ports(draw: Callable[..., Any]) -> Port:
    """Ports whose layout has no name."""
    sizes = st.sampled_from([4, 8, "T", "N", Scaled("H", 1, 2), Scaled("N", times=2)])
    shape = draw(st.lists(sizes, min_size=1, max_size=3))
    return Port("features", tuple(shape), layout="other")


@st.composite
def changed(draw: Callable[..., Any], source: st.SearchStrategy[Port]) -> tuple[Port, Port]:
    """Two ports that differ in all, or in one attribute only."""
    first, other = draw(source), draw(source)
    names = [field.name for field in attrs.fields(Port) if field.name != "shape"]
    field = draw(st.sampled_from([*names, "all", "shape", "shape"]))
    if field in ("all", "layout") or (field == "shape" and len(first.shape) != len(other.shape)):
        return first, other
    if field == "shape" and first.layout != "other":
        mixed = [draw(st.sampled_from(pair)) for pair in zip(first.shape, other.shape, strict=True)]
        return first, attrs.evolve(first, shape=tuple(mixed) if first.layout == other.layout else first.shape)
    return first, attrs.evolve(first, **{field: getattr(other, field)})


def component(side: Side, ports: tuple[Port, ...], data: Data) -> Contract:
    structural = Structural((IMAGE,), ports) if side == "outputs" else Structural(ports, (LOGITS,))
    return Contract(structural, data, Protocol("none"))


def findings(outputs: Sequence[Port], inputs: Sequence[Port], data: Data, head_data: Data) -> list[Finding]:
    sides = SizedPorts(tuple(outputs), data.size), SizedPorts(tuple(inputs), head_data.size)
    return [entry.finding(*sides) for entry in wiring(*sides)]


def severities(side: Side, mine: Contract, partner: Partner) -> set[str]:
    """What wiring says of the component and a partner, without what is only told."""
    theirs, data = partner
    if side == "outputs":
        report_findings = findings(mine.structural.outputs, theirs, mine.data, data)
    else:
        report_findings = findings(theirs, mine.structural.inputs, data, mine.data)
    return {match.code for match in report_findings if match.severity != "informs"}


def is_lost(side: Side, old: Contract, new: Contract, partner: Partner) -> bool:
    return not severities(side, old, partner) and bool(severities(side, new, partner))


def partners(side: Side, old: Contract, new: Contract) -> Iterator[Partner]:
    """Every mixture of what both ports say, of ranges, shapes and images on top."""
    (first,), (two,) = (getattr(contract.structural, side) for contract in (old, new))
    fields = [field.name for field in attrs.fields(Port) if field.name not in ("name", "shape", "range")]
    mixtures = product(*({repr(x): x for x in (getattr(first, f), getattr(two, f))}.values() for f in fields))
    wanted = set(shapes(first, two))
    for values in mixtures:
        made = dict(zip(fields, values, strict=True))
        fitting = [shape for shape in wanted if len(shape) == RANK.get(made["layout"], len(shape))]
        for shape, limit, data in product(fitting, ("nonnegative", "signed", "any"), DATA):
            yield (Port("features", shape, range=limit, **made),), data


def shapes(port: Port, two: Port) -> Iterator[tuple[Dimension, ...]]:
    yield from (port.shape, two.shape)
    for shape in (port.shape, two.shape):
        yield from product(*({size, 5, "X"} if size != "N" else {"N"} for size in shape))
    for source in (port, two):
        for size in (entry.size for entry in DATA):  # what a partner with fixed positions would say
            seen = dict(
                zip(source.spatial_axes, source.measured.get(f"{size[0]}x{size[1]}", ()), strict=False)
            )
            at = {"H": size[0], "W": size[1]}
            plain = [
                entry.at(at[entry.of]) if isinstance(entry, Scaled) and entry.of in at else entry
                for entry in source.shape
            ]
            yield tuple(seen.get(axis, entry) for axis, entry in enumerate(plain))


datas = st.sampled_from(DATA)
any_ports = st.one_of(ports(), ports(), odd_ports())
sides: st.SearchStrategy[Literal["inputs", "outputs"]] = st.sampled_from(["inputs", "outputs"])


@settings(max_examples=60, deadline=None)
@given(sides, changed(any_ports), datas, datas, st.lists(ports(), min_size=5, max_size=20), datas)
def test_a_rule_that_says_nobody_is_lost_is_right(
    side: Side, pair: tuple[Port, Port], before: Data, after: Data, theirs: list[Port], data: Data
) -> None:
    """Partners drawn at random, and all mixtures of both ports."""
    old, new = component(side, (pair[0],), before), component(side, (pair[1],), after)
    if not rule(side, old, new):
        drawn: list[Partner] = [((item,), data) for item in theirs]
        assert not [item for item in [*drawn, *partners(side, old, new)] if is_lost(side, old, new, item)]


@settings(max_examples=150, deadline=None)
@given(sides, changed(any_ports), datas, datas)
def test_a_rule_that_says_somebody_is_lost_is_right(
    side: Side, pair: tuple[Port, Port], before: Data, after: Data
) -> None:
    old, new = component(side, (pair[0],), before), component(side, (pair[1],), after)
    if rule(side, old, new):
        assert any(is_lost(side, old, new, partner) for partner in partners(side, old, new))


def rule(side: Side, old: Contract, new: Contract) -> dict[Any, str]:
    return {place: reason for place, reason in lost_partners(old, new).items() if "multiple_of" not in place}


FEATURES = port("NCHW", 8, ("H", "W"), range="nonnegative")
FIXED = attrs.evolve(FEATURES, shape=("N", 8, 8, 8))
TOKENS = port("NLC", 8, (65,), prefix_tokens=1)
VECTOR = port("NC", 8, (), pooled=True)


def ports_named(*names: str) -> tuple[Port, ...]:
    return tuple(attrs.evolve(FEATURES, name=name) for name in names)


HEADS: dict[str, tuple[tuple[Port, ...], tuple[Port, ...], str]] = {
    "a free size in place of a fixed one": ((FIXED,), (FEATURES,), ""),
    "a fixed size in place of a free one": ((FEATURES,), (FIXED,), "give any number of positions"),
    "any values in place of nonnegative ones": ((FEATURES,), (attrs.evolve(FEATURES, range="any"),), ""),
    "nonnegative values in place of any": ((VECTOR,), (attrs.evolve(VECTOR, range="nonnegative"),), "signed"),
    "any channels": ((FEATURES,), (attrs.evolve(FEATURES, shape=("N", "C", "H", "W")),), ""),
    "other channels": ((VECTOR,), (attrs.evolve(VECTOR, shape=("N", 9)),), "give 8 channels"),
    "a class token": ((attrs.evolve(TOKENS, prefix_tokens=0),), (TOKENS,), "give 0 prefix tokens"),
    "one name for another": (ports_named("features"), ports_named("x"), ""),
    "names of several": (ports_named("a", "b"), ports_named("a", "c"), "'b' is gone"),
    "several in another order": (ports_named("a", "b"), ports_named("b", "a"), "'a' is gone"),
    "one more": (ports_named("a"), ports_named("a", "b"), "1 tensor do not fit 2 tensors"),
    "one less": (ports_named("a", "b"), ports_named("a"), "2 tensors do not fit 1 tensor"),
}


@pytest.mark.parametrize(("old", "new", "reason"), HEADS.values(), ids=HEADS)
def test_extractors_that_a_head_took_and_takes_no_longer(
    old: tuple[Port, ...], new: tuple[Port, ...], reason: str
) -> None:
    result = lost_partners(component("inputs", old, GRAY), component("inputs", new, GRAY))
    assert " ".join(result.values()).count(reason) if reason else not result


EXTRACTORS: dict[str, tuple[Port, Port, str]] = {
    "nonnegative values in place of signed ones": (
        attrs.evolve(FEATURES, range="signed"),
        FEATURES,
        "",
    ),
    "signed values in place of nonnegative ones": (
        FEATURES,
        attrs.evolve(FEATURES, range="signed"),
        "take nonnegative values from 'features'",
    ),
    "sizes that are not known any more": (FIXED, FEATURES, ""),
    "other sizes": (FIXED, attrs.evolve(FIXED, shape=("N", 8, 4, 4)), "take 8x8 positions"),
    "other sizes of other images only": (
        port("NCHW", 8, HALF),
        port("NCHW", 8, (Scaled("H", 0, 2), Scaled("W", 0, 2))),
        "",
    ),
    "other channels": (FEATURES, attrs.evolve(FEATURES, shape=("N", 9, "H", "W")), "take 8 channels"),
    "another type": (FEATURES, attrs.evolve(FEATURES, dtype="bfloat16"), "take float32"),
}


@pytest.mark.parametrize(("old", "new", "reason"), EXTRACTORS.values(), ids=EXTRACTORS)
def test_heads_that_took_an_output_and_take_it_no_longer(old: Port, new: Port, reason: str) -> None:
    result = lost_partners(component("outputs", (old,), GRAY), component("outputs", (new,), GRAY))
    assert " ".join(result.values()).count(reason) if reason else not result


def test_other_images_move_the_positions_of_an_extractor() -> None:
    """The formula is the same, yet heads with fixed positions were wired to 8x8."""
    same = (port("NCHW", 8, HALF),)
    larger = attrs.evolve(GRAY, size=(32, 32))
    result = lost_partners(component("outputs", same, GRAY), component("outputs", same, larger))
    assert "take 8x8 positions" in result["contract", "data", "size"]


@pytest.mark.parametrize(("before", "after", "loses"), [(1, 32, True), (32, 1, False), (32, 16, False)])
def test_images_in_steps_of_many_pixels_are_partners_too(before: int, after: int, loses: bool) -> None:
    old, new = (
        Contract(Structural((attrs.evolve(IMAGE, multiple_of=step),), ()), GRAY, Protocol("none"))
        for step in (before, after)
    )
    assert bool(lost_partners(old, new)) == loses


def test_the_count_of_classes_is_left_to_the_labels() -> None:
    def head(count: int, labels: int | None) -> Contract:
        names = None if labels is None else tuple(Label(str(index)) for index in range(labels))
        ports = Structural((FEATURES,), (port("NC", count, (), pooled=True),))
        return Contract(ports, attrs.evolve(GRAY, labels=names), Protocol("none"))

    assert not lost_partners(head(3, 3), head(4, 4))
    assert lost_partners(head(3, None), head(4, None)) and lost_partners(head(3, 3), head(4, 3))
