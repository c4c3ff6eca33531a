"""recombine --insert-adapters: adapters are named, fitted on training images, measured, and no evidence of the pair."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import quick

import compatkit as ck
from compatkit.components.images import FITTED_ON, fitting_images
from compatkit.components.splitting import publish_split, split
from compatkit.data.dataset import DataSet

NARROW, RIGHT, PATCHES = "other/left.extractor", "digits/right.head", "zoo/patches.head"


@pytest.fixture(scope="session")
def wider(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained registry with a network cut earlier (16 channels, where the heads take 32), and one of tokens."""
    folder = tmp_path_factory.mktemp("wider")
    shutil.copytree(trained, folder, dirs_exist_ok=True)
    registry = ck.Registry.open(folder / "parts")
    data = ck.data.load(folder / "left.npz")
    fit = quick(steps=1).fit([ck.Task("left", data, "resnet20_cifar", "layer1", size=(16, 16))])
    registry.publish(fit, prefix="other")
    settings = {"in_chans": 1, "num_classes": 3, "img_size": 16, "patch_size": 4, "depth": 1}
    settings |= {"embed_dim": 16, "num_heads": 2, "class_token": False, "global_pool": "avg"}
    parts = split("vit_tiny_patch16_224", "blocks.0", kwargs=settings, labels=("0", "1", "2"))
    publish_split(registry.store, parts, "zoo/patches")
    return folder


@pytest.fixture
def adaptable(wider: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that registry, which is the current folder's."""
    shutil.copytree(wider, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COMPATKIT_REGISTRY", "parts")
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path / "work"))
    return tmp_path / "work"


@pytest.mark.usefixtures("adaptable")
def test_a_refusal_names_the_adapter_and_the_command(run: Any) -> None:
    result = run("recombine", NARROW, RIGHT)
    assert result.code == 1 and result.out == ""
    assert "project: 1x1 convolution from 16 to 32 channels" in " ".join(result.err.split())
    command = "compatkit recombine other/left.extractor@1.0.0 digits/right.head@1.0.0 --insert-adapters"
    assert command in result.err
    assert command in run("recombine", NARROW, RIGHT, "--json").json["error"]["message"]
    assert run(*command.split()[1:]).code in (0, 1)


@pytest.mark.usefixtures("adaptable")
def test_a_fitted_adapter_is_named_and_measured(run: Any) -> None:
    result = run("recombine", NARROW, RIGHT, "--insert-adapters")
    text = " ".join(result.out.split())
    assert "adapter 1 resize to 8x8 adapter 2 project: 1x1 convolution from 16 to 32 channels" in text
    assert "fitted on 48 images of left/train" in text
    assert "Accuracy, common classes" in text and "Bound" in text and "wiring needs-adapter" in text
    assert (
        "Measured with" not in text
        and "Measured with" in run("recombine", NARROW, RIGHT, "--insert-adapters", "--verbose").out
    )
    document = run("recombine", NARROW, RIGHT, "--insert-adapters", "--json").json
    assert document["check"]["wiring"] == "needs-adapter" and document["cell"]["restricted"]["count"] == 48
    assert [adapter["model"] for adapter in document["adapters"]] == ["resize", "project"]
    assert (
        document["cell"]["settings"]["adapters"].startswith("resize to 8x8; project")
        and document["cell"]["bound"]
    )
    assert result.code == (1 if document["cell"]["grade"] == "chance" else 0)


def test_figures_with_adapters_are_not_kept_as_evidence(run: Any, adaptable: Path) -> None:
    run("recombine", NARROW, RIGHT, "--insert-adapters")
    registry = ck.Registry.open(adaptable / "parts")
    assert registry.check(NARROW, RIGHT).evidence == "none"
    assert registry.check(NARROW, "other/left.head").evidence != "none", "the bound is a pair like any other"


def test_the_images_to_fit_on_are_those_asked_for(run: Any, adaptable: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("COMPATKIT_DATA")
    result = run("recombine", NARROW, RIGHT, "--insert-adapters", "--data", adaptable / "right.npz", "--json")
    assert "fitted on 48 images of right/train" in result.json["cell"]["settings"]["adapters"]
    assert result.json["cell"]["settings"]["data"] == "right/test"


@pytest.mark.usefixtures("adaptable")
def test_images_are_needed_only_to_measure_or_to_fit(run: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("COMPATKIT_DATA")
    result = run("recombine", NARROW, PATCHES, "--insert-adapters", "--no-measure")
    assert (
        result.code == 0
        and "adapter 1  permute NCHW to NLC" in result.out
        and "built; not measured" in result.out
    )
    assert (
        run("recombine", NARROW, PATCHES, "--insert-adapters", "--no-measure", "--json").json["cell"] is None
    )
    result = run("recombine", NARROW, RIGHT, "--insert-adapters", "--no-measure")
    assert result.code == 2 and "--data with a name, path or address" in result.err


@pytest.mark.usefixtures("adaptable")
@pytest.mark.parametrize("policy", ["batch", "reestimate", "running"])
def test_every_policy_is_measured_with_adapters(run: Any, policy: str) -> None:
    result = run("recombine", NARROW, RIGHT, "--insert-adapters", "--bn-policy", policy, "--json")
    assert result.json["cell"]["settings"]["policy"] == policy and result.json["cell"]["restricted"]


@pytest.mark.usefixtures("adaptable")
def test_what_fits_needs_no_adapter_and_gets_none(run: Any) -> None:
    plain = run("recombine", "digits/left.extractor", RIGHT, "--json")
    result = run("recombine", "digits/left.extractor", RIGHT, "--insert-adapters", "--json")
    assert plain.json["cell"] == result.json["cell"] and result.json["adapters"] == []


@pytest.mark.usefixtures("adaptable")
def test_what_no_adapter_mends_is_refused_with_it_too(run: Any) -> None:
    run(
        "split",
        "resnet8_cifar",
        "--cut",
        "global_pool",
        "--kwargs",
        '{"in_chans": 1}',
        "--publish",
        "zoo/pooled",
    )
    result = run("recombine", "zoo/pooled.extractor", RIGHT, "--insert-adapters")
    assert result.code == 1 and "before its pooling" in result.err and "--insert-adapters" not in result.err


def test_at_most_a_thousand_images_are_fitted_on_spread_over_the_training_images() -> None:
    images, labels = np.zeros((2500, 2, 2, 1), dtype=np.uint8), np.arange(2500) % 2
    images[:, 0, 0, 0] = np.arange(2500) // 10
    data = DataSet.of("many", (images, labels), (images[:10], labels[:10]), ("0", "1"))
    chosen = fitting_images(data)
    assert len(chosen) == 834 <= FITTED_ON and chosen.name == "many/train"
    assert chosen.images[-1, 0, 0, 0] == 249
    few = DataSet.of("few", (images[:1000], labels[:1000]), (images[:10], labels[:10]), ("0", "1"))
    assert fitting_images(few) is few.train
