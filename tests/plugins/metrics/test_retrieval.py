"""Retrieval by two networks: figures by hand, a slow reference, ties, widths, lone classes, refusals, real images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

import compatkit as ck
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Observation, Table, TableCell
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics.retrieval import Retrieval, ranks

LAYERS = {"pool": torch.nn.Identity()}
MEAN = "retrieval/average_precision"


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def retrieve(
    this: Tensor, other: Tensor, labels: list[int], cuts: tuple[int, ...] = (), **settings: Any
) -> dict[str, Table]:
    """Let the metric look at what one layer gave in two networks, cut into batches."""
    metric = Retrieval(**settings)
    state = metric.init()
    for at in torch.tensor_split(torch.arange(len(this)), cuts):
        state = metric.update(state, torch.tensor(labels)[at], {"pool": this[at]}, {"pool": other[at]})
    return {entry.name: entry for entry in metric.finalize(state, LAYERS)}


def cell(result: dict[str, Table], name: str, queries: str = "this", gallery: str = "other") -> TableCell:
    return result[name].at(layer="pool", queries=queries, gallery=gallery)


def test_it_streams() -> None:
    features = drawn(12, 4), drawn(12, 4, seed=1)
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0, 0])
    batches = [
        Observation(
            images=torch.zeros(len(at), 1),
            labels=labels[at],
            positions=at,
            logits=torch.zeros(len(at), 3),
            outputs={"fc": features[0][at]},
            other_outputs={"fc": features[1][at]},
        )
        for at in (torch.arange(5), torch.arange(5, 12))
    ]
    assert_metric(Retrieval, batches=batches)
    assert_metric(Retrieval, batches=batches, top=3, distance="euclidean")


def test_a_cross_test_by_hand() -> None:
    # Images at angles (degrees); old ones of the same images beside them. Classes 0 0 1 1.
    new = torch.tensor([0.0, 10.0, 80.0, 90.0])
    old = torch.tensor([0.0, 50.0, 70.0, 95.0])
    points = [torch.stack([torch.cos(item.deg2rad()), torch.sin(item.deg2rad())], 1) for item in (new, old)]
    result = retrieve(*points, [0, 0, 1, 1])
    # New queries, old gallery without the query's own image: of 0 the nearest is 50 (right); of 10 it is 0 (right);
    # of 80 it is 95 (15 off, 50 is 30 off: right); of 90 it is 70 (right).
    assert cell(result, "retrieval").value == 1.0
    # Old queries, old gallery: of 50 the nearest is 70, of the other class, then 95, then 0: the third; of 70 it is
    # 50, then 95: the second; 0 finds 50, 95 finds 70.
    assert cell(result, "retrieval", "other", "other").value == 0.5
    assert cell(result, MEAN, "other", "other").value == pytest.approx((1 + 1 / 3 + 1 / 2 + 1) / 4)
    two = retrieve(*points, [0, 0, 1, 1], top=2)
    assert cell(two, "retrieval@2", "other", "other").value == 0.75


@pytest.mark.parametrize(
    ("top", "value", "status"), [(2, 0.75, "ok"), (3, 1.0, "degenerate"), (4, None, "undefined")]
)
def test_as_many_neighbors_as_the_gallery_holds_say_nothing(
    top: int, value: float | None, status: str
) -> None:
    """Each query has a gallery of three, two of them of the other class: three nearest hold its own in any case."""
    points = torch.tensor([0.0, 50.0, 70.0, 95.0])
    points = torch.stack([torch.cos(points.deg2rad()), torch.sin(points.deg2rad())], 1)
    result = retrieve(points, points, [0, 0, 1, 1], top=top)
    first = cell(result, f"retrieval@{top}")
    assert (first.value, first.status) == (value, status)
    assert cell(result, MEAN).status == "ok", "average precision does not depend on it"


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_figures_are_those_of_a_slow_reference(distance: str) -> None:
    labels = np.random.default_rng(0).integers(0, 4, 40)
    features = {"this": drawn(40, 6), "other": drawn(40, 6, seed=1) * 3 + 0.5}
    result = retrieve(features["this"], features["other"], labels.tolist(), (7, 30), top=3, distance=distance)
    for left, queries in features.items():
        for right, gallery in features.items():
            first, mean = slow(queries.double().numpy(), gallery.double().numpy(), labels, 3, distance)
            assert cell(result, "retrieval@3", left, right).value == pytest.approx(first, abs=1e-12)
            assert cell(result, MEAN, left, right).value == pytest.approx(mean, abs=1e-9)


def slow(queries: Any, gallery: Any, labels: Any, top: int, distance: str) -> tuple[float, float]:
    """Rank every gallery for every query, one after the other; average precision is scikit-learn's."""
    hits, precisions = [], []
    for number, query in enumerate(queries):
        near = []
        for image in gallery:
            if distance == "cosine":
                near.append(query @ image / np.linalg.norm(query) / np.linalg.norm(image))
            else:
                near.append(-np.sqrt(((query - image) ** 2).sum()))
        rest = np.arange(len(gallery)) != number
        right, score = (labels == labels[number])[rest], np.array(near)[rest]
        hits.append(right[np.argsort(-score)[:top]].any())
        precisions.append(average_precision_score(right, score))
    return float(np.mean(hits)), float(np.mean(precisions))


