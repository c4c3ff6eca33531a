"""The example of docs/explanation/contracts.md is what the program prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from sample_components import extractor, figures, head, initial, maps, shared, vector

from compatkit.cli import main
from compatkit.contracts.manifest import Manifest
from compatkit.registry.store import Store

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "contracts.md"
WORDS = "--registry parts check 'digits/*' '*.head'"


def example(root: Path) -> None:
    """Two extractors trained against one head, four heads: one from elsewhere, one that takes a vector."""
    together = (initial("run 7"), shared("dcc"))
    parts: dict[str, Manifest] = {
        "digits/mnist.extractor": extractor(maps(32), anchors=together, norm="batch"),
        "digits/usps.extractor": extractor(
            maps(32), anchors=together, norm="batch", features=figures(0.2, 0.3)
        ),
        "digits/mnist.head": head(maps(32), anchors=together),
        "digits/usps.head": head(maps(32), anchors=together),
        "zoo/alone.head": head(maps(32), features=figures(0.9, 1.4)),
        "zoo/wide.head": head(vector(64)),
    }
    store = Store.init(root)
    for number, (name, made) in enumerate(parts.items()):
        payload = store.put_state({"weight": torch.full((1,), float(number))}, parameters=1)
        store.publish(name, attrs.evolve(made, payload=payload))


def printed(root: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the command of the example prints on 100 columns."""
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["--registry", str(root), "check", "digits/*", "*.head"])
    out = capsys.readouterr().out.replace(str(root), root.name)
    return "\n".join(line.rstrip() for line in out.splitlines()).strip("\n")


def test_the_example_is_the_beginning_of_what_the_program_prints(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    example(tmp_path / "parts")
    expected = f"$ compatkit {WORDS}\n{printed(tmp_path / 'parts', capsys)}"
    block = PAGE.read_text().split("\n```\n")[1]
    assert "8 pairs: 4 promised, 2 unproven, 2 adaptable" in block
    assert expected.startswith(f"{block}\n"), (
        f"put the table and the counts of this into {PAGE.name}:\n{expected}"
    )


def test_a_check_loads_neither_torch_nor_numpy(tmp_path: Path) -> None:
    """So that it answers at once."""
    example(tmp_path / "parts")
    words = ["--registry", str(tmp_path / "parts"), "check", "digits/mnist.extractor", "zoo/alone.head"]
    code = (
        f"import sys; from compatkit.cli import main\ntry: main({words!r})\nexcept SystemExit: pass\n"
        "print([one for one in ('torch', 'numpy', 'rich') if one in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("unproven: wiring direct") and done.stderr == "[]\n"
