"""``compatkit extend``: publish a head with more classes."""

from __future__ import annotations

import click

from compatkit.cli.images import DataOptions
from compatkit.cli.options import argument, command, option
from compatkit.cli.output import emit, progress
from compatkit.cli.releases import AboutOptions, SigningOptions, sign_published, version_option
from compatkit.cli.roots import SignatureOptions, check_target, open_registry


class ExtendOptions(AboutOptions, SigningOptions, SignatureOptions, DataOptions):
    """Arguments and options of ``extend``."""

    head: str = argument()
    classes: str = option("Names of the new classes, in order.", metavar="A,B,C")
    publish: str = option("Name of the new head.")
    seed: int = option("Seed of the new rows.", min=0, default=0)
    version: str | None = version_option


@command("extend", ExtendOptions)
def extend_command(options: ExtendOptions) -> int | None:
    """Add classes to HEAD: its own weights are kept bitwise, and new rows are initialized as its network does.

    Train the new head on all classes next.

    Examples:
        # a head of twelve classes from one of ten
        compatkit extend digits/mnist.head --classes ten,eleven --publish digits/more.head
    """
    check_target(options.publish, "head", options.version)
    key, registry = options.key(), open_registry()
    names = [name.strip() for name in options.classes.split(",")]
    if not all(names):
        raise click.UsageError(f"--classes expects names separated by commas, got {options.classes!r}.")
    with progress("policies") as report:
        reference = registry.extend(
            options.head,
            names,
            options.publish,
            about=options.about(),
            data=(options.finder(),),
            progress=report,
            **options.only("seed", "version"),
        )
    signed = sign_published(registry, [reference], key)
    classes = [label.name for label in registry.store.manifest(reference).contract.data.labels or ()]
    if options.json:
        return emit(
            {"published": reference, "classes": classes, "added": names, "seed": options.seed, **signed}
        )
    click.echo(f"{', '.join(classes)}: the last {len(names)} are new")
    click.echo(f"published {reference}{' and signed it' if signed else ''}")
