"""The program as a process: what quick commands import, the installed script, pipes, terminals without UTF-8."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from compatkit.cli import COMMANDS
from compatkit.registry.store import Store

HEAVY = (
    "torch",
    "torchvision",
    "timm",
    "numpy",
    "scipy",
    "safetensors",
    "sklearn",
    "matplotlib",
    "rich",
    "PIL",
    "pandas",
    "compatkit_plugins",
    "compatkit_studies",
)
RUN = "from compatkit.cli import main; main()"
LOOK = """
import sys
from compatkit.cli import main
try:
    main()
finally:
    print([name for name in {unwanted!r} if name in sys.modules], file=sys.stderr)
"""
EVERY_COMMAND = """
import sys
import click
from compatkit.cli import program
for name in program.list_commands(context := click.Context(program)):
    program.get_command(context, name)
    print(name, *(module for module in {unwanted!r} if module in sys.modules))
"""
NETWORK = ("ssl", "http.client", "concurrent.futures", "compatkit.registry.remotes.remote")
MANIFESTS = ("compatkit.contracts.manifest", "compatkit.registry.signing.envelope")
TO_RUN = (
    "compatkit.components.registry",
    "compatkit.components.loading",
    "compatkit.components.bridges.ladder",
    "compatkit.experiments.recipes",
    "compatkit.registry.maintenance.check",
    "compatkit.registry.store",
    "ssl",
    "http.client",
)
"""What only a command that runs needs, not its help."""
EXTRACTOR, HEAD = "digits/left.extractor", "digits/right.head"


def process(
    script: str, *words: object, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script in a new Python; warnings are errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cwd,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["train", "--help"], 0),
        (["matrix", "--help"], 0),
        (["ls"], 0),
        (["ls", "--json"], 0),
        (["show", HEAD], 0),
        (["show", HEAD, "--json"], 0),
        (["show", "nothing"], 2),
        (["check", EXTRACTOR, HEAD], 0),
        (["search", "left"], 0),
        (["log", HEAD], 0),
        (["plugins"], 0),
        (["plugins", "--json"], 0),
        (["plugins", "rotation"], 0),
        (["completion", "bash"], 0),
        (["init", "new"], 0),
        (["no-such-command"], 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_quick_commands_import_nothing_heavy(parts: Path, words: list[str], code: int) -> None:
    result = process(LOOK.format(unwanted=HEAVY), *words, cwd=parts.parent)
    assert result.returncode == code
    # A check compares the statistics of hundreds of channels at once where both parts have them.
    light = "['numpy']" if words[0] == "check" else "[]"
    assert result.stderr.splitlines()[-1] == light


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        (["ls"], (*NETWORK, *MANIFESTS)),
        (["search", "left"], (*NETWORK, *MANIFESTS)),
        (["show", HEAD], (*NETWORK, "compatkit.registry.signing.checks")),
        (
            ["check", EXTRACTOR, HEAD],
            (*NETWORK, "compatkit.components.registry", "compatkit.registry.publish"),
        ),
        (["verify", "--quick"], (*NETWORK, "compatkit.registry.maintenance.repair", *HEAVY)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_quick_commands_import_what_they_use(
    parts: Path, words: list[str], unwanted: tuple[str, ...]
) -> None:
    Store.open(parts).index.refresh()  # a new index reads the manifests
    result = process(LOOK.format(unwanted=unwanted), *words, cwd=parts.parent)
    assert result.returncode == 0 and result.stderr.splitlines()[-1] == "[]"


def test_the_help_of_a_command_imports_nothing_that_runs_it() -> None:
    result = process(EVERY_COMMAND.format(unwanted=(*HEAVY, *TO_RUN)))
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == sorted(COMMANDS)


def test_the_installed_script(parts: Path) -> None:
    script = Path(sys.executable).with_name("compatkit")
    if not script.exists():
        pytest.skip("compatkit is not installed in this environment")
    result = subprocess.run([script, "ls"], capture_output=True, text=True, check=True, cwd=parts.parent)
    assert HEAD in result.stdout and result.stderr == ""


@pytest.mark.skipif(os.name == "nt", reason="pipes of another kind")
@pytest.mark.parametrize("words", [["ls"], ["ls", "--json"], ["--help"]])
def test_a_reader_that_goes_away(parts: Path, words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=parts.parent,
    )
    os.close(write)
    assert result.returncode == 0 and result.stderr == ""


def test_a_terminal_without_utf_8(parts: Path) -> None:
    store = Store.open(parts)
    manifest = store.manifest(HEAD)
    title = "Ziffern \N{GREEK SMALL LETTER BETA}"
    store.publish("other", attrs.evolve(manifest, about=attrs.evolve(manifest.about, title=title)))
    for words in (["show", "other"], ["show", "other", "--json"]):
        result = process(RUN, *words, cwd=parts.parent, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert result.returncode == 0 and "Ziffern " in result.stdout and result.stderr == ""


def test_an_error_is_one_line_and_an_exit_code(tmp_path: Path) -> None:
    result = process(RUN, "ls", cwd=tmp_path)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.startswith("error [layout] no registry") and result.stderr.count("\n") == 1
