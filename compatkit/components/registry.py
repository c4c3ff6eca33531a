"""The public registry: create, open and search it. Its base classes publish, compare and copy components."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.components.bridges.published import Bridges
from compatkit.components.changing import Changing
from compatkit.components.comparing import Comparing
from compatkit.components.copying import Copying
from compatkit.components.policies import Policies
from compatkit.components.publishing import Publishing
from compatkit.errors import CompatkitError, InvalidName, NotFound, UsageError
from compatkit.evaluation.component import Component
from compatkit.foundation import cache
from compatkit.foundation.addresses import local
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.display import LINES, Shown
from compatkit.registry.authorship import Author
from compatkit.registry.layout import locate
from compatkit.registry.opening import AnyRegistry, open_store, opened
from compatkit.registry.signing.trust import Trust, Trusted
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.catalogue.site import Site
    from compatkit.evaluation.conditions import Progress
    from compatkit.registry.maintenance.operations import Maintenance
    from compatkit.registry.signing.private_keys import SigningKey
    from compatkit.registry.versions.diff import Difference
    from compatkit.reports.listing import Listing


@checks_arguments
@attrs.frozen(eq=False, repr=False, init=False)
class Registry(Comparing, Publishing, Copying, Changing, Shown):
    """Components under versioned names in one folder.

    ``Registry("parts")`` opens one, ``Registry("parts", create=True)`` creates it if the folder holds none. ``init``
    refuses a folder that holds one already; ``open`` can require signatures and can open a damaged registry.

    It is a container: ``for name in registry`` yields names, ``len`` counts them, ``registry["digits/mnist.head@^1"]``
    is a ``Component``, and ``"digits/mnist.head" in registry`` tests for one.

    Attributes:
        store: Store of the components' files; it knows nothing about networks.
    """

    store: Store

    def __init__(self, root: AnyRegistry | None = None, *, create: bool = False) -> None:
        """Open the registry in a folder.

        Args:
            root: The folder; None for COMPATKIT_REGISTRY, else the nearest folder above. Or an open ``Registry`` or
                ``Store``; or the address of a remote, which is only read.
            create: Create a registry there if there is none.

        Raises:
            LayoutError: There is no registry and ``create`` is False, or its layout is not supported.
            EnvironmentFailure: The folder cannot be written.
            UsageError: ``create`` without a folder, or ``root`` is none of these.
        """
        if not create:
            store = open_store(None) if root is None else opened(root, "Registry(...)")
        elif isinstance(root, str | os.PathLike):
            store = Store.init(root, exist_ok=True)
        else:
            raise UsageError("create=True needs the folder of the registry as root.", subject=root)
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
        key: SigningKey | str | os.PathLike[str] | None = None,
        damaged: bool = False,
    ) -> Registry:
        """Open the registry in ``root``; None for COMPATKIT_REGISTRY, else the nearest folder above.

        Args:
            root: The folder, or the address of a remote, which is only read: its small files are copied into the
                cache, and weights are fetched when they are loaded.
            require_signature: Signature required of every component that is loaded, recombined or measured: True for
                one by your trusted keys (``compatkit keys``), or a folder of public keys, a file or a key; see
                ``compatkit.registry.signing.public``. False or None requires none.
            key: Private key that signs what is published, moved, withdrawn and changed: its file, or its name of
                ``compatkit keys``; None for that of COMPATKIT_KEY, if any.
            damaged: Open it even if its ``compatkit.json`` is damaged or missing, for ``maintenance.verify`` and
                ``maintenance.repair``.

        Raises:
            LayoutError: There is no registry, or its layout is not supported.
            KeyFileError: The trusted keys cannot be determined, or the key cannot be used.
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
        used = None if key is None else Author.of(key).key
        return cls(open_store(root, trusted, used))

    @classmethod
    def clone(
        cls,
        remote: AnyRegistry,
        root: str | os.PathLike[str],
        *,
        options: Mapping[str, Any] | None = None,
        require_signature: Trust = False,
        versions: Literal["all", "latest"] = "all",
        aliases: bool = True,
        evidence: bool = True,
        weights: bool = True,
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
            weights: As for ``pull``.
            jobs: As for ``push``.
            progress: As for ``push``.

        Raises:
            Incomplete: Something was refused; the registry holds the rest.
            LayoutError: The folder is a registry or contains other files; or the remote is not a registry.
            EnvironmentFailure: No permission, no network, disk full; continue with ``pull``.
        """
        from compatkit.registry.copy.settings import TransferSettings
        from compatkit.registry.remotes.pushpull import clone

        settings = TransferSettings(
            versions=versions,
            aliases=aliases,
            evidence=evidence,
            weights=weights,
            jobs=jobs,
            progress=progress,
        ).with_trust(require_signature)
        store, moved = clone(remote, Path(local(root, "a registry")), options=options, settings=settings)
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
            pattern: Glob over full names; ``*`` also matches ``/``.
            kind: ``"extractor"``, ``"head"``, ``"recombination"``, ...
            tags: Required values by tag.
            model: Glob over the model of the blueprint.
            channels: Number of channels of one of the feature ports.
            label: A class, by any of its names, regardless of case, spaces and underscores.
            anchor: Beginning of the digest of an anchor, in hexadecimal.
            parent: Manifest digest or reference of a parent.
            digest: Manifest digest.
            text: As ``words``, without the name.
            latest: Only the latest version of each name that is not withdrawn.
            withdrawn: Include withdrawn versions.
            limit: Maximum number of versions; None for all.
            offset: Number of versions to skip.

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
        from compatkit.registry.history import change_between

        change = change_between(self.store, old, new)
        if not tensors:
            return change
        from compatkit.registry.versions.tensors import tensor_changes

        states = (self.store.load_state(self.store.manifest(reference)) for reference in (old, new))
        return attrs.evolve(change, tensors=tensor_changes(*states))

    def site(self, out: str | os.PathLike[str], *, title: str = "", progress: Progress | None = None) -> Site:
        """Write a catalogue of all components: a folder of pages that open without a server and ask no network.

        Args:
            out: New folder; an empty one, or a catalogue that compatkit wrote, is replaced.
            title: Title; empty for the name of the registry's folder, or the address of its remote.
            progress: Called with done, total and the component.

        Returns:
            The folder, with the number of its files and components.

        Raises:
            UsageError: ``out`` holds other files, is a link or file, or lies in the registry.
            EnvironmentFailure: It cannot be written; nothing was replaced.
        """
        from compatkit.components.catalogue.site import write_site

        return write_site(self.store, out, title=title, progress=progress)

    def serve(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8642,
        public: bool = False,
        title: str = "",
        started: Callable[[str], object] | None = None,
    ) -> None:
        """Show the catalogue of ``site`` on loopback, read-only, with new versions as they arrive, until interrupted.

        Args:
            host: Address to listen on.
            port: Port; 0 for a free one.
            public: Whether ``host`` may be reached from other machines, so that whoever reaches it reads everything.
            title: Title; empty for the name of the registry's folder.
            started: Called with the address of the front page.

        Raises:
            UsageError: ``host`` is no address, or not loopback and ``public`` is False; or the registry is a remote.
            EnvironmentFailure: The port is in use or not allowed.
        """
        from compatkit.components.catalogue.server import serve

        serve(self.store, host=host, port=port, public=public, title=title, started=started)

    @property
    def maintenance(self) -> Maintenance:
        """Maintenance: verify, repair, collect unused blobs, disk usage, history, import, signatures."""
        from compatkit.components.loadable import load_check
        from compatkit.components.policy_checks import policy_checks
        from compatkit.registry.maintenance.operations import Maintenance

        return Maintenance(self.store, policy_checks(), load_check)

    @property
    def policies(self) -> Policies:
        """Policies by scope: what new versions must keep working with."""
        return Policies(self.store)

    @property
    def bridges(self) -> Bridges:
        """Published bridges, and new bridges for many pairs of a ``matrix``."""
        return Bridges(self.store)

    def _description(self) -> str:
        """Return its folder and the first names with their latest versions."""
        where = f"Registry({(cache.mirrored(self.store.root) or str(self.store.root))!r})"
        try:
            count = len(self)
            shown = self.search(latest=True, limit=LINES - 10)
        except CompatkitError as error:  # repr must not fail
            return f"{where}: {error}"
        more = [f"... and {count - len(shown):,} more names"] if count > len(shown) else []
        return "\n".join(
            [f"{where}: {count:,} component{'' if count == 1 else 's'}", *str(shown).split("\n"), *more]
        )
