"""How values display themselves in a console and a notebook: at most one screenful."""

from __future__ import annotations

import io
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from rich.console import RenderableType

LINES, WIDTH = 40, 120
"""Size of a screenful."""
NOTEBOOK = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'
)


@runtime_checkable
class Drawn(Protocol):
    """A value that rich can render in a terminal."""

    def __rich__(self) -> RenderableType: ...


class Shown:
    """Base of values whose ``repr`` is a screenful of text; notebooks show the same as HTML.

    If a class has ``__rich__``, notebooks show what a terminal would.
    """

    __slots__ = ()

    def _description(self) -> str:
        """Return a description for people, of any number of lines."""
        return str(self)

    def __repr__(self) -> str:
        return screenful(self._description())

    def _repr_html_(self) -> str:
        """Return a screenful as escaped HTML."""
        if isinstance(self, Drawn):
            return drawn(self)
        import html  # its table of names takes 1 ms

        return NOTEBOOK.format(code=html.escape(repr(self)))


def network_and_cut(model: str, cut: str) -> str:
    """Return ``resnet18 @ layer3``; an adapter is not cut from a network, so its name stands alone."""
    return f"{model} @ {cut}" if cut else model


def screenful(text: str) -> str:
    """Return the first lines of a text, with control characters escaped.

    Args:
        text: Any number of lines of any width.

    Returns:
        At most ``LINES`` lines of at most ``WIDTH`` characters; the last states how many were omitted.
    """
    lines = [part for line in text.strip("\n").split("\n") for part in _folded(visible(line))]
    return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], _more(len(lines))])


def _folded(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_on_hyphens=False) or [""]


def drawn(value: Drawn) -> str:
    """Return what a terminal shows of a value as colored, escaped HTML: one screenful."""
    from rich.console import Console
    from rich.segment import SegmentLines
    from rich.text import Text

    console = Console(
        file=io.StringIO(),
        width=WIDTH,
        record=True,
        highlight=False,
        color_system="truecolor",
        force_jupyter=False,  # rich would show the value at once
    )
    lines = console.render_lines(value, pad=False)
    console.print(SegmentLines(lines if len(lines) <= LINES else lines[: LINES - 1], new_lines=True), end="")
    if len(lines) > LINES:
        console.print(Text(_more(len(lines))))
    return console.export_html(inline_styles=True, code_format=NOTEBOOK)


def _more(lines: int) -> str:
    return f"... {lines - LINES + 1:,} more lines; print it to see them all"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of equal length as lines with aligned columns."""
    widths = [max(map(width_of, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(padded, row, widths)).rstrip() for row in rows]


def width_of(text: str) -> int:
    """Return how many columns of a terminal a text takes: combining characters none, wide ones two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return a text with blanks behind it, or before it, so that it takes ``width`` columns of a terminal."""
    blanks = " " * (width - width_of(text))
    return blanks + text if right else text + blanks


def labeled(values: Mapping[str, str]) -> list[str]:
    """Return labels and texts as two columns, with wrapped texts."""
    size = max(map(width_of, values), default=0) + 2
    return [
        line
        for label, text in values.items()
        for line in textwrap.wrap(
            text,
            WIDTH,
            initial_indent=padded(label, size),
            subsequent_indent=" " * size,
            break_on_hyphens=False,
        )
    ]


def visible(text: str) -> str:
    """Return ``text`` as one line, with control, format and direction characters escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if unicodedata.category(character)[0] != "C" and character not in "\u2028\u2029"
        else _escape(character)
        for character in text
    )


def _escape(character: str) -> str:
    escapes = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    code = ord(character)
    return escapes.get(character) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")
