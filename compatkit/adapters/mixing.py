"""Mixup and CutMix of a batch, by timm."""

from __future__ import annotations

from collections.abc import Callable

import attrs
from torch import Tensor


@attrs.frozen
class Mixing:
    """Mixing of a batch with one random share; mixup or CutMix with equal probability if both are on.

    Attributes:
        mixup: Parameter of the beta distribution of the share; 0 turns mixup off.
        cutmix: The same for the area of a rectangle.
        smoothing: Label smoothing.
        classes: Number of classes.
    """

    mixup: float
    cutmix: float
    smoothing: float
    classes: int
    _mix: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(lambda self: self._of_timm(), takes_self=True)
    )

    def _of_timm(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        from timm.data.mixup import Mixup  # takes longer to import than torch

        return Mixup(self.mixup, self.cutmix, label_smoothing=self.smoothing, num_classes=self.classes)

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return each image mixed with its counterpart in the reversed batch, and the soft labels.

        Draws from numpy's global generator, as timm does.

        Args:
            images: ``(batch, channels, height, width)`` with an even batch; not changed.
            labels: ``(batch,)``.

        Returns:
            Images of the same shape, and ``(batch, classes)``.
        """
        return self._mix(images.clone(), labels)
