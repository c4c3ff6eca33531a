"""import, push, pull and clone: components between registries of this machine and remotes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import CompatkitError, LayoutError, UsageError
from compatkit.registry import resolving
from compatkit.registry.copy.choice import Choice
from compatkit.registry.copy.folders import Folder, IntoFolder
from compatkit.registry.copy.move import Move
from compatkit.registry.copy.places import Source, Target
from compatkit.registry.copy.report import Moved
from compatkit.registry.copy.selection import names
from compatkit.registry.layout import FOLDERS, MARKER
from compatkit.registry.remotes.address import locate
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.mirror import scratch
from compatkit.registry.remotes.remote import IntoRemote, Remote

if TYPE_CHECKING:
    from compatkit.registry.store import Store


def import_components(
    source: Store, target: Store, patterns: Iterable[str] = ("*",), *, choice: Choice | None = None
) -> Moved:
    """Copy components of another registry: all or none, and aliases as they are there.

    Args:
        source: Where they are; only read.
        target: Where they shall be too.
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
    chosen = attrs.evolve(choice or Choice(), strict=True)
    return Move(Folder(source), IntoFolder(target), chosen).run(patterns)


def push(
    store: Store,
    remote: str,
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
            None takes all there is.
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
    choice, source = choice or Choice(), Folder(store)
    wanted = asked(source, patterns)
    there = locate(remote, options)
    if not choice.create:
        _check_there(there)
    with _folder(there, choice) if isinstance(there, Path) else _far(IntoRemote(there)) as target:
        _check_other(store, target)
        return Move(source, target, choice).run(wanted)


def pull(
    store: Store | Callable[[], Store],
    remote: str,
    patterns: Iterable[str] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    choice: Choice | None = None,
) -> Moved:
    """Copy components of a remote to a registry; each is verified while it arrives, and named last.

    Args:
        store: Where they shall be too; or what makes it, called once the remote is known to hold what is asked for.
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
    with source_of(remote, options) as source:
        wanted = asked(source, patterns)
        target = store() if callable(store) else store
        _check_other(target, source)
        if isinstance(source, Remote):
            source.here = target.objects
        return Move(source, IntoFolder(target), choice or Choice()).run(wanted)


def clone(
    remote: str,
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
    from compatkit.registry.store import Store

    folder = folder.expanduser().absolute()
    check_new(folder)
    made: list[Store] = []

    def make() -> Store:
        made.append(Store.init(folder))
        return made[0]

    moved = pull(make, remote, options=options, choice=choice)
    return made[0], moved


@contextmanager
def source_of(remote: str, options: Mapping[str, Any] | None = None) -> Iterator[Source]:
    """Give a remote to read from.

    Args:
        remote: A folder or an address.
        options: Of the fsspec file system.

    Raises:
        LayoutError: It is no registry, or one that this version cannot read.
    """
    from compatkit.registry.store import Store

    there = locate(remote, options)
    if isinstance(there, Path):
        yield Folder(Store.open(there))
        return
    far = Remote(there)
    try:
        far.check()
        yield far
    finally:
        far.close()


def check_new(folder: Path) -> None:
    """See that a folder can become a clone: it is not there, or empty.

    Raises:
        LayoutError: It is a registry, or holds other files.
    """
    if (folder / MARKER).exists():
        raise LayoutError(
            f"{folder} is a registry already. Go on with `compatkit --registry {folder} pull REMOTE`, or name a new "
            "folder.",
            subject=folder,
        )
    if folder.exists() and (not folder.is_dir() or {one.name for one in folder.iterdir()} - _TOPS):
        raise LayoutError(f"{folder} holds other files; name a new folder.", subject=folder)


_TOPS = {folder.partition("/")[0] for folder in FOLDERS}


def asked(source: Source, patterns: Iterable[str] | None) -> list[str]:
    """Return the patterns to move; of a registry that is empty, nothing is all there is.

    Raises:
        NotFound: A pattern matches nothing.
    """
    if patterns is None:
        return ["*"] if source.names() else []
    asked = [patterns] if isinstance(patterns, str) else list(patterns)
    with source.speaking():
        for pattern in asked:
            if not names(pattern, source.names()):
                resolving.select(source.references, pattern)  # says what there is
    return asked


@contextmanager
def _far(target: IntoRemote) -> Iterator[Target]:
    try:
        yield target
    finally:
        target.close()


@contextmanager
def _folder(root: Path, choice: Choice) -> Iterator[Target]:
    """Give the registry in a folder, made if it is none yet; for a plan, an empty one stands for it."""
    from compatkit.registry.store import Store

    if (root / MARKER).exists() or not choice.dry_run:
        if not (root / MARKER).exists():
            check_new(root)
        yield IntoFolder(Store.init(root, exist_ok=True))
        return
    with scratch() as empty:
        yield IntoFolder(Store.init(empty, exist_ok=True))


def _check_there(there: Path | Files) -> None:
    """See that a push finds a registry, so that a mistyped address does not become one.

    Raises:
        LayoutError: There is none; names those beside it that are spelt alike.
    """
    if isinstance(there, Path):
        found, where = (there / MARKER).exists(), str(there)
    else:
        found, where = there.size(MARKER) is not None, there.url
    if found:
        return
    near: list[str] = []
    with suppress(OSError, CompatkitError):  # only a hint: the parent may not be readable, or not be there
        near = _alike(there)
    hint = f" Did you mean {near[0]}?" if near else ""
    raise LayoutError(
        f"There is no registry at {where}.{hint} Check the address; to make a new registry there, say so: "
        "`compatkit push --create`, or push(..., create=True) in Python.",
        subject=where,
    )


def _alike(there: Path | Files) -> list[str]:
    """Return the addresses of registries beside one, as far as their names are spelt like its own."""
    if isinstance(there, Path):
        names = [one.name for one in there.parent.iterdir() if (one / MARKER).exists()]
        return [str(there.with_name(one)) for one in get_close_matches(there.name, names)]
    above, _, own = there.root.rpartition("/")
    with there.talking("list", above):
        names = [str(one).rstrip("/").rpartition("/")[2] for one in there.system.ls(above, detail=False)]
        return [
            f"{there.url.rpartition('/')[0]}/{one}"
            for one in get_close_matches(own, names)
            if there.system.exists(f"{above}/{one}/{MARKER}")
        ]


def _check_other(store: Store, other: Source) -> None:
    if isinstance(other, Folder) and other.root.resolve() == store.root.resolve():
        raise UsageError(f"{store.root} is this registry itself; name another.", subject=store.root)
