"""``compatkit split MODEL --at NAME``: cut a model, prove the cut, show (and keep) both parts."""

from __future__ import annotations

import json
from typing import Any

import click

from compatkit.cli.options import json_option, registry_option
from compatkit.cli.output import emit, next_step, rows
from compatkit.cli.roots import destination, publishing
from compatkit.cli.weights import offline


@click.command(
    "split", help="Cut MODEL (any of timm's, or ours) and show what crosses, with both parts' contracts."
)
@click.argument("model")
@click.option(
    "--at",
    "point",
    metavar="NAME",
    help="Where to cut: a module path such as layer3, or forward_features. "
    "Without it, the points where MODEL can be cut are listed.",
)
@click.option(
    "--kwargs", default="{}", metavar="JSON", help="Further arguments of the model: '{\"in_chans\": 1}'."
)
@click.option("--publish", metavar="PREFIX", help="Publish the parts as PREFIX.extractor and PREFIX.head.")
@click.option(
    "--pretrained", is_flag=True, help="Start from timm's pretrained weights, not from random ones."
)
@click.option("--download", is_flag=True, help="Let timm download the pretrained weights.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random weights.")
@registry_option
@json_option
@click.pass_context
def split_command(
    context: click.Context,
    model: str,
    point: str | None,
    kwargs: str,
    publish: str | None,
    pretrained: bool,
    download: bool,
    seed: int,
    machine: bool,
) -> None:
    """Cut a model; the parts must reproduce the whole bitwise."""
    from compatkit.registry.names import check_name

    settings = _settings(kwargs)
    if point is None:
        if publish is not None:
            raise click.UsageError("--publish needs --at NAME.", context)
        _list_points(model, settings, machine)
        return
    root = None
    if publish is not None:
        check_name(f"{publish}.extractor")
        root = destination(context)
    with offline(unless=download):
        from compatkit.splitting import publish_split, split

        parts = split(model, point, kwargs=settings, pretrained=pretrained, seed=seed)
    published = (
        publish_split(publishing(root), parts, publish) if root is not None and publish is not None else {}
    )
    if machine:
        found = {side: part.to_json() for side, part in parts.items()}
        emit({"model": model, "split": point, "parts": found, "published": published, "bitwise_equal": True})
        return
    click.echo(f"{model} cut at {point}: head(extractor(x)) equals the whole network bitwise")
    for side, part in parts.items():
        click.echo(click.style(side, bold=True))
        rows(part.describe())
    for reference in published.values():
        click.echo(f"published {reference}")


def _settings(kwargs: str) -> dict[str, Any]:
    try:
        settings = json.loads(kwargs)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"--kwargs is no JSON: {error}") from error
    if not isinstance(settings, dict):
        raise click.UsageError(f"--kwargs expects a JSON object, got {kwargs}.")
    return settings


def _list_points(model: str, settings: dict[str, Any], machine: bool) -> None:
    from compatkit.adapters.blueprints import split_points

    points = split_points(model, settings)
    if machine:
        emit({"model": model, "split_points": points})
        return
    click.echo(f"{model} can be cut after any of these {len(points)}, in the order of the forward pass:")
    for one in points:
        click.echo(f"  {one}")
    if points:
        next_step("compatkit", "split", model, "--at", points[0])
