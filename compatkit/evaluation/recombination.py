"""A recombined network: the extractor of one, the head of another, the adapters between, and a policy."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from compatkit.adaptation import FITTED
from compatkit.compatibility import Report
from compatkit.contract import Contract, Protocol, Structural
from compatkit.data.dataset import Split
from compatkit.errors import IncompatibleError, UsageError
from compatkit.evaluation.adapter import ADAPTS, TARGETS, Adapter
from compatkit.evaluation.normalisation import (
    Policy,
    batch_statistics,
    batches,
    check_policy,
    evaluation_mode,
    normalised,
    reestimate,
)
from compatkit.evaluation.preprocessing import normalise, prepare
from compatkit.verdict import Finding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from compatkit.evaluation.matrix import LoadedPart


class Recombination(nn.Module):
    """A plain module: call it on normalised images ``(batch, channels, height, width)``, get logits.

    Attributes:
        extractor: Gives features.
        adapters: Applied in turn between the two; often empty.
        head: Takes features.
        inserted: The adapters with what they take and give, and what they were fitted on.
        contract: Ports of the whole, the extractor's preprocessing with the head's classes, what either part asks
            of normalisation and was trained against, and the adapters' blueprints in order.
        report: What the check said of the two parts as they are, with what this recombination adds to it.
        normalisation: ``"running"`` and ``"reestimate"``: statistics are stored in the module. ``"batch"``:
            in eval mode batch normalisation uses the statistics of the batch it is called on and writes no
            buffer, so that an image's logits depend on its batch.
        data: Preprocessing of the extractor, which is the one to use.
        labels: Classes in the order of the logits; empty where the head names none.
    """

    def __init__(
        self,
        extractor: nn.Module,
        head: nn.Module,
        *,
        report: Report,
        contract: Contract,
        adapters: Sequence[Adapter] = (),
        normalisation: str = "running",
    ) -> None:
        super().__init__()
        self.extractor = extractor
        self.adapters = nn.ModuleList(one.module for one in adapters)
        self.head = head
        self.inserted = tuple(adapters)
        self.contract = contract
        self.report = report
        self.normalisation: Policy = check_policy(normalisation)
        self.data = attrs.evolve(contract.data, labels=None)
        self.labels = contract.data.labels or ()

    @classmethod
    def of(
        cls,
        extractor: LoadedPart,
        head: LoadedPart,
        report: Report,
        *,
        normalisation: str = "running",
        images: Split | None = None,
        adapters: Sequence[Adapter] = (),
        batch_size: int = 256,
        seed: int = 0,
    ) -> Recombination:
        """Put two parts together, in eval mode.

        Args:
            extractor: Its module is used as it is, under ``"reestimate"`` a copy of it.
            head: The same.
            report: What the check said of the two.
            normalisation: Policy.
            images: Unlabelled images for ``"reestimate"``.
            adapters: What makes the features fit, where the wiring needs it.
            batch_size: Largest batch of the estimate.
            seed: Of the order of the images of the estimate.

        Raises:
            IncompatibleError: The parts cannot be wired, or need an adapter and none is given; carries the
                report.
            UsageError: An unknown policy, ``"reestimate"`` without images, or images without it.
        """
        policy = check_policy(normalisation)
        if report.wiring == "refused" or (report.wiring == "needs-adapter" and not adapters):
            raise IncompatibleError(str(report), subject=report)
        if (policy == "reestimate") != (images is not None):
            raise UsageError(
                "normalisation='reestimate' needs images= (unlabelled images of the extractor's own data)."
                if images is None
                else f"images= are for normalisation='reestimate' only, not for {policy!r}; leave them out."
            )
        parts = [extractor.module, head.module]
        if policy == "reestimate":
            parts = [copy.deepcopy(module) for module in parts]
        own = head.trained_with == extractor.digest
        notes = [_inserted(one, extractor, head) for one in adapters]
        notes += _notes(policy, normalised(*parts, *(one.module for one in adapters)), own)
        made = cls(
            *parts,
            report=report.with_findings(notes),
            contract=_contract(extractor.manifest.contract, head.manifest.contract, adapters),
            adapters=adapters,
            normalisation=policy,
        ).eval()
        if images is not None:
            reestimate(made, made._batches(images, batch_size, seed))
        return made

    def forward(self, images: Tensor) -> Tensor:
        """Return logits ``(batch, outputs)`` for normalised images ``(batch, channels, height, width)``."""
        if self.normalisation != "batch" or self.training:
            return self._through(images)
        with batch_statistics(self, others="keep"):
            return self._through(images)

    def predict(self, images: NDArray[np.uint8] | Split, *, batch_size: int = 256) -> Tensor:
        """Return the most likely class of each image, as positions in ``labels``, int64 ``(n,)``.

        Args:
            images: uint8 ``(n, height, width, channels)`` of any size; preprocessed as the extractor asks.
            batch_size: Largest batch, in the order given; matters under ``"batch"``.
        """
        split = images if isinstance(images, Split) else _unlabelled(images)
        found: list[Tensor] = []
        with evaluation_mode(self), torch.no_grad():
            for batch in self._batches(split, batch_size, None):
                found.append(self(batch).argmax(dim=1).cpu())
        return torch.cat(found)

    def extra_repr(self) -> str:
        """Say how it was put together."""
        between = "".join(f"\n{one}" for one in self.inserted)
        return f"normalisation={self.normalisation!r}, {self.report.word}{between}"

    def _through(self, images: Tensor) -> Tensor:
        features = self.extractor(images)
        for adapter in self.adapters:
            features = adapter(features)
        return self.head(features)

    def _batches(self, split: Split, batch_size: int, seed: int | None) -> Iterator[Tensor]:
        """Yield normalised batches on the module's device; in the order given where ``seed`` is None."""
        device = next((one.device for one in (*self.parameters(), *self.buffers())), torch.device("cpu"))
        examples = prepare(split, self.data)
        parts = batches(len(examples), batch_size, seed)
        for positions in parts:
            yield normalise(examples.images[positions], self.data, device=device)


