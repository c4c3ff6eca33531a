"""Commands that read and compare without touching a weight: init, ls, show, check, plugins."""

from __future__ import annotations

import click

from compatkit.cli.shared import emit, json_option, store

LEVELS = ("direct", "shared-init", "shared-head", "compatible", "perfect")


@click.command("init", help="Make ROOT a registry (or leave it one).")
@click.argument("root", default=".")
@json_option
def init_command(root: str, machine: bool) -> None:
    """Make a registry in a folder."""
    from compatkit.registry.store import Store

    made = Store.init(root, exist_ok=True)
    emit({"root": str(made.root), "id": made.id}) if machine else click.echo(f"registry at {made.root}")


@click.command("ls", help="List components whose name matches PATTERN (a glob such as 'digits/*').")
@click.argument("pattern", required=False)
@json_option
@click.pass_context
def ls_command(context: click.Context, pattern: str | None, machine: bool) -> None:
    """List components with versions, kinds and aliases."""
    held = store(context)
    rows = []
    for name in held.names(pattern):
        versions = [str(version) for version in held.versions(name)]
        if not versions:
            continue
        manifest = held.manifest(name)
        rows.append(
            {
                "name": name,
                "version": versions[-1],
                "versions": versions,
                "kind": manifest.kind,
                "parameters": manifest.payload.parameters,
                "model": manifest.blueprint.model,
                "split": manifest.blueprint.split,
                "aliases": held.aliases(name),
            }
        )
    if machine:
        emit(rows)
        return
    if not rows:
        click.echo("no components" + (f" match {pattern!r}" if pattern else f" in {held.root} yet"))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        aliases = " ".join(f":{alias}={version}" for alias, version in row["aliases"].items())
        click.echo(
            f"{row['name']:<{width}}  {row['version']:>8}  {row['kind']:<14}  {row['parameters']:>11,}  "
            f"{row['model']} @ {row['split']}  {aliases}".rstrip()
        )


@click.command("show", help="Show what the component REF is and promises.")
@click.argument("reference", metavar="REF")
@json_option
@click.pass_context
def show_command(context: click.Context, reference: str, machine: bool) -> None:
    """Show a component's contract."""
    from compatkit.registry.canonical import loads
    from compatkit.registry.manifest import to_bytes
    from compatkit.reports.contracts import summary

    held = store(context)
    found = held.resolve(reference)
    manifest = held.manifest(found)
    if machine:
        place = {"name": found.name, "version": str(found.version), "digest": found.digest}
        emit({**place, "manifest": loads(to_bytes(manifest), what=reference)})
        return
    click.echo(click.style(f"{found.name}@{found.version}", bold=True) + f"  {found.digest}")
    if manifest.about.title:
        click.echo(manifest.about.title)
    rows = summary(manifest)
    width = max(map(len, rows))
    for label, text in rows.items():
        click.echo(f"  {label:<{width}}  {text}")


@click.command("check", help="Compare the contracts of EXTRACTOR and HEAD; reads no weights.")
@click.argument("extractor")
@click.argument("head")
@click.option(
    "--require", type=click.Choice(LEVELS), help="Ask for more than parts that can be wired directly."
)
@json_option
@click.pass_context
def check_command(
    context: click.Context, extractor: str, head: str, require: str | None, machine: bool
) -> None:
    """Check whether a head fits an extractor; exit code 1 unless it can be wired directly."""
    from compatkit.workspace import Registry

    report = Registry(store(context)).check(extractor, head)
    emit(report.to_json()) if machine else click.echo(str(report))
    context.exit(0 if report.satisfies(require or "direct") else 1)


@click.command("plugins", help="List the installed plugins: status, distribution, version, hooks, order.")
@click.option("--trace", is_flag=True, help="Show the traceback of each plugin that failed.")
@json_option
def plugins_command(trace: bool, machine: bool) -> None:
    """List plugins; every one is imported, each on its own."""
    from rich.console import Console
    from rich.table import Table

    from compatkit.plugins import listing

    found = listing()
    if machine:
        emit([one.to_json() for one in found])
        return
    table = Table(box=None, pad_edge=False)
    for column in ("plugin", "status", "distribution", "version", "hooks", "settings"):
        table.add_column(column, overflow="fold")
    for one in found:
        style = "green" if one.status == "active" else "red"
        table.add_row(
            f"{one.kind}.{one.name}",
            f"[{style}]{one.status}[/]",
            one.distribution,
            one.version,
            " ".join(hook.removeprefix("compatkit_") for hook in one.hooks),
            ", ".join(map(str, one.settings)),
        )
    Console().print(table)
    for one in found:
        if one.message:
            click.echo(f"\n{one.kind}.{one.name}: {one.message}")
            if trace and one.traceback:
                click.echo(one.traceback)
