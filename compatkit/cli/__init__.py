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
from collections.abc import Callable
from contextlib import nullcontext
from gc import freeze  # in this package, gc is the command of that name
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from compatkit.cli.command_line import (
    COMPLETE,
    CommandLine,
    json_option,
    plugin_option,
    quiet_option,
    registry_option,
)
from compatkit.cli.examples import example_of
from compatkit.cli.output import clean, emit, is_main_process, only_json, report_text, warn
from compatkit.errors import CompatkitError, EnvironmentFailure, IncompatibleError, PolicyBroken, suggest
from compatkit.foundation.credentials import redacted, remember

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECTIONS = {
    "Train and combine": {
        "demo": "Train, publish, recombine and report on small real data.",
        "recipe": "Write a first recipe for your own images.",
        "train": "Train the tasks of a recipe and publish their parts.",
        "sweep": "Run all variants of a recipe with lists, and compare them.",
        "publish": "Publish a trained run that was not published.",
        "check": "Compare the contracts of extractors and heads.",
        "recombine": "Combine a head with another network's extractor, and measure it.",
        "predict": "Predict the class of each photo with a network of the registry.",
        "bridge": "Bridge a head to an extractor that it was not trained with.",
        "adapt": "Adapt an extractor to unlabeled images.",
        "extend": "Add classes to a head.",
        "rank": "Score extractors for a data set before any training.",
        "export": "Write a component as one file that runs without a registry.",
    },
    "Measure and compare": {
        "matrix": "Measure extractors with heads and report the matrix.",
        "metric": "Compute metrics of a network: predictions, layers, weights.",
        "similarity": "Compare all layers of two networks.",
        "diff": "Show changes between two components, and the required step.",
    },
    "Registry": {
        "init": "Create a registry in a folder.",
        "ls": "List components with their versions.",
        "search": "Find components by kind, tags, model, width or class.",
        "show": "Show a component's contract.",
        "site": "Write a catalogue of all components as pages.",
        "serve": "Show the catalogue in a browser on this machine.",
        "log": "Show what happened to a component's versions and aliases.",
        "alias": "Point an alias to a version, or show its version.",
        "copy": "Give a version another name or number: rename, promote.",
        "withdraw": "Withdraw a version, with a reason.",
        "restore": "Take the withdrawal of a version back.",
        "drop": "Free a version number that another registry uses for another component.",
        "import": "Copy components from another registry.",
        "index": "Show or rebuild the index behind search and ls.",
        "du": "Show disk usage.",
        "gc": "Find unreferenced files, and delete them on request.",
        "verify": "Verify a registry's files, and repair what is possible.",
        "inspect": "Show the header of any safetensors file after a strict check.",
    },
    "Share": {
        "remote": "Save remotes under names, list and remove them.",
        "push": "Copy components to a remote: a folder, S3, the Hugging Face Hub.",
        "pull": "Copy components from a remote, verified.",
        "clone": "Create a registry with everything from a remote.",
    },
    "Trust": {
        "keys": "Make signing keys, and manage trusted keys.",
        "sign": "Sign components with a private key.",
        "signatures": "Show who signed components, and whether the signatures are valid.",
        "settings": "Show or change which signatures are required, and which keys may do what.",
        "policy": "Set, show and test what new versions must keep working with.",
    },
    "Networks and data": {
        "cuts": "List where a model can be cut and what crosses there.",
        "split": "Cut a model and show both parts.",
        "adopt": "Adopt a checkpoint as an extractor and a head.",
        "data": "Show what a data set holds, and what is wrong with it.",
    },
    "Experiments and setup": {
        "study": "List the studies of the papers, and run one by its number.",
        "schema": "Print the JSON Schema of what a command prints with --json.",
        "doctor": "Look at installation, machine and registry, and say what to do.",
        "completion": "Print the script by which a shell completes commands and names.",
        "plugins": "List plugins with status, distribution, version and hooks.",
    },
}
"""Commands by task, in the order of the list of commands, with what they do."""
COMMANDS = {name: text for section in SECTIONS.values() for name, text in section.items()}
OTHER_WORDS = {
    "help": "--help",
    "version": "--version",
    "list": "ls",
    "create": "init",
    "new": "init",
    "add": "publish",
    "mv": "copy",
    "rename": "copy",
    "rm": "withdraw",
    "delete": "withdraw",
    "remove": "withdraw",
    "evaluate": "matrix",
    "measure": "matrix",
    "compare": "check",
    "download": "pull",
    "upload": "push",
    "history": "log",
    "info": "show",
}
"""Commands by what other programs call them."""
MODULES = {
    "import": "import_",
    "clone": "remote",
    "pull": "remote",
    "push": "remote",
    "remote": "named_remotes",
}
"""Modules of this folder whose name is not that of the command."""
FIRST_STEPS = """\b
New here?
  compatkit demo                      the idea, in one to three minutes
  compatkit recipe photos/a photos/b  a recipe for your own images
  compatkit --registry parts train photos.toml
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
        module = import_module(f"compatkit.cli.{MODULES.get(cmd_name, cmd_name)}")
        return getattr(module, f"{cmd_name}_command")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by task, without importing any."""
        size = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(size), text) for name, text in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Return commands and options that begin so, without importing any command."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest a similar name if it is unknown."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in COMMANDS:
            hint = OTHER_WORDS.get(name)
            hint = f" Use `compatkit {hint}`." if hint else suggest(name, COMMANDS)
            hint = hint or f" There are {', '.join(COMMANDS)}."
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
def program() -> None:
    """Train networks whose parts fit each other; publish, recombine and measure the parts."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    if shell := os.environ.get(COMPLETE):
        from compatkit.cli.shells import answer

        click.echo(answer(shell, program), nl=False)
        _leave(0)
    words = sys.argv[1:] if arguments is None else arguments
    machine = "--json" in words
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 gets escapes
    output = sys.stdout
    for word in words:  # before any of them is part of a message
        name, _, value = word.removeprefix("--option=").partition("=")
        remember(word, {name: value} if value else None)  # the name of compatkit's own options begins with --
    try:
        with warnings.catch_warnings(), only_json() if machine else nullcontext():
            warnings.showwarning = lambda message, *where, **more: warn(f"{message}")
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
    _leave(code)


def _leave(code: int) -> NoReturn:
    """Exit without the collections that end a process: they would walk through every module that was imported."""
    atexit.register(freeze)
    sys.exit(code)


class Failure(NamedTuple):  # every command would wait 0.7 ms for an attrs class
    """An error as the command line reports it.

    Attributes:
        message: For people and programs.
        code: Stable code.
        exit_code: Exit code of the process.
        details: A report as JSON values, or None.
        show: Prints the report for people, or None.
    """

    message: str
    code: str
    exit_code: int
    details: dict[str, Any] | None = None
    show: Callable[[], None] | None = None


def _run(words: list[str], machine: bool) -> int:
    """Run the command line; return the exit code."""
    line = CommandLine(arguments=tuple(words))
    rest = [word for word in words if word != TRACEBACK]
    try:
        return program(args=rest, prog_name="compatkit", standalone_mode=False, obj=line) or 0
    except BrokenPipeError:
        raise  # not an error: main handles it
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.ctx.get_help())
        return asked.exit_code
    except SystemExit as end:
        if end.code != TERMINATED:
            raise
        failure = Failure("Ended by SIGTERM; no half-written file is left.", "interrupted", TERMINATED)
    except Exception as error:
        failure = _failure(error, machine)
        failure = failure._replace(message=line.translated(failure.message))
        wants_traceback = TRACEBACK in words and not isinstance(error, click.ClickException | click.Abort)
        if wants_traceback or failure.exit_code == DEFECT:
            import traceback

            click.echo(clean(redacted(traceback.format_exc())), err=True)
    return _report(failure, machine)


def _failure(error: Exception, machine: bool) -> Failure:
    """Return an error as it is reported; for people, a usage error points to the command's help."""
    match error:
        case click.Abort():
            return Failure("Interrupted; no half-written file is left.", "interrupted", INTERRUPTED)
        case click.ClickException():
            text = error.format_message().strip()
            text = text if text.endswith(("?", "!", "?)", ".)", ".")) else f"{text}."
            context = error.ctx if isinstance(error, click.UsageError) else None
            if isinstance(error, click.MissingParameter):
                text += example_of(context)
            text += "" if context is None or machine else f" See `{context.command_path} --help`."
            return Failure(text, "usage", error.exit_code)
        case CompatkitError():
            return _carrying(error, error.subject)
        case MemoryError():
            text = "The memory is used up. Use a smaller batch or data set."
        case OSError():
            name = errno.errorcode.get(error.errno or 0, type(error).__name__)
            where = f"{error.filename}: " if error.filename else ""
            text = f"{where}{error.strerror or error} ({name}). Check the path, its permissions and the free space."
        case _:
            text = f"{type(error).__name__}: {error}. This is a bug of compatkit or of a plugin; please report it."
            return Failure(text, "defect", DEFECT)
    return Failure(text, EnvironmentFailure.code, EnvironmentFailure.exit_code)


