"""``compatkit extend``: publish a head with more classes."""

from __future__ import annotations

import click

from compatkit.cli.images import found_in
from compatkit.cli.options import (
    DataAsked,
    about,
    about_options,
    command,
    data_options,
    sign_option,
    signature_options,
    version_option,
)
from compatkit.cli.output import emit, progress
from compatkit.cli.roots import check_target, registry
from compatkit.cli.sign import chosen_key, sign_published


class ExtendAsked(DataAsked):
    """Arguments and options of ``extend``."""

    head: str
    classes: str
    publish: str
    seed: int
    version: str | None


@command(
    "extend",
    ExtendAsked,
    help="Add classes to HEAD: its own weights are kept bitwise, and new rows are initialized as its network does. "
    "Train the new head on all classes next.",
)
@click.argument("head")
@click.option("--classes", required=True, metavar="A,B,C", help="Names of the new classes, in order.")
@click.option("--publish", required=True, metavar="NAME", help="Name of the new head.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the new rows.")
@version_option
@about_options
@sign_option
@signature_options
@data_options
def extend_command(context: click.Context, asked: ExtendAsked) -> None:
    """Extend and publish; the name is checked first."""
    check_target(context, asked.publish, "head", asked.version)
    key, held = chosen_key(context), registry(context)
    names = [name.strip() for name in asked.classes.split(",")]
    if not all(names):
        raise click.UsageError(f"--classes expects names separated by commas, got {asked.classes!r}.")
    with progress("policies") as report:
        kept = held.extend(
            asked.head,
            names,
            asked.publish,
            about=about(context),
            data=(found_in(asked.data_root, asked.download),),
            progress=report,
            **asked.only("seed", "version"),
        )
    signed = sign_published(held, [kept], key)
    classes = [one.name for one in held.store.manifest(kept).contract.data.labels or ()]
    if asked.machine:
        emit({"published": kept, "classes": classes, "added": names, "seed": asked.seed, **signed})
        return
    click.echo(f"{', '.join(classes)}: the last {len(names)} are new")
    click.echo(f"published {kept}{' and signed it' if signed else ''}")
