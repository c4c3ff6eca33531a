"""Limits on the values of a contract; types have been checked already."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from math import prod

from compatkit.contracts.channels import BYTES
from compatkit.contracts.contract import (
    Anchor,
    Blueprint,
    Contract,
    Data,
    Dimension,
    Label,
    Port,
    Probe,
    Scaled,
)
from compatkit.errors import FormatError
from compatkit.foundation.codec import is_digest

LARGEST = 2**40
"""Largest dimension: no tensor is longer, and no reader's integers overflow."""
LARGEST_SIDE = 2**12
"""Largest side of an image in pixels; larger ones do not fit in memory as a set."""
LARGEST_WIDTH = 2**16
"""Most channels of a 1x1 convolution that a blueprint requests: it is allocated before any comparison."""
LARGEST_PROBE = 2**28
"""Most values in a probe's input: 1 GiB."""
MOST_AXES, MOST_PORTS, MOST_NAMES, MOST_LABELS = 32, 256, 1024, 200_000
LONGEST = 1024
"""Most characters in a name."""
MOST_NUMBERS = 1024
"""Most numbers in a probe's sketch."""

DTYPES = frozenset(
    f"{kind}{bits}"
    for kind, widths in {
        "int": (8, 16, 32, 64),
        "uint": (8, 16, 32, 64),
        "float": (16, 32, 64),
        "bfloat": (16,),
        "complex": (64, 128),
    }.items()
    for bits in widths
) | {"bool"}

_SYMBOL = re.compile(r"N|[HWL][0-9]{0,3}")
_SIZE = re.compile(r"[1-9][0-9]{0,5}x[1-9][0-9]{0,5}")
_TENSORS = re.compile(r"tensors:sha256:[0-9a-f]{64}")
_VALUE = re.compile(r"value:[a-z0-9]+:[0-9a-f]{1,128}")
_JOINERS = "\u200c\u200d"
"""Invisible, but significant in the spelling of some scripts."""


