"""Extra views of a batch for regularizers: one pass of the extractor for all views, or a pass for each.

A pass over four views in one batch launches a quarter of the operations. But batch normalization would use the
statistics of all views together, which changes gradients, and would update its buffers with views that are never
evaluated. In ``Viewwise``, every call of ``F.batch_norm`` normalizes view by view, in torch's layers, timm's layers
with activation, and traced graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from compatkit.errors import UsageError
from compatkit.evaluation.batchnorm import batch_statistics
from compatkit.hooks import Batch
from compatkit.plugins.calls import Bound
from compatkit.training.layer_recording import IMAGES, Recorder
from compatkit.training.task_state import TaskState

ViewBatchingOption = Literal["auto", "fused", "separate"]
VIEW_BATCHING_OPTIONS: tuple[ViewBatchingOption, ...] = ("auto", "fused", "separate")
TEST_IMAGES = 4
"""Images per view to test whether an extractor keeps views apart."""
TOLERANCE = 1e-3
"""Difference between features of one pass and of separate passes at most, as a share of the largest feature."""


class Viewwise(TorchFunctionMode):
    """Mode for batches of ``views`` equal parts one after the other, each normalized separately."""

    def __init__(self, views: int) -> None:
        """See the class."""
        super().__init__()
        self.views = views

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace ``F.batch_norm`` alone."""
        keywords = kwargs or {}
        return _batch_norm(self.views, *args, **keywords) if func is F.batch_norm else func(*args, **keywords)


