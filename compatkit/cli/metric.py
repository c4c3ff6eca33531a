"""``compatkit metric``: compute metrics of a network in one pass over its test images, or of arrays in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.images import TestSetOptions
from compatkit.cli.options import argument, command, device_option, option
from compatkit.cli.output import columns, emit, paragraph, progress
from compatkit.cli.roots import SignatureOptions, open_registry
from compatkit.cli.tables import TableOptions
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.evaluation.metrics import Measured

PRINTED = 40
"""Printed cells of a table; ``--json`` has all."""


class MetricOptions(TestSetOptions, TableOptions, SignatureOptions):
    """Arguments and options of ``metric``."""

    words: tuple[str, ...] = argument("{EXTRACTOR HEAD METRIC... | METRIC --arrays FILE...}", required=True)
    arrays: bool = option("Compute a metric of arrays in files: .npy, or .npz with an array for each layer.")
    layers: tuple[str, ...] = option(
        "Layer, by path in the network or glob; may be repeated.", "--layer", metavar="GLOB"
    )
    against: tuple[str, str] | None = option(
        "Second network, for metrics of two; it gets the same images and needs layers of the same names.",
        type=(str, str),
        metavar="EXTRACTOR HEAD",
    )
    settings: tuple[str, ...] = option(
        "Setting of a metric, as JSON or text; may be repeated. With --arrays, NAME=VALUE.",
        "--set",
        metavar="METRIC.NAME=VALUE",
    )
    device: str = device_option
    batch_size: int = option("Images per batch.", min=1, default=256)


@command("metric", MetricOptions)
def metric_command(options: MetricOptions) -> int | None:
    """Compute each METRIC (see `compatkit plugins metrics`) of EXTRACTOR with HEAD on test images.

    With --arrays, compute one METRIC of FILEs: compatkit metric cka --arrays a.npy b.npy

    Examples:
        # accuracy on the test images of the training set
        compatkit metric digits/mnist.extractor digits/mnist.head accuracy
        # similarity of two arrays of activations
        compatkit metric cka --arrays a.npy b.npy
    """
    from compatkit.evaluation.metrics import make_metric
    from compatkit.measuring.measure import measure

    if options.arrays:
        return _measure_arrays(options)
    if len(options.words) < 3 or options.words[-1].endswith((".npy", ".npz")):
        raise UsageError(
            f"metric expects EXTRACTOR HEAD METRIC..., or METRIC --arrays FILE...; got {' '.join(options.words)}."
        )
    *parts, metrics = *options.words[:2], options.words[2:]
    chosen = settings_of(options.settings, metrics)
    built = [make_metric(name, **chosen[name]) for name in metrics]
    registry = open_registry()
    left, right = (str(registry.store.resolve(reference)) for reference in parts)
    images = options.data_of(registry, left).test
    model = registry.recombine(left, right)
    others = [str(registry.store.resolve(reference)) for reference in options.against or ()]
    other = registry.recombine(*others) if others else None
    with progress("metric") as report:
        measured = measure(
            model,
            images,
            built,
            other=other,
            progress=lambda done, total: report(done, total, "images"),
            **options.only("layers", "device", "batch_size"),
        )
    options.write_tables(measured)
    if options.json:
        extra = {"against": others} if others else {}
        return emit({"extractor": left, "head": right, **extra, **measured.to_json()})
    compared = f" against {others[0]} with {others[1]}" if others else ""
    paragraph(
        f"{left} with {right}{compared} on {images.name}, {len(images):,} images; batch-norm policy "
        f"{measured.settings['bn_policy']}"
    )
    for result in measured.values():
        _print(result)


def _measure_arrays(options: MetricOptions) -> int | None:
    """Measure arrays in files."""
    from compatkit.evaluation.metrics import make_metric
    from compatkit.measuring.arrays import measure_arrays, read_array, roles_of

    if options.layers or options.against or options.name or options.recipe:
        raise UsageError("--arrays expects files; leave out --layer, --against, --data and --recipe.")
    name, *files = options.words
    texts = [text if "." in text.partition("=")[0] else f"{name}.{text}" for text in options.settings]
    chosen = settings_of(texts, (name,))[name]
    measured = measure_arrays(name, *map(read_array, files), batch_size=options.batch_size, **chosen)
    arrays = dict(zip(roles_of(make_metric(name, **chosen)), files, strict=True))
    options.write_tables(measured)
    if options.json:
        return emit({"arrays": arrays, "results": measured.to_json()["results"]})
    paragraph(f"{name} of {', '.join(f'{path} ({role})' for role, path in arrays.items())}")
    for result in measured.values():
        _print(result)


def settings_of(texts: Sequence[str], metrics: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the settings of each metric.

    Args:
        texts: ``METRIC.NAME=VALUE``.
        metrics: Names of the metrics.

    Raises:
        UsageError: A text has another form, or names another metric.
    """
    settings: dict[str, dict[str, Any]] = {metric: {} for metric in metrics}
    for text in texts:
        path, equals, value = text.partition("=")
        metric, _, name = path.rpartition(".")
        if not equals or not name or metric not in settings:
            raise UsageError(
                f"--set expects METRIC.NAME=VALUE with one of the metrics {', '.join(metrics)}, such as "
                f"{metrics[0]}.NAME=3; got {text!r}."
            )
        try:
            settings[metric][name] = json.loads(value)
        except ValueError:
            settings[metric][name] = value
    return settings


def _print(result: Measured) -> None:
    """Print one result: a line, or a table."""
    from compatkit.evaluation.metrics import Result, TableCell

    click.echo()
    better = {"higher": ", higher is better", "lower": ", lower is better", "none": ""}[result.direction]
    unit = "" if result.unit == "1" else f" in {result.unit}"
    paragraph(
        f"{result.name}{unit}{better}; {result.estimator}; of {result.count:,}; {result.paper}, {result.equation}"
    )
    if isinstance(result, Result):
        cells, axes = [((), TableCell(result.value, result.status, result.reason))], []
    else:
        cells, axes = list(result), list(result.axes)
    shown = [
        (
            *names,
            "-" if cell.value is None else f"{cell.value:.4f}",
            cell.status.replace("ok", ""),
            cell.reason,
        )
        for names, cell in cells[:PRINTED]
    ]
    columns([[*axes, "value", "status", "reason"], *shown], right=[len(axes)])
    if len(cells) > PRINTED:
        paragraph(f"... {len(cells) - PRINTED:,} more; --json has all.")
