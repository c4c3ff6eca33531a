"""Checkpoints of a run: one safetensors file, replaced atomically, that a run resumes from bit by bit.

Randomness is a function of the step, so weights, buffers, optimiser states, averages, the plugins' own state, what
early stopping knows and the step are everything there is. The run's manifest is kept with them: a checkpoint of another
plan is refused, and what differs is said. Weights that are not finite are never written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit.contracts.codec import digest, dumps
from compatkit.errors import FormatError, IntegrityError, TrainingError
from compatkit.registry.disk import replace_file
from compatkit.registry.os_errors import environment
from compatkit.registry.weights.tensorfile import deserialise, metadata, serialise, state_digest
from compatkit.training.distributed import ALONE, World
from compatkit.training.execution import Execution
from compatkit.training.loop import Loop
from compatkit.training.manifest import differences

NAMED = 4
"""Differences between two plans that an error names."""


@attrs.frozen(eq=False)
class State:
    """What a checkpoint holds besides the loop.

    Attributes:
        step: Steps of each task that are done.
        history: Rows of losses.
        evaluations: Rows of what was measured meanwhile.
        stopping: What early stopping knows, as JSON values; None without.
        best: Its best weights by name; empty without.
        pretraining: What plugins said that trained before the first step; None where none did.
        waiting: Losses that no row of the history holds yet, see ``Ledger.waiting``.
        steps_of: Which steps these are of.
        ended: Whether no step follows.
    """

    step: int
    history: list[dict[str, Any]]
    evaluations: list[dict[str, Any]] = attrs.field(factory=list)
    stopping: Mapping[str, Any] | None = None
    best: Mapping[str, Tensor] = attrs.field(factory=dict)
    pretraining: Mapping[str, Any] | None = None
    waiting: Mapping[str, Tensor] = attrs.field(factory=dict)
    steps_of: Mapping[str, Any] = attrs.field(factory=dict)
    ended: bool = False


def save(path: Path, loop: Loop, run: Mapping[str, Any], state: State) -> None:
    """Write the state of ``loop`` after ``state.step`` steps of every task.

    Raises:
        TrainingError: A weight or a buffer is not finite; an earlier checkpoint stays as it was.
        EnvironmentFailure: The file cannot be written; an earlier checkpoint stays as it was.
    """
    _check_finite(loop, state.step)
    tensors = _tensors(loop)
    for kind, held in (("best", state.best), ("waiting", state.waiting)):
        tensors |= {f"{kind}/{name}": value for name, value in held.items()}
    values: dict[str, Any] = {}
    for instance, kept in loop.plugins.states().items():
        plain = values.setdefault(instance, {})
        for key, value in kept.items():
            if isinstance(value, Tensor):
                tensors[f"plugin/{instance}/{key}"] = value
            else:
                plain[key] = value
    note = {
        "tensors": state_digest(tensors),
        "plan": digest(dumps(run)),
        "run": run,
        "step": state.step,
        "history": state.history,
        "evaluations": state.evaluations,
        "stopping": state.stopping,
        "pretraining": state.pretraining,
        "waiting": state.steps_of,
        "ended": state.ended,
        "plugins": values,
        "execution": attrs.asdict(loop.execution),
    }
    replace_file(path, serialise(tensors, metadata=json.dumps(note)))


def read(path: Path | None, world: World) -> bytes | None:
    """Return what a checkpoint holds, read by the first process for all; None where there is none.

    Raises:
        EnvironmentFailure: The file cannot be read.
    """
    if path is None:
        return None
    data = None
    if world.first and path.exists():
        with environment("read", path):
            data = path.read_bytes()
    return world.from_first(data)


@attrs.frozen
class Kept:
    """How far a run has come, by its checkpoint: steps that are done, and whether none follows."""

    step: int
    ended: bool


def kept(path: Path) -> Kept | None:
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
        return Kept(int(note["step"]), note.get("ended") is True)
    except (FormatError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path} is not the checkpoint of a run: {error}", subject=path) from error


def execution(data: bytes) -> Execution | None:
    """Return how the run of a checkpoint executes its steps; None where the file does not say so."""
    try:
        kept = json.loads(metadata(data) or "")["execution"]
        return Execution(kept["mode"], kept["reason"])
    except (FormatError, ValueError, KeyError, TypeError):
        return None  # ``load`` says what is wrong with the file


def load(path: Path, data: bytes, loop: Loop, run: Mapping[str, Any]) -> State:
    """Take back what ``save`` wrote to ``path``: put weights and states into ``loop``, and return the rest.

    Raises:
        FormatError: The file is no checkpoint.
        IntegrityError: Its tensors are not those that were written.
        TrainingError: It belongs to another plan.
    """
    try:
        stored = deserialise(data)
    except FormatError as error:
        raise FormatError(f"The checkpoint {path} is damaged: {error}", subject=path) from error
    best, waiting = _below("best/", stored), _below("waiting/", stored)
    try:
        note = json.loads(metadata(data) or "")
        belongs, promised, of, values = (
            note["plan"],
            note["tensors"],
            dict(note["run"]),
            dict(note["plugins"]),
        )
        rows, measured = list(note["history"]), list(note["evaluations"])
        state = State(
            int(note["step"]),
            rows,
            measured,
            note["stopping"],
            best,
            note.get("pretraining"),
            waiting,
            note.get("waiting", {}),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(
            f"{path} is no checkpoint of a run: its note is missing or damaged ({error})."
        ) from error
    if state_digest(stored) != promised:
        raise IntegrityError(
            f"The checkpoint {path} does not hold the tensors that were written: its content changed on disk. "
            "Remove it to start anew, or take an earlier copy.",
            subject=path,
        )
    if belongs != digest(dumps(run)):
        raise _other_plan(path, run, of)
    _restore(path, loop, stored)
    states: dict[str, dict[str, Any]] = {instance: dict(state) for instance, state in values.items()}
    for key, value in stored.items():
        if key.startswith("plugin/"):
            _, instance, name = key.split("/", 2)
            states.setdefault(instance, {})[name] = value
    loop.plugins.load_states(states)
    return state


def _below(prefix: str, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): one for name, one in stored.items() if name.startswith(prefix)}


def _other_plan(path: Path, run: Mapping[str, Any], there: Mapping[str, Any]) -> TrainingError:
    found = differences(run, there)
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return TrainingError(
        f"The checkpoint {path} belongs to another plan: {'; '.join(found[:NAMED])}{more}. Name another checkpoint "
        "file, or remove this one to start anew.",
        subject=path,
    )


def _check_finite(loop: Loop, step: int) -> None:
    """Refuse to keep what no run could go on from; waits for the device once."""
    named = {
        f"{owner}: {name}": value
        for owner, module in loop.setup.owners.items()
        for name, value in module.state_dict().items()
        if value.is_floating_point()
    }
    sums = torch.stack([value.sum(dtype=torch.float64).cpu() for value in named.values()])
    if bool(torch.isfinite(sums).all()):
        return
    for name, value in named.items():
        if not bool(torch.isfinite(value).all()):
            raise TrainingError(
                f"After {step} steps weights are not finite, first in {name}. Lower the learning rate, add warm-up "
                "steps, clip the gradients with clip_norm, or use precision='float32'.",
                subject=name,
            )


def _tensors(loop: Loop) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for owner, kept in loop.averages.kept.items() if loop.averages is not None else ():
        for name, value in kept.items():
            found[f"average/{owner}/{name}"] = value
    for owner, module in loop.setup.owners.items():
        for name, value in module.state_dict().items():
            found[f"module/{owner}/{name}"] = value
    for owner, optimiser in loop.optimisers.items():
        for index, state in optimiser.state_dict()["state"].items():
            for name, value in state.items():
                if value is not None:
                    found[f"optimiser/{owner}/{index}/{name}"] = torch.as_tensor(value)
    return found


def _restore(path: Path, loop: Loop, stored: Mapping[str, Tensor]) -> None:
    for owner, module in loop.setup.owners.items():
        prefix = f"module/{owner}/"
        state = {key[len(prefix) :]: value for key, value in stored.items() if key.startswith(prefix)}
        try:
            module.load_state_dict(state, strict=True)
        except RuntimeError as error:
            raise FormatError(
                f"The checkpoint {path} does not hold {owner!r} of this plan: {error}"
            ) from error
    for owner, kept in loop.averages.kept.items() if loop.averages is not None else ():
        for name, value in kept.items():
            value.copy_(stored[f"average/{owner}/{name}"])
    prefixes = tuple(f"optimiser/{owner}/" for owner in loop.optimisers)
    for key in stored:
        if key.startswith("optimiser/") and not key.startswith(prefixes):
            raise FormatError(
                f"The checkpoint {path} holds {key!r}, the state of an optimiser that this run does not have: another "
                "version of compatkit wrote it. Remove it to start anew.",
                subject=path,
            )
    for owner, optimiser in loop.optimisers.items():
        prefix = f"optimiser/{owner}/"
        parameters = [one for group in optimiser.param_groups for one in group["params"]]
        states: dict[int, dict[str, Tensor]] = {}
        for key, value in stored.items():
            if key.startswith(prefix):
                index, name = key[len(prefix) :].split("/", 1)
                states.setdefault(int(index), {})[name] = _laid_out(value, parameters[int(index)])
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": states, "param_groups": groups})


def _laid_out(value: Tensor, parameter: Tensor) -> Tensor:
    """Return ``value`` with the strides of its parameter: fused optimisers walk both in memory order."""
    return torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value
