"""``compatkit adopt``: adopt a checkpoint of timm or torchvision as an extractor and a head with contracts."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.cuts import ModelAsked, model_options
from compatkit.cli.images import load_data_set
from compatkit.cli.options import (
    NamedDataAsked,
    PathType,
    about,
    about_options,
    command,
    given,
    labels_option,
    named_data_options,
)
from compatkit.cli.output import clean, emit, next_step, size
from compatkit.cli.roots import destination, publishing
from compatkit.cli.split import class_names, tell_parts
from compatkit.registry.names import check_name

IMAGES = ("mean", "std", "interpolation", "crop_pct")
"""Options about the preprocessing of images."""


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
            f"expected a number, or one per channel separated by commas, got {value!r:.100}.",
            context,
            parameter,
        ) from error


def renames(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Read ``module.=`` and ``old.=new.``."""
    pairs = [value.partition("=") for value in values]
    if wrong := [value for value, pair in zip(values, pairs, strict=True) if not pair[1]]:
        raise click.BadParameter(
            f"expected OLD=NEW, such as module.=, got {wrong[0]!r:.100}.", context, parameter
        )
    return {old: new for old, _, new in pairs}


class AdoptAsked(ModelAsked, NamedDataAsked):
    """Arguments and options of ``adopt``."""

    file: str
    model: str | None
    point: str
    name: str
    key: str | None
    labels: str | None
    dataset: str | None
    dataset_labels: bool
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    interpolation: str | None
    crop_pct: float | None
    rename: dict[str, str]


@command(
    "adopt",
    AdoptAsked,
    help="Load the weights in FILE (safetensors, or a file of torch.save: .pth, .pt, .bin; or a folder of one) into "
    "the network MODEL, cut it at POINT, and publish the parts as NAME.extractor and NAME.head. config.json and "
    "preprocessor_config.json beside the weights say how images are prepared; what contradicts them is refused. "
    "Pickles are read as tensors only, in a "
    "subprocess with limits.",
)
@click.argument("file", type=PathType())
@click.option(
    "--model",
    metavar="MODEL",
    help="The network that the weights were saved from; default: what config.json beside them says.",
)
@click.option(
    "--split",
    "point",
    required=True,
    metavar="POINT",
    help="Where to cut: a module path such as layer3, or forward_features; `compatkit cuts MODEL` lists them.",
)
@click.option("--name", required=True, metavar="NAME", help="Name of the parts, such as zoo/resnet18.")
@model_options
@click.option(
    "--key",
    metavar="ENTRY",
    help="Entry of the file that contains the weights, such as model_ema; else the common one.",
)
@click.option(
    "--rename",
    multiple=True,
    callback=renames,
    metavar="OLD=NEW",
    help="Replace the beginning OLD of tensors' names by NEW, such as `module.=`; may be repeated.",
)
@labels_option
@click.option(
    "--data",
    "dataset",
    metavar="NAME",
    help="Training images by name or path, for feature statistics.",
)
@click.option("--dataset-labels", is_flag=True, help="Use the class names of --data.")
@click.option(
    "--mean",
    callback=numbers,
    metavar="NUMBERS",
    help="Mean of the images on the scale 0 to 1: one per channel, separated by commas, or one for all.",
)
@click.option("--std", callback=numbers, metavar="NUMBERS", help="The same for the standard deviation.")
@click.option(
    "--interpolation", metavar="KIND", help="How images are resized: bilinear, bicubic, lanczos or nearest."
)
@click.option("--crop-pct", type=float, metavar="SHARE", help="Share of the resized image that is kept.")
@about_options
@named_data_options
def adopt_command(context: click.Context, asked: AdoptAsked) -> None:
    """Adopt a checkpoint; the parts must reproduce its network bitwise."""
    check_name(f"{asked.name}.extractor")
    if asked.dataset_labels and (asked.dataset is None or asked.labels is not None):
        raise click.UsageError("--dataset-labels needs --data NAME, and no --labels.")
    root = destination(context)
    data = None
    if asked.dataset is not None:
        data = load_data_set(asked.dataset, asked.data_root, asked.download, asked.damaged).train
    labels = list(data.classes) if asked.dataset_labels and data is not None else class_names(asked.labels)
    from compatkit.components.adopting import adopt

    adopted = adopt(
        Path(asked.file).expanduser(),
        labels=labels,
        data=data,
        images={name: value for name, value in asked.only(*IMAGES).items() if value is not None},
        **asked.only("model", "point", "builder", "kwargs", "size", "key", "rename"),
    )
    published = adopted.publish(publishing(root).store, asked.name, about=about(context))
    if asked.machine:
        parts = {side: part.to_json() for side, part in adopted.parts.items()}
        emit({**adopted.provenance, "kwargs": dict(adopted.kwargs), "parts": parts, "published": published})
        return
    found = adopted.checkpoint
    click.echo(click.style(clean(f"{found}, {size(found.bytes)}"), bold=True))
    for one in adopted.told:
        click.echo(f"  {clean(one)}")
    tell_parts(adopted.model, asked.point, adopted.parts, published.values())
    next_step("compatkit", *given(context).words, "check", published["extractor"], "*.head")
