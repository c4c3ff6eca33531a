"""The public registry: the store, and on top of it building, checking, recombining and measuring."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.compatibility import Report
from compatkit.components import load, pinned, registered
from compatkit.errors import UsageError
from compatkit.pairs import check_pairs
from compatkit.policing import Policing
from compatkit.registry.changes.differences import Difference, diff
from compatkit.registry.manifest import About, Manifest
from compatkit.registry.names import Reference, check_name
from compatkit.registry.objects import Verify
from compatkit.registry.signing.trust import Trust, Trusted
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compatkit.contract import Data
    from compatkit.data.dataset import Split
    from compatkit.evaluation.adapter import Adapter
    from compatkit.evaluation.matrix import Adapters, LoadedPart
    from compatkit.evaluation.recombination import Recombination
    from compatkit.exports.writing import Written
    from compatkit.outcomes import Outcome
    from compatkit.promises import Given
    from compatkit.registry.care import Care
    from compatkit.registry.copying.moved import Moved
    from compatkit.registry.copying.vouchers import Accept
    from compatkit.registry.index.search import Found
    from compatkit.registry.signing.signer import SigningKey
    from compatkit.registry.signing.verification import Verdict
    from compatkit.registry.signing.vouching import Signed
    from compatkit.releasing import Release
    from compatkit.reports.matrix import Matrix
    from compatkit.reports.verdicts import Verdicts
    from compatkit.training.context import AuxiliaryHead
    from compatkit.training.fit import Fit

Progress = Callable[[int, int, str], None]
"""Called with done, total and what is being done."""


@attrs.frozen(eq=False)
class Registry(Policing):
    """Components under versioned names in one folder.

    Attributes:
        store: The files; it stores and finds, and knows no network.
    """

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
            require_signature: Whose signature every component must have that is built, recombined or measured here:
                True for the keys that you trust (``compatkit keys``), a folder of public keys, a file or a key; see
                ``compatkit.signing``. False or None asks for none.

        Raises:
            LayoutError: There is no registry, or one that this version cannot read.
            KeyFileError: It cannot be found out whom to trust.
            MissingDependency: Signatures are required, and ``cryptography`` is not installed.
        """
        trusted = None
        if require_signature is not False and require_signature is not None:
            from compatkit.registry.signing.ed25519 import check_installed

            trusted = Trusted.of(require_signature)
            check_installed()
        return cls(Store.find(trusted=trusted) if root is None else Store.open(root, trusted))

    def publish(
        self,
        fit: Fit,
        *,
        prefix: str,
        version: str | None = None,
        major: bool = False,
        about: About | None = None,
        data: Given = (),
        progress: Progress | None = None,
    ) -> dict[str, str]:
        """Store the parts of a fit: extractors, then shared auxiliary heads, then heads.

        Everything is derived and proved, and every policy answered, before the first version is linked. A group
        publish is retryable, not atomic: after a failure the same call completes it, and what is there already is
        left as it is.

        Args:
            fit: From ``Trainer.fit``.
            prefix: Names become ``<prefix>/<task>.extractor``, ``<prefix>/shared.<name>``, ``<prefix>/<task>.head``.
            version: For all parts; None takes the least step that the change demands, 1.0.0 for a new name.
            major: Each part takes its next MAJOR number, which policies do not bind: a deliberate break.
            about: Title, description, tags, licence and source for all parts.
            data: Images that policies are decided on, where they are neither the fit's own nor found by name.
            progress: Called with done, total and what is being done, while policies are measured.

        Returns:
            Pinned references ``name@version`` by ``"<task>.extractor"``, ``"shared.<name>"``, ``"<task>.head"``.

        Raises:
            PolicyBroken: A part does not work with a released partner; carries the outcome with its matrix.
            PolicyDataMissing: The images that decide a policy are not at hand.
            CutError: Rebuilt parts do not reproduce the trained network.
            VersionExists: The version is taken by other bytes.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            EnvironmentFailure: Disk full, no right to write.
        """
        published = self._release(fit, prefix, about, version, major, data, progress).publish()
        return {key: pinned(reference) for key, reference in published.items()}

    def rehearse(
        self,
        fit: Fit,
        *,
        prefix: str,
        version: str | None = None,
        major: bool = False,
        data: Given = (),
        progress: Progress | None = None,
    ) -> dict[str, Outcome]:
        """Return what policies say of the parts of a fit, without publishing them; the figures are kept.

        Arguments as for ``publish``; the parts' bytes are put, and ``gc`` collects them.

        Raises:
            PolicyDataMissing: The images that decide a policy are not at hand.
        """
        return self._release(fit, prefix, None, version, major, data, progress).rehearse()

    def _release(
        self,
        fit: Fit,
        prefix: str,
        about: About | None,
        version: str | None,
        major: bool,
        data: Given,
        progress: Progress | None,
    ) -> Release:
        from compatkit.releasing import Release

        return Release.of(
            self.store, fit, prefix, about=about, version=version, major=major, data=data, progress=progress
        )

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
        """Take in a checkpoint of timm, torchvision or a plugin's network as an extractor and a head.

        Safetensors are read here; what ``torch.save`` wrote is unpickled as tensors only, by a process of its own with
        limits of time and memory. The parts reproduce the network bitwise before anything is published.

        Args:
            path: Of the file; its name, sha256, format, and what was unwrapped are recorded in both manifests.
            name: Names become ``<name>.extractor`` and ``<name>.head``.
            model: Network that the weights were saved from.
            point: Where to cut it: a module path, or ``"forward_features"``.
            builder: Who builds it.
            kwargs: Further arguments of the network; the counts of classes and of image channels are read from the
                weights unless they are given.
            size: Height and width of the images; None takes the network's own.
            key: Entry of the file that holds the state dict, such as ``"model_ema"``; None takes the usual one.
            labels: Class names in the order of the outputs.
            data: Images that the features are measured on.
            images: What is known better than the network's own configuration; see ``splitting.split``.
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
        from compatkit.adopting import adopt, check_target

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
        return adopted.publish(self, name, about=about)

    def register(
        self,
        name: str,
        manifest: Manifest,
        state: Mapping[str, Tensor],
        *,
        version: str | None = None,
        major: bool = False,
        data: Given = (),
        progress: Progress | None = None,
    ) -> str:
        """Publish a component that was not trained here, once its contract is proved by its module.

        The module is built from the blueprint and the weights; ports are derived anew and compared with the stated
        ones. Nothing is written before.

        Args:
            name: One to three segments, ``"zoo/resnet.extractor"``.
            manifest: States blueprint and contract; its payload is replaced by that of ``state``, and a probe is
                added where it has none. Blobs and parents that it names must be in the registry.
            state: Tensors by name.
            version: None takes the least step that the change demands, 1.0.0 for a new name.
            major: Take the next MAJOR number, which policies do not bind: a deliberate break.
            data: Images that a policy is decided on, where they are not found by name.
            progress: Called with done, total and what is being done, while a policy is measured.

        Returns:
            Pinned reference ``name@version``.

        Raises:
            PolicyBroken: It does not work with a released partner; carries the outcome with its matrix.
            PolicyDataMissing: The images that decide a policy are not at hand.
            IntegrityError: The contract does not tell the truth about its weights; lists every lie.
            FormatError: A value is none that a contract can hold.
            UnknownName: The blueprint's builder or model is not known here.
            VersionExists: The version is taken by other bytes.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit import promises

        check_name(name)

        def publish(kept: Manifest, module: nn.Module) -> Reference:
            return promises.publish(
                self.store, name, kept, module, version=version, major=major, data=data, progress=progress
            )

        return pinned(registered(self.store, name, manifest, state, publish))

    def manifest(self, reference: str) -> Manifest:
        """Return the manifest that a reference points at; reads no weights."""
        return self.store.manifest(reference)

    def names(self, pattern: str | None = None) -> list[str]:
        """Return component names, sorted; ``pattern`` is a glob over whole names."""
        return self.store.names(pattern)

    def search(self, **filters: Any) -> list[Found]:
        """Return the components that fit all filters, by name and rising version; reads no manifests.

        Args:
            filters: ``pattern`` (glob over names), ``kind``, ``tags`` (a mapping), ``model`` (glob), ``channels``,
                ``label`` (a class), ``anchor``, ``parent``, ``text``, ``latest``, ``withdrawn``, ``limit``, ``offset``:
                see ``compatkit.registry.index.search.Query``.

        Raises:
            UsageError: A filter is unknown, or not usable as given.
        """
        return self.store.index.search(**filters)

    @property
    def care(self) -> Care:
        """Examining, mending, collecting unused blobs, disk usage, history, import."""
        from compatkit.admitting import deciding
        from compatkit.registry.care import Care

        return Care(self.store, deciding())

    def push(
        self,
        remote: str,
        patterns: str | Sequence[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        measure: bool = False,
        data: Given = (),
        **choice: Any,
    ) -> Moved:
        """Copy components to a remote, which becomes a registry if it is none; only what is missing moves.

        Args:
            remote: A folder, ``s3://bucket/prefix``, ``hf://datasets/USER/NAME``, or what else fsspec reaches.
            patterns: Such as ``"digits/*"``; None takes all there is.
            options: Of the fsspec file system, such as ``{"endpoint_url": ...}``.
            measure: Where the remote is a folder with policies: measure what they ask and no evidence tells.
            data: Images at hand for that.
            choice: ``versions`` (``"all"``, ``"latest"``), ``aliases``, ``evidence``, ``unmeasured``, ``jobs``,
                ``dry_run``, ``progress``: see ``compatkit.registry.remotes.transferring.Choice``.

        Raises:
            Incomplete: Something was refused, such as a number that belongs to other bytes there; the rest moved.
            NotFound: A pattern matches nothing.
            EnvironmentFailure: No right, no network; the same call goes on where it stopped.
        """
        from compatkit.admitting import deciding
        from compatkit.registry.remotes.transferring import Choice, push

        chosen = Choice.of({"deciding": deciding(measure=measure, data=data), **choice})
        return push(self.store, remote, patterns, options=options, choice=chosen).check()

    def pull(
        self,
        remote: str,
        patterns: str | Sequence[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        accept: Accept | None = None,
        measure: bool = False,
        data: Given = (),
        **choice: Any,
    ) -> Moved:
        """Copy components of a remote to this registry, verified while they arrive; nothing here is overwritten.

        Args:
            remote: As for ``push``; only read.
            patterns: Such as ``"digits/*"``; None takes all there is.
            options: Of the fsspec file system.
            accept: Is given a manifest's digest, its signatures as they were found and ``name@version``, before
                anything of the component comes; refuses it by an exception.
            measure: Measure what policies here ask and no evidence tells.
            data: Images at hand for that.
            choice: As for ``push``.

        Raises:
            Incomplete: Something was refused: other bytes than promised, a number that belongs to other bytes here or
                lies, a policy here that is broken or undecided, not accepted; the rest came.
            NotFound: A pattern matches nothing.
            LayoutError: The remote is no registry.
            EnvironmentFailure: No right, no network, disk full; the same call goes on where it stopped.
        """
        from compatkit.admitting import deciding
        from compatkit.registry.remotes.transferring import Choice, pull

        decides = deciding(measure=measure, data=data)
        chosen = Choice.of({"deciding": decides, **choice, "accept": accept})
        return pull(self.store, remote, patterns, options=options, choice=chosen).check()

    @classmethod
    def clone(
        cls,
        remote: str,
        root: str | os.PathLike[str],
        *,
        options: Mapping[str, Any] | None = None,
        accept: Accept | None = None,
        **choice: Any,
    ) -> Registry:
        """Make a new registry in the folder ``root`` with all that a remote holds: see ``pull``.

        Raises:
            Incomplete: Something was refused; the registry holds the rest.
            LayoutError: The folder is a registry or holds other files; the remote is no registry.
            EnvironmentFailure: No right, no network, disk full; ``pull`` goes on where it stopped.
        """
        from compatkit.registry.remotes.transferring import Choice, clone

        chosen = Choice.of({**choice, "accept": accept})
        store, moved = clone(remote, Path(root), options=options, choice=chosen)
        moved.check()
        return cls(store)

    def build(
        self, reference: str, *, verify: Verify = "auto", require_signature: Trust = False
    ) -> nn.Module:
        """Return a component's module with its weights, in eval mode; its contract is checked in one pass.

        A recombination is put together from its parts: see ``load_recombination``.

        Large weights on a local disk are mapped and not copied; training them changes this process only.

        Args:
            reference: Such as ``"digits/mnist.head@^1"``.
            verify: ``"auto"`` hashes the weights and runs the probe the first time, and again when the file or a
                library changed; ``"always"`` each time; ``"never"`` trusts the disk and the libraries.
            require_signature: Whose signature it must have, as in ``open``.

        Raises:
            NotFound: Nothing has that name or version.
            SignatureError: It has no signature that counts; the class says why.
            IntegrityError: The bytes, or the module that they make, are not what the manifest states.
        """
        found = self.store.resolve(reference)
        if self.store.manifest(found).kind == "recombination":
            return self.load_recombination(reference, verify=verify, require_signature=require_signature)
        return load(self.store, found, verify=verify, require_signature=require_signature).module

    def sign(
        self,
        references: str | Iterable[str],
        key: SigningKey | str | os.PathLike[str],
        *,
        expires: str | None = None,
        named: bool = True,
        every: bool = False,
    ) -> list[Signed]:
        """Sign components, as the names and versions that they have here; see docs/signatures.md.

        Args:
            references: One or several; a name may be a glob, which means the latest version of each. A bare digest is
                signed without a name.
            key: A private key, or its file (a passphrase is taken from COMPATKIT_KEY_PASSPHRASE).
            expires: ``"365d"``, ``"2027-01-31"``; None ends with the key.
            named: False vouches for the bytes under any name.
            every: Sign all versions of a name or glob that were not withdrawn, and not only the latest.

        Returns:
            One signature of each; one of this key that says as much and lasts as long is kept, and not made again.

        Raises:
            NotFound: A reference means nothing.
            KeyFileError: The key cannot be used; its subclasses say why.
            IntegrityError: A manifest is damaged.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.registry.signing import moments
        from compatkit.registry.signing.signer import SigningKey
        from compatkit.registry.signing.vouching import sign

        used = key if isinstance(key, SigningKey) else SigningKey.load(key)
        ends = None if expires is None else moments.until(expires)
        return sign(self.store, references, used, expires=ends, named=named, every=every)

    def signatures(self, reference: str) -> list[Verdict]:
        """Return what the signatures of a component say of themselves; none is verified, and none is believed."""
        from compatkit.registry.signing.vouching import statements

        return statements(self.store, reference)

    def verify_signatures(self, reference: str, trusted: Trust = True) -> list[Verdict]:
        """Return what was found out about each signature of a component, at least one of which counts.

        Args:
            reference: A name means that it must be signed as this name and version; a bare digest means the bytes.
            trusted: Whose signatures count, as in ``open``.

        Raises:
            Unsigned, UnknownSigner, BadSignature, SignatureExpired, ...: No signature counts; all are subclasses of
                SignatureError, and say what to do.
            KeyFileError: It cannot be found out whom to trust.
            MissingDependency: ``cryptography`` is not installed.
        """
        from compatkit.registry.signing.vouching import verify

        return verify(self.store, reference, trusted)

    def check(self, extractor: str, head: str, *, data: Data | None = None) -> Report:
        """Compare the contracts of an extractor and a head, and what was measured of them; reads no weights."""
        left, right = self.store.resolve(extractor), self.store.resolve(head)
        return check_pairs(self.store, [left], [right], data=data).report(str(left), str(right))

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
        lefts, rights = ([one] if isinstance(one, str) else one for one in (extractors, heads))
        return check_pairs(self.store, lefts, rights, data=data)

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
        from compatkit.registry.changes.tensors import tensor_changes

        states = self.store.load_state(before), self.store.load_state(after)
        return attrs.evolve(found, tensors=tensor_changes(*states))

    def recombine(
        self,
        extractor: str,
        head: str,
        *,
        normalisation: str = "running",
        images: Split | None = None,
        adapt: bool = False,
        data: Split | None = None,
        adapters: str | Sequence[str] = (),
    ) -> Recombination:
        """Put the head of one network on the extractor of another, once their contracts allow it.

        Args:
            extractor: Reference of an extractor.
            head: Reference of a head.
            normalisation: ``"running"`` keeps the stored statistics, ``"batch"`` takes those of each batch,
                ``"reestimate"`` estimates them anew on ``images``.
            images: Unlabelled images for ``"reestimate"``.
            adapt: Put in the adapters that the check names; those without parameters only, unless there is ``data``.
            data: Unlabelled images to fit an adapter with weights on (``project``), where one is needed: the
                features are brought to those of the extractor that the head was trained with.
            adapters: References of published adapters, in the order in which the features pass them.

        Raises:
            IncompatibleError: The parts cannot be wired, or only with an adapter that was not asked for, or that
                needs ``data``; carries the report.
            UsageError: ``data`` without ``adapt``; ``images`` that the policy does not use, or misses.
        """
        from compatkit.data.dataset import Split
        from compatkit.evaluation.recombination import Recombination
        from compatkit.seams import load_adapter, put_in, route

        if data is not None and not isinstance(data, Split):
            raise UsageError(
                f"data= expects a Split of images, got a {type(data).__name__}. Pass data.train of a data set."
            )
        report = self.check(extractor, head)
        first, second = self.store.resolve(extractor), self.store.resolve(head)
        given = [
            load_adapter(self.store, one) for one in ([adapters] if isinstance(adapters, str) else adapters)
        ]
        manifests = self.store.manifest(first), self.store.manifest(second)
        places = route(*manifests, report, given, adapt=adapt, data=data)
        left, right = load(self.store, first), load(self.store, second)
        made = put_in(self.store, places, left, right, data)
        return Recombination.of(
            left, right, report, normalisation=normalisation, images=images, adapters=made
        )

    def publish_adapter(
        self, name: str, adapter: Adapter, *, version: str | None = None, about: About | None = None
    ) -> str:
        """Keep an adapter as a component, to be named in ``recombine(..., adapters=[...])``.

        Args:
            name: Such as ``"digits/bridge"``.
            adapter: One of ``Recombination.inserted``.
            version: None takes the least step that the change demands, 1.0.0 for a new name.
            about: Title, description, tags, licence and source.

        Returns:
            Pinned reference ``name@version``.

        Raises:
            VersionExists: The version is taken by other bytes.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            IntegrityError: The extractor that it was made for is not in this registry.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.seams import publish_adapter

        check_name(name)
        return pinned(publish_adapter(self.store, name, adapter, version=version, about=about))

    def publish_recombination(
        self,
        name: str,
        recombination: Recombination,
        *,
        version: str | None = None,
        about: About | None = None,
    ) -> str:
        """Keep a recombination as a component that pins its parts by digest.

        It is put together anew from the parts in this registry and compared tensor by tensor before anything is
        written. Statistics that were estimated, and weights of adapters that are no components, go into its payload.

        Args:
            name: Such as ``"digits/mnist-usps"``.
            recombination: From ``recombine``.
            version: None takes the least step that the change demands, 1.0.0 for a new name.
            about: Title, description, tags, licence and source.

        Returns:
            Pinned reference ``name@version``.

        Raises:
            IntegrityError: A part is not in this registry, or the module was changed since it was put together.
            VersionExists: The version is taken by other bytes.
            VersionTooSmall: The version asked for is a smaller step than the change demands.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.recombinations import publish_recombination

        return pinned(publish_recombination(self.store, name, recombination, version=version, about=about))

    def load_recombination(
        self, reference: str, *, verify: Verify = "auto", require_signature: Trust = False
    ) -> Recombination:
        """Return a published recombination, in eval mode, bitwise as it was published.

        A part that was withdrawn is used all the same, with a ``WithdrawnWarning``.

        Args:
            reference: Such as ``"digits/mnist-usps@^1"``.
            verify: As for ``build``, for all parts.
            require_signature: Whose signature it must have, as in ``open``; it covers its parts, by their digests.

        Raises:
            NotFound: Nothing has that name or version.
            SignatureError: It has no signature that counts; the class says why.
            UsageError: It is no recombination.
            IntegrityError: A part is missing or damaged, or the whole is not what its manifest states.
            IncompatibleError: By the rules of this version the parts cannot be wired; carries the report.
        """
        from compatkit.recombinations import load_recombination

        return load_recombination(self.store, reference, verify=verify, require_signature=require_signature)

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
            verify: As for ``build``.

        Returns:
            Path, size and description.

        Raises:
            NotFound: Nothing has that name or version.
            IntegrityError: A part is missing or damaged, or the recombination was changed since it was put together.
            UsageError: The parts are not the halves of one network, whose names were asked for; a folder is named.
            EnvironmentFailure: Disk full, no right to write; what was there before is untouched.
        """
        from compatkit.exports.writing import write

        if not isinstance(component, str):
            from compatkit.recombinations import drafted

            manifest, made = drafted(self.store, str(path), component)
            return write(path, made, manifest, names=names)
        resolved = self.store.resolve(component)
        module, manifest = self.build(component, verify=verify), self.store.manifest(resolved)
        return write(path, module, manifest, reference=pinned(resolved), digest=resolved.digest, names=names)

    def matrix(
        self,
        extractors: str | Sequence[str],
        heads: str | Sequence[str],
        data: Sequence[Split] | Mapping[str, Split] | None = None,
        *,
        normalisation: str = "batch",
        batch_size: int = 256,
        seed: int = 0,
        precision: str = "float32",
        device: str = "cpu",
        fill: str = "missing",
        where: str | Sequence[str] = (),
        adapters: Adapters | None = None,
        progress: Progress | None = None,
        record: bool = True,
    ) -> Matrix:
        """Return what every extractor with every head reaches, on the extractor's own test set.

        Evidence comes first: a cell is taken where a result is kept under exactly the conditions asked for, and no
        weight is read for it. What is missing is measured, each extractor running once over its images with the heads
        that are wanted, and kept as soon as the extractor is done. ``settings["cells"]`` of the matrix says how many
        cells were taken and how many measured.

        Args:
            extractors: Pattern, or patterns, such as ``"digits/*.extractor"``; what is of another kind is passed over.
            heads: Pattern, or patterns.
            data: Test sets; an extractor takes the one of the data set it was trained on (by the name before
                the slash: ``mnist/train`` and ``mnist/test``), or a mapping from extractor pattern to test set. None,
                with ``fill="none"`` only: the images that each extractor was last measured on, as they were then.
            normalisation: ``"batch"`` (as in the paper), ``"reestimate"`` or ``"running"``.
            batch_size: Images in a batch; part of the result unless under ``"running"``.
            seed: Of the order of the images, part of the result unless under ``"running"``.
            precision: ``"float32"``, or ``"bfloat16"`` by autocast.
            device: Where to run, if anything runs; ``"auto"`` takes an accelerator where there is one.
            fill: ``"missing"`` measures what nothing is known of, ``"stale"`` also what changed since (another version
                of the metric, other images of the same name, another head that gives the bound), ``"all"`` everything
                anew, with a warning where figures differ from those kept under the same key, ``"none"`` nothing.
            where: Filters ``FIELD=VALUE`` of components and cells, all of which must fit: see
                ``compatkit.matrices.where``.
            adapters: ``Recombination.inserted`` by the pinned references of extractor and head, for pairs that are
                to be measured with adapters between; kept under a key of their own, never as evidence of the pair.
            progress: Called with done, total and what is being done.
            record: Keep the figures in the registry as evidence, for ``check`` to read.

        Raises:
            NotFound: A pattern matches nothing, or nothing fits the filters.
            UsageError: A setting or a filter is not usable as given; a reference that is no pattern is of another kind.
            DataError: An extractor has no test set among ``data``, or more than one.
        """
        from compatkit.evaluation.conditions import Conditions
        from compatkit.matrices.filling import Request, answer, check_fill
        from compatkit.matrices.where import parse

        request = Request(
            extractors=extractors,
            heads=heads,
            data=data,
            terms=Conditions(normalisation, batch_size, seed, precision, device),
            where=parse(where),
            fill=check_fill(fill),
            adapters=adapters,
            record=record,
            progress=progress,
        )
        return answer(self.store, request)

    def auxiliary_heads(self, pattern: str | Sequence[str]) -> dict[str, AuxiliaryHead]:
        """Return shared heads to train new parts against: ``Trainer.fit(..., frozen=...)``.

        Raises:
            NotFound: The pattern matches nothing.
            UsageError: A match is no auxiliary head.
        """
        from compatkit.training.context import AuxiliaryHead
        from compatkit.training.networks import parameters_digest

        found: dict[str, AuxiliaryHead] = {}
        for part in self._select(pattern, "auxiliary_head"):
            name = part.reference.split("@")[0].rsplit(".", 1)[-1]
            if name in found:
                raise UsageError(
                    f"{', '.join([pattern] if isinstance(pattern, str) else pattern)} means several heads {name!r}, "
                    f"{part.reference} among them; a run takes one. Narrow the pattern."
                )
            labels = part.manifest.contract.data.labels
            found[name] = AuxiliaryHead(
                name,
                part.manifest.blueprint,
                part.module,
                labels,
                frozen=True,
                digest=parameters_digest(part.module),
                origin=part.digest,
                initials=tuple(part.manifest.training.get("initial", ())),
            )
        return found

    def select(self, patterns: str | Sequence[str], kind: str) -> list[Reference]:
        """Return what patterns mean, each component once; reads no weights.

        Args:
            patterns: Such as ``"digits/*.head@^1"``.
            kind: What all matches must be: ``"extractor"``, ``"head"``, ``"auxiliary_head"``, ...

        Raises:
            NotFound: A pattern matches nothing.
            UsageError: A match is of another kind.
        """
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        found: dict[str, Reference] = {}
        for reference in (one for pattern in wanted for one in self.store.select(pattern)):
            found.setdefault(str(reference.digest), reference)
        for reference in found.values():
            came = self.store.manifest(reference).kind
            if came != kind:
                raise UsageError(
                    f"{pinned(reference)} is of kind {came}, where {kind} is expected; narrow the pattern "
                    f"{', '.join(wanted)}."
                )
        return list(found.values())

    def _select(self, patterns: str | Sequence[str], kind: str) -> list[LoadedPart]:
        return [load(self.store, reference) for reference in self.select(patterns, kind)]
