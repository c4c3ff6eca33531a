"""Fake distributions, and plugins in them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest
from distributions import Install, install

__all__ = ["install"]


@pytest.fixture
def module(install: Install) -> Callable[[str], None]:
    """Return ``module(source)``: the source becomes the plugin ``regularizers.mine`` of ``demo`` 1.0."""

    def write(source: str) -> None:
        head = "from compatkit import hookimpl\n\n"
        install("demo", {"regularizers.mine": "demo_mine"}, {"demo_mine": head + textwrap.dedent(source)})

    return write
