"""What goes from registry to registry, and the care of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compatkit.registry.signing.trust import Trust
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.promises import Given
    from compatkit.registry.care import Care
    from compatkit.registry.copy.report import Moved


class Copying:
    """Copies to and from remotes, and care.

    Attributes:
        store: The files; it stores and finds, and knows no network.
    """

    store: Store

    @property
    def care(self) -> Care:
        """Examining, mending, collecting unused blobs, disk usage, history, import."""
        from compatkit.components.admitting import deciding
        from compatkit.registry.care import Care

        return Care(self.store, deciding())

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
            patterns: Such as ``"digits/*"``; None takes all there is.
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
        from compatkit.components.admitting import deciding
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
            patterns: Such as ``"digits/*"``; None takes all there is.
            options: Of the fsspec file system.
            require_signature: Whose signature every component must have that comes, besides whose ``open`` asks for;
                what has none is refused before anything of it comes.
            measure: Measure what policies here ask and no evidence tells.
            data: Images at hand for that.
            choice: As for ``push``.

        Raises:
            Incomplete: Something was refused: other bytes than promised, a number that belongs to other bytes here or
                lies, a policy here that is broken or undecided, no signature that counts; the rest came.
            KeyFileError: It cannot be found out whom to trust.
            MissingDependency: Signatures are required, and ``cryptography`` is not installed.
            NotFound: A pattern matches nothing.
            LayoutError: The remote is no registry.
            EnvironmentFailure: No right, no network, disk full; the same call goes on where it stopped.
        """
        from compatkit.components.admitting import deciding
        from compatkit.registry.copy.choice import Choice
        from compatkit.registry.remotes.pushpull import pull

        chosen = Choice.of({"deciding": deciding(measure=measure, data=data), **choice})
        chosen = chosen.requiring(require_signature)
        return pull(self.store, remote, patterns, options=options, choice=chosen).check()
