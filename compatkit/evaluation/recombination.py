"""Recombined networks: an extractor, adapters, another network's head, and a batch-norm policy."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.contracts.batchnorm import DEFAULT, check_policy, estimates, stored_share
from compatkit.contracts.contract import Contract, Protocol, Structural
from compatkit.contracts.report import Finding
from compatkit.contracts.stitch import FITTED
from compatkit.errors import IncompatibleError, UsageError
from compatkit.evaluation.adapter import ADAPTS, TARGETS, Adapter
from compatkit.evaluation.assembly import Assembly
from compatkit.evaluation.batchnorm import has_batch_norm, norm_layers, reestimate

if TYPE_CHECKING:
    from compatkit.contracts.check import Report
    from compatkit.data.dataset import Split
    from compatkit.evaluation.component import Component


@attrs.frozen
class Estimate:
    """Estimated statistics of batch normalization.

    Attributes:
        tensors: Statistics by name in the recombination, such as ``"head.bn.running_mean"``.
        facts: Origin as JSON values: ``data`` (name, digest, number of ``images``), ``batch_size`` and ``seed``.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


class Recombination(Assembly):
    """A plain module that maps normalized images ``(batch, channels, height, width)`` to logits.

    Attributes:
        extractor: Produces features.
        adapters: Applied between the two; often empty.
        head: Consumes features.
        inserted: The adapters with their ports and what they were fitted on.
        contract: Contract of the network: the extractor's preprocessing, the head's classes, normalization and anchors
            of both parts, and the blueprints of the adapters in order.
        report: Check of the two parts, with findings on this recombination.
        bn_policy: Batch-norm policy. Under ``"batch"``, batch normalization in eval mode uses the statistics of
            the current batch and writes no buffer, so an image's logits depend on its batch. Under all others, the
            statistics are stored in the module.
        data: Preprocessing to use: that of the extractor.
        labels: Classes in the order of the logits; empty if the head names none.
        sources: The components of extractor and head, without module and registry.
        estimated: Origin of estimated statistics; empty if there are none.
    """

    extractor: nn.Module
    head: nn.Module

    def __init__(
        self,
        extractor: nn.Module,
        head: nn.Module,
        *,
        report: Report,
        contract: Contract,
        sources: tuple[Component, Component],
        adapters: Sequence[Adapter] = (),
        bn_policy: str = "running",
        estimated: Mapping[str, Any] | None = None,
    ) -> None:
        modules = [adapter.module for adapter in adapters]
        super().__init__(extractor, head, contract=contract, adapters=modules, bn_policy=bn_policy)
        self.inserted = tuple(adapters)
        self.report = report
        self.sources = sources
        self.estimated = dict(estimated or {})

    @classmethod
    def of(
        cls,
        extractor: Component,
        head: Component,
        report: Report,
        *,
        bn_policy: str | None = None,
        data: Split | None = None,
        statistics: Estimate | None = None,
        adapters: Sequence[Adapter] = (),
        batch_size: int = 256,
        seed: int = 0,
    ) -> Recombination:
        """Combine two parts in eval mode.

        Args:
            extractor: Its module is shared, or copied if statistics are estimated.
            head: The same.
            report: Check of the two.
            bn_policy: Batch-norm policy; None for ``"reestimate"`` if data are given, stored statistics if the
                head was trained with this extractor, else ``"batch"``, as in a matrix.
            data: Unlabeled images for ``"reestimate"`` and ``"mix:N"``.
            statistics: An earlier estimate, instead of ``data``.
            adapters: Adapters, if the wiring needs them.
            batch_size: Largest batch of the estimate.
            seed: Seed of the order of the images of the estimate.

        Raises:
            IncompatibleError: The parts cannot be wired, or need an adapter and none is given; carries the report.
            UsageError: The policy is unknown, needs images that are missing or takes none, or the statistics belong
                to other parts.
        """
        own = head.trained_with == extractor.digest
        policy = policy_for(extractor, head, bn_policy, data)
        if report.wiring == "refused" or (report.wiring == "needs-adapter" and not adapters):
            raise IncompatibleError(str(report), subject=report)
        if estimates(policy) != (data is not None or statistics is not None):
            raise UsageError(
                f"bn_policy={policy!r} needs data=, unlabeled images of the extractor's data set."
                if data is None
                else f"bn_policy={policy!r} takes no data=; leave it out. Only 'reestimate' and 'mix:N' take it."
            )
        parts = [extractor.module, head.module]
        if estimates(policy):
            parts = [copy.deepcopy(module) for module in parts]
        notes = [_inserted(adapter, extractor, head) for adapter in adapters]
        notes += _notes(policy, has_batch_norm(*parts, *(adapter.module for adapter in adapters)), own)
        network = cls(
            *parts,
            report=report.with_findings(notes),
            contract=joined_contract(extractor.manifest.contract, head.manifest.contract, adapters),
            sources=(_without_module(extractor), _without_module(head)),
            adapters=adapters,
            bn_policy=policy,
            estimated=None if statistics is None else statistics.facts,
        ).eval()
        if statistics is not None:
            network.restore(statistics.tensors)
        elif data is not None:
            share = stored_share(policy, len(data))
            reestimate(network, network.normalized_batches(data, batch_size, seed), share)
            images = {"name": data.name, "digest": data.digest, "images": len(data)}
            network.estimated = {"data": images, "batch_size": batch_size, "seed": seed}
        return network

    @property
    def statistics(self) -> dict[str, Tensor]:
        """The stored statistics of batch normalization, by name, such as ``"head.bn.running_mean"``."""
        layers = {id(layer) for layer in norm_layers(self)}
        return {
            f"{path}.{name}": value
            for path, module in self.named_modules()
            if id(module) in layers
            for name, value in module.named_buffers(recurse=False)
        }

    def restore(self, statistics: Mapping[str, Tensor]) -> None:
        """Load all statistics, as returned by ``statistics``.

        Raises:
            UsageError: Names, shapes or dtypes do not match; nothing is changed.
        """
        own = self.statistics
        other = sorted(own.keys() ^ statistics.keys()) or [
            name
            for name, value in own.items()
            if (value.shape, value.dtype) != (statistics[name].shape, statistics[name].dtype)
        ]
        if other:
            raise UsageError(
                f"The statistics do not match this recombination: {', '.join(other[:3])}. Use those of the same parts.",
                subject=other,
            )
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(statistics[name])

    def extra_repr(self) -> str:
        """Return how it was composed, for ``repr``."""
        between = "".join(f"\n{adapter}" for adapter in self.inserted)
        return f"bn_policy={self.bn_policy!r}, {self.report.word}{between}"


