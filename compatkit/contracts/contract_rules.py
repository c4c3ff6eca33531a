"""Check the values of a contract against each other; single values are checked by the types of their fields."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from math import prod

from compatkit.contracts.contract import (
    MAX_SIDE,
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
from compatkit.foundation.spelling import casefolded

MAX_PROBE_VALUES = 2**28
"""Maximal number of values in a probe's input: 1 GiB as float32."""
MAX_NAME_LENGTH = 1024
_JOINERS = "\u200c\u200d"
"""Zero-width joiners: invisible, but significant in some scripts."""


def check_contract(contract: Contract, blueprint: Blueprint, what: str) -> None:
    """Check the values of a contract that was read, against each other.

    Args:
        contract: Contract of a component.
        blueprint: Blueprint of the same component.
        what: Path of the manifest, for messages.

    Raises:
        FormatError: A value is out of range; the message gives the path, the expected and the actual value.
    """
    path = f"{what}.contract"
    _blueprint(blueprint, f"{what}.blueprint")
    for side in ("inputs", "outputs"):
        images = side == "inputs" and blueprint.takes_images
        _ports(getattr(contract.structural, side), f"{path}.structural.{side}", images)
    _data(contract.data, f"{path}.data")
    _anchors(contract.protocol.anchors, f"{path}.protocol.anchors")
    ports = contract.structural.outputs if blueprint.side == "extractor" else contract.structural.inputs
    _features(contract, ports, f"{path}.statistical.features")
    if contract.statistical.probe is not None:
        _probe(contract.statistical.probe, len(contract.structural.inputs), f"{path}.statistical.probe")


