"""Import, push, pull and clone: copy components between local registries and remotes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError, LayoutError, NotFound, UsageError, near
from compatkit.registry import resolving
from compatkit.registry.copy.local import LocalRegistry
from compatkit.registry.copy.settings import SiteWriter, TransferSettings
from compatkit.registry.copy.transfer import ComponentTransfer
from compatkit.registry.layout import FOLDERS, MARKER
from compatkit.registry.opening import AnyRegistry, open_store_of
from compatkit.registry.remotes import named
from compatkit.registry.remotes.address import Located, locate
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.located import Packages
from compatkit.registry.remotes.named import SavedRemote
from compatkit.registry.remotes.packaging import PackageOrigin, write_packages
from compatkit.registry.remotes.remote import Remote, scratch_folder
from compatkit.registry.remotes.sources import add_source
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.registry.copy.endpoints import Origin
    from compatkit.registry.copy.report import TransferReport
    from compatkit.registry.remotes.objectstore import Site, SiteFiles


def import_components(
    source: Store,
    target: Store,
    patterns: Iterable[str] = ("*",),
    *,
    settings: TransferSettings | None = None,
) -> TransferReport:
    """Copy components of another registry in a folder, all or none.

    Args:
        source: Registry to copy from; it is only read.
        target: Registry to copy to.
        patterns: See ``push``.
        settings: Settings of the transfer; an import is always strict.

    Returns:
        Report of what was copied.

    Raises:
        NotFound: A pattern matches nothing.
        SignatureError: A requested component has no trusted signature; nothing was copied.
        VersionExists: A number belongs to another component here; nothing was added.
        VersionUntrue: A number is too small a step among the versions here; nothing was added.
        PolicyBroken: A version does not work with a part that a policy here protects; nothing was added.
        PolicyUndecided: A version was not measured as a policy here requires; nothing was added.
        IntegrityError: Something in the source is missing, damaged or refused.
        FormatError: A manifest or weights file is malformed.
        EnvironmentFailure: Disk full, no write permission; the same call continues.
        UsageError: A registry would be imported into itself.
    """
    _check_distinct(target, source.root)
    strict = attrs.evolve(settings or TransferSettings(), strict=True)
    return ComponentTransfer(LocalRegistry(source), LocalRegistry(target), strict).run(patterns)


def push(
    store: Store,
    remote: AnyRegistry | Located,
    patterns: Iterable[str] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    settings: TransferSettings | None = None,
) -> TransferReport:
    """Copy components of a registry to a remote.

    Args:
        store: Registry to copy from; not changed.
        remote: Folder, or an address that a plugin opens, such as ``s3://bucket/parts``.
        patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"`` for one version of each;
            None takes all.
        options: Keyword arguments for the remote's plugin.
        settings: Settings of the transfer.

    Returns:
        Report of what was copied and refused; its ``check`` raises if something was refused.

    Raises:
        NotFound: A pattern matches nothing.
        LayoutError: The remote is missing and ``settings.create`` is False, or this version may not write its layout.
        EnvironmentFailure: No permission, no network, no library for the address; the same call continues.
        UsageError: The address or the options cannot be used, or the remote is this registry.
    """
    settings, origin = (settings or TransferSettings()).following(), LocalRegistry(store)
    wanted = _requested_patterns(origin, patterns)
    located = locate(remote, options)
    if not settings.create:
        _check_exists(located, options, [name for pattern in wanted for name in origin.matching(pattern)])
    if isinstance(located, Packages):
        with closing(located.store):
            return write_packages(store, located, wanted, settings)
    if not isinstance(located, Path):
        with closing(Remote(located, store.objects)) as target:
            report = ComponentTransfer(origin, target, settings, pushes=True).run(wanted)
            if not settings.dry_run:
                target.finish()
            report.notes += target.notes
        if not settings.dry_run and settings.site_files is not None:
            report.notes += _present(store, located, settings.site_files)
        return report
    _check_distinct(store, located)
    is_new = not (located / MARKER).exists()
    with scratch_folder() if is_new and settings.dry_run else nullcontext(str(located)) as folder:
        if is_new:
            _check_new(Path(folder))
        target = LocalRegistry(Store.init(folder, exist_ok=True))
        return ComponentTransfer(origin, target, settings, pushes=True).run(wanted)


def _present(store: Store, files: Files, site_files: SiteWriter) -> list[str]:
    """Write what the remote's site shows, from what is in the remote now; return notes for the user."""
    notes: list[str] = []
    with ExitStack() as stack:

        def changes(site: Site) -> SiteFiles:
            notes.clear()
            remote = stack.enter_context(closing(Remote(files, store.objects)))
            return site_files(store, remote, site, notes)

        files.present(changes)
    return notes


