"""The public registry: signatures and documentation; implementations are in the modules that it calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import attrs

from compatkit.components.bridges.published import Bridges
from compatkit.components.loading import PartLoader, load
from compatkit.components.pairs import check_pair, check_pairs
from compatkit.components.policies import Policies
from compatkit.contracts.batchnorm import DEFAULT
from compatkit.contracts.check import Report
from compatkit.contracts.manifest import About
from compatkit.errors import CompatkitError, InvalidName, NotFound, UsageError, type_of
from compatkit.evaluation.component import Component, pinned
from compatkit.foundation.addresses import local
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.display import LINES, Shown
from compatkit.registry.aliases import ANY, Anything
from compatkit.registry.blobs import Verify
from compatkit.registry.history import change_between
from compatkit.registry.layout import locate
from compatkit.registry.names import Reference, check_name
from compatkit.registry.signing.trust import Trust, Trusted
from compatkit.registry.store import Store
from compatkit.registry.versions.diff import Difference

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compatkit.components.bridges.ladder import Bridge
    from compatkit.components.domains import Adapted
    from compatkit.components.exports.writing import ExportedFile
    from compatkit.components.images import PolicyData
    from compatkit.components.outcomes import Outcome
    from compatkit.components.ranking import Ranking
    from compatkit.contracts.check import Classes
    from compatkit.contracts.manifest import Manifest
    from compatkit.data.dataset import DataSet, Split
    from compatkit.evaluation.adapter import Adapter
    from compatkit.evaluation.conditions import Progress
    from compatkit.evaluation.matrix import Adapters
    from compatkit.evaluation.recombination import Recombination
    from compatkit.plugins import Use
    from compatkit.registry.care import Care
    from compatkit.registry.copy.report import Moved
    from compatkit.reports.listing import Listing
    from compatkit.reports.matrix import Matrix
    from compatkit.reports.verdicts import Verdicts
    from compatkit.training.fit import Fit
    from compatkit.training.prepare import Statistics
    from compatkit.training.state import AuxiliaryHead, ReleasedExtractor
    from compatkit.training.task import Augment, Rest, Task
    from compatkit.training.trainer import Trainer


@checks_arguments
@attrs.frozen(eq=False, repr=False, init=False)
class Registry(Shown):
    """Components under versioned names in one folder.

    ``Registry("parts")`` opens one, ``Registry("parts", create=True)`` creates it if the folder holds none. ``init``
    refuses a folder that holds one already; ``open`` may require signatures, and opens what is damaged.

    It is a container: ``for name in registry`` yields names, ``len`` counts them, ``registry["digits/mnist.head@^1"]``
    is a ``Component``, and ``"digits/mnist.head" in registry`` tests for one.

    Attributes:
        store: The files; it stores and finds components and knows nothing about networks.
    """

    store: Store

    def __init__(self, root: str | os.PathLike[str] | Store | None = None, *, create: bool = False) -> None:
        """Open the registry in a folder.

        Args:
            root: The folder; None for COMPATKIT_REGISTRY, else the nearest folder above. Or an open store.
            create: Create a registry there if there is none.

        Raises:
            LayoutError: There is no registry and ``create`` is False, or its layout is not supported.
            EnvironmentFailure: The folder cannot be written.
            UsageError: ``create`` without a folder.
        """
        if isinstance(root, str | os.PathLike):
            store = Store.init(root, exist_ok=True) if create else Store.open(root)
        elif create:
            raise UsageError("create=True needs the folder of the registry as root.", subject=root)
        elif root is None or isinstance(root, Store):
            store = root or Store.find()
        else:
            raise UsageError(
                f"Registry(...) expects a folder or an open store, got {root!r:.80}.", subject=root
            )
        object.__setattr__(self, "store", store)  # of a frozen class

    @classmethod
    def init(cls, root: str | os.PathLike[str], *, exist_ok: bool = False) -> Registry:
        """Create a registry in the folder ``root``.

        Args:
            root: The folder; created if missing.
            exist_ok: Open an existing registry instead of raising.

        Raises:
            LayoutError: The folder already holds a registry and ``exist_ok`` is False, or one with a newer layout.
            EnvironmentFailure: The folder cannot be written.
        """
        return cls(Store.init(root, exist_ok=exist_ok))

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str] | None = None,
        *,
        require_signature: Trust = False,
        damaged: bool = False,
    ) -> Registry:
        """Open the registry in ``root``; None for COMPATKIT_REGISTRY, else the nearest folder above.

        Args:
            root: The folder.
            require_signature: Signature required of every component that is loaded, recombined or measured: True for
                one by your trusted keys (``compatkit keys``), or a folder of public keys, a file or a key; see
                ``compatkit.registry.signing.public``. False or None requires none.
            damaged: Open it even if its ``compatkit.json`` is damaged or missing, for ``care.verify`` and
                ``care.repair``.

        Raises:
            LayoutError: There is no registry, or its layout is not supported.
            KeyFileError: The trusted keys cannot be determined.
            MissingDependency: Signatures are required, but ``cryptography`` is not installed.
        """
        trusted = None
        if require_signature is not False and require_signature is not None:
            from compatkit.registry.signing.keys import check_installed

            trusted = Trusted.of(require_signature)
            check_installed()
        if damaged:
            from compatkit.registry.maintenance.check import open_damaged

            return cls(attrs.evolve(open_damaged(locate(None) if root is None else root), trusted=trusted))
        return cls(Store.find(trusted=trusted) if root is None else Store.open(root, trusted))

    @classmethod
    def clone(
        cls,
        remote: str | os.PathLike[str],
        root: str | os.PathLike[str],
        *,
        options: Mapping[str, Any] | None = None,
        require_signature: Trust = False,
        versions: Literal["all", "latest"] = "all",
        aliases: bool = True,
        evidence: bool = True,
        jobs: int = 8,
        progress: Progress | None = None,
    ) -> Registry:
        """Create a registry in the folder ``root`` with everything from a remote; see ``pull``.

        Args:
            remote: Address of the remote.
            root: New folder.
            options: For the file system of the remote.
            require_signature: As for ``pull``.
            versions: As for ``push``.
            aliases: As for ``push``.
            evidence: As for ``push``.
            jobs: As for ``push``.
            progress: As for ``push``.

        Raises:
            Incomplete: Something was refused; the registry holds the rest.
            LayoutError: The folder is a registry or contains other files; or the remote is not a registry.
            EnvironmentFailure: No permission, no network, disk full; continue with ``pull``.
        """
        from compatkit.registry.copy.choice import Choice
        from compatkit.registry.remotes.pushpull import clone

        chosen = Choice(
            versions=versions, aliases=aliases, evidence=evidence, jobs=jobs, progress=progress
        ).requiring(require_signature)
        store, moved = clone(remote, Path(local(root, "a registry")), options=options, choice=chosen)
        moved.check()
        return cls(store)

    def __iter__(self) -> Iterator[str]:
        """Yield the names with a version that is not withdrawn, sorted; damaged components are skipped."""
        return (version.name for version in self.store.index.search(latest=True))

    def __len__(self) -> int:
        """Return the number of names that ``iter`` yields."""
        return self.store.index.count(latest=True)

    def __contains__(self, reference: object) -> bool:
        """Return whether a reference resolves: a name, optionally with version, range or alias."""
        try:
            return isinstance(reference, str) and bool(self.store.resolve(reference))
        except (NotFound, InvalidName):
            return False

    def __getitem__(self, reference: str) -> Component:
        """Return the component for a reference; reads no weights.

        Raises:
            NotFound: No such name, version or alias, or the version was withdrawn.
            InvalidName: The reference is malformed.
            IntegrityError: The manifest is missing or damaged.
        """
        resolved = self.store.resolve(reference)
        return Component(self, resolved, self.store.manifest(resolved))

    def get(self, reference: str) -> Component | None:
        """Return ``registry[reference]``, or None if it is not found."""
        return self[reference] if reference in self else None

    def versions(self, name: str) -> list[str]:
        """Return the versions of a name, ascending, without withdrawn ones.

        Raises:
            NotFound: No such name.
        """
        return [str(version) for version in self.store.versions(name)]

    def search(
        self,
        words: str | None = None,
        *,
        pattern: str | None = None,
        kind: str | None = None,
        tags: Mapping[str, str] | None = None,
        model: str | None = None,
        channels: int | None = None,
        label: str | None = None,
        anchor: str | None = None,
        parent: str | None = None,
        digest: str | None = None,
        text: str | None = None,
        latest: bool = False,
        withdrawn: bool = False,
        limit: int | None = None,
        offset: int = 0,
    ) -> Listing:
        """Return the components that match all filters, by name and ascending version; reads no manifests.

        Args:
            words: Words to find in name, title, description, network or tags, such as ``"digits resnet"``,
                regardless of case; all must match.
            pattern: Glob over whole names; ``*`` also matches ``/``.
            kind: ``"extractor"``, ``"head"``, ``"recombination"``, ...
            tags: Each must be there with this value.
            model: Glob over the model of the blueprint.
            channels: One of the feature widths.
            label: A class, by any of its names, regardless of case, spaces and underscores.
            anchor: First hexadecimal digits of the digest of an anchor.
            parent: A parent: its manifest digest, or a reference.
            digest: Manifest digest.
            text: As ``words``, without the name.
            latest: Only the latest version of each name that is not withdrawn.
            withdrawn: Include withdrawn versions.
            limit: Most versions; None for all.
            offset: Number of first versions to leave out.

        Returns:
            A list of ``SearchResult``, displayed as a table.

        Raises:
            UsageError: A filter is invalid.
        """
        from compatkit.reports.listing import Listing

        versions = self.store.index.search(
            anywhere=words,
            pattern=pattern,
            kind=kind,
            tags=tags or {},
            model=model,
            channels=channels,
            label=label,
            anchor=anchor,
            parent=parent,
            digest=digest,
            text=text,
            latest=latest,
            withdrawn=withdrawn,
            limit=limit,
            offset=offset,
        )
        return Listing(versions)

    def check(
        self, extractor: str, head: str, *, data: Classes | None = None, bn_policy: str = DEFAULT
    ) -> Report:
        """Compare the contracts of an extractor and a head, including evidence; reads no weights.

        Args:
            extractor: Reference of an extractor.
            head: Reference of a head.
            data: Classes that the pair is meant for; None skips the comparison of classes.
            bn_policy: Batch-norm policy that the pair is meant to run under, as in ``matrix``. Only figures under it
                count as evidence; others are only reported.

        Raises:
            NotFound: A reference does not resolve.
            UsageError: The first is not an extractor, the second not a head, or the policy is unknown.
        """
        parts = PartLoader(self.store)
        left, right = (parts.component(self.store.resolve(reference)) for reference in (extractor, head))
        return check_pair(self.store, left, right, data=data, bn_policy=bn_policy)

    def check_all(
        self,
        extractors: str | Sequence[str],
        heads: str | Sequence[str],
        *,
        data: Classes | None = None,
        bn_policy: str = DEFAULT,
    ) -> Verdicts:
        """Compare every extractor's contract with every head's, including evidence; reads no weights.

        Args:
            extractors: Pattern, or patterns, such as ``"digits/*"``; other kinds are skipped.
            heads: The same for heads.
            data: Classes that the pairs are meant for; None skips the comparison of classes.
            bn_policy: As for ``check``.

        Raises:
            NotFound: A pattern matches no extractor, or no head.
            UsageError: A reference that is not a pattern has another kind, or the policy is unknown.
            DataError: Two classes of the data, or of a head, have the same name, or one matches two of the other
                side.
        """
        return check_pairs(self.store, extractors, heads, data=data, bn_policy=bn_policy)

    def diff(self, old: str, new: str, *, tensors: bool = False) -> Difference:
        """Return the changes between two components, level by level, and the smallest version step they require.

        For two versions of one name, a step that its number shows to be measured counts as measured.

        Args:
            old: Reference of the old component, of any name and kind.
            new: Reference of the new component.
            tensors: Also compare the weights, tensor by tensor.

        Raises:
            NotFound: A reference does not resolve.
            IntegrityError: A manifest, or a payload that is compared, is missing or damaged.
        """
        change = change_between(self.store, old, new)
        if not tensors:
            return change
        from compatkit.registry.versions.tensors import tensor_changes

        states = (self.store.load_state(self.store.manifest(reference)) for reference in (old, new))
        return attrs.evolve(change, tensors=tensor_changes(*states))

    def rank(
        self,
        extractors: str | Sequence[str],
        data: DataSet | Split,
        *,
        scores: Sequence[str] | None = None,
        examples: int = 1000,
        controls: bool = False,
        seed: int = 0,
        batch_size: int = 256,
        device: str = "cpu",
        sources: Callable[[str], DataSet] | None = None,
        progress: Progress | None = None,
    ) -> Ranking:
        """Score extractors for a data set before any training.

        Each extractor runs once over a sample of the target's training images, with its stored statistics, and its own
        head over the features. Accuracy that was measured on the target's test images is read from evidence: of heads
        trained on the extractor's features, and of extractors that started from it.

        Args:
            extractors: Pattern, or patterns.
            data: The target; of a data set the training split is scored.
            scores: Names of metrics whose first figure is the score; None for all that compatkit brings. One with a
                setting ``source`` is given images, labels and class names of the extractor's own training data.
            examples: Most examples, balanced over classes.
            controls: Score extractors with Gaussian weights of equal norms, too.
            seed: Seed of the sample and the controls.
            batch_size: Images per pass.
            device: Device to run on.
            sources: Returns the data set of an extractor by its reference; None looks where it was found before.
            progress: Called with done, total and the extractor.

        Raises:
            NotFound: A pattern matches nothing.
            UnknownName: A score is not installed.
            UsageError: ``data`` is no data set; no score is named; a number is too small.
        """
        from compatkit.components.scoring import SCORES, rank

        return rank(
            self.store,
            extractors,
            data,
            scores=SCORES if scores is None else scores,
            examples=examples,
            controls=controls,
            seed=seed,
            batch_size=batch_size,
            device=device,
            sources=sources,
            progress=progress,
        )

    def matrix(
        self,
        extractors: str | Sequence[str],
        heads: str | Sequence[str],
        data: Sequence[Split] | Mapping[str, Split] | None = None,
        *,
        bn_policy: str = DEFAULT,
        batch_size: int = 256,
        seed: int = 0,
        precision: str = "float32",
        device: str = "cpu",
        fill: str = "missing",
        where: str | Sequence[str] = (),
        adapters: Adapters | None = None,
        bridges: Mapping[tuple[str, str], Bridge] | None = None,
        progress: Progress | None = None,
        record: bool = True,
    ) -> Matrix:
        """Return the accuracy of every extractor with every head, on the extractor's own test set.

        A cell is taken from evidence if there is a result under exactly these conditions; this reads no weights.
        Missing cells are measured: each extractor runs once over its images with the requested heads, and the results
        are recorded when it is done. ``settings["cells"]`` of the matrix counts cells taken and measured.

        Args:
            extractors: Pattern, or patterns, such as ``"digits/*.extractor"``; other kinds are skipped.
            heads: Pattern, or patterns.
            data: Test sets; an extractor uses that of the data set it was trained on (by the name before the slash:
                ``mnist/train`` and ``mnist/test``). Or a mapping from extractor pattern to test set. None finds them:
                where they were when the extractor was published on this machine, else by name; with ``fill="none"``,
                the images of its last measurement.
            bn_policy: ``"batch"`` (as in the paper), ``"reestimate"``, ``"mix:16"`` or ``"running"``.
            batch_size: Images per batch; part of the conditions except under ``"running"``.
            seed: Seed of the order of the images; part of the conditions except under ``"running"``.
            precision: ``"float32"``, or ``"bfloat16"`` (``"bf16"``) with autocast.
            device: Device to run on; ``"auto"`` for an accelerator if there is one.
            fill: ``"missing"`` measures cells without a result, ``"stale"`` also those that changed since (version of
                the metric, images of the same name, head of the upper bound), ``"all"`` everything, with a warning if
                figures differ from those under the same key, ``"none"`` nothing.
            where: Filters ``FIELD=VALUE`` of components and cells, all of which must match; see
                ``compatkit.components.matrices.where``.
            adapters: ``Recombination.inserted`` by pinned references of extractor and head, for pairs to be measured
                with adapters; recorded under a separate key, never as evidence of the bare pair.
            bridges: Result of ``bridges.between``: their adapters are used, and the results of the rungs are listed in
                the cell. For heads with batch normalization only under ``"batch"`` or ``"reestimate"``.
            progress: Called with done, total and what is being done.
            record: Record the figures as evidence, for ``check`` to read.

        Raises:
            NotFound: A pattern matches nothing, or nothing passes the filters.
            UsageError: A setting, a filter or a bridge is invalid; a reference that is not a pattern has another kind.
            DataError: ``data`` contains no test set for an extractor, or several; or its own cannot be found.
        """
        from compatkit.components.matrices.filling import matrix
        from compatkit.evaluation.conditions import Conditions

        if not isinstance(adapters, Mapping | None):
            raise UsageError(
                f"adapters= expects adapters by the pinned references of extractor and head; got {type_of(adapters)}.",
                subject=adapters,
            )
        inserted = {} if bridges is None else _inserted(bridges, bn_policy)
        result = matrix(
            self.store,
            extractors,
            heads,
            data,
            Conditions(bn_policy, batch_size, seed, precision, device),
            where=where,
            fill=fill,
            adapters={pair: steps for pair, steps in {**(adapters or {}), **inserted}.items() if steps},
            record=record,
            progress=progress,
        )
        if not bridges:
            return result
        notes = {pair: bridge.lines() for pair, bridge in bridges.items()}
        return result.with_ladders(notes, {pair: bridge.ladder() for pair, bridge in bridges.items()})

    def load(self, reference: str, *, verify: Verify = "auto", require_signature: Trust = False) -> nn.Module:
        """Return a component's module with its weights, in eval mode; its contract is checked in one pass.

        A recombination is composed from its parts, bitwise as published, and returned as a ``Recombination``.
        Withdrawn parts are still used, with a ``WithdrawnWarning``.

        Large weights on a local disk are memory-mapped, copy-on-write: training them does not change the file.

        Args:
            reference: Such as ``"digits/mnist.head@^1"``.
            verify: ``"auto"`` hashes the weights and runs the probe the first time, and again after a change of the
                file or a library; ``"always"`` every time; ``"never"`` trusts the disk and the libraries.
            require_signature: Required signature, as in ``open``; that of a recombination covers its parts.

        Raises:
            NotFound: The reference does not resolve.
            SignatureError: There is no valid signature; the subclass says why.
            IntegrityError: The bytes, or the resulting module, do not match the manifest; or a part of a
                recombination is missing or damaged.
            IncompatibleError: The parts of a recombination cannot be wired by the rules of this version; carries the
                report.
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
                ``"reestimate"`` estimates them on ``data``, ``"mix:16"`` mixes the estimate with stored ones, which
                count as 16 images. None for ``"reestimate"`` if ``data`` are given without ``insert_adapters``, which
                is right for deployment; else ``"batch"``, as ``matrix`` measures, or stored ones if the head was
                trained with this extractor.
            data: 100 or more unlabeled images of the kind that the extractor was trained on: to estimate statistics
                on, and to fit an adapter with weights on (``project``), whose target is the features of the head's own
                extractor. Where they are needed, None for the extractor's training images, found as by ``matrix``.
            insert_adapters: Insert the adapters that the check names.
            adapters: References of published adapters, in forward order.

        Returns:
            The recombined network, in eval mode.

        Raises:
            IncompatibleError: The parts cannot be wired, or only with an adapter that was not requested; carries the
                report.
            UsageError: ``data`` that neither the policy nor an adapter uses.
            DataError: Images are needed but not given, and the extractor's own cannot be found.
        """
        from compatkit.components.stitching import recombine

        return recombine(
            self.store, extractor, head, bn_policy, data, insert_adapters=insert_adapters, adapters=adapters
        )

    @overload
    def publish(
        self,
        what: Fit,
        *,
        prefix: str,
        version: str | None = None,
        about: About | None = None,
        major: bool = False,
        data: PolicyData = (),
        progress: Progress | None = None,
        dry_run: Literal[False] = False,
    ) -> dict[str, str]: ...
    @overload
    def publish(
        self,
        what: Fit,
        *,
        prefix: str,
        version: str | None = None,
        about: About | None = None,
        major: bool = False,
        data: PolicyData = (),
        progress: Progress | None = None,
        dry_run: Literal[True],
    ) -> dict[str, Outcome]: ...
    @overload
    def publish(
        self,
        what: Bridge,
        name: str,
        *,
        rung: str | None = None,
        accept_doubtful: bool = False,
        about: About | None = None,
    ) -> dict[str, str]: ...
    @overload
    def publish(
        self,
        what: Adapted,
        name: str,
        *,
        version: str | None = None,
        about: About | None = None,
        major: bool = False,
        data: PolicyData = (),
        progress: Progress | None = None,
    ) -> str: ...
    @overload
    def publish(
        self,
        what: Adapter | Recombination,
        name: str,
        *,
        version: str | None = None,
        about: About | None = None,
    ) -> str: ...
    @overload
    def publish(
        self,
        what: Manifest,
        name: str,
        *,
        state: Mapping[str, Tensor],
        version: str | None = None,
        major: bool = False,
        data: PolicyData = (),
        progress: Progress | None = None,
    ) -> str: ...
    def publish(
        self,
        what: object,
        name: str | None = None,
        *,
        prefix: str | None = None,
        state: Mapping[str, Tensor] | None = None,
        rung: str | None = None,
        accept_doubtful: bool = False,
        version: str | None = None,
        about: About | None = None,
        major: bool = False,
        data: PolicyData = (),
        progress: Progress | None = None,
        dry_run: bool = False,
    ) -> Any:
        """Publish what was trained, recombined or made elsewhere.

        - A ``Fit`` of ``Trainer.fit``: extractors, then auxiliary heads, then heads, as ``<prefix>/<task>.extractor``,
          ``<prefix>/shared.<name>``, ``<prefix>/<task>.head``. Everything is derived and verified, and all policies
          are decided, before the first version is linked. Publishing a group is retryable, not atomic: after a
          failure the same call completes it and leaves existing versions unchanged. A variational autoencoder gives
          ``<prefix>/<task>.encoder``, ``.latent`` (an adapter, its mean and log-variance layers) and ``.decoder``.
        - An ``Adapted``: the adapted extractor; its head is unchanged and already published.
        - A ``Recombination``: pins its parts by digest. It is composed again from the parts in this registry and
          compared tensor by tensor before anything is written. Its payload holds estimated statistics, and weights of
          adapters that are not components.
        - An adapter from ``Recombination.inserted``, for later use as ``recombine(..., adapters=[...])``.
        - A ``Bridge``: the fitted adapter as ``<name>.adapter`` or the refitted head as ``<name>.head``, and the
          recombination that pins all parts and records its judgement under ``training["bridge"]``.
        - A manifest with ``state``: a component that was not trained here. The module is built from blueprint and
          weights, and derived ports are compared with the stated ones before anything is written. The payload is
          replaced by that of ``state``, and a missing probe is added. Blobs and parents that it names must be in the
          registry.

        Args:
            what: Object to publish.
            name: One to three segments, such as ``"digits/mnist-usps"``; not for a fit, which has a prefix.
            prefix: Prefix of the names of a fit.
            state: Tensors by name, with a manifest.
            rung: Rung of a bridge; None for the chosen one.
            accept_doubtful: Publish a rung of a bridge whose verdict is not ``fit``.
            version: None for the smallest step that the change requires, 1.0.0 for a new name. All parts of a fit get
                the same. Not with a bridge.
            about: Title, description, tags, license and source. Not with a manifest, which has them.
            major: Use the next MAJOR number, which policies do not bind. This and all below apply to a fit, an adapted
                extractor and a manifest.
            data: Images of policies, if they are neither the fit's own nor found by name.
            progress: Called with done, total and what is being done while policies are measured.
            dry_run: With a fit: return the outcomes of policies and publish nothing. The figures are recorded; the
                parts' blobs are stored, and ``gc`` collects them.

        Returns:
            The pinned reference ``name@version``. For a fit, pinned references by ``"<task>.extractor"``,
            ``"shared.<name>"``, ``"<task>.head"``, or outcomes with ``dry_run``; for a bridge, by ``"adapter"``,
            ``"head"`` and ``"recombination"``.

        Raises:
            PolicyBroken: A part does not work with a released partner; carries the outcome with its matrix.
            PolicyDataMissing: The images of a policy are not available.
            CutError: Rebuilt parts do not reproduce the trained network.
            IntegrityError: A part is not in this registry, a module was changed since it was composed, or a contract
                contradicts its weights; lists all contradictions.
            FormatError: A value is invalid in a contract.
            UnknownName: A blueprint's builder or model is unknown here.
            UsageError: The object cannot be published, a setting does not apply to it, or a bridge is not shown to fit.
            VersionExists: The version exists with other content.
            VersionTooSmall: The change requires a larger step than the requested version.
            EnvironmentFailure: Disk full, or no write permission.
        """
        from compatkit.components.publishing import publish

        settings = {
            "prefix": prefix,
            "state": state,
            "rung": rung,
            "accept_doubtful": accept_doubtful,
            "version": version,
            "about": about,
            "major": major,
            "data": data,
            "progress": progress,
            "dry_run": dry_run,
        }
        stated = {key: value for key, value in settings.items() if value not in (None, False, ())}
        return publish(self.store, what, *(() if name is None else (name,)), **stated)

    def adopt(
        self,
        path: str | os.PathLike[str] | Mapping[str, Any],
        name: str,
        *,
        model: str | None = None,
        cut: str,
        builder: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        size: tuple[int, int] | None = None,
        key: str | None = None,
        labels: Sequence[str] | None = None,
        data: Split | None = None,
        preprocessing: Mapping[str, Any] | None = None,
        rename: Mapping[str, str] | None = None,
        about: About | None = None,
    ) -> dict[str, str]:
        """Adopt a checkpoint of a timm, torchvision or plugin network as an extractor and a head.

        Safetensors are read directly; files of ``torch.save`` are unpickled as tensors only, in a subprocess with
        limits of time and memory. The parts must reproduce the network bitwise before anything is published.

        Args:
            path: The file, a folder of one (as of the Hugging Face Hub, or timm's ``save_for_hf``), or a state dict.
                Name, SHA-256, format and unwrapping are recorded in both manifests. What ``config.json`` and
                ``preprocessor_config.json`` beside the file state is used: network, class names, mean, std, size and
                crop; what contradicts it is refused.
            name: The parts become ``<name>.extractor`` and ``<name>.head``.
            model: Network that the weights were saved from; None where ``config.json`` names it.
            cut: Module after which it is cut, or ``"forward_features"``.
            builder: Builder of the network: ``"timm"``, ``"torchvision"``, or one of a plugin; None for the one that
                has a model of this name.
            kwargs: Further arguments of the network; numbers of classes and image channels are inferred from the
                weights unless given.
            size: Height and width of the images; None for the network's own.
            key: Entry of the file that contains the state dict, such as ``"model_ema"``; None for the common one.
            labels: Class names in the order of the outputs.
            data: Images for feature statistics.
            preprocessing: Facts about images that override the network's configuration; see ``splitting.split``.
            rename: New beginnings of tensors' names by old ones, such as ``{"module.backbone.": ""}``.
            about: Title, description, tags, license and source of both parts.

        Returns:
            Pinned references ``name@version`` by ``"extractor"`` and ``"head"``.

        Raises:
            UnsafeCheckpoint: The file requires code execution, or more time, memory or disk than its size explains.
            CheckpointMismatch: The weights belong to another network; lists missing, unknown and misshapen tensors.
            FormatError: Another format, truncated or damaged.
            IntegrityError: Weights are not finite.
            UnknownName: No such model or builder, or no such module to cut after.
            UsageError: The file contains no state dict; or class names or facts about images do not fit.
            CutError: The network cannot be cut there.
            EnvironmentFailure: The file cannot be read, disk full, or no write permission.
        """
        from compatkit.components.adopting import adopt, check_target

        check_target(name)
        adopted = adopt(
            path,
            model=model,
            cut=cut,
            builder=builder,
            kwargs=kwargs,
            size=size,
            key=key,
            labels=labels,
            data=data,
            preprocessing=preprocessing,
            rename=rename,
        )
        return adopted.publish(self.store, name, about=about)

    def extend(
        self,
        head: str,
        classes: Sequence[str],
        name: str,
        *,
        seed: int = 0,
        version: str | None = None,
        major: bool = False,
        about: About | None = None,
        data: PolicyData = (),
        progress: Progress | None = None,
    ) -> str:
        """Publish a head with additional classes; the weights of the old ones are kept bitwise.

        Its kind is ``head``, even if it came from an auxiliary head, and its parent relation is ``extended_from``. Its
        contract keeps the anchors. Train it on all classes next: ``registry.task(..., head=name)``.

        Args:
            head: Reference of a head, or of an auxiliary head that classifies.
            classes: Names of the new classes, in the order of the new outputs.
            name: Name to publish under, such as ``"fleet/ten.head"``.
            seed: Seed of the new rows.
            version: None for the smallest step that the change requires, 1.0.0 for a new name.
            major: Use the next MAJOR number, which policies do not bind.
            about: Title, description, tags, license and source.
            data: Images of a policy, if they are not found by name.
            progress: Called with done, total and what is being done while a policy is measured.

        Returns:
            Pinned reference ``name@version``.

        Raises:
            NotFound: The reference does not resolve.
            UsageError: The component is not a head with named classes, a class exists already under this or another
                name, or the class layer is not a single linear layer or 1x1 convolution.
            VersionTooSmall: The change requires a larger step than the requested version.
            EnvironmentFailure: Disk full, or no write permission.
        """
        from compatkit.components.extension import extend

        check_name(name)
        part = load(self.store, self.store.resolve(head))
        made = extend(part, classes, seed=seed, about=about)
        return self.publish(
            made.manifest, name, state=made.state, version=version, major=major, data=data, progress=progress
        )

    def export(
        self,
        component: str | Recombination,
        path: str | os.PathLike[str],
        *,
        names: str = "auto",
        format: str = "safetensors",
        settings: Mapping[str, Any] | None = None,
        verify: Verify = "auto",
    ) -> ExportedFile:
        """Write a component as one file; ``load_exported`` runs a safetensors file without a registry.

        Args:
            component: Reference of a recombination, an extractor or a head; or a result of ``recombine``.
            path: Path of the file, which is replaced if it exists.
            names: ``"whole"`` gives the tensors of a recombination the names of the one network that its halves make
                up, so that ``timm.create_model(...).load_state_dict`` accepts them; ``"parts"`` prefixes them with
                ``extractor.``, ``adapters.0.``, ``head.``; ``"auto"`` uses ``"whole"`` if possible. For safetensors
                files only.
            format: ``"safetensors"``, or the name of a plugin's exporter: ``"onnx"``, ``"torch_export"``, ...
            settings: Keyword arguments for the exporter.
            verify: As for ``load``.

        Returns:
            Path, size and description.

        Raises:
            NotFound: The reference does not resolve.
            IntegrityError: A part is missing or damaged, or the recombination was changed since it was composed.
            UsageError: ``names="whole"`` but the parts are not the halves of one network; the path is a folder; or
                there is no such exporter.
            PluginError: The exporter does not take these settings, or fails.
            EnvironmentFailure: Disk full, or no write permission; an existing file is left unchanged.
        """
        from compatkit.components.exports.writing import SAFETENSORS, write, write_as

        if format == SAFETENSORS and settings:
            raise UsageError(f"safetensors files have no settings ({', '.join(settings)}); name a format.")
        if format != SAFETENSORS and names != "auto":
            raise UsageError(f"names={names!r} is for safetensors files; {format} has names of its own.")
        known: dict[str, Any] = {}
        if isinstance(component, str):
            resolved = self.store.resolve(component)
            module, manifest = self.load(component, verify=verify), self.store.manifest(resolved)
            known = {"reference": pinned(resolved), "digest": resolved.digest}
        else:
            from compatkit.components.recombinations import recompose

            manifest, module = recompose(self.store, str(path), component)
        if format == SAFETENSORS:
            return write(path, module, manifest, names=names, **known)
        return write_as(format, path, module, manifest, settings, **known)

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

        Weights and running statistics are kept bitwise; images are prepared as the extractor's contract says.
        Components published from such a fit name their origin as ``initialised_from``.

        Args:
            name: Used in component names.
            data: Training and test images; a ``Split`` if ``supervised`` is False.
            extractor: Reference of an extractor.
            head: Reference of a head, or of an auxiliary head that classifies; it must have all classes of ``data``,
                matched by name, and the labels are reordered to fit. None for a new head of the extractor's network
                for the classes of ``data``.
            supervised: Whether the head learns the classes. If not, labels are ignored, the head is unchanged, and the
                extractor learns from regularizers alone.
            augment: See ``Task``.
            rest: Network whose rest becomes the new head; see ``Task``.
            own_head: Whether the task has a head of its own; see ``Task``.
            freeze_extractor: Keep the extractor unchanged; it is not published again, and the head names its component
                as the one it was trained with.
            freeze_stages: Number of first stages to freeze; see ``Task``.
            recompute_activations: Whether the backward pass recomputes activations; see ``Task``.

        Raises:
            NotFound: A reference does not resolve.
            IncompatibleError: The two cannot be wired directly; carries the report.
            UsageError: A reference has another kind, or ``data`` has classes that the head does not know.
            DataError: Classes of the data match each other.
        """
        from compatkit.components.tasks import task_of

        return task_of(
            self.store,
            name,
            data,
            extractor,
            head,
            supervised=supervised,
            augment=augment,
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
        method: str | Use | None = None,
        frozen_statistics: Statistics = "stored",
        test: Split | None = None,
        augment: Augment = (),
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Adapted:
        """Adapt an extractor to unlabeled images, with the loss of a frozen auxiliary head alone.

        Args:
            extractor: Reference of the source's extractor.
            head: Reference of the source's head, which stays unchanged.
            auxiliary: Reference of a self-supervised auxiliary head that the extractor was trained with.
            data: Images of the target domain; labels are ignored.
            trainer: None for the paper's settings: ``compatkit.components.domains.paper()``.
            method: Regularizer that the head belongs to, if its manifest does not name it.
            frozen_statistics: Batch-norm statistics inside the auxiliary head: ``"stored"`` or ``"batch"``.
            test: Labeled images of the target domain for measurement.
            augment: See ``Task``.
            factories: Regularizers that are not installed, by name: for notebooks.

        Raises:
            NotFound: A reference does not resolve.
            IncompatibleError: The head cannot be wired directly; carries the report.
            UsageError: The extractor was not trained against that auxiliary head; a reference has another kind; or the
                method needs labels.
            DataError: There are fewer images than in a batch.
            TrainingError: A loss is not finite, or the checkpoint belongs to another run.
        """
        from compatkit.components.domains import adapt_released

        return adapt_released(
            self.store,
            extractor,
            head,
            auxiliary,
            data,
            trainer=trainer,
            method=method,
            statistics=frozen_statistics,
            test=test,
            augment=augment,
            factories=factories,
        )

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

        Each rung is judged by agreement: the share of held-out images on which it predicts the same as the head's own
        network (with batch-norm statistics also estimated on this domain), corrected for chance (Cohen's kappa). No
        labels are needed. The head's statistics are re-estimated for each rung.

        Args:
            extractor: Reference of an extractor.
            head: Reference of a head; the extractor it was trained with must be in this registry.
            data: Images of the extractor's domain; labels are ignored. Up to 500, or half of them, are held out.
            labels: Labeled images of that domain, for rungs trained with labels. One in five, and those held out of
                ``data``, are not trained on; such rungs are chosen and judged by them.
            test: Labeled images for measuring accuracy; they do not affect the choice.
            head_data: Images of the head's domain for pairing features; labels are ignored.
            rungs: Names of rungs, compatkit's own or a plugin's; None for compatkit's own except ``"infomax"``, and
                without ``labels`` those that need them.
            until: Agreement at which to stop if the bridge also fits; None tries all rungs.
            max_images: Most images to fit on.
            on: Where features are paired: ``"src"``, on ``data``; ``"dst"``, on ``head_data``; ``"mix"``, on both.
                None for ``"dst"`` if ``head_data`` is given.
            seed: Seed of orders and draws.
            progress: Called with rungs done, rungs in all, and the rung's name.

        Raises:
            IncompatibleError: The parts cannot be wired, the head's own extractor is not here, or no rung could be
                built; the message says why.
            DataError: Too few images, features that are not finite or constant, or no class in common.
            UsageError: A setting is invalid.
        """
        from compatkit.components.bridges.building import bridge_pair
        from compatkit.components.bridges.inputs import BridgeRequest

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
        return bridge_pair(self.store, left, right, check_pair(self.store, left, right), request)

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
            extractor: Reference of a released extractor, for its forward term and for ``feature_distillation``.

        Raises:
            NotFound: A reference does not resolve, or a pattern matches nothing.
            UsageError: A reference or match has another kind, or the classes of ``head`` have no names.
            IntegrityError: A part is damaged.
        """
        from compatkit.components.tasks import frozen_parts

        return frozen_parts(self.store, heads, head, extractor)

    def alias(
        self, name: str, alias: str, version: str | None, *, expected: str | Anything | None = ANY
    ) -> None:
        """Point an alias to a version, or remove it with None; moves are recorded in the component's log.

        After ``registry.alias("digits/mnist.head", "prod", "1.2.0")`` that version is ``"digits/mnist.head:prod"``.

        Args:
            name: Name of the component.
            alias: One segment, such as ``"prod"``.
            version: A version that is not withdrawn.
            expected: Version that it must point to now, None if it must not exist (compare-and-swap); by default it is
                moved unconditionally, which may undo a concurrent move.

        Raises:
            AliasMoved: It does not point to ``expected``.
            NotFound: No such name or version.
        """
        self.store.versions(name)
        self.store.set_alias(name, alias, version, expected=expected)

    def withdraw(self, reference: str, *, reason: str) -> None:
        """Withdraw a version: only its digest finds it afterwards, and its number is never reused.

        Args:
            reference: Reference with a version: ``"digits/mnist.head@1.1.0"``.
            reason: Shown to everybody who requests this version.

        Raises:
            NotFound: No such version.
            UsageError: No version is named, or no reason is given.
        """
        wanted = Reference.parse(reference)
        if wanted.version is None:
            raise UsageError(
                f"Name the version to withdraw, such as {wanted.name}@1.2.0; got {reference!r}.",
                subject=reference,
            )
        self.store.withdraw(wanted.name, wanted.version, reason)

    @property
    def care(self) -> Care:
        """Maintenance: verify, repair, collect unused blobs, disk usage, history, import, signatures."""
        from compatkit.components.deciding import deciding
        from compatkit.registry.care import Care

        return Care(self.store, deciding())

    @property
    def policies(self) -> Policies:
        """Policies by scope: what new versions must keep working with."""
        return Policies(self.store)

    @property
    def bridges(self) -> Bridges:
        """Published bridges, and new bridges for many pairs of a ``matrix``."""
        return Bridges(self.store)

    def push(
        self,
        remote: str | os.PathLike[str],
        patterns: str | Sequence[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        create: bool = False,
        measure: bool = False,
        data: PolicyData = (),
        versions: Literal["all", "latest"] = "all",
        aliases: bool = True,
        evidence: bool = True,
        unmeasured: bool = False,
        jobs: int = 8,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Moved:
        """Copy components to a remote; only what is missing is transferred.

        Args:
            remote: A folder, ``s3://bucket/prefix``, ``hf://datasets/USER/NAME``, or any fsspec address.
            patterns: Such as ``"digits/*"``; None for all components.
            options: Options of the fsspec file system, such as ``{"endpoint_url": ...}``.
            create: Create a registry at the remote if there is none; else that is an error.
            measure: If the remote is a folder with policies: measure what evidence does not decide.
            data: Available images for that.
            versions: ``"all"``, with the tombstones of withdrawn ones, or ``"latest"``, one of each name.
            aliases: Whether aliases of the names come along.
            evidence: Whether measured results of pairs come along, where both parts do.
            unmeasured: Accept what nobody measured as a policy asks; its log records that.
            jobs: Blobs that move at once.
            dry_run: Only report what would move.
            progress: Called with done, total and what is being done.

        Raises:
            Incomplete: Something was refused, such as a version that exists there with other content; the rest was
                copied.
            NotFound: A pattern matches nothing.
            LayoutError: There is no registry at the remote, and ``create`` is False.
            EnvironmentFailure: No permission, no network; repeat the call to continue.
        """
        from compatkit.components.deciding import deciding
        from compatkit.registry.copy.choice import Choice
        from compatkit.registry.remotes.pushpull import push

        chosen = Choice(
            deciding=deciding(measure=measure, data=data),
            create=create,
            versions=versions,
            aliases=aliases,
            evidence=evidence,
            unmeasured=unmeasured,
            jobs=jobs,
            dry_run=dry_run,
            progress=progress,
        )
        return push(self.store, remote, patterns, options=options, choice=chosen).check()

    def pull(
        self,
        remote: str | os.PathLike[str],
        patterns: str | Sequence[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        require_signature: Trust = False,
        measure: bool = False,
        data: PolicyData = (),
        versions: Literal["all", "latest"] = "all",
        aliases: bool = True,
        evidence: bool = True,
        unmeasured: bool = False,
        jobs: int = 8,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Moved:
        """Copy components from a remote, verified on arrival; nothing here is overwritten.

        Args:
            remote: As for ``push``; it is only read.
            patterns: Such as ``"digits/*"``; None for all components.
            options: Options of the fsspec file system.
            require_signature: Required signature, in addition to that of ``open``; components without one are refused
                before anything of them is copied.
            measure: Measure what policies here require and evidence does not decide.
            data: Available images for that.
            versions: As for ``push``.
            aliases: As for ``push``.
            evidence: As for ``push``.
            unmeasured: As for ``push``.
            jobs: As for ``push``.
            dry_run: As for ``push``.
            progress: As for ``push``.

        Raises:
            Incomplete: Something was refused: bytes that differ from their digest, a version that exists here with
                other content or understates its change, a broken or undecided policy, a missing or invalid signature;
                the rest was copied.
            KeyFileError: The trusted keys cannot be determined.
            MissingDependency: Signatures are required, but ``cryptography`` is not installed.
            NotFound: A pattern matches nothing.
            LayoutError: The remote is not a registry.
            EnvironmentFailure: No permission, no network, disk full; repeat the call to continue.
        """
        from compatkit.components.deciding import deciding
        from compatkit.registry.copy.choice import Choice
        from compatkit.registry.remotes.pushpull import pull

        chosen = Choice(
            deciding=deciding(measure=measure, data=data),
            versions=versions,
            aliases=aliases,
            evidence=evidence,
            unmeasured=unmeasured,
            jobs=jobs,
            dry_run=dry_run,
            progress=progress,
        ).requiring(require_signature)
        return pull(self.store, remote, patterns, options=options, choice=chosen).check()

    def _told(self) -> str:
        """Return its folder and the first names with their latest versions."""
        where = f"Registry({str(self.store.root)!r})"
        try:
            count = len(self)
            shown = self.search(latest=True, limit=LINES - 10)
        except CompatkitError as error:  # repr must not fail
            return f"{where}: {error}"
        more = [f"... and {count - len(shown):,} more names"] if count > len(shown) else []
        return "\n".join(
            [f"{where}: {count:,} component{'' if count == 1 else 's'}", *str(shown).split("\n"), *more]
        )


def _inserted(bridges: Mapping[tuple[str, str], Bridge], policy: str) -> Adapters:
    """Return the adapters of bridges; without bridges nothing that needs torch is imported."""
    from compatkit.components.bridges.ladder import inserted

    return inserted(bridges, policy)
