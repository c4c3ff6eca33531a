"""``compatkit push``, ``pull`` and ``clone``, and code shared by all commands that copy between registries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compatkit.cli.images import deciding_on
from compatkit.cli.options import (
    AdmissionAsked,
    Asked,
    PathType,
    admission_options,
    command,
    given,
    options,
    signature_options,
)
from compatkit.cli.output import (
    clean,
    columns,
    counted,
    emit,
    fold,
    news,
    next_step,
    paragraph,
    progress,
    size,
)
from compatkit.cli.roots import demanded, destination, made, store

if TYPE_CHECKING:
    from compatkit.registry import Progress
    from compatkit.registry.copy.choice import Choice
    from compatkit.registry.copy.report import Moved
    from compatkit.registry.store import Store

SHOWN = 20
"""Most blobs of a plan listed; ``--json`` lists all."""
WHAT = (
    "REMOTE is a folder, s3://bucket/prefix, hf://datasets/USER/NAME or another fsspec address. PATTERN "
    "is a name, a glob such as 'digits/*', or a reference such as 'digits/*@^1' for one version of each; default: "
    "all."
)
patterns_argument = click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
latest_option = click.option("--latest", is_flag=True, help="Only the latest version of each name.")
no_results_option = click.option("--no-results", is_flag=True, help="Do not copy measured results of pairs.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be copied; nothing is changed."
)


class RemoteAsked(Asked):
    """Options of ``remote_options``."""

    options: tuple[str, ...]
    jobs: int
    no_results: bool
    no_aliases: bool
    latest: bool


remote_options = options(
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        help="Option of the remote's file system, such as endpoint_url=http://127.0.0.1:9000; default: its own "
        "environment variables and files.",
    ),
    click.option(
        "--jobs", default=8, show_default=True, type=click.IntRange(1, 64), help="Blobs copied at once."
    ),
    no_results_option,
    click.option("--no-aliases", is_flag=True, help="Do not change aliases."),
    latest_option,
)


class PushAsked(RemoteAsked, AdmissionAsked):
    """Arguments and options of ``push``."""

    remote: str
    patterns: tuple[str, ...]
    create: bool
    dry_run: bool


@command("push", PushAsked, help=f"Copy components to REMOTE; only what is missing there is copied. {WHAT}")
@click.argument("remote")
@patterns_argument
@click.option("--create", is_flag=True, help="Create a registry at REMOTE if there is none.")
@remote_options
@dry_run_option
@admission_options
def push_command(context: click.Context, asked: PushAsked) -> None:
    """Copy components to a remote."""
    from compatkit.registry.remotes.address import options_of
    from compatkit.registry.remotes.pushpull import push

    held, reached = store(context), options_of(asked.options)
    with progress("pushing") as report:
        choice = choice_of(context, asked, report)
        moved = push(held, asked.remote, asked.patterns or None, options=reached, choice=choice)
    finish(context, asked, moved, "pushed")


class PullAsked(RemoteAsked, AdmissionAsked):
    """Arguments and options of ``pull``."""

    remote: str
    patterns: tuple[str, ...]
    dry_run: bool


@command(
    "pull",
    PullAsked,
    help=f"Copy components from REMOTE, verified on arrival; nothing here is overwritten. {WHAT}",
)
@click.argument("remote")
@patterns_argument
@remote_options
@dry_run_option
@signature_options
@admission_options
def pull_command(context: click.Context, asked: PullAsked) -> None:
    """Copy components from a remote."""
    from compatkit.registry.remotes.address import options_of
    from compatkit.registry.remotes.pushpull import pull

    root, reached = destination(context), options_of(asked.options)
    with progress("pulling") as report, target_at(root, asked.dry_run) as target:
        choice = choice_of(context, asked, report)
        moved = pull(target, asked.remote, asked.patterns or None, options=reached, choice=choice)
    finish(context, asked, moved, "pulled", shows=True)


class CloneAsked(RemoteAsked):
    """Arguments and options of ``clone``."""

    remote: str
    folder: str


@command(
    "clone",
    CloneAsked,
    help="Create a registry in FOLDER with everything from REMOTE; see `compatkit pull`.",
    registry=False,
)
@click.argument("remote")
@click.argument("folder", type=PathType())
@remote_options
@signature_options
def clone_command(context: click.Context, asked: CloneAsked) -> None:
    """Create a registry with everything from a remote."""
    from compatkit.registry.remotes.address import options_of
    from compatkit.registry.remotes.pushpull import clone

    with progress("cloning") as report:
        choice = choice_of(context, asked, report)
        new, moved = clone(asked.remote, Path(asked.folder), options=options_of(asked.options), choice=choice)
    tell(moved, "cloned", asked.machine)
    if not asked.machine:
        news(f"made the registry {new.root}")
        next_step("compatkit", "--registry", asked.folder, "ls")
    context.exit(exit_code(moved))


def choice_of(context: click.Context, asked: Asked, report: Progress) -> Choice:
    """Return what to copy, and how, from a command's options.

    Args:
        context: Holds the required signatures.
        asked: Options of the command; those that it lacks have their defaults.
        report: Told of what is copied.
    """
    from compatkit.registry.copy.choice import Choice

    has = vars(asked)
    return Choice(
        versions="latest" if has.get("latest") else "all",
        aliases=not has.get("no_aliases"),
        evidence=not has.get("no_results"),
        deciding=deciding_on(asked, report) if isinstance(asked, AdmissionAsked) else None,
        unmeasured=has.get("unmeasured", False),
        jobs=has.get("jobs", 8),
        dry_run=has.get("dry_run", False),
        create=has.get("create", False),
        progress=report,
    ).requiring(demanded(context))


@contextmanager
def target_at(root: Path, planned: bool) -> Iterator[Callable[[], Store]]:
    """Yield a function that opens or creates the registry at ``root``; a dry run uses an empty one if missing.

    Args:
        root: Folder of the registry.
        planned: Whether it is a dry run.
    """
    from compatkit.registry.layout import MARKER
    from compatkit.registry.remotes.remote import scratch_folder
    from compatkit.registry.store import Store

    if not planned or (root / MARKER).exists():
        yield lambda: made(root)
        return
    with scratch_folder() as empty:
        yield lambda: Store.init(empty)


def finish(context: click.Context, asked: Asked, moved: Moved, verb: str, *, shows: bool = False) -> None:
    """Print the result, and exit with the code of the refusals.

    Args:
        context: Of the command.
        asked: Options of the command.
        moved: What was copied and refused.
        verb: In the past tense, such as ``"copied"``.
        shows: Whether to suggest a command that shows the last version.
    """
    tell(moved, verb, asked.machine)
    if shows and moved.made and not moved.planned and not asked.machine:
        next_step("compatkit", *given(context).words, "show", str(moved.made[-1]))
    context.exit(exit_code(moved))


def exit_code(moved: Moved) -> int:
    """Return the highest exit code of the refusals; 0 if there are none."""
    return max((one.error.exit_code for one in moved.refused), default=0)


def tell(moved: Moved, verb: str, machine: bool) -> None:
    """Print what was copied, then what was refused.

    Args:
        moved: Result of the copy.
        verb: What was done to blobs, such as ``"pushed"``.
        machine: Whether to print JSON.
    """
    if machine:
        emit(moved.to_json())
        return
    rows = [(str(one), "would be new" if moved.planned else "new") for one in moved.made]
    rows += [
        (str(one.digest), f"a parent; {one} is another one there, or not signed") for one in moved.unnamed
    ]
    rows += [(one.what, "refused") for one in moved.refused]
    if rows:
        columns([("component", ""), *rows])
    if count := len(moved.there):
        paragraph(f"{counted(count, 'version')} {'was' if count == 1 else 'were'} there already.")
    for one in moved.withdrawn:
        click.echo(fold("withdrawn", f"{one.reference}: {one.reason}", indent=0, size=9))
    for one in moved.apart:
        click.echo(fold("apart", f"{one}; both stay as they are", indent=0, size=9))
    for one in moved.refused:
        told = fold("refused", f"[{one.error.code}] {one}", indent=0, size=9)
        click.echo(click.style("refused", fg="red") + told.removeprefix("refused"))
    blobs = f"{counted(moved.blobs, 'blob')} ({size(moved.bytes)})"
    if moved.planned:
        for one in moved.items[:SHOWN]:
            click.echo(f"  {size(one.bytes):>9}  {one.digest}  {clean(one.whose)}")
        if moved.blobs > SHOWN:
            click.echo(f"  and {moved.blobs - SHOWN:,} more; --json lists all")
        paragraph(f"Nothing was changed. {blobs} would move, besides results and aliases.")
        return
    said = f"{verb} {blobs}, {counted(moved.results, 'result')}, {counted(moved.signatures, 'signature')}"
    paragraph(said + (f"; moved {', '.join(moved.aliases)}" if moved.aliases else "") + ".")
