"""The commands oci export and oci import: components as OCI image layouts, which container registries carry."""

from __future__ import annotations

from pathlib import Path

import click

from compatkit.cli.options import admission_options, given, json_option, registry_option, signature_options
from compatkit.cli.outcome import deciding_on
from compatkit.cli.output import next_step, progress
from compatkit.cli.remote import exit_code, target_at, tell
from compatkit.cli.roots import demanded, destination, store


@click.group(
    "oci",
    help="Write and read OCI image layouts: folders that skopeo and oras carry to container registries.",
)
def oci_command() -> None:
    """Components and container registries."""


@oci_command.command(
    "export",
    help="Write components into the image layout FOLDER, which is made, or goes on; each version is one image. PATTERN "
    "is a name, a glob, or a reference for one version of each; all if none is given.",
)
@click.argument("folder")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--latest", is_flag=True, help="Only the latest version of each name.")
@registry_option
@json_option
@click.pass_context
def export_command(
    context: click.Context, folder: str, patterns: tuple[str, ...], latest: bool, machine: bool
) -> None:
    """Write an image layout."""
    from compatkit.registry.oci.write import export, ref

    held, versions = store(context), "latest" if latest else "all"
    with progress("writing") as report:
        moved = export(held, Path(folder), patterns or ("*",), versions=versions, progress=report)
    tell(moved, "export", machine)
    if moved.made and not machine:
        last = moved.made[-1]
        name = ref(last.name, last.version) if last.version is not None else last.name
        next_step("skopeo", "copy", f"oci:{folder}:{name}", f"docker://REGISTRY/{name}")
    context.exit(exit_code(moved))


@oci_command.command(
    "import",
    help="Copy components of the image layout FOLDER, verified while they are read; nothing here is overwritten. "
    "PATTERN is a name, a glob, or a reference for one version of each; all if none is given.",
)
@click.argument("folder")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--latest", is_flag=True, help="Only the latest version of each name.")
@click.option("--dry-run", is_flag=True, help="Say what would come; nothing is changed.")
@signature_options
@admission_options
@registry_option
@json_option
@click.pass_context
def import_command(
    context: click.Context,
    folder: str,
    patterns: tuple[str, ...],
    latest: bool,
    dry_run: bool,
    machine: bool,
    unmeasured: bool,
    **_: object,
) -> None:
    """Read an image layout."""
    from compatkit.registry.copy.choice import Choice
    from compatkit.registry.oci.read import import_layout

    root = destination(context)
    with progress("reading") as report, target_at(root, dry_run) as target:
        choice = Choice(
            versions="latest" if latest else "all",
            deciding=deciding_on(context.params, report),
            unmeasured=unmeasured,
            dry_run=dry_run,
            progress=report,
        ).requiring(demanded(context))
        moved = import_layout(target, Path(folder), patterns or None, choice=choice)
    tell(moved, "import", machine)
    if moved.made and not machine and not dry_run:
        next_step("compatkit", *given(context).words, "show", str(moved.made[-1]))
    context.exit(exit_code(moved))
