"""``compatkit adopt``: adopt a checkpoint of timm or torchvision as an extractor and a head with contracts."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.images import NamedDataOptions
from compatkit.cli.options import argument, command, option
from compatkit.cli.output import clean, emit, next_step, size
from compatkit.cli.releases import AboutOptions
from compatkit.cli.roots import destination, open_or_create_registry
from compatkit.cli.split import ClassNameOptions, print_parts
from compatkit.registry.names import check_name

IMAGES = ("mean", "std", "interpolation", "crop_pct")
"""Options of the preprocessing of images."""


def numbers(value: str) -> tuple[float, ...]:
    """Read ``0.485,0.456,0.406``."""
    try:
        return tuple(float(number) for number in value.split(","))
    except ValueError as error:
        raise click.BadParameter(f"expected numbers separated by commas, got {value!r:.100}.") from error


def renames(values: tuple[str, ...]) -> dict[str, str]:
    """Read ``module.=`` and ``old.=new.``."""
    if wrong := [value for value in values if "=" not in value]:
        raise click.BadParameter(f"expected OLD=NEW, such as module.=, got {wrong[0]!r:.100}.")
    return dict(value.split("=", 1) for value in values)


class AdoptOptions(ClassNameOptions, AboutOptions, NamedDataOptions):
    """Arguments and options of ``adopt``."""

    file: Path = argument()
    model: str | None = option(
        "Network of the weights; default: that of config.json, or of the export.", metavar="MODEL"
    )
    cut: str | None = option(
        "Module after which to cut, such as layer3; default: that of the export. See `compatkit cuts MODEL`.",
        metavar="MODULE",
    )
    name: str = option("Name of the parts, such as zoo/resnet18.")
    key: str | None = option("Entry of FILE with the weights, such as model_ema.", metavar="ENTRY")
    rename: dict[str, str] = option(
        "Replace the prefix OLD of tensor names by NEW, such as `module.=`; may be repeated.",
        multiple=True,
        convert=renames,
        metavar="OLD=NEW",
    )
    dataset: str | None = option("Training images by name or path, for feature statistics.", "--data")
    dataset_labels: bool = option("Use the class names of --data.")
    mean: tuple[float, ...] | None = option(
        "Mean of the images, from 0 to 1: one number, or one per channel.", convert=numbers, metavar="NUMBERS"
    )
    std: tuple[float, ...] | None = option(
        "Standard deviation, likewise.", convert=numbers, metavar="NUMBERS"
    )
    interpolation: str | None = option("Resizing: bilinear, bicubic, lanczos or nearest.", metavar="KIND")
    crop_pct: float | None = option("Share of the resized image that is kept, as in timm.", metavar="SHARE")


@command("adopt", AdoptOptions)
def adopt_command(options: AdoptOptions) -> int | None:
    """Load a checkpoint FILE into MODEL, cut it after MODULE, publish NAME.extractor and NAME.head.

    FILE is a safetensors file, a file of torch.save (.pth, .pt, .bin) or torch.export (.pt2), or a folder with one,
    such as MLflow's. Preprocessing is read from config.json and preprocessor_config.json next to the weights. Pickles
    are read as tensors only, in a subprocess with limits. An exported recombination says everything itself.

    Examples:
        # cut a checkpoint of timm's resnet18 after layer3
        compatkit adopt resnet18.pth --model resnet18 --cut layer3 --name zoo/mine
        # take back an export, which says model and cut itself
        compatkit adopt mixed.safetensors --name zoo/mixed
    """
    check_name(f"{options.name}.extractor")
    if options.dataset_labels and (options.dataset is None or options.labels is not None):
        raise click.UsageError("--dataset-labels needs --data NAME, and no --labels.")
    root = destination()
    data = None if options.dataset is None else options.load(options.dataset).train
    labels = options.class_names()
    if options.dataset_labels and data is not None:
        labels = list(data.classes)
    from compatkit.components.adopting import adopt

    adopted = adopt(
        options.file.expanduser(),
        labels=labels,
        data=data,
        preprocessing={name: value for name, value in options.only(*IMAGES).items() if value is not None},
        **options.only("model", "cut", "builder", "kwargs", "size", "key", "rename"),
    )
    published = adopted.publish(open_or_create_registry(root).store, options.name, about=options.about())
    if options.json:
        parts = {side: part.to_json() for side, part in adopted.parts.items()}
        result = {"kwargs": dict(adopted.kwargs), "parts": parts, "published": published}
        return emit({**adopted.provenance, **result})
    checkpoint = adopted.checkpoint
    click.echo(click.style(clean(f"{checkpoint}, {size(checkpoint.bytes)}"), bold=True))
    for line in adopted.notes:
        click.echo(f"  {clean(line)}")
    print_parts(adopted.model, adopted.cut, adopted.parts, published.values())
    next_step("check", published["extractor"], "*.head")
