"""What users see of the package and of a registry, as plain values to compare with those of another day.

python tests/golden/observe.py public > tests/golden/public.json
    python tests/golden/observe.py plan > tests/golden/plan.json
python tests/golden/observe.py registry > tests/golden/registry.json
python tests/golden/observe.py collected > tests/golden/collected.json
"""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from small import data_set

import compatkit as ck
from compatkit.cli import main

HERE = Path(__file__).parent
REGISTRY = HERE / "registry.zip"
COMMANDS = (
    "ls",
    "search",
    "search --kind head",
    "search --parent digits/left.extractor@1.0.0",
    "verify",
    "gc --grace 0s --alone",
    "du",
    "log digits/left.extractor",
    "log digits/right.head",
    "alias digits/left.extractor prod",
    "policy show",
    "policy show digits/left.head --log",
    "signatures digits/* --all",
    "check digits/*@1.0.0 *.head@1.0.0",
    "check digits/left.extractor@1.0.0 digits/right.head@1.0.0",
    "check digits/left.extractor@1.0.0 zoo/wide.head",
    "diff digits/left.extractor@1.0.0 digits/left.extractor@2.0.0",
    "matrix digits/*.extractor@1.0.0 digits/*.head@1.0.0 --fill none",
    "matrix digits/*.extractor@1.0.0 digits/*.head@1.0.0",
)
"""Asked with ``--json``; ``show`` of every version comes on top."""


def public() -> dict[str, Any]:
    """Return every public name with its parameters, methods and fields; modules of the package with theirs."""
    return {name: _described(getattr(ck, name)) for name in ck.__all__}


def _described(value: Any) -> Any:
    if isinstance(value, ModuleType):
        names = getattr(value, "__all__", None) or [name for name in vars(value) if not name.startswith("_")]
        result = {name: getattr(value, name) for name in sorted(names)}
        return {
            name: _described(match)
            for name, match in result.items()
            if callable(match) and _is_ours(match) and not isinstance(match, ModuleType)
        }
    if isinstance(value, type):
        if attrs.has(value):
            fields = {field.name: str(field.default is attrs.NOTHING) for field in attrs.fields(value)}
        else:
            fields = {}
        methods = {
            name: _described(getattr(value, name))
            for name in dir(value)
            if not name.startswith("_") and callable(getattr(value, name)) and _is_ours(getattr(value, name))
        }
        return {"parameters": _parameters(value), "required": fields, "methods": methods}
    return {"parameters": _parameters(value)} if callable(value) else type(value).__name__


def _is_ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "compatkit")).partition(".")[0] == "compatkit"


def _parameters(function: Any) -> dict[str, list[str]]:
    """Return kind and default of each parameter, by name, in their order."""
    try:
        result = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
    return {
        name: [match.kind.name, _default(match.default)] for name, match in result.items() if name != "self"
    }


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    return (
        repr(value) if isinstance(value, (str, int, float, bool, tuple, type(None))) else type(value).__name__
    )


def plan() -> Any:
    """Return what a run with two tasks and three methods records of itself, but its environment."""
    tasks = [
        ck.Task(name, data_set(name, seed=seed), "conv_chain", "layer1", size=12, kwargs={"channels": (4, 6)})
        for seed, name in enumerate(("left", "right"))
    ]
    trainer = ck.Trainer(steps=1, batch_size=8, seed=0, precision="float32", device="cpu", progress=False)
    run = dict(trainer.fit(tasks, ["identical_init", "dcc", "rotation_prediction"]).run)
    return _steady({name: value for name, value in run.items() if name != "environment"})


def unpack(folder: Path) -> Path:
    """Unpack the registry, and return its root."""
    with zipfile.ZipFile(REGISTRY) as archive:
        archive.extractall(folder)
    for path in (folder / "parts").rglob("*"):
        if path.is_file():
            path.chmod(0o444)  # as it was written; zip files keep no rights
    return folder / "parts"


def registry(folder: Path) -> dict[str, Any]:
    """Return what the commands say of the registry in a folder, without what belongs to the machine.

    Args:
        folder: Where ``unpack`` put it.
    """
    root = folder / "parts"
    handle = ck.Registry.open(root)
    versions = [
        f"{name}@{version}" for name in handle.store.names() for version in handle.store.versions(name)
    ]
    lines = [*COMMANDS, *(f"show {reference}" for reference in versions)]
    result = {line: command_output(root, line) for line in lines}
    return json.loads(json.dumps(result).replace(str(folder), "FOLDER"))


def command_output(root: Path, line: str) -> Any:
    """Return exit code and JSON of a command line."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        try:
            main(["--registry", str(root), *line.split(), "--json"])
            code: Any = 0
        except SystemExit as end:
            code = end.code
    return {"exit": code, "says": _steady(json.loads(out.getvalue()))}


def collected(folder: Path) -> list[str]:
    """Return the files of the registry that are left once what nothing refers to was deleted."""
    root = folder / "parts"
    for path in root.rglob("*"):
        os.utime(path, (0, 0))
    if command_output(root, "gc --grace 0s --alone --delete")["exit"]:
        raise RuntimeError("collecting failed")
    return sorted(str(entry.relative_to(root)) for entry in root.rglob("*") if entry.is_file())


PASSING = {"age", "time", "when", "seconds", "free", "machine", "versions", "torch", "device", "library"}


def _steady(value: Any) -> Any:
    """Leave out what another machine or another day would say otherwise."""
    if isinstance(value, dict):
        return {name: _steady(entry) for name, entry in value.items() if name not in PASSING}
    return [_steady(entry) for entry in value] if isinstance(value, list) else value


def differences(old: Any, new: Any, path: str = "") -> Iterator[str]:
    """Yield where ``new`` lacks or changes what ``old`` says; what it says more is fine."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name, value in old.items():
            if name not in new:
                yield f"{path}/{name} is gone"
            else:
                yield from differences(value, new[name], f"{path}/{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (entry, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(entry, other, f"{path}/{place}")
    elif isinstance(old, float) and isinstance(new, float):
        if abs(old - new) > 1e-6 * max(1.0, abs(old)):
            yield f"{path} was {old!r}, is {new!r}"
    elif old != new:
        yield f"{path} was {old!r:.200}, is {new!r:.200}"


if __name__ == "__main__":
    what = {
        "public": lambda _: public(),
        "plan": lambda _: plan(),
        "registry": registry,
        "collected": collected,
    }[sys.argv[1]]
    with tempfile.TemporaryDirectory() as made:
        os.environ.update(
            COMPATKIT_DATA=made, COMPATKIT_CACHE=f"{made}/cache", XDG_CONFIG_HOME=f"{made}/config"
        )
        unpack(Path(made))
        print(json.dumps(what(Path(made)), indent=1, sort_keys=True))
