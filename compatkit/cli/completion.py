"""``compatkit completion``: print the script by which a shell completes command lines."""

from __future__ import annotations

import click

from compatkit.cli.options import Options, argument, command
from compatkit.cli.output import emit
from compatkit.cli.shells import SCRIPTS


class CompletionOptions(Options):
    """Arguments and options of ``completion``."""

    shell: str = argument(type=click.Choice(tuple(SCRIPTS)))


@command("completion", CompletionOptions, registry=False)
def completion_command(options: CompletionOptions) -> int | None:
    r"""Print the script by which bash, zsh or fish completes commands, options and names.

    Names come from the index of the registry in force; no remote is asked, no plugin imported.

    \b
    bash: source <(compatkit completion bash)            in ~/.bashrc
    zsh:  source <(compatkit completion zsh)             in ~/.zshrc, after compinit
    fish: compatkit completion fish | source             in ~/.config/fish/config.fish

    Examples:
        # the script for bash
        compatkit completion bash
    """
    if options.json:
        return emit({"shell": options.shell, "script": SCRIPTS[options.shell]})
    click.echo(SCRIPTS[options.shell], nl=False)
    return None
