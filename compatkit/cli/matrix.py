"""``compatkit matrix``, and the options of all commands that measure pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from compatkit.cli.images import data_sets
from compatkit.cli.options import (
    NamedDataAsked,
    PathType,
    batch_size_option,
    bn_policy_option,
    command,
    named_data_options,
    options,
    recipe_option,
    signature_options,
)
from compatkit.cli.output import clean, counted, emit, news, paragraph, print_rich, progress, warn
from compatkit.cli.roots import check_outputs, registry
from compatkit.evaluation.conditions import PRECISIONS

if TYPE_CHECKING:
    from compatkit.components.bridges.ladder import Bridge
    from compatkit.components.registry import Registry
    from compatkit.data.dataset import DataSet, Split
    from compatkit.evaluation.component import Component
    from compatkit.reports.matrix import Matrix

NAMED = 4
"""Most extractors named for one set of images."""
FILLS = ("missing", "stale", "all", "none")
WRITERS = ("html", "png", "markdown", "csv")


CONDITIONS = ("bn_policy", "precision", "batch_size", "seed", "device")
"""Options for the conditions of a measurement."""


class MeasuringAsked(NamedDataAsked):
    """Options of ``measuring_options``."""

    recipe: str | None
    bn_policy: str
    precision: str
    batch_size: int
    seed: int
    device: str


measuring_options = options(
    recipe_option,
    bn_policy_option,
    click.option(
        "--precision",
        type=click.Choice((*PRECISIONS, "bf16")),
        default="float32",
        show_default=True,
        help="float32, or bfloat16 with autocast.",
    ),
    batch_size_option,
    click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Seed of the order of the images.",
    ),
    click.option("--device", default="cpu", show_default=True, help="Device: cpu, cuda, ... or auto."),
    named_data_options,
    signature_options,
)


class MatrixAsked(MeasuringAsked):
    """Arguments and options of ``matrix``."""

    extractors: str
    heads: str
    html: str | None
    png: str | None
    markdown: str | None
    csv: str | None
    names: tuple[str, ...]
    fill: str
    rung: str | None
    where: tuple[str, ...]


@command(
    "matrix",
    MatrixAsked,
    help="Report all EXTRACTORS with all HEADS (globs such as 'digits/*.head'): results under exactly these conditions "
    "are reused, missing ones are measured and recorded.",
)
@click.argument("extractors")
@click.argument("heads")
@click.option("--html", type=PathType(), metavar="FILE", help="Write one self-contained page.")
@click.option("--png", type=PathType(), metavar="FILE", help="Write a heat map.")
@click.option("--markdown", type=PathType(), metavar="FILE", help="Write a Markdown table.")
@click.option("--csv", type=PathType(), metavar="FILE", help="Write all figures as CSV.")
@click.option(
    "--data",
    "names",
    multiple=True,
    metavar="NAME",
    help="Test set by name or path, may be repeated; default: those that the extractors were trained on.",
)
@click.option(
    "--fill",
    type=click.Choice(FILLS),
    default="missing",
    show_default=True,
    help="Measure missing cells; also stale ones (metric, images or bound have changed since); all; or none, which "
    "needs no images.",
)
@click.option(
    "--bridge",
    "rung",
    metavar="RUNG",
    help="Insert a bridge between parts that were not trained together, fitted on training images without labels: "
    "permutation, procrustes, ridge, ridge-procrustes, ridge3x3, stitch, or best, the one with the highest agreement "
    "(see `compatkit bridge`).",
)
@click.option(
    "--where",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only components with tag:KEY=VALUE, model=GLOB, class=NAME, anchor=DIGEST, latest=yes, ... (head.model=GLOB "
    "for one side), only cells with grade=compatible,perfect, state=stale, promise=shared-head, wiring=direct, "
    "accuracy>=.9; may be repeated, and all must match.",
)
@measuring_options
def matrix_command(context: click.Context, asked: MatrixAsked) -> None:
    """Report and measure, each cell on its extractor's own test set."""
    from compatkit.components.loading import Parts
    from compatkit.components.matrices.filling import chosen
    from compatkit.components.matrices.where import parse

    paths = asked.only(*WRITERS)
    check_outputs({f"--{name}": path for name, path in paths.items()})
    held = registry(context)
    data, between = None, None
    if asked.fill != "none" or asked.names or asked.recipe:
        parts, where = Parts(held.store), parse(asked.where)
        lefts = [one.reference for one in chosen(parts, asked.extractors, "extractor", where)]
        rights: Sequence[Component] = []
        if asked.rung is not None:  # resolve and check heads before images are read
            rights = chosen(parts, asked.heads, "head", where)
            _check_policy(rights, asked.bn_policy)
        sets = data_sets(held, lefts, asked.names, asked.recipe, asked)
        data = {name: one.test for name, one in sets.items()}
        if asked.names or asked.recipe:
            _tell_images(data)
        if asked.rung is not None:
            between = _bridges(held, lefts, rights, sets, asked.rung)
    elif asked.rung is not None:
        raise click.UsageError(
            "--bridge needs images to fit on, which --fill none does not read; name them with --data."
        )
    with progress("matrix") as report:
        matrix = held.matrix(
            asked.extractors,
            asked.heads,
            data,
            bridges=between,
            progress=report,
            **asked.only("fill", "where", *CONDITIONS),
        )
    for name, path in paths.items():
        if path is not None:
            getattr(matrix, f"to_{name}")(path)
    if asked.names or asked.recipe:
        _warn_stale(matrix)
    if asked.machine:
        emit(json.loads(matrix.to_json()))
        return
    print_rich(matrix)
    _tell_cells(matrix)
    for path in filter(None, paths.values()):
        click.echo(f"wrote {clean(path)}")


