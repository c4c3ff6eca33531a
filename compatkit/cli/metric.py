"""``compatkit metric``: compute metrics of a network in one pass over its test images, or of arrays in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.images import data_sets
from compatkit.cli.options import (
    NamedDataOptions,
    SignatureOptions,
    argument,
    command,
    device_option,
    option,
    recipe_option,
)
from compatkit.cli.output import columns, emit, paragraph, progress
from compatkit.cli.roots import open_registry
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.evaluation.metrics import Measured

FILES = (".npy", ".npz")
PRINTED = 40
"""Most cells of a table printed; ``--json`` has all."""


class MetricOptions(NamedDataOptions, SignatureOptions):
    """Arguments and options of ``metric``."""

    words: tuple[str, ...] = argument(
        required=True, metavar="{EXTRACTOR HEAD METRIC... | METRIC --arrays FILE...}"
    )
    arrays: bool = option(
        "Take a metric and files of arrays, one row a sample: .npy, or .npz with an array for each layer. Which "
        "arrays a metric takes, and in which order, is said if their number is wrong."
    )
    layers: tuple[str, ...] = option(
        "A layer to measure, by its path in the whole network or a glob; may be repeated.",
        "--layer",
        metavar="GLOB",
    )
    against: tuple[str, str] | None = option(
        "Another network, for metrics of two; it gets the same images and must have layers of the same names.",
        type=(str, str),
        metavar="EXTRACTOR HEAD",
    )
    settings: tuple[str, ...] = option(
        "A setting of a metric; the value is JSON, or else text; may be repeated. With --arrays, NAME=VALUE.",
        "--set",
        metavar="METRIC.NAME=VALUE",
    )
    name: str | None = option(
        "Test set by name or path; default: the one that EXTRACTOR was trained on.", "--data", metavar="NAME"
    )
    recipe: str | None = recipe_option
    device: str = device_option
    batch_size: int = option("Images per batch.", min=1, default=256)


@command(
    "metric",
    MetricOptions,
    help="Run test images through EXTRACTOR and HEAD once, in eval mode, and print each METRIC "
    "(`compatkit plugins` lists those installed). With --arrays, compute one METRIC of FILEs: "
    "`compatkit metric cka --arrays a.npy b.npy`.",
)
def metric_command(context: click.Context, options: MetricOptions) -> None:
    """Combine the parts with their stored statistics, and measure."""
    from compatkit.evaluation.metrics import make_metric
    from compatkit.measuring.measure import measure

    if options.arrays:
        _measure_arrays(options)
        return
    if len(options.words) < 3 or any(result.endswith(FILES) for result in options.words):
        raise UsageError(
            f"metric expects EXTRACTOR HEAD METRIC..., or METRIC --arrays FILE...; got {' '.join(options.words)}."
        )
    extractor, head, *metrics = options.words
    chosen = settings_of(options.settings, metrics)
    made = [make_metric(word, **chosen[word]) for word in metrics]
    registry = open_registry(context)
    left, right = registry.store.resolve(extractor), registry.store.resolve(head)
    names = (options.name,) if options.name else ()
    (data,) = data_sets(registry, [str(left)], names, options.recipe, options).values()
    images = data.test
    model = registry.recombine(str(left), str(right))
    others = [str(registry.store.resolve(metric)) for metric in options.against or ()]
    other = registry.recombine(*others) if others else None
    with progress("metric") as report:
        measured = measure(
            model,
            images,
            made,
            other=other,
            progress=lambda done, total: report(done, total, "images"),
            **options.only("layers", "device", "batch_size"),
        )
    if options.json:
        beside = {"against": others} if others else {}
        emit({"extractor": str(left), "head": str(right), **beside, **measured.to_json()})
        return
    compared = f" against {others[0]} with {others[1]}" if others else ""
    paragraph(
        f"{left} with {right}{compared} on {images.name}, {len(images):,} images; batch-norm policy "
        f"{measured.settings['bn_policy']}"
    )
    for reference in measured.values():
        _print(reference)


def _measure_arrays(options: MetricOptions) -> None:
    """Measure arrays in files.

    Raises:
        UsageError: There is not one metric, or not the arrays that it takes, or an option is of networks.
    """
    from compatkit.evaluation.metrics import make_metric
    from compatkit.measuring.arrays import measure_arrays, read_array, roles_of

    of_networks = {
        "--layer": options.layers,
        "--against": options.against,
        "--data": options.name,
        "--recipe": options.recipe,
    }
    if wrong := [option for option, value in of_networks.items() if value]:
        raise UsageError(f"--arrays expects files alone; {', '.join(wrong)} is of networks. Leave it out.")
    files = [word for word in options.words if word.endswith(FILES)]
    names = [word for word in options.words if word not in files]
    if len(names) != 1:
        raise UsageError(
            f"--arrays expects one METRIC and files whose names end in .npy or .npz; got {' '.join(options.words)}."
        )
    settings = [
        f"{names[0]}.{setting}" if "." not in setting.partition("=")[0] else setting
        for setting in options.settings
    ]
    chosen = settings_of(settings, names)[names[0]]
    measured = measure_arrays(names[0], *map(read_array, files), batch_size=options.batch_size, **chosen)
    arrays = dict(zip(roles_of(make_metric(names[0], **chosen)), files, strict=True))
    if options.json:
        emit({"arrays": arrays, "results": measured.to_json()["results"]})
        return
    paragraph(f"{names[0]} of {', '.join(f'{path} ({role})' for role, path in arrays.items())}")
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
        [
            *names,
            "-" if cell.value is None else f"{cell.value:.4f}",
            cell.status.replace("ok", ""),
            cell.reason,
        ]
        for names, cell in cells[:PRINTED]
    ]
    columns([[*axes, "value", "status", "reason"], *shown], right=[len(axes)])
    if len(cells) > PRINTED:
        paragraph(f"... {len(cells) - PRINTED:,} more; --json has all.")
