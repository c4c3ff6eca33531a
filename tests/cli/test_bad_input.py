"""Bad input of every other kind: one clear error, the right exit code, and nothing half written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest

import compatkit as ck
from compatkit.errors import IncompatibleError
from compatkit.registry.index.lookup import Index
from compatkit.registry.store import Store

REFERENCES = [
    ("digits/lft.head", 2, "not-found", "perhaps digits/left.head"),
    ("digits/left.head@9.9.9", 2, "not-found", "its versions are 1.0.0"),
    ("digits/left.head@^2", 2, "not-found", "its versions are 1.0.0"),
    ("digits/left.head:prod", 2, "not-found", "no alias 'prod'"),
    ("digits/left.head@sha256:" + "0" * 64, 2, "not-found", "its versions are 1.0.0"),
    ("digits/left.head@1.0", 2, "invalid-name", "MAJOR.MINOR.PATCH"),
    ("digits/left.head@", 2, "invalid-name", "MAJOR.MINOR.PATCH"),
    ("../../etc/passwd", 2, "invalid-name", "at most three"),
    ("../passwd", 2, "invalid-name", "is not valid"),
    ("digits/LEFT.head", 2, "invalid-name", "perhaps 'left.head'"),
    ("a/b/c/d", 2, "invalid-name", "at most three"),
    ("digits/left.head\x1b[2J", 2, "invalid-name", "is not valid"),
    ("digits\\left.head", 2, "invalid-name", "is not valid"),
    ("con", 2, "invalid-name", "Windows reserves"),
    ("", 2, "invalid-name", "is not valid"),
]


@pytest.mark.parametrize(
    ("reference", "code", "name", "expected"), REFERENCES, ids=[repr(row[0])[:30] for row in REFERENCES]
)
@pytest.mark.parametrize("command", ["show", "check", "recombine"])
def test_a_reference_that_points_at_nothing(
    run: Any, parts: Path, untouched: Any, command: str, reference: str, code: int, name: str, expected: str
) -> None:
    words = [command, reference] if command == "show" else [command, "digits/left.extractor", reference]
    with untouched(parts.parent):
        result, machine = run(*words), run(*words, "--json")
    assert result.code == machine.code == code and result.out == ""
    assert result.err.startswith(f"error [{name}] ") and expected in result.err and "\x1b" not in result.err
    error = machine.json["error"]
    assert error["code"] == name and expected in error["message"] and error["report"] is None


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("policy", "set", "a/b", "--mode", "bogus"), "'bogus' is not one of 'none', 'backward'"),
        (("check", "a", "b", "--require", "bogus"), "'bogus' is not one of 'direct'"),
        (("check", "a"), "Missing argument 'HEAD'"),
        (("search", "--where", "accuracy>=1.5"), "No such option '--where'"),
        (("search", "--kinds", "head"), "Did you mean '--kind'? See `"),
        (("search", "--la", "head"), "?) See `"),
    ],
)
def test_wrong_words_are_refused_like_everything_else(
    run: Any, words: tuple[str, ...], expected: str
) -> None:
    result, machine = run(*words), run(*words, "--json")
    assert result.code == machine.code == 2 and result.out == ""
    assert result.err.startswith("error [usage] ") and expected in result.err
    name = " ".join(words[: 2 if words[0] == "policy" else 1])
    assert f"See `compatkit {name} --help`." in result.err
    assert machine.json["error"]["code"] == "usage"


def test_no_words_show_the_help(run: Any) -> None:
    result = run()
    assert result.code == 2 and result.err == "" and result.out.startswith("Usage: compatkit")


@pytest.mark.usefixtures("parts")
def test_patterns_that_match_nothing_or_the_wrong_kind(run: Any) -> None:
    result = run("matrix", "digits/*.extractors", "digits/*.head")
    assert result.code == 2 and "matches no component" in result.err
    result = run("matrix", "digits/*.extractor", "digits/shared.*")
    assert result.code == 2 and "none of kind head: they are of kind auxiliary_head" in result.err
    result = run("matrix", "digits/*.extractor@^1.x", "digits/*.head")
    assert result.code == 2


@pytest.mark.case("A9")
def test_a_flipped_bit_in_the_weights(run: Any, parts: Path, damage: Any) -> None:
    store = Store.open(parts)
    path = damage(store.manifest("digits/right.head").payload.file.blob)
    result = run("recombine", "digits/left.extractor", "digits/right.head")
    assert result.code == 3 and result.out == ""
    for word in (
        str(path),
        "does not match its digest",
        "quarantine",
        "Publish the same component again",
    ):
        assert word in result.err
    again = run("recombine", "digits/left.extractor", "digits/right.head", "--json")
    assert again.code == 3 and "is missing" in again.json["error"]["message"]
    assert run("recombine", "digits/left.extractor", "digits/left.head").code in (0, 1)  # the others are well


@pytest.mark.case("A10")
def test_a_pickle_under_the_right_digest_is_never_opened(run: Any, parts: Path, untouched: Any) -> None:
    """A registry that somebody else wrote: digests agree, the payload is no tensor file."""
    store = Store.open(parts)
    manifest = store.manifest("digits/right.head")
    evil = b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n(S'touch /tmp/x'\ntR."
    edge = store.put_blob(evil)
    with pytest.raises(ck.errors.IntegrityError):
        store.publish("evil", attrs.evolve(manifest, payload=attrs.evolve(manifest.payload, file=edge)))
    body = attrs.evolve(manifest, payload=attrs.evolve(manifest.payload, file=edge))
    from compatkit.contracts.manifest import to_bytes

    (parts / "refs" / "evil" / "@versions").mkdir(parents=True)
    (parts / "refs" / "evil" / "@versions" / "1.0.0").write_text(store.put_blob(to_bytes(body)).blob + "\n")
    with untouched(parts.parent):
        result = run("recombine", "digits/left.extractor", "evil")
    assert result.code == 3 and "a pickle" in result.err


@pytest.mark.case("E1")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda text: text[:-20], "manifest"),
        (lambda text: text.replace('"kind":"head"', '"kind":"hat"'), "kind"),
        (lambda text: text.replace('"schema":1', '"schema":99'), "schema"),
        (lambda text: text.replace('"parents":', '"parent":'), "parent"),
        (lambda text: "[]", "manifest"),
    ],
    ids=["cut", "kind", "schema", "field", "list"],
)
def test_a_manifest_that_is_none(run: Any, parts: Path, untouched: Any, change: Any, expected: str) -> None:
    store = Store.open(parts)
    text = store.read_blob(str(store.resolve("digits/left.head").digest)).decode()
    edge = store.put_blob(change(text).encode())
    path = parts / "refs" / "digits" / "left.head" / "@versions" / "1.0.0"
    path.chmod(0o644)
    path.write_text(edge.blob + "\n")
    with untouched(parts.parent):
        result = run("show", "digits/left.head")
    assert (
        result.code == 3 and result.out == "" and expected in result.err and "digits/left.head" in result.err
    )


def test_a_folder_that_is_no_registry(run: Any, tmp_path: Path, recipe: Any, untouched: Any) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("Dear")
    file = recipe()
    with untouched(tmp_path):
        for words in (["ls"], ["show", "a"], ["matrix", "a", "b"]):
            result = run("--registry", tmp_path / "home", *words)
            assert (
                result.code == 2 and "has no compatkit.json" in result.err and "compatkit init" in result.err
            )
        for words in (["train", file], ["split", "resnet20_cifar", "--cut", "layer2", "--publish", "a"]):
            result = run("--registry", tmp_path / "home", *words)
            assert result.code == 2 and "holds other files" in result.err
        assert run("--registry", file, "ls").code in (2, 4)
        assert run("--registry", tmp_path / "nowhere", "ls").code == 2
        result = run("--registry", file, "train", file)
        assert result.code == 4 and "is not a folder" in result.err
        result = run("--registry", "", "ls")
        assert result.code == 2 and "--registry" in result.err


@pytest.mark.case("E4")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"layout": 9, "min_reader": 9}, "Upgrade compatkit"),
        ({"layout": "one"}, "expected the numbers"),
        ({"hash": "md5"}, "sha256"),
    ],
    ids=["too new", "no number", "other hash"],
)
def test_a_layout_that_cannot_be_used(
    run: Any, parts: Path, recipe: Any, untouched: Any, change: Any, expected: str
) -> None:
    marker = parts / "compatkit.json"
    marker.chmod(0o644)
    marker.write_text(json.dumps(json.loads(marker.read_text()) | change))
    file = recipe()
    with untouched(parts.parent):
        for words in (["ls"], ["train", file], ["init", parts]):
            result = run(*words)
            assert result.code == 3 and expected in result.err


@pytest.mark.case("E4")
def test_a_layout_that_may_only_be_read(run: Any, parts: Path, recipe: Any, untouched: Any) -> None:
    marker = parts / "compatkit.json"
    marker.chmod(0o644)
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"layout": 2, "min_writer": 2}))
    file = recipe()
    with untouched(parts.parent):
        assert run("ls").code == 0
        result = run("train", file)
        assert result.code == 3 and "can only read it" in result.err


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("data", "code", "expected"),
    [
        ("mnits", 2, "Did you mean 'mnist'"),
        ("cifar10", 2, "is in none of these folders"),
        ("nowhere/left.npz", 2, "no data set"),
        (".", 2, "folder|There is no data set"),
        ("parts/compatkit.json", 2, "is not an .npz file"),
    ],
)
def test_test_images_that_are_none(
    run: Any, parts: Path, untouched: Any, data: str, code: int, expected: str
) -> None:
    import re

    with untouched(parts.parent):
        result = run("recombine", "digits/left.extractor", "digits/right.head", "--data", data)
    assert result.code == code and re.search(expected, result.err), result.err
    assert "--data-root DIR" in result.err


@pytest.mark.case("G")
@pytest.mark.usefixtures("parts")
def test_a_device_that_is_not_there(run: Any) -> None:
    result = run("recombine", "digits/left.extractor", "digits/right.head", "--device", "gpu9")
    assert result.code == 2 and "'gpu9' cannot be used here" in result.err and "Traceback" not in result.err


@pytest.mark.case("B1")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["resnet19", "--cut", "layer3"], "resnet18"),
        (["resnet20_cifar", "--cut", "layer9"], "layer3"),
        (["resnet20_cifar", "--cut", "layer2", "--kwargs", "{"], "is not JSON"),
        (["resnet20_cifar", "--cut", "layer2", "--kwargs", "[1]"], "JSON object"),
        (["resnet20_cifar", "--cut", "layer2", "--kwargs", '{"depht": 3}'], "depht"),
        (["resnet20_cifar", "--cut", "layer2", "--pretrained"], "no pretrained weights"),
        (["resnet20_cifar", "--cut", "layer2", "--publish", "../up"], "is not valid"),
        (["resnet20_cifar", "--cut", "layer2", "--publish", ""], "is not valid"),
        (["resnet20_cifar", "--publish", "a"], "Missing option '--cut'"),
        (["../../etc", "--cut", "x"], "etc"),
    ],
)
def test_a_model_that_cannot_be_cut_like_this(
    run: Any, tmp_path: Path, untouched: Any, words: list[str], expected: str
) -> None:
    with untouched(tmp_path):
        result = run("--registry", tmp_path / "parts", "split", *words)
    assert result.code == 2 and result.out == "" and expected in result.err


@pytest.fixture(scope="session")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """resnet18 cut at layer1 (64 channels) and at layer2 (128)."""
    from compatkit.components.splitting import publish_split, split

    registry = ck.Registry.init(tmp_path_factory.mktemp("resnet") / "parts")
    for point in ("layer1", "layer2"):
        publish_split(registry.store, split("resnet18", point), f"resnet/{point}")
    return registry.store.root


@pytest.mark.case("F")
def test_64_channels_do_not_enter_a_head_of_128(run: Any, resnet: Path, untouched: Any) -> None:
    words = "--registry", resnet, "check", "resnet/layer1.extractor", "resnet/layer2.head"
    with untouched(resnet):
        reply, machine = run(*words), run(*words, "--json")
        refused = run("--registry", resnet, "recombine", *words[3:])
        result = run("--registry", resnet, "recombine", *words[3:], "--json")
    assert reply.code == machine.code == refused.code == result.code == 1
    for text in (reply.out, refused.err):
        for word in (
            "128 channels",
            "64 channels",
            "channels-differ (structural)",
            "needs-adapter",
            "--insert-adapters",
        ):
            assert word in text
    assert refused.err.startswith(
        "error [incompatible] resnet/layer2.head@1.0.0 does not fit resnet/layer1.extractor@1.0.0: "
    )
    assert "channels-differ (structural): expected 128 channels, got 64 channels" in refused.err
    outcome = next(finding for finding in machine.json["findings"] if finding["code"] == "channels-differ")
    assert (
        outcome["level"] == "structural"
        and outcome["severity"] == "adaptable"
        and "from 64 to 128" in outcome["remedy"]
    )
    assert (
        result.json["error"]["code"] == "incompatible"
        and result.json["error"]["report"]["wiring"] == "needs-adapter"
    )


def test_recombining_what_cannot_be_wired_raises_with_the_report(resnet: Path) -> None:
    registry = ck.Registry.open(resnet)
    with pytest.raises(IncompatibleError, match="128 channels") as caught:
        registry.recombine("resnet/layer1.extractor", "resnet/layer2.head")
    assert isinstance(caught.value.subject, ck.Report) and caught.value.subject.wiring == "needs-adapter"


def test_a_defect_is_not_told_as_a_mistake_of_the_user(run: Any, parts: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Index, "listing", lambda self, pattern: 1 / 0)
    result = run("ls")
    assert result.code == 70 and "Traceback" in result.err and "please report it" in result.err
    machine = run("ls", "--json")
    assert machine.code == 70 and machine.json["error"]["code"] == "defect"


def test_a_registry_that_disappears(run: Any, parts: Path) -> None:
    shutil.rmtree(parts / "blobs")
    result = run("show", "digits/left.head")
    assert result.code == 3 and "is missing" in result.err