def test_what_makes_all_images_the_same_retrieves_nothing() -> None:
    labels = [number % 3 for number in range(30)]
    for dead in (torch.zeros(30, 5), torch.ones(30, 5) * 0.1):
        for distance in ("cosine", "euclidean"):
            result = retrieve(dead, drawn(30, 5), labels, distance=distance)
            assert cell(result, "retrieval", "this", "this").value == 0.0


def test_turned_and_scaled_features_are_those_of_another_network_and_meet_only_their_own() -> None:
    centers, labels = drawn(10, 16), [number % 10 for number in range(200)]
    this = centers[labels] + 0.3 * drawn(200, 16, seed=2)
    turned = 5 * this @ torch.linalg.qr(drawn(16, 16, seed=3)).Q
    result = retrieve(this, turned, labels)
    own = cell(result, "retrieval", "this", "this").value
    assert own is not None and own > 0.95
    assert cell(result, "retrieval", "other", "other").value == own
    assert cell(result, "retrieval").value == pytest.approx(0.1, abs=0.15)


def test_a_class_of_one_image_is_no_query_and_stays_in_the_gallery() -> None:
    features = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.9, 0.1]])
    result = retrieve(features, features, [0, 0, 1])
    assert result["retrieval"].count == 2
    assert (
        cell(result, "retrieval").value == 0.0
    )  # the lone image is nearer to both than they are to each other
    alone = retrieve(features, features, [0, 1, 2])
    assert cell(alone, "retrieval").reason == "no class has two images"


def test_other_widths_retrieve_only_among_their_own() -> None:
    result = retrieve(drawn(12, 4), drawn(12, 3), [0, 1, 2] * 4)
    assert cell(result, "retrieval").reason == "queries have 4 features, the gallery has 3"
    assert cell(result, "retrieval", "other", "other").status == "ok"


def test_many_queries_of_a_class_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = (drawn(50, 4), drawn(50, 4, seed=1)), torch.arange(50) % 2
    whole = ranks(*features, labels)
    monkeypatch.setattr("compatkit_plugins.metrics.retrieval.QUERIES", 7)
    assert all(torch.equal(*both) for both in zip(whole, ranks(*features, labels), strict=True))
    assert [tuple(item.shape) for item in whole] == [(25, 24), (25, 24)]


def test_what_is_no_vector_is_refused() -> None:
    with pytest.raises(DataError, match=r"\(4, 8, 2, 2\).*after the pooling"):
        retrieve(drawn(4, 8, 2, 2), drawn(4, 8, 2, 2), [0, 0, 1, 1])
    with pytest.raises(DataError, match="has no output 'pool'; it has pool#1"):
        Retrieval().update(Retrieval().init(), torch.zeros(2), {"pool": drawn(2, 3)}, {"pool#1": drawn(2, 3)})


@pytest.mark.parametrize("settings", [{"top": 0}, {"top": True}, {"top": 1.5}, {"distance": "l2"}])
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"'(top|distance)' must be"):
        Retrieval(**settings)


def test_trained_networks_on_real_images() -> None:
    digits = ck.data.load("digits")
    nets = [
        ck.Trainer(steps=60, seed=seed, progress=False)
        .fit([ck.Task("digits", digits, "resnet8_cifar", "layer3", size=16)])
        .tasks["digits"]
        for seed in (0, 1)
    ]
    table = ck.measure(nets[0], digits.test, ["retrieval"], layers=["global_pool"], other=nets[1])
    values = table["retrieval"].values[0]  # type: ignore[union-attr]
    assert values.diagonal().min() > 0.8  # each among its own
    assert values[0, 1] < 0.5 and values[1, 0] < 0.5  # trained apart, they do not meet
