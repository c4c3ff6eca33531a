"""``compatkit search``: find versions by kind, tags, model, width or class."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compatkit.cli.options import Options, argument, command, option, tags
from compatkit.cli.output import columns, emit, paragraph
from compatkit.cli.roots import open_store
from compatkit.foundation.display import network_and_cut
from compatkit.registry.index.query import Query
from compatkit.registry.resolving import is_pattern

if TYPE_CHECKING:
    from compatkit.registry.index.search import SearchResult

SHOWN = 50
"""Default number of versions shown."""
FILTERS = ("model", "channels", "label", "anchor", "parent", "text", "latest", "withdrawn")
HEADER = ("name", "version", "kind", "parameters", "channels", "network", "tags", "title")


class SearchOptions(Options):
    """Arguments and options of ``search``."""

    pattern: str | None = argument()
    kind: str | None = option("extractor, head, auxiliary_head, adapter, ...")
    tagged: dict[str, str] = option(
        "Tag; may be repeated.", "--tag", multiple=True, metavar="KEY=VALUE", convert=tags
    )
    model: str | None = option("Model, such as 'resnet*'.", metavar="GLOB")
    channels: int | None = option("Width of the features: an extractor's outputs, a head's inputs.")
    label: str | None = option("Class, by any of its names.", "--class")
    anchor: str | None = option(
        "Digest, or its beginning, of a head that it was trained against.", metavar="DIGEST"
    )
    parent: str | None = option("Reference or digest of its parent.", metavar="REF")
    text: str | None = option("Words in title, description, model or tags.", metavar="WORDS")
    latest: bool = option("Only the latest version of each name.")
    withdrawn: bool = option("Include withdrawn versions.")
    limit: int | None = option(f"Versions shown.  [default: {SHOWN}; all with --json]", min=0, metavar="N")


@command("search", SearchOptions)
def search_command(options: SearchOptions) -> int | None:
    """Find versions that match all filters.

    PATTERN is a glob over names, such as 'digits/*.head', or words in name, title, description, model or tags.

    Examples:
        # by kind and tag
        compatkit search --kind head --tag dataset=mnist
        # by a word in names, titles, descriptions or models
        compatkit search resnet
        # latest versions that know a class
        compatkit search 'digits/*' --class cat --latest
    """
    index, pattern = open_store().index, options.pattern
    limit = options.limit if options.limit is not None or options.json else SHOWN
    as_words = pattern is not None and not is_pattern(pattern) and not {"@", ":"} & {*pattern}
    query = Query(
        kind=options.kind and options.kind.replace(" ", "_"),
        tags=options.tagged,
        limit=limit,
        **{"anywhere" if as_words else "pattern": pattern},
        **options.only(*FILTERS),
    )
    versions = index.search(query)
    total = (
        len(versions) if limit is None or len(versions) < limit else max(len(versions), index.count(query))
    )
    if options.json:
        return emit({"total": total, "components": [version.to_json() for version in versions]})
    if versions:
        columns([HEADER, *map(_cells, versions)], right=(3, 4))
    if total > len(versions):
        paragraph(f"{total - len(versions):,} more; --limit {total} shows them all.")
    elif not versions:
        paragraph("no matches; `compatkit ls` lists all components.")


def _cells(version: SearchResult) -> tuple[str, ...]:
    title = f"{version.title} (withdrawn)".strip() if version.withdrawn else version.title
    return (
        version.name,
        version.version,
        version.kind.replace("_", " "),
        f"{version.parameters:,}",
        " ".join(map(str, version.channels)),
        network_and_cut(version.model, version.cut),
        " ".join(f"{key}={value}" for key, value in version.tags.items()),
        title,
    )
