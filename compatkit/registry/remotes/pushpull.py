"""import, push, pull and clone: components between registries of this machine and remotes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import CompatkitError, LayoutError, UsageError, near
from compatkit.registry import resolving
from compatkit.registry.copy.choice import Choice, matching
from compatkit.registry.copy.move import Move
from compatkit.registry.copy.places import Origin
from compatkit.registry.copy.report import Moved
from compatkit.registry.copy.stores import StoreOrigin, StoreTarget
from compatkit.registry.layout import FOLDERS, MARKER
from compatkit.registry.remotes.address import locate
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.remote import Remote, RemoteTarget, scratch_folder
from compatkit.registry.store import Store


def import_components(
    source: Store, target: Store, patterns: Iterable[str] = ("*",), *, choice: Choice | None = None
) -> Moved:
    """Copy components of another registry: all or none, and aliases as they are there.

    Args:
        source: Where they are; only read.
        target: Where they are copied to.
        patterns: As for ``push``.
        choice: What is moved, and how; it is strict whatever it says.

    Returns:
        What was copied.

    Raises:
        NotFound: A pattern matches nothing.
        SignatureError: What was asked for has no signature that counts; nothing was copied.
        VersionExists: A number belongs to other bytes here; nothing was linked.
        VersionUntrue: A number is too small a step among the versions here; nothing was linked.
        PolicyBroken: A version does not work with a part that a policy here protects; nothing was linked.
        PolicyUndecided: Nobody measured a version as a policy here asks; nothing was linked.
        IntegrityError: Something in the source is missing, damaged or refused.
        FormatError: A manifest is not strict, or weights are no strict safetensors file.
        EnvironmentFailure: Disk full, no right to write; the same call goes on where it stopped.
        UsageError: A registry would be imported into itself.
    """
    if source.root.resolve() == target.root.resolve():
        raise UsageError(
            f"{source.root} would be imported into itself; name another registry.", subject=source.root
        )
    strict = attrs.evolve(choice or Choice(), strict=True)
    return Move(StoreOrigin(source), StoreTarget(target), strict).run(patterns)


def push(
    store: Store,
    remote: str | os.PathLike[str],
    patterns: Iterable[str] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    choice: Choice | None = None,
) -> Moved:
    """Copy components of a registry to a remote.

    Args:
        store: Where they are; not changed.
        remote: A folder, or an address that fsspec reaches, such as ``s3://bucket/parts``.
        patterns: Names, globs such as ``"digits/*"``, or references such as ``"digits/*@^1"`` for one version of each;
            None takes all.
        options: Of the fsspec file system.
        choice: What is moved, and how.

    Returns:
        What came there, and what was refused; its ``check`` raises where something was.

    Raises:
        NotFound: A pattern matches nothing.
        LayoutError: The remote is no registry and ``choice.create`` is False, or has a layout that this version may
            not write.
        EnvironmentFailure: No right, no network, no library for the address; the same call goes on where it stopped.
        UsageError: The address or the options cannot be used; the remote is this registry.
    """
    choice, origin = choice or Choice(), StoreOrigin(store)
    wanted = asked(origin, patterns)
    there = locate(remote, options)
    if not choice.create:
        _check_exists(there, options)
    if not isinstance(there, Path):
        with closing(RemoteTarget(there, objects=store.objects)) as target:
            return Move(origin, target, choice).run(wanted)
    _check_other(store, there)
    fresh = not (there / MARKER).exists()
    with scratch_folder() if fresh and choice.dry_run else nullcontext(str(there)) as folder:
        if fresh:
            check_new(Path(folder))
        return Move(origin, StoreTarget(Store.init(folder, exist_ok=True)), choice).run(wanted)


def pull(
    store: Store | Callable[[], Store],
    remote: str | os.PathLike[str],
    patterns: Iterable[str] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    choice: Choice | None = None,
) -> Moved:
    """Copy components of a remote to a registry; each is verified while it arrives, and named last.

    Args:
        store: Where they are copied to; or what makes it, called once the remote is known to hold what is asked for.
        remote: A folder, or an address that fsspec reaches; only read.
        patterns: As for ``push``.
        options: Of the fsspec file system.
        choice: What is moved, and how. Its ``accept`` is given a manifest's digest, its signatures as they were found
            and ``name@version``, before anything of the component comes, and refuses it by an exception.

    Returns:
        What came here, and what was refused; its ``check`` raises where something was.

    Raises:
        NotFound: A pattern matches nothing.
        LayoutError: The remote is no registry, or one that this version cannot read.
        EnvironmentFailure: No right, no network, disk full; the same call goes on where it stopped.
        UsageError: The address or the options cannot be used; the remote is this registry.
    """
    with _origin(remote, options) as origin:
        wanted = asked(origin, patterns)
        target = store() if callable(store) else store
        if isinstance(origin, StoreOrigin):
            _check_other(target, origin.store.root)
        if isinstance(origin, Remote):
            origin.here = target.objects
        return Move(origin, StoreTarget(target), choice or Choice()).run(wanted)


def clone(
    remote: str | os.PathLike[str],
    folder: Path,
    *,
    options: Mapping[str, Any] | None = None,
    choice: Choice | None = None,
) -> tuple[Store, Moved]:
    """Make a new registry with all that a remote holds; it has an id of its own.

    Args:
        remote: A folder, or an address that fsspec reaches; only read.
        folder: Is made, or empty. After a failure it is a registry with what has come, and ``pull`` goes on.
        options: Of the fsspec file system.
        choice: What is moved, and how.

    Returns:
        The registry, and what came into it.

    Raises:
        LayoutError: The folder is a registry or holds other files; the remote is none.
        EnvironmentFailure: No right, no network, disk full.
        UsageError: The address or the options cannot be used.
    """
    folder = folder.expanduser().absolute()
    if (folder / MARKER).exists():
        raise LayoutError(
            f"{folder} is a registry already. Go on with `compatkit --registry {folder} pull REMOTE`, or name a new "
            "folder.",
            subject=folder,
        )
    check_new(folder)
    moved = pull(lambda: Store.init(folder), remote, options=options, choice=choice)
    return Store.open(folder), moved


def check_new(folder: Path) -> None:
    """Check that a folder can become a registry: it does not exist, or is empty.

    Raises:
        LayoutError: It holds other files.
    """
    tops = {one.partition("/")[0] for one in FOLDERS}
    if folder.exists() and (not folder.is_dir() or {one.name for one in folder.iterdir()} - tops):
        raise LayoutError(f"{folder} holds other files; name a new folder.", subject=folder)


def asked(origin: Origin, patterns: Iterable[str] | None) -> list[str]:
    """Return the patterns to move; for None everything, which is nothing in an empty registry.

    Args:
        origin: Where the components are.
        patterns: References or patterns.

    Raises:
        NotFound: A pattern matches nothing.
    """
    if patterns is None:
        return ["*"] if origin.names() else []
    asked = [patterns] if isinstance(patterns, str) else list(patterns)
    with origin.translating():
        for pattern in asked:
            if not matching(pattern, origin.names()):
                resolving.select(origin.references, pattern)  # raises an error that says what there is
    return asked


@contextmanager
def _origin(remote: str | os.PathLike[str], options: Mapping[str, Any] | None) -> Iterator[Origin]:
    """Give a remote to read from.

    Raises:
        LayoutError: It is no registry, or one that this version cannot read.
    """
    there = locate(remote, options)
    if isinstance(there, Path):
        yield StoreOrigin(Store.open(there))
        return
    with closing(Remote(there)) as origin:
        origin.check()
        yield origin


def _check_exists(there: Path | Files, options: Mapping[str, Any] | None) -> None:
    """Check that a push finds a registry, so that a mistyped address does not become one.

    Raises:
        LayoutError: It does not; names registries beside it that are spelled alike.
    """
    if _is_registry(there):
        return
    address = str(there) if isinstance(there, Path) else there.url
    parent, _, name = address.rpartition("/")
    alike: list[str] = []
    with suppress(OSError, CompatkitError):  # only a hint: the parent may not be readable, or not be there
        siblings = os.listdir(parent) if isinstance(there, Path) else there.neighbors()
        nearby = [f"{parent}/{sibling}" for sibling in near(name, siblings, 3)]
        alike = [path for path in nearby if _is_registry(locate(path, options))]
    hint = f" Did you mean {alike[0]}?" if alike else ""
    raise LayoutError(
        f"There is no registry at {address}.{hint} Check the address; to make a new registry there, say so: "
        "`compatkit push --create`, or push(..., create=True) in Python.",
        subject=address,
    )


def _is_registry(there: Path | Files) -> bool:
    return (there / MARKER).exists() if isinstance(there, Path) else there.size(MARKER) is not None


def _check_other(store: Store, root: Path) -> None:
    if root.resolve() == store.root.resolve():
        raise UsageError(f"{store.root} is this registry itself; name another.", subject=store.root)
