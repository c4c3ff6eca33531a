"""Text of a model card: derived from manifests and measurements, bounded, and the same for the same contents.

Every text of a manifest is escaped, because a card is shown by web sites. A card is never read back as data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from compatkit.components.cards.contents import Contents, ListedComponent, Pair
from compatkit.contracts.manifest import About
from compatkit.foundation.display import visible
from compatkit.registry.remotes.objectstore import Site
from compatkit.reports import wording
from compatkit.reports.contracts import short_digest, summary
from compatkit.reports.markdown import escape, row

MARK = "<!-- compatkit writes this card anew at each push; changes are lost. -->"
"""Line by which a card of compatkit is recognized."""
MAX_SECTIONS = 10
"""Maximum number of components that are described in a section of their own."""
MAX_TITLE, MAX_CELL, MAX_DESCRIPTION = 120, 300, 2000
MAX_TAGS = 20
LICENSES = frozenset(
    {
        *("apache-2.0", "mit", "bsd-2-clause", "bsd-3-clause", "isc", "zlib", "unlicense", "wtfpl", "0bsd"),
        *("mpl-2.0", "epl-2.0", "gpl-2.0", "gpl-3.0", "lgpl-2.1", "lgpl-3.0", "agpl-3.0", "cc0-1.0", "cc-by-3.0"),
        *("cc-by-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nd-4.0"),
        *("cc-by-nc-sa-4.0", "cc-by-nc-nd-4.0", "openrail", "artistic-2.0", "afl-3.0", "ecl-2.0", "odbl"),
    }
)  # fmt: skip
"""Licenses that the Hub knows by these names, which are SPDX's in lower case; others are ``other``."""
_TAG = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+/-]{0,63}")
_REFERENCE = re.compile(r"[a-z0-9][a-z0-9._/-]{0,250}@[0-9]+\.[0-9]+\.[0-9]+")
_HUB_SOURCE = re.compile(
    r"(?:hf-hub:|https://huggingface\.co/)([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})/?", re.ASCII
)
"""Sources that are a repository of the Hub."""


def card(contents: Contents, site: Site, timm_reference: str = "") -> str:
    """Return the text of ``README.md``.

    Args:
        contents: What the remote holds.
        site: Address of the registry.
        timm_reference: Reference of the recombination that timm builds from this repository; empty if there is none.
    """
    components = contents.components
    lines = ["---", *metadata(contents), "---", "", MARK, "", f"# {_title(components, site)}", ""]
    lines += _introduction(components)
    lines += ["## Load", "", *_loading(components, site, timm_reference)]
    lines += _components(contents)
    for item in components[:MAX_SECTIONS]:
        lines += _section(item, contents)
    lines += _verdicts(contents)
    lines += [
        "---",
        "",
        "Derived from the manifests and measurements in this repository. They, and not this page, are read by "
        "compatkit, which verifies every file when it loads or pulls a component.",
    ]
    return "\n".join(lines).rstrip() + "\n"


def metadata(contents: Contents) -> list[str]:
    """Return the lines of the YAML metadata.

    Args:
        contents: What the remote holds.
    """
    about = [item.manifest.about for item in contents.components]
    values: dict[str, str | list[str]] = {"library_name": "compatkit"}
    licenses = {item.license.strip() for item in about}
    if len(licenses) == 1 and (name := licenses.pop()):
        if name.lower() in LICENSES:
            values["license"] = name.lower()
        else:
            values["license"] = "other"
            if slug := re.sub("[^a-z0-9.+]+", "-", name.lower()[:64]).strip("-"):
                values["license_name"] = slug
    if any(
        item.manifest.contract.data.labels
        for item in contents.components
        if item.manifest.kind in ("head", "recombination")
    ):
        values["pipeline_tag"] = "image-classification"
    sources = (_HUB_SOURCE.fullmatch(item.source.strip()) for item in about)
    if bases := sorted({source[1] for source in sources if source})[:MAX_TAGS]:
        values["base_model"] = bases
    values["tags"] = ["compatkit", *_tags(contents)]
    lines = []
    for key, value in values.items():
        if isinstance(value, str):
            lines.append(f"{key}: {json.dumps(value)}")
        else:
            lines += [f"{key}:", *(f"- {json.dumps(item)}" for item in value)]
    return lines


def _tags(contents: Contents) -> list[str]:
    texts: set[str] = set()
    for item in contents.components:
        texts |= {item.manifest.kind.replace("_", "-"), item.manifest.blueprint.model}
        texts |= set(item.manifest.about.tags.values())
    return sorted(text for text in texts if _TAG.fullmatch(text) and text != "compatkit")[:MAX_TAGS]


def _title(components: Sequence[ListedComponent], site: Site) -> str:
    if len(components) == 1:
        return _text(components[0].manifest.about.title or components[0].reference.name, MAX_TITLE)
    return _text(site.address.rpartition("/")[2], MAX_TITLE)


