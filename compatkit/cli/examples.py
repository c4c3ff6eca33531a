"""Commands with examples at the end of their help, which are declared in docstrings.

A docstring ends with a section ``Examples:``: under each line that begins with ``#`` stands the command that does it,
continued on lines that are indented deeper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

import click

HEADING = "\nExamples:\n"
INDENT, CONTINUED = "  ", "      "
WORD = re.compile(r"""(?:[^\s'"]|'[^']*'|"[^"]*")+""")
"""One word of a command line with its quotes."""


class Command(click.Command):
    """A command whose help ends with examples; pages take them from the attribute.

    Attributes:
        examples: What each command line does, by the line as it is typed: one to three, each beginning with
            ``compatkit`` and containing this command, without line breaks.
    """

    def __init__(self, *arguments: Any, examples: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each line under a comment that says what it does, so that both can be copied to a shell."""
        formatter.write(HEADING)
        for line, text in self.examples.items():
            for part in click.formatting.wrap_text(text, formatter.width - 4).split("\n"):
                formatter.write(f"{INDENT}# {part}\n")
            formatter.write(f"{folded(line, formatter.width)}\n")
        super().format_epilog(ctx, formatter)


class Group(Command, click.Group):
    """A group of commands whose help ends with examples.

    Attributes:
        default: Command that runs where the first word names none; empty if a command must be named.
    """

    default: str = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Name the default command where none is named."""
        words = [word for word in args if not word.startswith("-")]
        if self.default and (not words or words[0] not in self.commands) and "--help" not in args:
            args = [self.default, *args]
        return super().parse_args(ctx, args)


def example_of(context: click.Context | None) -> str:
    """Return a sentence with the first example of a command, for messages; empty without one."""
    command = None if context is None else context.command
    return f" For example: `{next(iter(command.examples))}`." if isinstance(command, Command) else ""


def divided(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Return the help text of a docstring, and what each of its examples does by command line.

    Raises:
        TypeError: It has no examples.
    """
    text, _, section = cleandoc(docstring or "").partition(HEADING)
    lines: list[str] = []
    comments: list[str] = []
    comment: list[str] = []
    for line in cleandoc(f"\n{section}").splitlines():
        if line.startswith("#"):
            comment.append(line.removeprefix("#").strip())
        elif line.startswith(" "):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
            comments.append(" ".join(comment))
            comment = []
    if not (lines and all(comments)):
        raise TypeError(f"expected a docstring that ends with examples, got {docstring!r:.80}")
    return text.strip(), dict(zip(lines, comments, strict=True))


def folded(line: str, width: int) -> str:
    """Return a command line, indented, divided by backslashes where it is wider than ``width`` columns."""
    lines = [INDENT]
    for word in WORD.findall(line):
        longer = f"{lines[-1]}{' ' if lines[-1].strip() else ''}{word}"
        if len(longer) + len(" \\") > width and lines[-1].strip():
            lines[-1] += " \\"
            lines.append(CONTINUED + word)
        else:
            lines[-1] = longer
    return "\n".join(lines)
