"""Settings of a registry, in a log: which signatures it requires, and which keys may do what.

``settings/<n>`` is the n-th change. Once there are owners, a change counts only if an owner of the settings before it
signed it, so that whoever can write files, but has no key, changes nothing for readers. Signatures of keys that were
in a role at some time keep counting, so that taking a key out of a role undoes nothing; those of revoked keys do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.errors import FormatError, IntegrityError, NotAllowed, SignatureError, UsageError
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.codec import dumps, loads
from compatkit.registry.layout import inspect
from compatkit.registry.log import LIMIT, Log, names_in, now

if TYPE_CHECKING:
    from compatkit.registry.authorship import Author
    from compatkit.registry.signing.trust import Trusted

FOLDER = "settings"
MAX_ENTRIES = 10_000
"""Maximum number of changes that are read."""
Role = Literal["owners", "maintainers", "publishers"]
ROLES: tuple[Role, ...] = ("owners", "maintainers", "publishers")
ReadSignatures = Callable[[str, "Trusted"], Iterable[bytes]]
"""Function that returns the unverified signatures of a digest, at least those of the given keys."""


def _keys(instance: object, field: attrs.Attribute[Any], value: Any) -> None:
    if not value:
        return
    from compatkit.registry.signing.envelope import KEY_ID

    for key in value:
        if not isinstance(key, str) or not KEY_ID.fullmatch(key):
            raise UsageError(
                f"settings: {field.name} should hold keys 'ed25519:' with 64 hex digits, got {key!r:.80}."
            )


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not all(isinstance(member, str) for member in value):
        raise UsageError(f"settings: expected a list of texts, got {value!r:.100}.")
    return tuple(sorted(set(value)))


@attrs.frozen(kw_only=True)
class RegistrySettings:
    """Settings of a registry.

    Attributes:
        require_signature: Whether each version needs a signature of a publisher to be published, loaded or imported.
        publishers: Keys that may publish versions where signatures are required.
        maintainers: Keys that may move protected aliases, withdraw, restore and drop versions, and change policies;
            empty lets everybody.
        owners: Keys that may change the settings; empty lets everybody.
        protected_aliases: Aliases that only maintainers may move; globs such as ``release-*``.
        revoked: Keys whose signatures count no more, whatever role they had.
    """

    require_signature: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))
    publishers: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_keys)
    maintainers: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_keys)
    owners: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_keys)
    protected_aliases: tuple[str, ...] = attrs.field(default=(), converter=_texts)
    revoked: tuple[str, ...] = attrs.field(default=(), converter=_texts, validator=_keys)

    def __attrs_post_init__(self) -> None:
        """Check that the fields fit together.

        Raises:
            UsageError: Signatures are required of nobody, aliases protected for nobody, or a key of a role is revoked.
        """
        if self.require_signature and not self.publishers:
            raise UsageError("settings: require_signature needs publishers, whose signatures count.")
        if self.protected_aliases and not self.maintainers:
            raise UsageError("settings: protected_aliases need maintainers, who may move them.")
        for role in ROLES:
            if both := {*getattr(self, role)} & {*self.revoked}:
                raise UsageError(f"settings: {min(both)} is revoked and among the {role}; choose one.")

    def protects(self, alias: str) -> bool:
        """Return whether only maintainers may move an alias."""
        return any(fnmatchcase(alias, pattern) for pattern in self.protected_aliases)


@attrs.frozen
class SettingsChange:
    """Change of the settings.

    Attributes:
        number: Number in the log, from 1; 0 for a registry without settings.
        settings: Settings after the change.
        by: Author of the change.
        time: Time of the change, UTC, ISO 8601.
        error: Why the change does not count; None if it counts.
    """

    number: int
    settings: RegistrySettings
    by: str = ""
    time: str = ""
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return attrs.asdict(self)


@attrs.frozen
class SettingsInForce:
    """Settings in force, with the keys that had a role at some time.

    Attributes:
        change: Change in force.
        history: All changes, oldest first, also those that do not count.
    """

    change: SettingsChange
    history: tuple[SettingsChange, ...] = ()

    @property
    def settings(self) -> RegistrySettings:
        """Settings in force."""
        return self.change.settings

    def keys_ever(self, role: Role) -> Trusted:
        """Return the keys that had a role at some time and are not revoked."""
        counted = (change.settings for change in self.history if change.error is None)
        ids = {key for settings in counted for key in getattr(settings, role)} - {*self.settings.revoked}
        return _trusted(ids, role)

    def required_keys(self) -> Trusted | None:
        """Return the keys of which one must have signed each version; None if no signature is required."""
        return self.keys_ever("publishers") if self.settings.require_signature else None

    def check_author(self, role: Role, author: Author, action: str, subject: object) -> None:
        """Raise if an author may not do something; a role without keys lets everybody.

        Args:
            role: Role that is needed.
            author: Author of the change.
            action: What is done, for the message, such as ``"move the alias prod"``.
            subject: Subject of the error.

        Raises:
            NotAllowed: The author has no key in the role.
        """
        keys = getattr(self.settings, role)
        if not keys or (author.key is not None and author.by in keys):
            return
        used = f"the key {author.by}" if author.key is not None else "no key"
        raise NotAllowed(
            f"To {action}, this registry requires a key of its {role} ({', '.join(keys)}), got {used}. Pass "
            "--sign-with KEY, or set COMPATKIT_KEY; `compatkit settings` shows the roles.",
            subject=subject,
        )

    def check_entry(self, path: str, data: bytes, signatures: ReadSignatures) -> None:
        """Raise if no maintainer signed an entry of a log.

        Args:
            path: Path of the entry, relative to the root.
            data: Content of the entry.
            signatures: Function that reads signatures.

        Raises:
            SignatureError: No key that ever was a maintainer's, and is not revoked, signed it.
        """
        keys = self.keys_ever("maintainers")
        _check(path, data, signatures(digest_of(data), keys), keys)


def rules_from(registry: str, contents: Mapping[int, bytes], signatures: ReadSignatures) -> SettingsInForce:
    """Return the settings in force from the files of a log.

    Args:
        registry: Identity of the registry.
        contents: Contents of the files by number.
        signatures: Function that reads signatures.
    """
    in_force, history = SettingsChange(0, RegistrySettings()), list[SettingsChange]()
    for number, data in sorted(contents.items()):
        change, owners = _read(registry, number, data, in_force.settings), in_force.settings.owners
        if change.error is None and owners:
            keys = _trusted(owners, "owners")
            try:
                _check(f"{FOLDER}/{number}", data, signatures(digest_of(data), keys), keys)
            except SignatureError as error:
                change = attrs.evolve(change, error=f"not signed by an owner: {error}")
        history.append(change)
        in_force = in_force if change.error else change
    return SettingsInForce(in_force, tuple(history))


def rules_of(root: Path) -> SettingsInForce:
    """Return the settings in force of the registry in a folder."""
    names = names_in(root / FOLDER, root)
    if not names:
        return SettingsInForce(SettingsChange(0, RegistrySettings()))
    from compatkit.registry.signing.signatures import Signatures

    log, signatures = Log(root, root / FOLDER), Signatures(root)
    contents = {number: log.read(number) or b"" for number in log.numbers()[:MAX_ENTRIES]}
    return rules_from(inspect(root).id, contents, signatures.of)


def change_settings(root: Path, author: Author, **changes: Any) -> SettingsChange:
    """Change settings; fields that are not given stay as they are.

    Args:
        root: Root folder of the registry.
        author: Author, who must be an owner if there are owners.
        **changes: New values of fields of ``RegistrySettings``.

    Returns:
        The change in force; an earlier one if nothing is different.

    Raises:
        NotAllowed: The author is not an owner; or would not be able to change the settings again.
        UsageError: A field is unknown or has no valid value.
        EnvironmentFailure: Disk full, no write permission; nothing changed.
    """
    change: SettingsChange | None = None

    def make(numbers: list[int]) -> bytes | None:
        nonlocal change
        rules = rules_of(root)
        change = next_change(rules, max(numbers, default=0) + 1, author, changes)
        return None if change == rules.change else to_bytes(change, author, inspect(root).id)

    Log(root, root / FOLDER).append(make, author.signer(root))
    return change or SettingsChange(0, RegistrySettings())


def next_change(
    rules: SettingsInForce, number: int, author: Author, changes: Mapping[str, Any]
) -> SettingsChange:
    """Return a change of the settings, or the one in force if nothing is different.

    Args:
        rules: Settings in force.
        number: Number of the change.
        author: Author, who must be an owner if there are owners.
        changes: New values of fields of ``RegistrySettings``.

    Raises:
        NotAllowed: The author is not an owner; or would not be able to change the settings again.
        UsageError: A field is unknown or has no valid value.
        IntegrityError: There are too many changes.
    """
    if number > MAX_ENTRIES:
        raise IntegrityError(
            f"{FOLDER}/{number}: expected at most {MAX_ENTRIES} changes of the settings. Later ones are not read: "
            "remove the files that do not count, which `compatkit verify` names.",
            subject=FOLDER,
        )
    unknown = changes.keys() - {field.name for field in attrs.fields(RegistrySettings)}
    if unknown:
        raise UsageError(f"settings: unknown field {min(unknown)}.", subject=min(unknown))
    rules.check_author("owners", author, "change the settings", FOLDER)
    settings = attrs.evolve(rules.settings, **changes)
    if settings.owners and author.by not in settings.owners and author.by not in rules.settings.owners:
        raise NotAllowed(
            f"The settings would have owners, and none of them signs this change. Sign it with a key of an owner "
            f"({', '.join(settings.owners)}): --sign-with KEY.",
            subject=FOLDER,
        )
    return rules.change if settings == rules.settings else SettingsChange(number, settings, author.by, now())


def to_bytes(change: SettingsChange, author: Author, registry: str) -> bytes:
    """Return an entry of the log as canonical JSON; it names the registry, so that it counts in no other."""
    fields = {"registry": registry, "settings": attrs.asdict(change.settings), "time": change.time}
    return dumps({**author.fields(), **fields})


def _read(registry: str, number: int, data: bytes, before: RegistrySettings) -> SettingsChange:
    """Return the change in a file; with an error if it is damaged."""
    path = f"{FOLDER}/{number}"
    try:
        if not data or len(data) > LIMIT:
            raise FormatError(f"{path}: expected 1 to {LIMIT} bytes, got {len(data)}.")
        value: Any = loads(data, what=path)
        settings, time, by = RegistrySettings(**value["settings"]), value["time"], value["by"]
        if not isinstance(time, str) or not isinstance(by, str):
            raise TypeError("time and by are texts")
        if value["registry"] != registry:
            raise FormatError(f"{path}: expected a change of the registry {registry}, got one of another.")
    except (FormatError, UsageError, LookupError, TypeError, AttributeError) as error:
        return SettingsChange(number, before, error=f"damaged: {error}")
    return SettingsChange(number, settings, by, time)


def _trusted(keys: Iterable[str], role: Role) -> Trusted:
    from compatkit.registry.signing.keys import PublicKey
    from compatkit.registry.signing.trust import Trusted

    return Trusted({key: PublicKey(key) for key in sorted(keys)}, source=f"the {role} of the registry")


def _check(path: str, data: bytes, signatures: Iterable[bytes], keys: Trusted) -> None:
    from compatkit.registry.signing.checks import check_change

    check_change(path, data, list(signatures), keys, at_signing=True)
