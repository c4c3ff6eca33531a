"""Rules of a contract that hold between its values; those of single values stand at their fields."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from math import prod

from compatkit.contracts.channels import BYTES
from compatkit.contracts.contract import (
    LARGEST_SIDE,
    Anchor,
    Blueprint,
    Contract,
    Data,
    Label,
    Port,
    Probe,
)
from compatkit.errors import FormatError
from compatkit.foundation.codec import is_digest, structure, unstructure

LARGEST_PROBE = 2**28
"""Most values in a probe's input: 1 GiB."""
LONGEST = 1024
"""Most characters in a name."""
_JOINERS = "\u200c\u200d"
"""Invisible, but significant in the spelling of some scripts."""


def check_contract(contract: Contract, blueprint: Blueprint, what: str) -> None:
    """Check the values of a contract, as it was read, against each other.

    Args:
        contract: The contract.
        blueprint: Blueprint of the same component.
        what: Path of the manifest, for messages.

    Raises:
        FormatError: A value is out of range; the message gives the path, the expected and the actual value.
    """
    inside = f"{what}.contract"
    _blueprint(blueprint, f"{what}.blueprint")
    for side in ("inputs", "outputs"):
        images = side == "inputs" and blueprint.takes_images
        _ports(getattr(contract.structural, side), f"{inside}.structural.{side}", images)
    _data(contract.data, f"{inside}.data")
    _anchors(contract.protocol.anchors, f"{inside}.protocol.anchors")
    ports = contract.structural.outputs if blueprint.side == "extractor" else contract.structural.inputs
    _features(contract, ports, f"{inside}.statistical.features")
    if contract.statistical.probe is not None:
        _probe(contract.statistical.probe, len(contract.structural.inputs), f"{inside}.statistical.probe")


def check_made(contract: Contract, blueprint: Blueprint, what: str) -> None:
    """Check a contract that was made here as if it were read; see ``check_contract``.

    Args:
        contract: The contract.
        blueprint: Blueprint of the same component.
        what: What they belong to, for messages.

    Raises:
        FormatError: A value is out of range.
    """
    contract = structure(Contract, unstructure(contract), f"{what}.contract")
    check_contract(contract, structure(Blueprint, unstructure(blueprint), f"{what}.blueprint"), what)


def check_labels(labels: Sequence[Label], what: str) -> None:
    """Check class names: printable, and unique regardless of case and Unicode composition.

    Args:
        labels: Classes in the order of the outputs.
        what: Path of the list, for messages.

    Raises:
        FormatError: A name is invalid; the message gives its path.
    """
    seen: dict[str, int] = {}
    for index, label in enumerate(labels):
        for name in (label.name, *label.same_as):
            _name(name, f"{what}[{index}]")
        key = folded(label.name)
        if key in seen:
            raise FormatError(
                f"{what}[{index}]: the class {label.name!r:.100} duplicates number {seen[key]} "
                f"({labels[seen[key]].name!r:.100}); case and Unicode composition are ignored. Rename one of them."
            )
        seen[key] = index