def policy_for(extractor: Component, head: Component, stated: str | None, images: Split | None) -> str:
    """Return the batch-norm policy of a recombination; see ``Recombination.of`` for what None means.

    Args:
        extractor: The extractor.
        head: The head.
        stated: Value given by the user, or None.
        images: Unlabeled images to estimate statistics on, or None.

    Raises:
        UsageError: The policy is unknown.
    """
    if stated is not None:
        return check_policy(stated)
    if images is not None:
        return "reestimate"
    return "running" if head.trained_with == extractor.digest else DEFAULT


def _without_module(part: Component) -> Component:
    """Return a component without its module and registry; the network may hold a copy of the module."""
    return attrs.evolve(part, registry=None, module=None)


def joined_contract(extractor: Contract, head: Contract, adapters: Sequence[Adapter]) -> Contract:
    """Return the contract of the complete network.

    Args:
        extractor: Contract of the extractor.
        head: Contract of the head.
        adapters: Adapters between the two, in order.
    """
    sides = extractor.protocol, head.protocol
    anchors = dict.fromkeys(anchor for side in sides for anchor in side.anchors)
    return Contract(
        Structural(extractor.structural.inputs, head.structural.outputs),
        attrs.evolve(extractor.data, labels=head.data.labels),
        Protocol("batch" if any(protocol.norm == "batch" for protocol in sides) else "none", tuple(anchors)),
        adapters=tuple(adapter.blueprint for adapter in adapters),
    )


def _inserted(adapter: Adapter, extractor: Component, head: Component) -> Finding:
    """Return the finding for an adapter; a warning if it was fitted for other parts."""
    made_for = (adapter.parent(ADAPTS), adapter.parent(TARGETS))
    others = adapter.blueprint.model in FITTED and made_for != (extractor.digest, head.trained_with)
    return Finding(
        "adapter-inserted",
        "structural",
        "warns" if others else "informs",
        "an adapter fitted for this extractor and this head" if others else "features that the head takes",
        f"{adapter}, fitted for other parts" if others else str(adapter),
        "extractor and head",
        "fit it for these parts: insert_adapters=True with data=" if others else "",
    )


def _notes(policy: str, matters: bool, own: bool) -> list[Finding]:
    """Return the findings that the policy adds to the report."""
    if matters and (policy != "running" or own):
        return []
    remedy = "bn_policy='batch', or 'reestimate' with data="
    texts = (
        ("statistics of these features", "stored ones", "recombined parts", remedy)
        if matters
        else ("no policy", f"{policy!r}, which changes nothing", "no batch normalization", "")
    )
    return [Finding("normalization-needed", "protocol", "warns" if matters else "informs", *texts)]
