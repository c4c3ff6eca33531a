"""Networks as chains of layers: found by running them once, or stated by their own plan, and proved in either case.

A whole reverse pass needs a chain: the only input of every layer is the output of the one before it. It is
found by following tensors from the output back to the input, and proved by composing what was found once more: the
stages must give the network's own output bit by bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit.errors import UsageError

from .finding import Between, Step, found
from .stages import (
    Parts,
    Stage,
    evaluating,
    modules_of,
    not_a_chain,
    run,
)
from .tracking import Call, tracked

__all__ = ["Stage", "chain_of"]


def chain_of(parts: Parts, images: Tensor) -> tuple[Stage, ...]:
    """Return the stages of a network that is a chain, from its images to its output.

    A network's own ``reverse_plan()`` is taken where there is one. Where it gives several tensors (an encoder's mean
    and log-variance), the chain ends at the first.

    Args:
        parts: A network, or parts that are run one after the other and name their modules as the whole network does;
            modes and buffers are as before afterwards.
        images: Only their shape, type and device matter.

    Raises:
        UsageError: The network is no chain; says where, and why.
    """
    draw = torch.Generator().manual_seed(0)
    signal = torch.rand(images.shape, generator=draw).to(images.device, images.dtype)
    with torch.no_grad(), evaluating(parts):
        plan = getattr(parts, "reverse_plan", None)
        calls = tracked(parts, signal.clone(), run)
        if plan is None:
            stages, between = found(parts, calls)
        else:
            stages, between = _planned(parts, plan(), calls)
        _prove(parts, stages, between, signal, calls[-1].output)
        _check_calls(stages, calls)
    return stages


def _planned(
    parts: Parts, plan: Sequence[Mapping[str, Any]], calls: Sequence[Call]
) -> tuple[tuple[Stage, ...], Between]:
    """Return the stages of a network's own plan, with the shapes of one run."""
    modules, stages = modules_of(parts), []
    between: Between = []
    ran = {call.path: call for call in calls if call.path is not None}
    for given in plan:
        stage = Stage(**given)
        for path in (stage.linear, stage.norm, stage.act, stage.pool):
            if path is not None and (path not in modules or path not in ran):
                raise UsageError(
                    f"reverse_plan() of {type(parts).__name__} names {path!r}, which is no module of it or is not "
                    "called. Name modules as in its state dict."
                )
        called = [ran[path] for path in (stage.pool, stage.linear) if path is not None]
        steps: list[Step] = [_shaped_for(call) for call in called]
        if stage.pool is not None:
            steps.insert(1, called[0].again)
        between.append(steps)
        if stage.pool is not None:
            pool = ran[stage.pool]
            taken, pooled = tuple(pool.inputs[0].shape[1:]), tuple(pool.output.shape[1:])
            stage = attrs.evolve(stage, taken=taken, pooled=pooled)
        stages.append(stage)
    if not stages:
        raise UsageError(f"reverse_plan() of {type(parts).__name__} names no stage.")
    return tuple(stages), [*between, []]


def _shaped_for(call: Call) -> Step:
    """Return what gives a value the shape that a call takes."""
    shape = call.inputs[0].shape
    return lambda value: value.reshape(shape)


def _prove(parts: Parts, stages: Sequence[Stage], between: Between, signal: Tensor, wanted: Tensor) -> None:
    """Compose the stages and compare.

    Raises:
        UsageError: They give something else than the network.
    """
    try:
        value = _composed(modules_of(parts), stages, between, signal.clone())
    except (RuntimeError, NotImplementedError) as error:
        raise not_a_chain("the network", f"has stages that do not follow one another ({error})") from error
    if not torch.equal(value, wanted):
        raise not_a_chain(
            "the network",
            f"gives something else than its {len(stages)} stages one after the other: what happens between them is "
            "not all known",
        )


def _composed(
    modules: Mapping[str, nn.Module], stages: Sequence[Stage], between: Between, value: Tensor
) -> Tensor:
    for stage, steps in zip(stages, between, strict=False):
        for step in steps:
            value = step(value)
        value = modules[stage.linear](value)
        if stage.norm is not None:
            value = normalised(modules[stage.norm], value)
        if stage.act is not None:
            value = modules[stage.act](value)
    for step in between[-1]:
        value = step(value)
    return value


def _check_calls(stages: Sequence[Stage], calls: Sequence[Call]) -> None:
    """Check that a module is called where the stages say so, and nowhere else: records are told apart by order."""
    for path in {path for one in stages for path in (one.linear, one.norm, one.act) if path is not None}:
        used = sum(path in (one.linear, one.norm, one.act) for one in stages)
        called = sum(call.path == path for call in calls)
        if called > used:
            raise not_a_chain(path, f"is called {called} times, and {used} of them are in the chain")


def normalised(norm: nn.Module, value: Tensor) -> Tensor:
    """Return ``value`` as ``norm`` gives it in eval mode, without the activation that timm's layers hold."""
    if not isinstance(norm, _BatchNorm):
        return norm(value)
    return F.batch_norm(
        value,
        norm.running_mean,
        norm.running_var,
        norm.weight,
        norm.bias,
        norm.running_mean is None,
        0.0,
        norm.eps,
    )
