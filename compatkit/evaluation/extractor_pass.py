"""Run one extractor over its images and all heads on its features, batch by batch, under one batch-norm policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

import attrs
import torch
from torch import Tensor, nn

from compatkit.contracts.batchnorm import estimates, stored_share
from compatkit.errors import DataError, EnvironmentFailure
from compatkit.evaluation.batchnorm import (
    batch_statistics,
    batches,
    estimating,
    evaluation_mode,
    has_batch_norm,
    kept_statistics,
)
from compatkit.evaluation.preprocessing import Prepared, normalize
from compatkit.evaluation.tally import Tally

if TYPE_CHECKING:
    from compatkit.contracts.contract import Data
    from compatkit.evaluation.conditions import Conditions

Features = Tensor | tuple[Tensor, ...]


@attrs.define(eq=False)
class EvaluatedHead:
    """A head that is evaluated on the features of the current extractor.

    Attributes:
        name: Reference of the head, for messages.
        outputs: Number of outputs in the head's contract.
        module: Module that takes the features: adapters and head.
        tallies: Tallies of the head's predictions, one for each set of classes; the first is over its own classes.
        failure: Reason why the head rejected the features, or empty.
    """

    name: str
    outputs: int
    module: nn.Module = attrs.field(init=False)
    tallies: list[Tally] = attrs.field(factory=list)
    failure: str = ""

    def logits(self, features: Features) -> Tensor | None:
        """Return float32 logits ``(batch, outputs)``; None if the head fails, see ``failure``."""
        if self.failure:
            return None
        try:
            logits = self.module(features)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.failure = f"{self.name} does not take features of shape {_shape(features)}: {error}"
            return None
        if logits.ndim != 2 or logits.shape[1] != self.outputs:
            shape = tuple(logits.shape)
            self.failure = (
                f"{self.name} gives outputs of shape {shape}; its contract names {self.outputs} classes"
            )
            return None
        return logits.float()


class Observer(Protocol):
    """What else is measured in the pass over the images."""

    def observe(self, positions: Tensor, images: Tensor, logits: Mapping[EvaluatedHead, Tensor]) -> None:
        """Take one batch: indices of its images, normalized images, and logits by head."""
        ...

    def conclude(self) -> None:
        """Conclude while the modules are still under the policy of the pass."""
        ...


def evaluate_heads(
    extractor: nn.Module,
    heads: Sequence[EvaluatedHead],
    examples: Prepared,
    data: Data,
    conditions: Conditions,
    progress: Callable[[int], None],
    observers: Sequence[Observer] = (),
) -> None:
    """Fill the tallies of heads on one extractor; modules stay bitwise unchanged, also after an error.

    Args:
        extractor: Extractor, run once over all images; twice if statistics are estimated.
        heads: Heads with their tallies.
        examples: All images of the extractor's split.
        data: Normalization of the images.
        conditions: Policy, batches, precision, device.
        progress: Called with the number of batches done.
        observers: Called with each batch after all heads.

    Raises:
        DataError: A batch would contain only one image, which has no batch statistics.
        EnvironmentFailure: The device does not exist.
    """
    image_batches = batches(len(examples), conditions.batch_size, conditions.seed)
    modules = [extractor, *(head.module for head in heads)]
    tallies = [tally for head in heads for tally in head.tallies]
    if conditions.bn_policy != "running" and len(image_batches[-1]) < 2 and has_batch_norm(*modules):
        raise DataError(
            f"bn_policy {conditions.bn_policy!r} needs at least 2 images in a batch; {len(examples)} images in "
            f"batches of up to {conditions.batch_size} leave a last batch of 1. Use another batch_size, or "
            "bn_policy='running'."
        )

    def run_batches(done: int, record: bool) -> None:
        # Predictions stay on the device until the end, as a copy of each head and batch would wait for it.
        on_device = torch.cat(image_batches).to(conditions.device).tensor_split(len(image_batches))
        batched = zip(image_batches, on_device, examples.each(image_batches), strict=True)
        for number, (positions, rows, pixels) in enumerate(batched, start=done + 1):
            images = normalize(pixels, data, device=conditions.device)
            if conditions.channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            features = extractor(images.clone() if observers else images)  # it may write into them
            outputs = dict[EvaluatedHead, Tensor]()
            for head in heads:
                # A head may begin with an in-place operation, so all but the last get a copy.
                logits = head.logits(_copied(features) if head is not heads[-1] else features)
                if record and logits is not None:
                    for tally in head.tallies:
                        tally.add(rows, logits)
                    if observers:
                        outputs[head] = logits
            if record:
                for observer in observers:
                    observer.observe(positions, images, outputs)
            progress(number)

    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(precision_context(conditions))
        for module in modules:
            stack.enter_context(moved_to(module, conditions.device))
            if conditions.channels_last:
                stack.enter_context(_weights_last(module))
        if estimates(conditions.bn_policy):
            stored_weight = stored_share(conditions.bn_policy, len(examples))
            for module in modules:
                stack.enter_context(kept_statistics(module))
            with ExitStack() as inner:
                for module in modules:
                    inner.enter_context(estimating(module, stored_weight))
                run_batches(0, record=False)
        for tally in tallies:
            tally.move(conditions.device)
        mode = batch_statistics if conditions.bn_policy == "batch" else evaluation_mode
        for module in modules:
            stack.enter_context(mode(module))
        run_batches(len(image_batches) if estimates(conditions.bn_policy) else 0, record=True)
        for observer in observers:
            observer.conclude()
        for tally in tallies:
            tally.move("cpu")


def _copied(features: Features) -> Features:
    return features.clone() if isinstance(features, Tensor) else tuple(tensor.clone() for tensor in features)


def _shape(features: Features) -> str:
    tensors = (features,) if isinstance(features, Tensor) else features
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors)


def device_named(device: str) -> torch.device:
    """Return a device by name.

    Raises:
        EnvironmentFailure: torch has none of this name.
    """
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise EnvironmentFailure(
            f"Unknown device {device!r:.60}; expected cpu, cuda or another device of torch, such as cuda:1.",
            subject=device,
        ) from error


@contextmanager
def moved_to(module: nn.Module, device: str) -> Iterator[None]:
    """Move a module to ``device``, and back afterwards.

    Args:
        module: Moved in place.
        device: A device of torch.

    Raises:
        EnvironmentFailure: There is no such device.
    """
    previous = next((value.device for value in (*module.parameters(), *module.buffers())), None)
    if previous is None or previous == device_named(device):
        yield
        return
    try:
        module.to(device)
    except (RuntimeError, AssertionError) as error:
        module.to(previous)
        raise EnvironmentFailure(f"Cannot run on the device {device!r}: {error}", subject=device) from error
    try:
        yield
    finally:
        module.to(previous)


@contextmanager
def _weights_last(module: nn.Module) -> Iterator[None]:
    """Put weights of convolutions into NHWC, and the very same tensors back afterwards: they may be mapped files."""
    before = [(weight, weight.data) for weight in module.parameters() if weight.ndim == 4]
    try:
        for weight, data in before:
            weight.data = data.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for weight, data in before:
            weight.data = data


@contextmanager
def precision_context(conditions: Conditions) -> Iterator[None]:
    """Compute in float32 without TF32, or in bfloat16 with autocast."""
    kind = device_named(conditions.device).type
    with ExitStack() as stack:
        if conditions.precision == "bfloat16":
            stack.enter_context(torch.autocast(kind, torch.bfloat16))
        elif kind == "cuda":
            for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
                stack.callback(setattr, backend, "allow_tf32", backend.allow_tf32)
                setattr(backend, "allow_tf32", False)  # noqa: B010 - type checkers see cudnn as a module
        yield
