"""The public registry: every method states its promise here; what it does is in the file that it calls."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import attrs

from compatkit.components.bridges.published import Bridges
from compatkit.components.loading import Parts, load
from compatkit.components.pairs import check_pair, check_pairs
from compatkit.components.policies import Policies
from compatkit.contracts.arguments import named
from compatkit.contracts.batchnorm import DEFAULT, under_old_name
from compatkit.contracts.check import Report
from compatkit.contracts.display import LINES, Shown
from compatkit.contracts.manifest import About
from compatkit.errors import CompatkitError, InvalidName, NotFound, UsageError
from compatkit.evaluation.component import Component, pinned
from compatkit.registry.aliases import ANY, Anything
from compatkit.registry.blobs import Verify
from compatkit.registry.names import Reference, check_name
from compatkit.registry.signing.trust import Trust, Trusted
from compatkit.registry.store import Store
from compatkit.registry.versions.diff import Difference, diff

if TYPE_CHECKING:
    from torch import nn

    from compatkit.components.bridges.ladder import Bridge
    from compatkit.components.domains import Adapted
    from compatkit.components.exports.writing import Written
    from compatkit.components.images import Given
    from compatkit.components.outcomes import Outcome
    from compatkit.contracts.contract import Data
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


@attrs.frozen
class Former:
    """What a method that was renamed is called now.

    Attributes:
        path: Attribute of a registry.
        takes: The parameters that had other names or another order, in their former order, with their names now.
        settings: Given besides.
    """

    path: str
    takes: Mapping[str, str] = {}
    settings: Mapping[str, Any] = {}

    def of(self, registry: Registry) -> Any:
        """Return what answers under the former name."""
        method = attrgetter(self.path)(registry)
        if not self.takes:
            return method

        @functools.wraps(method)
        def answer(*places: Any, **named: Any) -> Any:
            by_name = dict(zip(self.takes, places, strict=False)) | named
            return method(
                **{self.takes.get(name, name): one for name, one in by_name.items()}, **self.settings
            )

        return answer


FORMER = {
    "aliases": Former("store.aliases"),
    "auxiliary_heads": Former("frozen", {"pattern": "heads"}),
    "bridges_between": Former("bridges.between"),
    "bridges_of": Former("bridges.of"),
    "build": Former("load"),
    "clear_policy": Former("policies.clear"),
    "load_recombination": Former("load"),
    "manifest": Former("store.manifest"),
    "policy": Former("policies.of"),
    "policy_history": Former("policies.history"),
    "publish_adapted": Former("publish", {"name": "name", "adapted": "what"}),
    "publish_adapter": Former("publish", {"name": "name", "adapter": "what"}),
    "publish_bridge": Former("publish", {"name": "name", "bridge": "what"}),
    "publish_recombination": Former("publish", {"name": "name", "recombination": "what"}),
    "register": Former("publish", {"name": "name", "manifest": "what", "state": "state"}),
    "rehearse": Former("publish", {"fit": "what"}, {"dry_run": True}),
    "released": Former("frozen", {"head": "head", "extractor": "extractor"}),
    "select": Former("store.select"),
    "set_policy": Former("policies.set"),
    "sign": Former("care.sign"),
    "signatures": Former("care.signatures"),
    "test_policy": Former("policies.test"),
    "verify_signatures": Former("care.verify_signatures"),
}
"""Methods that were renamed; they answer with a DeprecationWarning."""


def _open(instance: object, field: object, value: object) -> None:
    if not isinstance(value, Store):
        raise UsageError(
            f"Registry(...) takes an open store, got {value!r:.80}. Use Registry.open(FOLDER), or "
            "Registry.init(FOLDER) to make one.",
            subject=value,
        )


@named
@attrs.frozen(eq=False, repr=False)
class Registry(Shown):
    """Components under versioned names in one folder.

    It is a container: ``for name in registry`` gives names, ``len`` counts them, ``registry["digits/mnist.head@^1"]``
    is a ``Component``, and ``"digits/mnist.head" in registry`` tells whether there is one.

    Attributes:
        store: The files; it stores and finds, and knows no network.
    """

    store: Store = attrs.field(validator=_open)

    @classmethod
    def init(cls, root: str | os.PathLike[str], *, exist_ok: bool = False) -> Registry:
        """Make a registry in the folder ``root``.

        Raises:
            LayoutError: The folder holds a registry already and ``exist_ok`` is False, or one that is too new.
            EnvironmentFailure: The folder cannot be written.
        """
        return cls(Store.init(root, exist_ok=exist_ok))

    @classmethod
    def open(
        cls, root: str | os.PathLike[str] | None = None, *, require_signature: Trust = False
    ) -> Registry:
        """Open the registry in ``root``; None takes COMPATKIT_REGISTRY, then the nearest folder above.

        Args:
            root: The folder.
            require_signature: Signature that every component needs which is loaded, recombined or measured here: True
                for one by the keys that you trust (``compatkit keys``), or a folder of public keys, a file or a key;
                see ``compatkit.registry.signing.public``. False or None asks for none.

        Raises:
            LayoutError: There is no registry, or one that this version cannot read.
            KeyFileError: The trusted keys cannot be determined.
            MissingDependency: Signatures are required, and ``cryptography`` is not installed.
        """
        trusted = None
        if require_signature is not False and require_signature is not None:
            from compatkit.registry.signing.keys import check_installed

            trusted = Trusted.of(require_signature)
            check_installed()
        return cls(Store.find(trusted=trusted) if root is None else Store.open(root, trusted))

    @classmethod
    def clone(
        cls,
        remote: str,
        root: str | os.PathLike[str],
        *,
        options: Mapping[str, Any] | None = None,
        require_signature: Trust = False,
        **choice: Any,
    ) -> Registry:
        """Make a new registry in the folder ``root`` with all that a remote holds: see ``pull``.

        Raises:
            Incomplete: Something was refused; the registry holds the rest.
            LayoutError: The folder is a registry or holds other files; the remote is no registry.
            EnvironmentFailure: No right, no network, disk full; ``pull`` goes on where it stopped.
        """
        from compatkit.registry.copy.choice import Choice
        from compatkit.registry.remotes.pushpull import clone

        chosen = Choice.of(choice).requiring(require_signature)
        store, moved = clone(remote, Path(root), options=options, choice=chosen)
        moved.check()
        return cls(store)

    def __iter__(self) -> Iterator[str]:
        """Yield the names that have a version which is not withdrawn, sorted; damaged components are passed over."""
        return (one.name for one in self.store.index.search(latest=True))

    def __len__(self) -> int:
        """Return how many names ``iter`` yields."""
        return self.store.index.count(latest=True)

    def __contains__(self, reference: object) -> bool:
        """Tell whether a reference leads to a component: a name, with a version, range or alias if need be."""
        try:
            return isinstance(reference, str) and bool(self.store.resolve(reference))
        except (NotFound, InvalidName):
            return False

    def __getitem__(self, reference: str) -> Component:
        """Return the component that a reference leads to; reads no weights.

        Raises:
            NotFound: No such name, version or alias, or the version was withdrawn.
            InvalidName: Not written as a reference.
            IntegrityError: Its manifest is missing or damaged.
        """
        found = self.store.resolve(reference)
        return Component(self, found, self.store.manifest(found))

    def get(self, reference: str) -> Component | None:
        """Return what ``registry[reference]`` does, or None where that finds nothing."""
        return self[reference] if reference in self else None

    def names(self, pattern: str | None = None) -> list[str]:
        """Return component names, sorted; ``pattern`` is a glob over whole names."""
        return self.store.names(pattern)

    def versions(self, name: str) -> list[str]:
        """Return the versions of a name, rising, without withdrawn ones.

        Raises:
            NotFound: No such name.
        """
        return [str(one) for one in self.store.versions(name)]

    def search(self, words: str | None = None, **filters: Any) -> Listing:
        """Return the components that fit all filters, by name and rising version; reads no manifests.

        Args:
            words: Each of them stands in name, title, description, network or tags, such as ``"digits resnet"``; case
                makes no difference.
            filters: ``pattern`` (glob over names), ``kind``, ``tags`` (a mapping), ``model`` (glob), ``channels``,
                ``label`` (a class), ``anchor``, ``parent``, ``text``, ``latest``, ``withdrawn``, ``limit``, ``offset``:
                see ``compatkit.registry.index.search.Query``.

        Returns:
            A list of ``Found`` that shows itself as a table.

        Raises:
            UsageError: A filter is unknown, or not usable as given.
        """
        from compatkit.reports.listing import Listing

        return Listing(self.store.index.search(anywhere=words, **filters))

    def check(self, extractor: str, head: str, *, data: Data | None = None) -> Report:
        """Compare the contracts of an extractor and a head, and what was measured of them; reads no weights."""
        parts = Parts(self.store)
        left, right = (parts.component(self.store.resolve(one)) for one in (extractor, head))
        return check_pair(self.store, left, right, data=data)

    def check_all(
        self, extractors: str | Sequence[str], heads: str | Sequence[str], *, data: Data | None = None
    ) -> Verdicts:
        """Compare every extractor's contract with every head's, and what was measured; reads no weights.

        Args:
            extractors: Pattern, or patterns, such as ``"digits/*"``; what is no extractor is passed over.
            heads: The same for heads.
            data: Classes that the pairs are meant for; None leaves classes out of the check.

        Raises:
            NotFound: A pattern matches no extractor, or no head.
            UsageError: A reference that is no pattern is no extractor, or no head.
            DataError: Two classes of the data, or of a head, have one name, or one means the same as two of the
                other side.
        """
        return check_pairs(self.store, extractors, heads, data=data)

    def diff(self, old: str, new: str, *, tensors: bool = False) -> Difference:
        """Return what changed between two components, level by level, and the least step that it demands.

        Args:
            old: Reference of the version before; of any name and kind.
            new: Reference of what follows it.
            tensors: Compare the weights too, tensor by tensor; else no weights are read.

        Raises:
            NotFound: Nothing has that name or version.
            IntegrityError: A manifest, or a payload that is compared, is missing or damaged.
        """
        before, after = self.store.manifest(old), self.store.manifest(new)
        found = diff(before, after)
        if not tensors:
            return found
        from compatkit.registry.versions.tensors import tensor_changes

        states = self.store.load_state(before), self.store.load_state(after)
        return attrs.evolve(found, tensors=tensor_changes(*states))

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
        normalisation: str | None = None,
    ) -> Matrix:
        """Return the accuracy of every extractor with every head, on the extractor's own test set.

        Evidence comes first: a cell is taken where a result is kept under exactly the conditions asked for, and no
        weight is read for it. What is missing is measured, each extractor running once over its images with the heads
        that are wanted, and kept as soon as the extractor is done. ``settings["cells"]`` of the matrix says how many
        cells were taken and how many measured.

        Args:
            extractors: Pattern, or patterns, such as ``"digits/*.extractor"``; what is of another kind is passed over.
            heads: Pattern, or patterns.
            data: Test sets; an extractor takes the one of the data set it was trained on (by the name before
                the slash: ``mnist/train`` and ``mnist/test``), or a mapping from extractor pattern to test set. None
                finds them again: where they lay when the extractor was published on this machine, else by name; with
                ``fill="none"``, the images that it was last measured on.
            bn_policy: ``"batch"`` (as in the paper), ``"reestimate"``, ``"mix:16"`` or ``"running"``.
            batch_size: Images in a batch; part of the result unless under ``"running"``.
            seed: Of the order of the images, part of the result unless under ``"running"``.
            precision: ``"float32"``, or ``"bfloat16"`` (``"bf16"``) by autocast.
            device: Where to run, if anything runs; ``"auto"`` takes an accelerator where there is one.
            fill: ``"missing"`` measures what nothing is known of, ``"stale"`` also what changed since (another version
                of the metric, other images of the same name, another head that gives the bound), ``"all"`` everything
                anew, with a warning where figures differ from those kept under the same key, ``"none"`` nothing.
            where: Filters ``FIELD=VALUE`` of components and cells, all of which must fit: see
                ``compatkit.components.matrices.where``.
            adapters: ``Recombination.inserted`` by the pinned references of extractor and head, for pairs that are
                to be measured with adapters between; kept under a key of their own, never as evidence of the pair.
            bridges: From ``bridges.between``: their adapters, and what each rung gave among the findings of the cell.
                Under ``"batch"`` or ``"reestimate"``, where the head has batch normalisation.
            progress: Called with done, total and what is being done.
            record: Keep the figures in the registry as evidence, for ``check`` to read.
            normalisation: The old name of ``bn_policy``.

        Raises:
            NotFound: A pattern matches nothing, or nothing fits the filters.
            UsageError: A setting, a filter or a bridge is not usable as given; a reference that is no pattern is of
                another kind.
            DataError: An extractor has no test set among ``data``, or more than one; its own cannot be found again.
        """
        from compatkit.components.matrices.filling import matrix
        from compatkit.evaluation.conditions import Conditions

        policy = under_old_name(bn_policy, normalisation)
        stand = {} if bridges is None else _inserted(bridges, policy)
        found = matrix(
            self.store,
            extractors,
            heads,
            data,
            Conditions(policy, batch_size, seed, precision, device),
            where=where,
            fill=fill,
            adapters={pair: steps for pair, steps in {**(adapters or {}), **stand}.items() if steps},
            record=record,
            progress=progress,
        )
        if not bridges:
            return found
        notes = {pair: one.lines() for pair, one in bridges.items()}
        return found.with_ladders(notes, {pair: one.ladder() for pair, one in bridges.items()})

    def load(self, reference: str, *, verify: Verify = "auto", require_signature: Trust = False) -> nn.Module:
        """Return a component's module with its weights, in eval mode; its contract is checked in one pass.

        A recombination is put together from its parts, bitwise as it was published, and returned as a
        ``Recombination``. A part of it that was withdrawn is used all the same, with a ``WithdrawnWarning``.

        Large weights on a local disk are mapped and not copied; training them changes this process only.

        Args:
            reference: Such as ``"digits/mnist.head@^1"``.
            verify: ``"auto"`` hashes the weights and runs the probe the first time, and again when the file or a
                library changed; ``"always"`` each time; ``"never"`` trusts the disk and the libraries.
            require_signature: Signature that it needs, as in ``open``; that of a recombination covers its parts, by
                their digests.

        Raises:
            NotFound: Nothing has that name or version.
            SignatureError: It has no signature that counts; the class says why.
            IntegrityError: The bytes, or the module that they make, are not what the manifest states; a part of a
                recombination is missing or damaged.
            IncompatibleError: By the rules of this version the parts of a recombination cannot be wired; carries the
                report.
        """
        found = self.store.resolve(reference)
        if self.store.manifest(found).kind == "recombination":
            from compatkit.components.recombinations import load_recombination

            return load_recombination(self.store, found, verify=verify, require_signature=require_signature)
        return load(self.store, found, verify=verify, require_signature=require_signature).module

    def recombine(
        self,
        extractor: str,
        head: str,
        *,
        bn_policy: str | None = None,
        images: Split | None = None,
        adapt: bool = False,
        data: Split | None = None,
        adapters: str | Sequence[str] = (),
        normalisation: str | None = None,
    ) -> Recombination:
        """Put the head of one network on the extractor of another, if their contracts allow it.

        Args:
            extractor: Reference of an extractor.
            head: Reference of a head.
            bn_policy: Statistics of batch normalisation. ``"batch"`` takes those of each batch, ``"running"`` keeps
                the stored ones, ``"reestimate"`` estimates them anew on ``images``, ``"mix:16"`` mixes these with the
                stored ones, which count as 16 images. None takes ``"reestimate"`` where there are ``images``, which
                is what to deploy; without, ``"batch"``, as ``matrix`` measures, but the stored ones where the head was
                trained with this very extractor.
            images: Unlabelled images, 100 or more, of the kind that the extractor was trained on. Where the policy
                needs them, None takes training images of the extractor, found again as by ``matrix``.
            adapt: Put in the adapters that the check names.
            data: Unlabelled images to fit an adapter with weights on (``project``), where one is needed: the
                features are brought to those of the extractor that the head was trained with. None without
                ``adapters`` takes training images of the extractor.
            adapters: References of published adapters, in the order in which the features pass them.
            normalisation: The old name of ``bn_policy``.

        Raises:
            IncompatibleError: The parts cannot be wired, or only with an adapter that was not asked for; carries the
                report.
            UsageError: ``data`` without ``adapt``; ``images`` that the policy does not use.
            DataError: Images are needed, none were given, and the extractor's own cannot be found again.
        """
        from compatkit.components.stitching import recombine

        policy = under_old_name(bn_policy, normalisation)
        return recombine(
            self.store, extractor, head, policy, images, adapt=adapt, data=data, adapters=adapters
        )

    @overload
    def publish(
        self, what: Fit, *, prefix: str, dry_run: Literal[False] = False, **settings: Any
    ) -> dict[str, str]: ...
    @overload
    def publish(
        self, what: Fit, *, prefix: str, dry_run: Literal[True], **settings: Any
    ) -> dict[str, Outcome]: ...
    @overload
    def publish(self, what: Bridge, name: str, **settings: Any) -> dict[str, str]: ...
    @overload
    def publish(
        self, what: Adapted | Adapter | Manifest | Recombination, name: str, **settings: Any
    ) -> str: ...
    def publish(self, what: object, *name: str, **settings: Any) -> Any:
        """Publish what was trained, put together or made elsewhere.

        - A ``Fit`` of ``Trainer.fit``: extractors, then shared auxiliary heads, then heads, as
          ``<prefix>/<task>.extractor``, ``<prefix>/shared.<name>``, ``<prefix>/<task>.head``. Everything is derived and
          proved, and every policy answered, before the first version is linked. A group publish is retryable, not
          atomic: after a failure the same call completes it, and what is there already is left as it is.
        - What ``adapt`` returned: the adapted extractor; its head is the source's, as it was.
        - A ``Recombination``: pins its parts by digest. It is put together anew from the parts in this registry and
          compared tensor by tensor before anything is written. Statistics that were estimated, and weights of
          adapters that are no components, go into its payload.
        - An adapter, one of ``Recombination.inserted``: to be named in ``recombine(..., adapters=[...])``.
        - A ``Bridge``: the fitted adapter as ``<name>.adapter`` or the refitted head as ``<name>.head``, and the
          recombination that pins all parts, which records under ``training["bridge"]`` how well it does.
        - A manifest with ``state``: a component that was not trained here. The module is built from the blueprint and
          the weights; ports are derived anew and compared with the stated ones. Nothing is written before. Its
          payload is replaced by that of ``state``, and a probe is added where it has none. Blobs and parents that it
          names must be in the registry.

        Args:
            what: See above.
            name: One to three segments, such as ``"digits/mnist-usps"``; of a fit there is the prefix.
            settings: ``prefix``: of the names of a fit.
                ``state``: tensors by name, with a manifest.
                ``rung``: of a bridge; None takes the chosen one.
                ``version``: None takes the least step that the change demands, 1.0.0 for a new name. All parts of a
                fit take the same. Not with a bridge.
                ``about``: title, description, tags, licence and source. Not with a manifest, which has them.
                ``major``: take the next MAJOR number, which policies do not bind: a deliberate break. This and what
                follows goes with a fit, what was adapted, and a manifest.
                ``data``: images of policies, where they are neither the fit's own nor found by name.
                ``progress``: called with done, total and what is being done, while policies are measured.
                ``dry_run``: with a fit: return what policies say of its parts, and publish nothing. The figures are
                kept; the parts' bytes are put, and ``gc`` collects them.

        Returns:
            The pinned reference ``name@version``. Of a fit, pinned references by ``"<task>.extractor"``,
            ``"shared.<name>"``, ``"<task>.head"``, with ``dry_run`` outcomes; of a bridge, by ``"adapter"``, ``"head"``
            and ``"recombination"``.

        Raises:
            PolicyBroken: A part does not work with a released partner; carries the outcome with its matrix.
            PolicyDataMissing: The images of a policy are not at hand.
            CutError: Rebuilt parts do not reproduce the trained network.
            IntegrityError: A part is not in this registry, a module was changed since it was put together, or a
                contract contradicts its weights; lists every contradiction.
            FormatError: A value is not valid in a contract.
            UnknownName: A blueprint's builder or model is not known here.
            UsageError: It cannot be published, or a setting does not apply to it.
            VersionExists: The version is taken by other bytes.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.components.publishing import publish

        return publish(self.store, what, *name, **settings)

    def adopt(
        self,
        path: str | os.PathLike[str],
        name: str,
        *,
        model: str,
        point: str,
        builder: str = "timm",
        kwargs: Mapping[str, Any] | None = None,
        size: tuple[int, int] | None = None,
        key: str | None = None,
        labels: Sequence[str] | None = None,
        data: Split | None = None,
        images: Mapping[str, Any] | None = None,
        about: About | None = None,
    ) -> dict[str, str]:
        """Adopt a checkpoint of timm, torchvision or a plugin's network as an extractor and a head.

        Safetensors are read here; what ``torch.save`` wrote is unpickled as tensors only, by a process of its own with
        limits of time and memory. The parts reproduce the network bitwise before anything is published.

        Args:
            path: Of the file; its name, sha256, format, and what was unwrapped are recorded in both manifests.
            name: Names become ``<name>.extractor`` and ``<name>.head``.
            model: Network that the weights were saved from.
            point: Where to cut it: a module path, or ``"forward_features"``.
            builder: Builder of the network: ``"timm"``, ``"torchvision"``, or one of a plugin.
            kwargs: Further arguments of the network; the counts of classes and of image channels are read from the
                weights unless they are given.
            size: Height and width of the images; None takes the network's own.
            key: Entry of the file that holds the state dict, such as ``"model_ema"``; None takes the usual one.
            labels: Class names in the order of the outputs.
            data: Images that the features are measured on.
            images: Facts about images that override the network's own configuration; see ``splitting.split``.
            about: Title, description, tags, licence and source of both parts.

        Returns:
            Pinned references ``name@version`` by ``"extractor"`` and ``"head"``.

        Raises:
            UnsafeCheckpoint: The file asks for code, or for more time, memory or disk than its size explains.
            CheckpointMismatch: The weights are of another network; lists what is missing, unknown, of another shape.
            FormatError: Another format, truncated or damaged.
            IntegrityError: Weights are not finite.
            UnknownName: No such model, builder or split point.
            UsageError: No state dict is in the file; class names or facts about images that do not fit.
            CutError: The network cannot be cut there.
            EnvironmentFailure: The file cannot be read, disk full, no right to write.
        """
        from compatkit.components.adopting import adopt, check_target

        check_target(name)
        adopted = adopt(
            path,
            model=model,
            point=point,
            builder=builder,
            kwargs=kwargs,
            size=size,
            key=key,
            labels=labels,
            data=data,
            images=images,
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
        data: Given = (),
        progress: Progress | None = None,
    ) -> str:
        """Publish a head with additional classes; the weights of the old ones stay, bit for bit.

        It is of kind ``head``, also where it came from a shared head, and names that as ``extended_from``. What it was
        trained against stays in its contract. Train it on all classes next: ``registry.task(..., head=name)``.

        Args:
            head: Reference of a head, or of a shared head that tells classes apart.
            classes: Names of the new classes, in the order of the new outputs.
            name: What it is published as, such as ``"fleet/ten.head"``.
            seed: Draws the rows of the new classes.
            version: None takes the least step that the change demands, 1.0.0 for a new name.
            major: Take the next MAJOR number, which policies do not bind: a deliberate break.
            about: Title, description, tags, licence and source.
            data: Images of a policy, where they are not found by name.
            progress: Called with done, total and what is being done, while a policy is measured.

        Returns:
            Pinned reference ``name@version``.

        Raises:
            NotFound: Nothing has that name or version.
            UsageError: It is no head with named classes, a class is there already under this or another name, or its
                class layer is not one linear layer or 1x1 convolution.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            EnvironmentFailure: Disk full, no right to write.
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
        verify: Verify = "auto",
    ) -> Written:
        """Write a component as one safetensors file that ``load_exported`` runs without any registry.

        Args:
            component: Reference of a recombination, an extractor or a head; or what ``recombine`` returned.
            path: Of the file, which is replaced if it is there.
            names: ``"whole"`` gives the tensors of a recombination the names of the one network that its halves make,
                so that ``timm.create_model(...).load_state_dict`` takes them strictly; ``"parts"`` puts ``extractor.``,
                ``adapters.0.``, ``head.`` before their own; ``"auto"`` takes the former where it is possible.
            verify: As for ``load``.

        Returns:
            Path, size and description.

        Raises:
            NotFound: Nothing has that name or version.
            IntegrityError: A part is missing or damaged, or the recombination was changed since it was put together.
            UsageError: The parts are not the halves of one network, whose names were asked for; a folder is named.
            EnvironmentFailure: Disk full, no right to write; what was there before is untouched.
        """
        from compatkit.components.exports.writing import write

        if not isinstance(component, str):
            from compatkit.components.recombinations import drafted

            manifest, made = drafted(self.store, str(path), component)
            return write(path, made, manifest, names=names)
        resolved = self.store.resolve(component)
        module, manifest = self.load(component, verify=verify), self.store.manifest(resolved)
        return write(path, module, manifest, reference=pinned(resolved), digest=resolved.digest, names=names)

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
    ) -> Task:
        """Return a task whose network starts from components, for ``Trainer.fit``.

        Weights and running statistics are theirs, bit for bit; images are prepared as the extractor's contract says.
        What is published of such a fit names them as ``initialised_from``.

        Args:
            name: Used in component names.
            data: Training and test images; a ``Split`` where ``supervised`` is False.
            extractor: Reference of an extractor.
            head: Reference of a head, or of a shared head that tells classes apart; its classes, matched by name, must
                be all that ``data`` has, whose labels are brought into its order. None draws a head of the extractor's
                own network for the classes of ``data``.
            supervised: Whether the head learns the classes; else no label is read, the head stays as it is, and the
                extractor learns from regularizers alone.
            augment: See ``Task``.
            rest: Where a head is drawn: it is the rest of this network; see ``Task``.
            own_head: Whether it has a head of its own; see ``Task``.
            freeze_extractor: The extractor stays as it is, and is not published again: its component is what the head
                was trained with.

        Raises:
            NotFound: Nothing has that name or version.
            IncompatibleError: The two cannot be wired as they are; carries the report.
            UsageError: A reference is of another kind, or ``data`` has classes that the head does not know.
            DataError: Classes of the data mean the same.
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
        """Adapt an extractor to images without labels; only the loss of a frozen shared head trains it.

        Args:
            extractor: Reference of the source's extractor.
            head: Reference of the source's head; it is not changed, and need not be published again.
            auxiliary: Reference of a self-supervised shared head that the extractor was trained with.
            data: Images of the target; labels that it has are not read.
            trainer: None takes the paper's settings: ``compatkit.components.domains.paper()``.
            method: The regularizer whose head it is, where the head's manifest does not say so.
            frozen_statistics: Batch normalisation inside the shared head: ``"stored"`` or ``"batch"``.
            test: Labelled images of the target, to measure on.
            augment: See ``Task``.
            factories: Regularizers that are not installed, by name: for notebooks.

        Raises:
            NotFound: Nothing has that name or version.
            IncompatibleError: The head does not go on the extractor as it is; carries the report.
            UsageError: The extractor was not trained against that shared head; a reference is of another kind; the
                method cannot do without labels.
            DataError: There are fewer images than in a batch.
            TrainingError: A loss is not finite, or the checkpoint belongs to another plan.
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
        images: int = 1000,
        on: Literal["src", "dst", "mix"] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Bridge:
        """Bring a head to an extractor that it was not trained with, trying the cheapest way first.

        Every rung is judged by its agreement: on how many held-out images it says what the head's own network says,
        whose statistics of batch normalisation are estimated on images of this domain too. What chance gives is taken
        off (Cohen's kappa). No label is needed. Behind each rung the head's statistics are estimated anew.

        Args:
            extractor: Reference of an extractor.
            head: Reference of a head; the extractor that it was trained with must be in this registry.
            data: Images of the extractor's domain, whose labels are not read; up to 500, or half of them, are held out.
            labels: Labelled images of that domain, for the rungs that are trained with labels. One of five is not
                trained on, nor are those held out of ``data``: by these such a rung is chosen, and judged.
            test: Labelled images to measure accuracy on; nothing is chosen by them.
            head_data: Images of the head's domain, to pair features on; labels are not read.
            rungs: Of ``compatkit.components.bridges.ladder.RUNGS``; None takes all but ``"infomax"``, and those that
                need labels only where there are some.
            until: Agreement from which no further rung is climbed, if the bridge also fits; None climbs all.
            images: How many to fit on at most.
            on: Where features are paired: ``"src"``, on ``data``; ``"dst"``, on ``head_data``; ``"mix"``, on both.
                None takes ``"dst"`` where ``head_data`` is given.
            seed: Of orders and draws.
            progress: Called with rungs done, rungs in all, and the rung's name.

        Raises:
            IncompatibleError: The parts cannot be wired, the head's own extractor is not here, or no rung could be
                climbed; says why.
            DataError: Too few images, features that are not finite or do not change, no class in common.
            UsageError: A setting is not usable as given.
        """
        from compatkit.components.bridges.climbing import bridge
        from compatkit.components.bridges.ground import BridgeRequest

        request = BridgeRequest(
            data=data,
            labels=labels,
            test=test,
            head_data=head_data,
            rungs=rungs,
            until=until,
            images=images,
            on=on if on is not None else "src" if head_data is None else "dst",
            seed=seed,
            progress=progress,
        )
        return bridge(self.store, extractor, head, request)

    def frozen(
        self,
        heads: str | Sequence[str] = (),
        *,
        head: str | None = None,
        extractor: str | None = None,
    ) -> dict[str, AuxiliaryHead | ReleasedExtractor]:
        """Return what a run is trained against, for ``Trainer.fit(..., frozen=...)``.

        Args:
            heads: Shared auxiliary heads to train new parts against: pattern, or patterns.
            head: Reference of a released target head to stay compatible with, for ``backward_compatibility``.
            extractor: Reference of a released extractor, for its forward term and for ``feature_distillation``.

        Raises:
            NotFound: Nothing has that name or version; a pattern matches nothing.
            UsageError: A reference or match is of another kind, or the classes of ``head`` have no names.
            IntegrityError: A part is damaged.
        """
        from compatkit.components.tasks import frozen_parts

        return frozen_parts(self.store, heads, head, extractor)

    def alias(
        self, name: str, alias: str, version: str | None, *, expected: str | Anything | None = ANY
    ) -> None:
        """Point an alias at a version, or remove it with None; the move is kept in the component's log.

        After ``registry.alias("digits/mnist.head", "prod", "1.2.0")`` that version is ``"digits/mnist.head:prod"``.

        Args:
            name: Of the component.
            alias: One segment, ``"prod"``.
            version: A version that is not withdrawn.
            expected: Version that it must point at now, None if it must not exist; by default it is moved in any case,
                which may undo a move by someone else.

        Raises:
            AliasMoved: It points elsewhere than expected.
            NotFound: No such name or version.
        """
        self.store.versions(name)
        self.store.set_alias(name, alias, version, expected=expected)

    def withdraw(self, reference: str, *, reason: str) -> None:
        """Withdraw a version: only its digest finds it any more, and its number is never used again.

        Args:
            reference: With its version: ``"digits/mnist.head@1.1.0"``.
            reason: Shown to everybody who asks for this version.

        Raises:
            NotFound: No such version.
            UsageError: No version is named, or no reason given.
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
        """What new versions must keep working with, by scope: set, cleared, tested."""
        return Policies(self.store)

    @property
    def bridges(self) -> Bridges:
        """Published bridges, and bridges of many pairs for ``matrix``."""
        return Bridges(self.store)

    def push(
        self,
        remote: str,
        patterns: str | Sequence[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        create: bool = False,
        measure: bool = False,
        data: Given = (),
        **choice: Any,
    ) -> Moved:
        """Copy components to a remote; only what is missing moves.

        Args:
            remote: A folder, ``s3://bucket/prefix``, ``hf://datasets/USER/NAME``, or what else fsspec reaches.
            patterns: Such as ``"digits/*"``; None takes all components.
            options: Of the fsspec file system, such as ``{"endpoint_url": ...}``.
            create: Make the remote a registry if it is none; else an address without one is an error.
            measure: Where the remote is a folder with policies: measure what they ask and no evidence tells.
            data: Images at hand for that.
            choice: ``versions`` (``"all"``, ``"latest"``), ``aliases``, ``evidence``, ``unmeasured``, ``jobs``,
                ``dry_run``, ``progress``: see ``compatkit.registry.copy.choice.Choice``.

        Raises:
            Incomplete: Something was refused, such as a number that belongs to other bytes there; the rest moved.
            NotFound: A pattern matches nothing.
            LayoutError: There is no registry at the remote, and ``create`` is False.
            EnvironmentFailure: No right, no network; the same call goes on where it stopped.
        """
        from compatkit.components.deciding import deciding
        from compatkit.registry.copy.choice import Choice
        from compatkit.registry.remotes.pushpull import push

        chosen = Choice.of({"deciding": deciding(measure=measure, data=data), "create": create, **choice})
        return push(self.store, remote, patterns, options=options, choice=chosen).check()

    def pull(
        self,
        remote: str,
        patterns: str | Sequence[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        require_signature: Trust = False,
        measure: bool = False,
        data: Given = (),
        **choice: Any,
    ) -> Moved:
        """Copy components of a remote to this registry, verified while they arrive; nothing here is overwritten.

        Args:
            remote: As for ``push``; only read.
            patterns: Such as ``"digits/*"``; None takes all components.
            options: Of the fsspec file system.
            require_signature: Signature that every component needs, besides what ``open`` asks for; a component
                without one is refused before anything of it is copied.
            measure: Measure what policies here ask and no evidence tells.
            data: Images at hand for that.
            choice: As for ``push``.

        Raises:
            Incomplete: Something was refused: other bytes than promised, a number that belongs to other bytes here or
                lies, a policy here that is broken or undecided, no signature that counts; the rest came.
            KeyFileError: The trusted keys cannot be determined.
            MissingDependency: Signatures are required, and ``cryptography`` is not installed.
            NotFound: A pattern matches nothing.
            LayoutError: The remote is no registry.
            EnvironmentFailure: No right, no network, disk full; the same call goes on where it stopped.
        """
        from compatkit.components.deciding import deciding
        from compatkit.registry.copy.choice import Choice
        from compatkit.registry.remotes.pushpull import pull

        chosen = Choice.of({"deciding": deciding(measure=measure, data=data), **choice}).requiring(
            require_signature
        )
        return pull(self.store, remote, patterns, options=options, choice=chosen).check()

    def _told(self) -> str:
        """Return where it is and what is in it: the first names with their latest versions."""
        where = f"Registry({str(self.store.root)!r})"
        try:
            count = len(self)
            shown = self.search(latest=True, limit=LINES - 10)
        except CompatkitError as error:  # a value that cannot be read is still shown
            return f"{where}: {error}"
        more = [f"... and {count - len(shown):,} more names"] if count > len(shown) else []
        return "\n".join(
            [f"{where}: {count:,} component{'' if count == 1 else 's'}", *str(shown).split("\n"), *more]
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what was renamed, with a warning that says its name now."""
            former = FORMER.get(name)
            if former is None:
                raise AttributeError(f"'Registry' object has no attribute {name!r}", name=name, obj=self)
            warnings.warn(f"Registry.{name} is now Registry.{former.path}", DeprecationWarning, stacklevel=2)
            return former.of(self)


def _inserted(bridges: Mapping[tuple[str, str], Bridge], policy: str) -> Adapters:
    """Return the adapters of bridges; a matrix without any is asked for without torch."""
    from compatkit.components.bridges.ladder import inserted

    return inserted(bridges, policy)
