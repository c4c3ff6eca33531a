"""Reading components from an OCI image layout: verified, and named last, as from any remote."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from compatkit.errors import CompatkitError
from compatkit.registry.copy.choice import Choice
from compatkit.registry.copy.folders import IntoFolder
from compatkit.registry.copy.moved import Moved, Refusal
from compatkit.registry.copy.moving import Move
from compatkit.registry.oci.imagelayout import ImageLayout
from compatkit.registry.remotes.mirror import scratch
from compatkit.registry.remotes.transferring import asked

if TYPE_CHECKING:
    from compatkit.registry.store import Store


def import_layout(
    store: Store | Callable[[], Store],
    folder: Path,
    patterns: Iterable[str] | None = None,
    *,
    choice: Choice | None = None,
) -> Moved:
    """Copy components of an image layout to a registry.

    Args:
        store: Where they shall be too; or what makes it, called once the layout is known to hold what is asked for.
        folder: The layout; only read.
        patterns: Names, globs, or references for one version of each; None takes all there is.
        choice: What is moved, and how; a layout holds no results or aliases.

    Returns:
        What came here, and what was refused; its ``check`` raises where something was.

    Raises:
        NotFound: A pattern matches nothing.
        LayoutError: The folder is no image layout.
        EnvironmentFailure: Disk full, no right to write; the same call goes on where it stopped.
    """
    chosen = attrs.evolve(choice or Choice(), evidence=False, aliases=False)
    refused: list[Refusal] = []

    def refuse(what: str, error: CompatkitError) -> None:
        if chosen.strict:
            raise error
        refused.append(Refusal(what, error))

    with scratch() as mirror:
        layout = ImageLayout(folder.expanduser().absolute(), Path(mirror), refuse)
        wanted = asked(layout, patterns)
        target = IntoFolder(store() if callable(store) else store)
        moved = Move(layout, target, chosen).run(wanted)
    moved.refused[:0] = refused
    return moved
