"""Decide whether timm downloads pretrained weights: not in offline mode, nor if the Hub is unreachable.

huggingface_hub retries an unreachable network for most of a minute.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit
from urllib.request import getproxies

OFFLINE = "HF_HUB_OFFLINE"
"""Environment variable; huggingface_hub reads it on import, and its own constant after that."""
TIMEOUT = 3.0
"""Seconds within which the Hub must respond."""


@contextmanager
def offline() -> Iterator[None]:
    """Keep huggingface_hub off the network in this context; it still uses its cache."""
    before, constants = os.environ.get(OFFLINE), sys.modules.get("huggingface_hub.constants")
    known = getattr(constants, OFFLINE, None)
    os.environ[OFFLINE] = "1"
    if constants is not None:
        setattr(constants, OFFLINE, True)
    try:
        yield
    finally:
        if constants is not None:
            setattr(constants, OFFLINE, known)
        if before is None:
            del os.environ[OFFLINE]
        else:
            os.environ[OFFLINE] = before


def hub() -> str:
    """Return the URL of the Hub."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def reachable() -> bool:
    """Return whether the Hub accepts connections; True behind a proxy, where only a request could tell."""
    if {"https", "all"} & getproxies().keys():
        return True
    url = urlsplit(hub())
    port = url.port or (80 if url.scheme == "http" else 443)
    with suppress(OSError), socket.create_connection((url.hostname or "", port), TIMEOUT):
        return True
    return False
