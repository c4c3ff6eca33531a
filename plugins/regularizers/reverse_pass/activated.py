"""The local reverse pass with non-linearities: from the output of a layer's activation to the layer's input.

Paper: "Reviving Autoencoder Pretraining", App. A.3.
Equations: d'_m = act_{m-1}(BN_{m-1}(M_m' (d_{m+1} - b_m))), where d_{m+1} is the state after the activation of layer m
    in the forward pass. The first layer has no preceding normalization or activation.

Activations are assigned to layers by tracing one pass: the output of one call is the input of another if they are the
same object. Pooling between an activation and the layer is reversed by nearest-neighbor upsampling.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit import TaskState
from compatkit.errors import UsageError

from .finding import ACT, NORM, POOL, POOL_FUNCTIONS, SAME, SAME_FUNCTIONS
from .full import OUTPUTS, Walk
from .local import Records, wide
from .stages import Stage, evaluating, run
from .tracking import Call, tracked
from .undoing import again, step_back

ACT_FUNCTIONS = frozenset(
    {"relu", "relu_", "relu6", "gelu", "silu", "tanh", "sigmoid", "leaky_relu", "elu", "hardtanh"}
)
"""Activations called as functions; their outputs cannot be recorded by hooks."""


@attrs.frozen
class Around:
    """One layer with its neighbors, by path.

    Attributes:
        stage: The layer, with pooling between the preceding state and it.
        after: The module whose output is d_{m+1}.
        before: Norm and activation that produced d_m; None for the first layer.
    """

    stage: Stage
    after: str
    before: Stage | None


@attrs.frozen(eq=False)
class Activated:
    """The local reverse pass with non-linearities of one task.

    Attributes:
        layers: In the order of their calls.
        walk: Settings.
    """

    layers: tuple[Around, ...]
    walk: Walk

    @classmethod
    def of(cls, task: TaskState, names: Sequence[str], walk: Walk) -> Activated:
        """Find the neighbors of each layer.

        Args:
            task: Task whose network is run once in eval mode on random images.
            names: The layers to reverse.
            walk: Settings of the reverse pass.

        Raises:
            UsageError: The neighbors of some layers cannot be determined; the message gives the reasons.
        """
        parts = (task.extractor, task.head)
        images = torch.rand(
            2, len(task.data.mean), *task.data.size, generator=torch.Generator().manual_seed(0)
        )
        first = next(task.extractor.parameters(), images)
        with torch.no_grad(), evaluating(parts):
            calls = tracked(parts, images.to(first.device, first.dtype), run)
        layers, refused = [], []
        for name in names:
            try:
                layers.append(_around(name, calls))
            except _Unresolved as error:
                refused.append(f"{name!r} {error}")
        if refused:
            more = f", and {len(refused) - 5} more" if len(refused) > 5 else ""
            raise UsageError(
                f"activation=True must know which activation belongs to which layer; in task {task.name!r} "
                f"{'; '.join(refused[:5])}{more}. Use activation=False, which reverses each layer separately, or leave "
                "these layers out of `layers`."
            )
        return cls(tuple(layers), walk)

    @property
    def names(self) -> tuple[str, ...]:
        """The modules whose records ``loss`` needs."""
        paths = [
            path
            for layer in self.layers
            for path in (
                layer.stage.linear,
                layer.after,
                *((layer.before.norm, layer.before.last) if layer.before else ()),
            )
        ]
        return tuple(dict.fromkeys(path for path in paths if path is not None))

    def loss(
        self, records: Records, images: Tensor, factors: Mapping[str, float], *, detach_target: bool = False
    ) -> Tensor | None:
        """Return the sum over layers of factor times mean square of d - d'; see ``local_loss``.

        Args:
            records: Inputs and outputs of the modules in ``names``.
            images: Input of the network, ``(batch, ...)``.
            factors: lambda_m by layer; layers with 0 are skipped.
            detach_target: Whether d receives no gradient.

        Returns:
            A scalar; None if every factor is 0.
        """
        terms: list[Tensor] = []
        for layer in self.layers:
            if (factor := factors[layer.stage.linear]) == 0:
                continue
            state, back = self._pair(layer, records, images)
            terms.append(factor * F.mse_loss(wide(back), wide(state.detach() if detach_target else state)))
        return torch.stack(terms).sum() if terms else None

    def _pair(self, layer: Around, records: Records, images: Tensor) -> tuple[Tensor, Tensor]:
        (call,), (after,) = records[layer.stage.linear], records[layer.after]
        if layer.before is None:
            back = step_back(call.layer, layer.stage, after.output, call.input, images.shape)
            name = self.walk.output_activation
            return images, back if name is None else OUTPUTS[name](back)
        (state,), norm, act = records[layer.before.last], layer.before.norm, layer.before.act
        back = step_back(call.layer, layer.stage, after.output, call.input, state.output.shape)
        normal = None if norm is None else records[norm][0]
        layers = None if normal is None else normal.layer, None if act is None else records[act][0].layer
        forward = None if normal is None else normal.input
        return state.output, again(*layers, back, forward, self.walk.bn_reverse)


class _Unresolved(Exception):
    """The neighbors of a layer cannot be determined; the text says why."""


def _around(name: str, calls: Sequence[Call]) -> Around:
    own = [index for index, call in enumerate(calls) if call.path == name]
    if len(own) != 1:
        raise _Unresolved(f"is called {len(own)} times")
    before, stage = _before(name, calls, own[0])
    return Around(stage, _after(calls, own[0]), before)


def _after(calls: Sequence[Call], index: int) -> str:
    """Return the module that produced the output of a layer's activation, its norm, or the layer itself."""
    last = str(calls[index].path)
    norm = _next(calls, index, NORM)
    if norm is not None:
        index, last = norm, str(calls[norm].path)
        fused = getattr(calls[norm].module, "act", None)
        if fused is not None and not isinstance(fused, nn.Identity):
            return f"{last}.act"
    act = _next(calls, index, ACT)
    if act is not None:
        last = str(calls[act].path)
    else:
        _refuse_shared(calls, index)
    return last


