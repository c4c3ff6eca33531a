"""The store: publish, resolve, load and list components; knows no neural network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.manifest import Edge, Manifest, Payload, from_bytes, function_digest, manifest_digest
from compatkit.errors import IntegrityError, NotFound, UsageError, VersionUntrue
from compatkit.foundation import cache
from compatkit.foundation.addresses import local
from compatkit.foundation.arguments import texts_of
from compatkit.foundation.codec import MAX_BYTES, is_digest
from compatkit.registry import resolving
from compatkit.registry.aliases import ANY, AliasEntry, Aliases, Anything
from compatkit.registry.blobs import Objects, Verify
from compatkit.registry.layout import Layout, initialize, inspect, locate
from compatkit.registry.memory import Memory
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.refs import References, Tombstone
from compatkit.registry.signing.signatures import Signatures

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.registry.evidence import Evidence
    from compatkit.registry.holding import PayloadFacts
    from compatkit.registry.index.lookup import Index
    from compatkit.registry.policies import Policy
    from compatkit.registry.policylog import PolicyLog, Revision
    from compatkit.registry.publish import Decide, Publisher
    from compatkit.registry.required_partners import PartnerFinder, Question
    from compatkit.registry.signing.trust import Trusted


MANIFESTS = 256
"""Decoded manifests that a store keeps; what a digest names never changes."""


@contextmanager
def naming_component(component: str) -> Iterator[None]:
    """Add to errors about stored bytes which component was read."""
    try:
        yield
    except IntegrityError as error:
        error.add_note(f"Read for {component}.")
        raise


def _of(make: Callable[[Store], Any]) -> Any:
    return attrs.Factory(make, takes_self=True)


@attrs.frozen(eq=False)
class Store:
    """A registry folder. Reading never writes; any number of processes may publish at once.

    Attributes:
        root: The folder.
        layout: What its ``compatkit.json`` says.
        trusted: Whose signature every component must have that is loaded; None asks for no signature.
        memory: What this machine remembers about the registry's files; disposable.
        objects: Its blobs.
        references: Its names and versions.
    """

    root: Path
    layout: Layout = attrs.field(repr=False)
    trusted: Trusted | None = attrs.field(default=None, repr=False)
    memory: Memory = attrs.field(
        init=False, repr=False, default=_of(lambda store: Memory(cache.folder(store.root, store.id)))
    )
    objects: Objects = attrs.field(
        init=False, repr=False, default=_of(lambda store: Objects(store.root, store.memory))
    )
    references: References = attrs.field(
        init=False, repr=False, default=_of(lambda store: References(store.root))
    )
    _payloads: dict[str, PayloadFacts] = attrs.field(init=False, repr=False, factory=dict)
    _made: dict[str, Index] = attrs.field(init=False, repr=False, factory=dict)
    _decoded: Callable[[str], Manifest] = attrs.field(
        init=False, repr=False, default=_of(lambda store: lru_cache(MANIFESTS)(store._read_manifest))
    )

    @classmethod
    def init(cls, root: str | os.PathLike[str], *, exist_ok: bool = False) -> Store:
        """Make a registry in ``root``, and the folder if it is not there.

        Args:
            root: Folder of the registry.
            exist_ok: Whether an existing registry is opened.

        Raises:
            LayoutError: It is one already and ``exist_ok`` is False, or one that this version cannot use.
            EnvironmentFailure: The folder cannot be made or written.
        """
        path = Path(local(root, "a registry")).absolute()
        return cls(path, initialize(path, exist_ok=exist_ok))

    @classmethod
    def open(cls, root: str | os.PathLike[str], trusted: Trusted | None = None) -> Store:
        """Open the registry in ``root``.

        Args:
            root: The folder.
            trusted: Whose signature every component must have that is loaded.

        Raises:
            LayoutError: The folder is no registry, or its layout is too new.
        """
        path = Path(local(root, "a registry")).absolute()
        return cls(path, inspect(path), trusted)

    @classmethod
    def find(cls, start: str | os.PathLike[str] | None = None, trusted: Trusted | None = None) -> Store:
        """Open what COMPATKIT_REGISTRY names, else the nearest registry from ``start`` upwards.

        Args:
            start: Folder to begin at; None for the current one.
            trusted: As for ``open``.

        Raises:
            LayoutError: There is none, or its layout is too new.
        """
        return cls.open(locate(start), trusted)

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[Path, Trusted | None]]:
        """Pickle as root and trust: a spawned process opens its own connections."""
        return Store.open, (self.root, self.trusted)

    @property
    def id(self) -> str:
        """Identity of the registry; a copy keeps it."""
        return self.layout.id

    @property
    def index(self) -> Index:
        """The search index; disposable, and opened on first use, because most commands never ask it."""
        if "index" not in self._made:
            from compatkit.registry.index.lookup import Index

            # one step, so that threads that ask at once share one; a lock might be held when a process forks
            self._made.setdefault("index", Index.of(self.root, self.id, self.objects, self.references))
        return self._made["index"]

    def put_blob(self, data: bytes) -> Edge:
        """Write bytes durably under their digest and return the edge for a manifest.

        Raises:
            EnvironmentFailure: Disk full, no right to write, ...; nothing is kept.
        """
        self.layout.check_writer(self.root)
        return self.objects.put(data)

    def read_blob(self, digest: str, *, verify: Verify = "auto") -> bytes:
        """Return verified bytes.

        Args:
            digest: ``sha256:...``.
            verify: ``"auto"`` hashes once and after any change of the file; or ``"always"``, ``"never"``.

        Raises:
            IntegrityError: Missing, or not the bytes the digest promises (then moved to quarantine).
        """
        return self.objects.read(digest, verify=verify)

    def put_state(self, state: Mapping[str, Tensor], *, parameters: int, nonfinite: bool = False) -> Payload:
        """Write tensors as a safetensors blob and return the payload for a manifest.

        Args:
            state: A module's ``state_dict()``.
            parameters: Number of trained numbers, buffers not included.
            nonfinite: Whether NaN, infinity and negative variances are allowed.

        Raises:
            FormatError: A tensor's name, dtype or layout cannot be stored.
            IntegrityError: A tensor holds values that are not finite, or negative variances.
            EnvironmentFailure: Disk full, no right to write, ...
        """
        from compatkit.registry.holding import PayloadFacts
        from compatkit.registry.weights.tensorchecks import NOT_PUBLISHED, check_values
        from compatkit.registry.weights.tensorfile import pieces, state_digest

        self.layout.check_writer(self.root)
        if not nonfinite:
            check_values(state, "The weights", NOT_PUBLISHED)
        edge, tensors = self.objects.put(*pieces(state)), state_digest(state)
        self._payloads[edge.blob] = PayloadFacts(tensors, len(state))
        return Payload(edge, tensors, len(state), parameters)

    def load_state(self, component: Manifest | Payload, *, verify: Verify = "auto") -> dict[str, Tensor]:
        """Return a component's tensors, on the CPU.

        Large files on a local disk are mapped, not copied; writes into the tensors stay in this process.

        Args:
            component: Its manifest or payload.
            verify: As in ``read_blob``; ``"always"`` also computes the tensor digest again.

        Returns:
            Tensors by name.

        Raises:
            IntegrityError: The file is missing, damaged, or not what the manifest says.
        """
        from compatkit.registry.weights.tensorfile import deserialize, tensor_digest

        payload = component.payload if isinstance(component, Manifest) else component
        data = self.objects.view(payload.file.blob, verify=verify, most=payload.file.bytes)
        if verify == "always" and (actual := tensor_digest(memoryview(data))) != payload.tensors:
            raise IntegrityError(
                f"{payload.file.blob}: expected tensors {payload.tensors}, the file holds {actual}."
            )
        return deserialize(data)

    def publish(
        self,
        name: str,
        manifest: Manifest,
        *,
        version: str | None = None,
        measured: bool = False,
        major: bool = False,
        decide: Decide | None = None,
    ) -> Reference:
        """Publish a component under a name and version; the version is linked last, so a crash leaves no partial one.

        Args:
            name: One to three segments, ``"digits/mnist.head"``.
            manifest: Its blobs must have been put.
            version: ``"1.2.0"``; None takes the least step that the change demands, 1.0.0 for a new name, or
                the latest version itself if it is this very manifest.
            measured: The caller states that new weights passed the measurement stated for them; they are MINOR then.
                This does not satisfy a policy.
            major: Without a version: take the next MAJOR number, which policies do not bind (a deliberate break).
            decide: Called with what the policy of the name asks for, and again if that changed meanwhile; returns if
                the version passed, which counts as ``measured``, and raises the error that refuses it.

        Returns:
            Name, version and digest.

        Raises:
            VersionExists: The number belongs to another manifest.
            VersionTooSmall: The change demands a larger step.
            PolicyUndecided: A policy asks for a measurement, and there is no ``decide``.
            IntegrityError: A blob is missing, or the payload is not what the manifest says.
            InvalidName: Name or version is not valid.
            UsageError: ``major`` together with a version.
            EnvironmentFailure: Disk full, no right to write, ...; nothing is published.
        """
        self.layout.check_writer(self.root)
        if major and version is not None:
            raise UsageError(
                f"{name}: give a version ({version}) or ask for the next MAJOR number, not both."
            )
        return self._publisher(name, manifest, measured, major, decide).publish(version)

    def _publisher(
        self, name: str, manifest: Manifest, measured: bool, major: bool, decide: Decide | None
    ) -> Publisher:
        from compatkit.registry.holding import Holding
        from compatkit.registry.publish import Publisher

        holding = Holding(self.objects, self._payloads, name, manifest)
        return Publisher(holding, self.references, self.finder, measured, major, decide)

    @property
    def finder(self) -> PartnerFinder:
        """Answers what policies ask of a candidate."""
        from compatkit.registry.required_partners import PartnerFinder

        return PartnerFinder(self.manifest, self.references, lambda: self.index, self.policies)

    def policy_question(
        self, name: str, manifest: Manifest, *, version: str | None = None, major: bool = False
    ) -> Question:
        """Return what the policy of a name asks of a candidate, without publishing. Arguments as for ``publish``.

        Args:
            name: To publish under.
            manifest: Of the candidate.
            version: Its number; None for the smallest step that is required.
            major: Whether to take the next MAJOR number.
        """
        number = None if version is None else Version.parse(version)
        return self.finder.question(
            check_name(name), manifest, manifest_digest(manifest), number, major=major
        )

    def least_version(
        self, name: str, manifest: Manifest, *, measured: bool = False, major: bool = False
    ) -> Version:
        """Return the version number that ``publish`` would give a candidate that is not published yet.

        Args:
            name: To publish under.
            manifest: Of the candidate.
            measured: Whether what a policy asks for was measured and passed.
            major: Whether to take the next MAJOR number.
        """
        return self._publisher(check_name(name), manifest, measured, major, None).least(measured=measured)

    @property
    def policies(self) -> PolicyLog:
        """The policies: what new versions must keep working with."""
        from compatkit.registry.policylog import PolicyLog

        return PolicyLog(self.root)

    def set_policy(
        self, scope: str, policy: Policy | None, *, expected: int | Policy | Anything | None = ANY
    ) -> Revision | None:
        """Change the policy of a scope, or clear it with None; see ``PolicyLog.set``.

        Args:
            scope: A name or glob.
            policy: New policy, or None.
            expected: What must hold now (compare-and-swap): number of a revision, a policy, or None for no policy.

        Raises:
            PolicyMoved: Something else holds than expected.
            EnvironmentFailure: Disk full, no right to write, ...; nothing changed.
        """
        self.layout.check_writer(self.root)
        return self.policies.set(scope, policy, expected=expected)

    @property
    def evidence(self) -> Evidence:
        """The measured results of pairs."""
        from compatkit.registry.evidence import Evidence

        return Evidence(self.root, self.objects, self.trusted, self.memory)

    @property
    def signatures(self) -> Signatures:
        """The signatures of manifests, unverified."""
        return Signatures(self.root)

    def resolve(self, reference: str | Reference) -> Reference:
        """Resolve a reference to its name, version and digest.

        Raises:
            NotFound: No such name, version or alias, or the version was withdrawn.
            InvalidName: Not written as a reference.
        """
        wanted = reference if isinstance(reference, Reference) else Reference.parse(reference)
        return resolving.resolve(self.references, wanted)

    def manifest(self, reference: str | Reference) -> Manifest:
        """Return a component's manifest.

        Args:
            reference: A reference, or a bare manifest digest ``sha256:...`` such as a parent's.

        Raises:
            NotFound: The reference points at nothing.
            IntegrityError: The manifest is missing or damaged.
        """
        bare = isinstance(reference, str) and is_digest(reference)
        digest = reference if isinstance(reference, str) and bare else self.resolve(reference).digest
        if digest is None:
            raise NotFound(f"{reference} is not resolved to a digest.", subject=reference)
        with naming_component(str(reference)):
            return self._decoded(digest)

    def _read_manifest(self, digest: str) -> Manifest:
        return from_bytes(self.objects.read(digest, most=MAX_BYTES), what="manifest")

    def function_of(self, digest: str) -> str | None:
        """Return the function digest of a manifest; None if it is missing or damaged."""
        try:
            return function_digest(self.manifest(digest))
        except (IntegrityError, NotFound):
            return None

    def check_number(self, name: str, version: Version, digest: str) -> None:
        """Refuse a version whose number understates the change since the one below it; the answer is remembered.

        Args:
            name: Of the component.
            version: Its number.
            digest: Of its manifest.

        Raises:
            VersionUntrue: It does.
        """
        from compatkit.registry.version_bumps import why_understated

        below, _ = self.references.neighbors(name, version)
        if below is None:
            return
        try:
            before = self.references.digest(name, below)
            fact = f"step {below} {before} {version} {digest}"
            if before in (None, digest) or self.memory.is_proved(fact):
                return
            why = why_understated((below, self.manifest(str(before))), (version, self.manifest(digest)))
        except IntegrityError:
            return  # the version below is damaged: loading that one fails
        if not why:
            self.memory.prove(fact)
            return
        raise VersionUntrue(
            f"{name}@{version}: its number is untrue: {why}. Whoever asks for ^{version.major} would get it unnoticed. "
            f"Withdraw it (`compatkit withdraw {name}@{version} --reason TEXT`) and publish it again without a "
            f"version, or load it by its digest, {name}@{digest}.",
            subject=f"{name}@{version}",
        )

    def names(self, pattern: str | None = None) -> list[str]:
        """Return all names, sorted; with a pattern those it matches (``*`` also matches ``/``)."""
        return resolving.names(self.references, pattern)

    def versions(self, name: str) -> list[Version]:
        """Return the versions of a name, rising, without withdrawn ones.

        Raises:
            NotFound: No such name.
        """
        return resolving.live(self.references, name)

    def select(self, patterns: str | Sequence[str], kind: str | None = None) -> list[Reference]:
        """Return the components that patterns match, resolved, and sorted by name within each pattern.

        Args:
            patterns: References whose names may hold ``*``, ``?`` and ``[...]``: ``"digits/*.head@^1"``. Names
                without such a version or alias are passed over.
            kind: What all matches must be, ``"extractor"``, ``"head"``, ``"auxiliary_head"``, ...; a component that
                has several names is returned once then.

        Raises:
            NotFound: A pattern matches nothing.
            UsageError: A match is of another kind.
        """
        wanted = texts_of(patterns, "patterns", "a reference or pattern such as 'digits/*.head@^1'")
        references: dict[str, Reference] = {}
        for pattern in wanted:
            for reference in resolving.select(self.references, pattern):
                if kind is not None and (actual := self.manifest(reference).kind) != kind:
                    raise resolving.wrong_kind(reference, actual, [kind], pattern)
                references.setdefault(str(reference if kind is None else reference.digest), reference)
        return list(references.values())

    def set_alias(
        self, name: str, alias: str, version: str | Version | None, *, expected: str | Anything | None = ANY
    ) -> None:
        """Point an alias at a version, or remove it with None.

        Args:
            name: Of the component.
            alias: One segment, ``"prod"``.
            version: A version that exists and is not withdrawn.
            expected: Where it must point now (compare-and-swap), None if it must not exist.

        Raises:
            AliasMoved: It points elsewhere than expected.
            NotFound: No such name or version.
        """
        self.layout.check_writer(self.root)
        target = None if version is None else Version.parse(str(version))
        if target is not None:
            self.resolve(Reference(name, target))
        self._aliases(name).set(alias, None if target is None else str(target), expected=expected)

    def _aliases(self, name: str) -> Aliases:
        return Aliases(self.references.folder(name), self.root)

    def aliases(self, name: str) -> dict[str, str]:
        """Return the version of each alias of a name."""
        return self._aliases(name).all()

    def alias_log(self, name: str, alias: str) -> list[AliasEntry]:
        """Return every move of an alias, oldest first.

        Args:
            name: Of the component.
            alias: One segment, ``"prod"``.
        """
        return self._aliases(name).log(alias)

    def withdraw(self, name: str, version: str | Version, reason: str) -> None:
        """Withdraw a version: no reference but its digest finds it any more, and its number is never reused.

        Args:
            name: Of the component.
            version: Of the component.
            reason: Shown to whoever asks for the version.

        Raises:
            NotFound: No such version.
            UsageError: No reason is given.
        """
        self.layout.check_writer(self.root)
        number = Version.parse(str(version))
        if not reason.strip():
            raise UsageError(
                f"Withdrawing {name}@{number} needs a reason; it is shown to whoever asks for the version."
            )
        if self.references.digest(name, number) is None:
            self.resolve(Reference(name, number))
        self.references.withdraw(name, number, reason)

    def tombstone(self, name: str, version: str | Version) -> Tombstone | None:
        """Return why and when a version was withdrawn, None if it was not.

        Args:
            name: Of the component.
            version: Of the component.
        """
        return self.references.tombstone(name, Version.parse(str(version)))
