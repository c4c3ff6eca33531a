"""``compatkit verify``: verify a registry's files, and repair them on request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Options, argument, command, option
from compatkit.cli.output import clean, counted, emit, first, fold, next_step, paragraph, progress, rows
from compatkit.cli.roots import requested_root
from compatkit.errors import IntegrityError, UsageError
from compatkit.foundation.addresses import is_remote, shown
from compatkit.registry.layout import locate

if TYPE_CHECKING:
    from compatkit.registry.maintenance.check import VerificationReport
    from compatkit.registry.maintenance.faults import Fault
    from compatkit.registry.maintenance.loads import LoadCheck, LoadRefusal
    from compatkit.registry.maintenance.repair_plan import ActionResult

COLORS = {"error": "red", "warning": "yellow"}
MAX_NAMED = 5
"""Users of a file that are named; ``--json`` lists all."""


class VerifyOptions(Options):
    """Arguments and options of ``verify``."""

    patterns: tuple[str, ...] = argument("[PATTERN]...")
    download: bool = option("Of a remote, read all weights too; they need free disk space for a while.")
    quick: bool = option("Read only manifests and headers of weights: finds missing and truncated files.")
    load: bool = option(
        "Also load every version, as `predict` does: outputs of its probe, parts of recombinations."
    )
    repair: bool = option("Repair what is possible, and verify again; damaged files go to quarantine/.")
    copy: Path | None = option("Copy of the registry, to restore lost files from.", "--from", metavar="ROOT")


@command("verify", VerifyOptions)
def verify_command(options: VerifyOptions) -> int | None:
    """Check all files of the registry, and show each fault with its remedy.

    Unless --quick, also check that a load would accept each version, without reading its weights into a network.
    PATTERN restricts the check to names or NAME@VERSION, globs allowed, with everything that they need. Exit code 3 for
    errors, not for warnings.

    Of a remote, only the headers of weights are read, unless --download or --load.

    Examples:
        # every byte of every file
        compatkit verify
        # names, manifests and headers only
        compatkit verify 'digits/*' --quick
        # restore lost files from a copy
        compatkit verify --repair --from /backup/parts
    """
    from compatkit.registry.maintenance.check import examine, open_damaged
    from compatkit.registry.store import Store

    root = requested_root()
    remote = root if root is not None and is_remote(root) else None
    if remote is not None and (options.repair or options.copy):
        raise UsageError(f"{shown(remote)} is a remote, which is only read; clone it, and repair the clone.")
    if remote is None and options.download:
        raise UsageError("--download is for remotes; the weights of a folder are read unless --quick.")
    store = (
        None
        if remote is not None
        else open_damaged(locate(None) if root is None else Path(root).expanduser())
    )
    source = Store.open(options.copy.expanduser()) if options.copy is not None else None

    if options.load and options.quick:
        raise UsageError("--load and --quick exclude each other.")
    loads = None if options.quick else _load_check(options.load)

    def look() -> VerificationReport:
        if store is None:
            from compatkit.registry.remotes import named
            from compatkit.registry.remotes.named import SavedRemote
            from compatkit.registry.remotes.verifying import verify_remote

            with progress("verify") as report:
                return verify_remote(
                    named.find(remote) or SavedRemote.of(str(remote)),
                    patterns=options.patterns,
                    download=options.download or options.load,
                    loads=loads,
                    progress=report,
                )
        with progress("verify", bytes=True) as report:
            deep = not options.quick
            return examine(store, patterns=options.patterns, deep=deep, loads=loads, progress=report)

    before = look()
    if store is None:
        return _finish_remote(options, before)
    if source is None and not (before.faults or options.json):
        _print(before)
        _print_verdict(before)
        return 0
    from compatkit.registry.maintenance.repair import plan

    planned = plan(before, source=source)
    outcomes = planned.apply() if options.repair else ()
    after = look() if any(outcome.done for outcome in outcomes) else before
    code = 0 if after.sound else IntegrityError.exit_code
    if options.json:
        done = {"before": before.to_json(), "outcomes": [outcome.to_json() for outcome in outcomes]}
        return emit(
            {**after.to_json(), "repair": planned.to_json(), **(done if options.repair else {})}, code
        )
    _print(before)
    if options.repair:
        _list("repair", [_outcome(outcome) for outcome in outcomes])
    else:
        _list(
            "--repair would",
            [("-", _with_users(action.words, action.affected)) for action in planned.actions],
        )
    left = [
        f"{fault.code} {_with_users(fault.path, fault.affected)}: {fault.remedy}" for fault in planned.left
    ]
    _list("left to you", [("-", text) for text in left])
    known = {(fault.code, fault.path) for fault in planned.left}
    new = [
        fault for fault in after.faults if fault.severity != "info" and (fault.code, fault.path) not in known
    ]
    if outcomes and new:
        click.echo(click.style("\nstill there, or only seen now:", bold=True))
        for fault in new:
            _print_fault(fault)
    _print_verdict(after)
    if planned.actions and not options.repair:
        more = ["--from", options.copy] if options.copy else []
        next_step("verify", *options.patterns, *more, "--repair")
    return code


def _finish_remote(options: VerifyOptions, report: VerificationReport) -> int:
    """Print the report of a remote, to which nothing is repaired; return the exit code."""
    code = 0 if report.sound else IntegrityError.exit_code
    if options.json:
        return emit(report.to_json(), code)
    _print(report)
    _print_verdict(report)
    return code


def _print_verdict(report: VerificationReport) -> None:
    counts = {name: report.count(name) for name in ("error", "warning")}
    text = " and ".join(counted(count, name) for name, count in counts.items() if count)
    word = click.style("sound", fg="green") if report.sound else click.style("not sound", fg="red", bold=True)
    click.echo(f"\n{text}: {word}" if text else word)


def _load_check(full: bool) -> LoadCheck:
    """Return the check of loads; torch is imported only if there is something to check."""
    checks: list[LoadCheck] = []

    def check(*component: Any) -> LoadRefusal | None:
        if not checks:
            from compatkit.components.loadable import load_check

            checks.append(load_check(full=full))
        return checks[0](*component)

    return check


def _print(report: VerificationReport) -> None:
    """Print what was read, then every fault; infos on one line each."""
    read = ", ".join(
        counted(getattr(report, f"{what}s"), what) for what in ("version", "manifest", "result", "blob")
    )
    paragraph(f"{report.where}: {read}, {report.bytes:,} bytes read{'' if report.deep else ' (quick)'}")
    for fault in report.faults:
        if fault.severity == "info":
            click.echo(fold("info", f"{fault.code}  {fault.path}: {fault.what}", indent=0, size=5))
        else:
            _print_fault(fault)


def _print_fault(fault: Fault) -> None:
    severity = click.style(fault.severity, fg=COLORS.get(fault.severity))
    click.echo(f"\n{severity}  {fault.code}  {clean(fault.path) or '.'}")
    rows({"what": fault.what, "affected": first(fault.affected, MAX_NAMED), "remedy": fault.remedy})


def _list(title: str, lines: Sequence[tuple[str, str]]) -> None:
    """Print a title and labeled lines, if there are any."""
    if lines:
        click.echo(click.style(f"\n{title}:", bold=True))
    size = max((len(label) for label, _ in lines), default=0)
    for label, text in lines:
        click.echo(fold(label, text, indent=2, size=size))


def _outcome(outcome: ActionResult) -> tuple[str, str]:
    state = "done" if outcome.done else "failed" if outcome.error else "not needed any more"
    words = _with_users(outcome.action.words, outcome.action.affected)
    return state, f"{words}: {outcome.error}" if outcome.error else words


def _with_users(text: str, users: tuple[str, ...]) -> str:
    more = tuple(user for user in users if user not in text)
    return f"{text} ({first(more, MAX_NAMED)})" if more else text
