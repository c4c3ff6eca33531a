"""Nothing is downloaded unless that is asked for: pretrained weights included."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from compatkit.errors import EnvironmentFailure

VARIABLE = "HF_HUB_OFFLINE"
"""timm's weights come through huggingface_hub, which reads this when it is imported, and its constant after that."""


@contextmanager
def offline(*, unless: bool) -> Iterator[None]:
    """Keep timm and torchvision from fetching weights; those in their caches are found.

    Args:
        unless: Let it fetch them.

    Raises:
        EnvironmentFailure: Weights are not in the cache; the message names ``--download``.
    """
    if unless:
        yield
        return
    before, constants = os.environ.get(VARIABLE), sys.modules.get("huggingface_hub.constants")
    known = getattr(constants, VARIABLE, None)
    os.environ[VARIABLE] = "1"
    if constants is not None:
        setattr(constants, VARIABLE, True)
    try:
        yield
    except EnvironmentFailure as error:
        if "could not be fetched" not in str(error):
            raise
        raise EnvironmentFailure(f"{error} --download fetches them.", subject=error.subject) from error
    finally:
        if constants is not None:
            setattr(constants, VARIABLE, known)
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
