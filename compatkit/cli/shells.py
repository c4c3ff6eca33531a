r"""Completion scripts for bash, zsh and fish, and the answers that they ask for.

The script sets COMPATKIT_COMPLETE to the shell's name and COMPATKIT_TEXT to the command line up to the cursor, and runs
compatkit. Each line of the answer is ``KIND\tVALUE\tHELP``; a ``part`` gets no space after it, ``file`` and ``dir`` ask
the shell for paths. click's scripts are not used: bash divides words at ``:`` and ``@``, which references contain, and
would insert values without quoting them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from compatkit.cli.command_line import COMPLETE, CommandLine
from compatkit.cli.completing import complete

TEXT, BREAKS = "COMPATKIT_TEXT", "COMPATKIT_BREAKS"
"""Environment variables: the line up to the cursor, and the characters at which bash divides words."""
SAFE = re.compile(r"-{0,2}[A-Za-z0-9][A-Za-z0-9_@%+=:,./-]*")
"""Values that no shell expands, whatever its options; others are not offered."""
PLAIN = re.compile(r"[^\x20-\x7e]|[`$\\]")
"""Characters that are removed from help texts."""

BASH = r"""_compatkit_completion() {
    local kind value help program="${1/#\~\//$HOME/}"
    COMPREPLY=()
    while IFS=$'\t' read -r kind value help; do
        case "$kind" in
            plain) COMPREPLY+=("$value") ;;
            part) COMPREPLY+=("$value"); compopt -o nospace 2>/dev/null ;;
            file) compopt -o default 2>/dev/null ;;
            dir) compopt -o dirnames 2>/dev/null ;;
        esac
    done < <(COMPATKIT_COMPLETE=bash COMPATKIT_TEXT="${COMP_LINE:0:COMP_POINT}" \
        COMPATKIT_BREAKS="$COMP_WORDBREAKS" "$program" 2>/dev/null)
}
complete -o nosort -F _compatkit_completion compatkit 2>/dev/null ||
    complete -F _compatkit_completion compatkit
"""
ZSH = r"""#compdef compatkit
_compatkit_completion() {
    local kind value help program="${${(Q)words[1]}/#\~\//$HOME/}"
    local -a plain parts described
    while IFS=$'\t' read -r kind value help; do
        case "$kind" in
            plain) if [[ -n "$help" ]]; then described+=("${value//:/\\:}:$help"); else plain+=("$value"); fi ;;
            part) parts+=("$value") ;;
            file) _files ;;
            dir) _files -/ ;;
        esac
    done < <(COMPATKIT_COMPLETE=zsh COMPATKIT_TEXT="${(j: :)words[1,CURRENT-1]} $PREFIX" "$program" 2>/dev/null)
    (( $#described )) && _describe -V compatkit described
    (( $#plain )) && compadd -V compatkit -a plain
    (( $#parts )) && compadd -V compatkit -S '' -a parts
    return 0
}
if [[ "${zsh_eval_context[-1]}" == loadautofunc ]]; then
    _compatkit_completion "$@"
else
    compdef _compatkit_completion compatkit
fi
"""
FISH = r"""function __compatkit_completion
    set -l program (string replace -r '^~/' "$HOME/" -- (commandline -opc)[1])
    set -l text (commandline -cp | string collect)
    for line in (env COMPATKIT_COMPLETE=fish COMPATKIT_TEXT="$text" $program 2>/dev/null)
        set -l fields (string split \t -- $line)
        switch $fields[1]
            case plain part
                printf '%s\t%s\n' $fields[2] $fields[3]
            case file
                __fish_complete_path (commandline -ct)
            case dir
                __fish_complete_directories (commandline -ct)
        end
    end
end
complete --command compatkit --no-files --arguments '(__compatkit_completion)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def answer(shell: str, program: click.Group) -> str:
    """Return the lines for the completion that is asked for; nothing if anything goes wrong.

    Args:
        shell: Name of the shell; one of ``SCRIPTS``.
        program: The command line.
    """
    text = os.environ.get(TEXT, "")
    words = split_arg_string(text)
    incomplete = "" if not words or text[-1:].isspace() else words.pop()
    try:
        completer = ShellComplete(program, {"obj": CommandLine(complete=complete)}, "compatkit", COMPLETE)
        items = completer.get_completions(words[1:], incomplete)
    except Exception:  # a message would be written into the line that is typed
        return ""
    return "".join(f"{line}\n" for line in _lines(items, _taken(shell, incomplete)))


def _lines(items: Iterable[CompletionItem[str]], taken: str) -> Iterable[str]:
    for item in items:
        if item.type in ("file", "dir"):
            yield f"{item.type}\t\t"
        elif SAFE.fullmatch(item.value):
            value = item.value.removeprefix(taken)
            yield f"{item.type}\t{value}\t{PLAIN.sub('', item.help or '')}"


def _taken(shell: str, incomplete: str) -> str:
    """Return the start of the word that bash keeps, because it replaces only what follows a word break.

    Of ``@`` it replaces the break too, as its first letter of the names of hosts.
    """
    if shell != "bash":
        return ""
    breaks = set(os.environ.get(BREAKS, "")) & set(incomplete) - set("\"'")
    last = max((incomplete.rfind(character) for character in breaks), default=-1)
    return incomplete[: last if incomplete[last : last + 1] == "@" else last + 1]
