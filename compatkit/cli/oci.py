"""``compatkit oci export`` and ``import``: components as OCI image layouts for container registries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compatkit.cli.options import (
    AdmissionOptions,
    Options,
    PathType,
    SignatureOptions,
    argument,
    command,
    group,
)
from compatkit.cli.output import next_step, progress
from compatkit.cli.remote import (
    choice_of,
    dry_run_option,
    exit_code,
    finish,
    latest_option,
    patterns_argument,
    print_moved,
    target_at,
)
from compatkit.cli.roots import destination, open_store

if TYPE_CHECKING:
    from compatkit.registry.remotes.packaging import Packages

oci_command = group(
    "oci",
    help="Write and read OCI image layouts: folders that skopeo and oras copy to and from container registries.",
)


class OciExportOptions(Options):
    """Arguments and options of ``oci export``."""

    folder: str = argument(type=PathType())
    patterns: tuple[str, ...] = patterns_argument
    latest: bool = latest_option


@command(
    "export",
    OciExportOptions,
    help="Write components to the image layout FOLDER, creating or extending it; each version is one image. PATTERN "
    "is a name, a glob, or a reference for one version of each; default: all.",
    group=oci_command,
)
def export_command(context: click.Context, options: OciExportOptions) -> None:
    """Write an image layout."""
    from compatkit.registry.copy.choice import Choice
    from compatkit.registry.remotes.pushpull import push

    source, layout = open_store(context), layout_at(options.folder)
    with progress("writing") as report:
        choice = Choice(versions="latest" if options.latest else "all", progress=report)
        moved = push(source, layout, options.patterns or ("*",), choice=choice)
    print_moved(moved, "wrote", options.json)
    if moved.made and not options.json:
        name = layout.store.label(moved.made[-1].name, str(moved.made[-1].version))
        next_step("skopeo", "copy", f"oci:{options.folder}:{name}", f"docker://REGISTRY/{name}")
    context.exit(exit_code(moved))


class OciImportOptions(SignatureOptions, AdmissionOptions):
    """Arguments and options of ``oci import``."""

    folder: str = argument(type=PathType())
    patterns: tuple[str, ...] = patterns_argument
    latest: bool = latest_option
    dry_run: bool = dry_run_option


@command(
    "import",
    OciImportOptions,
    help="Copy components from the image layout FOLDER, verified on reading; nothing here is overwritten. "
    "PATTERN is a name, a glob, or a reference for one version of each; default: all.",
    group=oci_command,
)
def import_command(context: click.Context, options: OciImportOptions) -> None:
    """Read an image layout."""
    from compatkit.registry.remotes.pushpull import pull

    root = destination(context)
    with progress("reading") as report, target_at(root, options.dry_run) as target:
        choice = choice_of(context, options, report)
        moved = pull(target, layout_at(options.folder), options.patterns or None, choice=choice)
    finish(context, options, moved, "read", shows=True)


def layout_at(folder: str) -> Packages:
    """Return the image layout in a folder.

    Raises:
        PluginError: The plugin for image layouts is blocked.
    """
    from compatkit.registry.remotes.address import open_address

    return open_address(f"oci-layout://{Path(folder).expanduser().absolute()}")  # type: ignore[return-value]
