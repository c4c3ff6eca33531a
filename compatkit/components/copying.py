"""Registry methods that copy components to and from remotes, and to other names and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from compatkit.registry.opening import AnyRegistry
from compatkit.registry.signing.trust import Trust
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.images import PolicyData
    from compatkit.evaluation.conditions import Progress
    from compatkit.registry.copy.report import TransferReport


class Copying:
    """Registry methods that copy components to and from remotes, and to other names and numbers.

    Attributes:
        store: Files of the registry.
    """

    store: Store

    def push(
        self,
        remote: AnyRegistry,
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
        replace_card: bool = False,
        jobs: int = 8,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> TransferReport:
        """Copy components to a remote; only what is missing is transferred.

        Args:
            remote: Directory, ``s3://bucket/prefix``, or another address that a plugin opens; or a
                ``Registry`` without required signatures.
            patterns: Pattern, or patterns, such as ``"digits/*"``; None for all components.
            options: Options of the remote's plugin, such as ``{"endpoint_url": ...}``.
            create: Create a registry at the remote if there is none.
            measure: Measure what policies of a local remote require and evidence does not decide.
            data: Images to measure on.
            versions: ``"all"``, including tombstones of withdrawn versions, or ``"latest"``, one version of each name.
            aliases: Copy aliases of the names, too.
            evidence: Copy measured results of pairs, too, if both parts are copied.
            unmeasured: Accept versions without the measurements that a policy requires; its log records that.
            replace_card: Replace ``README.md``, ``config.json`` and ``model.safetensors`` of a model repository on the
                Hugging Face Hub that others wrote; otherwise only those that compatkit wrote are kept up to date.
            jobs: Number of blobs copied in parallel.
            dry_run: Only report what would be copied.
            progress: Called with done, total and a description.

        Raises:
            Incomplete: Versions were refused, such as one that exists there with other content; others were copied.
            NotFound: A pattern matches nothing.
            LayoutError: The remote is not a registry, and ``create`` is False.
            EnvironmentFailure: There is no permission or no network; repeat the call to continue.
        """
        from compatkit.components.cards.site_files import site_files
        from compatkit.components.policy_checks import policy_checks
        from compatkit.registry.copy.settings import TransferSettings
        from compatkit.registry.remotes.pushpull import push

        settings = TransferSettings(
            policy_checks=policy_checks(measure=measure, data=data),
            create=create,
            site_files=site_files(replace=replace_card),
            versions=versions,
            aliases=aliases,
            evidence=evidence,
            unmeasured=unmeasured,
            jobs=jobs,
            dry_run=dry_run,
            progress=progress,
        )
        return push(self.store, remote, patterns, options=options, settings=settings).check()

    def pull(
        self,
        remote: AnyRegistry,
        patterns: str | Sequence[str] | None = None,
        *,
        options: Mapping[str, Any] | None = None,
        require_signature: Trust = False,
        measure: bool = False,
        data: PolicyData = (),
        versions: Literal["all", "latest"] = "all",
        aliases: bool = True,
        follow_aliases: bool = False,
        follow_withdrawals: bool = False,
        follow_results: bool = False,
        evidence: bool = True,
        weights: bool = True,
        unmeasured: bool = False,
        jobs: int = 8,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> TransferReport:
        """Copy components from a remote, verified on arrival; nothing that is in this registry changes.

        Withdrawals and alias moves of what is here already are listed in the report's ``offered`` and made on request.

        Args:
            remote: As for ``push``; it is only read.
            patterns: Pattern, or patterns, such as ``"digits/*"``; None for all components.
            options: Options of the remote's plugin.
            require_signature: Required signature, in addition to that of ``open``; components without one are refused
                before any of their files is copied.
            measure: Measure what policies of this registry require and evidence does not decide.
            data: Images to measure on.
            versions: As for ``push``.
            aliases: As for ``push``.
            follow_aliases: Move aliases that are here already as they were moved there.
            follow_withdrawals: Withdraw and restore versions that are here already as there.
            follow_results: Copy results of pairs that were measured here under the same conditions.
            evidence: As for ``push``.
            weights: Copy weights, too. If False, each is fetched from the remote, verified and kept when it is first
                loaded; the address stands in your configuration, for this registry in this folder.
            unmeasured: As for ``push``.
            jobs: As for ``push``.
            dry_run: As for ``push``.
            progress: As for ``push``.

        Raises:
            Incomplete: Some versions were refused, and the rest was copied. Reasons are bytes that differ from their
                digest, a version that exists here with other content or understates its change, a broken or undecided
                policy, and a missing or invalid signature.
            KeyFileError: The trusted keys cannot be determined.
            MissingDependency: Signatures are required, but ``cryptography`` is not installed.
            NotFound: A pattern matches nothing.
            LayoutError: The remote is not a registry.
            EnvironmentFailure: There is no permission, no network or no space left; repeat the call to continue.
        """
        from compatkit.components.policy_checks import policy_checks
        from compatkit.registry.copy.settings import TransferSettings
        from compatkit.registry.remotes.pushpull import pull

        settings = TransferSettings(
            policy_checks=policy_checks(measure=measure, data=data),
            versions=versions,
            aliases=aliases,
            follow_aliases=follow_aliases,
            follow_withdrawals=follow_withdrawals,
            follow_results=follow_results,
            evidence=evidence,
            weights=weights,
            unmeasured=unmeasured,
            jobs=jobs,
            dry_run=dry_run,
            progress=progress,
        ).with_trust(require_signature)
        return pull(self.store, remote, patterns, options=options, settings=settings).check()

    def copy(
        self,
        reference: str,
        target: str,
        *,
        major: bool = False,
        measure: bool = False,
        data: PolicyData = (),
        unmeasured: bool = False,
        progress: Progress | None = None,
    ) -> str:
        """Give a version another name or number in this registry, such as to rename or promote it.

        The manifest and its digest stay the same, so children, results and signatures of the digest hold. A signature
        of the old name and version does not count under the new ones. Policies of the target apply as for ``publish``.

        Args:
            reference: Version to copy: ``"staging/mnist.head@1.3.0"``.
            target: ``"prod/mnist.head"`` for the smallest number that the rules require there, or
                ``"prod/mnist.head@2.0.0"``. The version's own name gives it a further number.
            major: Use the next MAJOR number, which policies do not bind; only without a version.
            measure: Measure what a policy of the target requires and evidence does not decide.
            data: Images to measure on.
            unmeasured: Accept a version without the measurements that a policy requires; its log records that.
            progress: Called with done, total and a description.

        Returns:
            The pinned reference ``name@version``; a second call returns the same.

        Raises:
            NotFound: The reference does not resolve.
            UsageError: The version was withdrawn, or the target has versions of another kind.
            VersionExists: The number belongs to another component.
            VersionTooSmall: The change requires a larger step than the requested version.
            PolicyBroken: The component does not work with a released partner; carries the outcome with its matrix.
            PolicyUndecided: A policy requires a measurement, and neither ``measure`` nor ``unmeasured`` is given.
            SignatureError: The registry was opened with ``require_signature``, and the version has no valid one.
            EnvironmentFailure: Disk full, or no write permission.
        """
        from compatkit.components.policy_checks import policy_checks
        from compatkit.registry.second_names import copy

        checks = policy_checks(measure=measure, data=data, progress=progress, fixed=False)
        copied = copy(self.store, reference, target, major=major, policy_checks=checks, unmeasured=unmeasured)
        return str(copied)
