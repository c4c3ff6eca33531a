"""Store of components: publish, resolve, load and list them, without building networks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import IntegrityError, NotFound, UsageError, VersionUntrue
from compatkit.foundation import cache
from compatkit.foundation.addresses import local
from compatkit.foundation.arguments import texts_of
from compatkit.foundation.codec import MAX_BYTES, is_digest
from compatkit.registry import resolving
from compatkit.registry.aliases import ANY, AliasEntry, Aliases, Anything
from compatkit.registry.authorship import Author
from compatkit.registry.blobs import LARGE, Objects, Verify
from compatkit.registry.layout import Layout, initialize, inspect, locate
from compatkit.registry.local_cache import LocalCache
from compatkit.registry.names import Reference, Version, check_name
from compatkit.registry.refs import References

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.contracts.manifest import Edge, Manifest, Payload
    from compatkit.registry.evidence import Evidence
    from compatkit.registry.index.lookup import Index
    from compatkit.registry.policies import Policy
    from compatkit.registry.policylog import PolicyLog, Revision
    from compatkit.registry.publish import PolicyCheck, Publisher
    from compatkit.registry.required_blobs import PayloadSummary
    from compatkit.registry.required_partners import PartnerFinder, PolicyRequirement
    from compatkit.registry.settings import SettingsInForce
    from compatkit.registry.signing.private_keys import SigningKey
    from compatkit.registry.signing.signatures import Signatures
    from compatkit.registry.signing.trust import Trusted
    from compatkit.registry.withdrawals import Tombstone


CACHED_MANIFESTS = 256
"""Maximum number of decoded manifests in memory; the content of a digest never changes."""


@contextmanager
def add_component_note(component: str) -> Iterator[None]:
    """Add a note with the component to errors about stored bytes that are raised in the block."""
    try:
        yield
    except IntegrityError as error:
        error.add_note(f"Read for {component}.")
        raise


def _from_store(create: Callable[[Store], Any]) -> Any:
    return attrs.Factory(create, takes_self=True)


@attrs.frozen(eq=False)
class Store:
    """Registry in a folder. Reading never writes; any number of processes may publish at once.

    Attributes:
        root: Folder of the registry.
        layout: Content of ``compatkit.json``.
        trusted: Keys that must have signed each loaded component; None requires no signature.
        key: Private key that signs changes and publications; None for that of COMPATKIT_KEY, if any.
        local_cache: Local cache of checks of the registry's files; may be deleted.
        objects: Blobs of the registry.
        references: Names and versions of the registry.
    """

    root: Path
    layout: Layout = attrs.field(repr=False)
    trusted: Trusted | None = attrs.field(default=None, repr=False)
    key: SigningKey | None = attrs.field(default=None, repr=False)
    local_cache: LocalCache = attrs.field(
        init=False,
        repr=False,
        default=_from_store(lambda store: LocalCache(cache.folder(store.root, store.id))),
    )
    objects: Objects = attrs.field(
        init=False, repr=False, default=_from_store(lambda store: Objects(store.root, store.local_cache))
    )
    references: References = attrs.field(
        init=False, repr=False, default=_from_store(lambda store: References(store.root))
    )
    _payloads: dict[str, PayloadSummary] = attrs.field(init=False, repr=False, factory=dict)
    _opened: dict[str, Any] = attrs.field(init=False, repr=False, factory=dict)
    _decoded: Callable[[str], Manifest] = attrs.field(
        init=False,
        repr=False,
        default=_from_store(lambda store: lru_cache(CACHED_MANIFESTS)(store._read_manifest)),
    )

    @classmethod
    def init(cls, root: str | os.PathLike[str], *, exist_ok: bool = False) -> Store:
        """Create a registry in ``root``, and the folder if it is missing.

        Args:
            root: Folder of the registry.
            exist_ok: Whether to open an existing registry.

        Raises:
            LayoutError: The folder is a registry and ``exist_ok`` is False, or this version cannot use it.
            EnvironmentFailure: The folder cannot be created or written.
        """
        path = Path(local(root, "a registry")).absolute()
        return cls(path, initialize(path, exist_ok=exist_ok))

    @classmethod
    def open(
        cls, root: str | os.PathLike[str], trusted: Trusted | None = None, key: SigningKey | None = None
    ) -> Store:
        """Open the registry in ``root``.

        Args:
            root: Folder of the registry.
            trusted: Keys that must have signed each loaded component; None requires no signature.
            key: Private key that signs changes and publications; None for that of COMPATKIT_KEY, if any.

        Raises:
            LayoutError: The folder is not a registry, or its layout is too new.
        """
        path = Path(local(root, "a registry")).absolute()
        return cls(path, inspect(path), trusted, key)

    @classmethod
    def find(cls, start: str | os.PathLike[str] | None = None, trusted: Trusted | None = None) -> Store:
        """Open the registry in COMPATKIT_REGISTRY, else the nearest one in ``start`` or a parent folder.

        Args:
            start: Folder to begin at; None for the current one.
            trusted: Same as for ``open``.

        Raises:
            LayoutError: There is no registry, or its layout is too new.
        """
        return cls.open(locate(start), trusted)

    def __reduce__(self) -> tuple[Callable[..., Store], tuple[Path, Trusted | None]]:
        """Pickle only the root and trusted keys: a spawned process opens its own connections."""
        return Store.open, (self.root, self.trusted)

    @property
    def author(self) -> Author:
        """Author of changes: the key, or else the user's name.

        Raises:
            KeyFileError: The key in COMPATKIT_KEY cannot be used.
        """
        if "author" not in self._opened:
            self._opened.setdefault("author", Author.of(self.key))
        return self._opened["author"]

    @property
    def rules(self) -> SettingsInForce:
        """Settings of the registry, read anew."""
        from compatkit.registry.settings import rules_of

        return rules_of(self.root)

    @property
    def signers(self) -> Trusted | None:
        """Keys of which one must have signed each version: those that the user trusts, the settings, or both."""
        required = self.rules.required_keys()
        if self.trusted is None or required is None:
            return self.trusted or required
        return self.trusted.intersection(required)

    @property
    def id(self) -> str:
        """Identity of the registry; a copy keeps it."""
        return self.layout.id

    @property
    def index(self) -> Index:
        """Search index, opened on first use because most commands do not need it; may be deleted."""
        if "index" not in self._opened:
            from compatkit.registry.index.lookup import Index

            # atomic, so that threads share one index; a lock could be held when a process forks
            self._opened.setdefault("index", Index.of(self.root, self.id, self.objects, self.references))
        return self._opened["index"]

    def put_blob(self, data: bytes) -> Edge:
        """Write bytes durably under their digest and return the edge for a manifest.

        Raises:
            EnvironmentFailure: Disk full, no write permission, ...; nothing is stored.
        """
        self.layout.check_writer(self.root)
        return self.objects.put(data)

    def read_blob(self, digest: str, *, verify: Verify = "auto") -> bytes:
        """Return verified bytes.

        Args:
            digest: ``sha256:...``.
            verify: ``"auto"`` checks the hash once and after any change of the file; or ``"always"``, ``"never"``.

        Raises:
            IntegrityError: The blob is missing or damaged; a damaged one is moved to quarantine.
        """
        return self.objects.read(digest, verify=verify)

    def put_state(self, state: Mapping[str, Tensor], *, parameters: int, nonfinite: bool = False) -> Payload:
        """Write tensors as a safetensors blob and return the payload for a manifest.

        Args:
            state: A module's ``state_dict()``.
            parameters: Number of parameters, without buffers.
            nonfinite: Whether NaN, infinity and negative variances are allowed.

        Raises:
            FormatError: A tensor's name, dtype or layout cannot be stored.
            IntegrityError: A tensor holds values that are not finite, or negative variances.
            EnvironmentFailure: Disk full, no write permission, ...
        """
        from concurrent.futures import ThreadPoolExecutor

        from compatkit.contracts.manifest import Payload
        from compatkit.registry.required_blobs import PayloadSummary
        from compatkit.registry.weights.tensorchecks import NOT_PUBLISHED, check_values
        from compatkit.registry.weights.tensorfile import pieces_and_digest

        self.layout.check_writer(self.root)
        if not nonfinite:
            check_values(state, "The weights", NOT_PUBLISHED)
        pieces, digest = pieces_and_digest(state)
        if sum(map(len, pieces)) < LARGE:
            edge, tensors = self.objects.put(*pieces), digest()
        else:
            with ThreadPoolExecutor(1) as hashing:
                future = hashing.submit(digest)
                edge = self.objects.put(*pieces)
                tensors = future.result()
        self._payloads[edge.blob] = PayloadSummary(tensors, len(state))
        return Payload(edge, tensors, len(state), parameters)

    def load_state(self, component: Manifest | Payload, *, verify: Verify = "auto") -> dict[str, Tensor]:
        """Return a component's tensors, on the CPU.

        Weights that a clone left in its remote are fetched first, and kept. Large files on a local disk are mapped, not
        copied; writes into the tensors stay in this process.

        Args:
            component: Manifest or payload of the component.
            verify: Same as for ``read_blob``; ``"always"`` also computes the tensor digest again.

        Returns:
            Tensors by name.

        Raises:
            IntegrityError: The file is missing, damaged, or differs from the manifest.
            EnvironmentFailure: The file cannot be read, or weights cannot be fetched.
        """
        from compatkit.contracts.manifest import Manifest
        from compatkit.registry.weights.tensorfile import deserialize, tensor_digest

        payload = component.payload if isinstance(component, Manifest) else component
        if self.objects.size(payload.file.blob) is None:
            from compatkit.registry.remotes.fetching import fetch_payload

            fetch_payload(self.objects, self.id, payload, str(self.root))
        data = self.objects.view(payload.file.blob, verify=verify, max_bytes=payload.file.bytes)
        if verify == "always" and (actual := tensor_digest(memoryview(data))) != payload.tensors:
            raise IntegrityError(f"{payload.file.blob}: expected tensors {payload.tensors}, got {actual}.")
        return deserialize(data)

    def publish(
        self,
        name: str,
        manifest: Manifest,
        *,
        version: str | None = None,
        measured: bool = False,
        major: bool = False,
        policy_check: PolicyCheck | None = None,
    ) -> Reference:
        """Publish a component under a name and version; the version is linked last, so a crash leaves no partial one.

        Args:
            name: Name of one to three segments, such as ``"digits/mnist.head"``.
            manifest: Manifest; its blobs must be in the store.
            version: Version number, such as ``"1.2.0"``; None takes the smallest step that the change requires, 1.0.0
                for a new name, or the latest version if it has the same manifest.
            measured: Whether the caller states that the measurement of new weights passed, so that they are MINOR. This
                does not satisfy a policy.
            major: Whether to take the next MAJOR number, to which policies do not apply; only without a version.
            policy_check: Function that makes the measurements required by a policy, and raises to refuse the version.
                It is called again if the requirements change. A version that passes counts as ``measured``.

        Returns:
            Name, version and digest.

        Raises:
            VersionExists: The number belongs to another manifest.
            VersionTooSmall: The change requires a larger step.
            PolicyUndecided: A policy requires a measurement, and there is no ``policy_check``.
            IntegrityError: A blob is missing, or the payload differs from the manifest.
            InvalidName: Name or version is not valid.
            UsageError: ``major`` together with a version.
            EnvironmentFailure: Disk full, no write permission, ...; nothing is published.
        """
        self.layout.check_writer(self.root)
        if major and version is not None:
            raise UsageError(
                f"{name}: give a version ({version}) or the next MAJOR number (major=True), not both."
            )
        return self._publisher(name, manifest, measured, major, policy_check).publish(version)

    def _publisher(
        self, name: str, manifest: Manifest, measured: bool, major: bool, policy_check: PolicyCheck | None
    ) -> Publisher:
        from compatkit.registry.publish import Publisher
        from compatkit.registry.required_blobs import RequiredBlobs

        required_blobs = RequiredBlobs(self.objects, self.id, self._payloads, name, manifest)
        return Publisher(
            required_blobs, self.references, self.finder, measured, major, policy_check, author=self.author
        )

    @property
    def finder(self) -> PartnerFinder:
        """Finder of the measurements that policies require of a candidate."""
        from compatkit.registry.required_partners import PartnerFinder

        return PartnerFinder(self.manifest, self.references, lambda: self.index, self.policies)

    def policy_requirement(
        self, name: str, manifest: Manifest, *, version: str | None = None, major: bool = False
    ) -> PolicyRequirement:
        """Return the measurements that the policy of a name requires of a candidate, without publishing.

        Args:
            name: Name to publish under.
            manifest: Manifest of the candidate.
            version: Version number; None for the smallest required step.
            major: Whether to take the next MAJOR number.
        """
        from compatkit.contracts.manifest import manifest_digest

        number = None if version is None else Version.parse(version)
        return self.finder.requirement(
            check_name(name), manifest, manifest_digest(manifest), number, major=major
        )

    def next_version(
        self, name: str, manifest: Manifest, *, measured: bool = False, major: bool = False
    ) -> Version:
        """Return the version number that ``publish`` would choose for a new candidate.

        Args:
            name: Name to publish under.
            manifest: Manifest of the candidate.
            measured: Whether the measurements that a policy requires passed.
            major: Whether to take the next MAJOR number.
        """
        return self._publisher(check_name(name), manifest, measured, major, None).next_version(
            measured=measured
        )

    @property
    def policies(self) -> PolicyLog:
        """Compatibility policies of the registry."""
        from compatkit.registry.policylog import PolicyLog

        return PolicyLog(self.root)

    def set_policy(
        self, scope: str, policy: Policy | None, *, expected: int | Policy | Anything | None = ANY
    ) -> Revision | None:
        """Change the policy of a scope, or clear it with None; see ``PolicyLog.set``.

        Args:
            scope: Component name, or glob over full names.
            policy: New policy, or None.
            expected: Required current state (compare-and-swap): number of a revision, policy, or None for no policy.

        Raises:
            PolicyMoved: The current state is not the expected one.
            NotAllowed: The settings of the registry do not let this author change policies.
            EnvironmentFailure: Disk full, no write permission, ...; nothing changed.
        """
        self.layout.check_writer(self.root)
        return self.policies.set(scope, policy, expected=expected, author=self.author)

    @property
    def evidence(self) -> Evidence:
        """Measured results of pairs."""
        from compatkit.registry.evidence import Evidence

        return Evidence(self.root, self.objects, self.signers, self.local_cache, lambda: self.author.key)

    @property
    def signatures(self) -> Signatures:
        """Signatures of manifests, not verified."""
        from compatkit.registry.signing.signatures import Signatures

        return Signatures(self.root)

    def resolve(self, reference: str | Reference) -> Reference:
        """Resolve a reference to its name, version and digest.

        Raises:
            NotFound: No such name, version or alias, or the version was withdrawn.
            InvalidName: ``reference`` is not a reference.
        """
        wanted = reference if isinstance(reference, Reference) else Reference.parse(reference)
        return resolving.resolve(self.references, wanted)

    def manifest(self, reference: str | Reference) -> Manifest:
        """Return a component's manifest.

        Args:
            reference: Reference, or manifest digest ``sha256:...``, such as that of a parent.

        Raises:
            NotFound: The reference cannot be resolved.
            IntegrityError: The manifest is missing or damaged.
        """
        is_bare = isinstance(reference, str) and is_digest(reference)
        digest = reference if isinstance(reference, str) and is_bare else self.resolve(reference).digest
        if digest is None:
            raise NotFound(f"{reference} is not resolved to a digest.", subject=reference)
        with add_component_note(str(reference)):
            return self._decoded(digest)

    def _read_manifest(self, digest: str) -> Manifest:
        from compatkit.contracts.manifest import from_bytes

        return from_bytes(self.objects.read(digest, max_bytes=MAX_BYTES), what="manifest")

    def function_of(self, digest: str) -> str | None:
        """Return the function digest of a manifest; None if it is missing or damaged."""
        from compatkit.contracts.manifest import function_digest

        try:
            return function_digest(self.manifest(digest))
        except (IntegrityError, NotFound):
            return None

    def check_number(self, name: str, version: Version, digest: str) -> None:
        """Raise if a version number understates the change since the version below; successful checks are cached.

        Args:
            name: Name of the component.
            version: Version number.
            digest: Digest of the manifest.

        Raises:
            VersionUntrue: The number understates the change.
        """
        from compatkit.registry.version_bumps import why_understated

        below, _ = self.references.neighbors(name, version)
        if below is None:
            return
        try:
            before = self.references.digest(name, below)
            check = f"step {below} {before} {version} {digest}"
            if before in (None, digest) or self.local_cache.is_proved(check):
                return
            why = why_understated((below, self.manifest(str(before))), (version, self.manifest(digest)))
        except IntegrityError:
            return  # a damaged version below is reported when it is loaded
        if not why:
            self.local_cache.remember_proved(check)
            return
        raise VersionUntrue(
            f"{name}@{version}: the version number is too small a step: {why}. ^{version.major} would select it "
            f"unnoticed. Withdraw it (`compatkit withdraw {name}@{version} --reason TEXT`) and publish it again "
            f"without a version, or load it by its digest, {name}@{digest}.",
            subject=f"{name}@{version}",
        )

    def names(self, pattern: str | None = None) -> list[str]:
        """Return all names, or those that match a glob, sorted (``*`` also matches ``/``)."""
        return resolving.names(self.references, pattern)

    def versions(self, name: str) -> list[Version]:
        """Return the versions of a name in ascending order, without withdrawn ones.

        Raises:
            NotFound: No such name.
        """
        return resolving.live(self.references, name)

    def select(self, patterns: str | Sequence[str], kind: str | None = None) -> list[Reference]:
        """Return the components that patterns match, resolved, and sorted by name within each pattern.

        Args:
            patterns: References whose names may contain ``*``, ``?`` and ``[...]``: ``"digits/*.head@^1"``. Names
                without a matching version or alias are skipped.
            kind: Required kind of all matches, such as ``"extractor"``; components with several names are then
                returned once.

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
        self,
        name: str,
        alias: str,
        version: str | Version | None,
        *,
        expected: str | Anything | None = ANY,
    ) -> None:
        """Point an alias at a version, or remove it with None.

        Args:
            name: Name of the component.
            alias: Alias of one segment, such as ``"prod"``.
            version: Version that exists and is not withdrawn.
            expected: Required current version (compare-and-swap); None if the alias must not exist.

        Raises:
            AliasMoved: The alias points at another version than expected.
            NotFound: No such name or version.
            NotAllowed: The settings of the registry protect the alias from this author.
        """
        self.layout.check_writer(self.root)
        target = None if version is None else Version.parse(str(version))
        if target is not None:
            self.resolve(Reference(name, target))
        after = None if target is None else str(target)
        self._aliases(name).set(alias, after, expected=expected, author=self.author)
        if target is not None:
            self.resolve(Reference(name, target))  # it may have been dropped or withdrawn meanwhile

    def _aliases(self, name: str) -> Aliases:
        return Aliases(self.references.folder(name), self.root)

    def aliases(self, name: str) -> dict[str, str]:
        """Return the version of each alias of a name."""
        return self._aliases(name).all()

    def alias_log(self, name: str, alias: str) -> list[AliasEntry]:
        """Return all moves of an alias, oldest first.

        Args:
            name: Name of the component.
            alias: Alias of one segment, such as ``"prod"``.
        """
        return self._aliases(name).log(alias)

    def withdraw(self, name: str, version: str | Version, reason: str) -> None:
        """Withdraw a version: only its digest still finds it, and its number is never reused.

        Args:
            name: Name of the component.
            version: Version of the component.
            reason: Text shown to users who request the version.

        Raises:
            NotFound: No such version.
            UsageError: No reason is given.
            NotAllowed: The settings of the registry do not let this author withdraw versions.
        """
        self.layout.check_writer(self.root)
        number = Version.parse(str(version))
        if not reason.strip():
            raise UsageError(
                f"Withdrawing {name}@{number} needs a reason; it is shown to users who request the version."
            )
        if self.references.digest(name, number) is None:
            self.resolve(Reference(name, number))
        self.rules.check_author("maintainers", self.author, f"withdraw {name}@{number}", f"{name}@{number}")
        self.references.withdrawals(name).append(number, reason, restore=False, author=self.author)

    def tombstone(self, name: str, version: str | Version) -> Tombstone | None:
        """Return the reason and time of a withdrawal; None if the version was not withdrawn."""
        return self.references.tombstone(name, Version.parse(str(version)))
