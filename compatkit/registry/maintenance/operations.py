"""Maintenance of a registry: verify, repair, collect garbage, copy, sign."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import attrs

from compatkit.errors import UsageError
from compatkit.foundation.cache import mirrored
from compatkit.registry.history import HistoryEntry, log
from compatkit.registry.maintenance.check import VerificationReport, examine
from compatkit.registry.maintenance.gc import GRACE, CollectionPlan, plan
from compatkit.registry.maintenance.loads import LoadCheck
from compatkit.registry.maintenance.purge import PurgePlan
from compatkit.registry.maintenance.purge import plan as plan_purge
from compatkit.registry.maintenance.repair import plan as plan_repair
from compatkit.registry.maintenance.retention import RetentionPlan
from compatkit.registry.maintenance.retention import plan as plan_withdrawals
from compatkit.registry.opening import AnyRegistry, opened
from compatkit.registry.remotes.sources import sources
from compatkit.registry.remotes.verifying import verify_remote
from compatkit.registry.usage import Usage, usage

if TYPE_CHECKING:
    import os

    from compatkit.registry import Progress
    from compatkit.registry.copy.admission import PolicyCheckFactory
    from compatkit.registry.copy.report import TransferReport
    from compatkit.registry.copy.settings import Accept, Versions
    from compatkit.registry.maintenance.repair_plan import RepairPlan
    from compatkit.registry.signing.checks import SignatureVerdict
    from compatkit.registry.signing.private_keys import SigningKey
    from compatkit.registry.signing.signer import SigningResult
    from compatkit.registry.signing.trust import Trust
    from compatkit.registry.store import Store


@attrs.frozen
class Maintenance:
    """Maintenance of one registry.

    Attributes:
        store: Files of the registry.
        policy_checks: Factory of the policy check for imported versions; None refuses those that need a measurement.
        load_checks: Factory of the check that a load accepts a version, with argument ``full``; None checks files only.
    """

    store: Store
    policy_checks: PolicyCheckFactory | None = None
    load_checks: Callable[..., LoadCheck] | None = None

    def verify(
        self,
        patterns: Iterable[str] | None = None,
        *,
        deep: bool = True,
        load: bool = False,
        progress: Progress | None = None,
    ) -> VerificationReport:
        """Check all files, and that a load accepts each version; changes nothing. See ``maintenance.check.examine``.

        Args:
            patterns: Names or ``NAME@VERSION``, each part a glob; None for every file.
            deep: Whether to compare all contents with their digests, and to build the network of each blueprint; else
                only manifests and headers of weights are read. Of a remote, only headers are read.
            load: Whether to load every version, as ``Registry.load`` does; requires ``deep``. Of a remote, this reads
                all weights.
            progress: Called with bytes done, total bytes and the current item.

        Raises:
            NotFound: A pattern matches nothing.
            UsageError: ``load`` without ``deep``.
        """
        if load and not deep:
            raise UsageError("load=True reads all weights; leave deep=False out.", subject="load")
        loads = None if self.load_checks is None or not deep else self.load_checks(full=load)
        if mirrored(self.store.root) is not None:
            (remote,) = sources(self.store.root, self.store.id)
            return verify_remote(remote, patterns=patterns, download=load, loads=loads, progress=progress)
        return examine(self.store, patterns=patterns, deep=deep, loads=loads, progress=progress)

    def repair(self, report: VerificationReport, *, source: AnyRegistry | None = None) -> RepairPlan:
        """Plan the repair of the faults; ``apply`` carries it out. See ``maintenance.repair.plan``.

        Args:
            report: Result of ``verify``.
            source: Copy of the registry, or another one that may have the same blobs: a folder, ``Registry`` or
                ``Store``.

        Raises:
            UsageError: ``source`` is none of these.
            LayoutError: ``source`` is not a registry.
        """
        return plan_repair(report, source=None if source is None else opened(source, "source"))

    def gc(
        self,
        *,
        grace: timedelta = GRACE,
        withdrawn: bool = False,
        alone: bool = False,
        progress: Progress | None = None,
    ) -> CollectionPlan:
        """Plan the removal of unreferenced files; ``apply`` carries it out. See ``maintenance.gc.plan``.

        Args:
            grace: Age below which files are kept.
            withdrawn: Whether to remove the weights of withdrawn versions too.
            alone: Whether nobody else is writing, which allows a short ``grace``.
            progress: Called with the documents that were read.
        """
        return plan(self.store, grace=grace, withdrawn=withdrawn, alone=alone, progress=progress)

    def withdraw(self, patterns: str | Sequence[str], *, keep: int, reason: str) -> RetentionPlan:
        """Plan the withdrawal of all but the newest versions of names; ``apply`` carries it out.

        Args:
            patterns: Names or globs of names, such as ``"digits/*"``.
            keep: Number of newest versions that stay, from 1.
            reason: Text shown to users who request a withdrawn version.

        Returns:
            The plan. Versions stay, too, that an alias points at, that are part of a recombination, or that a policy
            measures new versions with.

        Raises:
            NotFound: A pattern matches no name.
            UsageError: ``keep`` is below 1, there is no reason, or a pattern names versions.
            IntegrityError: A version file or manifest is damaged.
        """
        return plan_withdrawals(self.store, patterns, keep=keep, reason=reason)

    def purge(
        self,
        patterns: str | Sequence[str] | None = None,
        *,
        lost: Collection[str] = (),
        progress: Progress | None = None,
    ) -> PurgePlan:
        """Plan the deletion of the weights of withdrawn versions at once, with all copies in the registry.

        ``apply`` carries it out. See ``maintenance.purge.plan``.

        Args:
            patterns: Withdrawn versions, ``NAME`` or ``NAME@VERSION``, each part a glob; None for all.
            lost: Digests of documents that are lost for good, as in ``maintenance.gc.plan``.
            progress: Called with the documents that were read.

        Returns:
            The plan; it names what still refers to weights, which then stay.

        Raises:
            NotFound: A pattern matches no withdrawn version.
            IntegrityError: A reference or document is missing or damaged, so its references are unknown.
        """
        return plan_purge(self.store, patterns, lost=lost, progress=progress)

    def usage(self, pattern: str | None = None) -> Usage:
        """Return the disk usage of names and folders. See ``usage.usage``."""
        return usage(self.store.references, self.store.objects, pattern)

    def log(self, name: str) -> list[HistoryEntry]:
        """Return the history of a name, newest first. See ``history.log``."""
        return log(self.store, name)

    def import_from(
        self,
        source: AnyRegistry,
        patterns: Iterable[str] = ("*",),
        *,
        versions: Versions = "all",
        aliases: bool = True,
        follow_aliases: bool = False,
        follow_withdrawals: bool = False,
        follow_results: bool = False,
        evidence: bool = True,
        accept: Accept | None = None,
        policy_checks: PolicyCheckFactory | None = None,
        unmeasured: bool = False,
        progress: Progress | None = None,
    ) -> TransferReport:
        """Copy components of another registry, all or none; they need the signatures that this store requires.

        Args:
            source: Other registry: a folder, ``Registry`` or ``Store``; only read.
            patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"``.
            versions: ``"all"`` or ``"latest"`` for the latest version of each name.
            aliases: Whether to copy aliases too.
            follow_aliases: Whether to move aliases that are here already as they were moved there.
            follow_withdrawals: Whether to withdraw and restore versions that are here already as there.
            follow_results: Whether to copy results of pairs that were measured here under the same conditions.
            evidence: Whether to copy measured results of pairs whose parts are both copied.
            accept: Function that refuses a version before anything is copied; see ``copy.settings``.
            policy_checks: Factory of the policy check; None for that of this object.
            unmeasured: Whether to admit versions without the measurement that a policy requires; the log of the policy
                records it.
            progress: Called with done, total and the current item.

        Returns:
            The report of the copy. Raises as ``import_components`` does.

        Raises:
            UsageError: ``source`` is not a registry's folder, ``Registry`` or ``Store``.
            LayoutError: The folder ``source`` is not a registry.
        """
        from compatkit.registry.copy.settings import TransferSettings
        from compatkit.registry.remotes.pushpull import import_components

        settings = TransferSettings(
            versions=versions,
            aliases=aliases,
            follow_aliases=follow_aliases,
            follow_withdrawals=follow_withdrawals,
            follow_results=follow_results,
            evidence=evidence,
            accept=accept,
            policy_checks=policy_checks or self.policy_checks,
            unmeasured=unmeasured,
            progress=progress,
        )
        return import_components(opened(source, "source"), self.store, patterns, settings=settings)

    def sign(
        self,
        references: str | Iterable[str],
        key: SigningKey | str | os.PathLike[str],
        *,
        expires: str | None = None,
        bind_name: bool = True,
        every: bool = False,
    ) -> list[SigningResult]:
        """Sign components under their names and versions in this registry; see docs/reference/signatures.md.

        Args:
            references: One or several references; a glob of names selects the latest version of each. A bare digest is
                signed without a name.
            key: Private key, or its file (COMPATKIT_KEY_PASSPHRASE has the passphrase).
            expires: ``"365d"`` or ``"2027-01-31"``; None for the expiry of the key.
            bind_name: False signs the bytes alone, valid under any name.
            every: Whether to sign all versions, withdrawn ones too, not only the latest.

        Returns:
            One signature of each component; an existing equal one of this key that lasts as long is not created again.

        Raises:
            NotFound: A reference matches nothing.
            KeyFileError: The key cannot be used; its subclasses say why.
            IntegrityError: A manifest is damaged.
            EnvironmentFailure: Disk full, no permission to write.
        """
        from compatkit.registry.signing import dates
        from compatkit.registry.signing.private_keys import SigningKey
        from compatkit.registry.signing.signer import sign

        used = key if isinstance(key, SigningKey) else SigningKey.load(key)
        ends = None if expires is None else dates.parse_expiry(expires)
        return sign(self.store, references, used, expires=ends, bind_name=bind_name, every=every)

    def sign_evidence(
        self,
        extractors: str,
        heads: str,
        key: SigningKey | str | os.PathLike[str],
        *,
        expires: str | None = None,
    ) -> list[SigningResult]:
        """Sign the measured results of pairs; where signatures are required, only signed results count.

        Args:
            extractors: Reference or glob.
            heads: Reference or glob.
            key: Private key, or its file.
            expires: As for ``sign``.

        Returns:
            One signature of each undamaged result.

        Raises:
            NotFound: A reference matches nothing.
            KeyFileError: The key cannot be used.
            EnvironmentFailure: Disk full, no permission to write.
        """
        from compatkit.registry.signing import dates
        from compatkit.registry.signing.private_keys import SigningKey
        from compatkit.registry.signing.signer import sign_evidence

        used = key if isinstance(key, SigningKey) else SigningKey.load(key)
        ends = None if expires is None else dates.parse_expiry(expires)
        return sign_evidence(self.store, extractors, heads, used, expires=ends)

    def sign_changes(self, names: str | Iterable[str], key: SigningKey | str | os.PathLike[str]) -> list[str]:
        """Sign all alias moves, withdrawals and restorations of names, so that they are followed elsewhere.

        Args:
            names: One or several names or globs.
            key: Private key, or its file.

        Returns:
            Paths of the entries that were signed now, relative to the root.

        Raises:
            NotFound: A name matches nothing.
            KeyFileError: The key cannot be used.
            EnvironmentFailure: Disk full, no permission to write.
        """
        from compatkit.registry.resolving import matching_names
        from compatkit.registry.signing.changes import sign_changes
        from compatkit.registry.signing.private_keys import SigningKey

        used = key if isinstance(key, SigningKey) else SigningKey.load(key)
        known, matches = self.store.references.names(), dict.fromkeys(())
        for pattern in [names] if isinstance(names, str) else names:
            if not (matching := matching_names(pattern, known)):
                self.store.select(pattern)  # raises with similar names
            matches |= dict.fromkeys(matching)
        return sign_changes(self.store, matches, used)

    def signatures(self, reference: str) -> list[SignatureVerdict]:
        """Return the unverified statements of a component's signatures."""
        from compatkit.registry.signing.verify import statements

        return statements(self.store, reference)

    def verify_signatures(self, reference: str, trusted: Trust = True) -> list[SignatureVerdict]:
        """Verify the signatures of a component, and return the verdict on each; at least one is valid and trusted.

        Args:
            reference: A name must be signed with this name and version; a bare digest is signed without one.
            trusted: Trusted keys, as in ``Registry.open``.

        Raises:
            Unsigned, UnknownSigner, BadSignature, SignatureExpired, ...: No signature is valid and trusted; all are
                subclasses of SignatureError.
            KeyFileError: The trusted keys cannot be read.
            MissingDependency: ``cryptography`` is not installed.
        """
        from compatkit.registry.signing.verify import verify

        return verify(self.store, reference, trusted)
