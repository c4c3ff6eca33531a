"""``compatkit split MODEL --cut MODULE``: cut a model, verify the cut, show and optionally publish both parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compatkit.cli.cuts import ModelOptions
from compatkit.cli.images import NamedDataOptions, offline
from compatkit.cli.options import argument, command, option
from compatkit.cli.output import emit, rows
from compatkit.cli.releases import AboutOptions, SigningOptions, sign_published
from compatkit.cli.roots import destination, open_or_create_registry
from compatkit.registry.names import check_name

if TYPE_CHECKING:
    from compatkit.components.drafts import Draft


class ClassNameOptions(ModelOptions):
    """Model to cut, and class names of its outputs."""

    labels: Path | None = option("Class names of the outputs, one per line.", exists=True, dir_okay=False)

    def class_names(self) -> list[str] | None:
        """Return the lines of the file of class names, or None without a file.

        Raises:
            UsageError: The file is not UTF-8 (click's error, shown with the command).
        """
        if self.labels is None:
            return None
        try:
            text = self.labels.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise click.UsageError(
                f"--labels {self.labels}: expected UTF-8, got an invalid byte at offset {error.start}."
            ) from error
        return text.removesuffix("\n").replace("\r\n", "\n").split("\n")


class SplitOptions(ClassNameOptions, SigningOptions, AboutOptions, NamedDataOptions):
    """Arguments and options of ``split``."""

    model: str = argument()
    cut: str = option(
        "Module after which to cut, such as layer3; see `compatkit cuts MODEL`.", metavar="MODULE"
    )
    publish: str | None = option("Publish the parts as PREFIX.extractor and PREFIX.head.", metavar="PREFIX")
    pretrained: bool = option("Use the library's pretrained weights instead of random ones.")
    seed: int = option("Seed of the random weights.", default=0)
    name: str | None = option("Training images by name or path, for feature statistics.", "--data")


@command("split", SplitOptions)
def split_command(options: SplitOptions) -> int | None:
    """Cut MODEL into an extractor and a head, and show the contracts of both; --publish publishes them.

    MODEL is a model of timm, torchvision, compatkit or a plugin. The parts must reproduce it bitwise.

    Examples:
        # ports and sizes of both parts
        compatkit split resnet18 --cut layer3
        # publish both with timm's weights
        compatkit split resnet18 --cut layer3 --pretrained --publish zoo/resnet18
    """
    options.check_publishes()
    root, key = None, options.key()
    if options.publish is not None:
        check_name(f"{options.publish}.extractor")
        root = destination()
    images = None if options.name is None else options.load(options.name).train
    with offline(unless=options.download):
        from compatkit.components.splitting import publish_split, split

        parts = split(
            options.model,
            options.cut,
            labels=options.class_names(),
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
        return emit({**options.only("model", "cut"), "parts": described, **done})
    print_parts(options.model, options.cut, parts, published.values(), bool(signed))


def print_parts(
    model: str, cut: str, parts: Mapping[str, Draft], published: Iterable[str], signed: bool = False
) -> None:
    """Print that a cut is exact, both parts, and the published references."""
    click.echo(f"{model} cut at {cut}: head(extractor(x)) equals the network bitwise")
    for side, part in parts.items():
        click.echo(click.style(side, bold=True))
        rows(part.describe())
    for reference in published:
        click.echo(f"published {reference}{' and signed it' if signed else ''}")
