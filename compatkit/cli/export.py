"""``compatkit export``: write one file that runs with compatkit but without a registry."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import clean, emit, next_step, rows, size
from compatkit.cli.roots import open_registry
from compatkit.cli.writable import check_outputs
from compatkit.foundation.codec import unstructure


class ExportOptions(Options):
    """Arguments and options of ``export``."""

    reference: str = argument(metavar="REF")
    file: Path = argument()
    names: str = option(
        "Tensor names: of the complete network, as its library loads it; of the parts, prefixed with extractor. and "
        "head.; auto: the former if possible.",
        choices=("auto", "whole", "parts"),
        default="auto",
    )
    format: str = option(
        "safetensors, or an exporter (see `compatkit plugins exporters`), such as onnx.",
        default="safetensors",
    )
    settings: tuple[str, ...] = option(
        "Setting of the exporter, such as opset_version=18.", "--option", metavar="KEY=VALUE"
    )


@command("export", ExportOptions)
def export_command(options: ExportOptions) -> int | None:
    """Write REF, a recombination or one part, to one FILE that needs no registry; an existing FILE is replaced.

    compatkit.load_exported(FILE) runs a safetensors file: its metadata describe network, preprocessing and classes.

    Examples:
        # one file that needs no registry
        compatkit export digits/mixed mixed.safetensors
        # what an alias points to, as ONNX
        compatkit export digits/mixed:prod mixed.onnx --format onnx
    """
    from compatkit.cli.inspect import network_call
    from compatkit.registry.remotes.address import parse_options

    check_outputs({"FILE": options.file})
    replaced = options.file.exists()
    from compatkit.adapters.builders import versioned_builders

    written = open_registry().export(
        options.reference,
        options.file,
        settings=parse_options(options.settings),
        **options.only("names", "format"),
    )
    network = written.description
    if options.json:
        sizes = {"file": options.file, "bytes": written.bytes, "replaced": replaced}
        return emit({**sizes, "exported": unstructure(network)})
    kind = network.kind.replace("_", " ")
    verb = "replaced" if replaced else "wrote"
    click.echo(f"{verb} {clean(str(options.file))} ({size(written.bytes)}): {kind} {network.reference}")
    if options.format != "safetensors":
        return None
    details = {"runs with": f"compatkit.load_exported({str(options.file)!r})"}
    if network.whole is not None and (call := network_call(network.whole)):
        details["loads into"] = call
    builders = {part.blueprint.network[0]: part.blueprint for part in network.parts if part.blueprint.is_cut}
    if needed := [
        blueprint.library for name, blueprint in builders.items() if name not in versioned_builders()
    ]:
        details["needs"] = ", ".join(needed)
    if network.kind == "recombination" and network.policy == "batch":
        details["takes"] = (
            "batches of images, normalized by their statistics; for single images recombine with data="
        )
    rows(details)
    next_step("inspect", options.file, registry=False)
