"""Registry methods that build networks: load, recombine, bridge and adapt components, and train from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from compatkit.components.loading import PartLoader, load
from compatkit.components.pairs import check_pair
from compatkit.errors import IncompatibleError, UsageError, type_of
from compatkit.registry.blobs import Verify
from compatkit.registry.signing.trust import Trust
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from torch import nn

    from compatkit.components.bridges.ladder import Bridge
    from compatkit.components.domains import Adapted
    from compatkit.data.dataset import DataSet, Split
    from compatkit.evaluation.conditions import Progress
    from compatkit.evaluation.recombination import Recombination
    from compatkit.plugins import RegularizerConfig
    from compatkit.training.prepare import Statistics
    from compatkit.training.task import Augment, Rest, Task
    from compatkit.training.task_state import AuxiliaryHead, ReleasedExtractor
    from compatkit.training.trainer import Trainer


class Combining:
    """Registry methods that build networks.

    Attributes:
        store: Files of the registry.
    """

    store: Store

    def load(self, reference: str, *, verify: Verify = "auto", require_signature: Trust = False) -> nn.Module:
        """Return a component's module with its weights, in eval mode, checked against its contract.

        A recombination is composed from its parts, bitwise as published, and returned as a ``Recombination``.
        Withdrawn parts are still used, with a ``WithdrawnWarning``.

        Large weights on a local disk are memory-mapped copy-on-write: training them does not change the file.

        Args:
            reference: Reference of a component, such as ``"digits/mnist.head@^1"``.
            verify: ``"auto"`` hashes the weights and runs the probe the first time, and again after a change of the
                file or a library; ``"always"`` every time; ``"never"`` trusts the disk and the libraries.
            require_signature: Required signature, as in ``open``; that of a recombination covers its parts.

        Raises:
            NotFound: The reference does not resolve.
            SignatureError: There is no valid signature; the subclass is the reason.
            IntegrityError: The bytes, or the resulting module, do not match the manifest; or a part of a
                recombination is missing or damaged.
            IncompatibleError: The parts of a recombination cannot be wired by this version's rules; carries the report.
        """
        resolved = self.store.resolve(reference)
        if self.store.manifest(resolved).kind == "recombination":
            from compatkit.components.recombinations import load_recombination

            return load_recombination(
                self.store, resolved, verify=verify, require_signature=require_signature
            )
        return load(self.store, resolved, verify=verify, require_signature=require_signature).module

    def recombine(
        self,
        extractor: str,
        head: str,
        *,
        bn_policy: str | None = None,
        data: Split | None = None,
        insert_adapters: bool = False,
        adapters: str | Sequence[str] = (),
    ) -> Recombination:
        """Combine the extractor of one network with the head of another, if their contracts allow it.

        Args:
            extractor: Reference of an extractor.
            head: Reference of a head.
            bn_policy: Batch-norm policy. ``"batch"`` uses the statistics of each batch, ``"running"`` the stored ones,
                ``"reestimate"`` estimates them on ``data``, ``"mix:16"`` mixes the estimate with the stored ones, which
                count as 16 images. None means ``"reestimate"`` (right for deployment) if ``data`` is given without
                ``insert_adapters``; else ``"running"`` if the head was trained with this extractor, or ``"batch"``, as
                ``matrix`` measures.
            data: 100 or more unlabeled images of the extractor's domain. Statistics are estimated on them, and adapters
                with weights (``project``) are fitted on them to the features of the head's own extractor. None loads
                the extractor's training images if images are needed, as ``matrix`` does.
            insert_adapters: Insert the adapters that the check names.
            adapters: References of published adapters, in forward order.

        Returns:
            The recombined network, in eval mode.

        Raises:
            IncompatibleError: The parts cannot be wired, or only with an adapter that was not requested; carries the
                report.
            UsageError: ``data`` is given, but neither the policy nor an adapter uses it.
            DataError: Images are needed but not given, and the extractor's own cannot be loaded.
        """
        from compatkit.components.images import OR_SET, fitting_images, images_again
        from compatkit.components.stitching import load_adapter, make_adapters, needs_fit, route
        from compatkit.contracts.batchnorm import estimates
        from compatkit.data.split import Split
        from compatkit.evaluation.recombination import Recombination, policy_for

        if data is not None and not isinstance(data, Split):
            raise UsageError(
                f"data= expects a Split of images, got {type_of(data)}. Pass data.train of a data set."
            )
        store, parts = self.store, PartLoader(self.store)
        left, right = (parts.component(store.resolve(reference)) for reference in (extractor, head))
        policy = policy_for(left, right, bn_policy, None if insert_adapters else data)
        report = check_pair(store, left, right, bn_policy=policy)
        references = [adapters] if isinstance(adapters, str) else adapters
        existing = [load_adapter(store, reference) for reference in references]
        fits = insert_adapters and not adapters and needs_fit(report)
        if data is None and (fits or estimates(policy)):
            remedy = f"Pass data=, unlabeled images of the extractor's domain, {OR_SET}"
            data = fitting_images(images_again(store, [left.resolved], remedy)[left.reference])
        slots = route(left, right, report, existing, insert_adapters=insert_adapters, data=data)
        inserted = make_adapters(store, slots, left, right, data)
        estimated_on = None if insert_adapters and not estimates(policy) else data
        return Recombination.of(left, right, report, bn_policy=policy, data=estimated_on, adapters=inserted)

    def task(
        self,
        name: str,
        data: DataSet | Split,
        *,
        extractor: str,
        head: str | None = None,
        supervised: bool = True,
        augment: Augment = (),
        rest: Rest | Mapping[str, Any] | None = None,
        own_head: bool = True,
        freeze_extractor: bool = False,
        freeze_stages: int = 0,
        recompute_activations: bool = False,
    ) -> Task:
        """Return a task whose network starts from components, for ``Trainer.fit``.

        Weights and running statistics are bitwise those of the components; images are preprocessed according to the
        extractor's contract. Components published from such a fit name their origin as ``initialised_from``.

        Args:
            name: Name of the task, used in component names.
            data: Training and test images; a ``Split`` if ``supervised`` is False.
            extractor: Reference of an extractor.
            head: Reference of a head, or of an auxiliary head that classifies; it must have all classes of ``data``,
                matched by name, and the labels are reordered to fit. None for a new head of the extractor's network
                for the classes of ``data``.
            supervised: Whether to train the head on the classes. If not, labels are ignored, the head is unchanged, and
                only regularizers train the extractor.
            augment: See ``Task``.
            rest: Network whose layers after the cut become the new head; see ``Task``.
            own_head: Whether the task has a head of its own; see ``Task``.
            freeze_extractor: Do not train the extractor. It is not published again; the head names the component as its
                own extractor.
            freeze_stages: Number of first stages to freeze; see ``Task``.
            recompute_activations: Whether the backward pass recomputes activations; see ``Task``.

        Raises:
            NotFound: A reference does not resolve.
            IncompatibleError: The two cannot be wired directly; carries the report.
            UsageError: A reference has another kind, or ``data`` has classes that the head does not know.
            DataError: Two classes of the data have matching names.
        """
        from compatkit.components.tasks import in_order, part_of, with_test
        from compatkit.training.task import Task

        left, right = part_of(self.store, extractor, "extractor"), None
        if head is not None:
            shared = self.store.manifest(self.store.resolve(head)).kind == "auxiliary_head"
            right = part_of(self.store, head, "auxiliary_head" if shared else "head")
            report = check_pair(self.store, left, right)
            if report.wiring != "direct":
                raise IncompatibleError(str(report), subject=report)
        images = with_test(data, supervised)
        if right is not None and supervised:
            images = in_order(images, right)
        blueprint = left.manifest.blueprint
        return Task(
            name,
            images,
            blueprint.model,
            blueprint.cut,
            builder=blueprint.builder,
            kwargs=blueprint.kwargs,
            size=left.manifest.contract.data.size,
            augment=augment,
            extractor=left,
            head=right,
            supervised=supervised,
            rest=rest,
            own_head=own_head,
            freeze_extractor=freeze_extractor,
            freeze_stages=freeze_stages,
            recompute_activations=recompute_activations,
        )

    def adapt(
        self,
        extractor: str,
        head: str,
        auxiliary: str,
        data: Split,
        *,
        trainer: Trainer | None = None,
        method: str | RegularizerConfig | None = None,
        frozen_statistics: Statistics = "stored",
        test: Split | None = None,
        augment: Augment = (),
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Adapted:
        """Adapt an extractor to unlabeled images by the loss of a frozen auxiliary head alone.

        Args:
            extractor: Reference of the source's extractor.
            head: Reference of the source's head, which stays unchanged.
            auxiliary: Reference of a self-supervised auxiliary head that the extractor was trained with.
            data: Images of the target domain; labels are ignored.
            trainer: None for the paper's settings: ``compatkit.components.domains.paper()``.
            method: Regularizer of the auxiliary head; None for that of its manifest.
            frozen_statistics: Batch-norm statistics inside the auxiliary head: ``"stored"`` or ``"batch"``.
            test: Labeled images of the target domain for measurement.
            augment: See ``Task``.
            factories: Regularizers that are not installed, by name, such as those of a notebook.

        Raises:
            NotFound: A reference does not resolve.
            IncompatibleError: The head cannot be wired directly; carries the report.
            UsageError: The extractor was not trained against that auxiliary head, a reference has another kind, or the
                method needs labels.
            DataError: There are fewer images than the batch size.
            TrainingError: A loss is not finite, or the checkpoint belongs to another run.
        """
        from compatkit.components.domains import (
            TASK,
            adapt,
            check_anchor,
            check_source,
            method_of,
            paper,
        )
        from compatkit.components.tasks import frozen_head, part_of

        task = self.task(TASK, data, extractor=extractor, head=head, supervised=False, augment=augment)
        parts = PartLoader(self.store)
        source, own = (parts.component(self.store.resolve(reference)) for reference in (extractor, head))
        check_source(check_pair(self.store, source, own))
        shared = part_of(self.store, auxiliary, "auxiliary_head")
        frozen = frozen_head(shared, shared.name.rsplit(".", 1)[-1])
        check_anchor(source, frozen, shared.reference)
        use = method_of(shared.manifest, shared.reference, method)
        return adapt(task, frozen, use, trainer or paper(), frozen_statistics, test, factories)

    def bridge(
        self,
        extractor: str,
        head: str,
        data: Split,
        *,
        labels: Split | None = None,
        test: Split | None = None,
        head_data: Split | None = None,
        rungs: Sequence[str] | None = None,
        until: float | None = 0.8,
        max_images: int = 1000,
        on: Literal["src", "dst", "mix"] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Bridge:
        """Bridge a head to an extractor that it was not trained with, trying the cheapest rung first.

        A rung is judged by agreement with the head's own network, whose batch-norm statistics are estimated on this
        domain: the share of equal predictions on held-out images, corrected for chance (Cohen's kappa). It needs no
        labels. The head's statistics are re-estimated for each rung.

        Args:
            extractor: Reference of an extractor.
            head: Reference of a head; the extractor it was trained with must be in this registry.
            data: Images of the extractor's domain; labels are ignored. Up to 500, or half of them, are held out.
            labels: Labeled images of that domain, for rungs trained with labels. One in five, and those held out of
                ``data``, are not trained on but used to choose and judge such rungs.
            test: Labeled images for measuring accuracy; they do not affect the choice.
            head_data: Images of the head's domain for pairing features; labels are ignored.
            rungs: Names of rungs of compatkit or of plugins; None for those of compatkit except ``"infomax"``, and
                except those that need ``labels`` if there are none.
            until: Agreement at which to stop if the verdict is also "fit"; None tries all rungs.
            max_images: Maximum number of images to fit on.
            on: Images on which features are paired: ``"src"`` for ``data``, ``"dst"`` for ``head_data``, ``"mix"`` for
                both. None for ``"dst"`` if ``head_data`` is given.
            seed: Seed of all random numbers.
            progress: Called with the number of rungs done, the number of rungs, and the name of the rung.

        Raises:
            IncompatibleError: The parts cannot be wired, the head's own extractor is not in this registry, or no rung
                could be built.
            DataError: There are too few images, features are constant or not finite, or no class is in common.
            UsageError: A setting is invalid.
        """
        from compatkit.components.bridges.building import bridge_pair
        from compatkit.components.bridges.inputs import BridgeRequest
        from compatkit.components.projecting import own_extractor

        request = BridgeRequest(
            data=data,
            labels=labels,
            test=test,
            head_data=head_data,
            rungs=rungs,
            until=until,
            max_images=max_images,
            on=on if on is not None else "src" if head_data is None else "dst",
            seed=seed,
            progress=progress,
        )
        parts = PartLoader(self.store)
        left, right = (parts.component(self.store.resolve(reference)) for reference in (extractor, head))
        report = check_pair(self.store, left, right)
        return bridge_pair(left, right, lambda: own_extractor(self.store, right), report, request)

    def frozen(
        self,
        heads: str | Sequence[str] = (),
        *,
        head: str | None = None,
        extractor: str | None = None,
    ) -> dict[str, AuxiliaryHead | ReleasedExtractor]:
        """Return released parts to train against, for ``Trainer.fit(..., frozen=...)``.

        Args:
            heads: Auxiliary heads to train new parts against: pattern, or patterns.
            head: Reference of a released head to stay compatible with, for ``backward_compatibility``.
            extractor: Reference of a released extractor, for the forward term of ``backward_compatibility`` and for
                ``feature_distillation``.

        Raises:
            NotFound: A reference does not resolve, or a pattern matches nothing.
            UsageError: A component has another kind, or the classes of ``head`` have no names.
            IntegrityError: A part is damaged.
        """
        from compatkit.components.tasks import frozen_head, part_of
        from compatkit.training.task_state import EXTRACTOR, HEAD, ReleasedExtractor

        frozen: dict[str, AuxiliaryHead | ReleasedExtractor] = {}
        for reference in self.store.select(heads, "auxiliary_head") if heads else ():
            shared = load(self.store, reference)
            name = shared.name.rsplit(".", 1)[-1]
            if name in frozen:
                patterns = heads if isinstance(heads, str) else ", ".join(heads)
                raise UsageError(
                    f"{patterns} matches several heads {name!r}, such as {shared.reference}; a run takes one."
                )
            frozen[name] = frozen_head(shared, name)
        if head is not None:
            target = part_of(self.store, head, "head")
            if not target.labels:
                raise UsageError(
                    f"The outputs of {target.reference} have no class names to match images by. Publish it with "
                    "labels (compatkit split --labels).",
                    subject=target.reference,
                )
            frozen[HEAD] = frozen_head(target, HEAD)
        if extractor is not None:
            released = part_of(self.store, extractor, "extractor")
            manifest = released.manifest
            frozen[EXTRACTOR] = ReleasedExtractor(
                manifest.blueprint,
                released.module,
                manifest.contract.data,
                manifest.payload.tensors,
                released.reference,
            )
        return frozen
