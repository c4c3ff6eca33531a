"""inspect: what is in a safetensors file of any size and from anywhere, read from its header alone."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import json_option
from compatkit.cli.output import clean, columns, emit, rows

if TYPE_CHECKING:
    from compatkit.registry.tensors.header import Entry, Header

FIRST, LAST = 30, 10
"""Tensors that are shown at both ends of a long list."""
LONGEST_NAME, LONGEST_TEXT = 60, 300
"""Characters shown of a tensor's name and of a text of the metadata."""


@click.command(
    "inspect",
    help="Show what the safetensors file FILE holds; only its header is read, and strictly checked.",
)
@click.argument("file")
@json_option
def inspect_command(file: str, machine: bool) -> None:
    """Show the tensors of a file; exit code 3 and the reason where it is no safe safetensors file."""
    from compatkit.registry.tensors.header import read_header

    path = Path(file).expanduser()
    header = read_header(path)
    if machine:
        emit(_facts(file, header))
        return
    click.echo(click.style(clean(file), bold=True))
    rows(_totals(header))
    if header.tensors:
        click.echo("")
        columns([("name", "dtype", "shape", "bytes", "offset"), *map(_cells, _ends(header))], right=(3, 4))
    if len(header.tensors) > FIRST + LAST:
        click.echo(f"{len(header.tensors):,} tensors, {FIRST} + {LAST} shown; --json lists all")
    if header.metadata:
        click.echo(f"\nmetadata ({len(header.metadata)})")
        shown = list(header.metadata.items())[:FIRST]
        rows({_short(key, LONGEST_NAME): _short(text, LONGEST_TEXT) for key, text in shown})


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
                "name": one.name,
                "dtype": one.dtype,
                "shape": list(one.shape),
                "bytes": one.stop - one.start,
                "offset": one.start,
            }
            for one in header.tensors
        ],
    }


def _by_dtype(header: Header) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for one in header.tensors:
        sums = found.setdefault(one.dtype, {"tensors": 0, "elements": 0, "bytes": 0})
        sums["tensors"] += 1
        sums["elements"] += _elements(one)
        sums["bytes"] += one.stop - one.start
    return dict(sorted(found.items(), key=lambda item: (-item[1]["bytes"], item[0])))


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


def _ends(header: Header) -> list[Entry | None]:
    """Return the tensors to show; None stands for those that are left out."""
    entries = header.tensors
    if len(entries) <= FIRST + LAST:
        return list(entries)
    return [*entries[:FIRST], None, *entries[-LAST:]]


def _cells(one: Entry | None) -> tuple[str, ...]:
    if one is None:
        return "...", "", "", "", ""
    shape = " x ".join(map(str, one.shape)) or "scalar"
    return _short(one.name, LONGEST_NAME), one.dtype, shape, f"{one.stop - one.start:,}", f"{one.start:,}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _elements(one: Entry) -> int:
    return prod(one.shape)
