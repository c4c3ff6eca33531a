"""Checkpoints of a run: one safetensors file, replaced atomically, from which a run resumes bit by bit.

Randomness is a function of the step, so the state of a run is its weights, buffers, optimizer states, averages, the
plugins' own state, what early stopping knows, and the step. The run's manifest is stored beside them: a checkpoint of
another plan is refused, with what differs. Weights that are not finite are never written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from torch import Tensor

from compatkit.errors import FormatError, IntegrityError, TrainingError
from compatkit.foundation.codec import digest, dumps
from compatkit.registry.disk import replace_file
from compatkit.registry.os_errors import environment
from compatkit.registry.weights.tensorchecks import check_values, compare, first_fault
from compatkit.registry.weights.tensorfile import deserialize, metadata, serialize, state_digest
from compatkit.training.distributed import ALONE, World, differences
from compatkit.training.execution import Execution
from compatkit.training.loop import Loop
from compatkit.training.optim import optimizer_state, restore_state

NAMED = 4
"""How many differences between two plans an error lists."""
NOTED = ("step", "history", "evaluations", "stopping", "pretraining", "waiting", "ended")
"""JSON values of a run in its checkpoint: steps of each task that are done, rows of losses, rows of evaluations, the
state of early stopping, reports of pretraining, the steps of losses that no row holds yet, whether it is complete."""
CHANGES = "augment_changes"
"""Where a checkpoint and a run's manifest record that a run went on with another augmentation."""
_AUGMENT = re.compile(r"tasks\[(\d+)\]\.(augment|crops_from)\b")
_DAMAGED = (FormatError, ValueError, KeyError, TypeError)


