"""``compatkit split MODEL --cut MODULE``: cut a model, verify the cut, show and optionally publish both parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compatkit.cli.cuts import ModelOptions
from compatkit.cli.images import load_data_set, offline
from compatkit.cli.options import (
    AboutOptions,
    NamedDataOptions,
    SigningOptions,
    argument,
    command,
    labels_option,
    option,
)
from compatkit.cli.output import emit, rows
from compatkit.cli.roots import destination, open_or_create_registry
from compatkit.cli.sign import chosen_key, sign_published
from compatkit.registry.names import check_name

if TYPE_CHECKING:
    from compatkit.components.drafts import Draft


class SplitOptions(ModelOptions, SigningOptions, AboutOptions, NamedDataOptions):
    """Arguments and options of ``split``."""

    model: str = argument()
    cut: str = option(
        "Where to cut: a module path such as layer3, or forward_features; `compatkit cuts MODEL` lists them.",
        metavar="MODULE",
    )
    publish: str | None = option("Publish the parts as PREFIX.extractor and PREFIX.head.", metavar="PREFIX")
    pretrained: bool = option("Use the library's pretrained weights instead of random ones.")
    seed: int = option("Seed of the random weights.", default=0)
    labels: str | None = labels_option
    name: str | None = option(
        "Training images by name or path, for feature statistics.", "--data", metavar="NAME"
    )


@command(
    "split",
    SplitOptions,
    help="Cut MODEL (any of timm's, torchvision's, a plugin's, or ours) and show what crosses, with both parts' "
    "contracts.",
)
def split_command(context: click.Context, options: SplitOptions) -> None:
    """Cut a model; the parts must reproduce the whole bitwise."""
    options.check_publishes(options.publish)
    root, key = None, chosen_key(options)
    if options.publish is not None:
        check_name(f"{options.publish}.extractor")
        root = destination(context)
    images = None
    if options.name is not None:
        images = load_data_set(options.name, options.data_root, options.download, options.damaged).train
    with offline(unless=options.download):
        from compatkit.components.splitting import publish_split, split

        parts = split(
            options.model,
            options.cut,
            labels=class_names(options.labels),
            data=images,
            **options.only("kwargs", "size", "builder", "pretrained", "seed"),
        )
    published, signed = {}, {}
    if root is not None and options.publish is not None:
        registry = open_or_create_registry(root)
        published = publish_split(registry.store, parts, options.publish, about=options.about())
        signed = sign_published(registry, published.values(), key)
    if options.json:
        described = {side: part.to_json() for side, part in parts.items()}
        done = {"published": published, **signed, "bitwise_equal": True}
        emit({"model": options.model, "cut": options.cut, "parts": described, **done})
        return
    print_parts(options.model, options.cut, parts, published.values(), bool(signed))


def print_parts(
    model: str, cut: str, parts: Mapping[str, Draft], published: Iterable[str], signed: bool = False
) -> None:
    """Print that a cut is exact, both parts, and the published references.

    Args:
        model: Name of the network.
        cut: Module after which it was cut.
        parts: Both parts, by side.
        published: References, if the parts were published.
        signed: Whether they were signed.
    """
    click.echo(f"{model} cut at {cut}: head(extractor(x)) equals the whole network bitwise")
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
