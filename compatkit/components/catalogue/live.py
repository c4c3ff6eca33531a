"""The catalogue of a registry as it is now: pages and data rendered on request."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from hashlib import sha256
from threading import Lock

import attrs

from compatkit.components.catalogue.details import Details
from compatkit.components.catalogue.overview import Overview, overview
from compatkit.components.catalogue.site import INDEX
from compatkit.components.catalogue.snapshot import Readings, Snapshot
from compatkit.registry.index.stamps import pulse, stamp
from compatkit.registry.store import Store
from compatkit.reports.catalogue.pages import PAGES, assets, data_script, page

STATE = "data/state.js"
_DOCUMENT = re.compile(r"data/c/([a-z0-9._/-]{1,200})/(0|[1-9][0-9]{0,6})\.js")
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
}


@attrs.frozen(eq=False)
class _View:
    """What was read of the registry at one time."""

    pulse: int | None
    snapshot: Snapshot
    front: Overview
    details: Details


@attrs.define(eq=False)
class LiveCatalogue:
    """Files of a catalogue, by path. Thread-safe: one request is answered at a time.

    Attributes:
        store: The registry.
        title: Title; empty for the name of the registry's folder.
    """

    store: Store
    title: str = ""
    _readings: Readings = attrs.field(init=False)
    _view: _View | None = attrs.field(init=False, default=None)
    _lock: Lock = attrs.field(init=False, factory=Lock)

    def __attrs_post_init__(self) -> None:
        self._readings = Readings(self.store)

    def get(self, path: str) -> tuple[str, bytes] | None:
        """Return media type and content of a file; None if the catalogue has no such file.

        No path of the file system is made from ``path``: pages, scripts and styles are known by name, components by the
        names in the registry.

        Args:
            path: Path in the catalogue, not trusted.

        Raises:
            CompatkitError: The registry cannot be read.
        """
        content = self._content(path or PAGES[0])
        return None if content is None else (_TYPES[(path or PAGES[0]).rpartition(".")[2]], content)

    def refresh(self) -> None:
        """Read the registry, so that the first page comes at once."""
        with self._lock:
            self._current()

    def _content(self, path: str) -> bytes | None:
        if path in assets():
            return assets()[path]
        if path == STATE:
            return data_script(STATE, self._state())
        match = _DOCUMENT.fullmatch(path)
        if path not in (*PAGES, INDEX) and match is None:
            return None
        state = self._state()  # before the files are read: a page that is older than its state asks in vain
        with self._lock:
            view = self._current()
            if match is not None:
                name, chunk = match[1], int(match[2])
                if name not in view.snapshot.versions or chunk >= view.details.chunks(name):
                    return None
                return data_script(path, [[f"{name}/{chunk}", view.details.document(name, chunk)]])
        if path == INDEX:
            return data_script(INDEX, view.front.data)
        return page(path, attrs.asdict(view.front, recurse=False), live=state)

    def _state(self) -> str:
        """Return a text that every write to the registry by a program changes; nothing is read."""
        stamps = []
        for folder in ("tmp", "refs"):
            try:
                stamps.append(stamp(os.lstat(self.store.root / folder)))
            except OSError:
                stamps.append(0)
        return sha256(repr(stamps).encode()).hexdigest()[:16]

    def _current(self) -> _View:
        """Return what is known of the registry, read again if anything may have been written."""
        now = pulse(self.store.root)
        view = self._view
        if view is None or now is None or view.pulse != now:
            snapshot = Snapshot.of(self._readings)
            details = Details.of(snapshot, datetime.now(UTC))
            view = self._view = _View(now, snapshot, overview(snapshot, self.title), details)
        return view
