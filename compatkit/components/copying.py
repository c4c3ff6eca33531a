"""Copies of a registry at remotes: push and pull."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from compatkit.registry.signing.trust import Trust
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.images import PolicyData
    from compatkit.evaluation.conditions import Progress
    from compatkit.registry.copy.report import Moved


class Copying:
    """Methods of a registry that copy components to and from remotes.

    Attributes:
        store: The files.
    """

    store: Store

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
