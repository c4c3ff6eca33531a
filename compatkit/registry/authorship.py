"""Who makes a change: a key, or else the user's name; and the git commit of the working folder.

Both are recorded with each publication, alias move, withdrawal, drop, policy and setting. A name is a claim; a key
signs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.foundation.codec import digest as digest_of

if TYPE_CHECKING:
    from compatkit.registry.log import BeforeChange
    from compatkit.registry.signing.private_keys import SigningKey

VARIABLE = "COMPATKIT_KEY"
"""Environment variable with the private key of the user: a file, or the name of one of ``compatkit keys``."""
GIT_SECONDS = 5
"""Maximum time to ask git for the commit."""


@attrs.frozen
class Author:
    """Author of a change.

    Attributes:
        by: Identity of the key, ``ed25519:...``, or the user's name.
        key: Private key that signs, or None.
    """

    by: str
    key: SigningKey | None = attrs.field(default=None, repr=False)

    @classmethod
    def of(cls, key: SigningKey | str | os.PathLike[str] | None = None) -> Author:
        """Return the author with a key; without one, that of COMPATKIT_KEY, or else the user.

        Args:
            key: Private key, its file, or its name in the user's folder of keys.

        Raises:
            KeyFileError: The key cannot be used.
            MissingDependency: ``cryptography`` is not installed.
        """
        chosen = key if key is not None else os.environ.get(VARIABLE) or None
        if chosen is None:
            return cls(_user())
        from compatkit.registry.signing.private_keys import SigningKey, key_file

        used = chosen if isinstance(chosen, SigningKey) else SigningKey.load(key_file(chosen))
        return cls(used.public.id, used)

    @property
    def commit(self) -> str:
        """Git commit of the working folder, empty if it is in no repository; git is only asked for a change."""
        return _commit(os.getcwd())

    def fields(self) -> dict[str, str]:
        """Return the fields of a record."""
        commit = self.commit
        return {"by": self.by, **({"commit": commit} if commit else {})}

    def signer(self, root: Path) -> BeforeChange | None:
        """Return a function that signs an entry of a log before it is created; None without a key.

        Args:
            root: Root folder of the registry.
        """
        if self.key is None:
            return None
        from compatkit.registry.signing.signatures import Signatures

        key, signatures = self.key, Signatures(root)

        def sign(path: str, data: bytes) -> None:
            digest = digest_of(data)
            signatures.add(digest, key.sign(digest, path, is_change=True).to_bytes())

        return sign

    def sign_version(self, root: Path, digest: str, label: str) -> None:
        """Sign a version before it is created, if there is a key.

        Args:
            root: Root folder of the registry.
            digest: Digest of the manifest.
            label: ``name@version``.
        """
        if self.key is not None:
            from compatkit.registry.signing.signatures import Signatures

            Signatures(root).add(digest, self.key.sign(digest, label).to_bytes())


def author_in(record: Mapping[str, Any]) -> tuple[str, str]:
    """Return author and commit of a record, empty texts if they are missing or no texts.

    Args:
        record: JSON values of a record; may be hostile.
    """
    by, commit = (record.get(field, "") for field in ("by", "commit"))
    return (by if isinstance(by, str) else ""), (commit if isinstance(commit, str) else "")


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


@lru_cache
def _commit(folder: str) -> str:
    """Return the commit that was checked out in a folder when it was first asked for."""
    import subprocess

    try:
        done = subprocess.run(
            ["git", "-C", folder, "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    commit = done.stdout.strip()
    return commit if done.returncode == 0 and len(commit) in (40, 64) else ""
