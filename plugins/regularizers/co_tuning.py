"""Co-Tuning: the source's class layer learns on too, towards the source classes that a target class looks like.

Paper: You, Kou, Long, Wang (2020), "Co-Tuning for Transfer Learning", NeurIPS; the weight in the public code of
    its group (Transfer-Learning-Library) is 2.3.
Equations: p(s | t), the relation of source class s and target class t, is the mean of the source network's softmax
    over the training images of t (the paper's direct way); the loss is the cross-entropy of the
    source class layer on a target image against p(s | its class).
Left out: the authors' second way, which inverts a classifier of p(t | s) fitted on the source's images, and their
    calibration, which needs these images too; ``temperature`` divides the source's logits in its place.
Cost: one pass over ``steps`` batches before the first step, and the source's class layer in each step.
Limits: it needs the source's class layer: weights as a state dict (``Fit.weights``), not components. Without the
    source's images nothing is calibrated. It was a little below plain fine-tuning on 100 images of USPS.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit import Pretraining, SetUp, Step, TaskState, autocast, effect, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``co_tuning``."""
    register("co_tuning", CoTuning)


def relation(shares: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return p(s | t), float32 ``(classes, source classes)``; of a class without images, the mean over all images.

    Args:
        shares: The source's softmax, ``(n, source classes)``.
        labels: Target classes, ``(n,)``.
        classes: Target classes.
    """
    counts = torch.bincount(labels, minlength=classes).to(shares)[:, None]
    sums = shares.new_zeros(classes, shares.shape[1]).index_add(0, labels, shares)
    return torch.where(counts > 0, sums / counts.clamp(min=1), shares.mean(0))


@attrs.define(eq=False)
class CoTuning:
    """Trains the class layer of the source too; use it with ``weight=2.3``, on a task with a state dict as weights.

    Attributes:
        steps: Batches from which the relation of classes is taken.
        batch_size: Images in each; all if there are fewer.
        temperature: Divides the source's logits there.
    """

    steps: int = attrs.field(default=20, validator=COUNT)
    batch_size: int = attrs.field(default=64, validator=COUNT)
    temperature: float = attrs.field(default=1.0, validator=Number(above=0))
    _layers: dict[str, nn.Linear] = attrs.field(factory=dict, init=False)
    _relations: dict[str, Tensor] = attrs.field(factory=dict, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Take the source's class layer out of the given weights.

        Raises:
            UsageError: A task has no state dict with the class layer of its network as weights, or that is not linear.
        """
        for name, state in setup.tasks.items():
            path = _class_layer(state)
            weights: Any = state.task.weights if isinstance(state.task.weights, Mapping) else {}
            rows, bias = weights.get(f"{path}.weight"), weights.get(f"{path}.bias")
            own = state.head.get_submodule(path) if path else None
            if not isinstance(own, nn.Linear) or rows is None or rows.shape[1:] != own.weight.shape[1:]:
                raise UsageError(
                    "co_tuning needs the source's linear class layer; the weights of task "
                    f"{name!r} have none that fits. Give it weights=Fit.weights(...) of a network with the same "
                    "model.",
                    subject=name,
                )
            layer = nn.Linear(own.in_features, len(rows), bias=bias is not None)
            with torch.no_grad():
                layer.weight.copy_(rows)
                if bias is not None:
                    layer.bias.copy_(bias)
            self._layers[name] = setup.own(name, layer)  # type: ignore[assignment]
            setup.record_layers(state, [path])
            # Even until it is found: steps of dry runs come before.
            even = torch.full((len(state.labels), len(rows)), 1 / len(rows))
            self._relations[name] = even.to(setup.precision.device)

    @hookimpl
    def compatkit_pretrain(self, setup: SetUp, pretraining: Pretraining) -> Mapping[str, Any]:
        """Find the relation of source and target classes; no weight changes."""
        seen = dict[str, Tensor]()
        for name, state in setup.tasks.items():
            head = copy.deepcopy(state.head).eval()
            extractor = copy.deepcopy(state.extractor).eval()
            _put(head, _class_layer(state), self._layers[name])
            shares, labels = list[Tensor](), list[Tensor]()
            images = min(self.batch_size, len(state.examples) or self.batch_size)
            batches = pretraining.batches(state, "co_tuning", name, steps=self.steps, batch_size=images)
            with torch.no_grad():
                for batch in batches:
                    logits = head(extractor(batch.images)).float() / self.temperature
                    shares.append(logits.softmax(1))
                    labels.append(batch.labels)
            seen[name] = torch.cat(labels)
            self._relations[name] = relation(torch.cat(shares), seen[name], len(state.labels))
        return {"images": {name: len(rows) for name, rows in seen.items()}}

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the cross-entropy of the source's class layer."""
        name = step.task.name
        (call,) = next(iter(step.layers.values()))
        logits = self._layers[name](call.input)
        targets = self._relations[name][step.batch.labels]
        return {"source": F.cross_entropy(logits.float(), targets)}

    @hookimpl
    def compatkit_state(self) -> Mapping[str, Any]:
        """Return the relations."""
        return dict(self._relations)

    @hookimpl
    def compatkit_load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the relations."""
        self._relations = {name: state[name].to(rows.device) for name, rows in self._relations.items()}


def _class_layer(state: TaskState) -> str:
    """Return the path of the class layer inside the head; empty if it has none or several."""
    return state.class_layer[0].rstrip(".") if len(state.class_layer) == 1 else ""


def _put(network: nn.Module, path: str, layer: nn.Module) -> None:
    """Put a layer in the place of another."""
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, layer)
