"""``compatkit export``: write one file that runs with compatkit but without a registry."""

from __future__ import annotations

import click

from compatkit.cli.inspect import network_call
from compatkit.cli.options import Options, PathType, argument, command, option
from compatkit.cli.output import clean, emit, next_step, rows, size
from compatkit.cli.roots import check_outputs, open_registry


class ExportOptions(Options):
    """Arguments and options of ``export``."""

    reference: str = argument(metavar="REF")
    file: str = argument(type=PathType())
    names: str = option(
        "Tensor names: those of the one network that both halves make up, for timm.create_model or torchvision; those "
        "of the parts, prefixed with extractor. and head.; or the former if possible.",
        choices=("auto", "whole", "parts"),
        default="auto",
    )
    format: str = option(
        "safetensors, or the name of an exporter of `compatkit plugins exporters`, such as onnx.",
        default="safetensors",
    )
    settings: tuple[str, ...] = option(
        "Setting of the exporter, such as opset_version=18.", "--option", metavar="KEY=VALUE"
    )


@command(
    "export",
    ExportOptions,
    help="Write REF, a recombination or one part, to FILE: all tensors, and metadata to rebuild, feed and read the "
    "network. compatkit.load_exported(FILE) runs a safetensors file without a registry.",
)
def export_command(context: click.Context, options: ExportOptions) -> None:
    """Export a component; an existing FILE is replaced."""
    from compatkit.registry.remotes.address import options_of

    check_outputs({"FILE": options.file})
    written = open_registry(context).export(
        options.reference,
        options.file,
        names=options.names,
        format=options.format,
        settings=options_of(options.settings),
    )
    network = written.description
    if options.json:
        from compatkit.foundation.codec import unstructure

        emit({"file": options.file, "bytes": written.bytes, "exported": unstructure(network)})
        return
    kind = network.kind.replace("_", " ")
    click.echo(f"wrote {clean(options.file)} ({size(written.bytes)}): {kind} {network.reference}")
    if options.format != "safetensors":
        return
    facts = {"runs with": f"compatkit.load_exported({options.file!r})"}
    if network.whole is not None:
        facts["loads into"] = network_call(network.whole)
    if network.kind == "recombination" and network.policy == "batch":
        facts["takes"] = (
            "batches of images, whose statistics normalize them; for single images recombine with data="
        )
    rows(facts)
    next_step("compatkit", "inspect", options.file)
