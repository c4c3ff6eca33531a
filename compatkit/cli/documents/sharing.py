"""Documents of the commands that copy components between registries, and of those about signatures."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from compatkit.cli.documents.registry import SignatureVerdict, SignedVersion
from compatkit.foundation.json_schemas import Merged
from compatkit.registry.copy.report import CopiedBlob
from compatkit.registry.settings import SettingsChange


class CopiedReference(TypedDict):
    """A version, or a component without one.

    Attributes:
        reference: Name and version, or digest.
        digest: Its digest.
    """

    reference: str
    digest: str | None


class Refused(TypedDict):
    """What was not copied.

    Attributes:
        what: What it is.
        code: Code of the error.
        message: Why.
    """

    what: str
    code: str
    message: str


class WithdrawnThere(TypedDict):
    """A version that was withdrawn on one side only.

    Attributes:
        reference: The version.
        reason: The reason given there.
    """

    reference: str
    reason: str


class Offered(TypedDict):
    """A change that would alter what is there, and is made on request only.

    Attributes:
        kind: Kind of change.
        what: What would change.
        detail: How.
        option: Option that makes the change.
        code: Code of the error that stands against it, or null.
    """

    kind: str
    what: str
    detail: str
    option: str
    code: str | None


class Transfer(TypedDict):
    """What was copied between two registries.

    Attributes:
        made: Versions that are new there.
        existing: Versions that were there already.
        unnamed: Components without a version that came as parents.
        refused: What was not copied.
        withdrawn: Versions that are withdrawn on one side only.
        offered: Changes that are made on request only.
        blobs: Number of files copied.
        bytes: Their bytes.
        results: Number of measured results copied.
        signatures: Number of signatures copied.
        aliases: Aliases that were made.
        apart: Aliases that differ.
        notes: What else is worth knowing.
        planned: Whether nothing was copied (``--dry-run``).
        objects: The files.
    """

    made: list[CopiedReference]
    existing: list[CopiedReference]
    unnamed: list[CopiedReference]
    refused: list[Refused]
    withdrawn: list[WithdrawnThere]
    offered: list[Offered]
    blobs: int
    bytes: int
    results: int
    signatures: int
    aliases: list[Any]
    apart: list[str]
    notes: list[str]
    planned: bool
    objects: list[CopiedBlob]


class Remote(TypedDict):
    """A saved remote.

    Attributes:
        name: Its name.
        address: Its address, without secrets.
        options: Options of its file system.
        trusted: Whether pulls follow its moves of aliases and its withdrawals.
    """

    name: str
    address: str
    options: dict[str, Any]
    trusted: bool


class Removed(TypedDict):
    """A remote that was forgotten.

    Attributes:
        name: Its name.
    """

    name: str


class Key(TypedDict):
    """A public key.

    Attributes:
        name: Its name.
        key: The key, as ``ed25519:...``.
        state: ``trusted``, ``expired`` or ``distrusted``.
        expires: When it ends, UTC, ISO 8601, or null.
        note: When and why it was distrusted, or null.
    """

    name: str
    key: str
    state: str
    expires: str | None
    note: str | None


class NewKey(TypedDict):
    """A key that was made.

    Attributes:
        private: File of the private key.
        public: File of the public key.
        encrypted: Whether the private key needs a passphrase.
    """

    private: str
    public: str
    encrypted: bool


class KeyIn(TypedDict):
    """A key in a folder of trusted keys.

    Attributes:
        folder: The folder.
    """

    folder: str


class Keys(TypedDict):
    """A folder of trusted keys.

    Attributes:
        folder: The folder.
        keys: Its keys.
    """

    folder: str
    keys: list[Key]


class Signatures(TypedDict):
    """Who signed a component.

    Attributes:
        reference: The version.
        digest: Its digest.
        good: Whether a signature counts.
        code: Code of the error, or null.
        signatures: All signatures.
    """

    reference: str
    digest: str
    good: bool
    code: str | None
    signatures: list[SignatureVerdict]


class Settings(TypedDict):
    """All changes of the settings.

    Attributes:
        history: Changes, oldest first, also those that do not count.
    """

    history: list[SettingsChange]


class PolicyData(TypedDict):
    """Images that a policy measures on.

    Attributes:
        name: Name of the data set.
        digest: Digest of the images.
    """

    name: str
    digest: str


class PolicyRevision(TypedDict):
    """A revision of a policy.

    Attributes:
        scope: Names that it binds.
        revision: Its number, from 1.
        time: When, UTC, ISO 8601.
        policy: The policy, as it is stored; null if it was cleared.
        admitted: Version that was accepted unmeasured; absent otherwise.
        by: Author; absent if not recorded.
        commit: Git commit of the author's folder; absent if not recorded.
    """

    scope: str
    revision: int
    time: str
    policy: dict[str, Any] | None
    admitted: NotRequired[str]
    by: NotRequired[str]
    commit: NotRequired[str]


class PolicySet(TypedDict):
    """A policy that was set.

    Attributes:
        revision: Its number.
        policy: The policy, as it is stored.
        binds: Names that it binds now.
        asks_nothing_of: Names in its scope of which it asks nothing.
    """

    revision: int
    policy: dict[str, Any]
    binds: list[str]
    asks_nothing_of: list[str]


class PolicyCleared(TypedDict):
    """A policy that was removed.

    Attributes:
        scope: Its scope.
        before: The policy that it was, or null.
    """

    scope: str
    before: dict[str, Any] | None


DOCUMENTS: dict[str, Any] = {
    "import": Transfer,
    "push": Transfer,
    "pull": Transfer,
    "clone": Transfer,
    "remote add": Remote,
    "remote list": [Remote],
    "remote show": Remote,
    "remote remove": Removed,
    "keys new": Merged(NewKey, Key),
    "keys trust": Merged(KeyIn, Key),
    "keys list": Keys,
    "keys distrust": Merged(KeyIn, Key),
    "sign": [(SignedVersion, str)],
    "signatures": [Signatures],
    "settings show": Merged(SettingsChange, Settings),
    "settings set": SettingsChange,
    "policy set": PolicySet,
    "policy show": (PolicyRevision, [PolicyRevision]),
    "policy clear": PolicyCleared,
}
