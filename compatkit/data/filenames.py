"""Names of files and folders as text: UTF-8 whatever the locale, composed as in Unicode's form NFC."""

from __future__ import annotations

import os
import unicodedata

from compatkit.errors import DataError


def text_of(name: str, folder: object = None) -> str:
    """Return a name that the system gave as text in NFC: macOS decomposes names, others leave them as they are.

    Args:
        name: Of a file or folder, as ``os`` gives it: under a locale of ASCII its other bytes are escaped.
        folder: That holds it, for messages.

    Raises:
        DataError: Its bytes are no UTF-8.
    """
    if name.isascii():
        return name
    try:
        written = os.fsencode(name)
    except UnicodeEncodeError:  # not from the system: a URL under a locale of ASCII
        return unicodedata.normalize("NFC", name)
    try:
        return unicodedata.normalize("NFC", written.decode("utf-8"))
    except UnicodeDecodeError as error:
        where = "" if folder is None else f" in {folder}"
        raise DataError(
            f"The name {written!r}{where} is not UTF-8: it was written in another encoding, such as Latin-1. Rename "
            "it; convmv does so for whole folders.",
            subject=name,
        ) from error


def name_in_system(text: str) -> str:
    """Return a path that a UTF-8 text names, as ``os`` takes it: what is not ASCII is escaped under such a locale.

    Args:
        text: A path from a table.
    """
    return text if text.isascii() else os.fsdecode(text.encode("utf-8", "surrogateescape"))
