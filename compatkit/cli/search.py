"""The command search: find versions by kind, tags, model, width or class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import json_option, registry_option, tags
from compatkit.cli.output import columns, emit, paragraph
from compatkit.cli.roots import store

if TYPE_CHECKING:
    from compatkit.registry.index.search import Found

SHOWN = 50
"""Versions that a person is shown without asking for more."""
HEADER = ("name", "version", "kind", "parameters", "channels", "network", "tags", "title")


@click.command(
    "search",
    help="Search versions; every filter must fit. PATTERN is a glob over whole names, such as 'digits/*.head', or "
    "words that stand in name, title, description, model or tags, such as resnet.",
)
@click.argument("pattern", required=False)
@click.option("--kind", help="extractor, head, auxiliary_head, adapter, ...")
@click.option(
    "--tag", "tagged", multiple=True, metavar="KEY=VALUE", callback=tags, help="A tag; may be repeated."
)
@click.option("--model", metavar="GLOB", help="The blueprint's model, such as 'resnet*'.")
@click.option("--channels", type=int, help="A feature width: of an extractor's outputs, a head's inputs.")
@click.option("--class", "label", metavar="NAME", help="A class, by any of its names.")
@click.option("--anchor", metavar="DIGEST", help="What it was trained against: a digest, or how it begins.")
@click.option("--parent", metavar="REF", help="What it came from: a reference, or a manifest's digest.")
@click.option("--text", metavar="WORDS", help="Words that all stand in title, description, model or tags.")
@click.option("--latest", is_flag=True, help="Only the latest version of each name.")
@click.option("--withdrawn", is_flag=True, help="Withdrawn versions too.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    help=f"At most so many.  [default: {SHOWN}; all with --json]",
    metavar="N",
)
@registry_option
@json_option
@click.pass_context
def search_command(
    context: click.Context,
    pattern: str | None,
    kind: str | None,
    tagged: dict[str, str],
    limit: int | None,
    machine: bool,
    **filters: str | int | bool | None,
) -> None:
    """Search versions."""
    from compatkit.registry.index.search import Query
    from compatkit.registry.resolving import is_pattern

    index = store(context).index
    most = limit if limit is not None or machine else SHOWN
    as_words = pattern is not None and not is_pattern(pattern) and not {"@", ":"} & {*pattern}
    filters["anywhere" if as_words else "pattern"] = pattern
    query = Query(kind=kind and kind.replace(" ", "_"), tags=tagged, limit=most, **filters)  # pyright: ignore[reportArgumentType]
    found = index.search(query)
    total = len(found) if most is None or len(found) < most else max(len(found), index.count(query))
    if machine:
        emit({"total": total, "components": [one.to_json() for one in found]})
        return
    if found:
        columns([HEADER, *map(_cells, found)], right=(3, 4))
    if total > len(found):
        paragraph(f"{total - len(found):,} more; --limit {total} shows them all.")
    elif not found:
        paragraph("nothing fits; `compatkit ls` lists all components.")


def _cells(one: Found) -> tuple[str, ...]:
    title = f"{one.title} (withdrawn)".strip() if one.withdrawn else one.title
    return (
        one.name,
        one.version,
        one.kind.replace("_", " "),
        f"{one.parameters:,}",
        " ".join(map(str, one.channels)),
        f"{one.model} @ {one.split}",
        " ".join(f"{key}={value}" for key, value in one.tags.items()),
        title,
    )
