"""The commands push, pull and clone: components between a registry and a remote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from compatkit.cli.gc import counted, size
from compatkit.cli.options import admission_options, given, json_option, registry_option, signature_options
from compatkit.cli.outcome import deciding_on
from compatkit.cli.output import clean, columns, emit, fold, news, next_step, paragraph, progress
from compatkit.cli.roots import demanded, destination, make, store

if TYPE_CHECKING:
    from compatkit.registry import Progress
    from compatkit.registry.copy.choice import Choice
    from compatkit.registry.copy.report import Moved
    from compatkit.registry.store import Store

Command = TypeVar("Command", bound=Callable[..., object])
SHOWN = 20
"""Blobs that a plan lists for people; ``--json`` lists all."""
WHAT = (
    "REMOTE is a folder, s3://bucket/prefix, hf://datasets/USER/NAME or another address that fsspec reaches. PATTERN "
    "is a name, a glob such as 'digits/*', or a reference such as 'digits/*@^1' for one version of each; all if none "
    "is given."
)


def moving_options(function: Command) -> Command:
    """Add what push, pull and clone have in common."""
    for option in (
        click.option("--latest", is_flag=True, help="Only the latest version of each name."),
        click.option("--no-aliases", is_flag=True, help="Leave aliases as they are."),
        click.option("--no-results", is_flag=True, help="Leave measured results of pairs behind."),
        click.option(
            "--jobs",
            default=8,
            show_default=True,
            type=click.IntRange(1, 64),
            help="Blobs that move at once.",
        ),
        click.option(
            "--option",
            "options",
            multiple=True,
            metavar="KEY=VALUE",
            help="Of the remote's file system, such as endpoint_url=http://127.0.0.1:9000; else its own environment "
            "variables and files count.",
        ),
    ):
        function = option(function)
    return function


dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would move; nothing is changed.")


@click.command("push", help=f"Copy components to REMOTE; only what is missing there moves. {WHAT}")
@click.argument("remote")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--create", is_flag=True, help="Make REMOTE a registry if it is none.")
@moving_options
@dry_run_option
@admission_options
@registry_option
@json_option
@click.pass_context
def push_command(
    context: click.Context, remote: str, patterns: tuple[str, ...], machine: bool, **_: object
) -> None:
    """Copy components to a remote."""
    from compatkit.registry.remotes.address import options_of
    from compatkit.registry.remotes.pushpull import push

    held = store(context)
    with progress("pushing") as report:
        options = options_of(context.params["options"])
        moved = push(held, remote, patterns or None, options=options, choice=_choice(context, report))
    tell(moved, "push", machine)
    context.exit(exit_code(moved))


@click.command(
    "pull", help=f"Copy components of REMOTE, verified while they arrive; nothing here is overwritten. {WHAT}"
)
@click.argument("remote")
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@moving_options
@dry_run_option
@signature_options
@admission_options
@registry_option
@json_option
@click.pass_context
def pull_command(
    context: click.Context, remote: str, patterns: tuple[str, ...], machine: bool, **_: object
) -> None:
    """Copy components of a remote."""
    from compatkit.registry.remotes.address import options_of
    from compatkit.registry.remotes.pushpull import pull

    root, planned = destination(context), bool(context.params["dry_run"])
    with progress("pulling") as report, target_at(root, planned) as target:
        options = options_of(context.params["options"])
        moved = pull(target, remote, patterns or None, options=options, choice=_choice(context, report))
    tell(moved, "pull", machine)
    if moved.made and not machine and not planned:
        next_step("compatkit", *given(context).words, "show", str(moved.made[-1]))
    context.exit(exit_code(moved))


@click.command(
    "clone", help="Make the folder FOLDER a registry with all that REMOTE holds; see `compatkit pull`."
)
@click.argument("remote")
@click.argument("folder")
@moving_options
@signature_options
@json_option
@click.pass_context
def clone_command(context: click.Context, remote: str, folder: str, machine: bool, **_: object) -> None:
    """Make a new registry with all that a remote holds."""
    from compatkit.registry.remotes.address import options_of
    from compatkit.registry.remotes.pushpull import clone

    with progress("cloning") as report:
        options = options_of(context.params["options"])
        made, moved = clone(remote, Path(folder), options=options, choice=_choice(context, report))
    tell(moved, "clone", machine)
    if not machine:
        news(f"made the registry {made.root}")
        next_step("compatkit", "--registry", folder, "ls")
    context.exit(exit_code(moved))


def _choice(context: click.Context, report: Progress) -> Choice:
    from compatkit.registry.copy.choice import Choice

    chosen = context.params
    return Choice(
        versions="latest" if chosen["latest"] else "all",
        aliases=not chosen["no_aliases"],
        evidence=not chosen["no_results"],
        deciding=deciding_on(chosen, report) if "measure" in chosen else None,
        unmeasured=chosen.get("unmeasured", False),
        jobs=chosen["jobs"],
        dry_run=chosen.get("dry_run", False),
        create=chosen.get("create", False),
        progress=report,
    ).requiring(demanded(context))


@contextmanager
def target_at(root: Path, planned: bool) -> Iterator[Callable[[], Store]]:
    """Give what opens or makes the registry at ``root``; for a plan, an empty one stands for one that is not there."""
    from compatkit.registry.layout import MARKER
    from compatkit.registry.remotes.remote import scratch_folder
    from compatkit.registry.store import Store

    def opened() -> Store:
        made, fresh = make(root)
        if fresh:
            news(f"made the registry {made.root}")
        return made

    if not planned or (root / MARKER).exists():
        yield opened
        return
    with scratch_folder() as empty:
        yield lambda: Store.init(empty)


def exit_code(moved: Moved) -> int:
    """Return that of the gravest refusal; 0 if there was none."""
    return max((one.error.exit_code for one in moved.refused), default=0)


def tell(moved: Moved, done: str, machine: bool) -> None:
    """Print what was moved, then what was refused."""
    if machine:
        emit(moved.to_json())
        return
    new = "would be new" if moved.planned else "new"
    rows = [(str(one), new) for one in moved.made]
    rows += [(str(one.digest), f"a parent; {one} is no name for it there") for one in moved.unnamed]
    rows += [(one.what, "refused") for one in moved.refused]
    if rows:
        columns([("component", ""), *rows])
    if moved.there:
        paragraph(
            f"{counted(len(moved.there), 'version')} {'was' if len(moved.there) == 1 else 'were'} there already."
        )
    for one in moved.withdrawn:
        click.echo(fold("withdrawn", f"{one.reference}: {one.reason}", indent=0, size=9))
    for one in moved.apart:
        click.echo(fold("apart", f"{one}; both stay as they are", indent=0, size=9))
    for one in moved.refused:
        told = fold("refused", f"[{one.error.code}] {one}", indent=0, size=9)
        click.echo(click.style("refused", fg="red") + told.removeprefix("refused"))
    _sum(moved, done)


def _sum(moved: Moved, done: str) -> None:
    blobs = f"{counted(moved.blobs, 'blob')} ({size(moved.bytes)})"
    if moved.planned:
        for one in moved.items[:SHOWN]:
            click.echo(f"  {size(one.bytes):>9}  {one.digest}  {clean(one.whose)}")
        if moved.blobs > SHOWN:
            click.echo(f"  and {moved.blobs - SHOWN:,} more; --json lists all")
        paragraph(f"Nothing was changed. {done} would move {blobs}, besides results and aliases.")
        return
    verb = {"push": "pushed", "pull": "pulled", "clone": "cloned", "export": "wrote", "import": "read"}[done]
    said = f"{verb} {blobs}, {counted(moved.results, 'result')}, {counted(moved.signatures, 'signature')}"
    paragraph(said + (f"; moved {', '.join(moved.aliases)}" if moved.aliases else "") + ".")
