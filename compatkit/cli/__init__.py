"""The command line: ``compatkit COMMAND``; every command takes ``--json`` and ``--quiet``.

Exit codes: 0 ok, 1 incompatible or failed check, 2 usage, 3 integrity, 4 environment (disk, permissions); 70 a defect
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

from compatkit.cli.options import (
    CommandLine,
    command_line,
    json_option,
    plugin_option,
    quiet_option,
    registry_option,
)
from compatkit.cli.output import clean, emit, only_json, report_text, show_outcome, speaks, warn
from compatkit.errors import CompatkitError, EnvironmentFailure, IncompatibleError, PolicyBroken, suggest

if TYPE_CHECKING:
    from compatkit.contracts.report import Report

COMMANDS = {
    "adapt": ("compatkit.cli.adapt", "Adapt an extractor to unlabeled images."),
    "adopt": ("compatkit.cli.adopt", "Adopt a checkpoint as an extractor and a head."),
    "alias": ("compatkit.cli.alias", "Point an alias to a version, or show its version."),
    "bridge": ("compatkit.cli.bridge", "Bridge a head to an extractor that it was not trained with."),
    "check": ("compatkit.cli.check", "Compare the contracts of extractors and heads."),
    "clone": ("compatkit.cli.remote", "Create a registry with everything from a remote."),
    "cuts": ("compatkit.cli.cuts", "List where a model can be cut and what crosses there."),
    "data": ("compatkit.cli.data", "Show what a data set holds, and what is wrong with it."),
    "demo": ("compatkit.cli.demo", "Train, publish, recombine and report on small real data."),
    "diff": ("compatkit.cli.diff", "Show changes between two components, and the required step."),
    "export": ("compatkit.cli.export", "Write a component as one file that runs without a registry."),
    "extend": ("compatkit.cli.extend", "Add classes to a head."),
    "gc": ("compatkit.cli.gc", "Find unreferenced files, and delete them on request."),
    "import": ("compatkit.cli.import_", "Copy components from another registry."),
    "index": ("compatkit.cli.index", "Show or rebuild the index behind search and ls."),
    "init": ("compatkit.cli.init", "Create a registry in a folder."),
    "inspect": ("compatkit.cli.inspect", "Show the header of any safetensors file after a strict check."),
    "keys": ("compatkit.cli.keys", "Make signing keys, and manage trusted keys."),
    "log": ("compatkit.cli.log", "Show what happened to a component's versions and aliases."),
    "ls": ("compatkit.cli.ls", "List components with their versions."),
    "matrix": ("compatkit.cli.matrix", "Measure extractors with heads and report the matrix."),
    "metric": ("compatkit.cli.metric", "Compute metrics of a network: predictions, layers, weights."),
    "policy": ("compatkit.cli.policy", "Set, show and test what new versions must keep working with."),
    "oci": ("compatkit.cli.oci", "Write and read OCI image layouts for container registries."),
    "plugins": ("compatkit.cli.plugins", "List plugins with status, distribution, version and hooks."),
    "predict": ("compatkit.cli.predict", "Predict the class of each photo with a network of the registry."),
    "publish": ("compatkit.cli.publish", "Publish a trained run that was not published."),
    "pull": ("compatkit.cli.remote", "Copy components from a remote, verified."),
    "push": ("compatkit.cli.remote", "Copy components to a remote: a folder, S3, the Hugging Face Hub."),
    "rank": ("compatkit.cli.rank", "Score extractors for a data set before any training."),
    "recombine": (
        "compatkit.cli.recombine",
        "Combine a head with another network's extractor, and measure it.",
    ),
    "search": ("compatkit.cli.search", "Find components by kind, tags, model, width or class."),
    "show": ("compatkit.cli.show", "Show a component's contract."),
    "sign": ("compatkit.cli.sign", "Sign components with a private key."),
    "signatures": (
        "compatkit.cli.signatures",
        "Show who signed components, and whether the signatures are valid.",
    ),
    "similarity": ("compatkit.cli.similarity", "Compare all layers of two networks."),
    "split": ("compatkit.cli.split", "Cut a model and show both parts."),
    "study": ("compatkit.cli.study", "List the studies of the papers, and run one by its number."),
    "sweep": ("compatkit.cli.sweep", "Run all variants of a recipe with lists, and compare them."),
    "train": ("compatkit.cli.train", "Train the tasks of a recipe and publish their parts."),
    "verify": ("compatkit.cli.verify", "Verify a registry's files, and repair what is possible."),
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
4 environment (disk, permissions).
"""
DEFECT, INTERRUPTED, TERMINATED = 70, 130, 143
TRACEBACK = "--traceback"
HEAD_START = 3.0
"""Seconds by which the first process reports its error before the others; torchrun then ends them."""


