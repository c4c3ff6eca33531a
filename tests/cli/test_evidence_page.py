"""Page evidence.md: its commands run as written, one after the other, on a small registry with its names."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import data_set, quick

import compatkit as ck
from compatkit.contracts import evidence as cells
from compatkit.contracts.manifest import About
from compatkit.evaluation.conditions import key_of
from compatkit.foundation.codec import loads

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "explanation" / "evidence.md").read_text()
BOTH = "digits/*", "digits/*"


def commands() -> list[str]:
    blocks = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two networks trained together on small sets that are called as the page calls them."""
    folder = tmp_path_factory.mktemp("digits")
    tasks = []
    for seed, name in enumerate(("mnist", "usps")):
        data = data_set(name, seed=seed)
        arrays = {"x_train": data.train.images, "y_train": data.train.labels}
        arrays |= {"x_test": data.test.images, "y_test": data.test.labels}
        np.savez(folder / f"{name}.npz", **arrays, classes=np.array(data.classes))
        tasks.append(ck.Task(name, data, "resnet8_cifar", "layer2", size=(16, 16)))
    fit = quick(steps=2).fit(tasks, ["identical_init", "dcc"])
    ck.Registry.init(folder / "parts").publish(fit, prefix="digits", about=About(tags={"domain": "digits"}))
    return folder


@pytest.fixture
def digits(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(template, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COMPATKIT_REGISTRY", "parts")
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path / "work"))
    return tmp_path / "work"


def test_the_page_s_commands_run_one_after_the_other(run: Callable[..., Any], digits: Path) -> None:
    result: dict[str, Any] = {}
    for line in commands():
        words = shlex.split(line, comments=True)
        assert words[0] == "compatkit"
        result[line] = run(*words[1:])
        assert result[line].code == 0, (line, result[line].err)
    message = [" ".join(entry.out.split()) for entry in result.values()]
    assert "0 taken from recorded results, 4 measured now." in message[0]
    assert "4 taken from recorded results, 0 measured now." in message[1]
    assert "4 taken from recorded results, 0 measured now." in message[2]
    assert "measured with 2 heads" in message[4]
    assert (digits / "matrix.html").exists() and (digits / "good.csv").read_text().count("\n") >= 1


def test_the_page_s_python_says_what_comes_out(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    registry = ck.Registry.open("parts")
    registry.matrix(*BOTH, [ck.data.load(name).test for name in ("mnist", "usps")])
    block, cells = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/explanation/evidence.md", "exec"), names)
    printed, expected = capsys.readouterr().out, re.findall(r"print\(.*#  ?(.*)$", block, re.MULTILINE)
    assert expected == [printed.strip().replace("'", '"')]
    exec(compile(cells, "docs/explanation/evidence.md", "exec"), names)
    assert str(names["matrix"].to_numpy()) in capsys.readouterr().out


def test_the_page_tells_of_every_field_of_a_key_and_of_a_document(digits: Path) -> None:
    registry = ck.Registry.open("parts")
    cell = registry.matrix(*BOTH, [ck.data.load(name).test for name in ("mnist", "usps")]).cells[0]
    table = PAGE.split("## What a key holds")[1].split("##")[0]
    assert set(key_of(cell.settings)) == set(
        re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.M)))
    )
    function = next(iter((digits / "parts" / "evidence").iterdir())).name
    pointer = next(path for path in (digits / "parts" / "evidence" / function).rglob("*") if path.is_file())
    document = loads(registry.store.read_blob(f"sha256:{pointer.name}"), what="it")
    example = PAGE.split("## On disk")[1]
    for name in (*document, *document["figures"]):
        assert f'"{name}"' in example, name
    assert set(re.findall(r"^\| (\w+) \|", PAGE.split("## States")[1], re.MULTILINE)) >= {
        "measured",
        "stale",
        "missing",
        "barred",
    }


def test_figures_of_other_images_than_those_named_are_told(run: Callable[..., Any], digits: Path) -> None:
    assert run("matrix", *BOTH).code == 0
    data = data_set("mnist", seed=5)
    arrays = {"x_train": data.train.images, "y_train": data.train.labels}
    arrays |= {"x_test": data.test.images, "y_test": data.test.labels}
    np.savez(digits / "mnist.npz", **arrays, classes=np.array(data.classes))
    arguments = ("--data", "mnist", "--data", "usps")
    for more in ((), ("--json",)):
        result = run("matrix", *BOTH, *arguments, *more)
        assert "mnist/test (48 images) for digits/mnist.extractor@1.0.0" in result.err
        assert "2 figures marked stale may be of other images" in " ".join(result.err.split())
    filled = run("matrix", *BOTH, *arguments, "--fill", "stale")
    assert "marked stale" not in filled.err and "2 measured now" in " ".join(filled.out.split())
    assert "by the name" not in run("matrix", *BOTH).err, "no images were named"


def test_stale_cells_are_told_with_how_to_fill_them(
    run: Callable[..., Any], digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("matrix", *BOTH)
    monkeypatch.setattr(cells, "METRIC_VERSION", "2")
    result = run("matrix", *BOTH)
    text = " ".join(result.out.split())
    assert "◌ stale" in result.out and "4 stale: --fill stale measures them" in text
    document = run("matrix", *BOTH, "--json").json
    assert document["settings"]["cells"] == {"taken": 0, "measured": 0, "stale": 4}
    assert {cell["grade"] for cell in document["cells"]} == {"stale"}
    assert run("matrix", *BOTH, "--fill", "stale", "--json").json["settings"]["cells"]["measured"] == 4


@pytest.mark.usefixtures("digits")
def test_what_is_no_filter_or_fill_is_refused_before_anything_runs(run: Callable[..., Any]) -> None:
    result = run("matrix", *BOTH, "--where", "grad=perfect")
    assert result.code == 2 and "Did you mean 'grade'" in result.err
    assert run("matrix", *BOTH, "--fill", "some").code == 2
    result = run("matrix", *BOTH, "--where", "model=vgg*")
    assert result.code == 2 and "compatkit search" in " ".join(result.err.split())


@pytest.mark.usefixtures("digits")
def test_without_images_nothing_can_be_measured_and_all_can_be_shown(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("matrix", *BOTH)
    monkeypatch.delenv("COMPATKIT_DATA")
    assert run("matrix", *BOTH).code == 2
    assert run("matrix", *BOTH, "--fill", "none").code == 0


def test_asking_loads_neither_torch_nor_numpy(run: Callable[..., Any], digits: Path) -> None:
    run("matrix", *BOTH)
    script = (
        "import sys, atexit\n"
        "atexit.register(lambda: print([one for one in ('torch', 'numpy') if one in sys.modules], file=sys.stderr))\n"
        "from compatkit.cli import main\n"
        "main(['matrix', 'digits/*', 'digits/*', '--fill', 'none', '--json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert json.loads(done.stdout)["settings"]["cells"]["taken"] == 4 and done.stderr == "[]\n"


def test_a_large_matrix_is_told_in_numbers(
    run: Callable[..., Any], digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compatkit.reports import tables

    monkeypatch.setattr(tables, "MAX_PRINTED_PAIRS", 3)
    result = run("matrix", *BOTH)
    assert "Compatibility matrix, 2 extractors x 2 heads" in result.out and "own pair" in result.out
    assert "2 pairs" in result.out and "@1.0.0" not in result.out
