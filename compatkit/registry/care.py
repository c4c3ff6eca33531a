"""Maintenance of a registry: verify, repair, collect garbage, copy, sign."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

import attrs

from compatkit.registry import Progress
from compatkit.registry.history import HistoryEntry, log
from compatkit.registry.maintenance.check import Soundness, examine
from compatkit.registry.maintenance.gc import GRACE, CollectionPlan, plan
from compatkit.registry.maintenance.repair import plan as plan_repair
from compatkit.registry.maintenance.repair_plan import RepairPlan
from compatkit.registry.usage import Usage, usage

if TYPE_CHECKING:
    import os

    from compatkit.registry.copy.admission import PolicyCheckFactory
    from compatkit.registry.copy.report import TransferReport
    from compatkit.registry.copy.settings import Accept, Versions
    from compatkit.registry.signing.checks import SignatureVerdict
    from compatkit.registry.signing.signer import SigningKey, SigningResult
    from compatkit.registry.signing.trust import Trust
    from compatkit.registry.store import Store


@attrs.frozen
class Care:
    """Care of one registry.

    Attributes:
        store: Its files.
        policy_checks: Factory of the policy check for imported versions; None refuses those that need a measurement.
    """

    store: Store
    policy_checks: PolicyCheckFactory | None = None

    def verify(
        self,
        patterns: Iterable[str] | None = None,
        *,
        deep: bool = True,
        progress: Progress | None = None,
    ) -> Soundness:
        """Look for everything that can be wrong; changes nothing. See ``maintenance.check.examine``.

        Args:
            patterns: Names or ``NAME@VERSION``, each part a glob; None for every file.
            deep: Whether to compare all contents with their digests; else only headers of weights are read.
            progress: Called with bytes done, bytes in all, and what is being read.
        """
        return examine(self.store, patterns=patterns, deep=deep, progress=progress)

    def repair(self, soundness: Soundness, *, source: Store | None = None) -> RepairPlan:
        """Plan the repair of what was found; its ``apply`` does it. See ``maintenance.repair.plan``.

        Args:
            soundness: Result of ``verify``.
            source: A copy of the registry, or another one that may hold the same bytes.
        """
        return plan_repair(soundness, source=source)

    def gc(
        self,
        *,
        grace: timedelta = GRACE,
        withdrawn: bool = False,
        alone: bool = False,
        progress: Progress | None = None,
    ) -> CollectionPlan:
        """Plan a collection of what nothing refers to; its ``apply`` does it. See ``maintenance.gc.plan``.

        Args:
            grace: Younger files are kept.
            withdrawn: Whether to collect withdrawn versions' weights too.
            alone: Nobody else is writing, which allows a short ``grace``.
            progress: Told of the documents that were read.
        """
        return plan(self.store, grace=grace, withdrawn=withdrawn, alone=alone, progress=progress)

    def usage(self, pattern: str | None = None) -> Usage:
        """Return the disk usage of names and folders. See ``usage.usage``."""
        return usage(self.store.references, self.store.objects, pattern)

    def log(self, name: str) -> list[HistoryEntry]:
        """Return the history of a name, newest first. See ``history.log``."""
        return log(self.store, name)

    def import_from(
        self,
        source: Store,
        patterns: Iterable[str] = ("*",),
        *,
        versions: Versions = "all",
        aliases: bool = False,
        evidence: bool = True,
        accept: Accept | None = None,
        policy_checks: PolicyCheckFactory | None = None,
        unmeasured: bool = False,
        progress: Progress | None = None,
    ) -> TransferReport:
        """Copy components of another registry, all or none; they need the signatures that this store requires.

        Args:
            source: Where they are; only read.
            patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"``.
            versions: ``"all"`` or ``"latest"``, one of each name.
            aliases: Whether aliases of the names follow, if their logs here are beginnings of those there.
            evidence: Whether measured results of pairs are copied, where both parts are.
            accept: Refuses a version before anything is copied; see ``copy.settings``.
            policy_checks: Factory of the policy check; None for that of this object.
            unmeasured: Admit versions that nobody measured as a policy asks; the log of the policy records it.
            progress: Called with done, total and what is being done.

        Returns:
            What was copied. Raises as ``import_components`` does.
        """
        from compatkit.registry.copy.settings import TransferSettings
        from compatkit.registry.remotes.pushpull import import_components

        settings = TransferSettings(
            versions=versions,
            aliases=aliases,
            evidence=evidence,
            accept=accept,
            policy_checks=policy_checks or self.policy_checks,
            unmeasured=unmeasured,
            progress=progress,
        )
        return import_components(source, self.store, patterns, settings=settings)

    def sign(
        self,
        references: str | Iterable[str],
        key: SigningKey | str | os.PathLike[str],
        *,
        expires: str | None = None,
        named: bool = True,
        every: bool = False,
    ) -> list[SigningResult]:
        """Sign components, as the names and versions that they have here; see docs/signatures.md.

        Args:
            references: One or several; a glob of names stands for the latest version of each. A bare digest is signed
                without a name.
            key: A private key, or its file (a passphrase is taken from COMPATKIT_KEY_PASSPHRASE).
            expires: ``"365d"``, ``"2027-01-31"``; None lasts as long as the key.
            named: False signs the bytes under any name.
            every: Sign all versions of a name or glob that were not withdrawn, not only the latest.

        Returns:
            One signature of each; an equal one of this key that lasts as long is kept, and not made again.

        Raises:
            NotFound: A reference matches nothing.
            KeyFileError: The key cannot be used; its subclasses say why.
            IntegrityError: A manifest is damaged.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.registry.signing import dates
        from compatkit.registry.signing.signer import SigningKey, sign

        used = key if isinstance(key, SigningKey) else SigningKey.load(key)
        ends = None if expires is None else dates.parse_expiry(expires)
        return sign(self.store, references, used, expires=ends, named=named, every=every)

    def sign_evidence(
        self,
        extractors: str,
        heads: str,
        key: SigningKey | str | os.PathLike[str],
        *,
        expires: str | None = None,
    ) -> list[SigningResult]:
        """Sign the measured results of pairs: whoever requires signatures counts only such figures.

        Args:
            extractors: A reference or glob.
            heads: A reference or glob.
            key: A private key, or its file.
            expires: As for ``sign``.

        Returns:
            One signature of each result that is here and sound, by the digest of its document.

        Raises:
            NotFound: A reference matches nothing.
            KeyFileError: The key cannot be used.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.registry.signing import dates
        from compatkit.registry.signing.signer import SigningKey, sign_evidence

        used = key if isinstance(key, SigningKey) else SigningKey.load(key)
        ends = None if expires is None else dates.parse_expiry(expires)
        return sign_evidence(self.store, extractors, heads, used, expires=ends)

    def signatures(self, reference: str) -> list[SignatureVerdict]:
        """Return the unverified statements of a component's signatures."""
        from compatkit.registry.signing.verify import statements

        return statements(self.store, reference)

    def verify_signatures(self, reference: str, trusted: Trust = True) -> list[SignatureVerdict]:
        """Verify the signatures of a component, and return the verdict on each; at least one counts.

        Args:
            reference: A name must be signed as this name and version; a bare digest stands for the bytes.
            trusted: The keys whose signatures count, as in ``Registry.open``.

        Raises:
            Unsigned, UnknownSigner, BadSignature, SignatureExpired, ...: No signature counts; all are subclasses of
                SignatureError, and say what to do.
            KeyFileError: The trusted keys cannot be read.
            MissingDependency: ``cryptography`` is not installed.
        """
        from compatkit.registry.signing.verify import verify

        return verify(self.store, reference, trusted)
