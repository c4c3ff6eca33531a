"""Tell URLs from local paths, and refuse misspelled URLs.

``s3:/bucket`` and ``http//:host`` are legal folder names; taken as paths, they would create such a folder.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from compatkit.errors import UsageError, near
from compatkit.foundation.credentials import redacted, redacted_address

REMOTE = frozenset(
    "s3 s3a gs gcs az abfs abfss adl wasb oss oci r2 hf http https ftp ftps sftp ssh hdfs webdav webdavs".split()
)
"""Schemes of remote URLs. A path that begins with one, without ``://``, is a misspelled URL."""
FILES = frozenset({"file", "local"})
"""Schemes of local paths."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_NAME = re.compile(r"([a-z][a-z0-9_-]{1,63}):")


def normalized(address: str | os.PathLike[str]) -> str:
    """Return a URL with its scheme in lower case, or a path; ``file:`` URLs are paths.

    Args:
        address: A URL, or a path. A path whose first part has a colon is written ``./a:b``, or absolute.

    Raises:
        UsageError: It is neither: a misspelled URL, a URL inside a path, a URL without a bucket or host, or a Windows
            path on another system; or no text at all.
    """
    if not isinstance(address, str | os.PathLike):
        raise not_an_address(address, "Expected a path or an address")
    text = os.fsdecode(address)
    if "::" in text and "://" in text:
        raise _refused(text, "chains file systems by '::', which is not supported; name one")
    url = _URL.fullmatch(text)
    if url is None:
        return _path(text, written=isinstance(address, str))
    scheme, rest = url[1].lower(), url[2]
    if scheme in FILES:
        return _file_url(text, rest)
    if not rest or (scheme in REMOTE and rest.startswith("/")):
        raise _refused(text, f"has nothing after {scheme}://; write {scheme}://bucket/folder")
    return f"{scheme}://{rest}"


def not_an_address(value: object, expected: str) -> UsageError:
    """Return the error for a value of another type; it is the subject unless it shows a credential.

    Args:
        value: What came in place of an address.
        expected: Start of the message.
    """
    text = repr(value)
    subject = value if redacted(text) == text else None
    return UsageError(f"{expected}, got {redacted(text):.100}.", subject=subject)


def local(path: str | os.PathLike[str], what: str) -> str:
    """Return a local path as text.

    Args:
        path: A path, or a ``file:`` URL.
        what: Kind of object, for messages, such as ``"a registry"``.

    Raises:
        UsageError: It is the URL of another machine, or as for ``normalized``.
    """
    if remote_name(path) is not None:
        raise _refused(str(path), f"is a named remote; {what} must be a local path: ./{path} if it is one")
    text = normalized(path)
    if is_url(text):
        raise _refused(text, f"is a remote address; {what} must be a local path")
    return text


def is_url(address: str) -> bool:
    """Return whether a result of ``normalized`` is a URL, not a path."""
    return "://" in address


def remote_name(address: object) -> str | None:
    """Return the name in ``NAME:``, which stands for a saved remote; None for anything else.

    No path is written like this: one whose first part has a colon is written ``./a:b``.
    """
    match = _NAME.fullmatch(address) if isinstance(address, str) else None
    return match[1] if match is not None and match[1] not in REMOTE | FILES else None


def shown(address: str) -> str:
    """Return an address without credentials."""
    text = redacted_address(address)
    return text.rstrip("/") if _SCHEME.match(text) else text


def _file_url(text: str, rest: str) -> str:
    host, slash, path = rest.partition("/")
    if not slash or host not in ("", "localhost"):
        raise _refused(text, "names no absolute path; write file:///folder/file, or the path alone")
    return unquote(f"/{path}")


def _path(text: str, *, written: bool) -> str:
    """Return a path that cannot be mistaken for a URL.

    Args:
        text: The path.
        written: Whether it came as a string; a ``Path`` has lost ``./`` and the second slash.
    """
    first, slash, rest = text.partition("/")
    scheme, word = _SCHEME.match(first), first.rstrip(" :;.,=").lower()
    if os.name == "nt" and scheme and len(scheme[1]) == 1:
        return text
    if re.match(r"[A-Za-z]:(\\|$)", first) and (slash or "\\" in first):
        raise _refused(text, "is a Windows path; write the path on this machine")
    if first not in ("", ".", "..", "~"):
        is_address = scheme and (written or scheme[1].lower() in REMOTE)
        if is_address or (first.endswith(":") and slash) or (word in REMOTE and rest.startswith("/")):
            raise _refused(text, _advice(text, scheme[1] if scheme else word))
    if "://" in text:
        raise _refused(text, "contains a URL inside a path; give either")
    # a name with a colon keeps its meaning when it becomes a Path, which drops "./"
    return os.path.abspath(text) if re.match(r"\./+[^/]*:", text) else text


def _advice(text: str, word: str) -> str:
    scheme = (near(word.lower(), sorted(REMOTE | FILES), 1, 0.6) or ["s3"])[0]
    pattern = "file:///folder" if scheme in FILES else f"{scheme}://bucket/folder"
    return f"looks like a misspelled address; write {pattern}, or ./{shown(text)} if it is a local file or folder"


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"{shown(text)} {why}.", subject=shown(text))


def is_remote(registry: object) -> bool:
    """Return whether an argument names a remote: ``NAME:``, or a URL of another machine."""
    if not isinstance(registry, str):
        return False
    return remote_name(registry) is not None or ("://" in registry and is_url(normalized(registry)))
