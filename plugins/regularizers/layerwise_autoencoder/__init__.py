"""Greedy layer-wise autoencoder pretraining: every layer learns to reconstruct its input, before training begins.

Paper: Bengio, Lamblin, Popovici, Larochelle (2006), "Greedy Layer-Wise Training of Deep Networks", in the form that is
    compared with in "Reviving Autoencoder Pretraining" (Pre); noise as in Vincent et al. (2010).
Equations: for m = 1, 2, ..., with the layers below fixed and h = d_m: minimize the mean over batch and elements of
    (h - decode(encode(h)))^2, where encode = act_m(BN_m(M_m h + b_m)) and
    decode(c) = act_{m-1}(BN_{m-1}(M_m' (c - b_m))). ``tied`` uses the layer's own M_m and b_m there (the default, as no
    parameter is added; the papers do not say which), otherwise a decoder of its own learns others.
Cost: ``steps`` passes through the layers below for each layer; none during training.
Limits: chains only: networks with shortcuts are refused. It keeps the input whether it matters for the task or not,
    and needs steps for every layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from compatkit import Pretraining, SetUp, TaskState, hookimpl
from compatkit.errors import TrainingError, UsageError
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Register

from ..reverse_pass._chains import Stage, Walk, chain_of
from .single import Single

compatkit_api = 1
NAME = "layerwise_autoencoder"
MEASURED = 4
"""Batches on which a layer's error is measured before and after."""
SHOWN_EVERY = 20


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``layerwise_autoencoder``."""
    register(NAME, LayerwiseAutoencoder)


@attrs.define(eq=False)
class LayerwiseAutoencoder:
    """Pretrains every layer but the class layer, one after the other, from the images up.

    It has no loss in a step: its weight says nothing, but that 0 leaves it out. Layers below are in eval mode
    meanwhile, with the statistics that they got from their own turn.

    Attributes:
        tied: Whether the decoder is the layer's transpose.
        steps: Steps of each layer.
        lr: Learning rate of Adam.
        batch_size: Images in a step.
        noise: Deviation of the Gaussian noise that is added to a layer's input, 0 for none; what it should reconstruct
            has none.
        output_activation: ``"relu"``, ``"sigmoid"`` or ``"tanh"`` on the images that the first layer gives back; None
            where they are normalized to mean 0, as the trainer's are.
    """

    tied: bool = True
    steps: int = attrs.field(default=500, validator=COUNT)
    lr: float = attrs.field(default=1e-3, validator=Number(above=0))
    batch_size: int = attrs.field(default=64, validator=Number(least=2, whole=True))
    noise: float = attrs.field(default=0.0, validator=Number(least=0))
    output_activation: str | None = None
    _chains: dict[str, tuple[Stage, ...]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        Walk(output_activation=self.output_activation)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Find the chain of every task's network.

        Raises:
            UsageError: A network is no chain, or has no layer before its class layer; or a part of a task's is to
                stay as it is, or there is none.
        """
        for state in setup.tasks.values():
            why = (
                "has no labels, so that its head stays as it is"
                if not state.supervised
                else "has no head of its own"
                if not state.runs_head
                else "has a frozen extractor"
            )
            lacks = not state.runs_head and next(state.head.parameters(), None) is not None
            if state.freezes_extractor or lacks:
                raise UsageError(
                    f"layerwise_autoencoder trains whole networks, heads included, before the first step; task "
                    f"{state.name!r} {why}. Leave the plugin out."
                )
            images = torch.zeros(2, len(state.data.mean), *state.data.size, device=setup.precision.device)
            try:
                stages = chain_of((state.extractor, state.head), images)
            except UsageError as error:
                raise UsageError(
                    f"layerwise_autoencoder trains chains alone; task {state.name!r} has {state.task.model}. {error}"
                ) from error
            self._chains[state.name] = tuple(
                stage for stage in stages if not f"{stage.linear}.".startswith(state.class_layer)
            )
            if not self._chains[state.name]:
                raise UsageError(
                    f"layerwise_autoencoder: the network of task {state.name!r} has no layer before its class layer, "
                    "which is not pretrained. Leave the plugin out, or take a deeper network."
                )

    @hookimpl
    def compatkit_pretrain(self, setup: SetUp, pretraining: Pretraining) -> Mapping[str, Any]:
        """Pretrain all tasks; return each layer's reconstruction error before and after, by task.

        Raises:
            TrainingError: A layer's error is not finite.
        """
        record: dict[str, Any] = {}
        for state in setup.tasks.values():
            record[state.name] = {
                stage.linear: self._layer(setup, pretraining, state, index)
                for index, stage in enumerate(self._chains[state.name])
            }
        return record

    def _layer(self, setup: SetUp, pretraining: Pretraining, task: TaskState, index: int) -> dict[str, float]:
        """Train one layer."""
        stages = self._chains[task.name]
        stage, before = stages[index], stages[index - 1] if index else None
        draws = setup.rng(NAME, task.name, stage.linear)
        single = Single.of(
            (task.extractor, task.head), stage, before, self.output_activation, None if self.tied else draws
        )
        first = self._error(setup, pretraining, task, single)
        moving = single.moving()
        if moving:
            optimizer = torch.optim.Adam(moving, self.lr)
            key = (NAME, task.name, stage.linear)
            title = f"{task.name}: {stage.linear}"
            with pretraining.bar(title, self.steps, self.batch_size) as bar, single.learning():
                batches = pretraining.batches(task, *key, steps=self.steps, batch_size=self.batch_size)
                for number, batch in enumerate(batches, 1):
                    with setup.precision.autocast():
                        loss = single.loss(batch.images, lambda like: self._noisy(like, draws))
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward(inputs=moving)
                    optimizer.step()
                    if pretraining.shown and (number % SHOWN_EVERY == 0 or number == self.steps):
                        bar.at(number, {task.name: {"reconstruction": float(loss.detach())}})
        last = self._error(setup, pretraining, task, single)
        if not math.isfinite(last):
            raise TrainingError(
                f"layerwise_autoencoder: the reconstruction error of {stage.linear} of task {task.name!r} is {last} "
                f"after {self.steps} steps. Lower lr, which is {self.lr:g}.",
                subject=stage.linear,
            )
        return {"before": first, "after": last}

    def _noisy(self, like: Tensor, draws: torch.Generator) -> Tensor:
        if self.noise == 0:
            return like
        return like + self.noise * torch.randn(like.shape, generator=draws).to(like)

    def _error(self, setup: SetUp, pretraining: Pretraining, task: TaskState, single: Single) -> float:
        """Return a layer's error in eval mode on the same few batches whenever it is asked."""
        batches = pretraining.batches(
            task, NAME, "error", task.name, steps=MEASURED, batch_size=self.batch_size
        )
        with torch.no_grad(), setup.precision.autocast():
            losses = [single.loss(batch.images) for batch in batches]
        return float(torch.stack(losses).mean())
