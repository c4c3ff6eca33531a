"""Output of commands: JSON for programs; for people, lines that fit the terminal, with control characters escaped."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

import click

from compatkit.cli.command_line import command_line
from compatkit.foundation.credentials import redacted

if TYPE_CHECKING:
    from compatkit.contracts.report import Report

NARROW, WIDE = 60, 110
"""Limits of the width at which text is wrapped."""
_stream: ContextVar[TextIO | None] = ContextVar("stream", default=None)


def is_main_process() -> bool:
    """Return whether this process prints and publishes: rank 0 of those started by torchrun."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def only_json() -> Iterator[None]:
    """Let only ``emit`` write to standard output; redirect everything else to standard error."""
    token = _stream.set(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _stream.reset(token)


def emit(value: Any, code: int = 0, *, indent: int | None = 2) -> int:
    """Print a JSON value in ASCII, valid in any terminal encoding, and return the exit code.

    Args:
        value: JSON values; paths are written as text.
        code: Exit code of the command.
        indent: Spaces of a level; None for one line, which a program can read while the command still runs.
    """
    text = json.dumps(_without_credentials(value), indent=indent, default=os.fspath)
    click.echo(text, file=_stream.get())
    return code


def _without_credentials(value: Any) -> Any:
    """Return a JSON value with all of its texts redacted."""
    if isinstance(value, str):
        return redacted(value, known=False)
    if isinstance(value, os.PathLike):
        return redacted(os.fsdecode(value), known=False)
    if isinstance(value, Mapping):
        return {
            redacted(key, known=False) if isinstance(key, str) else key: _without_credentials(item)
            for key, item in value.items()
        }
    return [_without_credentials(item) for item in value] if isinstance(value, list | tuple) else value


def news(text: str) -> None:
    """Print progress information to standard error, apart from results."""
    click.echo(clean(redacted(text)), err=True)


def warn(text: str) -> None:
    """Warn on standard error."""
    click.echo(f"{click.style('warning', fg='yellow', bold=True)} {clean(redacted(text))}", err=True)


def clean(text: str) -> str:
    """Return ``text`` without credentials, and with control characters escaped, except line breaks."""
    from compatkit.foundation.display import visible

    return "\n".join(map(visible, redacted(text, known=False).split("\n")))


def width() -> int:
    """Return the width for wrapping: the terminal's (``COLUMNS`` if set), within limits."""
    import shutil

    return max(NARROW, min(WIDE, shutil.get_terminal_size().columns))


def fold(label: str, text: str, *, indent: int, size: int, **style: Any) -> str:
    """Return ``label`` and wrapped ``text`` as lines in two columns, with control characters escaped.

    Args:
        label: Left column.
        text: Right column.
        indent: Blanks before the label.
        size: Width of the left column.
        style: Style of the label, as for ``click.style``.
    """
    import textwrap

    from compatkit.foundation.display import padded, width_of

    front = " " * indent + padded(_line(label), size) + "  "
    lines = textwrap.wrap(
        _line(text),
        width(),
        initial_indent=front,
        subsequent_indent=" " * width_of(front),
        break_long_words=False,
        break_on_hyphens=False,
    )
    text = "\n".join(lines) or front.rstrip()
    return text.replace(label, click.style(label, **style), 1) if style else text


def _line(text: str) -> str:
    return clean(text).replace("\n", " ")


def rows(values: Mapping[str, str], *, indent: int = 2) -> None:
    """Print labels and texts in two columns, indented by so many spaces; empty texts are left out."""
    from compatkit.foundation.display import width_of

    texts = {label: text for label, text in values.items() if text}
    size = max((width_of(_line(label)) for label in texts), default=0)
    for label, text in texts.items():
        click.echo(fold(label, text, indent=indent, size=size))


def columns(table: Sequence[Sequence[str]], *, right: Iterable[int] = ()) -> None:
    """Print a table with aligned columns; empty columns are omitted.

    Args:
        table: Rows of equal length; the first is the header.
        right: Columns aligned to the right.
    """
    from compatkit.foundation.display import padded, width_of

    cleaned = [[clean(text) for text in row] for row in table]
    sizes = [max(map(width_of, texts)) for texts in zip(*cleaned, strict=True)]
    shown = [column for column in range(len(sizes)) if any(row[column] for row in cleaned[1:])]
    numbers = set(right)
    for number, row in enumerate(cleaned):
        texts = (padded(row[column], sizes[column], right=column in numbers) for column in shown)
        line = "  ".join(texts).rstrip()
        click.echo(line if number else click.style(line, dim=True))


def paragraph(text: str) -> None:
    """Print a short text, wrapped to the terminal."""
    import textwrap

    click.echo(textwrap.fill(clean(text), width(), break_long_words=False, break_on_hyphens=False))


def next_step(*words: object, before: str = "next", registry: bool = True) -> None:
    """Print a suggested next command, quoted for the shell.

    Args:
        words: Words of the command, without ``compatkit`` and the options that select the registry.
        before: Word in front of it, such as ``"or"`` for a second command.
        registry: Whether it works on the registry of this command.
    """
    import shlex

    same = command_line().words if registry else ()
    click.echo(f"{before}: {redacted(shlex.join(['compatkit', *same, *map(str, words)]), known=False)}")


def report_text(report: Report, *, verbose: bool = False) -> str:
    """Return the verdict of a check and its reasons, wrapped to the terminal.

    Args:
        report: Result of the check.
        verbose: Whether to show every finding in full, not a sentence for each that decides.
    """
    from compatkit.contracts.report import display_severity
    from compatkit.reports.wording import SEVERITIES, finding_sentence, finding_texts, is_note

    answers = f"wiring {report.wiring}, promise {report.promise}, evidence {report.evidence}"
    lines = [f"{click.style(report.word, bold=True)}: {answers}"]
    for side in ("extractor", "head"):
        lines.append(fold(side, getattr(report, side) or "(not named)", indent=2, size=9))
    for finding in report.findings:
        severity, color = display_severity(finding.severity), SEVERITIES.get(finding.severity)
        if verbose:
            lines += ["", f"  {click.style(severity, fg=color)}  {finding.code} ({finding.level})"]
            texts = {"between": finding.between, **finding_texts(finding)}
            lines += [fold(label, text, indent=4, size=8) for label, text in texts.items()]
        elif not is_note(finding):
            lines.append(fold(severity, finding_sentence(finding), indent=2, size=9, fg=color))
    return "\n".join(lines)


def print_rich(value: Any) -> None:
    """Print a rich renderable, such as a table."""
    from rich.console import Console

    console = Console(force_jupyter=False)
    with console.capture() as printed:
        console.print(value)
    click.echo(printed.get(), nl=False)


def size(count: int) -> str:
    """Return a number of bytes for display: ``"1.2 MB"``."""
    from rich.filesize import decimal

    return decimal(count)


def counted(count: int, what: str) -> str:
    """Return a number with its noun, given in the singular: ``"1 blob"``, ``"2 blobs"``."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def first(names: Sequence[str], limit: int) -> str:
    """Return at most ``limit`` names, and the number of further ones: ``"a, b and 3 more"``."""
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


@contextmanager
def progress(title: str, *, bytes: bool = False) -> Iterator[Callable[[int, int, str], None]]:
    """Show progress on standard error: a bar in a terminal, elsewhere a line now and then; none under ``--quiet``.

    Args:
        title: Title of the work.
        bytes: Whether bytes are counted, and shown with their rate.
    """
    from compatkit.foundation.bars import Lines, is_silent, rich_bar, silent

    if is_silent():
        yield lambda done, total, what: None
        return
    if not sys.stderr.isatty():
        with silent(), Lines(title, "bytes" if bytes else "").repeated() as lines:
            yield lines
        return
    with silent(), rich_bar(bytes=bytes) as bar:
        row = bar.add_task(title, total=None, what="")

        def report(done: int, total: int, what: str) -> None:
            bar.update(row, completed=done, total=total, what="" if bytes else what)

        yield report