def _contract(extractor: Contract, head: Contract, adapters: Sequence[Adapter]) -> Contract:
    """Return what the whole takes, gives and asks for."""
    sides = extractor.protocol, head.protocol
    anchors = dict.fromkeys(one for side in sides for one in side.anchors)
    return Contract(
        Structural(extractor.structural.inputs, head.structural.outputs),
        attrs.evolve(extractor.data, labels=head.data.labels),
        Protocol("batch" if any(one.normalisation == "batch" for one in sides) else "none", tuple(anchors)),
        adapters=tuple(one.blueprint for one in adapters),
    )


def _inserted(adapter: Adapter, extractor: LoadedPart, head: LoadedPart) -> Finding:
    """Name an adapter; one that was fitted for other parts is warned of."""
    made_for = (adapter.parent(ADAPTS), adapter.parent(TARGETS))
    others = adapter.blueprint.model in FITTED and made_for != (extractor.digest, head.trained_with)
    return Finding(
        "adapter-inserted",
        "structural",
        "warns" if others else "informs",
        "an adapter fitted for this extractor and this head" if others else "features that the head takes",
        f"{adapter}, fitted for other parts" if others else str(adapter),
        "between extractor and head",
        "fit it for these parts: adapt=True with data=" if others else "",
    )


def _notes(policy: Policy, matters: bool, own: bool) -> list[Finding]:
    """What the choice of a policy adds to the report."""
    if not matters:
        return [
            _normalisation(
                "informs", "no policy", f"{policy!r}, which changes nothing", "no batch normalisation"
            )
        ]
    if policy == "running" and not own:
        remedy = "normalisation='batch', or 'reestimate' with images="
        return [
            _normalisation("warns", "statistics of these features", "stored ones", "recombined parts", remedy)
        ]
    return []


def _normalisation(severity: Any, expected: str, came: str, whose: str, remedy: str = "") -> Finding:
    return Finding("normalisation-needed", "protocol", severity, expected, came, whose, remedy)


def _unlabelled(images: NDArray[np.uint8]) -> Split:
    return Split(images, np.zeros(len(images), dtype=np.int64), ("unknown",), "images")
