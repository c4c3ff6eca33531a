"""``compatkit inspect``: show the contents of any safetensors file from its header alone."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import clean, columns, emit, rows
from compatkit.errors import CompatkitError, FormatError
from compatkit.foundation.codec import unstructure

if TYPE_CHECKING:
    from compatkit.components.exports.document import Description
    from compatkit.contracts.contract import Blueprint
    from compatkit.registry.weights.header import Header

SHOWN = 40
"""Most tensors, and texts of the metadata, that are printed."""
LONGEST_NAME, LONGEST_TEXT = 60, 300
"""Most characters shown of a tensor's name, and of a metadata text."""


class InspectOptions(Options):
    """Arguments and options of ``inspect``."""

    file: Path = argument()


@command("inspect", InspectOptions, registry=False)
def inspect_command(options: InspectOptions) -> int | None:
    """Show what the safetensors file FILE contains, and for an export its network.

    Only the header is read and strictly checked.

    Examples:
        # tensors, sizes and metadata of a file
        compatkit inspect mixed.safetensors
    """
    from compatkit.components.exports.document import KEY, description_of
    from compatkit.registry.weights.header import read_header

    header = read_header(options.file.expanduser())
    exported: dict[str, Any] = {}
    described: dict[str, str] = {}
    if KEY in header.metadata:
        try:
            description = description_of(header)
            exported, described = {"exported": unstructure(description)}, _texts(description)
        except FormatError as error:
            described = {"exported": f"not readable as an export: {error}"}
            exported = {"exported": None, "problem": described["exported"]}
    details = _header_json(header)
    if options.json:
        return emit({"file": options.file, **details} | exported)
    click.echo(click.style(clean(str(options.file)), bold=True))
    sizes = {
        "size": f"{header.size:,} bytes, {header.start:,} of them header",
        "tensors": f"{len(header.tensors):,} with {details['elements']:,} elements",
    }
    for dtype, sums in details["dtypes"].items():
        sizes[dtype] = (
            f"{sums['bytes']:,} bytes, {sums['elements']:,} elements in {sums['tensors']:,} tensors"
        )
    rows(sizes)
    if described:
        click.echo("")
        rows(described)
    if header.tensors:
        click.echo("")
        lines = [
            (
                _short(tensor["name"], LONGEST_NAME),
                tensor["dtype"],
                " x ".join(map(str, tensor["shape"])) or "scalar",
                f"{tensor['bytes']:,}",
                f"{tensor['offset']:,}",
            )
            for tensor in details["tensors"][:SHOWN]
        ]
        columns([("name", "dtype", "shape", "bytes", "offset"), *lines], right=(3, 4))
    if len(header.tensors) > SHOWN:
        click.echo(f"{len(header.tensors):,} tensors, {SHOWN} shown; --json lists all")
    rest = {key: text for key, text in header.metadata.items() if not exported or key != KEY}
    if rest:
        click.echo(f"\nmetadata ({len(rest)})")
        shown = list(rest.items())[:SHOWN]
        rows({_short(key, LONGEST_NAME): _short(text, LONGEST_TEXT) or " " for key, text in shown})


def _texts(description: Description) -> dict[str, str]:
    """Return the description as labeled texts."""
    from compatkit.reports.contracts import port_text, short_digest

    contract, whole = description.contract, description.whole
    data = contract.data
    return {
        "exported": description.kind.replace("_", " "),
        "from": " ".join(filter(None, (description.reference, short_digest(description.component or "")))),
        "title": description.about.title,
        "parts": "; ".join(_part(part.blueprint) for part in description.parts),
        "takes": "; ".join(f"{tensor.name}: {port_text(tensor)}" for tensor in contract.structural.inputs),
        "gives": "; ".join(f"{tensor.name}: {port_text(tensor)}" for tensor in contract.structural.outputs),
        "images": f"{data.size[0]} x {data.size[1]} {data.channels}",
        "bn_policy": description.policy if contract.protocol.norm == "batch" else "none needed",
        "classes": ", ".join(label.name for label in (data.labels or ())[:SHOWN]),
        "loads into": "" if whole is None else network_call(whole),
    }


def _part(blueprint: Blueprint) -> str:
    from compatkit.contracts.stitch import describe

    if blueprint.side == "adapter":
        return describe(blueprint)
    return f"{blueprint.model} {'up to' if blueprint.side == 'extractor' else 'after'} {blueprint.cut}"


def network_call(whole: Blueprint) -> str:
    """Return the call that builds the network with these tensor names; empty if none is known here."""
    from compatkit.adapters.builders import BUILDERS

    builder, model = whole.network
    with suppress(CompatkitError):  # the builder is not installed here
        return BUILDERS[builder].expression(model, whole.kwargs) or ""
    return ""


def _header_json(header: Header) -> dict[str, Any]:
    """Return sizes, metadata and tensors of a file, and sums by type."""
    tensors = [
        {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "bytes": tensor.stop - tensor.start,
            "offset": tensor.start,
        }
        for tensor in header.tensors
    ]
    totals: dict[str, dict[str, int]] = {}
    for tensor in header.tensors:
        sums = totals.setdefault(tensor.dtype, {"tensors": 0, "elements": 0, "bytes": 0})
        sums["tensors"] += 1
        sums["elements"] += prod(tensor.shape)
        sums["bytes"] += tensor.stop - tensor.start
    return {
        "bytes": header.size,
        "header_bytes": header.start,
        "count": len(tensors),
        "elements": sum(sums["elements"] for sums in totals.values()),
        "dtypes": dict(sorted(totals.items(), key=lambda item: (-item[1]["bytes"], item[0]))),
        "metadata": dict(header.metadata),
        "tensors": tensors,
    }


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