def _introduction(components: Sequence[ListedComponent]) -> list[str]:
    if not components:
        return ["This registry of neural network components is empty.", ""]
    count = (
        "A neural network component"
        if len(components) == 1
        else f"{len(components)} neural network components"
    )
    return [
        f"{count} with contracts, in a registry of compatkit: a component is a part of a network (an extractor, a "
        "head, an adapter) or a recombination of parts, pinned by the digest of its files.",
        "",
    ]


def _loading(components: Sequence[ListedComponent], site: Site, timm_reference: str) -> list[str]:
    address = json.dumps(visible(site.address))
    lines = ["```python", "import compatkit as ck", "", f'registry = ck.Registry.clone({address}, "parts")']
    lines += [f'part = registry.load("{components[0].reference}")'] if components else []
    lines += ["```", ""]
    if timm_reference:
        lines += [
            f"`config.json` and `model.safetensors` are {_text(timm_reference, MAX_CELL)} as a network of timm:",
            "",
            "```python",
            "import timm",
            "",
            f"network = timm.create_model({json.dumps(visible(site.timm_source))}, pretrained=True)",
            "```",
            "",
        ]
    return lines


def _components(contents: Contents) -> list[str]:
    lines = ["## Components", ""]
    rows = [
        (
            str(item.reference),
            item.manifest.kind.replace("_", " "),
            item.manifest.about.title,
            item.manifest.about.license or "not stated",
            short_digest(str(item.reference.digest)),
        )
        for item in contents.components
    ]
    lines += _table(("component", "kind", "title", "license", "digest"), rows)
    if contents.more:
        lines += [f"And {contents.more:,} more names.", ""]
    return lines


def _section(item: ListedComponent, contents: Contents) -> list[str]:
    about = item.manifest.about
    lines = [f"## {_text(str(item.reference), MAX_TITLE)}", ""]
    if about.description:
        lines += [_text(about.description, MAX_DESCRIPTION), ""]
    rows = [*_about(about), *summary(item.manifest).items(), *_parents(item, contents)]
    return [*lines, *_table(("contract", ""), rows)]


def _about(about: About) -> Iterator[tuple[str, str]]:
    for label in ("title", "license", "source"):
        if text := getattr(about, label):
            yield label, text
    if about.tags:
        yield "tags", ", ".join(f"{key} {value}" for key, value in sorted(about.tags.items()))


def _parents(item: ListedComponent, contents: Contents) -> Iterator[tuple[str, str]]:
    for parent in item.manifest.parents:
        name = contents.named(parent.component)
        yield parent.relation.replace("_", " "), name or short_digest(parent.component)


def _verdicts(contents: Contents) -> list[str]:
    if not contents.pairs:
        return []
    lines = [
        "## Verdicts",
        "",
        "Whether each head fits each extractor, from contracts and measurements. Equal shapes alone are no proof.",
        "",
    ]
    lines += _table(
        ("extractor", "head", "batch norm", "verdict", "wiring", "promise", "evidence"),
        (
            (
                str(pair.report.extractor),
                str(pair.report.head),
                pair.bn_policy,
                pair.report.word,
                pair.report.wiring,
                pair.report.promise,
                pair.report.evidence,
            )
            for pair in contents.pairs
        ),
    )
    if contents.more_pairs:
        lines += [f"And {contents.more_pairs:,} more pairs.", ""]
    if rows := [texts for pair in contents.pairs for texts in _measured(pair)]:
        lines += [
            "## Evidence",
            "",
            "Accuracy on images of the classes that data set and head share; chance is the most frequent one.",
            "",
        ]
        lines += _table(("extractor", "head", "images", "batch norm", "accuracy", "chance", "grade"), rows)
    return lines


def _measured(pair: Pair) -> Iterator[tuple[str, ...]]:
    for cell in pair.measured:
        if cell.restricted is not None:
            yield (
                cell.extractor,
                cell.head,
                str(cell.settings.get("data", "")),
                str(cell.settings.get("policy", "")),
                f"{wording.share(cell.restricted.accuracy)} ({wording.interval(cell.restricted)})",
                "" if cell.chance is None else wording.share(cell.chance),
                cell.grade,
            )


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        row(*names),
        row(*["---"] * len(names)),
        *(row(*(_text(text, MAX_CELL) for text in texts)) for texts in rows),
        "",
    ]


def _text(text: str, limit: int) -> str:
    """Return a text of a manifest, cut and escaped for one line of Markdown; references are code, and no addresses."""
    text = text.strip()
    if _REFERENCE.fullmatch(text):
        return f"`{text}`"
    return escape(text if len(text) <= limit else f"{text[: limit - 3]}...")
