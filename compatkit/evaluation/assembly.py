"""Networks of an extractor, adapters and a head, with a contract for the complete network."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor, nn

from compatkit.contracts.batchnorm import check_policy
from compatkit.data.damaged import check_damaged
from compatkit.data.split import Split
from compatkit.errors import DamagedImage, UsageError
from compatkit.evaluation.batchnorm import batch_statistics, batches, evaluation_mode, has_batch_norm
from compatkit.evaluation.inputs import Unread, unread
from compatkit.evaluation.predictions import Predictions
from compatkit.evaluation.preprocessing import fitted, normalize, prepare
from compatkit.foundation.bars import bar

if TYPE_CHECKING:
    from compatkit.contracts.contract import Contract
    from compatkit.evaluation.inputs import ImageInputs


_ALONE = (
    "Batch normalization takes the statistics of a single image here, so the prediction is unreliable. Call it on "
    "batches, or recombine with data= (100 or more unlabeled images) to store statistics."
)
_TOGETHER = (
    "Batch normalization takes the statistics of the batch here, so predictions depend on the other images; if all "
    "are of one class, they are about chance. Recombine with data= (100 or more unlabeled images of all classes)."
)


class BatchStatisticsWarning(UserWarning):
    """Warns that a network under the policy ``"batch"`` was called on a single image, or is to predict classes."""


class Assembly(nn.Module):
    """A plain module that applies an extractor, adapters and a head, or some of them, in turn.

    Attributes:
        extractor: Produces features, or None.
        adapters: Applied after the extractor; often empty.
        head: Consumes features, or None.
        contract: Ports of the network, preprocessing and classes.
        bn_policy: Batch-norm policy. Under ``"batch"``, batch normalization in eval mode uses the statistics of
            the current batch and writes no buffer, so an image's logits depend on its batch. Under all others, the
            statistics are stored in the module.
        data: Preprocessing of the images.
        labels: Classes in the order of the logits; empty if unnamed.
    """

    def __init__(
        self,
        extractor: nn.Module | None,
        head: nn.Module | None,
        *,
        contract: Contract,
        adapters: Sequence[nn.Module] = (),
        bn_policy: str = "running",
    ) -> None:
        super().__init__()
        self.extractor = extractor
        self.adapters = nn.ModuleList(adapters)
        self.head = head
        self.contract = contract
        self.bn_policy = check_policy(bn_policy)
        self.data = attrs.evolve(contract.data, labels=None)
        self.labels = contract.data.labels or ()

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(batch, outputs)`` for normalized images ``(batch, channels, height, width)``.

        Without an extractor the input is features, without a head the output is: see the contract's ports.
        """
        if self.bn_policy != "batch" or self.training:
            return self.through(images)
        if images.shape[0] == 1 and has_batch_norm(self):
            warnings.warn(_ALONE, BatchStatisticsWarning, stacklevel=2)
        with batch_statistics(self, others="keep"):
            return self.through(images)

    def through(self, images: Tensor) -> Tensor:
        """Return ``forward`` computed with the statistics stored in the module.

        Returns:
            As ``forward``.
        """
        values = images
        for module in (self.extractor, *self.adapters, self.head):
            if module is not None:
                values = module(values)
        return values

    def predict(self, images: ImageInputs, *, batch_size: int = 256, damaged: str = "refuse") -> Predictions:
        """Return class and probability of each image, computed in eval mode; the module is left unchanged.

        Under the policy ``"batch"`` a prediction depends on the rest of the batch, which causes a
        ``BatchStatisticsWarning``: on images of one class alone it is about chance.

        Args:
            images: As for ``preprocess``; the images of a folder are read a batch at a time.
            batch_size: Largest batch, in the given order; matters under ``"batch"``.
            damaged: ``"refuse"`` raises at the first image that cannot be decoded; ``"skip"`` leaves such images out of
                their batches and says of each why: ``Predictions.damaged``.

        Returns:
            One prediction per image, in the given order.

        Raises:
            UsageError: The network has no extractor or no head.
            DataError: An input is not an image.
            EnvironmentFailure: A file cannot be read.
        """
        if self.extractor is None or self.head is None:
            lacking = "extractor" if self.extractor is None else "head"
            raise UsageError(f"Predicting classes needs a complete network; this one has no {lacking}.")
        skipped: dict[int, str] | None = {} if check_damaged(damaged) == "skip" else None
        if self.bn_policy == "batch" and has_batch_norm(self):
            warnings.warn(_TOGETHER, BatchStatisticsWarning, stacklevel=2)
        files = list[str]()
        parts = self._parts(images, batch_size, skipped, files)
        probabilities, done = list[Tensor](), 0
        with evaluation_mode(self), torch.no_grad(), warnings.catch_warnings(), bar() as progress:
            warnings.simplefilter("ignore", BatchStatisticsWarning)  # raised above
            for some in parts:
                done += len(some)
                logits = self(normalize(some, self.data, device=self._device))
                probabilities.append(logits.to(torch.float32).softmax(dim=1).cpu())
                progress(done, len(files), "predicting")
        shares = torch.cat(probabilities) if probabilities else torch.zeros(0, len(self.labels))
        names = [label.name for label in self.labels] or map(str, range(shares.shape[1]))
        reasons = skipped or {}
        return Predictions(_with_gaps(shares, reasons), tuple(names), tuple(files), reasons)

    def preprocess(self, images: ImageInputs) -> Tensor:
        """Return images as this network takes them: ``model(model.preprocess("cat.png"))`` gives logits.

        Channels, size, crop and normalization follow the contract (``data``).

        Args:
            images: A file, a folder, a PIL image, a numpy array with channels last or a tensor with channels first, of
                one image or many (uint8, or floats from 0 to 1); a ``Split``; or a list of these, of any sizes.

        Returns:
            float32 ``(n, channels, height, width)`` on the network's device.

        Raises:
            UsageError: The network takes features, not images.
            DataError: An input is not an image.
            EnvironmentFailure: A file cannot be read.
        """
        if self.extractor is None:
            raise UsageError("This network has no extractor: it takes features, not images.")
        return normalize(self._read(unread(images), 0, None), self.data, device=self._device)

    def _parts(
        self, images: ImageInputs, batch_size: int, skipped: dict[int, str] | None, files: list[str]
    ) -> Iterator[Tensor]:
        """Yield images with the contract's channels and size in batches; those in files are read a batch at a time.

        Args:
            images: As for ``preprocess``.
            batch_size: Largest batch.
            skipped: Gets the position of each image that cannot be decoded and why; None raises instead.
            files: Gets the file of each image, where all have one.
        """
        if isinstance(images, Split) and (skipped is None or not images.lazy):
            files[:] = map(images.name_of, range(len(images))) if images.lazy else []
            examples = prepare(images, self.data)
            if len(examples):
                yield from examples.each(batches(len(examples), batch_size, None))
            return
        readers = unread(images)
        if all(name for name, _ in readers):
            files[:] = [name for name, _ in readers]
            for part in batches(len(readers), batch_size, None):
                first = int(part[0])
                some = self._read(readers[first : first + len(part)], first, skipped)
                if len(some):
                    yield some
        elif len(planes := self._read(readers, 0, skipped)):
            yield from (planes[part] for part in batches(len(planes), batch_size, None))

    def _read(self, readers: Sequence[Unread], first: int, skipped: dict[int, str] | None) -> Tensor:
        """Return the images of ``readers`` from position ``first`` on, uint8 ``(n, channels, height, width)``."""
        planes, position = list[Tensor](), first
        for _, read in readers:
            try:
                planes.append(fitted(read(), self.data))
            except DamagedImage as error:
                if skipped is None:
                    raise
                skipped[position] = error.reason
            position += 1 if position in (skipped or {}) else len(planes[-1])
        return torch.cat(planes) if planes else torch.zeros(0, dtype=torch.uint8)

    @property
    def _device(self) -> torch.device:
        return next((tensor.device for tensor in (*self.parameters(), *self.buffers())), torch.device("cpu"))

    def normalized_batches(self, split: Split, batch_size: int, seed: int | None) -> Iterator[Tensor]:
        """Yield normalized batches on the module's device; in the given order if ``seed`` is None.

        Args:
            split: Images; brought to the size and channels of the contract.
            batch_size: Images of a batch.
            seed: Seed of a random order.

        Yields:
            ``(n, channels, height, width)`` with n at most ``batch_size``.
        """
        examples = prepare(split, self.data)
        for images in examples.each(batches(len(examples), batch_size, seed)):
            yield normalize(images, self.data, device=self._device)


def _with_gaps(rows: Tensor, gaps: Collection[int]) -> Tensor:
    """Return rows with one of NaN at each position of ``gaps``, float32 ``(n, classes)``."""
    if not gaps:
        return rows
    filled = torch.full((len(rows) + len(gaps), rows.shape[1]), torch.nan)
    filled[[position not in gaps for position in range(len(filled))]] = rows
    return filled