def folded(name: str) -> str:
    """Return a name normalized for case and Unicode composition."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _expect(fits: bool, path: str, expected: str, value: object) -> None:
    if not fits:
        raise FormatError(f"{path}: expected {expected}, got {value!r:.100}.")


def _name(name: str, path: str) -> None:
    expected = name_expected(name)
    _expect(expected is None, path, str(expected), name)


def name_expected(name: str) -> str | None:
    """Return what a class name should be where this one is not; None of one that a contract can hold."""
    if not name.strip() or len(name) > LONGEST:
        return f"a name of 1 to {LONGEST} characters"
    if name.isascii() and name.isprintable():
        return None
    kinds = {unicodedata.category(letter) for letter in name if letter not in _JOINERS}
    if "Cs" in kinds:
        return "a name in UTF-8 (these bytes are none, or the locale, such as C, reads names as ASCII)"
    return "a name without control characters" if kinds & {"Cc", "Cf", "Zl", "Zp"} else None


def _blueprint(blueprint: Blueprint, path: str) -> None:
    crosses, width, entries = blueprint.cut_outputs, blueprint.width, blueprint.entries
    rule = "nothing but in one side of a cut that one tensor crosses"
    _expect(width is None or (blueprint.is_cut and crosses == 1), f"{path}.width", rule, width)
    _expect(len(dict(entries)) == len(entries), f"{path}.entries", "every layer once", entries)
    for index, (name, _) in enumerate(entries):
        where = f"{path}.entries[{index}]"
        _expect(blueprint.side == "head" and crosses == 1, where, "nothing but in a head of one input", name)
        _name(name, where)


def _ports(ports: Sequence[Port], path: str, images: bool) -> None:
    names = [folded(port.name) for port in ports]
    twice = next((port.name for port in ports if names.count(folded(port.name)) > 1), None)
    _expect(twice is None, path, "ports with different names", twice)
    for index, port in enumerate(ports):
        here = f"{path}[{index}]"
        _name(port.name, f"{here}.name")
        axes = {"NCHW": 4, "NHWC": 4, "NLC": 3, "NC": 2}.get(port.layout, len(port.shape))
        layout = f"{axes} axes for the layout {port.layout}"
        _expect(len(port.shape) == axes, f"{here}.shape", layout, len(port.shape))
        for key, sizes in port.measured.items():
            lengths = len(port.spatial_axes)
            _expect(len(sizes) == lengths, f"{here}.measured.{key}", f"{lengths} sizes from 0", sizes)
        fits = images or port.multiple_of == 1
        _expect(fits, f"{here}.multiple_of", "1, as no images are taken here", port.multiple_of)


def _data(data: Data, path: str) -> None:
    channels = 1 if data.channels == "L" else 3
    for field in ("mean", "std"):
        values = getattr(data, field)
        _expect(len(values) == channels, f"{path}.{field}", f"{channels} for {data.channels} images", values)
    side = max(data.size) / data.crop_pct
    _expect(side < LARGEST_SIDE + 1, f"{path}.crop_pct", f"images resized to {LARGEST_SIDE} pixels", side)
    _name(data.interpolation, f"{path}.interpolation")
    if data.labels is not None:
        check_labels(data.labels, f"{path}.labels")


def _anchors(anchors: Sequence[Anchor], path: str) -> None:
    seen: set[tuple[str, str, str | None]] = set()
    for index, anchor in enumerate(anchors):
        here = f"{path}[{index}]"
        known = (anchor.kind, anchor.digest, anchor.task)
        _expect(known not in seen, here, "each anchor once", anchor.digest)
        seen.add(known)
        if anchor.task is not None:
            _name(anchor.task, f"{here}.task")
        if anchor.classes is not None:
            check_labels(anchor.classes, f"{here}.classes")


def _features(contract: Contract, ports: Sequence[Port], path: str) -> None:
    features = contract.statistical.features
    if features is None:
        return
    _expect(
        len(features) == len(ports), path, f"figures for each of {len(ports)} feature ports", len(features)
    )
    for index, (statistics, port) in enumerate(zip(features, ports, strict=True)):
        here = f"{path}[{index}]"
        fits = statistics.mean >= 0 or port.range != "nonnegative"
        _expect(fits, f"{here}.mean", "a number from 0, as the port is nonnegative", statistics.mean)
        if statistics.per_channel is not None:
            _edge(statistics.per_channel, port, f"{here}.per_channel")


def _edge(edge: Mapping[str, object], port: Port, path: str) -> None:
    _expect(set(edge) == {"blob", "bytes"}, path, "exactly 'blob' and 'bytes'", dict(edge))
    blob, size = edge["blob"], edge["bytes"]
    _expect(is_digest(blob), f"{path}.blob", "'sha256:' and 64 lower-case hex digits", blob)
    wanted = BYTES * port.channels if isinstance(port.channels, int) else None
    _expect(type(size) is int and size == wanted, f"{path}.bytes", f"{BYTES} a channel: {wanted}", size)


def _probe(probe: Probe, inputs: int, path: str) -> None:
    shapes = len(probe.shapes)
    _expect(shapes == inputs, f"{path}.shapes", f"a shape for each of {inputs} inputs", shapes)
    for index, shape in enumerate(probe.shapes):
        fits = prod(shape) <= LARGEST_PROBE
        _expect(fits, f"{path}.shapes[{index}]", f"{LARGEST_PROBE} values at most", shape)
