"""``compatkit inspect``: show the contents of any safetensors file from its header alone."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Options, PathType, argument, command
from compatkit.cli.output import clean, columns, emit, rows
from compatkit.components.exports.document import KEY
from compatkit.contracts.own_networks import OWN
from compatkit.errors import FormatError

if TYPE_CHECKING:
    from compatkit.components.exports.document import Description
    from compatkit.contracts.contract import Blueprint
    from compatkit.registry.weights.header import Header, TensorEntry

FIRST, LAST = 30, 10
"""Tensors shown at both ends of a long list."""
LONGEST_NAME, LONGEST_TEXT = 60, 300
"""Most characters shown of a tensor's name, and of a metadata text."""


class InspectOptions(Options):
    """Arguments and options of ``inspect``."""

    file: str = argument(type=PathType())


@command(
    "inspect",
    InspectOptions,
    help="Show what the safetensors file FILE contains, and for an export its network; only the header is read and "
    "strictly checked.",
    registry=False,
)
def inspect_command(context: click.Context, options: InspectOptions) -> None:
    """Show the tensors of a file; exit code 3 with the reason if it is not a safe safetensors file."""
    from compatkit.registry.weights.header import read_header

    path = Path(options.file).expanduser()
    header = read_header(path)
    described = _description(header)
    if options.json:
        emit(_facts(options.file, header) | _exported(described))
        return
    click.echo(click.style(clean(options.file), bold=True))
    rows(_totals(header))
    if described is not None:
        click.echo("")
        rows({"exported": described} if isinstance(described, str) else _texts(described))
    if header.tensors:
        click.echo("")
        columns([("name", "dtype", "shape", "bytes", "offset"), *map(_cells, _ends(header))], right=(3, 4))
    if len(header.tensors) > FIRST + LAST:
        click.echo(f"{len(header.tensors):,} tensors, {FIRST} + {LAST} shown; --json lists all")
    rest = {key: text for key, text in header.metadata.items() if described is None or key != KEY}
    if rest:
        click.echo(f"\nmetadata ({len(rest)})")
        shown = list(rest.items())[:FIRST]
        rows({_short(key, LONGEST_NAME): _short(text, LONGEST_TEXT) for key, text in shown})


def _description(header: Header) -> Description | str | None:
    """Return an export's description, or why it cannot be read; None if there is none."""
    if KEY not in header.metadata:
        return None
    from compatkit.components.exports.document import description_of

    try:
        return description_of(header)
    except FormatError as error:
        return f"not readable as an export: {error}"


def _exported(description: Description | str | None) -> dict[str, Any]:
    """Return the description as JSON values if there is one."""
    if description is None:
        return {}
    if isinstance(description, str):
        return {"exported": None, "problem": description}
    from compatkit.foundation.codec import unstructure

    return {"exported": unstructure(description)}


def _texts(description: Description) -> dict[str, str]:
    """Return the description as labeled texts."""
    from compatkit.reports.contracts import port, short

    contract, whole = description.contract, description.whole
    data = contract.data
    facts = {
        "exported": description.kind.replace("_", " "),
        "from": " ".join(filter(None, (description.reference, short(description.component or "")))),
        "title": description.about.title,
        "parts": "; ".join(_part(part.blueprint) for part in description.parts),
        "takes": "; ".join(f"{tensor.name}: {port(tensor)}" for tensor in contract.structural.inputs),
        "gives": "; ".join(f"{tensor.name}: {port(tensor)}" for tensor in contract.structural.outputs),
        "images": f"{data.size[0]} x {data.size[1]} {data.channels}",
        "bn_policy": description.policy if contract.protocol.norm == "batch" else "none needed",
        "classes": ", ".join(label.name for label in (data.labels or ())[:FIRST]),
        "loads into": "" if whole is None else network_call(whole),
    }
    return {name: text for name, text in facts.items() if text}


def _part(blueprint: Blueprint) -> str:
    from compatkit.contracts.stitch import described

    if blueprint.side == "adapter":
        return described(blueprint)
    return f"{blueprint.model} {'up to' if blueprint.side == 'extractor' else 'after'} {blueprint.cut}"


def network_call(whole: Blueprint) -> str:
    """Return the call that builds the network with these tensor names."""
    arguments = "".join(f", {key}={value!r}" for key, value in whole.kwargs.items())
    builder, _ = whole.network
    if builder == OWN:
        from compatkit.plugins import find

        factory = find("builders", OWN).factory
        return f"{factory.__module__}.{factory.__qualname__}({whole.model!r}{arguments})"
    if builder == "timm":
        return f"timm.create_model({whole.model!r}{arguments}){_registered(whole.model)}"
    if builder == "torchvision" and whole.kwargs.keys() <= {"num_classes"}:
        return f"torchvision.models.get_model({whole.model!r}{arguments})"
    return f"{whole.model}{arguments} of {builder}"


def _registered(model: str) -> str:
    """Return what must be imported for timm to know a network that is not its own; else empty."""
    from compatkit.adapters import timm

    module = timm.module_of(model)
    if module.startswith("timm."):
        return ""
    return f" after import {module or 'of the package that registers it'}"


def _facts(file: str, header: Header) -> dict[str, Any]:
    return {
        "file": file,
        "bytes": header.size,
        "header_bytes": header.start,
        "count": len(header.tensors),
        "elements": sum(map(_elements, header.tensors)),
        "dtypes": _by_dtype(header),
        "metadata": dict(header.metadata),
        "tensors": [
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "bytes": tensor.stop - tensor.start,
                "offset": tensor.start,
            }
            for tensor in header.tensors
        ],
    }


def _by_dtype(header: Header) -> dict[str, dict[str, int]]:
    totals: dict[str, dict[str, int]] = {}
    for tensor in header.tensors:
        sums = totals.setdefault(tensor.dtype, {"tensors": 0, "elements": 0, "bytes": 0})
        sums["tensors"] += 1
        sums["elements"] += _elements(tensor)
        sums["bytes"] += tensor.stop - tensor.start
    return dict(sorted(totals.items(), key=lambda item: (-item[1]["bytes"], item[0])))


def _totals(header: Header) -> dict[str, str]:
    facts = {
        "size": f"{header.size:,} bytes, {header.start:,} of them header",
        "tensors": f"{len(header.tensors):,} with {sum(map(_elements, header.tensors)):,} elements",
    }
    for dtype, sums in _by_dtype(header).items():
        facts[dtype] = (
            f"{sums['bytes']:,} bytes, {sums['elements']:,} elements in {sums['tensors']:,} tensors"
        )
    return facts


def _ends(header: Header) -> list[TensorEntry | None]:
    """Return the tensors to show; None marks omitted ones."""
    entries = header.tensors
    if len(entries) <= FIRST + LAST:
        return list(entries)
    return [*entries[:FIRST], None, *entries[-LAST:]]


def _cells(tensor: TensorEntry | None) -> tuple[str, ...]:
    if tensor is None:
        return "...", "", "", "", ""
    shape = " x ".join(map(str, tensor.shape)) or "scalar"
    return (
        _short(tensor.name, LONGEST_NAME),
        tensor.dtype,
        shape,
        f"{tensor.stop - tensor.start:,}",
        f"{tensor.start:,}",
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _elements(tensor: TensorEntry) -> int:
    return prod(tensor.shape)
