"""Causes of errors that the libraries behind remotes raise, and what to do about each.

The libraries are not imported: an error is recognized by its built-in class, its HTTP status, its error number or the
name of its class, also where it is the cause of another one.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator

import attrs

from compatkit.foundation.credentials import redacted

_REPLY = re.compile(r"([1-5]\d\d)[ -]")
"""Start of a server's reply in FTP."""
_EMPTY = re.compile(r"(?:^\[Errno \d+\] |^|: )None$|^\[Errno None\] ")
"""What a message of a server without text becomes."""


@attrs.frozen
class Cause:
    """A kind of failure.

    Attributes:
        remedy: What happened, and what to do.
        classes: Classes of its errors.
        names: Parts of the names of its error classes, in lower case.
        statuses: HTTP statuses.
        numbers: Error numbers of the operating system.
        replies: Replies of FTP.
    """

    remedy: str
    classes: tuple[type[BaseException], ...] = ()
    names: tuple[str, ...] = ()
    statuses: frozenset[int] = frozenset()
    numbers: frozenset[int] = frozenset()
    replies: frozenset[int] = frozenset()

    def explains(self, error: BaseException) -> bool:
        """Return whether an error, without its own causes, is of this kind."""
        name = type(error).__name__.lower()
        return (
            isinstance(error, self.classes)
            or any(part in name for part in self.names)
            or _status(error) in self.statuses
            or (isinstance(error, OSError) and error.errno in self.numbers)
            or _reply(error) in self.replies
        )


CAUSES = (
    Cause(
        "the server's key is not known; compare its fingerprint with that of its owner, then add it to known_hosts",
        names=("badhostkey", "unknownhostkey"),
    ),
    Cause(
        "the server speaks no TLS, or its certificate is not trusted; check the address, or install its authority",
        classes=(ssl.SSLCertVerificationError,),
        names=("sslcertverification", "sslerror", "certificateerror"),
    ),
    Cause(
        "no permission; check the credentials and their rights",
        classes=(PermissionError,),
        names=("credential", "authentication", "unauthorized", "forbidden", "passwordrequired"),
        statuses=frozenset({401, 403, 407}),
        numbers=frozenset({errno.EACCES, errno.EPERM, errno.EROFS}),
        replies=frozenset({430, 530, 532, 550}),
    ),
    Cause(
        "the host is unknown; check its name and the network",
        classes=(socket.gaierror,),
        names=("nameresolution", "connectordns", "unknownhost"),
    ),
    Cause(
        "there is no space left, or no quota; free some or ask for more",
        statuses=frozenset({507}),
        numbers=frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG}),
        replies=frozenset({452, 552}),
    ),
    Cause(
        "the server is too busy; try again later, with fewer --jobs",
        names=("slowdown", "throttl", "toomanyrequests"),
        statuses=frozenset({429, 503}),
        replies=frozenset({421}),
    ),
    Cause(
        "the bucket, repository or folder does not exist; create it first",
        classes=(FileNotFoundError,),
        names=("nosuchbucket", "repositorynotfound"),
        statuses=frozenset({404, 410}),
    ),
    Cause(
        "check the network and the address, then try again",
        classes=(TimeoutError, ConnectionError, EOFError),
        names=(
            "timeout",
            "chunkedencoding",
            "incompleteread",
            "protocolerror",
            "connectionerror",
            "connecterror",
            "connectorerror",
            "novalidconnections",
            "disconnected",
        ),
        numbers=frozenset(
            {
                errno.ECONNREFUSED,
                errno.ECONNRESET,
                errno.EHOSTUNREACH,
                errno.ENETUNREACH,
                errno.ETIMEDOUT,
                errno.EPIPE,
            }
        ),
        statuses=frozenset({408, 500, 502, 504}),
        replies=frozenset({425, 426}),
    ),
)
"""Kinds of failures, the most telling ones first."""
UNKNOWN = "check the address, the credentials and the network, then try again"


def remedy(error: BaseException) -> str:
    """Return what happened and what to do about it, for an error of a library."""
    cause = _cause(error)
    return UNKNOWN if cause is None else cause.remedy


def is_environmental(error: BaseException) -> bool:
    """Return whether an error comes from the network, the server or the user's rights, and not from a defect."""
    return isinstance(error, OSError) or _cause(error) is not None


def described(error: BaseException) -> str:
    """Return the first message in a chain of errors, with the class of the first one and without credentials."""
    texts = (_EMPTY.sub("", str(item)).strip() for item in chain(error))
    messages = (text for text in texts if text)
    return f"{redacted(next(messages, type(error).__name__)):.300} ({type(error).__name__})"


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status with which a server answered, or None."""
    return next((status for item in chain(error) if (status := _status(item)) is not None), None)


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _cause(error: BaseException) -> Cause | None:
    errors = list(chain(error))
    return next((cause for cause in CAUSES if any(map(cause.explains, errors))), None)


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of an error of botocore, requests, httpx, aiohttp or urllib."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(response, "status_code", None) or getattr(error, "status", None)
    return status if type(status) is int else None


def _reply(error: BaseException) -> int | None:
    """Return the reply code of an error of ftplib."""
    match = _REPLY.match(str(error)) if type(error).__module__ == "ftplib" else None
    return None if match is None else int(match[1])
