"""The statistical level: mean and standard deviation of each feature channel, in one pass over images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compatkit.contracts.channels import channel_bytes
from compatkit.contracts.contract import Data, FeatureStatistics, Port
from compatkit.errors import CutError, IntegrityError
from compatkit.evaluation.batchnorm import evaluation_mode
from compatkit.evaluation.conditions import Conditions
from compatkit.evaluation.extractor_pass import precision_context
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.foundation.codec import digest

if TYPE_CHECKING:
    from compatkit.data.dataset import Split

SAMPLES = 5000
"""Default number of images."""

Floats = NDArray[np.float64]


@attrs.frozen(eq=False)
class Moments:
    """Count, mean and sum of squared deviations of each channel of one port, in float64.

    Attributes:
        images: Number of images.
        count: Number of values per channel.
        mean: ``(C,)``.
        squares: Sum of squared deviations from the mean, ``(C,)``.
        fixed: Whether all images have the same width, so that channels correspond.
    """

    images: int
    count: int
    mean: Floats
    squares: Floats
    fixed: bool = True

    @classmethod
    def of(cls, features: Tensor, port: Port, images: int) -> Moments:
        """Return the moments of one batch of features in the layout of ``port``.

        Args:
            features: Batch first.
            port: Says which axis holds the channels.
            images: How many the batch holds.

        Returns:
            float64 on the CPU, one number a channel.

        Raises:
            IntegrityError: The features are not finite.
        """
        axis = 1 if port.layout in ("NCHW", "NC") else -1
        values = features.detach().to("cpu", torch.float64).movedim(axis, -1)
        flat = values.reshape(-1, values.shape[-1])
        mean = flat.mean(dim=0)
        squares = (flat - mean).square().sum(dim=0)
        if not bool(torch.isfinite(squares).all()):
            raise IntegrityError(
                f"The features at {port.name!r} are not finite on training images, so the component is not published. "
                "Train again with a lower learning rate or in float32."
            )
        return cls(images, len(flat), mean.numpy(), squares.numpy(), isinstance(port.channels, int))

    def merged(self, other: Moments) -> Moments:
        """Return the moments of both together (Chan, Golub and LeVeque 1979).

        Args:
            other: Moments of other images, at the same port.

        Returns:
            New moments; neither operand changes.
        """
        count = self.count + other.count
        shift = other.mean - self.mean
        mean = self.mean + shift * (other.count / count)
        squares = self.squares + other.squares + shift**2 * (self.count * other.count / count)
        return Moments(self.images + other.images, count, mean, squares, self.fixed and other.fixed)

    @property
    def blob(self) -> bytes | None:
        """Blob for ``per_channel``; None if the width is not fixed."""
        return channel_bytes(self.mean, np.sqrt(self.squares / self.count)) if self.fixed else None

    def statistics(self) -> FeatureStatistics:
        """Return the statistics for a contract; the blob must be stored separately."""
        mean = float(self.mean.mean())
        variance = float((self.squares / self.count + (self.mean - mean) ** 2).mean())
        blob = self.blob
        edge: dict[str, Any] | None = None if blob is None else {"blob": digest(blob), "bytes": len(blob)}
        return FeatureStatistics(mean, variance**0.5, self.images, edge)


def feature_moments(
    extractor: nn.Module,
    ports: Sequence[Port],
    split: Split,
    data: Data,
    *,
    samples: int = SAMPLES,
    batch_size: int = 64,
) -> tuple[Moments, ...]:
    """Run images through an extractor in eval mode with stored statistics; return the moments of each port.

    The images are evenly spaced over the split, at indices ``i * len(split) // n`` for i from 0 to n - 1, so that sets
    sorted by class are covered and the choice is reproducible. They are prepared batch by batch to bound memory.

    Args:
        extractor: Runs on its present device; mode and buffers are restored.
        ports: Its output ports.
        split: Training images.
        data: Preprocessing.
        samples: Largest number of images.
        batch_size: Images per batch; affects results only by rounding.

    Returns:
        One for each port.

    Raises:
        CutError: The number of output tensors differs from that of the ports.
        IntegrityError: The features are not finite.
    """
    device = next((tensor.device for tensor in extractor.state_dict().values()), torch.device("cpu"))
    count = min(samples, len(split))
    positions = np.arange(count) * len(split) // count
    total: list[Moments] = []
    with evaluation_mode(extractor), torch.no_grad(), precision_context(Conditions(device=str(device))):
        for start in range(0, count, batch_size):
            chosen = split.take(positions[start : start + batch_size])
            images = normalize(prepare(chosen, data).images, data, device=device)
            out = extractor(images)
            features = tuple(out) if isinstance(out, tuple | list) else (out,)
            if len(features) != len(ports):
                raise CutError(f"Expected {len(ports)} feature tensors, one per port; got {len(features)}.")
            pairs = zip(features, ports, strict=True)
            moments = [Moments.of(tensor, port, len(chosen)) for tensor, port in pairs]
            total = [a.merged(b) for a, b in zip(total, moments, strict=True)] if total else moments
    return tuple(total)