class LazyGroup(click.Group):
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
        """Find the command; suggest a similar name if it is unknown."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            hint = suggest(name, COMMANDS) or f" There are {', '.join(COMMANDS)}."
            raise click.UsageError(f"There is no command {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=FIRST_STEPS,
    params=[registry_option, json_option, quiet_option, plugin_option],
)
@click.version_option(package_name="compatkit")
@click.option(
    TRACEBACK,
    is_flag=True,
    expose_value=False,
    help="Also show the Python traceback of an error; allowed anywhere.",
)
@click.pass_context
def program(context: click.Context, json: bool) -> None:
    """Train compatible network parts, publish them, recombine them, report what fits."""
    command_line(context).json = json


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    words = sys.argv[1:] if arguments is None else arguments
    machine = "--json" in words
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a terminal without UTF-8 gets escapes instead of an error
    output = sys.stdout
    try:
        with warnings.catch_warnings(), only_json() if machine else nullcontext():
            warnings.showwarning = _show_warning
            code = _run(words, machine)
    except KeyboardInterrupt:  # a second Ctrl-C, while the first is being reported
        code = INTERRUPTED
    except (BrokenPipeError, SystemExit):
        # The reader has gone (`compatkit ls | head`), which click signals by SystemExit. Discard the rest of the
        # buffer, so that Python does not fail writing it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        code = 0
    # Registered last, run first: a second Ctrl-C during exit must not print a traceback.
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
            "Ended by SIGTERM. No half-written file was left behind.", "interrupted", TERMINATED, machine
        )
    except click.Abort:
        return _fail(
            "Interrupted. No half-written file was left behind.", "interrupted", INTERRUPTED, machine
        )
    except click.ClickException as error:
        return _fail(_of_click(error, machine), "usage", error.exit_code, machine)
    except IncompatibleError as error:
        return _refuse(error, machine)
    except PolicyBroken as error:
        return _break(error, machine)
    except CompatkitError as error:
        return _fail(str(error), error.code, error.exit_code, machine)
    except BrokenPipeError:
        raise  # not an error: main handles it
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
    """Run the command line with ``--traceback`` anywhere in it."""
    shown = TRACEBACK in words
    try:
        rest = [word for word in words if word != TRACEBACK]
        line = CommandLine(arguments=tuple(words))
        return program(args=rest, prog_name="compatkit", standalone_mode=False, obj=line) or 0
    except (click.ClickException, click.Abort, BrokenPipeError):
        raise
    except Exception:
        if shown:
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
    outcome: dict[str, Any] | None = None,
) -> int:
    """Report a failure; ``outcome`` is a report as JSON values, if it is not that of a check."""
    if not speaks():
        time.sleep(HEAD_START)
    if machine:
        details = report.to_json() if report is not None else outcome
        try:
            emit({"error": {"code": code, "message": message, "report": details}})
        except OSError as error:  # the report cannot be printed either, for example on a full disk
            if isinstance(error, BrokenPipeError):
                raise
            click.echo(f"error [{code}] {clean(message)}", err=True)
    else:
        click.echo(f"{click.style('error', fg='red', bold=True)} [{code}] {clean(message)}", err=True)
        if report is not None:
            click.echo(report_text(report), err=True)
    return exit_code


def _refuse(error: IncompatibleError, machine: bool) -> int:
    """Report two parts that cannot be wired; the report gives the expectations and possible adapters."""
    from compatkit.contracts.report import Report

    report = error.subject if isinstance(error.subject, Report) else None
    message = str(error)
    if report is not None:
        findings = [finding for finding in report.findings if finding.severity in ("refuses", "adaptable")]
        message = f"{report.head} does not fit {report.extractor} as it is: " + "; ".join(
            f"it expects {finding.expected}, got {finding.actual} ({finding.level} level)"
            for finding in findings
        )
        advice = (
            str(error).removeprefix(str(report)).strip()
        )  # advice that the error has in addition to the report
        message = f"{message}. {advice}".strip()
    return _fail(message, error.code, error.exit_code, machine, report)


def _break(error: PolicyBroken, machine: bool) -> int:
    """Report a version that its policy forbids; the outcome shows all figures and the open version number."""
    from compatkit.components.outcomes import PolicyOutcome

    outcome = error.subject if isinstance(error.subject, PolicyOutcome) else None
    details = outcome.to_json() if outcome is not None and machine else None
    code = _fail(str(error), error.code, error.exit_code, machine, outcome=details)
    if outcome is not None and not machine:
        show_outcome(outcome)
    return code


def _of_click(error: click.ClickException, machine: bool) -> str:
    """Return the message of a usage error; for people, point to the help of the command."""
    message = error.format_message().rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"{message}." if machine or context is None else f"{message}. See `{context.command_path} --help`."


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