def _refuse_shared(calls: Sequence[Call], index: int) -> None:
    """Raise if a layer's activation is applied to a sum, or is not a module."""
    for user in _users(calls, index):
        name = calls[user].name
        if name in ACT_FUNCTIONS:
            raise _Unresolved(f"is activated by {name}(), which is not a module")
        if len(calls[user].inputs) > 1 and any(
            isinstance(calls[other].module, ACT) or calls[other].name in ACT_FUNCTIONS
            for other in _users(calls, user)
        ):
            raise _Unresolved(f"is activated together with others, after {name}()")


def _users(calls: Sequence[Call], index: int) -> Iterator[int]:
    """Yield the calls that use the output of a call, in order, looking through calls that pass it on unchanged."""
    output = calls[index].output
    for later in range(index + 1, len(calls)):
        if any(value is output for value in calls[later].inputs):
            if isinstance(calls[later].module, nn.Identity | nn.Dropout):
                yield from _users(calls, later)
            else:
                yield later
        if calls[later].output is output and not isinstance(calls[later].module, nn.Identity):
            return  # overwritten in place


def _next(calls: Sequence[Call], index: int, kinds: tuple[type[nn.Module], ...]) -> int | None:
    return next((user for user in _users(calls, index) if isinstance(calls[user].module, kinds)), None)


def _before(name: str, calls: Sequence[Call], index: int) -> tuple[Stage | None, Stage]:
    """Return norm and activation that produced a layer's input, and the layer with the pooling before it."""
    pools: list[Call] = []
    at = _maker(calls, index)
    while at and _passes(calls[at], pools):
        at = _maker(calls, at)
    stage = Stage(name)
    if pools:
        taken, pooled = tuple(pools[-1].inputs[0].shape[1:]), tuple(pools[0].output.shape[1:])
        stage = Stage(name, pool=pools[0].name, taken=taken, pooled=pooled)
    if at == 0:
        return None, stage
    call, act = calls[at], None
    fused = getattr(call.module, "act", None)
    if isinstance(call.module, ACT):
        act, at = call.path, _maker(calls, at)
        while isinstance(calls[at].module, nn.Identity):
            at = _maker(calls, at)
        call = calls[at]
    elif isinstance(call.module, NORM) and fused is not None and not isinstance(fused, nn.Identity):
        act = f"{call.path}.act"
    path = call.path
    if isinstance(call.module, NORM) and path is not None:
        return Stage(path, norm=path, act=act), stage
    if isinstance(call.module, nn.Linear | nn.modules.conv._ConvNd) and path is not None:
        return Stage(path, act=act), stage
    raise _Unresolved(f"takes what {call.what} gave, behind which no single layer stands")


def _passes(call: Call, pools: list[Call]) -> bool:
    if isinstance(call.module, POOL) or call.function in POOL_FUNCTIONS:
        pools.append(call)
        return True
    return isinstance(call.module, SAME) or call.function in SAME_FUNCTIONS


def _maker(calls: Sequence[Call], index: int) -> int:
    """Return the index of the call that computed the input of a call.

    Raises:
        _Unresolved: It has several input tensors, or one of unknown origin.
    """
    call = calls[index]
    if len(call.inputs) != 1:
        raise _Unresolved(f"takes what {call.what} makes of {len(call.inputs)} tensors")
    for at in range(index - 1, -1, -1):
        if calls[at].output is call.inputs[0]:
            return at
    raise _Unresolved("takes what no layer gave")
