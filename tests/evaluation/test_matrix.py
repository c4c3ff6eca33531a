"""The matrix: figures against a slow float64 copy and cases by hand; one pass an extractor; nothing changes."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from devices import on, other_devices
from evaluation.networks import Classes, Features, reference
from pretended import pretended
from sample_components import FEATURES, GRAY, extractor, head, initial, labels, loaded, shared
from torch import Tensor, nn

from compatkit.contracts.contract import Label
from compatkit.contracts.evidence import Cell, figure, grade, paired_interval_of_counts, recovered
from compatkit.data.dataset import Split
from compatkit.errors import DataError, EnvironmentFailure, UsageError
from compatkit.evaluation.batchnorm import batches
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, Progress, key_of
from compatkit.evaluation.matrix import measure
from compatkit.evaluation.prospect import BROKEN

BATCH = 16


def measured(
    lefts: list[Component],
    rights: list[Component],
    data: dict[str, Split],
    progress: Progress | None = None,
    **conditions: Any,
) -> list[Cell]:
    return measure(lefts, rights, data, Conditions(**conditions), progress=progress)


def noise(
    classes: tuple[str, ...] = ("0", "1", "2"), count: int = 60, seed: int = 3, name: str = "a/test"
) -> Split:
    """Return noise around a brightness of each image's own, so that answers differ from image to image."""
    draw = np.random.default_rng(seed)
    brightness = draw.integers(0, 200, (count, 1, 1, 1))
    images = (brightness + draw.integers(0, 56, (count, 8, 8, 1))).astype(np.uint8)
    return Split(images, draw.integers(0, len(classes), count), classes, name)


def parts(*classes: tuple[Label, ...]) -> tuple[list[Component], list[Component]]:
    """Return one network a tuple of classes, cut in two."""
    lefts, rights = [], []
    for number, names in enumerate(classes):
        name = "abcdef"[number]
        made = extractor(norm="batch", anchors=(shared("dcc"),) if number < 2 else ())
        lefts.append(loaded(f"{name}.extractor", made, Features(number).eval()))
        made = head(norm="batch", classes=names, anchors=(shared("dcc"),) if number < 2 else ())
        rights.append(loaded(f"{name}.head", made, Classes(10 + number, len(names)).eval(), lefts[-1]))
    return lefts, rights


def by_pair(cells: list[Cell]) -> dict[tuple[str, str], Cell]:
    return {(cell.extractor[0], cell.head[0]): cell for cell in cells}


def slow_answers(left: Component, right: Component, split: Split, policy: str) -> np.ndarray:
    """Return logits of every image, batch by batch, from the float64 copies."""
    x = (split.images.transpose(0, 3, 1, 2) / 255 - GRAY.mean[0]) / GRAY.std[0]
    result = np.zeros((len(split), len(right.manifest.contract.data.labels or ())))
    for positions in batches(len(split), BATCH, 0):
        rows = positions.numpy()
        features = reference(left.module, x[rows], policy == "batch")
        result[rows] = reference(right.module, features, policy == "batch")
    return result


def slow_right(logits: np.ndarray, split: Split, right: Component, common: list[str]) -> list[bool]:
    """Return, image by image, whether the arg max over common outputs names the image's class."""
    names = [entry.name for entry in right.manifest.contract.data.labels or ()]
    answers: list[bool] = []
    for label, row in zip(split.labels, logits, strict=True):
        if split.classes[label] not in common:
            continue
        best = max(common, key=lambda name: row[names.index(name)])
        answers.append(best == split.classes[label])
    return answers


