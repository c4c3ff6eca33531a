"""The folder of a sweep: what it is, what is in it already, and which runs still have to be made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.components.workspace import Registry
from compatkit.contracts.codec import dumps, loads
from compatkit.errors import FormatError, NotFound, UsageError
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.orders import Order
from compatkit.experiments.sweeps.records import Record
from compatkit.registry.disk import replace_file
from compatkit.registry.os_errors import environment

NOTE = "sweep.json"
"""Says of a folder that a sweep is kept in it, and what was chosen for it."""


@attrs.frozen
class Begun:
    """What an earlier call left.

    Attributes:
        taken: Records of runs that are done and of the same plan, by name.
        todo: Runs that have to be made, or made to their end.
        notes: Why something is done again.
    """

    taken: Mapping[str, Record]
    todo: Sequence[Order]
    notes: Sequence[str]


def beside(registry: Path, recipe: Path) -> Path:
    """Return the folder of a recipe's sweep where none is named: next to the registry."""
    return registry.with_name(f"{registry.name}-sweeps") / recipe.stem


def check_folder(folder: Path, resume: bool) -> None:
    """Refuse a folder that holds anything but the sweep that is to go on.

    Raises:
        UsageError: It holds other files, or a sweep and ``resume`` is False.
        EnvironmentFailure: It cannot be read.
    """
    with environment("read", folder):
        if not folder.exists():
            return
        if not folder.is_dir():
            raise UsageError(f"{folder} is a file; name a folder for the sweep's records.", subject=folder)
        held = any(folder.iterdir())
    if not held:
        return
    if not (folder / NOTE).exists():
        raise UsageError(
            f"{folder} holds other files and no sweep; name another folder for its records.", subject=folder
        )
    if not resume:
        raise UsageError(
            f"{folder} holds a sweep already. Go on with it (--resume), or name another folder (--out).",
            subject=folder,
        )


def note(folder: Path) -> dict[str, Any]:
    """Return what the folder says of its sweep; empty where there is none.

    Raises:
        FormatError: The file is damaged.
    """
    path = folder / NOTE
    with environment("read", path):
        if not path.exists():
            return {}
        value = loads(path.read_bytes(), what=str(path))
    if not isinstance(value, dict) or value.get("kind") != "sweep":
        raise FormatError(f"{path} is no note of a sweep; remove it to choose anew.", subject=path)
    return value


def write_note(
    folder: Path, recipe: Path, axes: Mapping[str, Sequence[Any]], choice: Mapping[str, Any]
) -> None:
    """Make the folder and say what is kept in it.

    Raises:
        EnvironmentFailure: It cannot be made or written.
    """
    with environment("make", folder):
        folder.mkdir(parents=True, exist_ok=True)
    kept = {"schema": 1, "kind": "sweep", "recipe": recipe.name, "axes": dict(axes), "choice": dict(choice)}
    replace_file(folder / NOTE, dumps(kept))


def sort(orders: Sequence[Order], folder: Path, registry: Registry | None) -> Begun:
    """Tell the runs that are done from those to make; what belongs to another plan is done again.

    Args:
        orders: All runs with their plans.
        folder: Of the sweep.
        registry: Where the parts of finished runs must be; None where there is none yet.
    """
    taken: dict[str, Record] = {}
    todo: list[Order] = []
    notes: list[str] = []
    for order in orders:
        record, why = _held(order, folder, registry)
        if record is not None and not why:
            taken[order.run] = record
            continue
        todo.append(order)
        if why:
            notes.append(f"{order.run} {why}")
        if record is None or record.plan != order.plan:
            records.checkpoint(folder, order.run).unlink(missing_ok=True)
    return Begun(taken, todo, notes)


def _held(order: Order, folder: Path, registry: Registry | None) -> tuple[Record | None, str]:
    """Return the record of a run, and why it is made again; no reason where it is taken, or was never made."""
    try:
        record = records.read(folder, order.run)
    except FormatError as error:
        return None, f"is done again: its record is damaged ({error})"
    if record is None:
        return None, ""
    if record.plan != order.plan:
        return (
            record,
            "is done again: its record is of another plan (recipe, data, plugins or versions changed)",
        )
    if record.state != "done":
        kept = records.checkpoint(folder, order.run).exists()
        before = f"failed before ({record.reason})" if record.state == "failed" else "was interrupted"
        return record, f"{before}, and {'goes on from its checkpoint' if kept else 'is done again'}"
    try:
        for name in record.parts.values():
            if registry is None:
                raise NotFound(name)
            registry.store.resolve(name)
    except NotFound:
        return record, "is done again: the registry does not hold its parts"
    return record, ""
