"""All pairs of 300 extractors and 300 heads, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping

import check as contracts
from registry_measuring import Contestant, Gate, Row, compete, expect, lines, say
from registry_settings import Given

from compatkit.contract import Contract, Data, Port
from compatkit.registry.manifest import Manifest
from compatkit.verdicts import check_all

SIDE = 300
FEW = 40
FIELDS = ("dtype", "layout", "range", "pooled", "prefix_tokens")
WHAT = (*FIELDS, "channels", "size of the maps", "normalisation")


def matrix(given: Given) -> list[str]:
    """Measure ``check_all`` beside a loop that compares the same fields and writes a sentence for each difference."""
    table: list[str] = []
    asked = contracts.component("head", 0).contract.data
    for different, words in ((SIDE, "no two contracts alike"), (FEW, f"{FEW} different contracts a side")):
        say(f"checking {SIDE} x {SIDE}, {words}")
        lefts, rights = contracts.side("extractor", SIDE, different), contracts.side("head", SIDE, different)
        floor = f"loop over the pairs, same fields, reasons as text ({words})"
        contestants = {
            floor: Contestant(lambda a=lefts, b=rights: loop(a, b, asked), check=_all),
            "ours": Contestant(
                lambda a=lefts, b=rights: len(list(check_all(a, b, data=asked).pairs())), check=_all
            ),
        }
        times = compete(contestants, given.rounds, given.seed)
        table += lines([Row(f"check_all {SIDE} x {SIDE}, {words}", floor, "ours", Gate(5))], times)
    return table


def _all(came: int) -> None:
    expect("pairs", came, SIDE**2)


def loop(lefts: Mapping[str, Manifest], rights: Mapping[str, Manifest], data: Data) -> int:
    """Compare ports, classes, anchors and figures of every pair; what one side alone decides is looked up once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    heads = [(name, *_asks(one.contract, data)) for name, one in rights.items()]
    for left, extractor in lefts.items():
        given, own, mean = _gives(extractor.contract)
        for right, wanted, anchors, expected, spread, missing in heads:
            found = [
                f"{what}: {b} expected, {a} came"
                for what, a, b in zip(WHAT, given, wanted, strict=True)
                if a != b
            ]
            if missing:
                found.append(missing)
            if own.isdisjoint(anchors):
                found.append("no anchor in common")
            if abs(mean - expected) > spread:
                found.append(f"a mean of {expected} expected, {mean} came")
            reasons[left, right] = found
    return len(reasons)


def _gives(contract: Contract) -> tuple[tuple[object, ...], set[str], float]:
    figures = next(iter(contract.statistical.features or ()))
    return (
        _facts(contract.structural.outputs[0], contract),
        {one.digest for one in contract.protocol.anchors},
        figures.mean,
    )


def _asks(contract: Contract, data: Data) -> tuple[tuple[object, ...], set[str], float, float, str]:
    figures = next(iter(contract.statistical.features or ()))
    missing = {one.name for one in data.labels or ()} - {one.name for one in contract.data.labels or ()}
    told = f"classes {sorted(missing)} are missing" if missing else ""
    anchors = {one.digest for one in contract.protocol.anchors}
    return _facts(contract.structural.inputs[0], contract), anchors, figures.mean, figures.std, told


def _facts(port: Port, contract: Contract) -> tuple[object, ...]:
    return (
        *(getattr(port, field) for field in FIELDS),
        port.channels,
        port.measured,
        contract.protocol.normalisation,
    )