@pytest.mark.parametrize("policy", ["batch", "running"])
def test_every_figure_agrees_with_a_slow_copy_in_float64(policy: str) -> None:
    lefts, rights = parts(labels("0", "1", "2"), labels("2", "7", "0"), labels("1", "0"))
    data = {part.reference: noise(seed=number) for number, part in enumerate(lefts)}
    cells = by_pair(measured(lefts, rights, data, bn_policy=policy, batch_size=BATCH))
    assert len(cells) == 9
    varied: set[bool] = set()
    for left, right in itertools.product(lefts, rights):
        split, cell = data[left.reference], cells[left.reference[0], right.reference[0]]
        logits = slow_answers(left, right, split, policy)
        varied.add(len(set(logits.argmax(axis=1))) > 1)
        names = {entry.name for entry in right.manifest.contract.data.labels or ()}
        common = [name for name in split.classes if name in names]
        answers = slow_right(logits, split, right, common)
        assert cell.common == tuple(common)
        assert cell.restricted == figure(sum(answers), len(answers))
        shares = Counter(split.classes[label] for label in split.labels if split.classes[label] in common)
        assert cell.chance == max(shares.values()) / sum(shares.values())
        if left.reference[0] == "a":
            # The bound: a's own head, on the images and among the classes of this cell.
            own = slow_right(slow_answers(left, rights[0], split, policy), split, rights[0], common)
            assert cell.bound == figure(sum(own), len(own))
            assert cell.recovered == recovered(sum(answers) / len(answers), cell.chance, sum(own) / len(own))
            if right is not rights[0]:
                pairs = list(zip(answers, own, strict=True))
                gained, lost = pairs.count((True, False)), pairs.count((False, True))
                assert cell.difference == paired_interval_of_counts(gained, lost, len(pairs))
    assert True in varied  # the copies do not always give the same class


def test_one_pass_an_extractor_and_two_for_new_statistics() -> None:
    lefts, rights = parts(*[labels("0", "1", "2")] * 3)
    data = {part.reference: noise() for part in lefts}
    calls: Counter[str] = Counter()
    for part in (*lefts, *rights):
        part.module.register_forward_hook(lambda *_, name=part.reference: calls.update([name]))
    measured(lefts, rights, data, batch_size=BATCH)
    per_pass = len(batches(60, BATCH, 0))
    assert {calls[part.reference] for part in lefts} == {per_pass}
    assert {calls[part.reference] for part in rights} == {3 * per_pass}
    calls.clear()
    measured(lefts, rights, data, bn_policy="reestimate", batch_size=BATCH)
    assert {calls[part.reference] for part in lefts} == {2 * per_pass}


@pytest.mark.parametrize("policy", ["batch", "running", "reestimate", "mix:40"])
@pytest.mark.parametrize("training", [True, False])
def test_modules_are_bitwise_and_in_their_flags_as_before(policy: str, training: bool) -> None:
    lefts, rights = parts(*[labels("0", "1", "2")] * 2)
    modules = [part.module.train(training) for part in (*lefts, *rights)]

    def state() -> list[Any]:
        tensors = [value.numpy().tobytes() for module in modules for value in module.state_dict().values()]
        return [tensors, [entry.training for module in modules for entry in module.modules()]]

    before, generator = state(), torch.random.get_rng_state()
    data = {part.reference: noise() for part in lefts}
    first = measured(lefts, rights, data, bn_policy=policy, batch_size=BATCH)
    assert state() == before
    assert torch.equal(torch.random.get_rng_state(), generator)
    assert measured(lefts, rights, data, bn_policy=policy, batch_size=BATCH) == first
    rights[1].module.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyError("broken")))
    with pytest.raises(KeyError):
        measured(lefts, rights, data, bn_policy=policy, batch_size=BATCH)
    assert state() == before


def figures(cells: list[Cell]) -> list[Any]:
    return [(cell.restricted, cell.unrestricted, cell.bound) for cell in cells]


def test_stored_statistics_do_not_depend_on_batches_and_batch_statistics_do() -> None:
    lefts, rights = parts(*[labels("0", "1", "2")] * 2)
    data = {part.reference: noise(count=300) for part in lefts}

    def run(policy: str, batch_size: int, seed: int) -> list[Any]:
        return figures(measured(lefts, rights, data, bn_policy=policy, batch_size=batch_size, seed=seed))

    assert run("running", 7, 0) == run("running", 300, 1)
    assert run("batch", 300, 0) == run("batch", 300, 1)
    assert run("batch", 4, 0) != run("batch", 4, 1)
    # Statistics of one batch of all images and new statistics from it differ by n / (n - 1) in the variance.
    close = zip(run("batch", 300, 0), run("reestimate", 300, 0), strict=True)
    assert all(abs(value[0].accuracy - other[0].accuracy) < 0.02 for value, other in close)