def _batch_norm(
    views: int,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Compute ``F.batch_norm`` view by view, with the same arguments."""
    if not training:  # stored statistics do not depend on the batch
        return F.batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    if torch.compiler.is_compiling():
        running = None if running_mean is None or running_var is None else (running_mean, running_var)
        return _batch_norm_by_reduction(views, input, running, weight, bias, momentum, eps)
    batch, *extra_views = input.chunk(views)
    parts = [F.batch_norm(batch, running_mean, running_var, weight, bias, True, momentum, eps)]
    parts += [F.batch_norm(view, None, None, weight, bias, True, momentum, eps) for view in extra_views]
    return torch.cat(parts)


def _batch_norm_by_reduction(
    views: int,
    input: Tensor,
    running: tuple[Tensor, Tensor] | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """Normalize by one reduction over all axes but views and channels, which compiles to the fewest kernels."""
    parts = input.unflatten(0, (views, -1)).to(torch.promote_types(input.dtype, torch.float32))
    dims = (1, *range(3, parts.dim()))
    variance, mean = torch.var_mean(parts, dim=dims, correction=0, keepdim=True)
    if running is not None:
        count = parts[0].numel() // parts.shape[2]
        statistics = mean[0].detach().flatten(), variance[0].detach().flatten() * (count / (count - 1))
        for value, statistic in zip(running, statistics, strict=True):
            value.lerp_(statistic.to(value.dtype), momentum)
    scaled = (parts - mean) * torch.rsqrt(variance + eps)
    shape = (-1, *(1 for _ in range(3, parts.dim())))
    if weight is not None:
        scaled = scaled * weight.view(shape)
    if bias is not None:
        scaled = scaled + bias.view(shape)
    return scaled.to(input.dtype).flatten(0, 1)


def mixing_reason(extractor: nn.Module, shape: tuple[int, ...]) -> str | None:
    """Return the reason if one pass would mix the views of an extractor; None if it keeps them apart.

    Args:
        extractor: Extractor; it runs in eval mode except batch normalization, and is restored.
        shape: Shape of a batch of images, ``(batch, channels, height, width)``.
    """
    for name, module in extractor.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            return f"{name!r} synchronizes statistics of full batches between processes"
    first = next(extractor.parameters(), torch.empty(0))
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(2 * shape[0], *shape[1:], generator=draw).to(first.device, first.dtype)
    with torch.no_grad(), batch_statistics(extractor):
        apart = torch.cat([extractor(view) for view in images.chunk(2)])
        with Viewwise(2):
            together = extractor(images)
    if float((apart - together).abs().max()) > TOLERANCE * float(apart.abs().max()):
        return "features of images depend on the other images in the batch"
    return None


def record_mixing_reason(recorder: Recorder, shape: tuple[int, ...]) -> str | None:
    """Return the reason if the recorded calls of a batch cannot be taken from a pass of several views; else None.

    Args:
        recorder: Recorder; its notes are updated with the tensors that have a row for each image.
        shape: Shape of an image, ``(channels, height, width)``.
    """
    images = recorder.images(2 * IMAGES, shape)
    with recorder.restored(), batch_statistics(recorder.extractor):
        single_calls = recorder.calls(images[:IMAGES], recorder.extractor)
        with Viewwise(2):
            double_calls = recorder.calls(images, recorder.extractor)
    for name, calls in single_calls.items():
        if len(calls) != len(double_calls[name]):
            return f"the layer {name!r} is called more often for more images"
        for single, double in zip(calls, double_calls[name], strict=True):
            if not all(map(_is_prefix, single[:2], double[:2])):
                return f"the recorded rows of the layer {name!r} do not correspond to images"
            recorder.notes[name].rows = (
                single[0].shape != double[0].shape,
                single[1].shape != double[1].shape,
            )
    return None


def _is_prefix(single: Tensor, double: Tensor) -> bool:
    """Return whether a tensor of two views equals that of one view, or begins with it and has twice the rows."""
    doubled = single.dim() > 0 and double.shape == (2 * len(single), *single.shape[1:])
    if single.shape != double.shape and not doubled:
        return False
    if not single.numel():
        return True
    difference = float((single - double[: len(single)]).detach().abs().max())
    return difference <= TOLERANCE * float(single.detach().abs().max())


@attrs.frozen
class ViewBatching:
    """Choice between one pass of the extractor for a batch and its extra views, and separate passes.

    Attributes:
        fused: Whether all views share one pass, each with batch statistics of its own.
        reason: Reason for the choice.
    """

    fused: bool
    reason: str

    @property
    def mode(self) -> str:
        """``"fused"`` or ``"separate"``."""
        return "fused" if self.fused else "separate"


SEPARATE = ViewBatching(False, "no plugin requests extra views")
_RECOMPUTED = "activations are recomputed, and recomputation cannot tell the views apart"


def choose_view_batching(
    option: ViewBatchingOption, state: TaskState, device: str, recorder: Recorder | None = None
) -> ViewBatching:
    """Choose between one pass and separate passes for a task.

    Args:
        option: Setting ``passes`` of the trainer.
        state: State of the task.
        device: Device of the run.
        recorder: Recorder of the task, where some of its layers are recorded.

    Raises:
        UsageError: The option is ``"fused"``, but the extractor would mix the views, or the recorded calls of layers.
    """
    if option == "separate":
        return ViewBatching(False, "asked for")
    if state.task.recompute_activations and option == "auto":
        return ViewBatching(False, _RECOMPUTED)
    kind, recomputes = torch.device(device).type, state.task.recompute_activations
    if option == "auto" and kind != "cuda":
        return ViewBatching(False, f"on {kind} one pass gains nothing over several")
    image = len(state.data.mean), *state.data.size
    reason = _RECOMPUTED if recomputes else mixing_reason(state.extractor, (TEST_IMAGES, *image))
    if reason is None and recorder is not None:
        reason = record_mixing_reason(recorder, image)
    if reason is None:
        return ViewBatching(True, "asked for" if option == "fused" else f"fewer launches on {kind}")
    if option == "fused":
        raise UsageError(
            f"passes='fused' was asked for, but in the extractor of task {state.name!r} ({state.task.model}) "
            f"{reason}. Use passes='auto' or 'separate'."
        )
    return ViewBatching(False, reason)


@attrs.frozen(eq=False)
class ExtraViews:
    """Extra views of one task's batches.

    Attributes:
        hooks: Hooks that return views.
        counts: Number of views of each hook.
        fused: Whether the extractor processes them in the pass of the batch.
    """

    hooks: tuple[Bound, ...] = ()
    counts: tuple[int, ...] = ()
    fused: bool = False

    @classmethod
    def of(cls, hooks: Sequence[Bound], size: tuple[int, int], fused: bool) -> ExtraViews:
        """Count the views of each hook, and leave out hooks without views.

        Args:
            hooks: Hooks ``compatkit_further_views`` of plugins.
            size: Height and width of the images in pixels.
            fused: Whether the extractor processes extra views together with the batch.
        """
        counts = {hook: len(hook.call(torch.zeros(1, 1, *size, dtype=torch.int64))) for hook in hooks}
        with_views = tuple(hook for hook in hooks if counts[hook])
        return cls(with_views, tuple(counts[hook] for hook in with_views), fused)

    def __len__(self) -> int:
        """Return the number of views besides the batch itself."""
        return sum(self.counts)

    def make(self, images: Tensor) -> list[Tensor]:
        """Return all extra views of images, or of a tensor of pixel positions, each in its shape."""
        return [view for bound in self.hooks for view in bound.call(images)]

    def unchecked(self) -> ExtraViews:
        """Return a copy without checks of plugins' return values, for a compiler."""
        hooks = tuple(attrs.evolve(bound, call=bound.function) for bound in self.hooks)
        return attrs.evolve(self, hooks=hooks)

    def extract(self, extractor: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """Run the extractor on a batch, and on its extra views if they are fused.

        Args:
            extractor: Extractor of the task.
            batch: Batch, with its stacked views if they were gathered with it.

        Returns:
            Features of the batch, and of the extra views by plugin instance; no views if not fused.
        """
        if not self.fused or not self.counts:
            return extractor(batch.images), {}
        stacked = batch.stacked
        if stacked is None:
            stacked = torch.cat([batch.images, *self.make(batch.images)])
        with Viewwise(1 + len(self)):
            features = extractor(stacked)
        batch_features, *view_features = features.chunk(1 + len(self))
        return batch_features, self._by_instance(view_features)

    def separate(self, batch: Batch) -> dict[str, list[Tensor]]:
        """Return the images of the extra views for separate passes.

        Returns:
            Tensors ``(N, C, H, W)`` of each view, by plugin instance; empty if fused.
        """
        if self.fused or not self.counts:
            return {}
        if batch.stacked is None:
            return self._by_instance(self.make(batch.images))
        return self._by_instance(list(batch.stacked.chunk(1 + len(self))[1:]))

    def _by_instance(self, views: list[Tensor]) -> dict[str, list[Tensor]]:
        by_instance: dict[str, list[Tensor]] = {}
        for bound, count in zip(self.hooks, self.counts, strict=True):
            by_instance[bound.instance], views = views[:count], views[count:]
        return by_instance