def save(
    path: Path, loop: Loop, run: Mapping[str, Any], note: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write the state of ``loop`` and of the run around it.

    Args:
        path: Path of the file.
        loop: After ``note["step"]`` steps of every task.
        run: Manifest of the run.
        note: JSON values of the run: see ``NOTED``.
        tensors: Tensors of the run, whose names do not begin as those of the loop.

    Raises:
        TrainingError: A weight is not finite, or a variance negative; an earlier checkpoint stays as it was.
        EnvironmentFailure: The file cannot be written; an earlier checkpoint stays as it was.
    """
    check_trained(loop, note["step"])
    saved = {**loop.weights(), **tensors}
    counts: dict[str, float] = {}
    for owner, optimizer in loop.optimizers.items():
        for key, value in optimizer_state(optimizer).items():
            target = saved if isinstance(value, Tensor) else counts
            target[f"optimiser/{owner}/{key}"] = value  # type: ignore[assignment]
    plugins: dict[str, Any] = {}
    for instance, state in loop.plugins.states().items():
        plugins[instance] = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
        saved |= {
            f"plugin/{instance}/{key}": value for key, value in state.items() if isinstance(value, Tensor)
        }
    plan = {"tensors": state_digest(saved), "plan": digest(dumps(run)), "run": run}
    whole = {**plan, **note, "plugins": plugins, "execution": attrs.asdict(loop.execution)}
    whole |= {"counts": counts} if counts else {}
    replace_file(path, serialize(saved, metadata=json.dumps(whole)))


def read(path: Path | None, world: World) -> bytes | None:
    """Return the bytes of a checkpoint, read by the first process for all; None where there is none.

    Args:
        path: File of the checkpoint, or None.
        world: Processes of the run.

    Raises:
        EnvironmentFailure: The file cannot be read.
    """
    if path is None:
        return None
    data = None
    if world.first and path.exists():
        with environment("read", path):
            data = path.read_bytes()
    return world.broadcast_bytes(data)


@attrs.frozen
class CheckpointStatus:
    """How far the run of a checkpoint has come: steps done, and whether it is complete."""

    step: int
    ended: bool


def status(path: Path) -> CheckpointStatus | None:
    """Return how far the run of a checkpoint has come; None where there is no file.

    Raises:
        FormatError: The file is no checkpoint.
        EnvironmentFailure: It cannot be read.
    """
    data = read(path, ALONE)
    if data is None:
        return None
    try:
        note = json.loads(metadata(data) or "")
        return CheckpointStatus(int(note["step"]), note.get("ended") is True)
    except _DAMAGED as error:
        raise FormatError(f"{path} is not the checkpoint of a run: {error}", subject=path) from error


def execution(data: bytes) -> Execution | None:
    """Return how the run of a checkpoint executes its steps; None where the file does not say so."""
    try:
        return Execution(**json.loads(metadata(data) or "")["execution"])
    except _DAMAGED:
        return None  # ``load`` reports what is wrong with the file


def load(
    path: Path, data: bytes, loop: Loop, run: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore the loop that ``save`` wrote to ``path``; return note and tensors of the run around it.

    Args:
        path: File of the checkpoint, for messages.
        data: Its bytes.
        loop: Changed in place: weights, optimizers, averages and losses.
        run: Manifest of the run that starts; it must equal the stored one.

    Returns:
        The note, JSON values by the names in ``NOTED`` and ``CHANGES``, and all stored tensors by name.

    Raises:
        FormatError: The file is no checkpoint.
        IntegrityError: Its tensors are not those that were written, or hold values that no network can use.
        TrainingError: It belongs to another plan.
    """
    try:
        stored = deserialize(data)
    except FormatError as error:
        raise FormatError(f"The checkpoint {path} is damaged: {error}", subject=path) from error
    try:
        note = json.loads(metadata(data) or "")
        plan, promised, other = note["plan"], note["tensors"], dict(note["run"])
        states = {instance: dict(values) for instance, values in note["plugins"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            f"{path} is no checkpoint of a run: its note is missing or damaged ({error})."
        ) from error
    if state_digest(stored) != promised:
        raise IntegrityError(
            f"The checkpoint {path} does not hold the tensors that were written: its content changed on disk. "
            "Remove it to start anew, or take an earlier copy.",
            subject=path,
        )
    changes = list(note.get(CHANGES, []))
    if plan != digest(dumps(run)):
        if not (loop.settings.new_augment and _differs_in_augment(run, other)):
            raise _other_plan(path, run, other)
        changes += _augment_changes(run, other, note["step"])
    _restore(path, loop, {**stored, **note.get("counts", {})})
    for key, value in below("plugin/", stored).items():
        instance, name = key.split("/", 1)
        states.setdefault(instance, {})[name] = value
    loop.plugins.load_states(states)
    return {**{name: note[name] for name in NOTED}, CHANGES: changes}, stored


def below(prefix: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors whose names begin with ``prefix``, by the rest of their names.

    Args:
        prefix: Ends with a slash.
        stored: Tensors by name.
    """
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}


def _other_plan(path: Path, run: Mapping[str, Any], stored: Mapping[str, Any]) -> TrainingError:
    changed = [f"{place}: {other} there, {own} here" for place, own, other in differences(run, stored)]
    more = f"; and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
    augment = (
        " Only the augmentation differs: Trainer(new_augment=True), or --new-augment, goes on with the new one."
        if _differs_in_augment(run, stored)
        else ""
    )
    return TrainingError(
        f"The checkpoint {path} belongs to another plan: {'; '.join(changed[:NAMED])}{more}. Name another checkpoint "
        f"file, or remove this one to start anew.{augment}",
        subject=path,
    )


def _differs_in_augment(run: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two manifests of runs differ in the augmentation of tasks, and in nothing else."""
    return all(_AUGMENT.match(place) for place, *_ in differences(run, other))


def _augment_changes(run: Mapping[str, Any], other: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
    """Return what a run records when it goes on with another augmentation after ``step`` steps."""
    return [
        {"task": new["name"], "after_step": step, "before": old["augment"], "augment": new["augment"]}
        for new, old in zip(run["tasks"], other["tasks"], strict=True)
        if new["augment"] != old["augment"]
    ]


def check_trained(loop: Loop, step: int) -> None:
    """Raise for weights of a run that no network can use, since nothing could go on from them; waits for the device.

    Args:
        loop: After ``step`` steps.
        step: For the message.

    Raises:
        TrainingError: Names the first module and tensor.
    """
    for owner, module in loop.setup.owners.items():
        if (fault := first_fault(module.state_dict())) is not None:
            raise TrainingError(
                f"After {step} steps weights cannot be used: {owner}: {fault[0]} holds {fault[1]}. Lower the learning "
                "rate, add warm-up steps, clip the gradients with clip_norm, or use precision='float32'.",
                subject=fault[0],
            )


def _restore(path: Path, loop: Loop, stored: Mapping[str, Any]) -> None:
    weights, prefixes = loop.weights(), tuple(f"optimiser/{owner}/" for owner in loop.optimizers)
    for key in stored:
        if key.startswith("optimiser/") and not key.startswith(prefixes):
            raise FormatError(
                f"The checkpoint {path} holds {key!r}, the state of an optimizer that this run does not have: another "
                "version of compatkit wrote it. Remove it to start anew.",
                subject=path,
            )
    state = {key: tensor for key, tensor in stored.items() if key.startswith(("module/", "average/"))}
    if mismatch := compare(state, weights):
        raise FormatError(
            f"The checkpoint {path} does not hold the weights of this plan: {'; '.join(mismatch.sentences())}. Remove "
            "it to start anew.",
            subject=path,
        )
    best = {key: tensor for key, tensor in stored.items() if key.startswith("best/")}
    check_values(
        {**state, **best}, f"The checkpoint {path}", "Remove it to start anew, or take an earlier copy."
    )
    for key, value in weights.items():
        value.copy_(stored[key])
    for owner, optimizer in loop.optimizers.items():
        restore_state(optimizer, below(f"optimiser/{owner}/", stored))
