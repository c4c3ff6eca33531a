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
from compatkit.cli import main
from compatkit.components.cards.contents import Contents, ListedComponent
from compatkit.components.cards.text import MARK, card
from compatkit.components.splitting import publish_split, split
from compatkit.contracts.manifest import About
from compatkit.errors import EnvironmentFailure
from compatkit.registry.remotes.objectstore import Site

pytestmark = pytest.mark.timeout(120)  # a server that hangs must not hang the tests
REMOTE = "hf://user/net"
FEW = {"num_classes": 3}
LABELS = ("cat", "dog", "0")
TOKEN = "hf_" + "s3cret" * 6


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    """Two networks of timm, a recombination of their halves, and its measurement; only read."""
    made = ck.Registry.init(tmp_path_factory.mktemp("cards") / "parts")
    about = About(title="Small", description="For *tests*.", license="Apache-2.0", tags={"domain": "digits"})
    for seed, name in enumerate(("one", "two")):
        parts = split(
            "test_resnet", "layer2", kwargs=FEW, size=(32, 32), labels=LABELS, seed=seed,
            preprocessing={"mean": [0.25], "std": [0.5], "interpolation": "bicubic"},
        )  # fmt: skip
        publish_split(made.store, parts, f"nets/{name}", about=about)
    made.publish(
        made.recombine("nets/one.extractor", "nets/two.head", bn_policy="running"), "nets/both", about=about
    )
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
def options(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[dict[str, Any]]:
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
    assert report.notes == []
    read = ModelCard(text_of(repository))
    assert read.data.to_dict() == {
        "library_name": "compatkit",
        "license": "apache-2.0",
        "pipeline_tag": "image-classification",
        "tags": ["compatkit", "digits", "extractor", "head", "recombination", "test_resnet"],
    }
    assert 'ck.Registry.clone("hf://models/user/net", "parts")' in read.text
    assert 'timm.create_model("hf-hub:user/net", pretrained=True)' in read.text
    for reference in ("nets/one.extractor@1.0.0", "nets/two.head@1.0.0", "nets/both@1.0.0"):
        assert reference in read.text
    assert "| `nets/one.extractor@1.0.0` | `nets/two.head@1.0.0` | left/test | running |" in read.text
    assert "| `nets/two.extractor@1.0.0` | `nets/two.head@1.0.0` | running |" in read.text
    files = dict(repository.files)
    assert registry.push(REMOTE, options=options).notes == [] and repository.files == files


def test_timm_builds_the_network_from_the_repository(
    registry: ck.Registry,
    repository: Repository,
    options: dict[str, Any],
    tmp_path: Path,
):
    import timm
    from timm.data.config import resolve_data_config
    from timm.models import load_model_config_from_hf

    registry.push(REMOTE, options=options, create=True)
    config, model, kwargs = load_model_config_from_hf("user/net", cache_dir=tmp_path / "cache")
    assert model == "test_resnet" and kwargs["in_chans"] == 3
    assert not {"tag", "license", "origin_url", "test_input_size"} & config.keys(), (
        "those of timm's own weights"
    )
    assert config["label_names"] == list(LABELS) and config["num_classes"] == 3
    network = timm.create_model("hf-hub:user/net", pretrained=True, cache_dir=tmp_path / "cache").eval()
    images = torch.rand(4, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(network(images), registry.load("nets/both")(images))
    read = resolve_data_config({}, model=network)
    data = registry.load("nets/both").data
    assert read["input_size"] == (3, 32, 32)
    assert (tuple(read["mean"]), tuple(read["std"])) == (data.mean, data.std)
    assert (read["interpolation"], read["crop_pct"], read["crop_mode"]) == (
        data.interpolation,
        data.crop_pct,
        data.crop_mode,
    )


def test_what_is_pulled_is_the_same_and_the_card_is_no_data(
    registry: ck.Registry, repository: Repository, options: dict[str, Any], tmp_path: Path
):
    registry.push(REMOTE, options=options, create=True)
    repository.files["README.md"] = b"---\nlicense: mit\n---\nnets/both is version 9.9.9\n"
    repository.files["config.json"] = b"not JSON"
    copy = ck.Registry.clone(REMOTE, tmp_path / "copy", options=options)
    for reference in registry.search():
        same = registry.store.resolve(str(reference))
        assert copy.store.resolve(str(reference)) == same
        assert copy.store.manifest(same) == registry.store.manifest(same)
    assert copy.maintenance.verify().sound
    folder = tmp_path / "downloaded"
    for path, data in repository.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    assert len(ck.Registry.open(folder)) == 5, "a repository that was downloaded is a registry"


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors"])
def test_files_of_others_are_replaced_on_request_only(
    registry: ck.Registry, repository: Repository, options: dict[str, Any], name: str
):
    repository.files[name] = b"somebody else's"
    notes = registry.push(REMOTE, options=options, create=True).notes
    assert len(notes) == 1 and "--replace-card" in notes[0]
    assert repository.files[name] == b"somebody else's"
    assert "hf-hub:" not in text_of(repository), "a card speaks of no files that are not compatkit's"
    assert registry.push(REMOTE, options=options, replace_card=True).notes == []
    assert MARK in text_of(repository) and b"somebody" not in repository.files[name]
    assert "hf-hub:user/net" in text_of(repository)


def test_files_for_timm_follow_the_recombination(
    registry: ck.Registry, repository: Repository, options: dict[str, Any]
):
    registry.push(REMOTE, ["nets/one.*", "nets/both"], options=options, create=True)
    digest = registry.store.resolve("nets/both").digest
    assert json.loads(repository.files["config.json"])["compatkit"] == digest
    registry.publish(
        registry.recombine("nets/two.extractor", "nets/one.head", bn_policy="running"), "nets/other"
    )
    registry.push(REMOTE, options=options)
    assert not {"config.json", "model.safetensors"} & repository.files.keys(), "which of two would it be?"
    assert "hf-hub:" not in text_of(repository)
    registry.withdraw("nets/both@1.0.0", reason="a test")
    registry.push(REMOTE, options=options)
    other = registry.store.resolve("nets/other").digest
    assert json.loads(repository.files["config.json"])["compatkit"] == other
    assert "nets/both" not in text_of(repository)


def test_a_network_that_timm_would_run_differently_has_no_files_for_timm(
    registry: ck.Registry, repository: Repository, options: dict[str, Any]
):
    made = registry.recombine("nets/one.extractor", "nets/two.head", bn_policy="batch")
    registry.publish(made, "nets/batch")
    notes = registry.push(REMOTE, "nets/batch", options=options, create=True).notes
    assert len(notes) == 1 and "statistics of each batch" in notes[0]
    assert "config.json" not in repository.files and "nets/batch" in text_of(repository)


@pytest.mark.parametrize("remote", ["hf://datasets/user/net", "hf://user/net/folder"])
def test_data_sets_and_folders_have_no_card(
    registry: ck.Registry, repository: Repository, options: dict[str, Any], remote: str
):
    registry.push(remote, "nets/one.head", options=options, create=True)
    assert not any(path.endswith(("README.md", "config.json")) for path in repository.files)


def test_a_card_is_that_of_all_pushers(
    registry: ck.Registry, repository: Repository, options: dict[str, Any], tmp_path: Path
):
    rival = ck.Registry.init(tmp_path / "rival")
    rival.pull(registry, "nets/one.extractor")

    def come_first() -> None:
        if any("nets/both" in path for path in repository.files) and "README.md" not in repository.files:
            repository.before = lambda: None
            rival.push(REMOTE, options=options)

    registry.push(REMOTE, "nets/two.extractor", options=options, create=True)
    del repository.files["README.md"]
    repository.before = come_first
    registry.push(REMOTE, "nets/both", options=options)
    card_of_both = text_of(repository)
    assert "nets/both@1.0.0" in card_of_both and "nets/one.extractor@1.0.0" in card_of_both
    rival.push(REMOTE, options=options)
    assert text_of(repository) == card_of_both, "who has less writes the same"
    assert "config.json" in repository.files


def test_who_always_comes_second_gives_up_and_the_components_are_there(
    registry: ck.Registry, repository: Repository, options: dict[str, Any]
):
    def interfere() -> None:
        if any("@versions" in path for path in repository.files):
            repository.commits.append("somebody else's")

    repository.before = interfere
    with pytest.raises(EnvironmentFailure) as caught:
        registry.push(REMOTE, "nets/one.extractor", options=options, create=True)
    assert caught.value.subject == "user/net"
    repository.before = lambda: None
    registry.push(REMOTE, "nets/one.extractor", options=options)
    assert MARK in text_of(repository)


def test_a_private_repository_needs_a_token_that_is_never_shown(
    registry: ck.Registry, repository: Repository, options: dict[str, Any]
):
    repository.token = TOKEN
    with pytest.raises(EnvironmentFailure) as caught:
        registry.push(REMOTE, options=options, create=True)
    assert caught.value.subject == "hf://models/user/net"
    report = registry.push(REMOTE, options={**options, "token": TOKEN}, create=True)
    repository.files["README.md"] = b"theirs"
    report = registry.push(REMOTE, options={**options, "token": TOKEN})
    assert "README.md" in str(report)
    written = b"".join(repository.files.values()).decode("latin-1")
    for text in (str(report), json.dumps(report.to_json()), str(caught.value), written):
        assert TOKEN not in text


def test_a_repository_that_does_not_exist_is_told(registry: ck.Registry, options: dict[str, Any]):
    with pytest.raises(EnvironmentFailure) as caught:
        registry.push("hf://user/none", options=options, create=True)
    assert caught.value.subject == "hf://models/user/none"
    assert "hf repos create user/none --type model" in str(caught.value)


def test_what_others_broke_in_the_repository_is_left_out_of_the_card(
    registry: ck.Registry, repository: Repository, options: dict[str, Any]
):
    registry.push(REMOTE, "nets/one.*", options=options, create=True)
    names = {"zz-lost": f"sha256:{'0' * 64}\n", "zz-damaged": "no digest\n"}
    for name, line in names.items():
        repository.files[f"refs/{name}/@versions/1.0.0"] = line.encode()
    evidence = [path for path in repository.files if path.startswith("evidence/")]
    repository.files[evidence[0][:-64] + "1" * 64] = f"sha256:{'1' * 64}\n".encode()
    notes = registry.push(REMOTE, "nets/two.*", options=options).notes
    assert len(notes) == 3 and all("The card leaves out" in note for note in notes)
    assert not any(name in text_of(repository) for name in names)
    assert "nets/one.head@1.0.0" in text_of(repository) and "nets/two.head@1.0.0" in text_of(repository)


def test_the_command_line_replaces_a_card(
    registry: ck.Registry,
    repository: Repository,
    options: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
):
    repository.files["README.md"] = b"theirs"
    words = ["--registry", str(registry.store.root), "push", REMOTE, "nets/one.head", "--create"]
    words += ["--option", f"endpoint={options['endpoint']}", "--option", "token=false"]
    for more, mine in (([], False), (["--replace-card"], True)):
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert ended.value.code == 0
        assert ("--replace-card" in capsys.readouterr().out) is not mine
        assert (repository.files["README.md"] != b"theirs") is mine


HOSTILE = [
    "</td></table><script>alert(1)</script>",
    "a\n---\nlicense: mit\n---\n# New title",
    "[click](javascript:alert(1)) ![x](http://evil.example/x.png)",
    "a | b | c\r\n| d |",
    '"\ntags:\n- evil\n"',
    "```\n# out of the block\n```",
    MARK + "<!-- ",
    "https://evil.example www.evil.example user@evil.example",
    "\u202egnp.exe \u200b \x1b[31m \ud7ff \U0001f600",
    "x" * 100_000,
]


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_of_a_manifest_bring_nothing_into_a_card(registry: ck.Registry, text: str):
    from huggingface_hub import ModelCard

    reference = registry.store.resolve("nets/one.head")
    manifest = registry.store.manifest(reference)
    plain = ModelCard(card(contents_of(ListedComponent(reference, manifest)), SITE))
    about = About(title=text, description=text, license=text, source=text, tags={"a": text, text: "b"})
    made = card(contents_of(ListedComponent(reference, attrs.evolve(manifest, about=about))), SITE)
    read = ModelCard(made)
    assert len(made.encode()) < 20_000 and made.count(MARK) == 1
    assert read.data.library_name == "compatkit" and set(read.data.to_dict()) <= {
        *plain.data.to_dict(),
        "license_name",
    }
    assert read.data.license in ("other", None) and "evil" not in (read.data.tags or [])
    lines, before = read.text.splitlines(), plain.text.splitlines()
    assert [line for line in lines if line.startswith("## ")] == [
        line for line in before if line.startswith("## ")
    ]
    assert sum(line.startswith("# ") for line in lines) == 1
    assert sum(line.startswith("```") for line in lines) == 2
    outside = "\n".join(lines).replace(MARK, "")
    for piece in (
        "<script",
        " [click](",
        "http://evil",
        "https://evil",
        "www.evil",
        "\x1b",
        "\u202e",
        "\u200b",
    ):
        assert piece not in outside


SITE = Site("hf://models/user/net")


def contents_of(*components: ListedComponent) -> Contents:
    return Contents(components, ())


def test_a_source_on_the_hub_is_the_base_model(registry: ck.Registry):
    from huggingface_hub import ModelCard

    reference = registry.store.resolve("nets/one.head")
    manifest = registry.store.manifest(reference)
    for source, expected in {
        "hf-hub:timm/resnet18.a1_in1k": ["timm/resnet18.a1_in1k"],
        "https://huggingface.co/timm/resnet18.a1_in1k": ["timm/resnet18.a1_in1k"],
        "https://example.com/timm/resnet18": None,
        "hf-hub:a/b\nlicense: mit": None,
    }.items():
        changed = attrs.evolve(manifest, about=About(source=source))
        assert (
            ModelCard(card(contents_of(ListedComponent(reference, changed)), SITE)).data.base_model
            == expected
        )
