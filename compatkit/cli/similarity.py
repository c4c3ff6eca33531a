"""``compatkit similarity``: compare all layers of two networks, as figures, a heat map and a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.images import data_sets
from compatkit.cli.metric import settings_of
from compatkit.cli.options import (
    NamedDataAsked,
    PathType,
    command,
    named_data_options,
    recipe_option,
    signature_options,
)
from compatkit.cli.output import clean, columns, emit, paragraph, progress
from compatkit.cli.roots import check_outputs, registry
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compatkit.components.registry import Registry
    from compatkit.evaluation.assembly import Assembly
    from compatkit.measuring.activations import Activations
    from compatkit.measuring.measurement import Measurement
    from compatkit.metrics import Table

PRINTED = 14
"""Most layers of the other network in a printed table; ``--json`` and files have all."""


class SimilarityAsked(NamedDataAsked):
    """Arguments and options of ``similarity``."""

    left: str
    right: str
    layers: tuple[str, ...]
    other_layers: tuple[str, ...]
    metrics: tuple[str, ...]
    settings: tuple[str, ...]
    flatten: str
    controls: bool
    png: str | None
    html: str | None
    name: str | None
    recipe: str | None
    images: int | None
    seed: int
    device: str
    batch_size: int


@command(
    "similarity",
    SimilarityAsked,
    help="Run the same test images through two networks and compare all of their layers. LEFT and RIGHT are an "
    "extractor, a recombination, or parts joined by +: EXTRACTOR+HEAD, ENCODER+LATENT+DECODER.",
)
@click.argument("left")
@click.argument("right")
@click.option(
    "--layers",
    "--layer",
    "layers",
    multiple=True,
    required=True,
    metavar="GLOB",
    help="Layers to compare, by path in the whole network or glob; may be repeated.",
)
@click.option(
    "--other-layers",
    multiple=True,
    metavar="GLOB",
    help="Layers of RIGHT, where they have other names; may be repeated.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    default=("cka", "procrustes"),
    show_default=True,
    metavar="METRIC",
    help="A similarity (`compatkit plugins`); may be repeated. Of cka and procrustes, the smaller is shown too.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="METRIC.NAME=VALUE",
    help="A setting of a metric; the value is JSON, or else text; may be repeated.",
)
@click.option(
    "--flatten",
    type=click.Choice(("all", "pooled", "positions")),
    default="all",
    show_default=True,
    help="What a row is: all values of an image; its channels, pooled over positions; each position.",
)
@click.option(
    "--controls",
    is_flag=True,
    help="Also compare with the images of RIGHT shuffled, and the same networks untrained.",
)
@click.option("--png", type=PathType(), metavar="FILE", help="Write heat maps.")
@click.option("--html", type=PathType(), metavar="FILE", help="Write one self-contained page.")
@click.option(
    "--data",
    "name",
    metavar="NAME",
    help="Test set by name or path; default: the one that LEFT was trained on.",
)
@recipe_option
@click.option("--images", type=click.IntRange(4), metavar="N", help="Take N images, balanced over classes.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all that is drawn."
)
@click.option("--device", default="cpu", show_default=True, help="Device: cpu, cuda, ...")
@click.option(
    "--batch-size", type=click.IntRange(1), default=256, show_default=True, help="Images per batch."
)
@named_data_options
@signature_options
def similarity_command(context: click.Context, asked: SimilarityAsked) -> None:
    """Record both networks, compare, and write."""
    from compatkit.measuring.activations import activations
    from compatkit.measuring.similarity import similarity, smaller
    from compatkit.metrics import make_metric
    from compatkit.reports.layer_maps import LayerMaps
    from compatkit.reports.writing import write

    files = {"--png": asked.png, "--html": asked.html}
    check_outputs(files)
    chosen = settings_of(asked.settings, asked.metrics)
    made = [make_metric(one, **chosen[one]) for one in asked.metrics]
    held = registry(context)
    pinned = [
        [str(held.store.resolve(one)) for one in given.split("+")] for given in (asked.left, asked.right)
    ]
    names = (asked.name,) if asked.name else ()
    (data,) = data_sets(held, [pinned[0][0]], names, asked.recipe, asked).values()
    images = data.test if asked.images is None else data.subset(test=asked.images, seed=asked.seed).test
    networks = [_network(held, parts) for parts in pinned]
    wanted = [asked.layers, asked.other_layers or asked.layers]

    def record(network: Assembly, layers: Sequence[str], what: str) -> Activations:
        with progress("similarity") as report:
            return activations(
                network,
                images,
                layers=layers,
                progress=lambda done, total: report(done, total, what),
                **asked.only("flatten", "device", "batch_size"),
            )

    sides = [
        record(one, layers, name)
        for one, layers, name in zip(networks, wanted, ("left", "right"), strict=True)
    ]

    def compare(left: Activations, right: Activations) -> Measurement:
        return similarity(left, right, made, batch_size=asked.batch_size)

    compared = {"": compare(sides[0], sides[1])}
    if other := [one for one in compared[""].values() if list(getattr(one, "axes", ())) != ["this", "other"]]:
        raise UsageError(
            f"similarity expects metrics that compare all layers with all, such as cka; {other[0].name!r} does not. "
            "`compatkit metric` measures it.",
            subject=other[0].name,
        )
    if asked.controls:
        compared["shuffled"] = compare(sides[0], sides[1].shuffled(asked.seed))
        fresh = [
            record(_untrained(held, parts, one, asked.seed + number), layers, "untrained")
            for number, (parts, one, layers) in enumerate(zip(pinned, networks, wanted, strict=True))
        ]
        compared["untrained"] = compare(fresh[0], fresh[1])
    shown: dict[str, Table] = {}
    for control, found in compared.items():
        tables: dict[str, Any] = dict(found)
        if {"cka", "procrustes"} <= tables.keys():
            tables = {"smaller": smaller(found.table("cka"), found.table("procrustes")), **tables}
        shown |= {f"{name}, {control}" if control else name: one for name, one in tables.items()}
    maps = LayerMaps(
        {title: one.values for title, one in shown.items()},
        tuple(sides[0]),
        tuple(sides[1]),
        *(_groups(network, side) for network, side in zip(networks, sides, strict=True)),
        networks=(asked.left, asked.right),
        notes={title: [cell.reason for cell in one.cells] for title, one in shown.items()},
        about={"data": images.name, "images": len(images), "flatten": asked.flatten, "seed": asked.seed},
        across=len(shown) // len(compared),
    )
    for path, content in ((asked.png, maps.to_png), (asked.html, maps.to_html)):
        if path is not None:
            write(path, content())
    if asked.machine:
        controls = {name: one.to_json()["results"] for name, one in compared.items() if name}
        emit(
            {
                "left": pinned[0],
                "right": pinned[1],
                **compared[""].to_json(),
                **({"smaller": shown["smaller"].to_json()} if "smaller" in shown else {}),
                **({"controls": controls} if controls else {}),
            }
        )
        return
    paragraph(
        f"{asked.left} (rows) and {asked.right} on {images.name}, {len(images):,} images, {asked.flatten}"
    )
    for title, one in shown.items():
        if "/" not in title:
            _tell(title, one)
    for path in filter(None, files.values()):
        click.echo(f"wrote {clean(path)}")


def _network(held: Registry, parts: Sequence[str]) -> Assembly:
    """Return the network of one reference or of several, with its preprocessing."""
    from compatkit.evaluation.assembly import Assembly

    if len(parts) > 1:
        return held.recombine(parts[0], parts[-1], adapters=parts[1:-1])
    (reference,) = parts
    kind = held[reference].kind
    if kind not in ("extractor", "recombination"):
        raise UsageError(
            f"{reference} is of kind {kind}, which takes features; name the network: EXTRACTOR+{reference}.",
            subject=reference,
        )
    module = held.load(reference)
    if isinstance(module, Assembly):
        return module
    return Assembly(module, None, contract=held[reference].manifest.contract)


def _untrained(held: Registry, parts: Sequence[str], network: Assembly, seed: int) -> Assembly:
    """Return the network with initial weights instead of its own; those of fitted adapters are torch's."""
    import copy

    from torch import nn

    from compatkit.adapters.blueprints import build
    from compatkit.adapters.initialization import seeded
    from compatkit.evaluation.assembly import Assembly

    if len(parts) == 1 and (sources := getattr(network, "sources", ())):
        parts = [one.reference for one in sources]
    ends = [build(held[one].manifest.blueprint, seed=seed) for one in (parts[0], parts[-1])]
    adapters: list[nn.Module] = copy.deepcopy(list(network.adapters))
    with seeded(seed):
        for layer in (layer for adapter in adapters for layer in adapter.modules()):
            if isinstance(layer, nn.Linear | nn.Conv2d):
                layer.reset_parameters()
    head = ends[1] if network.head is not None else None
    return Assembly(ends[0], head, contract=network.contract, adapters=adapters).eval()


