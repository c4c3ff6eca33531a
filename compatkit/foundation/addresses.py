"""What an address is: a URL, or a path of this machine. What only looks like one of them is refused.

``s3:/bucket`` and ``http//:host`` are legal names of folders, so whoever took them as paths would make such a folder.
"""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from compatkit.errors import UsageError, near

REMOTE = frozenset(
    "s3 s3a gs gcs az abfs abfss adl wasb oss oci r2 hf http https ftp ftps sftp ssh hdfs webhdfs".split()
)
"""Schemes of other machines: where one begins a path without ``://``, an address was meant."""
FILES = frozenset({"file", "local"})
"""Schemes of paths of this machine."""
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://(.*)", re.DOTALL)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_SECRET = re.compile(r"(?<=:)(/*)[^/@]*@")


def normalized(address: str | os.PathLike[str]) -> str:
    """Return a URL with its scheme in lower case, or a path; ``file:`` URLs are paths.

    Args:
        address: A URL, or a path. A path whose first part has a colon is written ``./a:b``, or absolute.

    Raises:
        UsageError: It is neither: a misspelt URL, one inside a path, one that names no place, or a path of Windows
            elsewhere.
    """
    text = os.fsdecode(address)
    if "::" in text and "://" in text:
        raise _refused(text, "joins several file systems by '::'; name the one that is meant")
    url = _URL.fullmatch(text)
    if url is None:
        return _path(text, written=isinstance(address, str))
    scheme, rest = url[1].lower(), url[2]
    if scheme in FILES:
        return _of_this_machine(text, rest)
    if not rest or (scheme in REMOTE and rest.startswith("/")):
        raise _refused(text, f"names no place after {scheme}://; write {scheme}://bucket/folder")
    return f"{scheme}://{rest}"


def local(path: str | os.PathLike[str], what: str) -> str:
    """Return a path of this machine, as text.

    Args:
        path: A path, or a ``file:`` URL.
        what: What is expected there, for messages, such as ``"a registry"``.

    Raises:
        UsageError: It is the URL of another machine, or as for ``normalized``.
    """
    text = normalized(path)
    if is_url(text):
        raise _refused(text, f"is the address of another machine; {what} is named by a path of this one")
    return text


def is_url(address: str) -> bool:
    """Return whether what ``normalized`` returned is a URL, not a path."""
    return "://" in address


def shown(address: str) -> str:
    """Return an address without the user and password that it may hold."""
    return _SECRET.sub(r"\1", address).rstrip("/") if _SCHEME.match(address) else address


def _of_this_machine(text: str, rest: str) -> str:
    host, slash, path = rest.partition("/")
    if not slash or host not in ("", "localhost"):
        raise _refused(text, "names no absolute path; write file:///folder/file, or the path alone")
    return unquote(f"/{path}")


def _path(text: str, *, written: bool) -> str:
    """Return a path that cannot be mistaken for a URL.

    Args:
        text: The path.
        written: Whether it was written as text; a ``Path`` has lost ``./`` and the second slash.
    """
    first, slash, rest = text.partition("/")
    scheme, word = _SCHEME.match(first), first.rstrip(" :;.,=").lower()
    if os.name == "nt" and scheme and len(scheme[1]) == 1:
        return text
    if re.match(r"[A-Za-z]:(\\|$)", first) and (slash or "\\" in first):
        raise _refused(text, "is a path of Windows, which this machine has not; write it as it is here")
    if first not in ("", ".", "..", "~"):
        is_address = scheme and (written or scheme[1].lower() in REMOTE)
        if is_address or (first.endswith(":") and slash) or (word in REMOTE and rest.startswith("/")):
            raise _refused(text, _advice(text, scheme[1] if scheme else word))
    if "://" in text:
        raise _refused(text, "has an address inside a path; name one of them")
    # a name with a colon keeps its meaning when it becomes a Path, which drops "./"
    return os.path.abspath(text) if re.match(r"\./+[^/]*:", text) else text


def _advice(text: str, word: str) -> str:
    scheme = (near(word.lower(), sorted(REMOTE | FILES), 1, 0.6) or ["s3"])[0]
    pattern = "file:///folder" if scheme in FILES else f"{scheme}://bucket/folder"
    return (
        f"is neither an address, such as {pattern}, nor plainly a path; if a file or folder here has this name, write "
        f"./{shown(text)} or an absolute path"
    )


def _refused(text: str, why: str) -> UsageError:
    return UsageError(f"{shown(text)} {why}.", subject=shown(text))
