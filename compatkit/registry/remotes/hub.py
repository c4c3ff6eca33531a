"""The Hugging Face Hub: a repository is a history of commits, so that many files are written as one change.

Writing file by file, as fsspec does, is a commit each, which the Hub allows some hundred of an hour. A commit can name
the commit that it must follow, which makes it a conditional write for any number of files at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import EnvironmentFailure, UsageError
from compatkit.registry.remotes.files import Files, step

MANY = 500
"""Files in a commit."""
TRIES = 10
"""How often a commit is tried again where another commit came first."""
_CONFLICT = 412


@attrs.frozen(eq=False)
class Hub(Files):
    """The files below one place of a repository.

    Attributes:
        kind: ``"model"``, ``"dataset"`` or ``"space"``.
        repository: ``USER/NAME``.
        revision: Branch; None is the main one.
        inside: Path in the repository.
        staged: Files of the next commit: their bytes, or where they lie on this machine.
    """

    kind: str
    repository: str
    revision: str | None
    inside: str
    staged: dict[str, bytes | Path] = attrs.field(factory=dict, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def put(self, path: str, data: bytes) -> None:
        """Add a file to the next commit."""
        step("put", path)
        with self._lock:
            self.staged[path] = data

    def upload(self, path: str, local: Path, arrived: Callable[[int], None]) -> None:
        """Add a file of this machine to the next commit."""
        step("upload", path)
        with self._lock:
            self.staged[path] = local
        arrived(local.stat().st_size)

    def size(self, path: str) -> int | None:
        """Return the size of a file, or that of one that is part of the next commit."""
        staged = self.staged.get(path)
        if staged is None:
            return super().size(path)
        return len(staged) if isinstance(staged, bytes) else staged.stat().st_size

    def settle(self) -> None:
        """Commit what is staged."""
        paths = sorted(self.staged)
        for start in range(0, len(paths), MANY):
            group = paths[start : start + MANY]
            with self.talking("commit to", ""):
                step("commit", group[0])
                self._commit(
                    [self._addition(path, self.staged[path]) for path in group], f"Add {len(group)} objects"
                )
            for path in group:
                del self.staged[path]

    def create(self, path: str, data: bytes) -> bool:
        """Create a small file that must not exist."""
        return not self.create_all([(path, data)])

    def create_all(self, notes: Sequence[tuple[str, bytes]]) -> set[str]:
        """Create small files that must not exist, in commits that fail if any other came before them."""
        self.settle()
        taken: set[str] = set()
        for start in range(0, len(notes), MANY):
            taken |= self._create(dict(notes[start : start + MANY]))
        return taken

    def remove(self, path: str) -> None:
        """Commit the removal of a file, if it is there."""
        from huggingface_hub import CommitOperationDelete

        with self.talking("remove", path):
            step("remove", path)
            if self._there([path]):
                self._commit([CommitOperationDelete(self._inside(path))], f"Remove {path}")

    def _create(self, notes: dict[str, bytes]) -> set[str]:
        with self.talking("commit to", ""):
            for _ in range(TRIES):
                step("commit", next(iter(notes), ""))
                head = self._api.repo_info(self.repository, repo_type=self.kind, revision=self.revision).sha
                taken = self._there(notes)
                free = [self._addition(path, data) for path, data in notes.items() if path not in taken]
                if not free or self._commit(free, f"Add {len(free)} entries", parent=head):
                    return taken
        raise EnvironmentFailure(
            f"{self.url}: others commit all the time; {TRIES} tries were not enough. Try again.",
            subject=self.url,
        )

    def _there(self, paths: Iterable[str]) -> set[str]:
        inside = {self._inside(path): path for path in paths}
        found = self._api.get_paths_info(
            self.repository, list(inside), repo_type=self.kind, revision=self.revision
        )
        return {inside[one.path] for one in found if one.path in inside}

    def _commit(self, operations: list[Any], message: str, parent: str | None = None) -> bool:
        """Commit; False if another commit came before the one that was to follow ``parent``."""
        from huggingface_hub.errors import HfHubHTTPError

        try:
            self._api.create_commit(
                self.repository,
                operations,
                commit_message=f"compatkit: {message}",
                repo_type=self.kind,
                revision=self.revision,
                parent_commit=parent,
            )
        except HfHubHTTPError as error:
            if parent is None or getattr(error.response, "status_code", None) != _CONFLICT:
                raise
            return False
        finally:
            self.system.invalidate_cache()
        return True

    def _addition(self, path: str, content: bytes | Path) -> Any:
        from huggingface_hub import CommitOperationAdd

        return CommitOperationAdd(self._inside(path), content if isinstance(content, bytes) else str(content))

    def _inside(self, path: str) -> str:
        return f"{self.inside}/{path}" if self.inside else path

    @property
    def _api(self) -> Any:
        return getattr(self.system, "_api")  # noqa: B009 - the session and token that the file system reads with


def hub(kind: Any, remote: str, url: str, options: dict[str, Any]) -> Files:
    """Return the files of a place on the Hub.

    Args:
        kind: Class of the file system.
        remote: ``hf://datasets/USER/NAME[@REVISION]/PREFIX``, ``hf://models/...``, ``hf://USER/NAME`` or
            ``hf://buckets/...``.
        url: The same for people.
        options: Of the file system, such as ``endpoint`` and ``token``.

    Raises:
        UsageError: The address is not written so.
    """
    try:
        from huggingface_hub import constants
        from huggingface_hub.utils import parse_hf_uri
    except ImportError as error:
        raise EnvironmentFailure(
            f"{url} needs a newer huggingface_hub ({error}): pip install 'compatkit[remotes]'.", subject=url
        ) from None
    options.pop("use_listings_cache", None)
    try:
        parsed = parse_hf_uri(remote.rstrip("/"))
        system = kind(skip_instance_cache=True, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{url}: {error} Write hf://datasets/USER/NAME or hf://models/USER/NAME.", subject=url
        ) from None
    inside = parsed.path_in_repo.strip("/")
    if parsed.type == "bucket":
        return Files(system, f"buckets/{parsed.id}/{inside}".rstrip("/"), url, atomic=True)
    above = constants.REPO_TYPES_URL_PREFIXES.get(parsed.type, "") + parsed.id
    above += "" if parsed.revision is None else f"@{parsed.revision}"
    root = f"{above}/{inside}".rstrip("/")
    return Hub(system, root, url, True, parsed.type, parsed.id, parsed.revision, inside)
