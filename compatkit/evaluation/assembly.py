"""Modules in a row with the contract of the whole: from images, or features, to what comes out at the end."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from compatkit.batchnorm import check_policy
from compatkit.contract import Contract
from compatkit.data.dataset import Split
from compatkit.errors import UsageError
from compatkit.evaluation.normalisation import batch_statistics, batches, evaluation_mode, normalised
from compatkit.evaluation.preprocessing import normalise, prepare

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ALONE = (
    "Batch normalisation takes the statistics of a single image here, which tells little of its class. Call it on "
    "batches, or recombine with images= (100 or more, unlabelled), whose statistics the network keeps."
)


class BatchStatisticsWarning(UserWarning):
    """A network under the policy ``"batch"`` was called on one image."""


class Assembly(nn.Module):
    """A plain module: an extractor, adapters, a head, or what there is of them, applied in turn.

    Attributes:
        extractor: Gives features; None where there is none.
        adapters: Applied in turn behind it; often empty.
        head: Takes features; None where there is none.
        contract: Ports of the whole, preprocessing and classes.
        normalisation: ``"batch"``:
            in eval mode batch normalisation uses the statistics of the batch it is called on and writes no
            buffer, so that an image's logits depend on its batch. Else statistics are stored in the module.
        data: Preprocessing of the images.
        labels: Classes in the order of the logits; empty where none are named.
    """

    def __init__(
        self,
        extractor: nn.Module | None,
        head: nn.Module | None,
        *,
        contract: Contract,
        adapters: Sequence[nn.Module] = (),
        normalisation: str = "running",
    ) -> None:
        super().__init__()
        self.extractor = extractor
        self.adapters = nn.ModuleList(adapters)
        self.head = head
        self.contract = contract
        self.normalisation = check_policy(normalisation)
        self.data = attrs.evolve(contract.data, labels=None)
        self.labels = contract.data.labels or ()

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(batch, outputs)`` for normalised images ``(batch, channels, height, width)``.

        Without an extractor features come in, without a head features go out: as the contract's ports say.
        """
        if self.normalisation != "batch" or self.training:
            return self.through(images)
        if len(images) == 1 and normalised(self):
            warnings.warn(_ALONE, BatchStatisticsWarning, stacklevel=2)
        with batch_statistics(self, others="keep"):
            return self.through(images)

    def through(self, images: Tensor) -> Tensor:
        """Return what ``forward`` does, with the statistics that are stored in the module."""
        values = images
        for module in (self.extractor, *self.adapters, self.head):
            if module is not None:
                values = module(values)
        return values

    def predict(self, images: NDArray[np.uint8] | Split, *, batch_size: int = 256) -> Tensor:
        """Return the most likely class of each image, as positions in ``labels``, int64 ``(n,)``.

        Args:
            images: uint8 ``(n, height, width, channels)`` of any size; preprocessed as the contract says.
            batch_size: Largest batch, in the order given; matters under ``"batch"``.

        Raises:
            UsageError: It takes no images, or gives no logits.
        """
        if self.extractor is None or self.head is None:
            lacking = "an extractor" if self.extractor is None else "a head"
            raise UsageError(f"Classes are predicted by a whole network; this one is without {lacking}.")
        split = images if isinstance(images, Split) else _unlabelled(images)
        found: list[Tensor] = []
        with evaluation_mode(self), torch.no_grad():
            for batch in self.normalised_batches(split, batch_size, None):
                found.append(self(batch).argmax(dim=1).cpu())
        return torch.cat(found)

    def normalised_batches(self, split: Split, batch_size: int, seed: int | None) -> Iterator[Tensor]:
        """Yield normalised batches on the module's device; in the order given where ``seed`` is None."""
        device = next((one.device for one in (*self.parameters(), *self.buffers())), torch.device("cpu"))
        examples = prepare(split, self.data)
        for positions in batches(len(examples), batch_size, seed):
            yield normalise(examples.images[positions], self.data, device=device)


def _unlabelled(images: NDArray[np.uint8]) -> Split:
    return Split(images, np.zeros(len(images), dtype=np.int64), ("unknown",), "images")
