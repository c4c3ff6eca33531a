"""Command line: a new process each time, against a Python that only imports the dependencies of commands.

All processes share a folder of bytecode, filled by the uncounted first round: an installed package has bytecode, but a
checkout would be compiled at every start where the environment forbids writing it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
from contest import Contestant, Gate, Row, compete, expect, lines, say
from registry_large import COLORS, EACH, fill
from registry_mlflow import MlflowRegistry
from registry_settings import Settings

from compatkit.cli import COMMANDS
from compatkit.contracts.contract import Port, Structural
from compatkit.contracts.manifest import Payload
from compatkit.registry.store import Store

RUN = "from compatkit.cli import main; main({words!r})"
NEEDED = "import click, attrs, sqlite3, json, hashlib, re, pathlib"
ASK_MLFLOW = (
    "import mlflow; mlflow.set_registry_uri({uri!r}); mlflow.set_tracking_uri({uri!r});"
    " print(mlflow.MlflowClient().get_model_version({name!r}, '1').name)"
)
VERSIONS = 100
"""Versions in the small registry."""
ON_LARGE = ("show", "search")
"""Commands that also run on the large registry; there ``ls`` would measure printing."""


def commands(settings: Settings) -> list[str]:
    """Measure commands on a small registry, and on the large one if ``scale`` has written it."""
    say("commands")
    small = fill(attrs.evolve(settings, folder=_make_folder(settings.folder / "commands"), versions=VERSIONS))
    pair = _pair(small.store)
    name = small.wanted[0]
    calls = {
        "show": (["show", f"{name}@1.0.0"], "zone"),
        "ls": (["ls"], "zone"),
        "search": (["search", "--tag", "color=7"], "zone"),
        "log": (["log", name], "zone"),
        "check": (["check", *pair], "direct"),
        "inspect": (["inspect", str(_weights(settings.folder / "commands"))], "weight"),
        "--help": (["--help"], "Commands"),
        "--version": (["--version"], "compatkit"),
    }
    floor = f'python -c "{NEEDED}"'
    bytecode = str(settings.folder / "bytecode")
    contestants = {
        "python -c pass": _process("pass", "", bytecode),
        floor: _process(NEEDED, "", bytecode),
    }
    rows = [Row("python itself, beside the imports that commands need", floor, "python -c pass")]
    for command, (words, expected) in calls.items():
        if command not in COMMANDS and not command.startswith("-"):
            say(f"there is no command {command}; left out")
            continue
        roots = {small.versions + len(pair): small.store.root}
        if command in ON_LARGE and (settings.folder / "large").exists():
            roots[settings.versions] = settings.folder / "large"
        for size, root in roots.items():
            arguments = [Path(word).name if word.startswith("/") else word for word in words]
            label = f"compatkit {' '.join(arguments)} ({size:,} versions)"
            program = RUN.format(words=["--registry", str(root), *words])
            contestants[label] = _process(program, expected if root == small.store.root else "", bytecode)
            rows.append(Row(label, floor, label, Gate(3)))
    rival = MlflowRegistry.with_versions(settings.folder / "commands-mlflow", VERSIONS, EACH, COLORS)
    if rival is not None:
        uri = f"sqlite:///{settings.folder / 'commands-mlflow' / 'mlflow.db'}"
        mlflow_label = "MLflow get_model_version, from Python"
        contestants[mlflow_label] = _process(
            ASK_MLFLOW.format(uri=uri, name=rival.wanted), rival.wanted, bytecode
        )
        rows = [attrs.evolve(row, rivals=[mlflow_label]) if row.gate else row for row in rows]
    return lines(rows, compete(contestants, settings.rounds, settings.seed))


def _make_folder(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _weights(folder: Path) -> Path:
    """Write a safetensors file of one tensor of 16 bytes."""
    entry = json.dumps({"weight": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}}).encode()
    path = folder / "weights.safetensors"
    path.write_bytes(len(entry).to_bytes(8, "little") + entry + bytes(16))
    return path


def _pair(store: Store) -> tuple[str, str]:
    """Publish a compatible extractor and head; return their names."""
    from compatkit.registry.weights.tensorfile import tensor_digest

    data = _weights(store.root.parent).read_bytes()
    template = store.manifest(f"{store.names()[0]}@1.0.0")
    payload = Payload(store.put_blob(data), tensor_digest(data), 1, 16)
    head = attrs.evolve(template, payload=payload)
    ports = template.contract.structural
    image = Port("image", ("N", 3, "H", "W"))
    extractor = attrs.evolve(
        head,
        kind="extractor",
        blueprint=attrs.evolve(head.blueprint, side="extractor"),
        contract=attrs.evolve(head.contract, structural=Structural((image,), ports.inputs)),
    )
    return store.publish("zone0/pair.extractor", extractor).name, store.publish("zone0/pair.head", head).name


def _process(program: str, expected: str, bytecode: str) -> Contestant:
    """Return a contestant that runs a program in a process with a bytecode folder, and checks its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = bytecode

    def work() -> str:
        return subprocess.run(
            [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True, env=environment
        ).stdout

    return Contestant(
        work, check=lambda printed: expect(f"{expected!r} in what is printed", expected in printed, True)
    )
