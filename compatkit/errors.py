"""Every error that compatkit raises: one root, a stable code, an exit code, and the offending object.

A message says what was expected, what came, whose it is and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

_AN = re.compile("[AEIOaeio]|[Uu]n(?!i)|ndarray|[FHLMNRSX][A-Z]")
"""Starts of names that are spoken with a vowel: int, OrderedDict, Unfold, LSTM."""


def type_of(value: object) -> str:
    """Return the type of a value for a message, with its article, such as ``"an int"``."""
    name = type(value).__name__
    return f"{'an' if _AN.match(name) else 'a'} {name}"


def near(word: object, known: Iterable[str], count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return the known words that are spelled most like a word, the most similar first."""
    import difflib  # only for errors

    return difflib.get_close_matches(str(word), list(known), count, cutoff)


def suggest(word: object, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'bilinear'?"`` for a word that is spelled like a known one, else an empty text."""
    found = near(word, known)
    return f" Did you mean {found[0]!r}?" if found else ""


class CompatkitError(Exception):
    """Root of all errors of this library.

    Attributes:
        code: Stable identifier for programs; never reworded.
        exit_code: Exit status of the command line: 1 failed check, 2 usage, 3 integrity, 4 environment.
        subject: The offending object (a name, a path, a report), or None.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, subject: Any = None) -> None:
        super().__init__(message)
        self.subject = subject


class UsageError(CompatkitError):
    """An argument, a setting or a recipe is not usable as given."""

    code = "usage"
    exit_code = 2


class UnknownName(UsageError):
    """A backbone, split point, class, plugin, data set or reference does not exist."""

    code = "unknown-name"


class InvalidName(UsageError):
    """A component name, version, alias or digest is not written as the rules ask."""

    code = "invalid-name"


class NotFound(UnknownName):
    """A reference points at nothing in this registry."""

    code = "not-found"


class VersionExists(UsageError):
    """The version is taken by other bytes; a version is created once and never rewritten."""

    code = "version-exists"


class VersionTooSmall(UsageError):
    """The version asked for is a smaller step than the change between the components demands."""

    code = "version-too-small"


class AliasMoved(UsageError):
    """An alias no longer points where the caller expected (compare-and-swap failed)."""

    code = "alias-moved"


class DataError(UsageError):
    """A data set cannot be read, or does not hold what the task needs."""

    code = "data"


class CutError(UsageError):
    """A network cannot be cut at this split point, or the parts do not reproduce the whole."""

    code = "cut"


class PluginError(UsageError):
    """A plugin is broken, misnamed, blocked, or clashes with another.

    Attributes:
        plugin: Name under which a run looks the plugin up.
        distribution: Installed distribution that brought it, or None.
        hook: Hook the error is about, or None.
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
    """Two components cannot be wired as asked; ``subject`` is the check's report."""

    code = "incompatible"


class TrainingError(CompatkitError):
    """A run cannot go on: a loss is not finite, a checkpoint belongs to another plan."""

    code = "training"


class IntegrityError(CompatkitError):
    """Stored bytes are not what their digest or format promises."""

    code = "integrity"
    exit_code = 3


class FormatError(IntegrityError):
    """A file is not what it claims to be: header, JSON, schema."""

    code = "format"


class VersionUntrue(IntegrityError):
    """A version's number promises less change since the version below it than their contracts show."""

    code = "version-untrue"


class LayoutError(IntegrityError):
    """The folder is no registry, or one of a layout that this version cannot use."""

    code = "layout"


class EnvironmentFailure(CompatkitError):
    """The surroundings failed: no right to write, disk full, too many files, no such device."""

    code = "environment"
    exit_code = 4


class UnsafeCheckpoint(IntegrityError):
    """A checkpoint asks for code, or for more time, memory or disk than its size explains; nothing of it was run."""

    code = "unsafe-checkpoint"


class CheckpointMismatch(UsageError):
    """The weights in a file are not those of the network that was named."""

    code = "checkpoint-mismatch"


class MissingDependency(EnvironmentFailure):
    """A library that only some users need is not installed."""

    code = "missing-dependency"


class KeyFileError(UsageError):
    """A file or text is no key that can be used here."""

    code = "key-file"


class KeyTypeError(KeyFileError):
    """A key, but not of the kind that is asked for: RSA, ECDSA, a private one for a public one."""

    code = "key-type"


class WrongPassphrase(KeyFileError):
    """A private key is encrypted, and the passphrase is missing or another."""

    code = "wrong-passphrase"


class KeyExpired(KeyFileError):
    """A private key is past its own end; nothing is signed with it any more."""

    code = "signing-key-expired"


class SignatureError(CompatkitError):
    """A component has no signature that counts; each reason is a class of its own."""

    code = "signature"


class Unsigned(SignatureError):
    """There is no signature at all."""

    code = "unsigned"


class MalformedSignature(SignatureError):
    """A signature file is not what one is: damaged, too long, of another format."""

    code = "signature-malformed"
    exit_code = 3


class OtherDigest(SignatureError):
    """A signature is over another manifest than the one that it lies beside."""

    code = "signature-other-digest"
    exit_code = 3


class UnknownSigner(SignatureError):
    """The key that signed is not among those trusted."""

    code = "unknown-signer"


class BadSignature(SignatureError):
    """The signature was not made by the key that it names, over these bytes."""

    code = "bad-signature"
    exit_code = 3


class Distrusted(SignatureError):
    """The key that signed is distrusted."""

    code = "key-distrusted"


class OtherName(SignatureError):
    """The manifest was signed as another name or version than the one that it is shown as."""

    code = "signature-other-name"


class NotYetValid(SignatureError):
    """The signature was made in the future."""

    code = "signature-not-yet-valid"


class SignatureExpired(SignatureError):
    """The signature is past its end."""

    code = "signature-expired"


class SignerExpired(SignatureError):
    """The key that signed is past its end."""

    code = "signer-expired"


class PolicyBroken(CompatkitError):
    """A version would break the policy of its name; ``subject`` is the outcome with its matrix."""

    code = "policy-broken"


class PolicyUndecided(UsageError):
    """A policy asks for a measurement that nobody made."""

    code = "policy-undecided"


class PolicyDataMissing(DataError):
    """The images that decide a policy are not at hand; publishing is refused, not skipped."""

    code = "policy-data"


class PolicyMoved(UsageError):
    """A policy is no longer the one that the caller expected (compare-and-swap failed)."""

    code = "policy-moved"


class Incomplete(CompatkitError):
    """Some of what was to be moved was refused, and the rest has come; ``subject`` says what was done.

    Attributes:
        errors: Why, one for each thing that was refused.
        exit_code: That of the gravest.
    """

    code = "incomplete"

    def __init__(self, message: str, *, errors: tuple[CompatkitError, ...] = (), subject: Any = None) -> None:
        super().__init__(message, subject=subject)
        self.errors = errors
        self.exit_code = max((one.exit_code for one in errors), default=1)  # type: ignore[misc]
