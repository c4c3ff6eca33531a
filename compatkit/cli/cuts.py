"""``compatkit cuts MODEL``: list where a model can be cut, what crosses there, and the cost of each side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import click

from compatkit.cli.options import Asked, command, options
from compatkit.cli.output import clean, columns, emit, next_step, paragraph, progress

if TYPE_CHECKING:
    from compatkit.adapters.cutting.discovery import CutPoint


def model_arguments(context: click.Context, parameter: click.Parameter, value: str) -> dict[str, Any]:
    """Parse ``--kwargs``, a JSON object."""
    try:
        settings = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--kwargs is not JSON: {error}", context) from error
    if not isinstance(settings, dict):
        raise click.UsageError(f"--kwargs expects a JSON object, got {value}.", context)
    return settings


def image_size(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    """Parse ``HxW``, or one side."""
    if value is None:
        return None
    sides = value.lower().split("x")
    if len(sides) > 2 or not all(one.isascii() and one.isdigit() and 0 < int(one) < 10**5 for one in sides):
        raise click.UsageError(
            f"--size expects height and width in pixels such as 96x128, got {value!r}.", context
        )
    return int(sides[0]), int(sides[-1])


class ModelAsked(Asked):
    """Options of ``model_options``."""

    builder: str
    kwargs: dict[str, Any]
    size: tuple[int, int] | None


model_options = options(
    click.option(
        "--builder",
        default="timm",
        show_default=True,
        metavar="NAME",
        help="Builder of the model: timm (including ours), torchvision, or a plugin.",
    ),
    click.option(
        "--kwargs",
        default="{}",
        callback=model_arguments,
        metavar="JSON",
        help="Further arguments of the model: '{\"in_chans\": 1}'.",
    ),
    click.option(
        "--size",
        callback=image_size,
        metavar="HxW",
        help="Height and width of the images; default: the model's own.",
    ),
)


class CutsAsked(ModelAsked):
    """Arguments and options of ``cuts``."""

    model: str
    everything: bool


@command(
    "cuts",
    CutsAsked,
    help="List where MODEL (any of timm's, torchvision's, a plugin's, or ours) can be cut into extractor and head.",
    registry=False,
)
@click.argument("model")
@model_options
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also list places where other tensors cross, or where the model cannot be cut, with the reason.",
)
def cuts_command(context: click.Context, asked: CutsAsked) -> None:
    """List split points in the order of the forward pass."""
    from compatkit.adapters.blueprints import cut_points

    with progress("cuts") as report:
        points = cut_points(
            asked.model, asked.kwargs, size=asked.size, builder=asked.builder, progress=report
        )
    if asked.machine:
        emit({"model": asked.model, "cuts": [attrs.asdict(one) for one in points]})
        return
    shown = [one for one in points if asked.everything or (one.own and not one.refused and not one.same_as)]
    columns([HEADER, *map(_row, shown)], right=(3, 4, 5, 6))
    hidden = len(points) - len(shown)
    click.echo()
    paragraph(
        "gives: shape for one image of every tensor that crosses. FLOPs for one image, a multiplication and an "
        "addition counted as two."
    )
    if hidden:
        paragraph(
            f"{hidden} further modules end at one of these places, pass on other tensors beside their own, or cannot "
            "be cut; --all shows them."
        )
    refused = [one for one in shown if one.refused]
    if refused:
        click.echo("\nrefused:")
    for one in refused:
        click.echo(f"  {clean(one.name)}: {clean(one.refused)}")
    usable = [one for one in shown if not one.refused]
    if usable:
        total = sum(usable[0].flops)
        middle = min(usable, key=lambda one: (abs(one.flops[0] - total / 2), one.name.count(".")))
        words = [] if asked.builder == "timm" else ["--builder", asked.builder]
        words += ["--kwargs", json.dumps(asked.kwargs)] if asked.kwargs else []
        words += ["--size", "x".join(map(str, asked.size))] if asked.size else []
        next_step("compatkit", "split", asked.model, "--at", middle.name, *words)


HEADER = ("cut", "module", "gives", "parameters", "behind", "FLOPs", "behind", "way")


def _row(point: CutPoint) -> tuple[str, ...]:
    gives = ", ".join("x".join(map(str, shape)) for _, shape in point.crossing)
    others = [name for name, _ in point.crossing if name != point.name]
    if others:
        gives += f" (also of {', '.join(dict.fromkeys(others))})"
    way = "refused" if point.refused else point.approach or ("declared" if others else "")
    return (
        point.name,
        point.module,
        gives,
        f"{point.parameters[0]:,}",
        f"{point.parameters[1]:,}",
        _short(point.flops[0]),
        _short(point.flops[1]),
        way,
    )


def _short(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.2f}{unit}"
    return str(number)
