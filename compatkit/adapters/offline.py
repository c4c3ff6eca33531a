"""Decide whether timm fetches pretrained weights: not when offline was asked for, nor when the hub does not answer.

They come through huggingface_hub, which tries an unreachable network for most of a minute.
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
"""Variable of the environment; the hub's library reads it when it is imported, and its constant after that."""
WAIT = 3.0
"""Seconds in which the hub has to answer."""


@contextmanager
def offline() -> Iterator[None]:
    """Keep the hub's library off the network inside; it still finds what is in its cache."""
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
    """Return the address of the hub."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def reachable() -> bool:
    """Return whether the hub accepts connections; True behind a proxy, where only a request would show."""
    if {"https", "all"} & getproxies().keys():
        return True
    place = urlsplit(hub())
    port = place.port or (80 if place.scheme == "http" else 443)
    with suppress(OSError), socket.create_connection((place.hostname or "", port), WAIT):
        return True
    return False
