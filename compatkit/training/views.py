"""Further views that regularizers want the extractor to see, and in how many passes it sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor, nn

from compatkit.errors import UsageError
from compatkit.hooks import Batch
from compatkit.plugins.calls import Bound
from compatkit.training.dry_run import refuses_views
from compatkit.training.recording import Recorder
from compatkit.training.state import TaskState
from compatkit.training.viewwise import Viewwise, mixes

Asked = Literal["auto", "fused", "separate"]
ASKED: tuple[Asked, ...] = ("auto", "fused", "separate")
TRIED = 4
"""Images a view, to see whether an extractor keeps views apart."""


@attrs.frozen
class ViewBatching:
    """In how many passes an extractor sees the batch and its further views.

    Attributes:
        fused: All in one, each view with batch statistics of its own; or one pass for each.
        reason: Why.
    """

    fused: bool
    reason: str

    @property
    def mode(self) -> str:
        """``"fused"`` or ``"separate"``."""
        return "fused" if self.fused else "separate"


SEPARATE = ViewBatching(False, "nobody wants further views")


def choose_view_batching(
    asked: Asked, state: TaskState, device: str, recorder: Recorder | None = None
) -> ViewBatching:
    """Choose for a task.

    Args:
        asked: What the trainer was told.
        state: Of the task.
        device: Where it runs.
        recorder: Of the task, where some of its layers are recorded.

    Raises:
        UsageError: One pass was asked for, and the extractor would mix the views, or what is recorded of its layers.
    """
    if asked == "separate":
        return ViewBatching(False, "asked for")
    kind = torch.device(device).type
    if asked == "auto" and kind != "cuda":
        return ViewBatching(False, f"on {kind} one pass gains nothing over several")
    image = len(state.data.mean), *state.data.size
    reason = mixes(state.extractor, (TRIED, *image))
    if reason is None and recorder is not None:
        reason = refuses_views(recorder, image)
    if reason is None:
        return ViewBatching(True, "asked for" if asked == "fused" else f"fewer launches on {kind}")
    if asked == "fused":
        raise UsageError(
            f"passes='fused' was asked for, but in the extractor of task {state.name!r} ({state.task.backbone}) "
            f"{reason}. Use passes='auto' or 'separate'."
        )
    return ViewBatching(False, reason)


@attrs.frozen(eq=False)
class ExtraViews:
    """The further views of one task's batches.

    Attributes:
        wanted: Who wants them.
        counts: How many each wants.
        fused: Whether the extractor sees them in the pass of the batch.
    """

    wanted: tuple[Bound, ...] = ()
    counts: tuple[int, ...] = ()
    fused: bool = False

    @classmethod
    def of(cls, hooks: Sequence[Bound], size: tuple[int, int], fused: bool) -> ExtraViews:
        """Ask each hook how many views it wants, and leave out those that want none."""
        found = {one: len(one.call(torch.zeros(1, 1, *size, dtype=torch.int64))) for one in hooks}
        kept = {one: count for one, count in found.items() if count}
        return cls(tuple(kept), tuple(kept.values()), fused)

    def __len__(self) -> int:
        """Return how many views there are besides the batch itself."""
        return sum(self.counts)

    def make(self, images: Tensor) -> list[Tensor]:
        """Return all further views of ``images``, or of anything that stands for their pixels."""
        return [view for one in self.wanted for view in one.call(images)]

    def unchecked(self) -> ExtraViews:
        """Return the same without checks of what plugins give back, for a compiler."""
        return attrs.evolve(self, wanted=tuple(attrs.evolve(one, call=one.function) for one in self.wanted))

    def seen(self, extractor: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, list[Tensor]]]:
        """Run the extractor on a batch, and on its further views where that is one pass.

        Returns:
            Features of the batch, and of the further views by the instance that wants them; empty for ``separate``.
        """
        if not self.fused or not self.counts:
            return extractor(batch.images), {}
        stacked = batch.stacked
        if stacked is None:
            stacked = torch.cat([batch.images, *self.make(batch.images)])
        with Viewwise(1 + len(self)):
            features = extractor(stacked)
        upright, *others = features.chunk(1 + len(self))
        return upright, self._by_instance(others)

    def separate(self, batch: Batch) -> dict[str, list[Tensor]]:
        """Return the images of the further views by instance, for passes of their own; empty for ``fused``."""
        if self.fused or not self.counts:
            return {}
        if batch.stacked is None:
            return self._by_instance(self.make(batch.images))
        return self._by_instance(list(batch.stacked.chunk(1 + len(self))[1:]))

    def _by_instance(self, views: list[Tensor]) -> dict[str, list[Tensor]]:
        found: dict[str, list[Tensor]] = {}
        for one, count in zip(self.wanted, self.counts, strict=True):
            found[one.instance], views = views[:count], views[count:]
        return found