def check_new_contract(contract: Contract, blueprint: Blueprint, what: str) -> None:
    """Check a newly built contract like one that was read: types, ranges and ``check_contract``.

    Args:
        contract: Contract of a component.
        blueprint: Blueprint of the same component.
        what: Name of the component, for messages.

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
        key = casefolded(label.name)
        if key in seen:
            raise FormatError(
                f"{what}[{index}]: the class {label.name!r:.100} duplicates number {seen[key]} "
                f"({labels[seen[key]].name!r:.100}); case and Unicode composition are ignored. Rename one of them."
            )
        seen[key] = index


def _expect(valid: bool, path: str, expected: str, value: object) -> None:
    if not valid:
        raise FormatError(f"{path}: expected {expected}, got {value!r:.100}.")


def _name(name: str, path: str) -> None:
    expected = violated_name_rule(name)
    _expect(expected is None, path, str(expected), name)


def violated_name_rule(name: str) -> str | None:
    """Return the rule that a class name violates, as text for messages; None for a valid name.

    Args:
        name: Name of a class.
    """
    if not name.strip() or len(name) > MAX_NAME_LENGTH:
        return f"a name of 1 to {MAX_NAME_LENGTH} characters"
    if name.isascii() and name.isprintable():
        return None
    categories = {unicodedata.category(character) for character in name if character not in _JOINERS}
    if "Cs" in categories:
        return "a name in UTF-8 (these bytes are none, or the locale, such as C, reads names as ASCII)"
    return "a name without control characters" if categories & {"Cc", "Cf", "Zl", "Zp"} else None


def _blueprint(blueprint: Blueprint, path: str) -> None:
    tensors, width, entries = blueprint.cut_outputs, blueprint.width, blueprint.entries
    rule = "no width except for an extractor or head at a cut of one tensor"
    _expect(width is None or (blueprint.is_cut and tensors == 1), f"{path}.width", rule, width)
    _expect(len(dict(entries)) == len(entries), f"{path}.entries", "every layer once", entries)
    for index, (name, _) in enumerate(entries):
        entry = f"{path}.entries[{index}]"
        _expect(
            blueprint.side == "head" and tensors == 1, entry, "no entries except in a head of one input", name
        )
        _name(name, entry)


def _ports(ports: Sequence[Port], path: str, images: bool) -> None:
    names = [casefolded(port.name) for port in ports]
    duplicate = next((port.name for port in ports if names.count(casefolded(port.name)) > 1), None)
    _expect(duplicate is None, path, "ports with different names", duplicate)
    for index, port in enumerate(ports):
        port_path = f"{path}[{index}]"
        _name(port.name, f"{port_path}.name")
        axes = {"NCHW": 4, "NHWC": 4, "NLC": 3, "NC": 2}.get(port.layout, len(port.shape))
        layout = f"{axes} axes for the layout {port.layout}"
        _expect(len(port.shape) == axes, f"{port_path}.shape", layout, len(port.shape))
        for key, sizes in port.measured.items():
            lengths = len(port.spatial_axes)
            _expect(len(sizes) == lengths, f"{port_path}.measured.{key}", f"{lengths} sizes from 0", sizes)
        valid = images or port.multiple_of == 1
        _expect(valid, f"{port_path}.multiple_of", "1 for a port that takes no images", port.multiple_of)


def _data(data: Data, path: str) -> None:
    channels = 1 if data.channels == "L" else 3
    for field in ("mean", "std"):
        values = getattr(data, field)
        _expect(len(values) == channels, f"{path}.{field}", f"{channels} for {data.channels} images", values)
    side = max(data.size) / data.crop_pct
    _expect(side < MAX_SIDE + 1, f"{path}.crop_pct", f"images resized to {MAX_SIDE} pixels", side)
    _name(data.interpolation, f"{path}.interpolation")
    if data.labels is not None:
        check_labels(data.labels, f"{path}.labels")


def _anchors(anchors: Sequence[Anchor], path: str) -> None:
    seen: set[tuple[str, str, str | None]] = set()
    for index, anchor in enumerate(anchors):
        anchor_path = f"{path}[{index}]"
        key = (anchor.kind, anchor.digest, anchor.task)
        _expect(key not in seen, anchor_path, "each anchor once", anchor.digest)
        seen.add(key)
        if anchor.task is not None:
            _name(anchor.task, f"{anchor_path}.task")
        if anchor.classes is not None:
            check_labels(anchor.classes, f"{anchor_path}.classes")


def _features(contract: Contract, ports: Sequence[Port], path: str) -> None:
    features = contract.statistical.features
    if features is None:
        return
    _expect(
        len(features) == len(ports), path, f"statistics of each of {len(ports)} feature ports", len(features)
    )
    for index, (statistics, port) in enumerate(zip(features, ports, strict=True)):
        port_path = f"{path}[{index}]"
        valid = statistics.mean >= 0 or port.range != "nonnegative"
        _expect(valid, f"{port_path}.mean", "a number from 0, as the port is nonnegative", statistics.mean)
        if statistics.per_channel is not None:
            _edge(statistics.per_channel, port, f"{port_path}.per_channel")


def _edge(edge: Mapping[str, object], port: Port, path: str) -> None:
    from compatkit.contracts.channels import BYTES_PER_CHANNEL

    _expect(set(edge) == {"blob", "bytes"}, path, "exactly 'blob' and 'bytes'", dict(edge))
    blob, size = edge["blob"], edge["bytes"]
    _expect(is_digest(blob), f"{path}.blob", "'sha256:' and 64 lower-case hex digits", blob)
    wanted = BYTES_PER_CHANNEL * port.channels if isinstance(port.channels, int) else None
    _expect(
        type(size) is int and size == wanted,
        f"{path}.bytes",
        f"{BYTES_PER_CHANNEL} a channel: {wanted}",
        size,
    )


def _probe(probe: Probe, inputs: int, path: str) -> None:
    shapes = len(probe.shapes)
    _expect(shapes == inputs, f"{path}.shapes", f"a shape for each of {inputs} inputs", shapes)
    for index, shape in enumerate(probe.shapes):
        valid = prod(shape) <= MAX_PROBE_VALUES
        _expect(valid, f"{path}.shapes[{index}]", f"at most {MAX_PROBE_VALUES} values", shape)