def test_new_statistics_are_those_of_the_recombined_network() -> None:
    lefts, rights = parts(*[labels("0", "1", "2")] * 2)
    split = noise()
    (cell,) = measured(
        lefts[:1], rights[1:], {lefts[0].reference: split}, bn_policy="reestimate", batch_size=BATCH
    )
    whole = nn.Sequential(Features(0), Classes(11)).eval()
    norms = [module for module in whole.modules() if isinstance(module, nn.BatchNorm2d)]
    x = ((torch.from_numpy(split.images).permute(0, 3, 1, 2) / 255) - GRAY.mean[0]) / GRAY.std[0]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for positions in batches(60, BATCH, 0):
            whole(x[positions])
        right = whole.eval()(x).argmax(1).numpy() == split.labels
    assert cell.restricted == figure(int(right.sum()), 60)


class Passed(nn.Module):
    """Gives its input on."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Table(nn.Module):
    """Looks the logits up by the image's first pixel."""

    def __init__(self, *rows: tuple[float, ...]) -> None:
        super().__init__()
        self.rows = torch.tensor(rows)

    def forward(self, x: Tensor) -> Tensor:
        return self.rows[(x[:, 0, 0, 0] * 255).round().long()]


RAW = attrs.evolve(GRAY, mean=(0.0,), std=(1.0,))


def numbered(labels: list[int], classes: tuple[str, ...]) -> Split:
    """Return images whose pixels hold their number."""
    images = np.broadcast_to(
        np.arange(len(labels), dtype=np.uint8)[:, None, None, None], (len(labels), 8, 8, 1)
    )
    return Split(images.copy(), np.array(labels), classes, "numbered/test")


def table_parts() -> tuple[Component, Component, Component, Split]:
    """Return an extractor, its own head, a head of another network, and five images: 2 cars, 2 cats, 1 ship."""
    left = loaded("e", extractor(data=RAW), Passed())
    own = Table((5, 0, 0), (5, 0, 0), (0, 5, 0), (5, 0, 9), (0, 0, 5))
    mine = loaded("own", head(data=RAW, classes=labels("car", "cat", "ship")), own, left)
    theirs = (Label("frog"), Label("cat"), Label("automobile", ("car",)))
    other = Table((9, 0, 1), (0, 2, 1), (0, 3, 1), (0, 4, 1), (0, 0, 0))
    other_head = loaded("other", head(data=RAW, classes=theirs), other)
    return left, mine, other_head, numbered([0, 0, 1, 1, 2], ("car", "cat", "ship"))


def test_a_cell_worked_by_hand_with_other_names_and_a_class_apart() -> None:
    left, mine, other, split = table_parts()
    own_cell, cell = measured([left], [mine, other], {left.reference: split}, bn_policy="running")
    # Common: car (automobile) and cat; 4 images, chance 1/2.
    # Restricted to the two: car right, cat wrong, cat right, cat right. Over all outputs the first is a frog.
    assert cell.common == ("car", "cat")
    assert (cell.restricted, cell.unrestricted) == (figure(3, 4), figure(2, 4))
    assert cell.chance == 0.5
    # Own head among car and cat: right, right, right, wrong (its ship does not count here).
    assert cell.bound == figure(3, 4)
    assert cell.recovered == 1.0
    assert cell.difference == paired_interval_of_counts(1, 1, 4)
    assert not cell.own
    # On the diagonal all three classes count, and image 3 is taken for a ship.
    assert own_cell.own
    assert (own_cell.restricted, own_cell.chance) == (figure(4, 5), 0.4)
    assert own_cell.bound == own_cell.restricted
    assert own_cell.difference == (0.0, 0.0)


