"""--plugin FILE: before or after any command, in the processes of a sweep; without it nothing of a file is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from photos import class_folder
from swept import TASK, write_recipe

from compatkit.plugins.files import FILES

SOURCE = '''
"""Networks and a loss in one file."""
from compatkit import hookimpl
from torch import nn

compatkit_api = 1

@hookimpl
def compatkit_builders(register):
    register("ours", build)

@hookimpl
def compatkit_regularizers(register):
    register("pull", Pull)

def build(model, *, in_chans=3, num_classes=10):
    network = nn.Sequential()
    network.add_module("stem", nn.Conv2d(in_chans, 4, 3, padding=1))
    network.add_module("act", nn.ReLU())
    network.add_module("pool", nn.AdaptiveAvgPool2d(1))
    network.add_module("flat", nn.Flatten())
    network.add_module("fc", nn.Linear(4, num_classes))
    network.pretrained_cfg = {"input_size": (in_chans, 16, 16), "classifier": "fc"}
    return network

class Pull:
    @hookimpl
    def compatkit_losses(self, step):
        return {"square": step.features.float().square().mean()}
'''
Recipe = Callable[..., Path]


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A plugin file in the current folder, beside weights of its network; no variable names it."""
    monkeypatch.delenv(FILES, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours_of_tests.py").write_text(SOURCE)
    yield tmp_path / "ours_of_tests.py"
    sys.modules.pop("ours_of_tests", None)


@pytest.fixture
def weights(ours: Path) -> Path:
    """Weights of the file's network for three classes."""
    shapes = {"stem.weight": (4, 3, 3, 3), "stem.bias": (4,), "fc.weight": (3, 4), "fc.bias": (3,)}
    rng = torch.Generator().manual_seed(0)
    path = ours.with_name("weights.pth")
    torch.save({name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}, path)
    return path


def test_weights_of_a_file_are_adopted_and_used(run: Any, ours: Path, weights: Path, tmp_path: Path) -> None:
    root, file = ("--registry", "parts"), ("--plugin", ours.name)
    words = ("--builder", "ours", "--model", "any", "--cut", "act", "--name", "zoo/mine")
    result = run(*root, "adopt", weights.name, *words, *file)
    assert result.code == 0, result.err
    assert f"next: compatkit --registry parts --plugin {ours.name} check zoo/mine.extractor" in result.out
    assert not os.environ.get(FILES)  # only for the command
    class_folder(tmp_path / "photos", {"a": 2})
    for line in (
        ("cuts", "any", "--builder", "ours"),
        ("split", "any", "--builder", "ours", "--cut", "act"),
        ("predict", "zoo/mine.extractor", "photos"),
        ("export", "zoo/mine.head", "head.safetensors"),
        ("plugins", "ours"),
    ):
        for place in ((*root, *file, *line), (*root, *line, *file)):
            if line[0] in ("cuts", "split", "plugins"):
                place = place[2:]
            result = run(*place)
            assert result.code == 0, place
            assert line[0] != "export" or f"needs      {ours.name} sha256-" in result.out
            (tmp_path / "head.safetensors").unlink(missing_ok=True)
    missing = run(*root, "predict", "zoo/mine.extractor", "photos", "--json")
    assert missing.code == 2 and missing.json["error"]["code"] == "unknown-name"
    assert f"--plugin {ours.name}" in missing.json["error"]["message"]
    for line in (("show", "zoo/mine.head"), ("check", "*.extractor", "*.head"), ("ls",)):
        assert run(*root, *line).code == 0  # without the file


def test_a_recipe_is_trained_with_a_loss_of_a_file(run: Any, ours: Path, recipe: Recipe) -> None:
    path = recipe(('"identical_init", "dcc"', '"pull"'))
    without = run("--registry", "parts", "train", path, "--json")
    assert without.code == 2 and without.json["error"]["code"] == "unknown-name"
    result = run("--registry", "parts", "train", path, "--plugin", ours)
    assert result.code == 0, result.err
    assert "regularizers: pull" in result.out
    shown = run("--registry", "parts", "show", "digits/left.head", "--json").json
    (plugin,) = shown["manifest"]["training"]["plugins"]
    assert plugin["name"] == "regularizers.pull" and plugin["distribution"] == "ours_of_tests.py"
    assert plugin["version"].startswith("sha256-")


def test_processes_of_a_sweep_know_the_file(run: Any, ours: Path, tmp_path: Path) -> None:
    change = ('prefix = "digits"', 'prefix = "digits"\nregularizers = ["pull"]')
    path = write_recipe(tmp_path / "recipes", ("trainer.seed = [0, 1]",), ((TASK, ""), change))
    result = run(
        "--registry", "parts", "--plugin", ours, "sweep", path, "--launcher", "process", "--workers", 1
    )
    assert result.code == 0, result.err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.py", None, "does not exist"),
        ("weights.txt", "x = 1\n", "expected a Python file"),
        ("two words.py", "x = 1\n", "Rename"),
        ("broken_of_tests.py", "x = (\n", "SyntaxError"),
        ("plain_of_tests.py", "compatkit_api = 1\n", "no hook"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_of_its_own(
    run: Any, ours: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        ours.with_name(name).write_text(content)
    result = run("plugins", "--plugin", name, "--json")
    assert result.code == 2 and result.json["error"]["code"] == "plugin"
    assert message in result.json["error"]["message"] and name in result.json["error"]["message"]


def test_two_files_of_one_stem_are_refused(run: Any, ours: Path) -> None:
    twin = ours.parent / "other" / ours.name
    twin.parent.mkdir()
    twin.write_text(SOURCE)
    result = run("--plugin", ours, "plugins", "--plugin", twin)
    assert result.code == 2 and "[plugin]" in result.err and "same stem" in " ".join(result.err.split())
    assert run("--plugin", ours, "plugins", "ours", "--plugin", f"./{ours.name}").code == 0  # one file


def test_commands_that_read_contracts_run_no_file_and_no_torch(ours: Path) -> None:
    ours.write_text("raise SystemExit('run')\n")
    program = (
        "import sys\nfrom compatkit.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(sorted({'torch', 'numpy', 'ours_of_tests'} & set(sys.modules)))\n"
    )
    for words in (("init", "parts"), ("--registry", "parts", "ls")):
        line = [sys.executable, "-c", program, "--plugin", ours.name, *words]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith("[]\n")


@pytest.mark.parametrize("line", ['plugin = "ours_of_tests.py"', 'plugins = ["ours_of_tests.py"]'])
def test_no_recipe_names_a_file(run: Any, ours: Path, recipe: Recipe, line: str) -> None:
    path = recipe(('prefix = "digits"', f'prefix = "digits"\n{line}'))
    result = run("--registry", "parts", "train", path, "--json")
    assert result.code == 2 and line.partition(" ")[0] in result.json["error"]["message"]
    assert "ours_of_tests" not in sys.modules
