"""Fake distributions: a dist-info folder with entry points, and modules, put on the import path."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return ``install(distribution, points, sources)``; modules are forgotten after the test."""
    modules: list[str] = []

    def write(
        distribution: str, points: Mapping[str, str], sources: Mapping[str, str], version: str = "1.0"
    ) -> Path:
        site = tmp_path / f"site-{distribution}"
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        lines = "".join(f"{key} = {value}\n" for key, value in points.items())
        (info / "entry_points.txt").write_text(f"[compatkit]\n{lines}")
        for name, source in sources.items():
            (site / f"{name}.py").write_text(textwrap.dedent(source))
            modules.append(name)
        monkeypatch.syspath_prepend(str(site))
        return site

    yield write
    for name in modules:
        sys.modules.pop(name, None)
