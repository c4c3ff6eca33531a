"""The command line: ``compatkit COMMAND``; every command takes ``--json``.

Exit codes: 0 ok, 1 incompatible or failed check, 2 usage, 3 integrity, 4 environment (disk, rights); 70 a defect
of this program or of a plugin, 130 interrupted, 143 ended by SIGTERM.
"""

from __future__ import annotations

import atexit
import errno
import io
import os
import signal
import sys
import time
import warnings
from contextlib import nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from compatkit.cli.options import Given, given, json_option, registry_option
from compatkit.cli.output import clean, emit, only_json, report_text, show_outcome, speaks, warn
from compatkit.errors import CompatkitError, EnvironmentFailure, IncompatibleError, PolicyBroken, suggest

if TYPE_CHECKING:
    from compatkit.contracts.report import Report

COMMANDS = {
    "adapt": ("compatkit.cli.adapt", "Move an extractor to images without labels."),
    "adopt": ("compatkit.cli.adopt", "Take in a checkpoint as an extractor and a head."),
    "alias": ("compatkit.cli.alias", "Point an alias at a version, or show where it points."),
    "bridge": ("compatkit.cli.bridge", "Bring a head to an extractor that it was not trained with."),
    "check": ("compatkit.cli.check", "Compare the contracts of extractors and heads."),
    "clone": ("compatkit.cli.remote", "Make a new registry with all that a remote holds."),
    "cuts": ("compatkit.cli.cuts", "List where a model can be cut and what crosses there."),
    "data": ("compatkit.cli.data", "Show what a data set holds, and what is wrong with it."),
    "demo": ("compatkit.cli.demo", "Train, publish, recombine and report on small real data."),
    "diff": ("compatkit.cli.diff", "Show what changed between two components, and the least step."),
    "du": ("compatkit.cli.du", "Show what takes how much of the disk."),
    "export": ("compatkit.cli.export", "Write a component as one file that runs without a registry."),
    "extend": ("compatkit.cli.extend", "Give a head outputs for further classes."),
    "gc": ("compatkit.cli.gc", "Find what nothing refers to, and delete it when told to."),
    "import": ("compatkit.cli.import_", "Copy components from another registry."),
    "index": ("compatkit.cli.index", "Show the index behind search and ls, or make it anew."),
    "init": ("compatkit.cli.init", "Make a registry in a folder."),
    "inspect": ("compatkit.cli.inspect", "Show the header of any safetensors file after a strict check."),
    "keys": ("compatkit.cli.keys", "Make keys to sign with, and say whose signatures count."),
    "log": ("compatkit.cli.log", "Show what happened to a component's versions and aliases."),
    "ls": ("compatkit.cli.ls", "List components with their versions."),
    "matrix": ("compatkit.cli.matrix", "Measure extractors with heads and report the matrix."),
    "metric": ("compatkit.cli.metric", "Let metrics look at a network: its answers, layers, weights."),
    "policy": ("compatkit.cli.policy", "Set, show and test what new versions must keep working with."),
    "oci": ("compatkit.cli.oci", "Write and read OCI image layouts, which container registries carry."),
    "plugins": ("compatkit.cli.plugins", "List plugins with status, distribution, version and hooks."),
    "publish": ("compatkit.cli.publish", "Publish a trained run that was not published."),
    "pull": ("compatkit.cli.remote", "Copy components of a remote, verified."),
    "push": ("compatkit.cli.remote", "Copy components to a remote: a folder, S3, the Hugging Face Hub."),
    "recombine": ("compatkit.cli.recombine", "Put a head on another network's extractor and measure it."),
    "search": ("compatkit.cli.search", "Find components by kind, tags, model, width or class."),
    "show": ("compatkit.cli.show", "Show a component's contract."),
    "sign": ("compatkit.cli.sign", "Sign components with a private key."),
    "signatures": (
        "compatkit.cli.signatures",
        "Say whose signatures components have, and whether these count.",
    ),
    "split": ("compatkit.cli.split", "Cut a model and show both parts."),
    "study": ("compatkit.cli.study", "List the studies of the papers, and run one by its number."),
    "sweep": ("compatkit.cli.sweep", "Carry out all runs of a recipe with lists, and compare them."),
    "train": ("compatkit.cli.train", "Train the tasks of a recipe and publish their parts."),
    "verify": ("compatkit.cli.verify", "Examine a registry's files, and mend what can be mended."),
    "withdraw": ("compatkit.cli.withdraw", "Withdraw a version, with a reason."),
}
FIRST_STEPS = """\b
New here?
  compatkit demo                      the idea, in under two minutes
  compatkit init parts                make a registry
  compatkit --registry parts train RECIPE.toml
  compatkit --registry parts ls

\b
Exit codes: 0 ok, 1 incompatible or failed check, 2 usage, 3 integrity,
4 environment (disk, rights).
"""
DEFECT, INTERRUPTED, TERMINATED = 70, 130, 143
TRACEBACK = "--traceback"
HEAD_START = 3.0
"""Seconds by which the first of several processes fails first; torchrun ends the others before they say the same."""


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
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            hint = suggest(name, COMMANDS) or f" There are {', '.join(COMMANDS)}."
            raise click.UsageError(f"There is no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=FIRST_STEPS,
)
@click.version_option(package_name="compatkit")
@registry_option
@json_option
@click.option(
    TRACEBACK,
    is_flag=True,
    expose_value=False,
    help="Show Python's traceback of an error too; stands anywhere.",
)
@click.pass_context
def program(context: click.Context, machine: bool) -> None:
    """Train network parts that fit, keep them, recombine them, report what fits."""
    given(context).machine = machine


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    words = sys.argv[1:] if arguments is None else arguments
    machine = "--json" in words
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a terminal without UTF-8 gets escapes, not a crash
    output = sys.stdout
    try:
        with warnings.catch_warnings(), only_json() if machine else nullcontext():
            warnings.showwarning = _show_warning
            code = _run(words, machine)
    except KeyboardInterrupt:  # a second Ctrl-C, while the first is being told
        code = INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader went away (`compatkit ls | head`), which click tells by SystemExit. It has what it wanted;
        # what is left in the buffer must not be written when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        code = 0
    # Registered last, run first: a second Ctrl-C while Python ends is no traceback of somebody's exit handler.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _run(words: list[str], machine: bool) -> int:
    """Run the command line; return the exit code."""
    try:
        return _traced(words)
    except SystemExit as end:
        if end.code != TERMINATED:
            raise
        return _fail(
            "Ended by SIGTERM. No partial files were left behind.", "interrupted", TERMINATED, machine
        )
    except click.Abort:
        return _fail("Interrupted. No partial files were left behind.", "interrupted", INTERRUPTED, machine)
    except click.ClickException as error:
        if machine:
            return _fail(error.format_message(), "usage", 2, machine)
        error.show()
        return error.exit_code
    except IncompatibleError as error:
        return _refuse(error, machine)
    except PolicyBroken as error:
        return _break(error, machine)
    except CompatkitError as error:
        return _fail(str(error), error.code, error.exit_code, machine)
    except BrokenPipeError:
        raise  # no failure of the system: main knows what to do
    except (OSError, MemoryError) as error:
        return _fail(_of_system(error), EnvironmentFailure.code, EnvironmentFailure.exit_code, machine)
    except Exception as error:
        if TRACEBACK not in words:
            _show_traceback()
        return _fail(
            f"{type(error).__name__}: {error}. This is a defect of compatkit or of a plugin, not of what you asked "
            "for; please report it with the lines above.",
            "defect",
            DEFECT,
            machine,
        )


