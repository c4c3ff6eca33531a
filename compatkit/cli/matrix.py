"""``compatkit matrix``, and the options of all commands that measure pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.images import NamedDataOptions, data_sets, recipe_option
from compatkit.cli.options import Options, argument, batch_size_option, bn_policy_option, command, option
from compatkit.cli.output import clean, counted, emit, first, news, paragraph, print_rich, progress, warn
from compatkit.cli.roots import SignatureOptions, open_registry
from compatkit.cli.workers import WorkerOptions
from compatkit.errors import FormatError
from compatkit.evaluation.conditions import PRECISIONS
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.components.bridges.pairs import BridgedPairs
    from compatkit.components.registry import Registry
    from compatkit.data.dataset import DataSet, Split
    from compatkit.evaluation.component import Component
    from compatkit.reports.matrix import Matrix

MAX_NAMED = 4
"""Extractors named for one set of images."""
COMPARISONS = ("--html", "--csv")
"""Outputs of a comparison."""
FILLS = ("missing", "stale", "all", "none")


class ConditionOptions(Options):
    """Conditions of a measurement."""

    bn_policy: str = bn_policy_option
    precision: str = option("bfloat16 uses autocast.", choices=(*PRECISIONS, "bf16"), default="float32")
    batch_size: int = batch_size_option
    seed: int = option("Seed of the order of the images.", min=0, default=0)
    device: str = option("Device: cpu, cuda, ... or auto.", default="cpu")


class MatrixOptions(ConditionOptions, WorkerOptions, NamedDataOptions, SignatureOptions):
    """Arguments and options of ``matrix``."""

    extractors: str = argument()
    heads: str = argument()
    html: Path | None = option("Write one self-contained page.", is_output=True)
    png: Path | None = option("Write a heat map.", is_output=True)
    markdown: Path | None = option("Write a Markdown table.", is_output=True)
    csv: Path | None = option("Write all figures as CSV.", is_output=True)
    latex: Path | None = option("Write a LaTeX table (booktabs).", is_output=True)
    against: Path | None = option(
        "Show what changed since an earlier matrix, saved as JSON (`--json > before.json`); with --html and --csv, the "
        "comparison is written.",
        metavar="FILE",
    )
    recipe: Path | None = recipe_option
    names: tuple[str, ...] = option(
        "Test set by name or path; default: those of the extractors' training.", "--data"
    )
    fill: str = option(
        "Cells to measure: missing; also stale ones (metric, images or bound changed); all; or none, without images.",
        choices=FILLS,
        default="missing",
    )
    channels_last: bool = option(
        "NHWC in memory: faster for many networks, slower for wide layers on small maps; same figures but for rounding."
    )
    rung: str | None = option(
        "Bridge parts that were not trained together, fitted on unlabeled training images: permutation, procrustes, "
        "ridge, ridge-procrustes, ridge3x3, stitch, or best (see `compatkit bridge`).",
        "--bridge",
        metavar="RUNG",
    )
    metrics: tuple[str, ...] = option(
        "Metric of each pair, beside the accuracy (see `compatkit plugins metrics`); may be repeated.",
        "--metric",
        metavar="NAME",
    )
    settings: tuple[str, ...] = option(
        "Setting of a metric, as JSON or text; may be repeated.", "--set", metavar="METRIC.NAME=VALUE"
    )
    where: tuple[str, ...] = option(
        "Only cells with, for example, grade=compatible,perfect or state=stale or accuracy>=.9; may be repeated.",
        metavar="FIELD=VALUE",
    )


@command("matrix", MatrixOptions)
def matrix_command(options: MatrixOptions) -> int | None:
    """Measure all EXTRACTORS with all HEADS (globs such as 'digits/*.head') on the extractors' own test sets.

    Recorded results under exactly these conditions are reused; missing ones are measured and recorded.

    Examples:
        # measure all pairs on the sets trained on, and write a page
        compatkit matrix 'digits/*.extractor' 'digits/*.head' --html matrix.html
        # in two processes, with a metric of each pair beside the accuracy
        compatkit matrix 'digits/*.extractor' 'digits/*.head' --workers 2 --metric leep
        # search recorded results, measure nothing
        compatkit matrix 'digits/*' 'digits/*' --where grade=compatible --fill none
    """
    from compatkit.components.loading import PartLoader
    from compatkit.components.matrices.filling import chosen
    from compatkit.components.matrices.filters import parse

    before = _read_matrix(options)  # before anything is measured
    metrics = _metrics(options)
    registry = open_registry()
    data: dict[str, Split] | None = None
    between: BridgedPairs | None = None
    if options.fill != "none" or options.names or options.recipe:
        parse(options.where)  # before images are read
        parts = PartLoader(registry.store)
        lefts = [component.reference for component in chosen(parts, options.extractors, "extractor")]
        rights: Sequence[Component] = []
        if options.rung is not None:  # resolve and check heads before images are read
            rights = chosen(parts, options.heads, "head")
            _check_policy(rights, options.bn_policy)
        sets = data_sets(registry, lefts, options, options.names, options.recipe)
        data = {name: dataset.test for name, dataset in sets.items()}
        if options.names or options.recipe:
            _print_images(data)
        if options.rung is not None:
            between = _bridges(registry, lefts, rights, sets, options)
    elif options.rung is not None:
        raise click.UsageError("--bridge needs images to fit on: add --data, or leave --fill none out.")
    with progress("matrix") as report:
        matrix = registry.matrix(
            options.extractors,
            options.heads,
            data,
            bridges=between,
            metrics=metrics,
            progress=report,
            **options.only("fill", "where", "channels_last"),
            **options.values_of(ConditionOptions),
            **options.values_of(WorkerOptions),
        )
    result = matrix if before is None else matrix.compare(before)
    for name, path in options.outputs().items():
        getattr(result, f"to_{name.removeprefix('--')}")(path)
    if options.names or options.recipe:
        _warn_stale(matrix)
    code = 1 if matrix.settings["cells"].get("failed") or (between and between.failed) else 0
    if options.json:
        return emit(json.loads(result.to_json()), code)
    if before is not None:
        click.echo(clean(str(result)))
    else:
        print_rich(matrix)
    _print_cells(matrix)
    return code


def _metrics(options: MatrixOptions) -> dict[str, dict[str, Any]]:
    """Return the settings of each metric, after checking that they apply to pairs."""
    if not options.metrics:
        if options.settings:
            raise click.UsageError("--set is a setting of a metric: add --metric.")
        return {}
    from compatkit.cli.metric import settings_of
    from compatkit.evaluation.pair_metrics import pair_metrics

    metrics = settings_of(options.settings, options.metrics)
    pair_metrics(metrics)  # before images are read
    return metrics


def _read_matrix(options: MatrixOptions) -> Matrix | None:
    """Return the matrix to compare with, if one was asked for; refuse outputs that a comparison does not have."""
    from compatkit.reports.matrix import Matrix

    if options.against is None:
        return None
    if others := [name for name in options.outputs() if name not in COMPARISONS]:
        raise click.UsageError(
            f"A comparison is written by {' and '.join(COMPARISONS)}; leave out {others[0]}."
        )
    with environment("read", options.against):
        text = options.against.read_bytes()
    try:
        return Matrix.from_json(text)
    except FormatError as error:
        raise FormatError(
            f"{options.against} is no matrix as `compatkit matrix --json` prints it: {error}",
            subject=str(options.against),
        ) from error


def _check_policy(heads: Sequence[Component], bn_policy: str) -> None:
    """Raise, before anything is fitted, for a policy that would replace the statistics of bridges."""
    from compatkit.components.bridges.ladder import check_policy

    for head in heads:
        if head.manifest.kind == "head" and head.manifest.contract.protocol.norm == "batch":
            check_policy(f"A bridge to {head.reference}", bn_policy)


def _bridges(
    registry: Registry,
    lefts: Sequence[str],
    rights: Sequence[Component],
    sets: Mapping[str, DataSet],
    options: MatrixOptions,
) -> BridgedPairs:
    """Return bridges for all pairs that were not trained together; warn for shared heads, which get none."""
    from compatkit.components.bridges.ladder import BEST
    from compatkit.components.images import fitting_images

    heads = [component.reference for component in rights if component.manifest.kind == "head"]
    for component in rights:
        if component.manifest.kind != "head":
            warn(f"{component.reference} has no bridge: a shared head has no extractor of its own.")
    fitted_on = {name: fitting_images(dataset) for name, dataset in sets.items()}
    tests = {name: dataset.test for name, dataset in sets.items()}
    with progress("bridges") as report:
        return registry.bridges.between(
            lefts,
            heads,
            fitted_on,
            options.rung or BEST,
            tests=tests,
            progress=report,
            **options.values_of(WorkerOptions),
        )


def _print_images(tests: Mapping[str, Split]) -> None:
    """Print which extractors are measured on which named images; only the name of the data set matches them."""
    rows: dict[str, list[str]] = {}
    for reference, split in tests.items():
        rows.setdefault(f"{clean(split.name)} ({len(split):,} images)", []).append(reference)
    for images, references in rows.items():
        news(f"images by the name of the data set trained on: {images} for {first(references, MAX_NAMED)}")


def _warn_stale(matrix: Matrix) -> None:
    """Warn that stale figures may be of other images than those named."""
    if count := matrix.settings["cells"].get("stale"):
        warn(
            f"{counted(count, 'figure')} marked stale may be of other images. --fill stale measures them again."
        )


def _print_cells(matrix: Matrix) -> None:
    """Print how many cells were reused and measured, and how to fill the missing ones."""
    counts = matrix.settings["cells"]
    click.echo()
    text = f"{counts['taken']:,} taken from recorded results, {counts['measured']:,} measured now"
    if counts.get("failed"):
        text += f"; {counts['failed']:,} could not be measured"
    for state in ("stale", "missing"):
        if counts.get(state):
            text += f"; {counts[state]:,} {state}: --fill {state} measures {'it' if counts[state] == 1 else 'them'}"
    paragraph(f"{text}.")
    if matrix.settings.get("metrics"):
        names, figures = ", ".join(matrix.settings["metrics"]), counts["metrics"]
        rest = "".join(
            f"; {figures[state]:,} {state}" for state in ("stale", "missing", "failed") if state in figures
        )
        paragraph(f"Metrics {names}: {figures['taken']:,} taken, {figures['measured']:,} measured now{rest}.")