def _groups(network: Assembly, layers: Activations) -> list[str]:
    """Return the part of the network that each layer is in, or, of one part, the first word of its path."""
    from compatkit.evaluation.layers import layers_of
    from compatkit.measuring.measure import parts_of

    parts = parts_of(network)
    modules = layers_of(parts)
    owner = {id(one): part for part, whole in parts.items() for one in whole.modules()}
    found = [owner[id(modules[name.split("#")[0]])] for name in layers]
    return found if len(set(found)) > 1 else [name.split(".")[0] for name in layers]


def _tell(title: str, table: Table) -> None:
    """Print a table as a grid."""
    this, other = table.axes["this"], table.axes["other"]
    click.echo()
    paragraph(f"{title}: {table.estimator}")
    kept = other[:PRINTED]
    rows = [
        [name, *("-" if value != value else f"{round(value, 2) + 0.0:.2f}" for value in line[: len(kept)])]
        for name, line in zip(this, table.values.tolist(), strict=True)
    ]
    columns([["", *kept], *rows], right=range(1, len(kept) + 1))
    if len(kept) < len(other):
        paragraph(f"... {len(other) - len(kept):,} more layers; --json, --html and --png have all.")
    unsound = [(names, cell) for names, cell in table if cell.reason]
    for reason in dict.fromkeys(cell.reason for _, cell in unsound):
        count = sum(cell.reason == reason for _, cell in unsound)
        paragraph(f"{count:,} of {len(table.cells):,} cells: {reason}")
