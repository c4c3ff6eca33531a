"""Images of a batch mixed in pairs, and their labels: mixup and CutMix, by timm."""

from __future__ import annotations

import attrs
from timm.data.mixup import Mixup
from torch import Tensor


@attrs.frozen
class Mixing:
    """What is drawn for a batch: one share, and mixup or CutMix by an even chance where both are asked for.

    Attributes:
        mixup: Parameter of the beta distribution of the share; 0 does not mix so.
        cutmix: The same for the area of a rectangle.
        smoothing: Of the labels.
        classes: Count of them.
    """

    mixup: float
    cutmix: float
    smoothing: float
    classes: int

    def __call__(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return each image mixed with the one as far from the end of the batch, and the shares of its classes.

        Draws from numpy's global generator, as timm does.

        Args:
            images: ``(batch, channels, height, width)``, an even count; they are not changed.
            labels: ``(batch,)``.

        Returns:
            Images of the same shape, and ``(batch, classes)``.
        """
        mix = Mixup(self.mixup, self.cutmix, label_smoothing=self.smoothing, num_classes=self.classes)
        return mix(images.clone(), labels)