def _check_policy(heads: Sequence[Component], normalisation: str) -> None:
    """Raise, before anything is fitted, for a policy that would replace the statistics of all bridges to a head."""
    from compatkit.components.bridges.ladder import check_policy

    for one in heads:
        if one.manifest.kind == "head" and one.manifest.contract.protocol.norm == "batch":
            check_policy(f"A bridge to {one.reference}", normalisation)


def _bridges(
    held: Registry, lefts: Sequence[str], rights: Sequence[Component], sets: Mapping[str, DataSet], rung: str
) -> dict[tuple[str, str], Bridge]:
    """Return bridges for all pairs that were not trained together; warn for shared heads, which get none."""
    from compatkit.components.images import fitting_images

    heads = [one.reference for one in rights if one.manifest.kind == "head"]
    for one in rights:
        if one.manifest.kind != "head":
            warn(f"{one.reference} has no bridge: it is a shared head, which has no extractor of its own.")
    fitted_on = {name: fitting_images(one) for name, one in sets.items()}
    tests = {name: one.test for name, one in sets.items()}
    with progress("bridges") as report:
        return held.bridges.between(lefts, heads, fitted_on, rung, tests=tests, progress=report)


def _tell_images(tests: Mapping[str, Split]) -> None:
    """Print which extractors are measured on which of the named images, and that a name is all that matches them."""
    rows: dict[str, list[str]] = {}
    for reference, split in tests.items():
        rows.setdefault(f"{clean(split.name)} ({len(split):,} images)", []).append(reference)
    for images, references in rows.items():
        shown = ", ".join(references[:NAMED])
        more = f" and {len(references) - NAMED:,} more" if len(references) > NAMED else ""
        news(f"images by the name of the data set trained on: {images} for {clean(shown)}{more}")


def _warn_stale(matrix: Matrix) -> None:
    """Warn that stale figures are not of the images that were named."""
    if count := matrix.settings["cells"].get("stale"):
        warn(
            f"{counted(count, 'figure')}, marked stale, may be of other images than those named: the cell's reason "
            "says what changed. They were not measured again; --fill stale does."
        )


def _tell_cells(matrix: Matrix) -> None:
    """Print how many cells were reused and measured, and how to fill the missing ones."""
    counts = matrix.settings["cells"]
    click.echo()
    told = f"{counts['taken']:,} taken from what was measured before, {counts['measured']:,} measured now"
    for state, fill in (("stale", "stale"), ("missing", "missing")):
        if counts.get(state):
            told += f"; {counts[state]:,} {state}: --fill {fill} measures {'it' if counts[state] == 1 else 'them'}"
    paragraph(f"{told}.")
