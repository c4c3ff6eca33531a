"""Copying signatures: public statements, looked at for their form here and verified by whoever asks with a key."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from compatkit.errors import SignatureError
from compatkit.registry.copy.closure import Closure

if TYPE_CHECKING:
    from compatkit.registry.store import Store


class SignatureWarning(UserWarning):
    """A damaged signature was left behind."""


def copy_signatures(source: Store, target: Store, closure: Closure) -> int:
    """Copy the signatures of every component in ``closure``; return how many are new.

    Raises:
        SignatureError: There are more of one component than are read.
        IntegrityError: A link stands in the place of a folder.
        EnvironmentFailure: Disk full, no right to read or write.
    """
    made = 0
    for digest, part in closure.parts.items():
        for path in source.signatures.files(digest) if part.how == "component" else ():
            data = source.signatures.read(path)
            if data is None:
                continue
            try:
                made += target.signatures.add(digest, data)
            except SignatureError as error:
                warnings.warn(
                    f"{part.whose}: the signature {path} was left behind: {error}",
                    SignatureWarning,
                    stacklevel=2,
                )
    return made