@pytest.mark.parametrize(
    ("known", "unknown"),
    [(("car", "cat", "frog"), "ship"), (("frog", "car"), "cat, ship"), (("frog", "dog"), "car, cat, ship")],
)
def test_an_own_head_that_lacks_a_counted_class_gives_no_bound(known: tuple[str, ...], unknown: str) -> None:
    """It cannot answer for that class: counted as wrong, it would make every other head look perfect."""
    left, _, _, split = table_parts()
    own = Table(*((5,) + (0,) * (len(known) - 1),) * 5)
    mine = loaded("own", head(data=RAW, classes=labels(*known)), own, left)
    other = loaded("all", head(data=RAW, classes=labels("car", "cat", "ship")), Table(*((5, 0, 0),) * 5))
    cells = measured([left], [mine, other], {left.reference: split}, bn_policy="running")
    cell = cells[1]
    assert cell.restricted == figure(2, 5)
    assert (cell.bound, cell.recovered, cell.difference) == (None, None, None)
    assert cell.grade == grade(figure(2, 5), 0.4), "graded as without any own head"
    assert f"does not know {unknown} of the common classes" in cell.findings[-1]
    if "car" in known:  # the diagonal counts what its own head knows
        assert cells[0].bound == cells[0].restricted
        assert not any("No bound" in finding for finding in cells[0].findings)


def test_without_the_own_head_there_is_no_bound() -> None:
    left, _, other, split = table_parts()
    (cell,) = measured([left], [other], {left.reference: split}, bn_policy="running")
    assert cell.restricted == figure(3, 4)
    assert (cell.bound, cell.recovered, cell.difference) == (None, None, None)


def test_without_batch_normalization_a_policy_changes_nothing_and_the_cell_says_so() -> None:
    left, mine, other, split = table_parts()
    cells = [
        measured([left], [mine, other], {left.reference: split}, bn_policy=name)
        for name in ("batch", "running")
    ]
    assert figures(cells[0]) == figures(cells[1])
    assert cells[0][1].settings["normalised"] is False
    assert any("changes nothing" in finding for finding in cells[0][1].findings)


def test_many_images_are_graded() -> None:
    left, mine, _, _ = table_parts()
    answers = [(1.0, 0.0), (0.0, 1.0)] * 100
    chance_rows = [(1.0, 0.0)] * 200
    classes = labels("car", "cat")
    heads = [
        loaded("own", head(data=RAW, classes=classes), Table(*answers), left),
        loaded("same", head(data=RAW, classes=classes), Table(*answers)),
        loaded("one-sided", head(data=RAW, classes=classes), Table(*chance_rows)),
        loaded("good", head(data=RAW, classes=classes), Table(*answers[:160], *chance_rows[:40])),
    ]
    split = numbered([0, 1] * 100, ("car", "cat"))
    cells = measured([left], heads, {left.reference: split}, bn_policy="running")
    # 200 images in agreement do not exclude a loss of 1 point, so "same" is not yet perfect.
    assert [cell.grade for cell in cells] == ["perfect", "compatible", "undecided", "compatible"]
    assert [cell.recovered for cell in cells] == [1.0, 1.0, 0.0, pytest.approx(0.8)]
    assert mine.trained_with == left.digest


def test_pairs_that_cannot_be_measured_say_why_and_cost_no_pass() -> None:
    left, _, other, split = table_parts()
    wide = attrs.evolve(FEATURES, shape=("N", 8, "h", "w"))
    flat = attrs.evolve(FEATURES, shape=("N", 4), layout="NC")
    calls: list[int] = []
    left.module.register_forward_hook(lambda *_: calls.append(1))
    heads = [
        loaded("wide", head(wide, data=RAW, classes=labels("car")), Passed()),
        loaded("disjoint", head(data=RAW, classes=labels("0", "1")), Passed()),
        loaded("nameless", head(data=RAW), Passed()),
    ]
    cells = measured([left], heads, {left.reference: split})
    assert [cell.reason for cell in cells] == [
        "wiring needs-adapter: channels-differ",
        "no class in common with numbered/test",
        "no class in common with numbered/test",
    ]
    assert {cell.grade for cell in cells} == {"none"}
    assert all(cell.restricted is None and cell.findings for cell in cells)
    assert calls == []
    vector = loaded("v", extractor(flat, data=RAW), Passed())
    (refused,) = measured([vector], [other], {vector.reference: split})
    assert (refused.wiring, refused.reason) == ("refused", "wiring refused: rank-differs")
    empty = numbered([2, 2], ("car", "cat", "ship"))
    (cell,) = measured([left], [other], {left.reference: empty})
    assert cell.reason == "numbered/test holds no image of a common class"


