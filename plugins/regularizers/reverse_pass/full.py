"""The full reverse pass of a chain: from the output of the network back to its images, with the same parameters.

Paper: "Reviving Autoencoder Pretraining", Sec. 2 (equations 7 to 11) and App. A.3 (equations 22 to 24).
Equations: forward d_{m+1} = act_m(BN_m(M_m d_m + b_m)); backward, from d'_{n+1} = d_{n+1},
    d'_m = act_{m-1}(BN_{m-1}(M_m' (d'_{m+1} - b_m))) for m = n..2 and d'_1 = M_1' (d'_2 - b_1). The loss is the sum
    over m of lambda_m times the mean over batch and elements of (d_m - d'_m)^2.

Normalization and activation are those of the preceding layer, which produced d_m; those of the last layer do not occur.
They are applied again, not inverted. If the size changes between d_m and the layer, they are compared at the size of
d_m: d'_m is upsampled (nearest neighbor) where the network pools, and averaged over repeated pixels where it enlarges,
which is the least-squares inverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit import LayerCall, TaskState
from compatkit.foundation.limits import OneOf

from .chain import chain_of
from .local import Records, wide
from .stages import Parts, Stage, evaluating, modules_of, not_a_chain, run
from .undoing import STATISTICS, Statistics, again, step_back

OUTPUTS = {"relu": F.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh}


@attrs.frozen
class Walk:
    """Settings of a walk back through a chain.

    Attributes:
        bn_reverse: Statistics of batch normalization in the reverse pass: ``"batch"``, of the reversed values (as the
            paper's code); ``"forward_batch"``, of the same layer's batch in the forward pass, which suits batches of
            one or two images; ``"running"``, the stored ones. Stored statistics are never written.
        output_activation: ``"relu"``, ``"sigmoid"`` or ``"tanh"`` for images in its range, or None.

    Raises:
        UsageError: A setting is unknown.
    """

    bn_reverse: Statistics = attrs.field(default="batch", validator=OneOf(STATISTICS))
    output_activation: str | None = attrs.field(default=None, validator=OneOf(OUTPUTS, optional=True))


USUAL = Walk()


def names_of(stages: Sequence[Stage]) -> tuple[str, ...]:
    """Return the modules whose records ``pairs`` needs."""
    return tuple(
        dict.fromkeys(
            path for stage in stages for path in (stage.linear, stage.norm, stage.last) if path is not None
        )
    )


def pairs(
    stages: Sequence[Stage], records: Records, images: Tensor, walk: Walk = USUAL
) -> Iterator[tuple[Stage, Tensor, Tensor]]:
    """Walk back and yield (stage, d_m, d'_m) for each layer, the last one first.

    Args:
        stages: Stages of the chain.
        records: Inputs and outputs of ``names_of(stages)`` in one forward pass; gradients flow through them.
        images: Input of the network, ``(batch, ...)``.
        walk: Settings.

    Raises:
        UsageError: ``bn_reverse="running"`` for a layer without running statistics, or records of another chain.
    """
    back = _call(stages, records, len(stages) - 1, "last").output
    for index in range(len(stages) - 1, -1, -1):
        state = images if index == 0 else _call(stages, records, index - 1, "last").output
        linear = _call(stages, records, index, "linear")
        back = step_back(linear.layer, stages[index], back, linear.input, state.shape)
        if index > 0:
            back = _again(stages, records, index - 1, back, walk.bn_reverse)
        elif walk.output_activation is not None:
            back = OUTPUTS[walk.output_activation](back)
        yield stages[index], state, back


def _again(
    stages: Sequence[Stage], records: Records, index: int, back: Tensor, statistics: Statistics
) -> Tensor:
    """Apply normalization and activation of a stage to reversed values."""
    stage = stages[index]
    norm = None if stage.norm is None else _call(stages, records, index, "norm")
    act = None if stage.act is None else _call(stages, records, index, "act").layer
    return again(
        None if norm is None else norm.layer, act, back, None if norm is None else norm.input, statistics
    )


def full_loss(
    stages: Sequence[Stage],
    records: Records,
    images: Tensor,
    *,
    walk: Walk = USUAL,
    factors: Mapping[str, float] | None = None,
    detach_target: bool = False,
) -> Tensor | None:
    """Return the sum over layers of factor times the mean square of d_m - d'_m.

    Args:
        stages: See ``pairs``.
        records: See ``pairs``.
        images: See ``pairs``.
        walk: See ``pairs``.
        factors: lambda_m by path of the linear layer; None for 1 everywhere. Layers without a factor add nothing but
            are passed through; the walk ends at the first layer with one.
        detach_target: Whether d_m receives no gradient.

    Returns:
        A float32 scalar, or None if all factors are 0.
    """
    layer_factors = {
        stage.linear: 1.0 if factors is None else factors.get(stage.linear, 0.0) for stage in stages
    }
    left = sum(factor != 0 for factor in layer_factors.values())
    terms: list[Tensor] = []
    for stage, state, back in pairs(stages, records, images, walk) if left else ():
        factor = layer_factors[stage.linear]
        if factor != 0:
            loss = F.mse_loss(wide(back), wide(state.detach() if detach_target else state))
            terms.append(loss if factor == 1 else factor * loss)
        if len(terms) == left:
            break
    return torch.stack(terms).sum() if terms else None


def _call(stages: Sequence[Stage], records: Records, index: int, part: str) -> LayerCall:
    """Return the record of a part of a stage; calls of a shared module are matched in order of the stages."""
    path = getattr(stages[index], part)
    turn = sum(getattr(stage, part) == path for stage in stages[:index])
    calls = records.get(path, ())
    if len(calls) <= turn:
        raise not_a_chain(path, f"was called {len(calls)} times in this pass, unlike in its chain")
    return calls[turn]


def recorded(parts: Parts, paths: Sequence[str], images: Tensor) -> dict[str, list[LayerCall]]:
    """Run parts once, in their current modes, and return inputs and outputs of the layers in ``paths``.

    Outputs are copies, since a following activation may overwrite them.

    Args:
        parts: A network, or its parts in order.
        paths: Paths of the layers.
        images: Input of the network, ``(batch, ...)``.
    """
    modules, records, handles = modules_of(parts), {path: [] for path in paths}, []
    for path in paths:

        def note(layer: nn.Module, taken: tuple[Any, ...], output: Tensor, path: str = path) -> None:
            records[path].append(LayerCall(taken[0].clone(), output.clone(), layer))

        handles.append(modules[path].register_forward_hook(note))
    try:
        run(parts, images)
    finally:
        for handle in handles:
            handle.remove()
    return records


def reconstruct(
    parts: Parts,
    images: Tensor,
    *,
    stages: Sequence[Stage] | None = None,
    bn_reverse: Statistics = "batch",
    output_activation: str | None = None,
) -> Tensor:
    """Reconstruct the images, or latent vectors, from the output of a chain by the reverse pass.

    Runs in eval mode; modes and buffers are restored. Gradients flow.

    Args:
        parts: A network, or its parts in order: classifiers, generators, autoencoders.
        images: Input of the network, ``(batch, ...)``.
        stages: Its chain if known; else it is found and verified.
        bn_reverse: See ``Walk``.
        output_activation: See ``Walk``.

    Returns:
        A tensor in the shape of ``images``.

    Raises:
        UsageError: The network is not a chain, or a setting is unknown.
    """
    walk = Walk(bn_reverse, output_activation)
    chain = chain_of(parts, images) if stages is None else tuple(stages)
    with evaluating(parts):
        records = recorded(parts, names_of(chain), images)
        *_, (_, _, back) = pairs(chain, records, images, walk)
    return back


@attrs.frozen(eq=False)
class Whole:
    """The full reverse pass of one task.

    Attributes:
        stages: Stages of its chain.
        walk: Settings.
    """

    stages: tuple[Stage, ...]
    walk: Walk

    @classmethod
    def of(cls, task: TaskState, walk: Walk) -> Whole:
        """Find the chain of a task's network, which is left unchanged.

        Args:
            task: State of the task.
            walk: Settings of the reverse pass.

        Raises:
            UsageError: The network is not a chain; the message says where and why.
        """
        first = next(task.extractor.parameters(), torch.empty(0))
        images = torch.zeros(2, len(task.data.mean), *task.data.size, device=first.device, dtype=first.dtype)
        return cls(chain_of((task.extractor, task.head), images), walk)

    @property
    def layers(self) -> tuple[str, ...]:
        """Paths of the linear layers, in forward order."""
        return tuple(stage.linear for stage in self.stages)

    @property
    def names(self) -> tuple[str, ...]:
        """The modules whose records ``loss`` needs."""
        return names_of(self.stages)

    def loss(
        self, records: Records, images: Tensor, factors: Mapping[str, float], *, detach_target: bool = False
    ) -> Tensor | None:
        """Return the loss; see ``full_loss``.

        Args:
            records: Inputs and outputs of the modules in ``names``.
            images: Input of the network, ``(batch, ...)``.
            factors: lambda_m by layer.
            detach_target: Whether d_m receives no gradient.

        Returns:
            A scalar; None if every factor is 0.
        """
        return full_loss(
            self.stages, records, images, walk=self.walk, factors=factors, detach_target=detach_target
        )
