"""Checkpoints of a run: one safetensors file, replaced atomically, from which a run resumes bit by bit.

Random numbers are a function of the step, so that the state of a run is its weights, buffers, optimizer states,
averages, the plugins' state, the state of early stopping, and the step. The run's manifest is stored too: a checkpoint
of another plan is refused with the differences. Weights that are not finite are never written.
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

SHOWN_DIFFERENCES = 4
"""Differences between two plans in a message at most."""
NOTE_KEYS = ("step", "history", "evaluations", "stopping", "pretraining", "waiting", "ended")
"""JSON values of a run in its checkpoint: completed steps per task, rows of losses, rows of evaluations, state of early
stopping, reports of pretraining, steps of losses that are in no row yet, and whether the run is complete."""
CHANGES = "augment_changes"
"""Key in checkpoints and manifests for changes of augmentation during a run."""
EPOCHS = "epochs"
"""Key in checkpoints for the epoch of each task, if plugins chose its images."""
STOP = "stop"
"""Key in checkpoints for the reason for which a plugin ended the run, or None."""
_AUGMENT = re.compile(r"tasks\[(\d+)\]\.(augment|crops_from|crops_by|jitter_by)\b")
_DAMAGED = (FormatError, ValueError, KeyError, TypeError)


def save(
    path: Path, loop: Loop, run: Mapping[str, Any], note: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write the state of a loop and of its run.

    Args:
        path: Path of the file.
        loop: Loop after ``note["step"]`` steps of every task.
        run: Manifest of the run.
        note: JSON values of the run: see ``NOTE_KEYS``.
        tensors: Tensors of the run, with other prefixes than those of the loop.

    Raises:
        TrainingError: A weight is not finite, or a variance negative; an earlier checkpoint is not changed.
        EnvironmentFailure: The file cannot be written; an earlier checkpoint is not changed.
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
        tensors_of_plugin = {key: value for key, value in state.items() if isinstance(value, Tensor)}
        saved |= {f"plugin/{instance}/{key}": value for key, value in tensors_of_plugin.items()}
    plan = {"tensors": state_digest(saved), "plan": digest(dumps(run)), "run": run}
    header = {**plan, **note, "plugins": plugins, "execution": attrs.asdict(loop.execution)}
    header |= {"counts": counts} if counts else {}
    replace_file(path, serialize(saved, metadata=json.dumps(header)))


def read(path: Path | None, world: World) -> bytes | None:
    """Return the bytes of a checkpoint, read by the first process for all; None if there is none.

    Args:
        path: Path of the checkpoint, or None.
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
    """Progress of a checkpoint's run.

    Attributes:
        step: Completed steps of each task.
        ended: Whether the run is complete.
    """

    step: int
    ended: bool


def status(path: Path) -> CheckpointStatus | None:
    """Return the progress of the run of a checkpoint; None if there is no file.

    Raises:
        FormatError: The file is not a checkpoint.
        EnvironmentFailure: The file cannot be read.
    """
    data = read(path, ALONE)
    if data is None:
        return None
    try:
        note = json.loads(metadata(data) or "")
        return CheckpointStatus(int(note["step"]), note.get("ended") is True)
    except _DAMAGED as error:
        raise FormatError(f"{path} is not a checkpoint: {error}", subject=path) from error


def execution(data: bytes) -> Execution | None:
    """Return the execution of steps in a checkpoint's run; None if the file does not contain it."""
    try:
        return Execution(**json.loads(metadata(data) or "")["execution"])
    except _DAMAGED:
        return None  # ``load`` reports the damage


def number_format(data: bytes) -> str | None:
    """Return the number format of a checkpoint's run, such as ``"bf16"``; None if the file does not contain it."""
    try:
        return str(json.loads(metadata(data) or "")["run"]["environment"]["precision"])
    except _DAMAGED:
        return None  # ``load`` reports the damage


