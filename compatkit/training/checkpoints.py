"""Checkpoints of a run: one safetensors file, replaced atomically, that a run resumes from bit by bit.

Randomness is a function of the step, so weights, buffers, optimiser states, the plugins' own state and the
step are everything there is. The plan's digest is kept with them: a checkpoint of another plan is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit.errors import FormatError, IntegrityError, TrainingError
from compatkit.registry.durable import replace_file
from compatkit.registry.surroundings import environment
from compatkit.registry.tensors.tensorfile import deserialise, metadata, serialise, state_digest
from compatkit.training.execution import Execution
from compatkit.training.loop import Loop


def save(path: Path, loop: Loop, plan: str, step: int, history: list[dict[str, Any]]) -> None:
    """Write the state of ``loop`` after ``step`` steps of every task.

    Raises:
        EnvironmentFailure: The file cannot be written; an earlier checkpoint stays as it was.
    """
    tensors = dict(_tensors(loop))
    values: dict[str, Any] = {}
    for instance, state in loop.plugins.states().items():
        kept = values.setdefault(instance, {})
        for key, value in state.items():
            if isinstance(value, Tensor):
                tensors[f"plugin/{instance}/{key}"] = value
            else:
                kept[key] = value
    note = {
        "tensors": state_digest(tensors),
        "plan": plan,
        "step": step,
        "history": history,
        "plugins": values,
        "execution": attrs.asdict(loop.execution),
    }
    replace_file(path, serialise(tensors, metadata=json.dumps(note)))


def execution(path: Path) -> Execution | None:
    """Return how the run of a checkpoint executes its steps; None where the file does not say so."""
    with environment("read", path):
        data = path.read_bytes()
    try:
        kept = json.loads(metadata(data) or "")["execution"]
        return Execution(kept["mode"], kept["reason"])
    except (FormatError, ValueError, KeyError, TypeError):
        return None  # ``load`` says what is wrong with the file


def load(path: Path, loop: Loop, plan: str) -> tuple[int, list[dict[str, Any]]]:
    """Take back the state that ``save`` wrote; return the step to go on from, and the history.

    Raises:
        FormatError: The file is no checkpoint.
        IntegrityError: Its tensors are not those that were written.
        TrainingError: It belongs to another plan.
        EnvironmentFailure: The file cannot be read.
    """
    with environment("read", path):
        data = path.read_bytes()
    try:
        stored = deserialise(data)
    except FormatError as error:
        raise FormatError(f"The checkpoint {path} is damaged: {error}", subject=path) from error
    try:
        note = json.loads(metadata(data) or "")
        belongs, promised = note["plan"], note["tensors"]
        step, history, values = int(note["step"]), list(note["history"]), dict(note["plugins"])
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
    if belongs != plan:
        raise TrainingError(
            f"The checkpoint {path} belongs to another plan (other tasks, data, settings, plugins or versions). "
            "Name another checkpoint file, or remove this one to start anew.",
            subject=path,
        )
    _restore(path, loop, stored)
    states: dict[str, dict[str, Any]] = {instance: dict(state) for instance, state in values.items()}
    for key, value in stored.items():
        if key.startswith("plugin/"):
            _, instance, name = key.split("/", 2)
            states.setdefault(instance, {})[name] = value
    loop.plugins.load_states(states)
    return step, history


def _tensors(loop: Loop) -> Mapping[str, Tensor]:
    found: dict[str, Tensor] = {}
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
