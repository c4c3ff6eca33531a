"""What a push to a model repository shows to the Hub's own tools, against a fake of the Hub on loopback.

The real Hub was never asked.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hub import Repository, hub
from small import data_set

import compatkit as ck
from compatkit.components.cards.contents import Contents, Listed
from compatkit.components.cards.text import MARK, card
from compatkit.components.splitting import publish_split, split
from compatkit.contracts.manifest import About
from compatkit.errors import EnvironmentFailure
from compatkit.registry.remotes.objectstore import Site

pytestmark = pytest.mark.timeout(120)  # a server that hangs must not hang the tests
REMOTE = "hf://user/net"
FEW = {"layers": [1, 1, 1, 1], "num_classes": 3}
GRAY = {**FEW, "in_chans": 1}
LABELS = ("cat", "dog", "0")
TOKEN = "hf_" + "s3cret" * 6


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    """Two networks of timm, a recombination of their halves, and its measurement; only read."""
    made = ck.Registry.init(tmp_path_factory.mktemp("cards") / "parts")
    about = About(title="Small", description="For *tests*.", license="Apache-2.0", tags={"domain": "digits"})
    for seed, name in enumerate(("one", "two")):
        parts = split(
            "resnet18", "layer2", kwargs=FEW, size=(32, 32), labels=LABELS, seed=seed,
            preprocessing={"mean": [0.25], "std": [0.5], "interpolation": "bicubic"},
        )  # fmt: skip
        publish_split(made.store, parts, f"nets/{name}", about=about)
    made.publish(made.recombine("nets/one.extractor", "nets/two.head", bn_policy="running"), "nets/both", about=about)
    test = data_set("left", classes=LABELS, channels=3, size=(32, 32), count=12).test
    made.matrix("nets/*.extractor", "nets/*.head", data={"*": test}, bn_policy="running")
    return made


@pytest.fixture
def registry(published: ck.Registry, tmp_path: Path) -> ck.Registry:
    return ck.Registry.open(shutil.copytree(published.store.root, tmp_path / "parts"))


@pytest.fixture
def repository() -> Repository:
    made = Repository()
    made.files[".gitattributes"] = b"* -text\n"
    return made


@pytest.fixture
def options(repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """How the fake is reached, and it alone; no user's token is read."""
    from huggingface_hub import close_session, constants

    with hub(net=repository) as endpoint:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        yield {"endpoint": endpoint, "token": False}
        close_session()


def text_of(repository: Repository) -> str:
    return repository.files["README.md"].decode()


def test_a_card_is_read_by_the_hubs_client(
    registry: ck.Registry, repository: Repository, options: dict[str, Any]
):
    from huggingface_hub import ModelCard

    report = registry.push(REMOTE, options=options, create=True)
    print(text_of(repository))
    assert report.notes == []
    read = ModelCard(text_of(repository))
    assert read.data.to_dict() == {
        "library_name": "compatkit",
        "license": "apache-2.0",
        "pipeline_tag": "image-classification",
        "tags": ["compatkit", "digits", "extractor", "head", "recombination", "resnet18"],
    }
    assert 'ck.Registry.clone("hf://models/user/net", "parts")' in read.text
    assert 'timm.create_model("hf-hub:user/net", pretrained=True)' in read.text
    for reference in ("nets/one.extractor@1.0.0", "nets/two.head@1.0.0", "nets/both@1.0.0"):
        assert reference in read.text