def _carrying(error: CompatkitError, subject: Any) -> Failure:
    """Return an error with the report that it carries, if any."""
    text, details, show = str(error), None, None
    if isinstance(error, IncompatibleError):
        from compatkit.contracts.report import Report
        from compatkit.reports.wording import finding_sentence

        if isinstance(subject, Report):
            decisive = [
                finding for finding in subject.findings if finding.severity in ("refuses", "adaptable")
            ]
            advice = text.replace(str(subject), "").strip()  # what the error states besides the report
            sentences = "; ".join(map(finding_sentence, decisive))
            text = f"{subject.head} does not fit {subject.extractor}: {sentences}. {advice}"
            details, show = subject.to_json(), lambda: click.echo(report_text(subject), err=True)
    elif isinstance(error, PolicyBroken):
        from compatkit.components.outcomes import PolicyOutcome

        if isinstance(subject, PolicyOutcome):
            details, show = subject.to_json(), lambda: click.echo(clean(str(subject)))
    return Failure(text.strip(), error.code, error.exit_code, details, show)


def _report(failure: Failure, machine: bool) -> int:
    """Print a failure, and return its exit code."""
    if not is_main_process():
        time.sleep(HEAD_START)
    message = redacted(failure.message)
    plain = f"[{failure.code}] {clean(message)}"
    if machine:
        error = {"code": failure.code, "message": message, "report": failure.details}
        try:
            return emit({"error": error}, failure.exit_code)
        except BrokenPipeError:
            raise
        except OSError:  # the report cannot be printed either, for example on a full disk
            click.echo(f"error {plain}", err=True)
            return failure.exit_code
    click.echo(f"{click.style('error', fg='red', bold=True)} {plain}", err=True)
    if failure.show is not None:
        failure.show()
    return failure.exit_code