def test_a_head_that_breaks_its_contract_spoils_only_its_own_cell() -> None:
    left, mine, other, split = table_parts()
    broken = loaded(
        "broken", head(data=RAW, classes=labels("car", "cat")), nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    )
    narrow = loaded("narrow", head(data=RAW, classes=labels("car", "cat")), Table(*[(1.0, 0.0, 0.0)] * 5))
    cells = measured([left], [mine, broken, narrow, other], {left.reference: split}, bn_policy="running")
    assert "broken@1.0.0 does not take features of shape (5, 1, 8, 8)" in cells[1].reason
    assert "its contract names 2 classes" in cells[2].reason
    assert (cells[1].grade, cells[2].grade) == ("none", "none")
    assert cells[3].restricted == figure(3, 4)


def test_a_head_that_works_in_place_does_not_spoil_the_next_one() -> None:
    left, mine, other, split = table_parts()

    class InPlace(Table):
        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            x.zero_()
            return result

    rough = loaded("rough", head(data=RAW, classes=labels("car", "cat")), InPlace(*[(1.0, 0.0)] * 5))
    alone = measured([left], [other], {left.reference: split}, bn_policy="running")
    beside = measured([left], [rough, mine, other], {left.reference: split}, bn_policy="running")
    assert beside[2].restricted == alone[0].restricted
    assert beside[1].restricted == figure(4, 5)


def test_outputs_that_are_not_finite_are_wrong_and_said() -> None:
    left, mine, _, split = table_parts()
    nan = float("nan")
    bad = loaded("bad", head(data=RAW, classes=labels("car", "cat", "ship")), Table(*[(nan, nan, nan)] * 5))
    cell = measured([left], [mine, bad], {left.reference: split}, bn_policy="running")[1]
    assert cell.restricted == figure(0, 5)
    assert any("5 images gave outputs that are not finite" in finding for finding in cell.findings)


def test_cells_carry_settings_and_the_checks_findings() -> None:
    lefts, rights = parts(*[labels("0", "1", "2")] * 2)
    split = noise()
    (cell,) = measured(lefts[:1], rights[1:], {lefts[0].reference: split}, batch_size=BATCH, seed=4)
    assert cell.settings == {
        "metric": "recombination_accuracy",
        "metric_version": "1",
        "policy": "batch",
        "batch_size": BATCH,
        "seed": 4,
        "precision": "float32",
        "device": "cpu",
        "data": "a/test",
        "data_digest": split.digest,
        "images": 60,
        "bound_head": "",
        "torch": torch.__version__,
        "own": False,
        "normalised": True,
    }
    assert cell.promise == "shared-head"
    assert any(finding.startswith("head-shared") for finding in cell.findings)


def test_progress_counts_batches_of_all_extractors() -> None:
    lefts, rights = parts(*[labels("0", "1", "2")] * 2)
    seen: list[tuple[int, int, str]] = []
    data = {part.reference: noise() for part in lefts}
    measured(lefts, rights, data, batch_size=BATCH, progress=lambda *args: seen.append(args))
    assert [item[0] for item in seen] == list(range(1, 9))
    assert {item[1] for item in seen} == {8}
    assert [item[2] for item in seen] == ["a.extractor@1.0.0"] * 4 + ["b.extractor@1.0.0"] * 4


@other_devices
@pytest.mark.parametrize("policy", ["batch", "running"])
def test_figures_of_another_device_are_those_of_a_cpu(policy: str, device: str) -> None:
    lefts, rights = parts(labels("0", "1", "2"), labels("2", "7", "0"))
    images = noise()
    rights[1].module.register_forward_hook(lambda module, given, logits: logits.log())  # some are not finite
    settings: dict[str, Any] = {"bn_policy": policy, "batch_size": BATCH}
    data = {part.reference: images for part in lefts}
    expected = measured(lefts, rights, data, **settings)
    with on(device) as there:
        cells = measured(lefts, rights, data, device=there, **settings)
    assert [attrs.evolve(cell, settings={}) for cell in cells] == [
        attrs.evolve(cell, settings={}) for cell in expected
    ]
    assert cells[1].settings[BROKEN] == expected[1].settings[BROKEN] > 0


