"""The registry in force and the saved remotes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from compatkit.errors import CompatkitError, IntegrityError, LayoutError
from compatkit.foundation.addresses import is_url, normalized, remote_name, shown
from compatkit.health.observation import Observation
from compatkit.health.storage import file_system
from compatkit.registry.layout import LAYOUT, VARIABLE, inspect, locate
from compatkit.registry.maintenance.check import examine, open_damaged
from compatkit.registry.remotes import named
from compatkit.registry.remotes.located import Files, open_address
from compatkit.registry.remotes.named import SavedRemote
from compatkit.registry.remotes.remote import Remote

MOST = 2_000
"""Most names of a registry that are verified at once."""
SHOWN = 5
"""Most faults that are listed."""


def registry(root: str | os.PathLike[str] | None) -> Iterator[Observation]:
    """Yield what is found about a registry.

    Args:
        root: Its folder, or a remote, which is only named; None for the registry in force.
    """
    text = os.fspath(root) if root is not None else os.environ.get(VARIABLE) or ""
    source = "" if root is not None else f" ({VARIABLE})" if text else " (the nearest upwards from here)"
    try:
        if remote_name(text) is not None or is_url(normalized(text or ".")):
            found = f"{shown(text)}{source}: a remote, which is not asked"
            yield Observation("registry", "in force", "ok", found, "--remotes asks saved remotes.")
            return
        path = Path(text).expanduser().absolute() if text else locate(None)
    except (CompatkitError, RuntimeError) as error:
        if text:
            yield Observation("registry", "in force", "problem", f"{text}{source}: {error}", "Name another.")
        else:
            yield Observation("registry", "in force", "ok", "none", "Make one: compatkit init FOLDER.")
        return
    try:
        layout = inspect(path)
    except (IntegrityError, LayoutError) as error:
        damaged = isinstance(error, IntegrityError) or error.exit_code == IntegrityError.exit_code
        remedy = "See `compatkit verify`." if damaged else f"Name another (--registry, {VARIABLE})."
        yield Observation("registry", "in force", "problem", f"{path}{source}: {error}", remedy, damaged)
        if not damaged and not (path / "refs").is_dir():
            return
    except CompatkitError as error:
        yield Observation("registry", "in force", "problem", f"{path}{source}: {error}", "Check its folder.")
        return
    else:
        found = (
            f"{path}{source}: layout {layout.layout} (this compatkit writes {LAYOUT}), identity {layout.id}"
        )
        state = "warning" if layout.min_writer > LAYOUT else "ok"
        remedy = "It can only be read; upgrade compatkit to write." if state == "warning" else ""
        yield Observation("registry", "in force", state, found, remedy)
    yield from file_system(path)
    yield from _contents(path)


def _contents(path: Path) -> Iterator[Observation]:
    try:
        store = open_damaged(path)
        count = len(store.names())
    except CompatkitError as error:
        damaged = isinstance(error, IntegrityError)
        yield Observation("registry", "names", "problem", str(error), "See `compatkit verify`.", damaged)
        return
    try:
        status = store.index.status()
        found = f"{status.path}: {status.names:,} names, {status.versions:,} versions, {status.manifests:,} manifests"
        yield Observation("registry", "index", "ok", f"{found}; up to date")
    except CompatkitError as error:
        yield Observation(
            "registry", "index", "problem", str(error), "Set COMPATKIT_CACHE to a writable folder."
        )
    last = store.local_cache.verification()
    yield Observation(
        "registry",
        "last full verification",
        "warning" if last is not None and last.errors else "ok",
        f"{last} (on this computer)" if last is not None else "none known on this computer",
        "`compatkit verify` reads all bytes." if last is None or last.errors else "",
    )
    if count > MOST:
        found = f"not done: {count:,} names"
        yield Observation("registry", "quick verification", "ok", found, "Run `compatkit verify --quick`.")
        return
    report = examine(store, deep=False)
    faults = [fault for fault in report.faults if fault.severity != "info"]
    if not faults:
        found = f"{report.versions:,} versions, {report.blobs:,} blobs: sound"
        yield Observation("registry", "quick verification", "ok", found)
    for fault in faults[:SHOWN]:
        is_error = fault.severity == "error"
        found = f"{fault.code} {fault.path}: {fault.what}"
        yield Observation(
            "registry",
            "quick verification",
            "problem" if is_error else "warning",
            found,
            fault.remedy,
            is_error,
        )
    if len(faults) > SHOWN:
        damaged = any(fault.severity == "error" for fault in faults[SHOWN:])
        yield Observation(
            "registry",
            "quick verification",
            "problem" if damaged else "warning",
            f"{len(faults) - SHOWN:,} more faults",
            "See `compatkit verify`.",
            damaged,
        )


def remotes(*, ask: bool) -> Iterator[Observation]:
    """Yield what is found about saved remotes.

    Args:
        ask: Whether to ask each for its ``compatkit.json``; nothing is sent otherwise.
    """
    try:
        names = named.names()
    except (CompatkitError, RuntimeError) as error:  # RuntimeError: no home folder
        yield Observation("remotes", "saved", "warning", f"cannot be listed: {error}")
        return
    if not names:
        yield Observation("remotes", "saved", "ok", "none")
    with ThreadPoolExecutor(max_workers=8) as pool:
        yield from pool.map(lambda name: _remote(name, ask), names)


def _remote(name: str, ask: bool) -> Observation:
    try:
        remote = named.get(name)
        if not ask:
            return Observation("remotes", f"{name}:", "ok", f"{remote}; not asked (--remotes does)")
        layout = _layout_of(remote)
    except CompatkitError as error:
        damaged = isinstance(error, IntegrityError)
        return Observation(
            "remotes", f"{name}:", "problem", str(error), f"See `compatkit remote show {name}`.", damaged
        )
    return Observation("remotes", f"{name}:", "ok", f"{remote}: {layout}")


def _layout_of(remote: SavedRemote) -> str:
    if not is_url(remote.address):
        return f"a folder with layout {inspect(Path(remote.address)).layout}"
    located = open_address(remote.address, remote.options)
    if isinstance(located, Path):
        return f"a folder with layout {inspect(located).layout}"
    if not isinstance(located, Files):
        return "image layouts, which are not asked"
    with closing(Remote(located)) as opened:
        return f"answers, layout {opened.check().layout}"
