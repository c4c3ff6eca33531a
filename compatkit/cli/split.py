"""``compatkit split MODEL --at NAME``: cut a model, verify the cut, show and optionally publish both parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compatkit.cli.cuts import ModelAsked, model_options
from compatkit.cli.images import load_data_set, offline
from compatkit.cli.options import (
    NamedDataAsked,
    about,
    about_options,
    check_publishes,
    command,
    labels_option,
    named_data_options,
    sign_option,
)
from compatkit.cli.output import emit, rows
from compatkit.cli.roots import destination, publishing
from compatkit.cli.sign import chosen_key, sign_published
from compatkit.registry.names import check_name

if TYPE_CHECKING:
    from compatkit.components.drafts import Draft


class SplitAsked(ModelAsked, NamedDataAsked):
    """Arguments and options of ``split``."""

    model: str
    point: str
    publish: str | None
    pretrained: bool
    seed: int
    labels: str | None
    name: str | None


@command(
    "split",
    SplitAsked,
    help="Cut MODEL (any of timm's, torchvision's, a plugin's, or ours) and show what crosses, with both parts' "
    "contracts.",
)
@click.argument("model")
@click.option(
    "--at",
    "point",
    required=True,
    metavar="NAME",
    help="Where to cut: a module path such as layer3, or forward_features; `compatkit cuts MODEL` lists them.",
)
@model_options
@click.option("--publish", metavar="PREFIX", help="Publish the parts as PREFIX.extractor and PREFIX.head.")
@sign_option
@click.option(
    "--pretrained", is_flag=True, help="Use the library's pretrained weights instead of random ones."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random weights.")
@labels_option
@click.option(
    "--data",
    "name",
    metavar="NAME",
    help="Training images by name or path, for feature statistics.",
)
@about_options
@named_data_options
def split_command(context: click.Context, asked: SplitAsked) -> None:
    """Cut a model; the parts must reproduce the whole bitwise."""
    check_publishes(context, asked.publish)
    root, key = None, chosen_key(context)
    if asked.publish is not None:
        check_name(f"{asked.publish}.extractor")
        root = destination(context)
    images = None
    if asked.name is not None:
        images = load_data_set(asked.name, asked.data_root, asked.download, asked.damaged).train
    with offline(unless=asked.download):
        from compatkit.components.splitting import publish_split, split

        parts = split(
            asked.model,
            asked.point,
            labels=class_names(asked.labels),
            data=images,
            **asked.only("kwargs", "size", "builder", "pretrained", "seed"),
        )
    published, signed = {}, {}
    if root is not None and asked.publish is not None:
        held = publishing(root)
        published = publish_split(held.store, parts, asked.publish, about=about(context))
        signed = sign_published(held, published.values(), key)
    if asked.machine:
        found = {side: part.to_json() for side, part in parts.items()}
        done = {"published": published, **signed, "bitwise_equal": True}
        emit({"model": asked.model, "split": asked.point, "parts": found, **done})
        return
    tell_parts(asked.model, asked.point, parts, published.values(), bool(signed))


def tell_parts(
    model: str, point: str, parts: Mapping[str, Draft], published: Iterable[str], signed: bool = False
) -> None:
    """Print that a cut is exact, both parts, and the published references.

    Args:
        model: Name of the network.
        point: Split point.
        parts: Both parts, by side.
        published: References, if the parts were published.
        signed: Whether they were signed.
    """
    click.echo(f"{model} cut at {point}: head(extractor(x)) equals the whole network bitwise")
    for side, part in parts.items():
        click.echo(click.style(side, bold=True))
        rows(part.describe())
    for reference in published:
        click.echo(f"published {reference}{' and signed it' if signed else ''}")


def class_names(path: str | None) -> list[str] | None:
    """Return the lines of a file of class names, or None without a file.

    Raises:
        UsageError: The file is not UTF-8 (click's error, shown with the command).
    """
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"--labels {path}: expected UTF-8, got an invalid byte at offset {error.start}."
        ) from error
    return text.removesuffix("\n").replace("\r\n", "\n").split("\n")
