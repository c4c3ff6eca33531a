"""Checks of all pairs of 300 extractors and 300 heads, with reasons."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import check as contracts
from contest import Contestant, Gate, Row, compete, expect, lines, say
from registry_settings import Settings

from compatkit.contracts.contract import Contract, Data, Port, Structural
from compatkit.contracts.manifest import Manifest
from compatkit.reports.verdicts import check_all

SIDE = 300
FEWER = 100
"""Parts per side for the reports of all pairs, which take long."""
FEW = 40
FIELDS = ("dtype", "layout", "range", "pooled", "prefix_tokens")
WHAT = (*FIELDS, "channels", "size of the maps", "bn_policy")


def matrix(settings: Settings) -> list[str]:
    """Measure ``check_all`` against loops that list differing fields and that write sentences; then all reports."""
    table: list[str] = []
    data = contracts.component("head", 0).contract.data
    for different, words in (
        (SIDE, "no two contracts alike"),
        (SIDE, "no two alike, sizes at the seam known"),
        (FEW, f"{FEW} different contracts a side"),
    ):
        say(f"checking {SIDE} x {SIDE}, {words}")
        lefts, rights = contracts.side("extractor", SIDE, different), contracts.side("head", SIDE, different)
        if "known" in words:
            lefts, rights = _with_measured_sizes(lefts), _with_measured_sizes(rights)
        names_label, text_label = (
            f"loop over the pairs, same fields, reasons as {form} ({words})" for form in ("names", "text")
        )
        contestants = {
            names_label: Contestant(lambda a=lefts, b=rights: names(a, b, data), check=_check_pairs),
            text_label: Contestant(lambda a=lefts, b=rights: loop(a, b, data), check=_check_pairs),
            "ours": Contestant(
                lambda a=lefts, b=rights: len(list(check_all(a, b, data=data).pairs())), check=_check_pairs
            ),
        }
        times = compete(contestants, settings.rounds, settings.seed)
        operation = f"check_all {SIDE} x {SIDE}, {words}"
        rows = [Row(operation, text_label, "ours", Gate(5)), Row(operation, names_label, "ours")]
        table += lines(rows, times)
    return [*table, *_texts(settings, data)]


def _texts(settings: Settings, data: Data) -> list[str]:
    """Measure the reports of all pairs; ``check_all`` itself writes none."""
    say(f"all reports of {FEWER} x {FEWER}")
    lefts, rights = (contracts.side(kind, FEWER, FEWER) for kind in ("extractor", "head"))
    floor, words = "loop over the pairs, same fields, reasons as text (all reports)", "no two contracts alike"

    def reports() -> int:
        verdicts = check_all(lefts, rights, data=data)
        return len([verdicts.report(left, right) for left, right, _ in verdicts.pairs()])

    contestants = {
        floor: Contestant(lambda: loop(lefts, rights, data), check=_check_fewer_pairs),
        "ours": Contestant(reports, check=_check_fewer_pairs),
    }
    times = compete(contestants, settings.rounds, settings.seed)
    return lines([Row(f"all reports with texts, {FEWER} x {FEWER}, {words}", floor, "ours")], times)


def _with_measured_sizes(parts: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """Return manifests with measured map sizes at the seam, so that these are compared too."""
    manifests: dict[str, Manifest] = {}
    for name, manifest in parts.items():
        ports, (height, width) = manifest.contract.structural, manifest.contract.data.size
        measured = {f"{height}x{width}": (16, width // 2)}
        inputs, outputs = (
            tuple(attrs.evolve(port, measured=measured) for port in side)
            for side in (ports.inputs, ports.outputs)
        )
        contract = attrs.evolve(manifest.contract, structural=Structural(inputs, outputs))
        manifests[name] = attrs.evolve(manifest, contract=contract)
    return manifests


def _check_pairs(count: int) -> None:
    expect("pairs", count, SIDE**2)


def _check_fewer_pairs(count: int) -> None:
    expect("pairs", count, FEWER**2)


def loop(lefts: Mapping[str, Manifest], rights: Mapping[str, Manifest], data: Data) -> int:
    """Compare ports, classes, anchors and statistics of every pair; values of one side are looked up once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    heads = [(name, *_required(manifest.contract, data)) for name, manifest in rights.items()]
    for left, extractor in lefts.items():
        produced, own_anchors, mean = _produced(extractor.contract)
        for right, required, anchors, expected, spread, missing in heads:
            texts = [
                f"{field}: {b} expected, {a} came"
                for field, a, b in zip(WHAT, produced, required, strict=True)
                if a != b
            ]
            if missing:
                texts.append(missing)
            if own_anchors.isdisjoint(anchors):
                texts.append("no anchor in common")
            if abs(mean - expected) > spread:
                texts.append(f"a mean of {expected} expected, {mean} came")
            reasons[left, right] = texts
    return len(reasons)


def names(lefts: Mapping[str, Manifest], rights: Mapping[str, Manifest], data: Data) -> int:
    """Make the comparisons of ``loop``, and list only the differing fields."""
    reasons: dict[tuple[str, str], list[str]] = {}
    heads = [(name, *_required(manifest.contract, data)) for name, manifest in rights.items()]
    for left, extractor in lefts.items():
        produced, own_anchors, mean = _produced(extractor.contract)
        for right, required, anchors, expected, spread, missing in heads:
            fields = [field for field, a, b in zip(WHAT, produced, required, strict=True) if a != b]
            if missing:
                fields.append("classes")
            if own_anchors.isdisjoint(anchors):
                fields.append("anchors")
            if abs(mean - expected) > spread:
                fields.append("mean")
            reasons[left, right] = fields
    return len(reasons)


def _produced(contract: Contract) -> tuple[tuple[object, ...], set[str], float]:
    figures = next(iter(contract.statistical.features or ()))
    return (
        _fields(contract.structural.outputs[0], contract),
        {anchor.digest for anchor in contract.protocol.anchors},
        figures.mean,
    )


def _required(contract: Contract, data: Data) -> tuple[tuple[object, ...], set[str], float, float, str]:
    figures = next(iter(contract.statistical.features or ()))
    missing = {label.name for label in data.labels or ()} - {
        label.name for label in contract.data.labels or ()
    }
    text = f"classes {sorted(missing)} are missing" if missing else ""
    anchors = {anchor.digest for anchor in contract.protocol.anchors}
    return _fields(contract.structural.inputs[0], contract), anchors, figures.mean, figures.std, text


def _fields(port: Port, contract: Contract) -> tuple[object, ...]:
    return (
        *(getattr(port, field) for field in FIELDS),
        port.channels,
        port.measured,
        contract.protocol.norm,
    )
