"""Remotes on the Hugging Face Hub: many files are written in one commit.

fsspec makes one commit per file, and the Hub allows about a hundred per hour. A commit can also require its parent
commit, which makes it a conditional write of any number of files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit import hookimpl
from compatkit.errors import EnvironmentFailure, MissingDependency, UsageError
from compatkit.hooks import Register
from compatkit.registry.remotes.objectstore import Site, SiteFiles

from ._filesystem import FileSystemStore, filesystem_class

compatkit_api = 1
COMMIT_SIZE = 500
"""Maximum number of files in a commit."""
ATTEMPTS = 10
"""Number of attempts if other commits are made at the same time."""
_CONFLICT = 412


@hookimpl
def compatkit_remotes(register: Register) -> None:
    """Offer ``hf``."""
    register("hf", open_remote)


@attrs.frozen(eq=False)
class HubStore(FileSystemStore):
    """The files in one folder of a repository.

    Attributes:
        kind: ``"model"``, ``"dataset"`` or ``"space"``.
        repository: ``USER/NAME``.
        revision: Branch; None for the default branch.
        prefix: Path of the folder in the repository.
        staged: Files of the next commit: contents or local paths.
    """

    exclusive = True
    kind: str
    repository: str
    revision: str | None
    prefix: str
    staged: dict[str, bytes | Path] = attrs.field(factory=dict, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def put(self, path: str, data: bytes) -> None:
        """Add a file to the next commit."""
        with self._lock:
            self.staged[path] = data

    def upload(self, path: str, file: Path, progress: Callable[[int], None]) -> None:
        """Add a local file to the next commit."""
        with self._lock:
            self.staged[path] = file
        progress(file.stat().st_size)

    def size(self, path: str) -> int | None:
        """Return the size of a file, which may be part of the next commit."""
        staged = self.staged.get(path)
        if staged is None:
            return super().size(path)
        return len(staged) if isinstance(staged, bytes) else staged.stat().st_size

    def settle(self) -> None:
        """Commit the staged files."""
        paths = sorted(self.staged)
        for start in range(0, len(paths), COMMIT_SIZE):
            group = paths[start : start + COMMIT_SIZE]
            additions = [self._addition(path, self.staged[path]) for path in group]
            self._commit(additions, f"Add {len(group)} objects")
            for path in group:
                del self.staged[path]

    def create(self, path: str, data: bytes) -> bool:
        """Create a file; return False if it exists."""
        return not self.create_all([(path, data)])

    def create_all(self, files: Sequence[tuple[str, bytes]]) -> set[str]:
        """Create files, in commits that fail if another commit was made before; return the paths that existed."""
        self.settle()
        taken: set[str] = set()
        for start in range(0, len(files), COMMIT_SIZE):
            taken |= self._create(dict(files[start : start + COMMIT_SIZE]))
        return taken

    def present(self, changes: Callable[[Site], SiteFiles]) -> None:
        """Commit a model card and its files, if the registry is at the root of a model repository.

        One folder of several has no card, and a data set's card describes data.
        """
        from huggingface_hub import CommitOperationDelete

        if self.kind != "model" or self.prefix:
            return
        revision = "" if self.revision is None else f"@{self.revision}"
        name = f"{self.repository}{revision}"
        site = Site(f"hf://models/{name}", f"hf-hub:{name}")
        for _ in range(ATTEMPTS):
            self.system.invalidate_cache()
            head = self._head()
            files = changes(site)
            if not files:
                return
            operations = [
                CommitOperationDelete(path) if content is None else self._addition(path, content)
                for path, content in sorted(files.items())
            ]
            if self._commit(operations, "Describe the components", parent=head):
                return
        raise self._too_slow()

    def remove(self, path: str) -> None:
        """Commit the removal of a file, if it exists."""
        from huggingface_hub import CommitOperationDelete

        if self._existing([path]):
            self._commit([CommitOperationDelete(self._inside(path))], f"Remove {path}")

    def _create(self, files: dict[str, bytes]) -> set[str]:
        for _ in range(ATTEMPTS):
            head = self._head()
            taken = self._existing(files)
            free = [self._addition(path, data) for path, data in files.items() if path not in taken]
            if not free or self._commit(free, f"Add {len(free)} entries", parent=head):
                return taken
        raise self._too_slow()

    def _head(self) -> str:
        """Return the last commit.

        Raises:
            EnvironmentFailure: The repository does not exist, or is not shown to this user.
        """
        from huggingface_hub.errors import RepositoryNotFoundError

        try:
            return self._api.repo_info(self.repository, repo_type=self.kind, revision=self.revision).sha
        except RepositoryNotFoundError:
            address = f"hf://{self.kind}s/{self.repository}"
            raise EnvironmentFailure(
                f"The Hub shows you no {self.kind} repository {self.repository}. Create it on the site, or with "
                f"`hf repos create {self.repository} --type {self.kind}`; for a private one, log in with `hf auth "
                f"login` or set HF_TOKEN. Then push to {address} again.",
                subject=address,
            ) from None

    def _too_slow(self) -> EnvironmentFailure:
        return EnvironmentFailure(
            f"{self.repository}: other commits came first in {ATTEMPTS} attempts. Try again.",
            subject=self.repository,
        )

    def _existing(self, paths: Iterable[str]) -> set[str]:
        by_name = {self._inside(path): path for path in paths}
        infos = self._api.get_paths_info(
            self.repository, list(by_name), repo_type=self.kind, revision=self.revision
        )
        return {by_name[info.path] for info in infos if info.path in by_name}

    def _commit(self, operations: list[Any], message: str, parent: str | None = None) -> bool:
        """Commit; return False if ``parent`` is no longer the last commit."""
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
        return f"{self.prefix}/{path}" if self.prefix else path

    @property
    def _api(self) -> Any:
        return getattr(self.system, "_api")  # noqa: B009 - with the session and token of the file system


def open_remote(address: str, **options: Any) -> HubStore:
    """Return the files at an address of the Hub.

    Args:
        address: ``hf://datasets/USER/NAME[@REVISION]/PREFIX``, ``hf://models/...`` or ``hf://USER/NAME``.
        **options: Options of the file system, such as ``endpoint`` and ``token``.

    Raises:
        UsageError: The address is malformed, or that of a bucket.
        MissingDependency: huggingface_hub is missing or too old.
    """
    filesystem = filesystem_class("hf")
    try:
        from huggingface_hub import constants
        from huggingface_hub.utils import parse_hf_uri
    except ImportError as error:
        raise MissingDependency(
            f"hf:// needs a newer huggingface_hub ({error}): pip install 'compatkit[remotes]'.",
            subject="huggingface_hub",
        ) from None
    try:
        parsed = parse_hf_uri(address.rstrip("/"))
        system = filesystem(skip_instance_cache=True, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{error} Expected hf://datasets/USER/NAME or hf://models/USER/NAME.") from None
    prefix = parsed.path_in_repo.strip("/")
    if parsed.type == "bucket":
        raise UsageError(
            "Hub buckets are not supported. Expected hf://datasets/USER/NAME or hf://models/USER/NAME."
        )
    repository = constants.REPO_TYPES_URL_PREFIXES.get(parsed.type, "") + parsed.id
    repository += "" if parsed.revision is None else f"@{parsed.revision}"
    root = f"{repository}/{prefix}".rstrip("/")
    return HubStore(system, root, parsed.type, parsed.id, parsed.revision, prefix)
