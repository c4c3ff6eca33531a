"""``compatkit matrix``, and the options of all commands that measure pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.images import data_sets
from compatkit.cli.options import (
    StatisticsType,
    data_options,
    json_option,
    registry_option,
    signature_options,
)
from compatkit.cli.output import clean, emit, paragraph, print_matrix, progress, warn
from compatkit.cli.roots import check_outputs, registry
from compatkit.contracts.batchnorm import DEFAULT
from compatkit.evaluation.conditions import PRECISIONS

if TYPE_CHECKING:
    from compatkit.components.bridges.results import Bridge
    from compatkit.components.matrices.sides import Component
    from compatkit.components.workspace import Registry
    from compatkit.data.dataset import DataSet
    from compatkit.reports.matrix import Matrix

FILLS = ("missing", "stale", "all", "none")
WRITERS = ("html", "png", "markdown", "csv")


def measuring_options(function: Any) -> Any:
    """Add what commands that measure take: where the images are, and how batch normalisation is treated."""
    for option in (
        json_option,
        registry_option,
        signature_options,
        data_options,
        click.option(
            "--device", default="cpu", show_default=True, help="Where to run: cpu, cuda, ... or auto."
        ),
        click.option(
            "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the order of the images."
        ),
        click.option(
            "--batch-size", type=click.IntRange(2), default=256, show_default=True, help="Images in a batch."
        ),
        click.option(
            "--precision",
            type=click.Choice((*PRECISIONS, "bf16")),
            default="float32",
            show_default=True,
            help="float32, or bfloat16 by autocast.",
        ),
        click.option(
            "--bn-policy",
            "--normalisation",
            "bn_policy",
            type=StatisticsType(),
            default=DEFAULT,
            show_default=True,
            help="Statistics of batch normalisation: of each batch (as in the paper), estimated anew on the test "
            "images without their labels, these mixed with the stored ones as if those were of N images, or as "
            "stored.",
        ),
        click.option(
            "--recipe", type=click.Path(), metavar="FILE", help="Take the test sets of this recipe's tasks."
        ),
    ):
        function = option(function)
    return function


@click.command(
    "matrix",
    help="Report every one of EXTRACTORS with every one of HEADS (globs such as 'digits/*.head'): what was measured "
    "before under exactly these conditions is taken, what is missing is measured and kept.",
)
@click.argument("extractors")
@click.argument("heads")
@click.option("--html", type=click.Path(), metavar="FILE", help="Write one self-contained page.")
@click.option("--png", type=click.Path(), metavar="FILE", help="Write a heat map.")
@click.option("--markdown", type=click.Path(), metavar="FILE", help="Write a Markdown table.")
@click.option("--csv", type=click.Path(), metavar="FILE", help="Write all figures as CSV.")
@click.option(
    "--data",
    "names",
    multiple=True,
    metavar="NAME",
    help="Test set by name or path, once for each; else those that the extractors were trained on.",
)
@click.option(
    "--fill",
    type=click.Choice(FILLS),
    default="missing",
    show_default=True,
    help="Measure what nothing is known of; also what is stale, because the metric, the images or the bound changed "
    "since; all anew; or nothing, which needs no images.",
)
@click.option(
    "--bridge",
    "rung",
    metavar="RUNG",
    help="Put a bridge between parts that were not trained together, fitted on training images without their labels: "
    "permutation, procrustes, ridge, ridge-procrustes, ridge3x3, stitch, or best, the one that agrees most (see "
    "`compatkit bridge`).",
)
@click.option(
    "--where",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Only components with tag:KEY=VALUE, model=GLOB, class=NAME, anchor=DIGEST, latest=yes, ... (head.model=GLOB "
    "for one side), only cells with grade=compatible,perfect, state=stale, promise=shared-head, wiring=direct, "
    "accuracy>=.9; may be repeated, and all must fit.",
)
@measuring_options
@click.pass_context
def matrix_command(
    context: click.Context,
    extractors: str,
    heads: str,
    names: tuple[str, ...],
    recipe: str | None,
    rung: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
    html: str | None,
    png: str | None,
    markdown: str | None,
    csv: str | None,
    **conditions: Any,
) -> None:
    """Report and measure; a cell is measured on its extractor's own test set."""
    from compatkit.components.matrices.sides import Sides
    from compatkit.components.matrices.where import parse

    paths = dict(zip(WRITERS, (html, png, markdown, csv), strict=True))
    check_outputs({f"--{name}": path for name, path in paths.items()})
    held = registry(context)
    data, between = None, None
    if conditions["fill"] != "none" or names or recipe:
        sides, where = Sides(held.store), parse(conditions["where"])
        lefts = [one.reference for one in sides.choose(extractors, "extractor", where)]
        rights: Sequence[Component] = []
        if rung is not None:  # chosen and checked before any image is read, as the matrix will choose them
            rights = sides.choose(heads, "head", where)
            _check_policy(rights, conditions["bn_policy"])
        sets = data_sets(held, lefts, recipe=recipe, names=names, root=data_root, download=download)
        data = {name: one.test for name, one in sets.items()}
        if rung is not None:
            between = _bridges(held, lefts, rights, sets, rung)
    elif rung is not None:
        raise click.UsageError(
            "--bridge fits on images, which --fill none does not read; name them with --data."
        )
    with progress("matrix") as report:
        matrix = held.matrix(extractors, heads, data, bridges=between, progress=report, **conditions)
    for name, path in paths.items():
        if path is not None:
            getattr(matrix, f"to_{name}")(path)
    if machine:
        import json

        emit(json.loads(matrix.to_json()))
        return
    print_matrix(matrix)
    _tell_cells(matrix)
    for path in filter(None, paths.values()):
        click.echo(f"wrote {clean(path)}")


def _check_policy(heads: Sequence[Component], normalisation: str) -> None:
    """Refuse, before anything is fitted, a policy that would replace the statistics of every bridge to a head."""
    from compatkit.components.bridges.celled import check_policy

    for one in heads:
        if one.manifest.kind == "head" and one.manifest.contract.protocol.normalisation == "batch":
            check_policy(f"A bridge to {one.reference}", normalisation)


def _bridges(
    held: Registry, lefts: Sequence[str], rights: Sequence[Component], sets: Mapping[str, DataSet], rung: str
) -> dict[tuple[str, str], Bridge]:
    """Return a bridge of every pair that was not trained together; a shared head gets none, with a warning."""
    from compatkit.components.workspace.images import fitting_images

    heads = [one.reference for one in rights if one.manifest.kind == "head"]
    for one in rights:
        if one.manifest.kind != "head":
            warn(f"{one.reference} has no bridge: it is a shared head, which has no extractor of its own.")
    fitted_on = {name: fitting_images(one) for name, one in sets.items()}
    tests = {name: one.test for name, one in sets.items()}
    with progress("bridges") as report:
        return held.bridges.between(lefts, heads, fitted_on, rung, tests=tests, progress=report)


def _tell_cells(matrix: Matrix) -> None:
    """Print how many cells were taken and how many measured, and how to fill what is not known."""
    counts = matrix.settings["cells"]
    click.echo()
    told = f"{counts['taken']:,} taken from what was measured before, {counts['measured']:,} measured now"
    for state, fill in (("stale", "stale"), ("missing", "missing")):
        if counts.get(state):
            told += f"; {counts[state]:,} {state}: --fill {fill} measures {'it' if counts[state] == 1 else 'them'}"
    paragraph(f"{told}.")
