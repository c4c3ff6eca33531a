"""Which files of a site a push writes: a card, and those of timm for the only recombination.

Files of others are left as they are, and everything else is written from what the remote holds, so that two people who
push the same to it write the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compatkit.errors import CompatkitError, EnvironmentFailure

if TYPE_CHECKING:
    from compatkit.components.cards.contents import ListedComponent
    from compatkit.registry.copy.settings import SiteWriter
    from compatkit.registry.remotes.objectstore import Site, SiteFiles
    from compatkit.registry.remotes.remote import Remote
    from compatkit.registry.store import Store

CARD = "README.md"
MAX_CARD = 2**21
"""Number of bytes read of a card; compatkit's own are shorter."""
REPLACE = "To replace it, use `compatkit push --replace-card`, or push(..., replace_card=True) in Python."


def site_files(*, replace: bool) -> SiteWriter:
    """Return the function that describes a remote to the visitors of its site.

    Args:
        replace: Whether to replace files that others wrote.
    """

    def changes(store: Store, remote: Remote, site: Site, notes: list[str]) -> SiteFiles:
        return _changes(store, remote, site, notes, replace)

    return changes


def _changes(store: Store, remote: Remote, site: Site, notes: list[str], replace: bool) -> SiteFiles:
    """Return the files to write or remove."""
    from compatkit.components.cards.contents import read_contents
    from compatkit.components.cards.text import MARK, card

    contents = read_contents(remote, notes)
    recombinations = contents.recombinations
    only = recombinations[0] if len(recombinations) == 1 and not contents.more and site.timm_source else None
    files, by_timm = _timm_files(store, remote, site, notes, only, replace)
    text = card(contents, site, str(only.reference) if only is not None and by_timm else "").encode()
    present = remote.files.read(CARD, 0, MAX_CARD)
    if present is not None and MARK.encode() not in present and not replace:
        notes.append(f"{site.address} has a {CARD} that compatkit did not write, so it was left. {REPLACE}")
    elif text != present:
        files[CARD] = text
    return files


def _timm_files(
    store: Store, remote: Remote, site: Site, notes: list[str], only: ListedComponent | None, replace: bool
) -> tuple[dict[str, bytes | Path | None], bool]:
    """Return the changes of the files for timm, and whether the only recombination can then be read from them."""
    from compatkit.components.cards.timm_files import (
        CONFIG,
        MAX_CONFIG,
        WEIGHTS,
        described_component,
        is_of_timm,
        write_timm_files,
    )

    config = remote.files.read(CONFIG, 0, MAX_CONFIG)
    has_weights = remote.files.size(WEIGHTS) is not None
    described = described_component(config)
    present = {CONFIG: config is not None, WEIGHTS: has_weights}
    is_others = described is None and any(present.values())
    try:
        if only is not None and is_of_timm(remote, only):
            if is_others and not replace:
                notes.append(f"{site.address} has files for timm that compatkit did not write. {REPLACE}")
                return {}, False
            if described == only.reference.digest and all(present.values()) and not replace:
                return {}, True
            if store.objects.size(str(only.reference.digest)) is not None:
                return {**write_timm_files(store, only, Path(remote.scratch))}, True
    except EnvironmentFailure:
        raise
    except CompatkitError as error:
        notes.append(f"There are no files for timm: {error}")
    stale = [name for name, there in present.items() if there] if described is not None else []
    return dict.fromkeys(stale), False