def pull(
    store: Store | Callable[[], Store],
    remote: AnyRegistry | Located,
    patterns: Iterable[str] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    settings: TransferSettings | None = None,
) -> TransferReport:
    """Copy components of a remote to a registry; each is verified on arrival, and its version created last.

    Args:
        store: Registry to copy to, or a function that creates it, called once the patterns are found in the remote.
        remote: Folder, or an address that a plugin opens; it is only read. Changes of a saved remote that is trusted
            are followed, see ``TransferSettings``.
        patterns: See ``push``.
        options: Keyword arguments for the remote's plugin.
        settings: Settings of the transfer. Its ``accept`` receives a manifest's digest, its unverified signatures and
            ``name@version`` before anything of the component is copied, and raises to refuse it.

    Returns:
        Report of what was copied and refused; its ``check`` raises if something was refused.

    Raises:
        NotFound: A pattern matches nothing.
        LayoutError: The remote is not a registry, or this version cannot read its layout.
        EnvironmentFailure: No permission, no network, disk full; the same call continues.
        UsageError: The address or the options cannot be used, or the remote is this registry.
    """
    requested = None if patterns is None else _as_list(patterns)
    settings = settings or TransferSettings()
    source = None if settings.weights or settings.dry_run else _source(remote, options)
    if (saved := named.find(remote)) is not None and saved.trusted:
        settings = attrs.evolve(settings, follow_aliases=True, follow_withdrawals=True)
    with _origin(remote, options, ["*"] if requested is None else requested) as origin:
        wanted = _requested_patterns(origin, requested)
        target = store() if callable(store) else store
        if isinstance(origin, LocalRegistry):
            _check_distinct(target, origin.store.root)
        if isinstance(origin, Remote):
            origin.local = target.objects
        if source is not None:
            add_source(target.root, target.id, source)
        report = ComponentTransfer(origin, LocalRegistry(target), settings).run(wanted)
        if isinstance(origin, Remote):
            report.notes += origin.mirror.notes
    report.refused[:0] = origin.refused
    if not wanted:
        report.notes.append(f"{origin.address} has no components.")
    return report


def clone(
    remote: AnyRegistry | Located,
    folder: Path,
    *,
    options: Mapping[str, Any] | None = None,
    settings: TransferSettings | None = None,
) -> tuple[Store, TransferReport]:
    """Create a new registry with everything in a remote; it has its own id.

    Args:
        remote: Folder, or an address that a plugin opens; it is only read.
        folder: New or empty folder. After a failure it contains the copied components, and ``pull`` continues.
        options: Keyword arguments for the remote's plugin.
        settings: Settings of the transfer.

    Returns:
        The registry, and the report.

    Raises:
        LayoutError: The folder is a registry or contains other files, or the remote is not a registry.
        EnvironmentFailure: No permission, no network, disk full.
        UsageError: The address or the options cannot be used.
    """
    folder = folder.expanduser().absolute()
    if (folder / MARKER).exists():
        raise LayoutError(
            f"{folder} is already a registry. Continue with `compatkit --registry {folder} pull REMOTE`, or choose a "
            "new folder.",
            subject=folder,
        )
    _check_new(folder)
    report = pull(lambda: Store.init(folder), remote, options=options, settings=settings)
    return Store.open(folder), report