def load(
    path: Path, data: bytes, loop: Loop, run: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Restore a loop from a checkpoint; return note and tensors of its run.

    Args:
        path: Path of the checkpoint, for messages.
        data: Bytes of the checkpoint.
        loop: Loop; weights, optimizers, averages and plugins' states are changed in place.
        run: Manifest of the new run, which must equal the stored one.

    Returns:
        JSON values by the names in ``NOTE_KEYS``, ``CHANGES``, ``STOP`` and ``EPOCHS``, and all stored tensors by name.

    Raises:
        FormatError: The file is not a checkpoint.
        IntegrityError: Tensors of the file were changed, or have invalid values.
        TrainingError: The checkpoint belongs to another plan.
    """
    try:
        stored = deserialize(data)
    except FormatError as error:
        raise FormatError(f"The checkpoint {path} is damaged: {error}", subject=path) from error
    try:
        note = json.loads(metadata(data) or "")
        plan, expected, stored_run = note["plan"], note["tensors"], dict(note["run"])
        states = {instance: dict(values) for instance, values in note["plugins"].items()}
    except (*_DAMAGED, AttributeError) as error:
        raise FormatError(
            f"{path} is not a checkpoint: its header is missing or damaged ({error})."
        ) from error
    if state_digest(stored) != expected:
        raise IntegrityError(
            f"The checkpoint {path} was changed on disk after it was written. Remove it to start again, or restore a "
            "copy.",
            subject=path,
        )
    changes = list(note.get(CHANGES, []))
    if plan != digest(dumps(run)):
        if not (loop.settings.new_augment and _differs_in_augment(run, stored_run)):
            raise _other_plan(path, run, stored_run)
        changes += _augment_changes(run, stored_run, note["step"])
    _restore(path, loop, {**stored, **note.get("counts", {})})
    for key, value in with_prefix("plugin/", stored).items():
        instance, name = key.split("/", 1)
        states.setdefault(instance, {})[name] = value
    loop.plugins.load_states(states)
    values = {**{name: note[name] for name in NOTE_KEYS}, CHANGES: changes}
    values |= {STOP: note.get(STOP), EPOCHS: note.get(EPOCHS, {})}
    return values, stored


def with_prefix(prefix: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tensors with a prefix, by their names without it.

    Args:
        prefix: Prefix with a slash at the end.
        stored: Tensors by name.
    """
    return {name.removeprefix(prefix): tensor for name, tensor in stored.items() if name.startswith(prefix)}


def _other_plan(path: Path, run: Mapping[str, Any], stored: Mapping[str, Any]) -> TrainingError:
    changes = [f"{key}: {old} there, {new} here" for key, new, old in differences(run, stored)]
    shown, hidden = "; ".join(changes[:SHOWN_DIFFERENCES]), len(changes) - SHOWN_DIFFERENCES
    more = f"; and {hidden} more" if hidden > 0 else ""
    hint = " Only the augmentation differs: Trainer(new_augment=True), or --new-augment, accepts the new one."
    return TrainingError(
        f"The checkpoint {path} belongs to another plan: {shown}{more}. Name another checkpoint file, or remove this "
        f"one to start again.{hint if _differs_in_augment(run, stored) else ''}",
        subject=path,
    )


def _differs_in_augment(run: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Return whether two manifests of runs differ only in the augmentation of tasks."""
    return all(_AUGMENT.match(key) for key, *_ in differences(run, stored))


def _augment_changes(run: Mapping[str, Any], stored: Mapping[str, Any], step: int) -> list[dict[str, Any]]:
    """Return the changes of augmentation of a run that resumes after ``step`` steps."""
    return [
        {"task": new["name"], "after_step": step, "before": old["augment"], "augment": new["augment"]}
        for new, old in zip(run["tasks"], stored["tasks"], strict=True)
        if new["augment"] != old["augment"]
    ]


def check_trained(loop: Loop, step: int) -> None:
    """Raise if a weight of the run is invalid; waits for the device.

    Args:
        loop: Loop after ``step`` steps.
        step: Completed steps, for the message.

    Raises:
        TrainingError: A weight is invalid; ``subject`` is the first such tensor.
    """
    for owner, module in loop.setup.owners.items():
        if (fault := first_fault(module.state_dict())) is not None:
            raise TrainingError(
                f"After {step} steps {owner}: {fault[0]} holds {fault[1]}. Lower the learning rate, add warm-up "
                "steps, set clip_norm, or use precision='float32'.",
                subject=fault[0],
            )


def _restore(path: Path, loop: Loop, stored: Mapping[str, Any]) -> None:
    weights, prefixes = loop.weights(), tuple(f"optimiser/{owner}/" for owner in loop.optimizers)
    for key in stored:
        if key.startswith("optimiser/") and not key.startswith(prefixes):
            raise FormatError(
                f"The checkpoint {path} has {key!r}, the state of an optimizer that this run does not have. Another "
                "version of compatkit wrote it; remove it to start again.",
                subject=path,
            )
    state = {key: tensor for key, tensor in stored.items() if key.startswith(("module/", "average/"))}
    if mismatch := compare(state, weights):
        raise FormatError(
            f"The checkpoint {path} does not have the weights of this plan: {'; '.join(mismatch.sentences())}. Remove "
            "it to start again.",
            subject=path,
        )
    best = {key: tensor for key, tensor in stored.items() if key.startswith("best/")}
    check_values({**state, **best}, f"The checkpoint {path}", "Remove it to start again, or restore a copy.")
    for key, value in weights.items():
        value.copy_(stored[key])
    for owner, optimizer in loop.optimizers.items():
        restore_state(optimizer, with_prefix(f"optimiser/{owner}/", stored))
