"""Retrain: some layers of a trained network start anew and learn, all others stay as they are.

Paper: Bonheme and Grzes (2023), "How Good Are Variational Autoencoders at Transfer Learning?", Sec. 4.3, Fig. 6: layers
    of a decoder are reset and retrained on the target domain, from either end, more and more of them.
Cost: none; layers that are kept need no gradients of their weights.
Limits: it needs weights to start from. Frozen layers still run, so a step is not much cheaper.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import attrs
import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from compatkit import SetUp, Task, hookimpl
from compatkit.errors import UnknownName, UsageError, suggest
from compatkit.hooks import Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``retrain``."""
    register("retrain", Retrain)


def _several(instance: object, attribute: object, value: object) -> None:
    if isinstance(value, str) or not value:
        raise UsageError(f"retrain: layers is a list of layers, such as ['decoder.*']; got {value!r:.60}.")


@attrs.define(eq=False)
class Retrain:
    """Trains some layers of a network that starts from given weights (``Task.weights``), and no others.

    With the same seed, a layer that starts anew has the values that it has in a run from scratch. Batch normalization
    in layers that are kept uses its stored statistics.

    Attributes:
        layers: Paths or globs of modules, such as ``["decoder.dense1", "latent"]``; what is inside belongs to them.
        fresh: Whether they start anew; else they go on from the given weights.
    """

    layers: Sequence[str] = attrs.field(validator=_several)
    fresh: bool = True
    _given: dict[str, Mapping[str, Tensor]] = attrs.field(factory=dict, init=False)

    @hookimpl
    def compatkit_task(self, task: Task, seed: int) -> Task:
        """Keep the given weights aside, so that the network is built with new ones.

        Raises:
            UsageError: The task has no state dict as weights.
        """
        if not isinstance(task.weights, Mapping):
            raise UsageError(
                f"retrain keeps layers of a trained network; task {task.name!r} starts from {task.weights!r:.60}. Give "
                "it weights=fit.weights(...).",
                subject=task.name,
            )
        self._given[task.name] = task.weights
        return attrs.evolve(task, weights=None)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Load what is kept, and take it out of training.

        Raises:
            UnknownName: A glob names no layer with weights.
            UsageError: The weights are of another network.
        """
        for state in setup.tasks.values():
            parts = (state.extractor, state.head)
            own = {name: tensor for part in parts for name, tensor in part.state_dict(keep_vars=True).items()}
            start = self._given[state.name]
            if wrong := sorted(
                {name for name in own if name not in start or start[name].shape != own[name].shape}
                | (start.keys() - own.keys())
            ):
                raise UsageError(
                    f"retrain: the weights of task {state.name!r} are of another network: {', '.join(wrong[:3])} are "
                    f"missing, not known or of another shape in {state.task.model}.",
                    subject=state.name,
                )
            chosen = {name for name in own if any(_inside(name, glob) for glob in self.layers)}
            for glob in self.layers:
                if not any(_inside(name, glob) for name in own):
                    layers = dict.fromkeys(name.rpartition(".")[0] for name in own)
                    raise UnknownName(
                        f"retrain: {state.task.model} has no layer {glob!r} with weights.{suggest(glob, layers)} "
                        f"Those that have are {', '.join(layers)}.",
                        subject=glob,
                    )
            with torch.no_grad():
                for name, tensor in own.items():
                    if name not in chosen or not self.fresh:
                        tensor.copy_(start[name])
                    if isinstance(tensor, torch.nn.Parameter):
                        tensor.requires_grad_(name in chosen)
            state.frozen_norms += tuple(
                module
                for part in parts
                for path, module in part.named_modules()
                if isinstance(module, _BatchNorm) and f"{path}.running_mean" not in chosen
            )
            setup.tell(
                {f"{state.name} started from": _digest(start), f"{state.name} retrained": sorted(chosen)}
            )


def _inside(name: str, glob: str) -> bool:
    """Return whether a tensor lies in a module that the glob names."""
    path = name.rpartition(".")[0].split(".")
    return any(fnmatchcase(".".join(path[: depth + 1]), glob) for depth in range(len(path)))


def _digest(weights: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