def _source(remote: AnyRegistry | Located, options: Mapping[str, Any] | None) -> SavedRemote:
    """Return what is saved of a remote that weights are fetched from later.

    Raises:
        UsageError: It is not an address, has packages, or comes with secrets.
    """
    if (store := open_store_of(remote)) is not None:
        return SavedRemote(str(store.root))
    if (saved := named.find(remote)) is not None:
        return SavedRemote.of(saved.address, {**saved.options, **(options or {})})
    if not isinstance(remote, str | os.PathLike) or isinstance(locate(remote, options), Packages):
        raise UsageError(
            f"Single weights cannot be fetched from {remote}; copy it with weights.", subject=str(remote)
        )
    return SavedRemote.of(os.fspath(remote), options)


def _check_new(folder: Path) -> None:
    """Raise LayoutError unless a folder can become a registry: it does not exist, or is empty."""
    tops = {path.partition("/")[0] for path in FOLDERS}
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - tops):
        raise LayoutError(f"{folder} contains other files; choose a new folder.", subject=folder)


def _requested_patterns(origin: Origin, patterns: Iterable[str] | None) -> list[str]:
    """Return the patterns to copy; None selects everything, even if there is nothing.

    Raises:
        NotFound: A pattern matches nothing.
    """
    if patterns is None:
        return ["*"] if origin.names() else []
    wanted = _as_list(patterns)
    with origin.translate_errors():
        for pattern in wanted:
            if not origin.matching(pattern):
                if (
                    isinstance(origin, PackageOrigin) and not origin.names()
                ):  # others may be there, and were not read
                    raise NotFound(f"{origin.address} has no component {pattern!r}.", subject=pattern)
                resolving.select(origin.references, pattern)  # raises an error that lists the known names
    return wanted


def _as_list(patterns: Iterable[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


@contextmanager
def _origin(
    remote: AnyRegistry | Located,
    options: Mapping[str, Any] | None,
    patterns: Sequence[str],
) -> Iterator[Origin]:
    """Open a remote for reading what patterns name."""
    located = locate(remote, options)
    if isinstance(located, Path):
        try:
            store = Store.open(located)
        except LayoutError as error:
            error.args = (f"{error}{named.suggestion(located)}",)
            raise
        yield LocalRegistry(store)
        return
    if isinstance(located, Packages):
        with closing(PackageOrigin(located, patterns)) as packages:
            yield packages
        return
    with closing(Remote(located)) as origin:
        origin.check()
        yield origin


def _check_exists(located: Located, options: Mapping[str, Any] | None, names: list[str]) -> None:
    """Raise LayoutError if there is no registry, so that none is created at a mistyped address.

    Args:
        located: The remote.
        options: Keyword arguments for the remote's plugin.
        names: Names of the components that are going to be written.
    """
    if _is_registry(located, names):
        return
    address = str(located) if isinstance(located, Path) else located.url
    parent, _, name = address.rpartition("/")
    similar: list[str] = []
    with suppress(OSError, CompatkitError):  # only a hint: the parent may be missing or unreadable
        siblings = located.neighbors() if isinstance(located, Files) else os.listdir(parent)
        nearby = [f"{parent}/{sibling}" for sibling in near(name, siblings, 3)]
        similar = [path for path in nearby if _is_registry(locate(path, options), names)]
    hint = f" Did you mean {similar[0]}?" if similar else ""
    hint += named.suggestion(located) if isinstance(located, Path) else ""
    raise LayoutError(
        f"There is no registry at {address}.{hint} To create one, use `compatkit push --create`, or "
        "push(..., create=True) in Python.",
        subject=address,
    )


def _is_registry(located: Located, names: list[str]) -> bool:
    if isinstance(located, Files):
        return located.read(MARKER, 0, 1) is not None
    return located.exists(names) if isinstance(located, Packages) else (located / MARKER).exists()


def _check_distinct(store: Store, root: Path) -> None:
    """Raise if a registry would be copied to itself."""
    if root.resolve() == store.root.resolve():
        raise UsageError(f"{store.root} is this registry itself; choose another.", subject=store.root)
