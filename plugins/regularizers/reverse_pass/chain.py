"""Networks as chains of layers, build_stages by tracing or declared by a plan, and verified in both cases.

A full reverse pass needs a chain: the only input of each layer is the output of the one before. Tracing follows tensors
from the output back to the input. For verification, the stages are composed and must reproduce the network's output
bitwise.
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

from .finding import Between, Step, build_stages
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
    """Return the stages of a network that is a chain, from images to output.

    A network's own ``reverse_plan()`` takes precedence. If the network returns several tensors (mean and log-variance
    of an encoder), the chain ends at the first.

    Args:
        parts: A network, or consecutive parts whose modules have their paths in the whole network; modes and buffers
            are restored.
        images: Only shape, dtype and device matter.

    Raises:
        UsageError: The network is not a chain; the message says where and why.
    """
    draw = torch.Generator().manual_seed(0)
    signal = torch.rand(images.shape, generator=draw).to(images.device, images.dtype)
    with torch.no_grad(), evaluating(parts):
        plan = getattr(parts, "reverse_plan", None)
        calls = tracked(parts, signal.clone(), run)
        if plan is None:
            stages, between = build_stages(parts, calls)
        else:
            stages, between = _planned(parts, plan(), calls)
        _prove(parts, stages, between, signal, calls[-1].output)
        _check_calls(stages, calls)
    return stages


def _planned(
    parts: Parts, plan: Sequence[Mapping[str, Any]], calls: Sequence[Call]
) -> tuple[tuple[Stage, ...], Between]:
    """Return the stages of a network's own plan, with the shapes of one pass."""
    modules, stages = modules_of(parts), []
    between: Between = []
    ran = {call.path: call for call in calls if call.path is not None}
    for fields in plan:
        stage = Stage(**fields)
        for path in (stage.linear, stage.norm, stage.act, stage.pool):
            if path is not None and (path not in modules or path not in ran):
                raise UsageError(
                    f"reverse_plan() of {type(parts).__name__} names {path!r}, which is not a module of it or is not "
                    "called. Use module paths as in its state dict."
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
    """Return a function that reshapes a value to the input shape of a call."""
    shape = call.inputs[0].shape
    return lambda value: value.reshape(shape)


def _prove(parts: Parts, stages: Sequence[Stage], between: Between, signal: Tensor, expected: Tensor) -> None:
    """Compose the stages and compare with the network.

    Raises:
        UsageError: The outputs differ.
    """
    try:
        value = _composed(modules_of(parts), stages, between, signal.clone())
    except (RuntimeError, NotImplementedError) as error:
        raise not_a_chain("the network", f"has stages that do not follow one another ({error})") from error
    if not torch.equal(value, expected):
        raise not_a_chain(
            "the network",
            f"differs from its {len(stages)} stages in sequence: not all that happens between them is known",
        )


def _composed(
    modules: Mapping[str, nn.Module], stages: Sequence[Stage], between: Between, value: Tensor
) -> Tensor:
    for stage, steps in zip(stages, between, strict=False):
        for step in steps:
            value = step(value)
        value = modules[stage.linear](value)
        if stage.norm is not None:
            value = normalized(modules[stage.norm], value)
        if stage.act is not None:
            value = modules[stage.act](value)
    for step in between[-1]:
        value = step(value)
    return value


def _check_calls(stages: Sequence[Stage], calls: Sequence[Call]) -> None:
    """Check that modules are called exactly where the stages say: records are matched by order."""
    for path in {
        path for stage in stages for path in (stage.linear, stage.norm, stage.act) if path is not None
    }:
        used = sum(path in (stage.linear, stage.norm, stage.act) for stage in stages)
        called = sum(call.path == path for call in calls)
        if called > used:
            raise not_a_chain(path, f"is called {called} times, and {used} of them are in the chain")


def normalized(norm: nn.Module, value: Tensor) -> Tensor:
    """Return ``value`` normalized in eval mode, without the activation inside timm's layers.

    Args:
        norm: A normalization layer.
        value: ``(batch, channels, ...)`` for batch normalization.

    Returns:
        In the shape of ``value``; no buffer is updated.
    """
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
