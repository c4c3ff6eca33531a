"""``compatkit split MODEL --at NAME``: cut a model, prove the cut, show (and keep) both parts."""

from __future__ import annotations

import json
from typing import Any

import click

from compatkit.cli.shared import emit, json_option, registry


@click.command("split", help="Cut MODEL at a split point and show what crosses, with both parts' contracts.")
@click.argument("model")
@click.option("--at", "point", required=True, metavar="NAME", help="Module path, or forward_features.")
@click.option("--kwargs", default="{}", metavar="JSON", help="Further arguments of the model.")
@click.option(
    "--publish", metavar="PREFIX", help="Publish PREFIX.extractor and PREFIX.head (random weights)."
)
@click.option("--pretrained", is_flag=True, help="Start from timm's pretrained weights.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random weights.")
@json_option
@click.pass_context
def split_command(
    context: click.Context,
    model: str,
    point: str,
    kwargs: str,
    publish: str | None,
    pretrained: bool,
    seed: int,
    machine: bool,
) -> None:
    """Cut a model; the parts must reproduce the whole bitwise."""
    from compatkit.splitting import publish_split, split

    held = registry(context, create=True) if publish else None
    try:
        settings = json.loads(kwargs)
    except ValueError as error:
        raise click.UsageError(f"--kwargs is no JSON: {error}") from error
    if not isinstance(settings, dict):
        raise click.UsageError(f"--kwargs expects a JSON object, got {kwargs}.")
    parts = split(model, point, kwargs=settings, pretrained=pretrained, seed=seed)
    published = publish_split(held, parts, publish) if held is not None and publish else {}
    rows = {side: part.describe() for side, part in parts.items()}
    if machine:
        emit({"model": model, "split": point, "parts": rows, "published": published, "bitwise_equal": True})
        return
    click.echo(f"{model} cut at {point}: head(extractor(x)) equals the whole network bitwise")
    for side, row in rows.items():
        click.echo(click.style(side, bold=True))
        _print(row)
    for reference in published.values():
        click.echo(f"published {reference}")


def _print(row: dict[str, Any]) -> None:
    width = max(map(len, row))
    for label, text in row.items():
        click.echo(f"  {label:<{width}}  {text}")
