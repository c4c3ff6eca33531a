"""``compatkit cuts MODEL``: list where a model can be cut, what crosses there, and the cost of each side."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import clean, columns, emit, next_step, paragraph, progress


def model_arguments(value: str) -> dict[str, Any]:
    """Parse ``--kwargs``, a JSON object."""
    try:
        settings = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--kwargs is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise click.UsageError(f"--kwargs expects a JSON object, got {value}.")
    return settings


def image_size(value: str) -> tuple[int, int]:
    """Parse ``HxW``, or one side."""
    sides = re.fullmatch(r"([1-9][0-9]{0,4})(?:x([1-9][0-9]{0,4}))?", value.lower())
    if sides is None:
        raise click.UsageError(f"--size expects height and width in pixels such as 96x128, got {value!r}.")
    return int(sides[1]), int(sides[2] or sides[1])


class ModelOptions(Options):
    """Model to build."""

    builder: str | None = option("timm, torchvision or a plugin; default: the one that has the model.")
    kwargs: dict[str, Any] = option(
        "Further arguments of the model: '{\"in_chans\": 1}'.",
        default="{}",
        show_default=False,
        convert=model_arguments,
        metavar="JSON",
    )
    size: tuple[int, int] | None = option(
        "Image size; default: the model's.", convert=image_size, metavar="HxW"
    )


class CutsOptions(ModelOptions):
    """Arguments and options of ``cuts``."""

    model: str = argument()
    everything: bool = option(
        "Also list modules where other tensors cross too, that repeat a cut, or where none is possible.",
        "--all",
    )


@command("cuts", CutsOptions, registry=False)
def cuts_command(options: CutsOptions) -> int | None:
    """List where MODEL (of timm, torchvision, compatkit or a plugin) can be cut into extractor and head.

    Examples:
        # where a network of timm can be cut
        compatkit cuts resnet18
        # for images of 64 x 64, unusable places too
        compatkit cuts resnet18 --size 64x64 --all
    """
    from compatkit.adapters.cutting.planning import cuts

    with progress("cuts") as report_progress:
        points = cuts(
            options.model,
            options.kwargs,
            size=options.size,
            builder=options.builder,
            progress=report_progress,
        )
    if options.json:
        return emit({"model": options.model, "cuts": [attrs.asdict(point) for point in points]})
    shown = points if options.everything else points.usable
    columns([points.HEADER, *(point.row() for point in shown)], right=(3, 4, 5, 6))
    hidden = len(points) - len(shown)
    click.echo()
    paragraph(
        "gives: shape of each tensor that crosses; behind: parameters and FLOPs of the head; way: how the network is "
        "cut. Shapes and FLOPs are for one image; a multiply-add is two."
    )
    if hidden:
        paragraph(
            f"{hidden} further modules are not shown: other tensors cross too, they repeat a cut above, or no cut is "
            "possible. --all shows them."
        )
    impossible = [point for point in shown if point.refused]
    if impossible:
        click.echo("\ncannot be cut:")
    for point in impossible:
        click.echo(f"  {clean(point.name)}: {clean(point.refused)}")
    possible = [point for point in shown if not point.refused and point.own]
    if possible:
        total = sum(possible[0].flops)
        # nearest to half of the FLOPs; of equal ones the outermost module
        middle = min(possible, key=lambda point: (abs(point.flops[0] - total / 2), point.name.count(".")))
        repeated_options = [] if options.builder is None else ["--builder", options.builder]
        repeated_options += ["--kwargs", json.dumps(options.kwargs)] if options.kwargs else []
        repeated_options += ["--size", "x".join(map(str, options.size))] if options.size else []
        next_step("split", options.model, "--cut", middle.name, *repeated_options, registry=False)
