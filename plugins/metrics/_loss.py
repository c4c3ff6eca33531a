"""The loss of a network as a function of its parameters, on fixed examples: values, gradients, Hessian products."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import equal_norm_weights
from compatkit.foundation.limits import COUNT, SEED, OneOf

from ._moments import drawn_keys

PAPER = "Towards Understanding the Transferability of Deep Representations (under review, ICLR 2020)"
T = TypeVar("T")
Weighted = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
CASES = ("as given", "permuted labels", "random weights")
"""The network, and its controls: the same with shuffled labels; with Gaussian weights of the same norms."""


@attrs.frozen(eq=False)
class SampledExamples:
    """Random sample of examples: those with the smallest random keys.

    Attributes:
        keys: Ascending keys, int64 ``(n,)``.
        images: Images ``(n, ...)``.
        labels: Labels, int64 ``(n,)``.
    """

    keys: Tensor
    images: Tensor
    labels: Tensor


@contextmanager
def differentiable() -> Iterator[None]:
    """Record gradients in full precision, by operations that have second derivatives."""
    # Fused attention has no second derivative; autocast would round the loss.
    with (
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
        sdpa_kernel(SDPBackend.MATH),
    ):
        yield


@attrs.frozen(eq=False)
class LossSurface:
    """Mean cross-entropy of examples as a function of parameters; the network itself is never changed.

    Attributes:
        network: In eval mode, so that the loss of an example does not depend on its batch.
        parameters: Parameters by path, for ``gradient`` and ``products``.
        fixed: Other parameters and buffers, by path.
        images: ``(n, ...)``.
        labels: ``(n,)``.
        chunk: Examples that pass at a time.
        layers: Convolutions and linear layers among those named, or all by their paths.
    """

    network: nn.Module
    parameters: Mapping[str, Tensor]
    fixed: Mapping[str, Tensor]
    images: Tensor
    labels: Tensor
    chunk: int
    layers: Mapping[str, Weighted]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    def pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images and labels, chunk by chunk."""
        yield from zip(self.images.split(self.chunk), self.labels.split(self.chunk), strict=True)

    def summed(self, parameters: Mapping[str, Tensor], images: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of the cross-entropies of some examples, a scalar."""
        logits = functional_call(self.network, {**self.fixed, **parameters}, (images.clone(),))
        return F.cross_entropy(logits, labels, reduction="sum")

    def within(self, parameters: Mapping[str, Tensor], work: Callable[[], T]) -> T:
        """Return what a function gives while the network has these parameters; they are put in once for many passes.

        Args:
            parameters: By path. The function may write into them between passes.
            work: Calls ``network``.
        """
        tensors = {f"network.{path}": tensor for path, tensor in {**self.fixed, **parameters}.items()}
        return functional_call(_Within(self.network), tensors, (work,))

    def value(self, parameters: Mapping[str, Tensor]) -> float:
        """Return the mean loss, added up in float64."""
        with differentiable(), torch.no_grad():
            sums = [float(self.summed(parameters, *piece)) for piece in self.pieces()]
        return sum(sums) / len(self.labels)

    def gradient(self) -> dict[str, Tensor]:
        """Return the gradient of the mean loss, by path."""
        gradients = {path: torch.zeros_like(parameter) for path, parameter in self.parameters.items()}
        for piece in self.pieces():
            with differentiable():
                leaves = self._leaves()
                loss = self.summed(leaves, *piece) / len(self.labels)
                parts = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
            for path, parameter in zip(gradients, parts, strict=True):
                gradients[path] += parameter
        return gradients

    def products(self, vectors: Tensor) -> Tensor:
        """Return the Hessian of the mean loss times each column; the columns share passes and first derivatives.

        Args:
            vectors: ``(size, b)``.

        Returns:
            ``(size, b)``.
        """
        products = torch.zeros_like(vectors)
        for piece in self.pieces():
            with differentiable():
                leaves = self._leaves()
                loss = self.summed(leaves, *piece) / len(self.labels)
                first = torch.autograd.grad(
                    loss, list(leaves.values()), create_graph=True, materialize_grads=True
                )
                flat = torch.cat([tensor.reshape(-1) for tensor in first])
                for column in range(vectors.shape[1]):
                    second = torch.autograd.grad(
                        flat,
                        list(leaves.values()),
                        vectors[:, column],
                        retain_graph=column + 1 < vectors.shape[1],
                        materialize_grads=True,
                    )
                    products[:, column] += torch.cat([tensor.reshape(-1) for tensor in second])
        return products

    def output_gradients(self) -> Iterator[dict[str, Tensor]]:
        """Yield for each chunk d l_i / d X, the gradient of each example's own loss by what the layers gave.

        Tensors ``(batch, ...)`` by layer in the order of their calls; several calls are ``name#1``, ``name#2``, ...

        Raises:
            DataError: A layer is not called, or does not give one tensor.
        """
        for images, labels in self.pieces():
            outputs: list[tuple[str, Any]] = []

            def hook(name: str, outputs: list[tuple[str, Any]] = outputs) -> Any:
                def note(module: nn.Module, inputs: Any, output: Any) -> Any:
                    outputs.append((name, output))
                    return output.clone()  # later changes in place affect the copy

                return note

            handles = [layer.register_forward_hook(hook(name)) for name, layer in self.layers.items()]
            try:
                with differentiable():
                    loss = self.summed(self._leaves(), images.clone().requires_grad_(), labels)
                    gradients = torch.autograd.grad(
                        loss, [result for _, result in outputs], materialize_grads=True
                    )
            finally:
                for handle in handles:
                    handle.remove()
            names = [name for name, _ in outputs]
            if missing := self.layers.keys() - set(names):
                raise DataError(
                    f"The layer {min(missing)!r} was not called, so no gradient reaches it. Name other layers.",
                    subject=min(missing),
                )
            unique_names = [
                name if names.count(name) == 1 else f"{name}#{names[:at].count(name) + 1}"
                for at, name in enumerate(names)
            ]
            yield dict(zip(unique_names, gradients, strict=True))

    def _leaves(self) -> dict[str, Tensor]:
        return {path: parameter.detach().requires_grad_() for path, parameter in self.parameters.items()}


class _Within(nn.Module):
    """A module around a network whose forward pass is any function."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, work: Callable[[], T]) -> T:
        return work()


@attrs.define(eq=False, kw_only=True)
class LossMetric:
    """Common inputs of metrics of a loss: a fixed sample of examples, precision and controls.

    Attributes:
        examples: Most examples; a sample that depends on positions in the data set and ``seed`` alone.
        chunk: Examples that pass at a time.
        precision: ``"float32"`` or ``"float64"``.
        controls: Whether to measure the controls too: labels permuted among the examples, and Gaussian weights of
            the same norm in each filter.
        seed: Seed of the sample, the controls and other draws of a metric.
    """

    examples: int = attrs.field(default=256, validator=COUNT)
    chunk: int = attrs.field(default=64, validator=COUNT)
    precision: str = attrs.field(default="float32", validator=OneOf(("float32", "float64")))
    controls: bool = False
    seed: int = attrs.field(default=0, validator=SEED)

    def init(self) -> SampledExamples | None:
        """Return the empty state."""
        return None

    def update(
        self, state: SampledExamples | None, images: Tensor, labels: Tensor, positions: Tensor
    ) -> SampledExamples:
        """Return the state with one more batch.

        Args:
            state: State so far.
            images: Preprocessed, ``(batch, ...)``.
            labels: Class indices, ``(batch,)``.
            positions: Indices in the data set, ``(batch,)``.
        """
        return self.merge(state, SampledExamples(drawn_keys(positions, self.seed), images, labels))

    def merge(self, left: SampledExamples | None, right: SampledExamples | None) -> Any:
        """Return the sample of both parts."""
        if left is None or right is None:
            left, right = left or right, None
        if left is None:
            return None
        both = [sample for sample in (left, right) if sample is not None]
        keys, order = torch.cat([sample.keys.to(left.keys.device) for sample in both]).sort(stable=True)
        order = order[: self.examples]
        images, labels = (
            torch.cat([getattr(sample, word).to(left.images.device) for sample in both])
            for word in ("images", "labels")
        )
        return SampledExamples(keys[: self.examples], images[order], labels[order])

    def surfaces(
        self, state: SampledExamples, network: nn.Module, layers: Mapping[str, nn.Module]
    ) -> dict[str, LossSurface]:
        """Return the network's loss, and those of its controls if they are wanted, by case.

        Args:
            state: The examples.
            network: In eval mode.
            layers: Layers whose parameters vary; none for all.

        Raises:
            DataError: Labels lie outside the classes that the network tells apart, or the loss is not finite.
        """
        kind, draw = getattr(torch, self.precision), torch.Generator().manual_seed(self.seed)
        images = state.images.to(kind) if state.images.is_floating_point() else state.images
        surfaces = {}
        for case in CASES if self.controls else CASES[:1]:
            labels, varied, chosen = state.labels, network, layers
            if case == CASES[1]:
                labels = labels[torch.randperm(len(labels), generator=draw).to(labels.device)]
            elif case == CASES[2]:
                varied = equal_norm_weights(network, draw)
                paths = {id(module): path for path, module in network.named_modules()}
                chosen = {name: varied.get_submodule(paths[id(layer)]) for name, layer in layers.items()}
            surfaces[case] = _surface(varied, chosen, images, labels, kind, self.chunk)
        return surfaces


def _surface(
    network: nn.Module,
    layers: Mapping[str, nn.Module],
    images: Tensor,
    labels: Tensor,
    kind: torch.dtype,
    chunk: int,
) -> LossSurface:
    tensors = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    cast = {
        path: tensor.detach().to(kind) if tensor.is_floating_point() else tensor.detach()
        for path, tensor in tensors.items()
    }
    trained = {id(parameter) for layer in layers.values() for parameter in layer.parameters()}
    paths = [path for path, parameter in network.named_parameters() if not layers or id(parameter) in trained]
    if not paths:
        raise UsageError(
            f"There are no parameters in {', '.join(layers) or 'the network'}; name others.",
            subject=list(layers),
        )
    fixed = {path: tensor for path, tensor in cast.items() if path not in paths}
    known = weighted(layers or {"": network})
    surface = LossSurface(network, {path: cast[path] for path in paths}, fixed, images, labels, chunk, known)
    with torch.no_grad():
        logits = functional_call(network, cast, (images[:1].clone(),))
    if logits.ndim != 2 or int(labels.min()) < 0 or int(labels.max()) >= logits.shape[1]:
        raise DataError(
            f"The loss is the cross-entropy of logits (n, classes) and class indices; got logits "
            f"{tuple(logits.shape)} and labels from {int(labels.min())} to {int(labels.max())}. Give a network with "
            "its head, and labels of its classes."
        )
    loss = surface.value(surface.parameters)
    if not loss < float("inf"):
        raise DataError(f"The loss of the network is {loss} on these examples; its curvature means nothing.")
    again = surface.value(surface.parameters)
    if abs(again - loss) > 1e-4 * abs(loss):
        raise DataError(
            f"The loss of the network is random: {loss:.6g}, then {again:.6g} on the same images. Its surface needs a "
            "network that draws no random numbers in eval mode."
        )
    return surface


def weighted(layers: Mapping[str, nn.Module]) -> dict[str, Weighted]:
    """Return the convolutions and linear layers among some, and inside them.

    Raises:
        UsageError: There is none.
    """
    paths: dict[nn.Module, str] = {}
    for name, layer in layers.items():
        for path, inside in layer.named_modules(prefix=name):
            if isinstance(inside, Weighted):
                paths.setdefault(inside, path)
    if not paths:
        raise UsageError(
            f"There is no convolution or linear layer in {', '.join(layers) or 'the network'}; name others.",
            subject=list(layers),
        )
    return {path: module for module, path in paths.items()}  # type: ignore[misc]
