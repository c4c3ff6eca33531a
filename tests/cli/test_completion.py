"""Completion: what is offered where, in each shell as it is typed, and nothing that a shell would run."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from every_command import EVERY, found
from handmade import Hand, part

from compatkit.adapters.registered_models import registered_models
from compatkit.cli import program
from compatkit.cli.completing import MANY, SOURCES
from compatkit.cli.shells import BREAKS, SCRIPTS, TEXT, answer
from compatkit.registry.remotes import named
from compatkit.registry.remotes.named import SavedRemote

SECONDS = 30
"""Longest time that a shell may take."""
HOSTILE = ("$(touch taken)", "`touch taken`", "a b", "a;touch taken", "a\tb", "a'b", "*")
SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
START = {
    "bash": "source <(compatkit completion bash)",
    "zsh": "autoload -U compinit; compinit -D -u; bindkey -e; source <(compatkit completion zsh)",
    "fish": "compatkit completion fish | source",
}


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hand:
    """A registry of an extractor with two versions, and a head with an alias."""
    hand = Hand.init(tmp_path / "parts")
    hand.publish("digits/mnist.extractor", "1.0.0", hand.put(part("extractor")))
    hand.publish("digits/mnist.extractor", "1.1.0", hand.put(part("extractor", "resnet18")))
    hand.publish("digits/mnist.head", "1.0.0", hand.put(part("head")))
    monkeypatch.setenv("COMPATKIT_REGISTRY", str(hand.root))
    return hand


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Return what is offered at the end of a line; kinds of paths in brackets."""

    def complete(line: str, shell: str = "zsh", breaks: str = "") -> list[str]:
        monkeypatch.setenv(TEXT, line)
        monkeypatch.setenv(BREAKS, breaks)
        rows = [row.split("\t") for row in answer(shell, program).splitlines()]
        return [f"[{row[0]}]" if row[0] in ("file", "dir") else row[1] for row in rows]

    return complete


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("compatkit mat", ["matrix"]),
        ("compatkit --quiet st", ["study"]),
        ("compatkit study ", ["list", "run", "show"]),
        ("compatkit ls --js", ["--json"]),
        ("compatkit show dig", ["digits/mnist.extractor", "digits/mnist.head"]),
        ("compatkit check d", ["digits/mnist.extractor"]),
        ("compatkit check digits/mnist.extractor d", ["digits/mnist.head"]),
        ("compatkit check --require dir", ["direct"]),
        (
            "compatkit show digits/mnist.extractor@",
            [f"digits/mnist.extractor@{v}" for v in ("1.1.0", "1.0.0")],
        ),
        ("compatkit similarity a+digits/mnist.h", ["a+digits/mnist.head"]),
        ("compatkit show nothing", []),
        ("compatkit show 'dig", ["digits/mnist.extractor", "digits/mnist.head"]),
        ("compatkit search --kind he", ["head"]),
        ("compatkit search --model resnet1", ["resnet18"]),
        ("compatkit study run 0.10", ["0.10"]),
        ("compatkit plugins orthog", ["orthogonality"]),
        ("compatkit plugins new", ["new"]),
        ("compatkit bridge a b --rungs direct,proc", ["direct,procrustes"]),
        ("compatkit export a b --format safe", ["safetensors"]),
        ("compatkit train ", ["[file]"]),
        ("compatkit ls --registry ", ["[dir]"]),
        ("compatkit no such thing ", []),
        ("compatkit keys new ", []),
    ],
)
@pytest.mark.usefixtures("parts")
def test_what_is_offered(offered: Any, line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_aliases_remotes_and_data_sets_are_offered(offered: Any, parts: Hand, run: Any) -> None:
    assert run("alias", "digits/mnist.extractor", "prod", "1.0.0").code == 0
    named.add("team", SavedRemote.of("s3://bucket/parts"))
    assert offered("compatkit show digits/mnist.extractor:") == ["digits/mnist.extractor:prod"]
    assert offered("compatkit alias digits/mnist.extractor p") == ["prod"]
    assert offered("compatkit alias digits/mnist.extractor prod 1.1") == ["1.1.0"]
    assert offered("compatkit pull te") == ["[dir]", "team:"]
    assert offered("compatkit remote show te") == ["team"]
    assert "mnist" in offered("compatkit matrix a b --data mn")
    assert offered("compatkit --registry team: show d") == []  # no remote is asked


def test_the_registry_of_the_line_counts(offered: Any, parts: Hand, tmp_path: Path) -> None:
    other = Hand.init(tmp_path / "other")
    other.publish("zoo/net.head", "1.0.0", other.put(part("head")))
    assert offered(f"compatkit --registry {other.root} show ") == ["zoo/net.head"]
    assert offered(f"compatkit show --registry {other.root} ") == ["zoo/net.head"]


def test_withdrawn_names_are_left_out(offered: Any, parts: Hand) -> None:
    parts.withdraw("digits/mnist.extractor", "1.1.0")
    parts.withdraw("digits/mnist.head", "1.0.0")
    assert offered("compatkit show ") == ["digits/mnist.extractor"]
    assert offered("compatkit show digits/mnist.extractor@") == ["digits/mnist.extractor@1.0.0"]


@pytest.mark.parametrize("behind", [False, True], ids=["index", "folders"])
def test_many_names_are_offered_by_segment(
    offered: Any, parts: Hand, behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if behind:
        monkeypatch.setattr("compatkit.cli.completing.FEW", 3)
    digest = parts.put(part("head"))
    for number in range(MANY):
        parts.publish(f"zoo/net{number}.head", "1.0.0", digest)
    assert offered("compatkit show ") == ["digits/", "zoo/"]
    assert len(offered("compatkit show zoo/net")) == MANY
    assert offered("compatkit show zoo/net59") == ["zoo/net59.head"]


def test_what_goes_wrong_is_silent(
    offered: Any,
    parts: Hand,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (parts.root / "compatkit.json").write_text("{")
    assert offered("compatkit show ") == []
    monkeypatch.setenv("COMPATKIT_REGISTRY", str(tmp_path / "none"))
    assert offered("compatkit show ") == []
    assert offered("compatkit show 'a \"b") == []
    assert answer("no-shell", program) == ""
    assert capfd.readouterr() == ("", "")


def test_names_that_a_shell_would_expand_are_not_offered(
    offered: Any, parts: Hand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in HOSTILE:
        shutil.copytree(parts.folder("digits/mnist.head"), parts.root / "refs" / "digits" / name)
        (parts.folder("digits/mnist.head") / "@aliases" / name).mkdir(parents=True)
    info = tmp_path / "site" / "hostile-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1.0\n")
    names = [name for name in HOSTILE if "\t" not in name]
    lines = "".join(f"regularizers.{name} = nothing\n" for name in names)
    (info / "entry_points.txt").write_text(f"[compatkit]\nregularizers.good = nothing\n{lines}")
    monkeypatch.syspath_prepend(tmp_path / "site")
    for shell in SCRIPTS:
        assert offered("compatkit show digits/", shell) == ["digits/mnist.extractor", "digits/mnist.head"]
        assert offered("compatkit show digits/mnist.head:", shell) == []
        plugins = offered("compatkit plugins ", shell)
        assert "good" in plugins and all(re.fullmatch(r"[\w.:-]+", name) for name in plugins)


@pytest.mark.usefixtures("parts")
def test_bash_gets_what_follows_its_last_word_break(offered: Any) -> None:
    breaks = " \t\n\"'><=;|&(:@"
    line = "compatkit show digits/mnist.extractor@1.1"
    assert offered(line, "bash", breaks) == ["@1.1.0"]  # readline takes @ to begin a word
    assert offered(line, "bash", " \t\n") == ["digits/mnist.extractor@1.1.0"]
    assert offered("compatkit check --require=dir", "bash", breaks) == ["direct"]


def test_models_are_those_that_timm_registers() -> None:
    timm = pytest.importorskip("timm")
    assert registered_models("timm") == sorted(timm.list_models())  # which imports it
    assert registered_models("not_installed_at_all") == []


def test_every_source_belongs_to_a_parameter() -> None:
    own = {(" ".join(words), parameter.name) for words in EVERY for parameter in found(words).params}
    for key in SOURCES:
        command, _, name = key.rpartition(".")
        assert any(name == known and command in ("", words) for words, known in own), key


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_command_prints_the_script(run: Any, shell: str) -> None:
    result = run("completion", shell)
    assert result.code == 0 and result.out == SCRIPTS[shell]
    assert run("completion", shell, "--json").json == {"shell": shell, "script": SCRIPTS[shell]}
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n", "/dev/stdin"], input=result.out, text=True, check=True)


def test_another_shell_is_refused(run: Any) -> None:
    result = run("completion", "tcsh", "--json")
    assert result.code == 2 and "tcsh" in result.json["error"]["message"]


def typed(shell: str, *lines: tuple[str, ...], folder: Path) -> list[str]:
    """Type into an interactive shell, and return what each line is completed to.

    Args:
        shell: Name of the shell.
        lines: What is typed, piece by piece; each piece when the shell has answered the one before.
        folder: Its current folder.
    """
    path = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    environment = {
        name: value for name, value in os.environ.items() if name.startswith(("COMPATKIT_", "XDG_"))
    }
    environment |= {
        "PATH": path,
        "HOME": str(folder),
        "TERM": "dumb",
        "PS1": "",
        "PROMPT": "",
        "LANG": "C.UTF-8",
    }
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe(SHELLS[shell][0], SHELLS[shell], environment)
    try:
        os.write(terminal, f"{START[shell]}; echo sta''rted\r".encode())
        answered(terminal, "started")
        completed = []
        for line in lines:
            for piece in line:
                os.write(terminal, piece.encode())
                answered(terminal, None)
            os.write(terminal, b"\x01echo LI''NE=\x05 ''END\r")
            shown = answered(terminal, " END")
            completed.append(shown.rpartition("LINE=")[2].partition(" END")[0].strip())
        return completed
    finally:
        os.kill(process, 9)
        os.waitpid(process, 0)
        os.close(terminal)


def answered(terminal: int, until: str | None) -> str:
    """Return what a terminal shows until a text comes, or until nothing more comes for a moment."""
    shown, end = "", time.monotonic() + SECONDS
    while time.monotonic() < end and (until is None or until not in shown):
        ready, _, _ = select.select([terminal], [], [], 0.8 if until is None else SECONDS)
        if not ready:
            break
        shown += os.read(terminal, 65536).decode(errors="replace")
    assert until is None or until in shown, shown
    return shown


@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes_what_is_typed(shell: str, parts: Hand, run: Any, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (folder := tmp_path / "home").mkdir()
    (folder / "$(touch taken).toml").write_text("")
    assert run("alias", "digits/mnist.head", "prod", "1.0.0").code == 0
    lines = {
        ("compatkit sho\t", "digits/mnist.h\t"): "compatkit show digits/mnist.head",
        ("compatkit show digits/mnist.head@1\t",): "compatkit show digits/mnist.head@1.0.0",
        ("compatkit show digits/mnist.head:p\t",): "compatkit show digits/mnist.head:prod",
        ("compatkit train \t",): "compatkit train $(touch taken).toml",
    }
    assert typed(shell, *lines, folder=folder) == [*lines.values()]
    assert not (folder / "taken").exists()


def test_completion_imports_neither_torch_nor_a_plugin(parts: Hand) -> None:
    code = (
        "import sys; from compatkit.cli import program; from compatkit.cli.shells import answer;"
        "assert answer('zsh', program);"
        "print(sorted(sys.modules.keys() & {'torch', 'timm', 'numpy', 'compatkit_plugins'}))"
    )
    for line in ("compatkit show d", "compatkit plugins d", "compatkit split resnet1", "compatkit "):
        environment = {**os.environ, TEXT: line}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout == "[]\n", line


def test_parameters_that_are_paths_complete_themselves() -> None:
    for words in EVERY:
        for parameter in found(words).params:
            if isinstance(parameter.type, click.Path | click.Choice) and not parameter.multiple:
                assert f"{' '.join(words)}.{parameter.name}" not in SOURCES
