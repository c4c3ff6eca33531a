"""Names of files and folders as text: UTF-8 whatever the locale, in Unicode's form NFC."""

from __future__ import annotations

import os
import unicodedata

from compatkit.errors import DataError


def decode_name(name: str, folder: object = None) -> str:
    """Return a file name as text in NFC; macOS stores names in NFD, other systems as they are written.

    Args:
        name: Name as returned by ``os``; under an ASCII locale other bytes are escaped.
        folder: Folder of the file, for messages.

    Raises:
        DataError: The name is not UTF-8.
    """
    if name.isascii():
        return name
    try:
        data = os.fsencode(name)
    except UnicodeEncodeError:  # not from the file system: a URL under an ASCII locale
        return unicodedata.normalize("NFC", name)
    try:
        return unicodedata.normalize("NFC", data.decode("utf-8"))
    except UnicodeDecodeError as error:
        where = "" if folder is None else f" in {folder}"
        raise DataError(
            f"The name {data!r}{where} is not UTF-8. Rename it, for example with convmv.", subject=name
        ) from error


def encode_name(text: str) -> str:
    """Return a path from a UTF-8 text as ``os`` expects it: non-ASCII bytes are escaped under an ASCII locale.

    Args:
        text: A path in a table.
    """
    return text if text.isascii() else os.fsdecode(text.encode("utf-8", "surrogateescape"))
