"""The command line: ``compatkit COMMAND``; every command takes ``--json``.

Exit codes: 0 ok, 1 incompatible or failed check, 2 usage, 3 integrity, 4 environment (disk, rights).
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import click

from compatkit.errors import CompatkitError

COMMANDS = {
    "check": ("compatkit.cli.inspect", "Compare the contracts of an extractor and a head."),
    "demo": ("compatkit.cli.demo", "Train, publish, recombine and report on small real data."),
    "init": ("compatkit.cli.inspect", "Make a registry in a folder."),
    "ls": ("compatkit.cli.inspect", "List components with their versions."),
    "matrix": ("compatkit.cli.measure", "Measure extractors with heads and report the matrix."),
    "plugins": ("compatkit.cli.inspect", "List plugins with status, distribution, version and hooks."),
    "recombine": ("compatkit.cli.measure", "Put a head on another network's extractor."),
    "show": ("compatkit.cli.inspect", "Show a component's contract."),
    "split": ("compatkit.cli.split", "Cut a model and show both parts."),
    "train": ("compatkit.cli.train", "Train the tasks of a recipe and publish their parts."),
}


class Lazy(click.Group):
    """A group that imports a command's module when the command runs, not for ``--help``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(COMMANDS[cmd_name][0])
        return getattr(module, f"{cmd_name}_command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest a near name where there is none."""
        import difflib

        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            near = difflib.get_close_matches(name, COMMANDS, 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"There is no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="compatkit")
@click.option(
    "--registry", metavar="ROOT", help="Registry folder; else COMPATKIT_REGISTRY, else the folder above."
)
@click.pass_context
def program(context: click.Context, registry: str | None) -> None:
    """Train network parts that fit, keep them, recombine them, report what fits."""
    context.obj = {"registry": registry}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    given = sys.argv[1:] if arguments is None else arguments
    machine = "--json" in given
    try:
        program(args=given, prog_name="compatkit", standalone_mode=False)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except click.Abort:
        _fail("Interrupted.", "interrupted", 130, machine)
    except click.ClickException as error:
        if machine:
            _fail(error.format_message(), "usage", 2, machine)
        error.show()
        sys.exit(error.exit_code)
    except CompatkitError as error:
        _fail(str(error), error.code, error.exit_code, machine, error.subject)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except OSError as error:
        _fail(f"{error.strerror or error}: {error.filename or ''}", "environment", 4, machine)
    sys.exit(0)


def _fail(message: str, code: str, exit_code: int, machine: bool, subject: Any = None) -> None:
    if machine:
        report = subject.to_json() if hasattr(subject, "to_json") else None
        click.echo(json.dumps({"error": {"code": code, "message": message, "report": report}}, indent=2))
    else:
        click.echo(f"{click.style('error', fg='red', bold=True)} [{code}] {message}", err=True)
    sys.exit(exit_code)
