"""``compatkit similarity``: compare all layers of two networks, as figures, a heat map and a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.images import TestSetOptions
from compatkit.cli.metric import settings_of
from compatkit.cli.options import argument, command, device_option, option
from compatkit.cli.output import columns, emit, paragraph, progress
from compatkit.cli.roots import SignatureOptions, open_registry
from compatkit.cli.tables import TableOptions
from compatkit.errors import UsageError
from compatkit.reports.wording import two_digits
from compatkit.reports.writing import write

if TYPE_CHECKING:
    from compatkit.components.registry import Registry
    from compatkit.evaluation.assembly import Assembly
    from compatkit.evaluation.metrics import Table
    from compatkit.measuring.activations import Activations

PRINTED = 14
"""Layers of the other network in a printed table; ``--json`` and files have all."""


class SimilarityOptions(TestSetOptions, TableOptions, SignatureOptions):
    """Arguments and options of ``similarity``."""

    left: str = argument()
    right: str = argument()
    layers: tuple[str, ...] = option(
        "Layers to compare, by path in the network or glob; may be repeated.",
        "--layers",
        "--layer",
        required=True,
        metavar="GLOB",
    )
    other_layers: tuple[str, ...] = option(
        "Layers of RIGHT, if their names differ; may be repeated.", metavar="GLOB"
    )
    metrics: tuple[str, ...] = option(
        "Similarity metric (see `compatkit plugins`); may be repeated.",
        "--metric",
        default=("cka", "procrustes"),
        metavar="METRIC",
    )
    settings: tuple[str, ...] = option(
        "Setting of a metric, as JSON or text; may be repeated.",
        "--set",
        metavar="METRIC.NAME=VALUE",
    )
    flatten: str = option(
        "A row of activations is: all values of an image; its channels, pooled; each position.",
        choices=("all", "pooled", "positions"),
        default="all",
    )
    controls: bool = option("Also compare with RIGHT's images shuffled, and with untrained networks.")
    png: Path | None = option("Write heat maps.", is_output=True)
    html: Path | None = option("Write one self-contained page.", is_output=True)
    images: int | None = option("Take N images, balanced over classes.", min=4, metavar="N")
    seed: int = option("Seed of all that is drawn.", min=0, default=0)
    device: str = device_option
    batch_size: int = option("Images per batch.", min=1, default=256)


@command("similarity", SimilarityOptions)
def similarity_command(options: SimilarityOptions) -> int | None:
    """Compare all layers of two networks on the same test images.

    LEFT and RIGHT are an extractor, a recombination, or parts joined by +: EXTRACTOR+HEAD, ENCODER+LATENT+DECODER.

    Examples:
        # draw the similarity of all stages of two networks
        compatkit similarity digits/mnist.extractor+digits/mnist.head
            digits/usps.extractor+digits/usps.head --layer 'layer*' --png cka.png
    """
    from compatkit.evaluation.metrics import make_metric
    from compatkit.measuring.activations import activations
    from compatkit.measuring.similarity import similarity, smaller
    from compatkit.reports.layer_maps import LayerMaps

    chosen = settings_of(options.settings, options.metrics)
    built = [make_metric(name, **chosen[name]) for name in options.metrics]
    registry = open_registry()
    pinned = [
        [str(registry.store.resolve(reference)) for reference in network.split("+")]
        for network in (options.left, options.right)
    ]
    data = options.data_of(registry, pinned[0][0])
    images = data.test if options.images is None else data.subset(test=options.images, seed=options.seed).test
    networks = [_network(registry, parts) for parts in pinned]
    wanted = [options.layers, options.other_layers or options.layers]

    def record(network: Assembly, layers: Sequence[str], what: str) -> Activations:
        with progress("similarity") as report:
            return activations(
                network,
                images,
                layers=layers,
                progress=lambda done, total: report(done, total, what),
                **options.only("flatten", "device", "batch_size"),
            )

    sides = [record(*side) for side in zip(networks, wanted, ("left", "right"), strict=True)]
    compare = partial(similarity, metrics=built, batch_size=options.batch_size)
    compared = {"": compare(*sides)}
    if other := [
        result for result in compared[""].values() if list(getattr(result, "axes", ())) != ["this", "other"]
    ]:
        name = other[0].name
        text = f"Expected metrics that compare all layers, such as cka, got {name!r}; `compatkit metric` measures it."
        raise UsageError(text, subject=name)
    if options.controls:
        compared["shuffled"] = compare(sides[0], sides[1].shuffled(options.seed))
        fresh = [
            record(_untrained(registry, parts, network, options.seed + number), layers, "untrained")
            for number, (parts, network, layers) in enumerate(zip(pinned, networks, wanted, strict=True))
        ]
        compared["untrained"] = compare(*fresh)
    shown: dict[str, Table] = {}
    for control, measurement in compared.items():
        tables: dict[str, Any] = dict(measurement)
        if {"cka", "procrustes"} <= tables.keys():
            tables = {"smaller": smaller(measurement.table("cka"), measurement.table("procrustes")), **tables}
        shown |= {f"{name}, {control}" if control else name: table for name, table in tables.items()}
    maps = LayerMaps(
        {title: table.values for title, table in shown.items()},
        tuple(sides[0]),
        tuple(sides[1]),
        *(_groups(network, side) for network, side in zip(networks, sides, strict=True)),
        networks=(options.left, options.right),
        notes={title: [cell.reason for cell in table.cells] for title, table in shown.items()},
        about={"data": images.name, "images": len(images)} | options.only("flatten", "seed"),
        across=len(shown) // len(compared),
    )
    if options.png is not None:
        write(options.png, maps.to_png())
    if options.html is not None:
        write(options.html, maps.to_html())
    options.write_tables(compared[""])
    if options.json:
        more: dict[str, Any] = {"smaller": shown["smaller"].to_json()} if "smaller" in shown else {}
        if options.controls:
            more["controls"] = {name: each.to_json()["results"] for name, each in compared.items() if name}
        return emit({"left": pinned[0], "right": pinned[1], **compared[""].to_json(), **more})
    paragraph(
        f"{options.left} (rows) and {options.right} on {images.name}, {len(images):,} images, {options.flatten}"
    )
    for title, table in shown.items():
        if "/" not in title:
            _print(title, table)


def _network(registry: Registry, parts: Sequence[str]) -> Assembly:
    """Return the network of one reference or of several, with its preprocessing."""
    from compatkit.evaluation.assembly import Assembly

    if len(parts) > 1:
        return registry.recombine(parts[0], parts[-1], adapters=parts[1:-1])
    (reference,) = parts
    kind = registry[reference].kind
    if kind not in ("extractor", "recombination"):
        text = (
            f"{reference} is of kind {kind}, which takes features; name the network: EXTRACTOR+{reference}."
        )
        raise UsageError(text, subject=reference)
    module = registry.load(reference)
    if isinstance(module, Assembly):
        return module
    return Assembly(module, None, contract=registry[reference].manifest.contract)


def _untrained(registry: Registry, parts: Sequence[str], network: Assembly, seed: int) -> Assembly:
    """Return the network with fresh initial weights; fitted adapters get torch's defaults."""
    import copy

    from torch import nn

    from compatkit.adapters.blueprints import build
    from compatkit.adapters.initialization import seeded
    from compatkit.evaluation.assembly import Assembly

    if len(parts) == 1 and (sources := getattr(network, "sources", ())):
        parts = [source.reference for source in sources]
    ends = [build(registry[part].manifest.blueprint, seed=seed) for part in (parts[0], parts[-1])]
    adapters: list[nn.Module] = copy.deepcopy(list(network.adapters))
    with seeded(seed):
        for layer in (layer for adapter in adapters for layer in adapter.modules()):
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.reset_parameters()
    head = ends[1] if network.head is not None else None
    return Assembly(ends[0], head, contract=network.contract, adapters=adapters).eval()


