"""The command line: a process of its own each time, beside a Python that only imports what commands need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import attrs
from registry_large import COLOURS, EACH, fill
from registry_measuring import Contestant, Gate, Row, compete, expect, lines, say
from registry_mlflow import Filled
from registry_settings import Given

from compatkit.cli import COMMANDS

RUN = "from compatkit.cli import main; main({words!r})"
NEEDED = "import click, attrs, sqlite3, json, hashlib, re, pathlib"
ASK_MLFLOW = (
    "import mlflow; mlflow.set_registry_uri({uri!r}); mlflow.set_tracking_uri({uri!r});"
    " print(mlflow.MlflowClient().get_model_version({name!r}, '1').name)"
)
VERSIONS = 100
"""Of the small registry."""


def commands(given: Given) -> list[str]:
    """Measure commands on a small registry, and on the large one where ``scale`` made it."""
    say("commands")
    small = fill(attrs.evolve(given, folder=_made(given.folder / "commands"), versions=VERSIONS))
    asked = {
        "show": ["show", f"{small.wanted[0]}@1.0.0"],
        "ls": ["ls"],
        "search": ["search", "--tag", "colour=7"],
    }
    floor = f'python -c "{NEEDED}"'
    contestants = {"python -c pass": _process("pass", ""), floor: _process(NEEDED, "")}
    rows = [Row("python itself, beside the imports that commands need", floor, "python -c pass")]
    for command, words in asked.items():
        if command not in COMMANDS:
            say(f"there is no command {command}; left out")
            continue
        for root, size in ((small.store.root, small.versions), (given.folder / "large", given.versions)):
            if not root.exists() or (size > VERSIONS * 2 and command == "ls"):
                continue
            label = f"compatkit {' '.join(words)} ({size:,} versions)"
            told = "zone" if command != "show" or size <= VERSIONS * 2 else ""
            contestants[label] = _process(RUN.format(words=["--registry", str(root), *words]), told)
            rows.append(Row(label, floor, label, Gate(3)))
    rival = Filled.with_versions(given.folder / "commands-mlflow", VERSIONS, EACH, COLOURS)
    if rival is not None:
        uri = f"sqlite:///{given.folder / 'commands-mlflow' / 'mlflow.db'}"
        name = "MLflow get_model_version, from Python"
        contestants[name] = _process(ASK_MLFLOW.format(uri=uri, name=rival.wanted), rival.wanted)
        rows = [attrs.evolve(row, rivals=[name]) if row.gate else row for row in rows]
    return lines(rows, compete(contestants, given.rounds, given.seed))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _process(program: str, told: str) -> Contestant:
    """Return a process that must succeed, and print this text."""

    def work() -> str:
        return subprocess.run(
            [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    return Contestant(work, check=lambda came: expect(f"{told!r} in what is printed", told in came, True))
