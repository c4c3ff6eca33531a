"""``compatkit split MODEL --at NAME``: cut a model, prove the cut, show (and keep) both parts."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.cuts import image_size, model_arguments, model_options
from compatkit.cli.options import (
    about,
    about_options,
    check_publishes,
    data_options,
    json_option,
    registry_option,
    sign_option,
)
from compatkit.cli.output import emit, rows
from compatkit.cli.roots import destination, publishing
from compatkit.cli.signing import chosen_key, sign_published
from compatkit.cli.weights import offline


@click.command(
    "split",
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
    "--pretrained", is_flag=True, help="Start from the library's pretrained weights, not from random ones."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random weights.")
@click.option(
    "--labels",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Class names in the order of the outputs, one a line; without them the head names no classes.",
)
@click.option(
    "--data",
    "name",
    metavar="NAME",
    help="Training images by name or path, to state what the features look like on them.",
)
@about_options
@data_options
@registry_option
@json_option
@click.pass_context
def split_command(
    context: click.Context,
    model: str,
    point: str,
    builder: str,
    kwargs: str,
    size: str | None,
    publish: str | None,
    pretrained: bool,
    seed: int,
    labels: Path | None,
    name: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
) -> None:
    """Cut a model; the parts must reproduce the whole bitwise."""
    from compatkit.registry.names import check_name

    check_publishes(context, publish)
    settings, sides = model_arguments(kwargs), image_size(size)
    root, key = None, chosen_key(context)
    if publish is not None:
        check_name(f"{publish}.extractor")
        root = destination(context)
    images = None
    if name is not None:
        from compatkit.data import load

        images = load(name, root=data_root, download=download).train
    with offline(unless=download):
        from compatkit.components.splitting import publish_split, split

        parts = split(
            model,
            point,
            kwargs=settings,
            size=sides,
            builder=builder,
            pretrained=pretrained,
            seed=seed,
            labels=None if labels is None else lines(labels),
            data=images,
        )
    published, signed = {}, {}
    if root is not None and publish is not None:
        held = publishing(root)
        published = publish_split(held, parts, publish, about=about(context))
        signed = sign_published(held, published.values(), key)
    if machine:
        found = {side: part.to_json() for side, part in parts.items()}
        done = {"published": published, **signed, "bitwise_equal": True}
        emit({"model": model, "split": point, "parts": found, **done})
        return
    click.echo(f"{model} cut at {point}: head(extractor(x)) equals the whole network bitwise")
    for side, part in parts.items():
        click.echo(click.style(side, bold=True))
        rows(part.describe())
    for reference in published.values():
        click.echo(f"published {reference}{' and signed it' if signed else ''}")


def lines(path: Path) -> list[str]:
    """Return the lines of a file of class names.

    Raises:
        UsageError: It is no UTF-8 (click's, shown with the command).
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"--labels {path}: expected UTF-8, got byte {error.start} that is none."
        ) from error
    return text.removesuffix("\n").replace("\r\n", "\n").split("\n")