def _traced(words: list[str]) -> int:
    """Run the command line, wherever in it ``--traceback`` stands; it shows where an error comes from."""
    asked = TRACEBACK in words
    try:
        rest = [word for word in words if word != TRACEBACK]
        line = Given(line=tuple(words))
        return program(args=rest, prog_name="compatkit", standalone_mode=False, obj=line) or 0
    except (click.ClickException, click.Abort, BrokenPipeError):
        raise
    except Exception:
        if asked:
            _show_traceback()
        raise


def _show_traceback() -> None:
    import traceback

    click.echo(clean(traceback.format_exc()), err=True)


def _fail(
    message: str,
    code: str,
    exit_code: int,
    machine: bool,
    report: Report | None = None,
    found: dict[str, Any] | None = None,
) -> int:
    """Tell of a failure; ``found`` is the report where it is another than that of a check, as JSON values."""
    if not speaks():
        time.sleep(HEAD_START)
    if machine:
        told = report.to_json() if report is not None else found
        try:
            emit({"error": {"code": code, "message": message, "report": told}})
        except OSError as error:  # a disk that is full takes no report either
            if isinstance(error, BrokenPipeError):
                raise
            click.echo(f"error [{code}] {clean(message)}", err=True)
    else:
        click.echo(f"{click.style('error', fg='red', bold=True)} [{code}] {clean(message)}", err=True)
        if report is not None:
            click.echo(report_text(report), err=True)
    return exit_code


def _refuse(error: IncompatibleError, machine: bool) -> int:
    """Tell of two parts that cannot be wired; the report says what each expects and what would adapt them."""
    from compatkit.contracts.report import Report

    report = error.subject if isinstance(error.subject, Report) else None
    message = str(error)
    if report is not None:
        barred = [one for one in report.findings if one.severity in ("refuses", "adaptable")]
        message = f"{report.head} does not go on {report.extractor} as it is: " + "; ".join(
            f"it expects {one.expected}, {one.came} came ({one.level} level)" for one in barred
        )
        advice = (
            str(error).removeprefix(str(report)).strip()
        )  # what to do, where the error knows more than the report
        message = f"{message}. {advice}".strip()
    return _fail(message, error.code, error.exit_code, machine, report)


def _break(error: PolicyBroken, machine: bool) -> int:
    """Tell of a version that its policy forbids; the outcome shows each figure, and the number that is open."""
    from compatkit.components.outcomes import Outcome

    outcome = error.subject if isinstance(error.subject, Outcome) else None
    found = outcome.to_json() if outcome is not None and machine else None
    code = _fail(str(error), error.code, error.exit_code, machine, found=found)
    if outcome is not None and not machine:
        show_outcome(outcome)
    return code


def _of_system(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return "The memory is used up. Use a smaller batch or data set."
    name = errno.errorcode.get(error.errno or 0, type(error).__name__)
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error} ({name}). Check the path, its rights and the space left."


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: Any = None,
    line: str | None = None,
) -> None:
    warn(f"{message}")
