"""The command adopt: a checkpoint of timm's or torchvision's becomes an extractor and a head with contracts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.cuts import image_size, model_arguments, model_options
from compatkit.cli.gc import size as amount
from compatkit.cli.options import about, about_options, data_options, given, json_option, registry_option
from compatkit.cli.output import clean, emit, next_step, rows
from compatkit.cli.roots import destination, publishing
from compatkit.cli.split import lines

if TYPE_CHECKING:
    from compatkit.components.adopting import Adoption
    from compatkit.data.dataset import Split


def numbers(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[float, ...] | None:
    """Read ``0.485,0.456,0.406``."""
    if value is None:
        return None
    try:
        return tuple(float(one) for one in value.split(","))
    except ValueError as error:
        raise click.BadParameter(
            f"expected a number, or one a channel joined by commas, got {value!r:.100}.", context, parameter
        ) from error


@click.command(
    "adopt",
    help="Take the weights in FILE (safetensors, or what torch.save wrote: .pth, .pt, .bin) as parts of the network "
    "MODEL, cut at POINT, and publish them as NAME.extractor and NAME.head. Pickles are read as tensors only, by a "
    "process of its own with limits.",
)
@click.argument("file")
@click.option("--model", required=True, metavar="MODEL", help="The network that the weights were saved from.")
@click.option(
    "--split",
    "point",
    required=True,
    metavar="POINT",
    help="Where to cut: a module path such as layer3, or forward_features; `compatkit cuts MODEL` lists them.",
)
@click.option("--name", required=True, metavar="NAME", help="Of the parts, such as zoo/resnet18.")
@model_options
@click.option(
    "--key",
    metavar="ENTRY",
    help="Entry of the file that holds the weights, such as model_ema; else the usual one.",
)
@click.option(
    "--labels",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Class names in the order of the outputs, one a line; without them the head names no classes.",
)
@click.option(
    "--data",
    "dataset",
    metavar="NAME",
    help="Training images by name or path, to state what the features look like.",
)
@click.option("--dataset-labels", is_flag=True, help="Take the class names of --data.")
@click.option(
    "--mean",
    callback=numbers,
    metavar="NUMBERS",
    help="Of the images on the scale 0 to 1: one for each channel, joined by commas, or one for all.",
)
@click.option("--std", callback=numbers, metavar="NUMBERS", help="The same for their standard deviation.")
@click.option(
    "--interpolation", metavar="KIND", help="How images are resized: bilinear, bicubic, lanczos or nearest."
)
@click.option("--crop-pct", type=float, metavar="SHARE", help="Share of the resized image that is kept.")
@about_options
@data_options
@registry_option
@json_option
@click.pass_context
def adopt_command(
    context: click.Context,
    file: str,
    model: str,
    point: str,
    name: str,
    builder: str,
    kwargs: str,
    size: str | None,
    key: str | None,
    labels: Path | None,
    dataset: str | None,
    dataset_labels: bool,
    data_root: str | None,
    download: bool,
    machine: bool,
    **images: Any,
) -> None:
    """Adopt a checkpoint; the parts must reproduce its network bitwise."""
    from compatkit.registry.names import check_name

    check_name(f"{name}.extractor")
    settings, sides = model_arguments(kwargs), image_size(size)
    if dataset_labels and (dataset is None or labels is not None):
        raise click.UsageError("--dataset-labels takes the class names of --data NAME, in place of --labels.")
    root = destination(context)
    data = _images(dataset, data_root, download)
    names = list(data.classes) if dataset_labels and data is not None else lines(labels) if labels else None
    from compatkit.components.adopting import adopt

    adopted = adopt(
        Path(file).expanduser(),
        model=model,
        point=point,
        builder=builder,
        kwargs=settings,
        size=sides,
        key=key,
        labels=names,
        data=data,
        images={one: value for one, value in images.items() if value is not None},
    )
    published = adopted.publish(publishing(root), name, about=about(context))
    if machine:
        parts = {side: part.to_json() for side, part in adopted.parts.items()}
        emit({**adopted.provenance, "kwargs": dict(adopted.kwargs), "parts": parts, "published": published})
        return
    _tell(adopted, model, point, published)
    next_step("compatkit", *given(context).words, "check", published["extractor"], "*.head")


def _images(name: str | None, root: str | None, download: bool) -> Split | None:
    if name is None:
        return None
    from compatkit.data import load

    return load(name, root=root, download=download).train


def _tell(adopted: Adoption, model: str, point: str, published: Mapping[str, str]) -> None:
    found = adopted.checkpoint
    click.echo(click.style(clean(f"{found}, {amount(found.bytes)}"), bold=True))
    for one in adopted.told:
        click.echo(f"  {clean(one)}")
    click.echo(f"{model} cut at {point}: head(extractor(x)) equals the whole network bitwise")
    for side, part in adopted.parts.items():
        click.echo(click.style(side, bold=True))
        rows(part.describe())
    for reference in published.values():
        click.echo(f"published {reference}")
