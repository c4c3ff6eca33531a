"""``compatkit gc``: show what garbage collection would do, or do it with ``--delete``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import clean, columns, counted, emit, next_step, paragraph, progress, size, warn
from compatkit.cli.roots import open_store
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.registry.maintenance.gc import CollectionPlan, CollectionResult

_TIME = re.compile(r"([0-9]{1,7})([smhd]?)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_KINDS = {
    "blobs": ("blobs that nothing refers to", "go to trash/"),
    "withdrawn": ("weights of withdrawn versions", "go to trash/"),
    "trash": ("blobs in trash/", "are deleted"),
    "drafts": ("unfinished files", "are deleted"),
    "back": ("blobs in trash/ that are referred to", "come back"),
    "young": ("blobs that nothing refers to, too young", "stay"),
    "waiting": ("blobs in trash/, not there for long", "stay"),
    "quarantine": ("damaged files in quarantine/", "stay: look at them, remove them by hand"),
}


def duration(value: str) -> timedelta:
    """Parse a duration: a whole number with s, m, h or d."""
    match = _TIME.fullmatch(value)
    if match is None or (not match[2] and match[1].strip("0")):
        raise click.BadParameter(
            f"expected a whole number with s, m, h or d, such as 24h, got {value!r:.40}."
        )
    return timedelta(**{_UNITS[match[2] or "s"]: int(match[1])})


class GcOptions(Options):
    """Arguments and options of ``gc``."""

    patterns: tuple[str, ...] = argument("[PATTERN]...")
    delete: bool = option("Delete; without this, nothing is changed.")
    grace: timedelta = option(
        "Keep files changed within this time, such as 24h or 7d: they may be part of a running publish.",
        default="24h",
        metavar="TIME",
        convert=duration,
    )
    withdrawn: bool = option("Also delete unused weights of versions withdrawn longer ago than that.")
    purge: bool = option(
        "With --withdrawn: weights of withdrawn versions at once, without grace, with their copies in trash/ and "
        "quarantine/; PATTERN (NAME or NAME@VERSION) limits it. They cannot be restored."
    )
    alone: bool = option("Assert that nobody else writes to this registry; allows a short --grace.")
    lost: tuple[str, ...] = option(
        "Digest of a document that is lost for good; files that only it refers to are collected. May be repeated.",
        metavar="DIGEST",
    )


@command("gc", GcOptions)
def gc_command(options: GcOptions) -> int | None:
    """Show which unreferenced blobs and unfinished files can be deleted; --delete deletes them.

    Examples:
        # show what nothing refers to
        compatkit gc
        # delete it, after a day of grace
        compatkit gc --delete
        # show what a purge of a withdrawn version would delete for good
        compatkit gc digits/mnist.head@1.1.0 --withdrawn --purge
    """
    from compatkit.registry.maintenance.gc import plan

    if options.purge:
        return _purge(options)
    if options.patterns:
        raise UsageError("gc collects in the whole registry; PATTERN is for --withdrawn --purge.")
    store = open_store()
    with progress("looking") as report:
        settings = options.only("grace", "withdrawn", "alone", "lost")
        collection = plan(store, progress=report, **settings)
    if not options.json:
        _show(collection, options.delete)
    collected = None
    if options.delete and not collection.is_empty:
        with progress("collecting") as report:
            collected = collection.apply(report)
    if options.json:
        return emit({"plan": collection.to_json(), "collected": collected and collected.to_json()})
    if collected is not None:
        _print(collected, collection)
    elif not collection.is_empty:
        words = [f"--{word}" for word in ("withdrawn", "alone") if getattr(options, word)]
        if options.grace != timedelta(hours=24):
            words += ["--grace", f"{int(options.grace.total_seconds())}s"]
        words += [word for digest in options.lost for word in ("--lost", digest)]
        next_step("gc", *words, "--delete")


def _purge(options: GcOptions) -> int | None:
    """Show what a purge would delete, or delete it."""
    from compatkit.registry.maintenance.purge import plan as plan_purge

    if not options.withdrawn or options.alone or options.grace != timedelta(hours=24):
        raise UsageError("--purge needs --withdrawn, and takes neither --grace nor --alone.")
    store = open_store()
    with progress("looking") as report:
        purge = plan_purge(store, options.patterns or None, lost=options.lost, progress=report)
    if options.delete and purge.weights:
        with progress("purging") as report:
            purge = purge.apply(report)
    code = 1 if options.delete and (purge.needed or purge.unreadable) else 0
    if options.json:
        return emit(purge.to_json(), code)
    verb = "purged" if purge.applied else "would purge"
    for item in purge.weights:
        files = counted(len(item.paths), "file")
        click.echo(f"{verb} the weights of {', '.join(item.versions)}: {files}, {size(item.bytes)}")
    for item in purge.needed:
        warn(f"the weights of {', '.join(item.versions)} stay: {clean(item.needed_by)} needs them")
    for version in purge.unreadable:
        warn(f"the weights of {version} are unknown: its manifest cannot be read")
    if not (purge.weights or purge.needed or purge.unreadable):
        paragraph("nothing to purge.")
    if purge.applied:
        paragraph("Remotes, clones and backups have copies of their own.")
    elif purge.weights:
        lost = [word for digest in options.lost for word in ("--lost", digest)]
        next_step("gc", *options.patterns, "--withdrawn", "--purge", *lost, "--delete")
    return code


def _show(collection: CollectionPlan, delete: bool) -> None:
    table = [("", "files", "size", "")]
    for kind, (what, happens) in _KINDS.items():
        if files := getattr(collection, kind):
            table.append((what, f"{len(files):,}", size(collection.bytes[kind]), happens))
    if len(table) > 1:
        columns(table, right=(1, 2))
    if collection.is_empty:
        paragraph(f"nothing to collect: {_in_use(collection)}.")
    elif not delete:
        paragraph(f"Nothing was changed. {_in_use(collection)} and stay.")


def _in_use(collection: CollectionPlan) -> str:
    count = collection.referenced
    return f"{counted(count, 'blob')} {'is' if count == 1 else 'are'} in use"


def _print(collected: CollectionResult, collection: CollectionPlan) -> None:
    parts = [f"freed {size(collected.freed)}"]
    if collected.moved:
        hours = collection.grace.total_seconds() / 3600
        parts.append(
            f"took out {counted(len(collected.moved), 'blob')} ({size(collected.moved_bytes)}), to be deleted by a "
            f"collection after {hours:g} h in trash/"
        )
    if collected.back:
        parts.append(f"brought back {counted(len(collected.back), 'blob')} in use")
    paragraph("; ".join(parts) + ".")
