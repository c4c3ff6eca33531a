"""``compatkit extend``: a head for more classes, published."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compatkit.cli.keeping import check_target
from compatkit.cli.options import (
    about,
    about_options,
    data_options,
    json_option,
    registry_option,
    sign_option,
    signature_options,
)
from compatkit.cli.outcome import found_in
from compatkit.cli.output import emit, progress
from compatkit.cli.roots import registry
from compatkit.cli.signing import chosen_key, sign_published
from compatkit.registry.names import Version

if TYPE_CHECKING:
    from compatkit.components.workspace import Registry


@click.command(
    "extend",
    help="Give HEAD outputs for further classes: what it knows of its own stays, bit for bit, and new rows are drawn "
    "as its network draws them. Train the new head on all classes next.",
)
@click.argument("head")
@click.option("--classes", required=True, metavar="A,B,C", help="Names of the new classes, in order.")
@click.option("--publish", required=True, metavar="NAME", help="What the new head is called.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Draws the new rows.")
@click.option("--version", metavar="X.Y.Z", help="Its number; else the least step that it needs.")
@about_options
@sign_option
@signature_options
@data_options
@registry_option
@json_option
@click.pass_context
def extend_command(
    context: click.Context,
    head: str,
    classes: str,
    publish: str,
    seed: int,
    version: str | None,
    data_root: str | None,
    download: bool,
    machine: bool,
) -> None:
    """Extend and publish; a name that cannot be published under is refused first."""
    if version is not None:
        Version.parse(version)
    check_target(context, publish, "head")
    key, held = chosen_key(context), registry(context)
    names = [name.strip() for name in classes.split(",")]
    if not all(names):
        raise click.UsageError(f"--classes expects names with commas between them, got {classes!r}.")
    with progress("policies") as report:
        images = (found_in(data_root, download),)
        kept = held.extend(
            head,
            names,
            publish,
            seed=seed,
            version=version,
            about=about(context),
            data=images,
            progress=report,
        )
    signed = sign_published(held, [kept], key)
    if machine:
        emit({"published": kept, "classes": _labels(held, kept), "added": names, "seed": seed, **signed})
        return
    click.echo(f"{', '.join(_labels(held, kept))}: the last {len(names)} are new")
    click.echo(f"published {kept}{' and signed it' if signed else ''}")


def _labels(held: Registry, reference: str) -> list[str]:
    """Return all classes of a head, in the order of its outputs."""
    return [one.name for one in held.store.manifest(reference).contract.data.labels or ()]
