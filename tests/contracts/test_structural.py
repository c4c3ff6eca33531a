"""The structural level: every seam with its findings and wiring; sizes; names of ports."""

from __future__ import annotations

import attrs
import pytest
from sample_components import FEATURES, GRAY, codes, extractor, head, manifest, maps, only, tokens, vector

from compatkit.contracts.check import check
from compatkit.contracts.contract import Contract, Port, Protocol, Scaled, Structural

# Structural level: output, input -> (code, severity, part of the remedy) of every finding, and the wiring.
SEAMS = [
    (maps(32), maps(32), [], "direct"),
    (maps(64), maps(128), [("channels-differ", "adaptable", "1x1 convolution")], "needs-adapter"),
    (vector(64), vector(128), [("channels-differ", "adaptable", "linear")], "needs-adapter"),
    (maps(32), tokens(32), [("layout-differs", "adaptable", "permute NCHW to NLC")], "needs-adapter"),
    (tokens(32), maps(32), [("layout-differs", "adaptable", "permute NLC to NCHW")], "needs-adapter"),
    (maps(32), vector(32), [("rank-differs", "adaptable", "pool")], "needs-adapter"),
    (vector(32), maps(32), [("rank-differs", "refuses", "before its pooling")], "refused"),
    (vector(32), tokens(32), [("rank-differs", "refuses", "before its pooling")], "refused"),
    (tokens(32, prefix=1), vector(32), [("rank-differs", "adaptable", "pool")], "needs-adapter"),
    (
        maps(32),
        maps(32, 1, 1, pooled=True),
        [("pooled-differs", "adaptable", "pool")],
        "needs-adapter",
    ),
    (maps(32, 1, 1, pooled=True), maps(32), [("pooled-differs", "refuses", "before")], "refused"),
    (vector(32, pooled=False), vector(32), [("pooled-differs", "warns", "")], "direct"),
    (tokens(32), tokens(32, prefix=1), [("tokens-differ", "refuses", "class tokens")], "refused"),
    (
        tokens(32, prefix=5),
        tokens(32),
        [("tokens-differ", "adaptable", "drop-tokens: leave out 5")],
        "needs-adapter",
    ),
    (
        maps(8, 4, 4),
        maps(8, 2, 2),
        [("spatial-differs", "adaptable", "resize to 2x2")],
        "needs-adapter",
    ),
    (maps(8, 4, 4), maps(8, 4, 4), [], "direct"),
    (maps(8, 4, 4), maps(8), [], "direct"),
    (maps(8, 4, 4), tokens(8, 16), [("layout-differs", "adaptable", "permute")], "needs-adapter"),
    (tokens(8, 17, prefix=1), tokens(8, 17, prefix=1), [], "direct"),
    (
        maps(32, dtype="bfloat16"),
        maps(32),
        [("dtype-differs", "adaptable", "cast to float32")],
        "needs-adapter",
    ),
    (
        maps(32, range="signed"),
        maps(32, range="nonnegative"),
        [("range-differs", "warns", "activation")],
        "direct",
    ),
    (maps(32, range="nonnegative"), maps(32, range="signed"), [], "direct"),
]


@pytest.mark.case("F")
@pytest.mark.parametrize(("output", "taken", "expected", "wiring"), SEAMS)
def test_seams(output: Port, taken: Port, expected: list[tuple[str, str, str]], wiring: str) -> None:
    report = check(extractor(output), head(taken))
    result = [finding for finding in report.findings if finding.level == "structural"]
    assert [(match.code, match.severity) for match in result] == [
        (code, severity) for code, severity, _ in expected
    ]
    for match, (_, _, remedy) in zip(result, expected, strict=True):
        assert remedy in match.remedy
    assert report.wiring == wiring


@pytest.mark.case("F")
def test_64_channels_against_128_name_both_numbers_both_owners_the_level_and_the_remedy() -> None:
    report = check(extractor(maps(64)), head(maps(128)))
    report = attrs.evolve(report, extractor="a/x.extractor@1.0.0", head="b/y.head@2.0.0")
    result = only(report, "channels-differ")
    assert (result.expected, result.actual, result.level) == ("128 channels", "64 channels", "structural")
    assert "head input 'features'" in result.between
    assert "extractor output 'features'" in result.between
    text = str(report)
    for part in (
        "128 channels",
        "64 channels",
        "a/x.extractor@1.0.0",
        "b/y.head@2.0.0",
        "structural",
        "project",
    ):
        assert part in text
    assert report.word == "adaptable"


def test_sizes_follow_from_the_extractors_images() -> None:
    half = Scaled("H", add=1, floordiv=2), Scaled("W", add=1, floordiv=2)
    output = maps(8, *half)
    fixed = head(maps(8, 4, 4))
    assert check(extractor(output), fixed).wiring == "direct"
    larger = check(extractor(output, data=attrs.evolve(GRAY, size=(9, 9))), fixed)
    assert only(larger, "spatial-differs").actual == "5x5 positions for images of 9x9"


def test_measured_sizes_win_over_the_formula_and_a_free_head_absorbs_a_difference() -> None:
    output = maps(8, "h", "w", measured={"8x8": (3, 3)})
    assert only(check(extractor(output), head(maps(8, 4, 4))), "spatial-differs").severity == "adaptable"
    free = maps(8, "h", "w", measured={"8x8": (4, 4)})
    report = check(extractor(output), head(free))
    assert only(report, "spatial-differs").severity == "informs"
    assert report.wiring == "direct"


def with_ports(kind: str, *names: str) -> object:
    ports = tuple(attrs.evolve(FEATURES, name=name) for name in names)
    sides = ((FEATURES,), ports) if kind == "extractor" else (ports, (FEATURES,))
    return manifest(kind, Contract(Structural(*sides), GRAY, Protocol("none")))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outputs", "inputs", "wiring"),
    [
        (("mean", "log_variance"), ("mean", "log_variance"), "direct"),
        (("mean", "log_variance"), ("log_variance", "mean"), "refused"),
        (("mean", "log_variance"), ("mean",), "refused"),
        (("maps",), ("features",), "direct"),
    ],
)
def test_ports_are_matched_by_name_and_a_single_one_by_place(
    outputs: object, inputs: object, wiring: str
) -> None:
    report = check(with_ports("extractor", *outputs), with_ports("head", *inputs))  # type: ignore[arg-type, misc]
    assert report.wiring == wiring
    assert ("ports-differ" in codes(report)) == (wiring == "refused")
