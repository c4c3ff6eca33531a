"""train: recipe in, published parts out; what is checked first; incremental training; what a failure leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, write_pack

from compatkit.adapters.blueprints import build_pair
from compatkit.adapters.cutting.planning import plan
from compatkit.registry.store import Store
from compatkit.registry.weights.tensorfile import serialize


def test_a_recipe_becomes_published_parts(run: Any, recipe: Any, tmp_path: Path) -> None:
    root = tmp_path / "made" / "on the way"
    result = run("--registry", root, "train", recipe())
    assert result.code == 0
    names = [
        "digits/left.extractor",
        "digits/right.extractor",
        "digits/shared.dcc",
        "digits/left.head",
        "digits/right.head",
    ]
    assert [line.split()[1] for line in result.out.splitlines() if line.startswith("published")] == [
        f"{n}@1.0.0" for n in names
    ]
    assert Store.open(root).names() == sorted(names)
    assert "left: resnet8_cifar cut at layer2, 48 training images of left in 3 classes" in result.err
    assert f"made the registry {root}" in result.err
    assert result.out.splitlines()[1].split()[:2] == ["task", "network"]


def test_the_next_command_can_be_pasted(run: Any, recipe: Any, tmp_path: Path) -> None:
    import shlex

    result = run("train", recipe(), "--registry", tmp_path / "a b", "--data-root", tmp_path)
    line = next(line for line in result.out.splitlines() if line.startswith("next: "))
    words = shlex.split(line.removeprefix("next: "))
    assert words[0] == "compatkit"
    html = words.index("--html")
    words[html + 1] = str(tmp_path / "matrix.html")
    assert run(*words[1:]).code == 0 and (tmp_path / "matrix.html").exists()


def test_the_same_recipe_again_is_the_same_version_and_another_seed_a_new_one(
    run: Any, recipe: Any, tmp_path: Path
) -> None:
    root = tmp_path / "parts"
    first = run("train", recipe(), "--registry", root, "--json").json
    again = run("train", recipe(), "--registry", root, "--json").json
    assert first == again and set(first) == {"registry", "parts", "losses", "plan"}
    assert first["parts"]["left.head"] == "digits/left.head@1.0.0"
    assert set(first["losses"]["left"]) == {"task", "dcc/loss", "accuracy"}
    result = run("train", recipe(), "--registry", root, "--seed", 1, "--json")
    other = result.json
    assert other["parts"]["left.head"] == "digits/left.head@2.0.0" and other["plan"] != first["plan"]
    assert (
        "digits/right.head@1.0.0 are published already." in result.err and "next MAJOR number" in result.err
    )


def test_an_error_of_a_late_check_stands_before_what_is_said_of_versions(
    run: Any, recipe: Any, tmp_path: Path
) -> None:
    root = tmp_path / "parts"
    assert run("train", recipe(), "--registry", root).code == 0
    changed = recipe(("batch_size = 8", "batch_size = 64"))  # 48 images
    result = run("train", changed, "--registry", root)
    assert result.code == 2 and "error" in result.err and "there already" not in result.err


def test_nothing_is_said_of_versions_that_are_new_or_chosen(run: Any, recipe: Any, tmp_path: Path) -> None:
    root = tmp_path / "parts"
    for words in ((), ("--prefix", "other"), ("--seed", 1, "--major"), ("--seed", 2, "--version", "7.0.0")):
        result = run("train", recipe(), "--registry", root, *words)
        assert result.code == 0 and "there already" not in result.err


def test_a_size_of_one_number_and_augmentations_in_a_text(run: Any, recipe: Any, tmp_path: Path) -> None:
    size = "size = [16, 16]"
    for name, changes in (
        ("long", [(size, f'{size}\naugment = ["crop", "flip"]')]),
        ("short", [(size, 'size = 16\naugment = "crop, flip"')]),
    ):
        assert run("train", recipe(*changes), "--registry", tmp_path / name).code == 0
    digests = [Store.open(tmp_path / name).resolve("digits/left.head").digest for name in ("long", "short")]
    assert digests[0] == digests[1]


def test_a_line_now_and_then_where_there_is_no_terminal(run: Any, recipe: Any, tmp_path: Path) -> None:
    result = run("train", recipe(), "--registry", tmp_path / "parts", "--json")
    assert "left + right: step 2 of 2; left: task " in result.err and result.json["plan"]


def test_quiet_shows_no_progress(run: Any, recipe: Any, tmp_path: Path) -> None:
    for place, words in {"a": ("train", "--quiet"), "b": ("--quiet", "train")}.items():
        result = run(*words, recipe(), "--registry", tmp_path / place)
        assert result.code == 0 and "step 2 of 2" not in result.err
        assert "published digits/left.head@1.0.0" in result.out


def test_options_win_over_the_recipe(run: Any, recipe: Any, tmp_path: Path) -> None:
    root = tmp_path / "parts"
    document = run("train", recipe(), "--registry", root, "--steps", 1, "--prefix", "mine/own", "--json").json
    assert document["parts"]["left.head"] == "mine/own/left.head@1.0.0"
    assert Store.open(root).manifest("mine/own/left.head").training["steps"] == 1


FROZEN = """
prefix = "later"
regularizers = ["identical_init", "dcc"]
[frozen]
heads = "digits/shared.*"
statistics = "batch"
"""


def test_a_new_part_is_trained_against_released_frozen_heads(run: Any, recipe: Any, parts: Path) -> None:
    file = recipe(
        ('prefix = "digits"\nregularizers = ["identical_init", "dcc"]\n', FROZEN),
        ('"right"', '"third"'),
        ('"left"', '"fourth"'),
    )
    before = Store.open(parts).load_state(Store.open(parts).manifest("digits/shared.dcc"))
    result = run("train", file)
    assert result.code == 0 and "against the frozen heads digits/shared.*" in result.err
    store = Store.open(parts)
    assert "later/shared.dcc" not in store.names()  # it was released already
    manifest = store.manifest("later/third.extractor")
    released = {(a.kind, a.digest) for a in store.manifest("digits/left.extractor").contract.protocol.anchors}
    shared = released & {(a.kind, a.digest) for a in manifest.contract.protocol.anchors}
    assert {kind for kind, _ in shared} == {"initial_weights", "auxiliary_head"}
    assert len(manifest.training["frozen"]) == 1
    after = store.load_state(store.manifest("digits/shared.dcc"))
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert run("check", "later/third.extractor", "digits/left.head", "--require", "shared-head").code == 0


def test_frozen_heads_may_be_a_list_of_patterns(recipe: Any) -> None:
    from swept import read_recipe as read

    table = FROZEN.replace('"digits/shared.*"', '["digits/shared.dcc", "other/shared.*"]')
    plan = read(recipe(('prefix = "digits"\nregularizers = ["identical_init", "dcc"]\n', table)))
    assert plan.frozen.heads == ("digits/shared.dcc", "other/shared.*") and plan.frozen.statistics == "batch"


def test_a_frozen_pattern_that_matches_nothing_or_no_auxiliary_head(
    run: Any, recipe: Any, parts: Path, untouched: Any
) -> None:
    old = 'prefix = "digits"\nregularizers = ["identical_init", "dcc"]\n'
    with untouched(parts):
        result = run("train", recipe((old, FROZEN.replace("shared.*", "sharde.*"))))
        assert result.code == 2 and "matches no component" in result.err
        result = run("train", recipe((old, FROZEN.replace("shared.*", "left.head"))))
        assert result.code == 2 and "expected auxiliary_head" in result.err


def test_the_data_sets_of_plugins_are_found_and_only_the_one_asked_for_is_imported(
    run: Any, recipe: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    from compatkit.plugins import discovery

    class Offer:
        def make(self, inputs: dict[str, Any]) -> Any:
            assert inputs == {"root": str(tmp_path), "download": False}
            return data_set("striped")

    names, others = discovery.names, discovery.find

    def find(kind: str, name: str) -> Any:
        if kind != "data_sets":
            return others(kind, name)
        assert name == "striped"
        return Offer()

    monkeypatch.setattr(
        discovery, "names", lambda kind: ["striped", "broken"] if kind == "data_sets" else names(kind)
    )
    monkeypatch.setattr(discovery, "find", find)
    result = run(
        "train",
        recipe(('"left.npz"', '"striped"')),
        "--registry",
        tmp_path / "parts",
        "--data-root",
        tmp_path,
    )
    assert result.code == 0 and "training images of striped" in result.err
    unknown = run("train", recipe(('"left.npz"', '"spotted"')), "--registry", tmp_path / "parts")
    assert unknown.code == 2 and "broken" in unknown.err and "striped" in unknown.err


def test_a_recipe_may_start_from_weights_beside_it(run: Any, recipe: Any, tmp_path: Path) -> None:
    planned = plan("resnet8_cifar", "layer2", kwargs={"in_chans": 1, "num_classes": 3}, size=(16, 16))
    network, _, _ = build_pair(planned.extractor, planned.head, seed=9)
    (tmp_path / "recipes" / "start.safetensors").write_bytes(serialize(network.state_dict()))
    file = recipe(('name = "left"', 'name = "left"\nweights = "start.safetensors"'))
    result = run("train", file, "--registry", tmp_path / "parts", "--json")
    assert (
        result.code == 2 and "identical_init" in result.json["error"]["message"]
    )  # right starts from other weights
    file = recipe(
        ('name = "left"', 'name = "left"\nweights = "start.safetensors"'),
        ('name = "right"', 'name = "right"\nweights = "start.safetensors"'),
    )
    assert run("train", file, "--registry", tmp_path / "parts").code == 0


def test_a_checkpoint_is_kept_and_a_finished_one_publishes_at_once(
    run: Any, recipe: Any, tmp_path: Path
) -> None:
    words = "train", recipe(), "--checkpoint", tmp_path / "state.safetensors", "--json"
    first = run(*words, "--registry", tmp_path / "one").json
    assert (tmp_path / "state.safetensors").exists()
    second = run(*words, "--registry", tmp_path / "two").json
    assert second["parts"] == first["parts"] and second["losses"] == first["losses"]
    versions = [Store.open(tmp_path / name).resolve("digits/left.head").digest for name in ("one", "two")]
    assert versions[0] == versions[1]


def test_a_checkpoint_of_another_plan(run: Any, recipe: Any, tmp_path: Path, untouched: Any) -> None:
    state = tmp_path / "state.safetensors"
    assert run("train", recipe(), "--registry", tmp_path / "parts", "--checkpoint", state).code == 0
    with untouched(tmp_path / "parts"):
        content = state.read_bytes()
        result = run("train", recipe(), "--registry", tmp_path / "parts", "--checkpoint", state, "--seed", 5)
        assert result.code == 1 and "belongs to another plan" in result.err and state.read_bytes() == content


@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint", b"\x80\x04\x95pickle" * 10], ids=["empty", "text", "pickle"]
)
def test_a_checkpoint_that_is_none(run: Any, recipe: Any, tmp_path: Path, content: bytes) -> None:
    state = tmp_path / "state"
    state.write_bytes(content)
    result = run("train", recipe(), "--registry", tmp_path / "parts", "--checkpoint", state)
    assert (
        result.code == 3
        and f"[format] The checkpoint {state}: " in result.err
        and state.read_bytes() == content
    )
    assert not (tmp_path / "parts").exists()


def test_a_checkpoint_that_could_not_be_written(run: Any, recipe: Any, tmp_path: Path) -> None:
    words = "train", recipe(), "--registry", tmp_path / "parts", "--checkpoint"
    result = run(*words, tmp_path / "none" / "state")
    assert result.code == 4 and "does not exist; create it first" in result.err
    result = run(*words, tmp_path)
    assert result.code == 2 and "is a folder" in result.err
    assert not (tmp_path / "parts").exists()


def test_the_global_random_state_is_left_as_it_was(run: Any, recipe: Any, tmp_path: Path) -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert run("train", recipe(), "--registry", tmp_path / "parts").code == 0
    assert torch.equal(torch.rand(2), expected)


RELEASED = """
prefix = "later"
regularizers = [{ name = "backward_compatibility", forward = 0.5 }, "feature_distillation"]
[frozen]
head = "digits/left.head"
extractor = "digits/left.extractor@^1"
"""


def test_a_recipe_names_released_parts_to_stay_compatible_with(run: Any, recipe: Any, parts: Path) -> None:
    begun = 'prefix = "digits"\nregularizers = ["identical_init", "dcc"]\n'
    file = recipe((begun, RELEASED), ('"right"', '"third"'), ('"left"', '"fourth"'))
    result = run("train", file)
    assert result.code == 0
    assert "against the frozen head digits/left.head, extractor digits/left.extractor@^1" in result.err
    store = Store.open(parts)
    head, extractor = (store.manifest(f"digits/left.{kind}") for kind in ("head", "extractor"))
    wanted = [head.payload.tensors, extractor.payload.tensors]
    assert store.manifest("later/third.extractor").training["frozen"] == wanted
    assert run("check", "later/third.extractor", "digits/left.head", "--require", "shared-head").code == 0
    empty = recipe((begun, RELEASED.split("head =")[0]))
    result = run("train", empty)
    assert result.code == 2 and "[frozen] needs heads" in result.err
    gone = recipe((begun, RELEASED.replace("digits/left.head", "digits/gone.head")))
    result = run("train", gone)
    assert result.code != 0 and "digits/gone.head" in result.err


def test_a_run_goes_on_with_another_augmentation_on_request(run: Any, recipe: Any, tmp_path: Path) -> None:
    root, folder = tmp_path / "parts", tmp_path / "run"
    assert run("train", recipe(), "--registry", root, "--out", folder, "--dry-run").code == 0
    changed = recipe(('name = "left"', 'name = "left"\naugment = "flip"'))
    refused = run("train", changed, "--registry", root, "--new-augment")
    assert refused.code == 2 and "--out" in refused.err
    words = "train", changed, "--registry", root, "--out", folder, "--json"
    assert run(*words).json["error"]["code"] == "training"
    parts = run(*words, "--new-augment").json["parts"]
    store = Store.open(root)
    training = store.manifest(store.resolve(parts["left.head"])).training
    change = {"task": "left", "after_step": 2, "before": [], "augment": ["flip"]}
    assert training["augment_changes"] == [change]
    assert "left after step 2" in run("show", parts["left.head"], "--registry", root).out


def test_classes_that_only_one_task_has_are_told(run: Any, recipe: Any, tmp_path: Path) -> None:
    path = recipe()
    whole = run("--registry", tmp_path / "parts", "train", path)
    assert whole.code == 0 and "share" not in whole.err, "equal classes"
    write_pack(path.parent, data_set("right", classes=("0", "1", "two and a half")))
    part = run("--registry", tmp_path / "parts", "train", path, "--seed", 1)
    assert part.code == 0
    (note,) = [line for line in part.err.splitlines() if "share" in line]
    assert "left and right share 2 classes: only left has 2; only right has two and a half" in note