def test_batches_do_not_wait_for_the_device() -> None:
    lefts, rights = parts(labels("0", "1", "2"), labels("2", "7", "0"))
    data = {part.reference: noise() for part in lefts}
    waits: list[int] = []
    for batch_size in (60, 10):
        with pretended() as pretending:
            measured(lefts, rights, data, device="meta", bn_policy="running", batch_size=batch_size)
        waits.append(len(pretending.waits))
    assert waits[0] == waits[1] > 0


def test_bfloat16_gives_figures_too() -> None:
    lefts, rights = parts(labels("0", "1", "2"))
    (cell,) = measured(lefts, rights, {lefts[0].reference: noise()}, precision="bfloat16")
    assert cell.restricted is not None
    assert cell.settings["precision"] == "bfloat16"


@pytest.mark.parametrize("policy", ["batch", "running", "reestimate", "mix:16"])
def test_channels_last_gives_the_same_figures_and_key_and_leaves_the_very_same_weights(policy: str) -> None:
    lefts, rights = parts(*[labels("0", "1", "2")] * 2)
    data, seen = {part.reference: noise() for part in lefts}, list[bool]()

    def look(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        seen.append(module.weight.is_contiguous(memory_format=torch.channels_last))  # pyright: ignore
        seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))

    weights = [
        weight for part in (*lefts, *rights) for weight in part.module.state_dict(keep_vars=True).values()
    ]
    before = [(weight.data_ptr(), weight.stride(), weight.clone()) for weight in weights]
    plain = measured(lefts, rights, data, bn_policy=policy, batch_size=BATCH)
    rights[1].module.weights.register_forward_pre_hook(look)  # pyright: ignore[reportCallIssue]
    last = measured(lefts, rights, data, bn_policy=policy, batch_size=BATCH, channels_last=True)
    assert seen and all(seen)
    for one, other in zip(plain, last, strict=True):
        assert (one.restricted, one.unrestricted, one.difference) == (
            other.restricted,
            other.unrestricted,
            other.difference,
        )
        assert key_of(one.settings) == key_of(other.settings)
        assert other.settings["channels_last"] is True and "channels_last" not in one.settings
    for weight, (place, stride, value) in zip(weights, before, strict=True):
        assert (weight.data_ptr(), weight.stride()) == (place, stride) and torch.equal(weight, value)


def test_weights_are_put_back_after_an_error_under_channels_last() -> None:
    lefts, rights = parts(labels("0", "1", "2"))
    place = rights[0].module.weights.weight.data_ptr()  # pyright: ignore

    def stop(done: int, total: int, name: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured(lefts, rights, {lefts[0].reference: noise()}, stop, channels_last=True)
    assert rights[0].module.weights.weight.data_ptr() == place  # pyright: ignore


def test_bad_input_is_refused() -> None:
    lefts, rights = parts(labels("0", "1", "2"))
    data = {lefts[0].reference: noise()}
    with pytest.raises(DataError, match="has no test images"):
        measured(lefts, rights, {})
    with pytest.raises(UsageError, match="Unknown bn_policy"):
        measured(lefts, rights, data, bn_policy="layernorm")
    with pytest.raises(UsageError, match="Did you mean 'float32'"):
        measured(lefts, rights, data, precision="float3")
    with pytest.raises(UsageError, match="batch_size"):
        measured(lefts, rights, data, batch_size=0)
    with pytest.raises(DataError, match="at least 2 images"):
        measured(lefts, rights, data, batch_size=1)
    with pytest.raises(UsageError, match="first component"):
        measured(rights, rights, {rights[0].reference: noise()})
    if not torch.cuda.is_available():
        with pytest.raises(EnvironmentFailure, match="cuda"):
            measured(lefts, rights, data, device="cuda")
    assert measured(lefts, rights, data, bn_policy="running", batch_size=1)[0].restricted is not None
    assert measured([], rights, {}) == []
    assert initial("x") != initial("y")
