"""Remotes over SFTP: ``sftp://USER@HOST/FOLDER``.

A file is written beside its place and renamed. OpenSSH renames by ``link(2)``, which fails where the name is taken, so
exactly one of several writers creates a file.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import queue
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import attrs

from compatkit import hookimpl
from compatkit.errors import EnvironmentFailure, MissingDependency, UsageError
from compatkit.hooks import Register
from compatkit.registry.remotes.objectstore import ObjectStore

from ._folders import Entry, files_below
from ._urls import Location

if TYPE_CHECKING:
    from paramiko import SFTPClient, SSHClient

compatkit_api = 1
CHANNELS = 4
"""Number of calls at a time, each in a channel of its own; OpenSSH allows 10 in a connection."""
PATIENCE = 60.0
"""Seconds without an answer after which the server counts as gone."""
PIECE = 2**20
"""Number of bytes written at a time."""


@hookimpl
def compatkit_remotes(register: Register) -> None:
    """Offer ``sftp``."""
    register("sftp", open_remote)


def open_remote(address: str, *, known_hosts: str | None = None, **options: Any) -> SftpStore:
    """Return the files in a folder of a server; it connects with the first call.

    Args:
        address: ``sftp://[USER[:PASSWORD]@]HOST[:PORT]/FOLDER``; ``/~/FOLDER`` is below the user's home folder.
        known_hosts: File with the keys of known servers, in place of ``~/.ssh/known_hosts``.
        **options: Arguments of paramiko's ``SSHClient.connect``, such as ``key_filename``; keys are otherwise those of
            the agent and of ``~/.ssh``.

    Raises:
        UsageError: The address is malformed, or there is no such file of known hosts.
        MissingDependency: paramiko is not installed.
    """
    try:
        import paramiko  # noqa: F401 - it takes a third of a second
    except ImportError as error:
        raise MissingDependency(
            f"sftp:// needs paramiko, which is not installed. Run: pip install 'compatkit[sftp]' ({error})",
            subject="paramiko",
        ) from error
    if known_hosts is not None and not Path(known_hosts).is_file():
        raise UsageError(f"There is no file of known hosts {known_hosts}.", subject=known_hosts)
    location = Location.parse(address)
    if location.path == "/":
        raise UsageError("Expected a folder after the host, as in sftp://host/srv/parts.")
    user = {"username": location.user, "password": location.password, "port": location.port}
    settings = {name: value for name, value in user.items() if value is not None}
    root = location.path.removeprefix("/~/") if location.path.startswith("/~/") else location.path
    return SftpStore(location.host, {**settings, **options}, root.rstrip("/"), known_hosts)


@attrs.define(eq=False)
class SftpStore(ObjectStore):
    """The files in one folder of a server.

    Attributes:
        host: Name of the server.
        settings: Arguments of paramiko's ``SSHClient.connect``.
        root: Path of the folder.
        known_hosts: File with the keys of known servers; None for the user's.
    """

    parallel = CHANNELS
    host: str
    settings: dict[str, Any] = attrs.field(repr=False)
    root: str
    known_hosts: str | None
    _client: SSHClient | None = attrs.field(init=False, default=None)
    _idle: queue.LifoQueue[SFTPClient] = attrs.field(init=False, factory=queue.LifoQueue)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)

    def sizes(self, folder: str) -> dict[str, int]:
        """Return the sizes of all files in a folder, at any depth, by path."""
        listed = files_below(folder, self._entries, CHANNELS)
        return {path: size or 0 for path, size in listed.items()}

    def size(self, path: str) -> int | None:
        """Return the size of a file; None if there is none."""
        with self._channel() as channel:
            try:
                info = channel.stat(self._path(path))
            except FileNotFoundError:
                return None
        return int(info.st_size or 0) if stat.S_ISREG(info.st_mode or 0) else None

    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return up to ``count`` bytes of a file; None if it is missing."""
        with self._channel() as channel:
            try:
                file = channel.open(self._path(path), "rb")
            except FileNotFoundError:
                return None
            with file:
                left = int(file.stat().st_size or 0) - start
                if left <= 0:
                    return b""
                return b"".join(file.readv([(start, min(count, left))]))

    def put(self, path: str, data: bytes) -> None:
        """Write a file, or replace it."""
        with self._channel() as channel, self._draft(channel, iter([data])) as draft:
            self._rename(channel, channel.posix_rename, draft, path)

    def upload(self, path: str, file: Path, progress: Callable[[int], None]) -> None:
        """Upload a local file."""

        def pieces() -> Iterator[bytes]:
            with file.open("rb") as source:
                while piece := source.read(PIECE):
                    yield piece
                    progress(len(piece))

        with self._channel() as channel, self._draft(channel, pieces()) as draft:
            self._rename(channel, channel.posix_rename, draft, path)

    def create(self, path: str, data: bytes) -> bool | None:
        """Create a file by a renaming that fails where the name is taken."""
        with self._channel() as channel, self._draft(channel, iter([data])) as draft:
            try:
                self._rename(channel, channel.rename, draft, path)
            except OSError:  # the protocol does not tell why
                if not _exists(channel, self._path(path)):
                    raise
                channel.remove(draft)
                return False
        return True

    def remove(self, path: str) -> None:
        """Remove a file, if there is one."""
        with self._channel() as channel, suppress(FileNotFoundError):
            channel.remove(self._path(path))

    def neighbors(self) -> list[str]:
        """Return the names in the parent folder."""
        with self._channel() as channel:
            return channel.listdir(self.root.rpartition("/")[0] or ("/" if self.root[:1] == "/" else "."))

    def close(self) -> None:
        """End the connection; the next call makes a new one."""
        with self._lock:
            client, self._client, self._idle = self._client, None, queue.LifoQueue()
        if client is not None:
            client.close()

    def _path(self, relative: str) -> str:
        return f"{self.root}/{relative}"

    def _entries(self, folder: str) -> dict[str, Entry]:
        """Return the entries of a folder; none if it is missing. Links and devices are left out."""
        with self._channel() as channel:
            try:
                infos = channel.listdir_attr(self._path(folder))
            except FileNotFoundError:
                return {}
        return {
            info.filename: Entry(stat.S_ISDIR(info.st_mode or 0), info.st_size)
            for info in infos
            if stat.S_ISREG(info.st_mode or 0) or stat.S_ISDIR(info.st_mode or 0)
        }

    @contextmanager
    def _draft(self, channel: SFTPClient, pieces: Iterator[bytes]) -> Iterator[str]:
        """Write a file in ``tmp`` and yield its path; an error removes it."""
        draft = self._path(f"tmp/{uuid4().hex}")
        try:
            file = channel.open(draft, "wbx")
        except FileNotFoundError:
            self._make_parents(channel, draft)
            file = channel.open(draft, "wbx")
        try:
            with file:
                file.set_pipelined(True)
                for piece in pieces:
                    file.write(piece)
            yield draft
        except BaseException:
            with suppress(OSError, EOFError):
                channel.remove(draft)
            raise

    def _rename(self, channel: SFTPClient, rename: Callable[[str, str], None], draft: str, path: str) -> None:
        """Rename a draft, in a folder that is made where it is missing."""
        try:
            rename(draft, self._path(path))
        except FileNotFoundError:
            self._make_parents(channel, self._path(path))
            rename(draft, self._path(path))

    def _make_parents(self, channel: SFTPClient, path: str) -> None:
        """Make the folders above a file that are missing."""
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            folder = "/".join(parts[:depth])
            if folder and not _exists(channel, folder):
                try:
                    channel.mkdir(folder)
                except OSError:
                    if not _exists(channel, folder):  # else another push made it
                        raise

    @contextmanager
    def _channel(self) -> Iterator[SFTPClient]:
        """Yield a channel that no other thread uses."""
        with self._lock:
            idle = self._idle
            if self._client is None:
                self._client = self._connect()
            client = self._client
        try:
            channel = idle.get_nowait()
        except queue.Empty:
            channel = client.open_sftp()
            _socket(channel).settimeout(PATIENCE)
        try:
            yield channel
        finally:
            if _socket(channel).closed:
                self.close()
            else:
                idle.put(channel)

    def _connect(self) -> SSHClient:
        """Return a new connection.

        Raises:
            EnvironmentFailure: The server's key is not known.
        """
        import paramiko

        class Refuse(paramiko.MissingHostKeyPolicy):
            def missing_host_key(self, client: SSHClient, hostname: str, key: Any) -> None:
                digest = base64.b64encode(hashlib.sha256(key.asbytes()).digest()).decode().rstrip("=")
                raise EnvironmentFailure(
                    f"The server {hostname} is not among the known hosts. It has the {key.get_name()} key "
                    f"SHA256:{digest}. If that is right, log in once with ssh, or add it with ssh-keyscan.",
                    subject=hostname,
                )

        logging.getLogger("paramiko").addHandler(logging.NullHandler())  # it logs what it also raises
        client = paramiko.SSHClient()
        client.load_system_host_keys(self.known_hosts)
        client.set_missing_host_key_policy(Refuse())
        waits = {name: PATIENCE for name in ("timeout", "banner_timeout", "auth_timeout")}
        try:
            client.connect(self.host, **{**waits, **self.settings})
        except BaseException:
            client.close()
            raise
        return client


def _socket(channel: SFTPClient) -> Any:
    return channel.get_channel()


def _exists(channel: SFTPClient, path: str) -> bool:
    with suppress(FileNotFoundError):
        channel.stat(path)
        return True
    return False
