"""Errors that compatkit raises: one root class, each with a stable code, an exit code and a subject.

A message says what was expected, what was given, which object is concerned and what to do. Credentials in it are
removed, whoever wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

from compatkit.foundation.credentials import redacted

_AN = re.compile("[AEIOaeio]|[Uu]n(?!i)|ndarray|[FHLMNRSX][A-Z]")
"""Starts of names that take the article "an": int, OrderedDict, Unfold, LSTM."""


def type_of(value: object) -> str:
    """Return the type name of a value with its article, such as ``"an int"``, for a message."""
    name = type(value).__name__
    return f"{'an' if _AN.match(name) else 'a'} {name}"


SHORTEST_START = 3
"""Least number of letters of an unknown word for which longer words are suggested."""


def near(word: object, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return up to ``count`` known words: those that ``word`` begins, the shortest first, then the most similar ones.

    Args:
        word: The unknown word.
        known: Words to search.
        count: Largest number of results.
        cutoff: Least similarity, 0 to 1, as for ``difflib.get_close_matches``.
    """
    import difflib  # needed only for errors

    start, words = str(word), list(known)
    longer = [name for name in words if len(start) >= SHORTEST_START and name.startswith(start)]
    return list(
        dict.fromkeys((*sorted(longer, key=len), *difflib.get_close_matches(start, words, count, cutoff)))
    )[:count]


def suggest(word: object, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'bilinear'?"`` if a known word is spelled similarly, else ``""``.

    Args:
        word: The unknown word.
        known: Allowed words.
    """
    similar = near(word, known)
    return f" Did you mean {similar[0]!r}?" if similar else ""


class CompatkitError(Exception):
    """Root of all errors of this library.

    Attributes:
        code: Stable identifier for programs; never reworded.
        exit_code: Exit status of the command line: 1 failed check, 2 usage, 3 integrity, 4 environment.
        subject: Offending object (a name, a path, a report), or None.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, subject: Any = None) -> None:
        super().__init__(redacted(message) if isinstance(message, str) else message)
        self.subject = redacted(subject, known=False) if type(subject) is str else subject

    def add_note(self, note: str, /) -> None:
        """Append a sentence to the message, once, so that the command line and JSON reports show it too."""
        note = redacted(note)
        if not str(self).endswith(note):
            self.args = (f"{self} {note}", *self.args[1:])


class UsageError(CompatkitError):
    """An argument, setting or recipe is invalid."""

    code = "usage"
    exit_code = 2


class UnknownName(UsageError):
    """A model, cut, class, plugin, data set or reference does not exist."""

    code = "unknown-name"


class InvalidName(UsageError):
    """A component name, version, alias or digest is malformed."""

    code = "invalid-name"


class NotFound(UnknownName):
    """A reference does not resolve in this registry."""

    code = "not-found"


class VersionExists(UsageError):
    """The version exists with other content; a published version is never overwritten."""

    code = "version-exists"


class VersionTooSmall(UsageError):
    """The requested version number is too small a step for the change between the components."""

    code = "version-too-small"


class AliasMoved(UsageError):
    """An alias no longer points to the expected version (compare-and-swap failed)."""

    code = "alias-moved"


class DataError(UsageError):
    """A data set cannot be read or lacks what the task needs."""

    code = "data"


class DataUnavailable(DataError):
    """A data set is in none of the folders searched, and may not be downloaded."""

    code = "data-unavailable"


class DamagedImage(DataError):
    """An image cannot be decoded: it is damaged, too large, or of a kind that is not read.

    Attributes:
        reason: Cause in a few words, without the name of the image.
    """

    code = "damaged-image"

    def __init__(self, message: str, *, subject: Any = None, reason: str = "") -> None:
        super().__init__(message, subject=subject)
        self.reason = reason


class CutError(UsageError):
    """A network cannot be cut there, or its parts do not reproduce it."""

    code = "cut"


class PluginError(UsageError):
    """A plugin is broken, misnamed, blocked, or clashes with another.

    Attributes:
        plugin: Name of the plugin in a run.
        distribution: Installed distribution that provides it, or None.
        hook: Hook concerned, or None.
    """

    code = "plugin"

    def __init__(
        self,
        message: str,
        *,
        plugin: str | None = None,
        distribution: str | None = None,
        hook: str | None = None,
    ) -> None:
        super().__init__(message, subject=plugin)
        self.plugin, self.distribution, self.hook = plugin, distribution, hook


class IncompatibleError(CompatkitError):
    """Two components cannot be wired as requested; ``subject`` is the report of the check."""

    code = "incompatible"


