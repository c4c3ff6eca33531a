"""The statistical level: features far from those that the head was trained on, channel by channel."""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_components import FEATURES, GRAY, codes, extractor, figures, head, manifest, only, sha256

from compatkit.contracts.channels import ChannelStatistics
from compatkit.contracts.check import check
from compatkit.contracts.contract import Contract, FeatureStatistics, Protocol, Statistical, Structural
from compatkit.contracts.manifest import Manifest
from compatkit.contracts.report import Report
from compatkit.contracts.rules import (
    FAR_MEAN,
    FAR_SCALE,
    MIN_STD_SHARE,
    port_features,
    statistics_findings,
)

LEFT, RIGHT = sha256("left"), sha256("right")


def channel_features(digest: str, mean: float = 0.4, std: float = 0.8) -> tuple[FeatureStatistics, ...]:
    """Return statistics of one port, whose channels are in a blob."""
    return (FeatureStatistics(mean, std, 100, {"blob": digest, "bytes": 32}),)


def compared(inputs: tuple[Any, Any], trained: tuple[Any, Any], std: float = 0.8) -> Report:
    """Return what is said of channels with these means and standard deviations."""
    blobs = {LEFT: ChannelStatistics(*inputs), RIGHT: ChannelStatistics(*trained)}
    return check(
        extractor(features=channel_features(LEFT)),
        head(features=channel_features(RIGHT, std=std)),
        channels=blobs,
    )


def test_statistics_far_apart_warn() -> None:
    def seen(mean: float, std: float) -> Report:
        return check(extractor(features=figures(mean, std)), head(features=figures(0.4, 0.8)))

    assert "statistics-far" not in codes(seen(0.4, 0.8))
    assert "statistics-far" not in codes(seen(0.79, 1.5))
    for far in (seen(0.81, 0.8), seen(0.4, 1.7), seen(0.4, 0.39)):
        assert only(far, "statistics-far").severity == "warns"
        assert far.wiring == "direct"
    assert "statistics-far" not in codes(check(extractor(), head(features=figures(9.0, 1.0))))


def test_the_finding_says_how_many_channels_are_far_and_which_is_worst() -> None:
    report = compared(
        ([0.0, 1.0, 5.0, 0.0], [1.0, 1.0, 1.0, 3.0]), ([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0])
    )
    result = only(report, "statistics-far")
    assert result.expected == "mean 0 and standard deviation 1 in channel 2"
    assert result.actual == "mean 5 and standard deviation 1: the worst of 3 far channels, of 4"


def test_channels_count_where_both_sides_have_them_and_the_port_where_not() -> None:
    """Two channels that changed places: the port as a whole is the same."""
    first, other = ([0.0, 2.0], [1.0, 1.0]), ([2.0, 0.0], [1.0, 1.0])
    assert "statistics-far" in codes(compared(first, other))
    assert "statistics-far" not in codes(compared(first, first))
    unread = check(extractor(features=channel_features(LEFT)), head(features=channel_features(RIGHT)))
    assert "statistics-far" not in codes(unread)
    of_one_side = {LEFT: ChannelStatistics(*first)}
    assert "statistics-far" not in codes(
        check(
            extractor(features=channel_features(LEFT)),
            head(features=channel_features(RIGHT)),
            channels=of_one_side,
        )
    )
    assert "statistics-far" not in codes(compared(first, ([9.0], [1.0])))  # another number of channels


def test_a_dead_channel_is_not_far_from_a_nearly_dead_one() -> None:
    dead, nearly = ([0.0, 0.5], [0.0, 1.0]), ([1e-6, 0.5], [1e-5, 1.0])
    assert "statistics-far" not in codes(compared(nearly, dead))
    assert "statistics-far" in codes(compared(([0.5, 0.5], [0.0, 1.0]), dead))


def test_features_that_never_change_are_far_from_all_others_and_not_from_each_other() -> None:
    still = [1.0, 1.0], [0.0, 0.0]
    assert "statistics-far" not in codes(compared(still, still, std=0.0))
    result = only(compared(([1.0, 1.1], [0.0, 0.0]), still, std=0.0), "statistics-far")
    assert "channel 1" in result.expected


def test_several_ports_are_compared_each_with_its_own() -> None:
    ports = FEATURES, attrs.evolve(FEATURES, name="skip")

    def part(kind: Any, *values: FeatureStatistics) -> Manifest:
        sides = ((FEATURES,), ports) if kind == "extractor" else (ports, (FEATURES,))
        return manifest(kind, Contract(Structural(*sides), GRAY, Protocol("none"), Statistical(values)))

    near, far = FeatureStatistics(0.0, 1.0, 10), FeatureStatistics(7.0, 1.0, 10)
    result = only(check(part("extractor", near, far), part("head", near, near)), "statistics-far")
    assert result.between.endswith("port 'skip'")


values = st.floats(0, 4, width=16)


@settings(deadline=None)
@given(st.lists(st.tuples(values, values, values, values), min_size=1, max_size=6), values)
def test_channels_are_judged_as_a_slow_reference_does(rows: list[tuple[float, ...]], std: float) -> None:
    """Distances by hand; the rule alone says the same as the check."""
    means, stds, trained_means, trained_stds = (np.array(column) for column in zip(*rows, strict=True))
    quiet, far = MIN_STD_SHARE * std, 0
    for mean, scale, trained_mean, trained_scale in rows:
        scale, wanted = max(scale, quiet), max(trained_scale, quiet)
        off = abs(mean - trained_mean) > FAR_MEAN * wanted
        far += off or (
            (math.inf if not min(scale, wanted) else max(scale, wanted) / min(scale, wanted)) > FAR_SCALE
            and scale != wanted
        )
    blobs = {LEFT: ChannelStatistics(means, stds), RIGHT: ChannelStatistics(trained_means, trained_stds)}
    left, right = extractor(features=channel_features(LEFT)), head(features=channel_features(RIGHT, std=std))
    result = [
        finding for finding in check(left, right, channels=blobs).findings if finding.code == "statistics-far"
    ]
    assert len(result) == bool(far)
    assert not far or f"the worst of {far} far channels" in result[0].actual
    sides = (port_features(item.contract.statistical.features, blobs) for item in (left, right))
    assert [statistic.code for statistic in statistics_findings(*sides)] == ["statistics-far"] * bool(far)


@pytest.mark.parametrize("features", [None, ()])
def test_without_statistics_there_is_nothing_to_say(features: Any) -> None:
    assert "statistics-far" not in codes(
        check(extractor(features=features), head(features=figures(1.0, 1.0)))
    )