def _groups(network: Assembly, layers: Activations) -> list[str]:
    """Return the part of the network that each layer is in; if all are in one, the first word of their paths."""
    from compatkit.evaluation.layers import layers_of
    from compatkit.measuring.measure import parts_of

    parts = parts_of(network)
    modules = layers_of(parts)
    owner = {id(layer): part for part, module in parts.items() for layer in module.modules()}
    groups = [owner[id(modules[name.split("#")[0]])] for name in layers]
    return groups if len(set(groups)) > 1 else [name.split(".")[0] for name in layers]


def _print(title: str, table: Table) -> None:
    """Print a table as a grid."""
    this, other = table.axes["this"], table.axes["other"]
    click.echo()
    paragraph(f"{title}: {table.estimator}")
    shown = other[:PRINTED]
    values = table.values.tolist()
    rows = [[name, *map(two_digits, line[:PRINTED])] for name, line in zip(this, values, strict=True)]
    columns([["", *shown], *rows], right=range(1, len(shown) + 1))
    if len(shown) < len(other):
        paragraph(f"... {len(other) - len(shown):,} more layers; --json, --html and --png have all.")
    for reason, count in Counter(cell.reason for cell in table.cells if cell.reason).items():
        paragraph(f"{count:,} of {len(table.cells):,} cells: {reason}")
