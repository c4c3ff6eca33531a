"""``compatkit search``: find versions by kind, tags, model, width or class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Asked, command, tags
from compatkit.cli.output import columns, emit, paragraph
from compatkit.cli.roots import store
from compatkit.foundation.display import network_and_cut

if TYPE_CHECKING:
    from compatkit.registry.index.search import Found

SHOWN = 50
"""Default number of versions shown."""
FILTERS = ("model", "channels", "label", "anchor", "parent", "text", "latest", "withdrawn")
HEADER = ("name", "version", "kind", "parameters", "channels", "network", "tags", "title")


class SearchAsked(Asked):
    """Arguments and options of ``search``."""

    pattern: str | None
    kind: str | None
    tagged: dict[str, str]
    model: str | None
    channels: int | None
    label: str | None
    anchor: str | None
    parent: str | None
    text: str | None
    latest: bool
    withdrawn: bool
    limit: int | None


@command(
    "search",
    SearchAsked,
    help="Search versions; all filters must match. PATTERN is a glob over whole names, such as 'digits/*.head', or "
    "words to find in name, title, description, model or tags, such as resnet.",
)
@click.argument("pattern", required=False)
@click.option("--kind", help="extractor, head, auxiliary_head, adapter, ...")
@click.option(
    "--tag", "tagged", multiple=True, metavar="KEY=VALUE", callback=tags, help="A tag; may be repeated."
)
@click.option("--model", metavar="GLOB", help="The blueprint's model, such as 'resnet*'.")
@click.option("--channels", type=int, help="A feature width: of an extractor's outputs, a head's inputs.")
@click.option("--class", "label", metavar="NAME", help="A class, by any of its names.")
@click.option("--anchor", metavar="DIGEST", help="What it was trained against: a digest, or its beginning.")
@click.option("--parent", metavar="REF", help="Its parent: a reference, or a manifest digest.")
@click.option("--text", metavar="WORDS", help="Words that all occur in title, description, model or tags.")
@click.option("--latest", is_flag=True, help="Only the latest version of each name.")
@click.option("--withdrawn", is_flag=True, help="Include withdrawn versions.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    help=f"Most versions shown.  [default: {SHOWN}; all with --json]",
    metavar="N",
)
def search_command(context: click.Context, asked: SearchAsked) -> None:
    """Search versions."""
    from compatkit.registry.index.search import Query
    from compatkit.registry.resolving import is_pattern

    index, pattern = store(context).index, asked.pattern
    most = asked.limit if asked.limit is not None or asked.machine else SHOWN
    as_words = pattern is not None and not is_pattern(pattern) and not {"@", ":"} & {*pattern}
    query = Query(
        kind=asked.kind and asked.kind.replace(" ", "_"),
        tags=asked.tagged,
        limit=most,
        **{"anywhere" if as_words else "pattern": pattern},
        **asked.only(*FILTERS),
    )
    found = index.search(query)
    total = len(found) if most is None or len(found) < most else max(len(found), index.count(query))
    if asked.machine:
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
        network_and_cut(one.model, one.split),
        " ".join(f"{key}={value}" for key, value in one.tags.items()),
        title,
    )
