"""Commands that read without touching a weight: init, ls, show, plugins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import given, json_option, registry_option
from compatkit.cli.output import clean, columns, emit, fold, next_step, rows
from compatkit.cli.roots import make, store
from compatkit.errors import IntegrityError

if TYPE_CHECKING:
    from compatkit.plugins import Listed
    from compatkit.registry.manifest import Manifest
    from compatkit.registry.names import Reference
    from compatkit.registry.store import Store


@click.command("init", help="Make the folder ROOT a registry, or leave it one. [default: the current folder]")
@click.argument("root", required=False)
@registry_option
@json_option
@click.pass_context
def init_command(context: click.Context, root: str | None, machine: bool) -> None:
    """Make a registry in a folder."""
    folder = Path(root or given(context).registry or ".").expanduser().absolute()
    made, fresh = make(folder)
    if machine:
        emit({"root": str(made.root), "id": made.id, "created": fresh})
        return
    click.echo(f"{'made the' if fresh else 'already a'} registry {clean(str(made.root))}")
    if fresh:
        next_step("compatkit", "--registry", root or given(context).registry or ".", "train", "RECIPE.toml")


@click.command("ls", help="List components; PATTERN is a glob over whole names, such as 'digits/*.head'.")
@click.argument("pattern", required=False)
@registry_option
@json_option
@click.pass_context
def ls_command(context: click.Context, pattern: str | None, machine: bool) -> None:
    """List components with versions, kinds and aliases; damaged ones are listed too, with exit code 3."""
    held = store(context)
    lines = [line for name in held.names(pattern) if (line := _line(held, name))]
    damaged = [line for line in lines if "error" in line]
    if machine:
        emit(lines)
    elif not lines:
        click.echo(
            "no components" + (f" match {pattern!r}" if pattern else f" in {clean(str(held.root))} yet")
        )
    else:
        header = ("name", "version", "kind", "parameters", "network", "aliases")
        columns([header, *map(_cells, lines)], right=(3,))
    for line in damaged:
        click.echo(
            f"{click.style('damaged', fg='red', bold=True)} {line['name']}: {clean(line['error'])}", err=True
        )
    context.exit(IntegrityError.exit_code if damaged else 0)


def _line(held: Store, name: str) -> dict[str, Any] | None:
    """Return what there is to say about a name; None where every version was withdrawn."""
    versions = [str(version) for version in held.versions(name)]
    if not versions:
        return None
    line: dict[str, Any] = {"name": name, "version": versions[-1], "versions": versions}
    try:
        manifest = held.manifest(name)
        return line | {
            "kind": manifest.kind,
            "parameters": manifest.payload.parameters,
            "model": manifest.blueprint.model,
            "split": manifest.blueprint.split,
            "aliases": held.aliases(name),
        }
    except IntegrityError as error:
        return line | {"error": str(error)}


def _cells(line: dict[str, Any]) -> tuple[str, ...]:
    if "error" in line:
        return line["name"], line["version"], "damaged", "", "", ""
    return (
        line["name"],
        line["version"],
        line["kind"].replace("_", " "),
        f"{line['parameters']:,}",
        f"{line['model']} @ {line['split']}",
        " ".join(f":{alias}={version}" for alias, version in line["aliases"].items()),
    )


@click.command(
    "show", help="Show what the component REF is and promises (REF: NAME, NAME@1.0.0, NAME@^1, NAME:alias)."
)
@click.argument("reference", metavar="REF")
@registry_option
@json_option
@click.pass_context
def show_command(context: click.Context, reference: str, machine: bool) -> None:
    """Show a component's contract."""
    from compatkit.registry.canonical import loads
    from compatkit.registry.manifest import to_bytes

    held = store(context)
    found = held.resolve(reference)
    manifest = held.manifest(found)
    if machine:
        place = {"name": found.name, "version": str(found.version), "digest": found.digest}
        known = {"versions": list(map(str, held.versions(found.name))), "aliases": held.aliases(found.name)}
        emit({**place, **known, "manifest": loads(to_bytes(manifest), what=reference)})
        return
    click.echo(click.style(f"{found.name}@{found.version}", bold=True))
    rows(_facts(held, found, manifest))


def _facts(held: Store, found: Reference, manifest: Manifest) -> dict[str, str]:
    """Return the contract in words, with what a person gave and what the registry knows around it."""
    from compatkit.reports.contracts import short, summary

    about = manifest.about
    facts = {
        name: text for name in ("title", "description", "licence", "source") if (text := getattr(about, name))
    }
    if about.tags:
        facts["tags"] = ", ".join(f"{key} {value}" for key, value in about.tags.items())
    facts |= summary(manifest)
    for parent in manifest.parents:
        facts[parent.relation.replace("_", " ")] = short(parent.component)
    facts["digest"] = str(found.digest)
    others = [str(version) for version in held.versions(found.name) if version != found.version]
    if others:
        facts["other versions"] = ", ".join(others)
    if aliases := held.aliases(found.name):
        facts["aliases"] = ", ".join(f":{alias} is {version}" for alias, version in aliases.items())
    return facts


@click.command(
    "plugins", help="List the installed plugins: status, distribution, version, hooks, order, settings."
)
@click.option("--trace", is_flag=True, help="Show the traceback of each plugin that failed.")
@json_option
def plugins_command(trace: bool, machine: bool) -> None:
    """List plugins; every one is imported, each on its own, and a broken one is no error here."""
    from compatkit.plugins import listing

    found = listing()
    if machine:
        emit([one.to_json() for one in found])
        return
    if not found:
        click.echo("no plugins are installed")
    for place, one in enumerate(found):
        _print_plugin(one, trace, first=place == 0)


def _print_plugin(one: Listed, trace: bool, *, first: bool) -> None:
    colour = "green" if one.status == "active" else "red"
    key, owner = clean(f"{one.kind}.{one.name}"), clean(f"{one.distribution or '?'} {one.version or '?'}")
    click.echo(
        f"{'' if first else chr(10)}{click.style(key, bold=True)}  {click.style(one.status, fg=colour)}  {owner}"
    )
    facts = {
        "hooks": ", ".join(hook.removeprefix("compatkit_") for hook in one.hooks),
        "settings": "; ".join(map(str, one.settings)),
        "order": f"{one.order} of the {one.kind}" if one.status == "active" else "",
        "problem": one.message,
        "notes": " ".join(one.notes),
    }
    for label, text in facts.items():
        if text:
            click.echo(fold(label, text, indent=2, size=8))
    if trace and one.traceback:
        click.echo(clean(one.traceback))