def check_contract(contract: Contract, blueprint: Blueprint, what: str) -> None:
    """Check the values of a contract beyond their types.

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
    frozen = contract.protocol.frozen_stages
    _expect(0 <= frozen <= LARGEST, f"{inside}.protocol.frozen_stages", "a count from 0", frozen)
    ports = contract.structural.outputs if blueprint.side == "extractor" else contract.structural.inputs
    _features(contract, ports, f"{inside}.statistical.features")
    if contract.statistical.probe is not None:
        _probe(contract.statistical.probe, len(contract.structural.inputs), f"{inside}.statistical.probe")


def check_labels(labels: Sequence[Label], what: str) -> None:
    """Check class names: printable, and unique regardless of case and Unicode composition.

    Args:
        labels: Classes in the order of the outputs.
        what: Path of the list, for messages.

    Raises:
        FormatError: A name is invalid; the message gives its path.
    """
    _expect(len(labels) <= MOST_LABELS, what, f"at most {MOST_LABELS} labels", len(labels))
    seen: dict[str, int] = {}
    for index, label in enumerate(labels):
        _expect(
            len(label.same_as) < MOST_NAMES,
            f"{what}[{index}].same_as",
            f"below {MOST_NAMES} names",
            len(label.same_as),
        )
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
    for side in blueprint.traced_size:
        _expect(1 <= side <= LARGEST_SIDE, f"{path}.traced_size", f"1 to {LARGEST_SIDE} pixels a side", side)
    crosses = blueprint.cut_outputs
    _expect(1 <= crosses <= MOST_PORTS, f"{path}.cut_outputs", f"1 to {MOST_PORTS} tensors", crosses)
    width = blueprint.width
    if width is not None:
        rule = "nothing but in one side of a cut that one tensor crosses"
        _expect(blueprint.is_cut and crosses == 1, f"{path}.width", rule, width)
        _expect(1 <= width <= LARGEST_WIDTH, f"{path}.width", f"1 to {LARGEST_WIDTH} channels", width)
    entries = blueprint.entries
    _expect(len(dict(entries)) == len(entries), f"{path}.entries", "every layer once", entries)
    for index, (name, channels) in enumerate(entries):
        where = f"{path}.entries[{index}]"
        _expect(blueprint.side == "head" and crosses == 1, where, "nothing but in a head of one input", name)
        _name(name, where)
        _expect(1 <= channels <= LARGEST_WIDTH, where, f"1 to {LARGEST_WIDTH} channels", channels)


def _ports(ports: Sequence[Port], path: str, images: bool) -> None:
    _expect(1 <= len(ports) <= MOST_PORTS, path, f"1 to {MOST_PORTS} ports", len(ports))
    names = [folded(port.name) for port in ports]
    twice = next((port.name for port in ports if names.count(folded(port.name)) > 1), None)
    _expect(twice is None, path, "ports with different names", twice)
    for index, port in enumerate(ports):
        _port(port, f"{path}[{index}]")
        fits = images or port.multiple_of == 1
        _expect(fits, f"{path}[{index}].multiple_of", "1, as no images are taken here", port.multiple_of)


def _port(port: Port, path: str) -> None:
    _name(port.name, f"{path}.name")
    _expect(1 <= len(port.shape) <= MOST_AXES, f"{path}.shape", f"1 to {MOST_AXES} axes", len(port.shape))
    axes = {"NCHW": 4, "NHWC": 4, "NLC": 3, "NC": 2}.get(port.layout, len(port.shape))
    _expect(
        len(port.shape) == axes, f"{path}.shape", f"{axes} axes for the layout {port.layout}", len(port.shape)
    )
    for axis, size in enumerate(port.shape):
        _dimension(size, f"{path}.shape[{axis}]")
    _expect(port.dtype in DTYPES, f"{path}.dtype", "the name of a dtype, such as 'float32'", port.dtype)
    _expect(0 <= port.prefix_tokens <= LARGEST, f"{path}.prefix_tokens", "a count from 0", port.prefix_tokens)
    _expect(1 <= port.multiple_of <= LARGEST_SIDE, f"{path}.multiple_of", "a step from 1", port.multiple_of)
    for key, sizes in port.measured.items():
        _expect(bool(_SIZE.fullmatch(key)), f"{path}.measured", "image sizes such as '32x32'", key)
        fits = len(sizes) == len(port.spatial_axes) and all(
            0 <= size_of_axis <= LARGEST for size_of_axis in sizes
        )
        _expect(fits, f"{path}.measured.{key}", f"{len(port.spatial_axes)} sizes from 0", sizes)


def _dimension(size: Dimension, path: str) -> None:
    if isinstance(size, int):
        _expect(1 <= size <= LARGEST, path, f"a size from 1 to {LARGEST}", size)
    elif isinstance(size, str):
        _expect(
            bool(_SYMBOL.fullmatch(size)), path, "N, H, W or L, the last three with or without a number", size
        )
    else:
        _scaled(size, path)


def _scaled(size: Scaled, path: str) -> None:
    _expect(size.of in ("N", "H", "W"), f"{path}.of", "N, H or W", size.of)
    for field in ("floordiv", "times"):
        value = getattr(size, field)
        _expect(1 <= value <= LARGEST, f"{path}.{field}", f"a number from 1 to {LARGEST}", value)
    for field in ("add", "plus"):
        value = getattr(size, field)
        _expect(abs(value) <= LARGEST, f"{path}.{field}", f"a number up to {LARGEST}", value)


def _data(data: Data, path: str) -> None:
    for side in data.size:
        _expect(1 <= side <= LARGEST_SIDE, f"{path}.size", f"1 to {LARGEST_SIDE} pixels a side", side)
    channels = 1 if data.channels == "L" else 3
    for field in ("mean", "std"):
        values = getattr(data, field)
        _expect(len(values) == channels, f"{path}.{field}", f"{channels} for {data.channels} images", values)
    _expect(all(deviation > 0 for deviation in data.std), f"{path}.std", "numbers above 0", data.std)
    _expect(0 < data.crop_pct <= 4, f"{path}.crop_pct", "a share above 0", data.crop_pct)
    resized = max(data.size) / data.crop_pct
    _expect(
        resized < LARGEST_SIDE + 1, f"{path}.crop_pct", f"images resized to {LARGEST_SIDE} pixels", resized
    )
    _name(data.interpolation, f"{path}.interpolation")
    if data.labels is not None:
        check_labels(data.labels, f"{path}.labels")


def _anchors(anchors: Sequence[Anchor], path: str) -> None:
    seen: set[tuple[str, str, str | None]] = set()
    for index, anchor in enumerate(anchors):
        here = f"{path}[{index}]"
        digest = anchor.digest
        _expect(
            bool(_TENSORS.fullmatch(digest)), f"{here}.digest", "'tensors:sha256:' and 64 hex digits", digest
        )
        _expect((anchor.kind, digest, anchor.task) not in seen, here, "each anchor once", digest)
        seen.add((anchor.kind, digest, anchor.task))
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
        _expect(statistics.std >= 0, f"{here}.std", "a number from 0", statistics.std)
        _expect(1 <= statistics.samples <= LARGEST, f"{here}.samples", "a count from 1", statistics.samples)
        if statistics.per_channel is not None:
            _edge(statistics.per_channel, port, f"{here}.per_channel")


def _edge(edge: Mapping[str, object], port: Port, path: str) -> None:
    _expect(set(edge) == {"blob", "bytes"}, path, "exactly 'blob' and 'bytes'", dict(edge))
    blob, size = edge["blob"], edge["bytes"]
    _expect(is_digest(blob), f"{path}.blob", "'sha256:' and 64 lower-case hex digits", blob)
    wanted = BYTES * port.channels if isinstance(port.channels, int) else None
    _expect(type(size) is int and size == wanted, f"{path}.bytes", f"{BYTES} a channel: {wanted}", size)


def _probe(probe: Probe, inputs: int, path: str) -> None:
    _expect(
        bool(_VALUE.fullmatch(probe.digest)), f"{path}.digest", "'value:sha256:' and hex digits", probe.digest
    )
    _expect(
        len(probe.shapes) == inputs,
        f"{path}.shapes",
        f"a shape for each of {inputs} inputs",
        len(probe.shapes),
    )
    for index, shape in enumerate(probe.shapes):
        fits = 1 <= len(shape) <= MOST_AXES and all(1 <= length <= LARGEST for length in shape)
        fits = fits and prod(shape) <= LARGEST_PROBE
        _expect(fits, f"{path}.shapes[{index}]", f"sizes from 1, {LARGEST_PROBE} values at most", shape)
    numbers = len(probe.sketch)
    _expect(1 <= numbers <= MOST_NUMBERS, f"{path}.sketch", f"1 to {MOST_NUMBERS} numbers", numbers)
    tolerance = probe.relative_tolerance
    _expect(0 < tolerance <= 0.1, f"{path}.relative_tolerance", "a number above 0, up to 0.1", tolerance)
