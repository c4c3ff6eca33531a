"""Nothing is downloaded unless that is asked for: pretrained weights included."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from compatkit.errors import EnvironmentFailure


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
    from compatkit.adapters import fetching

    try:
        with fetching.offline():
            yield
    except EnvironmentFailure as error:
        if "could not be fetched" not in str(error):
            raise
        raise EnvironmentFailure(f"{error} --download fetches them.", subject=error.subject) from error