class TrainingError(CompatkitError):
    """A run cannot continue: a loss is not finite, or a checkpoint belongs to another run."""

    code = "training"


class IntegrityError(CompatkitError):
    """Stored bytes do not match their digest or format."""

    code = "integrity"
    exit_code = 3


class FormatError(IntegrityError):
    """A file is malformed: header, JSON or schema."""

    code = "format"


class VersionUntrue(IntegrityError):
    """A version number promises a smaller change from its predecessor than the contracts show."""

    code = "version-untrue"


class TooCostly(IntegrityError):
    """A blueprint, probe or file needs more time or memory than its size allows."""

    code = "too-costly"


class LayoutError(UsageError):
    """The folder is not a registry, or has a layout that this version of compatkit does not support."""

    code = "layout"


class EnvironmentFailure(CompatkitError):
    """The environment failed: no write permission, disk full, too many open files, no such device."""

    code = "environment"
    exit_code = 4


class WeightsUnavailable(EnvironmentFailure):
    """Pretrained weights are not in the cache and cannot be downloaded, or cannot be read."""

    code = "weights-unavailable"


class UnsafeCheckpoint(IntegrityError):
    """A checkpoint requires code execution, or more time, memory or disk than its size explains; nothing was run."""

    code = "unsafe-checkpoint"


class CheckpointMismatch(UsageError):
    """The weights in a file do not belong to the named network."""

    code = "checkpoint-mismatch"


class MissingDependency(EnvironmentFailure):
    """An optional dependency is not installed."""

    code = "missing-dependency"


class KeyFileError(UsageError):
    """A file or text is not a usable key."""

    code = "key-file"


class KeyTypeError(KeyFileError):
    """A key of the wrong type: RSA, ECDSA, or private instead of public."""

    code = "key-type"


class WrongPassphrase(KeyFileError):
    """The passphrase of an encrypted private key is missing or wrong."""

    code = "wrong-passphrase"


class KeyExpired(KeyFileError):
    """A private key has expired and cannot sign."""

    code = "signing-key-expired"


class SignatureError(CompatkitError):
    """A component has no valid signature; each cause has its own subclass."""

    code = "signature"


class NotAllowed(CompatkitError):
    """The settings of a registry let only certain keys do this."""

    code = "not-allowed"


class Unsigned(SignatureError):
    """The component has no signature."""

    code = "unsigned"


class MalformedSignature(SignatureError):
    """A signature file is damaged, too long or of an unknown format."""

    code = "signature-malformed"
    exit_code = 3


class OtherDigest(SignatureError):
    """A signature covers another manifest than the one it is stored with."""

    code = "signature-other-digest"
    exit_code = 3


class UnknownSigner(SignatureError):
    """The signing key is not trusted."""

    code = "unknown-signer"


class BadSignature(SignatureError):
    """The signature does not verify against the key that it names."""

    code = "bad-signature"
    exit_code = 3


class Distrusted(SignatureError):
    """The signing key is explicitly distrusted."""

    code = "key-distrusted"


class OtherName(SignatureError):
    """The manifest was signed under another name or version."""

    code = "signature-other-name"


class NotYetValid(SignatureError):
    """The signature's start date lies in the future."""

    code = "signature-not-yet-valid"


class SignatureExpired(SignatureError):
    """The signature has expired."""

    code = "signature-expired"


class SignerExpired(SignatureError):
    """The signing key has expired."""

    code = "signer-expired"


class PolicyBroken(CompatkitError):
    """A version would violate the policy of its name; ``subject`` is the outcome with its matrix."""

    code = "policy-broken"


class PolicyUndecided(UsageError):
    """A policy requires a measurement that has not been made."""

    code = "policy-undecided"


class PolicyDataMissing(DataError):
    """The images that a policy is decided on are unavailable, so publishing is refused."""

    code = "policy-data"


class PolicyMoved(UsageError):
    """A policy is no longer the expected one (compare-and-swap failed)."""

    code = "policy-moved"


class Incomplete(CompatkitError):
    """Part of a transfer was refused and the rest was copied; ``subject`` reports what was done.

    Attributes:
        errors: One error for each refused object.
        exit_code: Highest exit code among ``errors``.
    """

    code = "incomplete"

    def __init__(self, message: str, *, errors: tuple[CompatkitError, ...] = (), subject: Any = None) -> None:
        super().__init__(message, subject=subject)
        self.errors = errors
        self.exit_code = max((error.exit_code for error in errors), default=1)  # type: ignore[misc]
