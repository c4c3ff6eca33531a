"""``compatkit push``, ``pull`` and ``clone``, and code shared by all commands that copy between registries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from compatkit.cli.images import AdmissionOptions
from compatkit.cli.options import Options, argument, command, option
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
from compatkit.cli.roots import SignatureOptions, demanded, destination, open_or_create_store, open_store

if TYPE_CHECKING:
    from compatkit.registry import Progress
    from compatkit.registry.copy.report import TransferReport
    from compatkit.registry.copy.settings import TransferSettings
    from compatkit.registry.store import Store

PASSED = (
    "unmeasured",
    "jobs",
    "dry_run",
    "create",
    "follow_aliases",
    "follow_withdrawals",
    "follow_results",
)
"""Options that are settings of a transfer."""
SHOWN = 20
"""Blobs of a plan listed; ``--json`` lists all."""
patterns_argument = argument("[PATTERN]...")
latest_option = option("Only the latest version of each name.")
no_results_option = option("Do not copy measured results of pairs.")
no_aliases_option = option("Do not copy aliases.")
dry_run_option = option("Show what would be copied; nothing is changed.")


class FollowOptions(Options):
    """Changes of what is here already; without these options they are listed and not made."""

    follow_aliases: bool = option("Move aliases that are here already as they were moved there.")
    follow_withdrawals: bool = option("Withdraw and restore versions that are here already as there.")
    follow_results: bool = option("Copy results of pairs that were measured here under the same conditions.")


class RemoteOptions(Options):
    """Access to a remote, and what is copied."""

    settings: tuple[str, ...] = option(
        "Option of the remote's file system, such as endpoint_url=http://127.0.0.1:9000; may be repeated.",
        "--option",
        metavar="KEY=VALUE",
    )
    jobs: int = option("Blobs copied in parallel.", default=8, min=1, max=64)
    no_results: bool = no_results_option
    no_aliases: bool = no_aliases_option
    latest: bool = latest_option


class PushOptions(RemoteOptions, AdmissionOptions):
    """Arguments and options of ``push``."""

    remote: str = argument()
    patterns: tuple[str, ...] = patterns_argument
    create: bool = option("Create a registry at REMOTE if there is none.")
    replace_card: bool = option(
        "Replace README.md, config.json and model.safetensors of a model repository on the Hugging Face Hub that "
        "others wrote."
    )
    dry_run: bool = dry_run_option


@command("push", PushOptions)
def push_command(options: PushOptions) -> int | None:
    """Copy components to REMOTE, without those that it has already.

    REMOTE is a folder, s3://bucket/prefix, hf://datasets/USER/NAME, sftp://host/folder, ..., or NAME: of one that
    `compatkit remote add` saved. PATTERN is a name, a glob such as 'digits/*', or a reference such as 'digits/*@^1' for
    one version of each; default: all.

    Examples:
        # to a new remote
        compatkit push s3://bucket/parts 'digits/*' --create
        # show what would go to a saved remote
        compatkit push team: --dry-run
    """
    from compatkit.components.cards.site_files import site_files
    from compatkit.registry.remotes.address import parse_options
    from compatkit.registry.remotes.pushpull import push

    store, filesystem = open_store(), parse_options(options.settings)
    with progress("pushing") as report:
        settings = attrs.evolve(
            transfer_settings(options, report), site_files=site_files(replace=options.replace_card)
        )
        result = push(store, options.remote, options.patterns or None, options=filesystem, settings=settings)
    return finish(options, result, "pushed")


without_weights_option = option(
    "Leave weights in REMOTE; each is fetched, verified and kept when it is first loaded."
)


class PullOptions(RemoteOptions, FollowOptions, SignatureOptions, AdmissionOptions):
    """Arguments and options of ``pull``."""

    remote: str = argument()
    patterns: tuple[str, ...] = patterns_argument
    without_weights: bool = without_weights_option
    dry_run: bool = dry_run_option


@command("pull", PullOptions)
def pull_command(options: PullOptions) -> int | None:
    """Copy components from REMOTE, verified on arrival; nothing that is here changes.

    REMOTE is a folder, s3://bucket/prefix, hf://datasets/USER/NAME, sftp://host/folder, ..., or NAME: of one that
    `compatkit remote add` saved. PATTERN is a name, a glob such as 'digits/*', or a reference such as 'digits/*@^1' for
    one version of each; default: all.

    Examples:
        # all that is new in a saved remote
        compatkit pull team:
        # one version from the Hugging Face Hub
        compatkit pull hf://datasets/USER/parts digits/mnist.head@^1
    """
    from compatkit.registry.remotes.address import parse_options
    from compatkit.registry.remotes.pushpull import pull

    root, filesystem = destination(), parse_options(options.settings)
    with progress("pulling") as report, target_at(root, options.dry_run) as target:
        settings = transfer_settings(options, report)
        result = pull(target, options.remote, options.patterns or None, options=filesystem, settings=settings)
    return finish(options, result, "pulled", shows=True)


class CloneOptions(RemoteOptions, SignatureOptions):
    """Arguments and options of ``clone``."""

    remote: str = argument()
    folder: Path = argument()
    without_weights: bool = without_weights_option


@command("clone", CloneOptions, registry=False)
def clone_command(options: CloneOptions) -> int | None:
    """Create a registry in FOLDER with everything from REMOTE; see `compatkit pull`.

    Examples:
        # everything
        compatkit clone s3://bucket/parts mine
        # weights come when they are first loaded
        compatkit clone team: mine --without-weights
    """
    from compatkit.registry.remotes.address import parse_options
    from compatkit.registry.remotes.pushpull import clone

    with progress("cloning") as report:
        settings = transfer_settings(options, report)
        filesystem = parse_options(options.settings)
        new, result = clone(options.remote, options.folder, options=filesystem, settings=settings)
    code = finish(options, result, "cloned")
    if not options.json:
        news(f"made the registry {new.root}")
        next_step("--registry", options.folder, "ls", registry=False)
    return code


def transfer_settings(options: Options, report: Progress) -> TransferSettings:
    """Return the settings of a transfer from a command's options.

    Args:
        options: Options of the command; missing ones have their defaults.
        report: Function called with done, total and a description.
    """
    from compatkit.registry.copy.settings import TransferSettings

    has = vars(options)
    return TransferSettings(
        versions="latest" if has.get("latest") else "all",
        aliases=not has.get("no_aliases"),
        evidence=not has.get("no_results"),
        weights=not has.get("without_weights"),
        policy_checks=options.policy_checks(report) if isinstance(options, AdmissionOptions) else None,
        progress=report,
        **{name: has[name] for name in PASSED if name in has},
    ).with_trust(demanded())


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
        yield lambda: open_or_create_store(root)
        return
    with scratch_folder() as empty:
        yield lambda: Store.init(empty)


def finish(options: Options, result: TransferReport, verb: str, *, shows: bool = False) -> int:
    """Print what was copied, then what was refused; return the highest exit code of the refusals.

    Args:
        options: Options of the command.
        result: Report of the transfer.
        verb: What was done to blobs, such as ``"pushed"``.
        shows: Whether to suggest a command that shows the last version.
    """
    code = max((refusal.error.exit_code for refusal in result.refused), default=0)
    if options.json:
        return emit(result.to_json(), code)
    _print(result, verb)
    if shows and result.created and not result.planned:
        next_step("show", result.created[-1])
    return code


def _print(result: TransferReport, verb: str) -> None:
    rows = [(str(version), "would be new" if result.planned else "new") for version in result.created]
    parent_note = "a parent; {} is another one there, or not signed"
    rows += [(str(parent.digest), parent_note.format(parent)) for parent in result.unnamed]
    rows += [(refusal.what, "refused") for refusal in result.refused]
    if rows:
        columns([("component", ""), *rows])
    if count := len(result.existing):
        paragraph(f"{counted(count, 'version')} {'was' if count == 1 else 'were'} there already.")
    for withdrawal in result.withdrawn:
        click.echo(fold("withdrawn", f"{withdrawal.reference}: {withdrawal.reason}", indent=0, size=9))
    for offer in result.offered:
        is_state = offer.kind in ("withdrawal", "restoration")
        text = f"{offer.kind} of {offer.what}: {offer.detail}" if is_state else f"{offer.what} {offer.detail}"
        text = text if offer.error is None else f"[{offer.error.code}] {text}"
        click.echo(fold("left out" if verb == "pushed" else "offered", text, indent=0, size=9))
    for conflict in result.diverged:
        click.echo(fold("diverged", f"{conflict}; both stay unchanged", indent=0, size=9))
    for refusal in result.refused:
        click.echo(fold("refused", f"[{refusal.error.code}] {refusal}", indent=0, size=9, fg="red"))
    for note in result.notes:
        click.echo(fold("note", note, indent=0, size=9))
    blobs = f"{counted(result.blobs, 'blob')} ({size(result.bytes)})"
    if result.planned:
        for item in result.copied[:SHOWN]:
            click.echo(f"  {size(item.bytes):>9}  {item.digest}  {clean(item.owner)}")
        if result.blobs > SHOWN:
            click.echo(f"  and {result.blobs - SHOWN:,} more; --json lists all")
        paragraph(f"Nothing was changed. {blobs} would move, besides results and aliases.")
        return
    if options := sorted({offer.option for offer in result.offered if offer.option and offer.error is None}):
        paragraph(
            f"Nothing that was here changed. To make the offered changes, repeat with {' '.join(options)}."
        )
    if verb == "pushed" and any(offer.error is not None for offer in result.offered):
        paragraph(
            "What was left out needs the signature of a maintainer: `compatkit settings show --remote REMOTE`."
        )
    summary = (
        f"{verb} {blobs}, {counted(result.results, 'result')}, {counted(result.signatures, 'signature')}"
    )
    paragraph(summary + (f"; moved {', '.join(result.aliases)}" if result.aliases else "") + ".")
