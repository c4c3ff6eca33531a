"""One thread, for equal bits and few cores, and a builder of networks with awkward seams."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from adapters.awkward import create

from compatkit.adapters.builders import BUILDERS, Builder


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def awkward(monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a builder of the networks in ``awkward.py``."""
    monkeypatch.setitem(BUILDERS, "awkward", Builder(create, lambda: "awkward 1.0"))
    return "awkward"
