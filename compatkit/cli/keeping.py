"""Keeping a recombination that was put together on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click

from compatkit.cli.options import given
from compatkit.cli.output import next_step, paragraph
from compatkit.cli.roots import destination, store
from compatkit.errors import NotFound, UsageError

if TYPE_CHECKING:
    from compatkit.components.workspace import Registry
    from compatkit.contracts.contract import Kind
    from compatkit.contracts.evidence import Cell
    from compatkit.contracts.manifest import About
    from compatkit.evaluation.recombination import Recombination


@attrs.frozen
class Kept:
    """What became of a recombination that was to be published.

    Attributes:
        reference: ``name@version``; empty where it was not published.
        note: What to know of it, in words.
    """

    reference: str
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"published": self.reference or None}


def check_target(context: click.Context, name: str, kind: Kind) -> None:
    """Refuse a name or a registry that nothing of a kind can be published under, before any work.

    Under one name stands one kind: its newest version is what the bare name means.

    Raises:
        InvalidName: It is no component name.
        EnvironmentFailure: The registry cannot be written.
        LayoutError: There is none.
        UsageError: Something of another kind has this name.
    """
    from compatkit.registry.names import check_name

    check_name(name)
    destination(context)
    held = store(context)
    try:
        there = held.resolve(name)
    except NotFound:
        return
    found = held.manifest(there).kind
    if found != kind:
        came, wanted = (one.replace("_", " ") for one in (found, kind))
        raise UsageError(
            f"{name}@{there.version} is of kind {came}, and what is published here is of kind {wanted}; as the newest "
            f"version it would take the place of the {came} wherever {name} is named. Choose another name.",
            subject=name,
        )


def keep(
    held: Registry, name: str | None, model: Recombination, cell: Cell | None, about: About
) -> Kept | None:
    """Publish a recombination, unless it was measured at chance, or could not be measured; None for no name."""
    if name is None:
        return None
    if cell is not None and (cell.grade == "chance" or cell.restricted is None):
        why = "it is at chance" if cell.restricted is not None else f"it could not be measured: {cell.reason}"
        return Kept("", f"not published: {why}. --no-measure publishes it all the same.")
    reference = held.publish(model, name, about=about)
    note = ""
    if model.estimated:
        data = model.estimated["data"]
        note = (
            f"Its statistics are those of {data['images']:,} images of {data['name']}; the figures above are with "
            "statistics of the test images."
            if cell is not None
            else f"Its statistics are those of {data['images']:,} images of {data['name']}."
        )
    return Kept(reference, note)


def tell_kept(kept: Kept | None) -> None:
    """Print what became of it."""
    if kept is None:
        return
    click.echo()
    if kept.reference:
        click.echo(f"published {kept.reference}")
    if kept.note:
        paragraph(kept.note)
    if kept.reference:
        name = kept.reference.partition("@")[0].rpartition("/")[2]
        where = given(click.get_current_context()).words
        next_step("compatkit", *where, "export", kept.reference, f"{name}.safetensors")
