"""``compatkit oci export`` and ``import``: components as OCI image layouts for container registries."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.options import (
    AdmissionAsked,
    Asked,
    PathType,
    admission_options,
    command,
    group,
    signature_options,
)
from compatkit.cli.output import next_step, progress
from compatkit.cli.remote import (
    choice_of,
    dry_run_option,
    exit_code,
    finish,
    latest_option,
    patterns_argument,
    target_at,
    tell,
)
from compatkit.cli.roots import destination, store

oci_command = group(
    "oci",
    help="Write and read OCI image layouts: folders that skopeo and oras copy to and from container registries.",
)


class OciExportAsked(Asked):
    """Arguments and options of ``oci export``."""

    folder: str
    patterns: tuple[str, ...]
    latest: bool


@command(
    "export",
    OciExportAsked,
    help="Write components to the image layout FOLDER, creating or extending it; each version is one image. PATTERN "
    "is a name, a glob, or a reference for one version of each; default: all.",
    group=oci_command,
)
@click.argument("folder", type=PathType())
@patterns_argument
@latest_option
def export_command(context: click.Context, asked: OciExportAsked) -> None:
    """Write an image layout."""
    from compatkit.registry.oci.write import export, ref

    held, versions = store(context), "latest" if asked.latest else "all"
    with progress("writing") as report:
        moved = export(held, Path(asked.folder), asked.patterns or ("*",), versions=versions, progress=report)
    tell(moved, "wrote", asked.machine)
    if moved.made and not asked.machine:
        last = moved.made[-1]
        name = ref(last.name, last.version) if last.version is not None else last.name
        next_step("skopeo", "copy", f"oci:{asked.folder}:{name}", f"docker://REGISTRY/{name}")
    context.exit(exit_code(moved))


class OciImportAsked(AdmissionAsked):
    """Arguments and options of ``oci import``."""

    folder: str
    patterns: tuple[str, ...]
    latest: bool
    dry_run: bool


@command(
    "import",
    OciImportAsked,
    help="Copy components from the image layout FOLDER, verified on reading; nothing here is overwritten. "
    "PATTERN is a name, a glob, or a reference for one version of each; default: all.",
    group=oci_command,
)
@click.argument("folder", type=PathType())
@patterns_argument
@latest_option
@dry_run_option
@signature_options
@admission_options
def import_command(context: click.Context, asked: OciImportAsked) -> None:
    """Read an image layout."""
    from compatkit.registry.oci.read import import_layout

    root = destination(context)
    with progress("reading") as report, target_at(root, asked.dry_run) as target:
        choice = choice_of(context, asked, report)
        moved = import_layout(target, Path(asked.folder), asked.patterns or None, choice=choice)
    finish(context, asked, moved, "read", shows=True)
