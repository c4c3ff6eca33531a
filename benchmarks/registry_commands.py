"""The command line: a process of its own each time, beside a Python that only imports what commands need.

All of them find the bytecode of what they import, in a folder of this run that the uncounted round fills: an installed
package has it, and a checkout whose environment forbids to write it would be compiled again at every start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import attrs
from registry_large import COLORS, EACH, fill
from registry_measuring import Contestant, Gate, Row, compete, expect, lines, say
from registry_mlflow import Filled
from registry_settings import Given

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
"""Commands that also run on the large registry, where ``ls`` would measure printing."""


def commands(given: Given) -> list[str]:
    """Measure commands on a small registry, and on the large one where ``scale`` made it."""
    say("commands")
    small = fill(attrs.evolve(given, folder=_made(given.folder / "commands"), versions=VERSIONS))
    pair = _pair(small.store)
    one = small.wanted[0]
    asked = {
        "show": (["show", f"{one}@1.0.0"], "zone"),
        "ls": (["ls"], "zone"),
        "search": (["search", "--tag", "color=7"], "zone"),
        "log": (["log", one], "zone"),
        "check": (["check", *pair], "direct"),
        "inspect": (["inspect", str(_weights(given.folder / "commands"))], "weight"),
        "--help": (["--help"], "Commands"),
        "--version": (["--version"], "compatkit"),
    }
    floor = f'python -c "{NEEDED}"'
    bytecode = str(given.folder / "bytecode")
    contestants = {
        "python -c pass": _process("pass", "", bytecode),
        floor: _process(NEEDED, "", bytecode),
    }
    rows = [Row("python itself, beside the imports that commands need", floor, "python -c pass")]
    for command, (words, told) in asked.items():
        if command not in COMMANDS and not command.startswith("-"):
            say(f"there is no command {command}; left out")
            continue
        roots = {small.versions + len(pair): small.store.root}
        if command in ON_LARGE and (given.folder / "large").exists():
            roots[given.versions] = given.folder / "large"
        for size, root in roots.items():
            shown = [Path(word).name if word.startswith("/") else word for word in words]
            label = f"compatkit {' '.join(shown)} ({size:,} versions)"
            program = RUN.format(words=["--registry", str(root), *words])
            contestants[label] = _process(program, told if root == small.store.root else "", bytecode)
            rows.append(Row(label, floor, label, Gate(3)))
    rival = Filled.with_versions(given.folder / "commands-mlflow", VERSIONS, EACH, COLORS)
    if rival is not None:
        uri = f"sqlite:///{given.folder / 'commands-mlflow' / 'mlflow.db'}"
        name = "MLflow get_model_version, from Python"
        contestants[name] = _process(ASK_MLFLOW.format(uri=uri, name=rival.wanted), rival.wanted, bytecode)
        rows = [attrs.evolve(row, rivals=[name]) if row.gate else row for row in rows]
    return lines(rows, compete(contestants, given.rounds, given.seed))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _weights(folder: Path) -> Path:
    """Write a safetensors file of one tensor of 16 bytes."""
    entry = json.dumps({"weight": {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]}}).encode()
    path = folder / "weights.safetensors"
    path.write_bytes(len(entry).to_bytes(8, "little") + entry + bytes(16))
    return path


def _pair(store: Store) -> tuple[str, str]:
    """Publish an extractor and a head that fit; return their names."""
    from compatkit.registry.weights.tensorfile import tensor_digest

    data = _weights(store.root.parent).read_bytes()
    template = store.manifest(f"{store.names()[0]}@1.0.0")
    payload = Payload(store.put_blob(data), tensor_digest(data), 1, 16)
    head = attrs.evolve(template, payload=payload)
    wired = template.contract.structural
    image = Port("image", ("N", 3, "H", "W"))
    extractor = attrs.evolve(
        head,
        kind="extractor",
        blueprint=attrs.evolve(head.blueprint, side="extractor"),
        contract=attrs.evolve(head.contract, structural=Structural((image,), wired.inputs)),
    )
    return store.publish("zone0/pair.extractor", extractor).name, store.publish("zone0/pair.head", head).name


def _process(program: str, told: str, bytecode: str) -> Contestant:
    """Return a process that must succeed, and print this text; its bytecode is kept in a folder."""
    around = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    around["PYTHONPYCACHEPREFIX"] = bytecode

    def work() -> str:
        return subprocess.run(
            [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True, env=around
        ).stdout

    return Contestant(work, check=lambda came: expect(f"{told!r} in what is printed", told in came, True))
