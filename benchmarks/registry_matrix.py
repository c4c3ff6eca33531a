"""All pairs of 300 extractors and 300 heads, with the reasons."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import check as contracts
from registry_measuring import Contestant, Gate, Row, compete, expect, lines, say
from registry_settings import Given

from compatkit.contracts.contract import Contract, Data, Port, Structural
from compatkit.contracts.manifest import Manifest
from compatkit.reports.verdicts import check_all

SIDE = 300
FEWER = 100
"""Parts per side if all pages are written, which takes long."""
FEW = 40
FIELDS = ("dtype", "layout", "range", "pooled", "prefix_tokens")
WHAT = (*FIELDS, "channels", "size of the maps", "bn_policy")


def matrix(given: Given) -> list[str]:
    """Measure ``check_all`` beside a loop that notes what differs and one that writes sentences; then all reports."""
    table: list[str] = []
    asked = contracts.component("head", 0).contract.data
    for different, words in (
        (SIDE, "no two contracts alike"),
        (SIDE, "no two alike, sizes at the seam known"),
        (FEW, f"{FEW} different contracts a side"),
    ):
        say(f"checking {SIDE} x {SIDE}, {words}")
        lefts, rights = contracts.side("extractor", SIDE, different), contracts.side("head", SIDE, different)
        if "known" in words:
            lefts, rights = _seen(lefts), _seen(rights)
        noted, written = (
            f"loop over the pairs, same fields, reasons as {one} ({words})" for one in ("names", "text")
        )
        contestants = {
            noted: Contestant(lambda a=lefts, b=rights: names(a, b, asked), check=_all),
            written: Contestant(lambda a=lefts, b=rights: loop(a, b, asked), check=_all),
            "ours": Contestant(
                lambda a=lefts, b=rights: len(list(check_all(a, b, data=asked).pairs())), check=_all
            ),
        }
        times = compete(contestants, given.rounds, given.seed)
        what = f"check_all {SIDE} x {SIDE}, {words}"
        rows = [Row(what, written, "ours", Gate(5)), Row(what, noted, "ours")]
        table += lines(rows, times)
    return [*table, *_texts(given, asked)]


def _texts(given: Given, asked: Data) -> list[str]:
    """Measure the reports of all pairs, which are made for those that somebody asks for."""
    say(f"all reports of {FEWER} x {FEWER}")
    lefts, rights = (contracts.side(kind, FEWER, FEWER) for kind in ("extractor", "head"))
    floor, words = "loop over the pairs, same fields, reasons as text (all reports)", "no two contracts alike"

    def reports() -> int:
        verdicts = check_all(lefts, rights, data=asked)
        return len([verdicts.report(left, right) for left, right, _ in verdicts.pairs()])

    contestants = {
        floor: Contestant(lambda: loop(lefts, rights, asked), check=_fewer),
        "ours": Contestant(reports, check=_fewer),
    }
    times = compete(contestants, given.rounds, given.seed)
    return lines([Row(f"all reports with texts, {FEWER} x {FEWER}, {words}", floor, "ours")], times)


def _seen(parts: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """Return parts whose ports say the sizes at the seam for their own images, so that they too are compared."""
    found: dict[str, Manifest] = {}
    for name, one in parts.items():
        ports, (height, width) = one.contract.structural, one.contract.data.size
        seen = {f"{height}x{width}": (16, width // 2)}
        inputs, outputs = (
            tuple(attrs.evolve(port, measured=seen) for port in side)
            for side in (ports.inputs, ports.outputs)
        )
        contract = attrs.evolve(one.contract, structural=Structural(inputs, outputs))
        found[name] = attrs.evolve(one, contract=contract)
    return found


def _all(came: int) -> None:
    expect("pairs", came, SIDE**2)


def _fewer(came: int) -> None:
    expect("pairs", came, FEWER**2)


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


def names(lefts: Mapping[str, Manifest], rights: Mapping[str, Manifest], data: Data) -> int:
    """Compare the same as ``loop``, and note only what differs."""
    reasons: dict[tuple[str, str], list[str]] = {}
    heads = [(name, *_asks(one.contract, data)) for name, one in rights.items()]
    for left, extractor in lefts.items():
        given, own, mean = _gives(extractor.contract)
        for right, wanted, anchors, expected, spread, missing in heads:
            found = [what for what, a, b in zip(WHAT, given, wanted, strict=True) if a != b]
            if missing:
                found.append("classes")
            if own.isdisjoint(anchors):
                found.append("anchors")
            if abs(mean - expected) > spread:
                found.append("mean")
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
        contract.protocol.norm,
    )
