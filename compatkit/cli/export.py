"""``compatkit export``: write one file that runs with compatkit but without a registry."""

from __future__ import annotations

import click

from compatkit.cli.inspect import network_call
from compatkit.cli.options import Asked, PathType, command
from compatkit.cli.output import clean, emit, next_step, rows, size
from compatkit.cli.roots import check_outputs, registry


class ExportAsked(Asked):
    """Arguments and options of ``export``."""

    reference: str
    file: str
    names: str


@command(
    "export",
    ExportAsked,
    help="Write REF, a recombination or one part, to the safetensors file FILE: all tensors, and metadata to rebuild, "
    "feed and read the network. compatkit.load_exported(FILE) runs it without a registry.",
)
@click.argument("reference", metavar="REF")
@click.argument("file", type=PathType())
@click.option(
    "--names",
    type=click.Choice(("auto", "whole", "parts")),
    default="auto",
    show_default=True,
    help="Tensor names: those of the one network that both halves make up, for timm.create_model or torchvision; those "
    "of the parts, prefixed with extractor. and head.; or the former if possible.",
)
def export_command(context: click.Context, asked: ExportAsked) -> None:
    """Export a component; an existing FILE is replaced."""
    check_outputs({"FILE": asked.file})
    written = registry(context).export(asked.reference, asked.file, names=asked.names)
    found = written.description
    if asked.machine:
        from compatkit.foundation.codec import unstructure

        emit({"file": asked.file, "bytes": written.bytes, "exported": unstructure(found)})
        return
    click.echo(
        f"wrote {clean(asked.file)} ({size(written.bytes)}): {found.kind.replace('_', ' ')} {found.reference}"
    )
    facts = {"runs with": f"compatkit.load_exported({asked.file!r})"}
    if found.whole is not None:
        facts["loads into"] = network_call(found.whole)
    if found.kind == "recombination" and found.policy == "batch":
        facts["takes"] = (
            "batches of images, whose statistics normalize them; for single images recombine with images="
        )
    rows(facts)
    next_step("compatkit", "inspect", asked.file)
