"""The check: every finding with its level, severity and remedy; three answers; one word; speed."""

from __future__ import annotations

import json
import subprocess
import sys
import timeit

import attrs
import pytest
from components import FEATURES, GREY, extractor, figures, head, initial, labels, manifest, shared

from compatkit.compatibility import check
from compatkit.contract import Contract, Data, Label, Port, Protocol, Scaled, Structural
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.cells import Cell, Figure
from compatkit.verdict import REQUIREMENTS, Finding, Report

DIGITS = labels("0", "1", "2")


def only(report: Report, code: str) -> Finding:
    """Return the one finding with ``code``."""
    (found,) = [one for one in report.findings if one.code == code]
    return found


def codes(report: Report) -> set[str]:
    """Return the codes of all findings."""
    return {one.code for one in report.findings}


def map_port(channels: int, *spatial: object, **changes: object) -> Port:
    """Return a map of ``channels``, of free size where none is given."""
    return Port("features", ("N", channels, *(spatial or ("h", "w"))), **changes)  # type: ignore[arg-type]


def tokens(width: int, count: int | str = "L", prefix: int = 0) -> Port:
    """Return a port of patch tokens."""
    return Port("features", ("N", count, width), layout="NLC", prefix_tokens=prefix)


def vector(width: int, pooled: bool = True) -> Port:
    """Return a port of averaged features."""
    return Port("features", ("N", width), layout="NC", pooled=pooled)


# Structural level: output, input -> (code, severity, part of the remedy) of every finding, and the wiring.
SEAMS = [
    (map_port(32), map_port(32), [], "direct"),
    (map_port(64), map_port(128), [("channels-differ", "adaptable", "1x1 convolution")], "needs-adapter"),
    (vector(64), vector(128), [("channels-differ", "adaptable", "linear")], "needs-adapter"),
    (map_port(32), tokens(32), [("layout-differs", "adaptable", "permute NCHW to NLC")], "needs-adapter"),
    (tokens(32), map_port(32), [("layout-differs", "adaptable", "permute NLC to NCHW")], "needs-adapter"),
    (map_port(32), vector(32), [("rank-differs", "adaptable", "pool")], "needs-adapter"),
    (vector(32), map_port(32), [("rank-differs", "refuses", "before its pooling")], "refused"),
    (vector(32), tokens(32), [("rank-differs", "refuses", "before its pooling")], "refused"),
    (tokens(32, prefix=1), vector(32), [("rank-differs", "adaptable", "pool")], "needs-adapter"),
    (
        map_port(32),
        map_port(32, 1, 1, pooled=True),
        [("pooled-differs", "adaptable", "pool")],
        "needs-adapter",
    ),
    (map_port(32, 1, 1, pooled=True), map_port(32), [("pooled-differs", "refuses", "before")], "refused"),
    (vector(32, pooled=False), vector(32), [("pooled-differs", "warns", "")], "direct"),
    (tokens(32), tokens(32, prefix=1), [("tokens-differ", "refuses", "class tokens")], "refused"),
    (
        tokens(32, prefix=5),
        tokens(32),
        [("tokens-differ", "adaptable", "drop-tokens: leave out 5")],
        "needs-adapter",
    ),
    (
        map_port(8, 4, 4),
        map_port(8, 2, 2),
        [("spatial-differs", "adaptable", "resize to 2x2")],
        "needs-adapter",
    ),
    (map_port(8, 4, 4), map_port(8, 4, 4), [], "direct"),
    (map_port(8, 4, 4), map_port(8), [], "direct"),
    (map_port(8, 4, 4), tokens(8, 16), [("layout-differs", "adaptable", "permute")], "needs-adapter"),
    (tokens(8, 17, prefix=1), tokens(8, 17, prefix=1), [], "direct"),
    (
        map_port(32, dtype="bfloat16"),
        map_port(32),
        [("dtype-differs", "adaptable", "cast to float32")],
        "needs-adapter",
    ),
    (
        map_port(32, range="signed"),
        map_port(32, range="nonnegative"),
        [("range-differs", "warns", "activation")],
        "direct",
    ),
    (map_port(32, range="nonnegative"), map_port(32, range="signed"), [], "direct"),
]


@pytest.mark.parametrize(("output", "taken", "expected", "wiring"), SEAMS)
def test_seams(output: Port, taken: Port, expected: list[tuple[str, str, str]], wiring: str) -> None:
    report = check(extractor(output), head(taken))
    found = [one for one in report.findings if one.level == "structural"]
    assert [(one.code, one.severity) for one in found] == [(code, severity) for code, severity, _ in expected]
    for one, (_, _, remedy) in zip(found, expected, strict=True):
        assert remedy in one.remedy
    assert report.wiring == wiring


def test_64_channels_against_128_name_both_numbers_both_owners_the_level_and_the_remedy() -> None:
    report = check(extractor(map_port(64)), head(map_port(128)))
    report = attrs.evolve(report, extractor="a/x.extractor@1.0.0", head="b/y.head@2.0.0")
    found = only(report, "channels-differ")
    assert (found.expected, found.came, found.level) == ("128 channels", "64 channels", "structural")
    assert "head input 'features'" in found.whose
    assert "extractor output 'features'" in found.whose
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
    output = map_port(8, *half)
    fixed = head(map_port(8, 4, 4))
    assert check(extractor(output), fixed).wiring == "direct"
    larger = check(extractor(output, data=attrs.evolve(GREY, size=(9, 9))), fixed)
    assert only(larger, "spatial-differs").came == "5x5 positions for images of 9x9"


def test_measured_sizes_win_over_the_formula_and_a_free_head_absorbs_a_difference() -> None:
    output = map_port(8, "h", "w", measured={"8x8": (3, 3)})
    assert only(check(extractor(output), head(map_port(8, 4, 4))), "spatial-differs").severity == "adaptable"
    free = map_port(8, "h", "w", measured={"8x8": (4, 4)})
    report = check(extractor(output), head(free))
    assert only(report, "spatial-differs").severity == "informs"
    assert report.wiring == "direct"


def with_ports(kind: str, *names: str) -> object:
    ports = tuple(attrs.evolve(FEATURES, name=name) for name in names)
    sides = ((FEATURES,), ports) if kind == "extractor" else (ports, (FEATURES,))
    return manifest(kind, Contract(Structural(*sides), GREY, Protocol("none")))  # type: ignore[arg-type]


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


def test_other_input_images_are_only_said() -> None:
    usps = Data((16, 16), "RGB", (0.1, 0.2, 0.3), (0.25, 0.25, 0.25))
    report = check(extractor(), head(data=usps))
    found = only(report, "input-differs")
    assert (found.level, found.severity) == ("data", "informs")
    assert "own preprocessing" in found.remedy
    assert found.expected == "size 16, 16; channels RGB; mean 0.1, 0.2, 0.3; std 0.25, 0.25, 0.25"
    assert report.wiring == "direct"
    assert "input-differs" not in codes(check(extractor(), head()))


def asked(*names: str) -> Data:
    return attrs.evolve(GREY, labels=labels(*names))


def test_classes_are_compared_by_name_only_with_the_data_asked_for() -> None:
    left, right = extractor(), head(classes=DIGITS)
    assert not {"labels-partial", "labels-disjoint"} & codes(check(left, right))
    assert not {"labels-partial", "labels-disjoint"} & codes(check(left, right, data=asked("2", "1", "0")))
    partial = only(check(left, right, data=asked("1", "2", "3")), "labels-partial")
    assert partial.severity == "informs"
    assert "2 classes in common are counted: 1, 2" in partial.remedy
    assert only(check(left, right, data=asked("cat", "dog")), "labels-disjoint").severity == "warns"
    assert only(check(left, head(), data=asked("1")), "labels-disjoint").came == "no named classes"


def test_classes_match_by_their_other_names() -> None:
    right = head(classes=(Label("automobile", ("car",)), Label("cat")))
    report = check(extractor(), right, data=asked("cat", "car"))
    assert not {"labels-partial", "labels-disjoint"} & codes(report)


def test_a_class_that_fits_two_is_refused() -> None:
    with pytest.raises(DataError, match="both"):
        check(extractor(), head(classes=labels("car", "automobile")), data=asked("car"))


@pytest.mark.parametrize(
    ("left", "right", "named"),
    [
        ("batch", "none", "the extractor"),
        ("none", "batch", "the head"),
        ("batch", "batch", "the extractor and the head"),
    ],
)
def test_batch_normalisation_needs_a_policy_and_images(left: str, right: str, named: str) -> None:
    found = only(check(extractor(normalisation=left), head(normalisation=right)), "normalisation-needed")
    assert (found.level, found.severity) == ("protocol", "informs")
    assert found.whose == f"batch normalisation in {named}"
    assert "reestimate (unlabelled images" in found.remedy


def test_without_batch_normalisation_no_policy_is_needed() -> None:
    assert "normalisation-needed" not in codes(check(extractor(), head()))


def test_shared_initial_weights_are_no_promise_and_a_shared_head_is() -> None:
    left = extractor(anchors=(initial("one"), shared("dcc")))
    same = check(left, head(anchors=(initial("one"),)))
    assert same.promise == "shared-init"
    assert only(same, "initial-weights-shared").severity == "informs"
    assert "never a promise" in only(same, "initial-weights-shared").remedy
    both = check(left, head(anchors=(shared("dcc"), initial("one"))))
    assert both.promise == "shared-head"
    assert only(both, "head-shared").severity == "promises"
    assert codes(both) >= {"initial-weights-shared", "head-shared"}
    other = check(left, head(anchors=(initial("two"), shared("other"))))
    assert other.promise == "none"


def test_statistics_far_apart_warn() -> None:
    def seen(mean: float, std: float) -> Report:
        return check(extractor(features=figures(mean, std)), head(features=figures(0.4, 0.8)))

    assert "statistics-far" not in codes(seen(0.4, 0.8))
    assert "statistics-far" not in codes(seen(0.79, 1.5))
    for far in (seen(0.81, 0.8), seen(0.4, 1.7), seen(0.4, 0.39)):
        assert only(far, "statistics-far").severity == "warns"
        assert far.wiring == "direct"
    assert "statistics-far" not in codes(check(extractor(), head(features=figures(9.0, 1.0))))


def cell(grade: str, accuracy: float = 0.5) -> Cell:
    figure = Figure(accuracy, int(accuracy * 100), 100, accuracy - 0.1, accuracy + 0.1)
    return Cell("e", "h", "direct", "none", grade, figure, figure, 0.1, figure, 1.0)  # type: ignore[arg-type]


def test_evidence_is_the_newest_that_is_not_stale() -> None:
    def graded(*grades: str) -> Report:
        return check(extractor(), head(), evidence=[cell(grade) for grade in grades])

    assert graded().evidence == "none"
    assert graded("compatible").evidence == "compatible"
    assert graded("perfect", "chance").evidence == "chance"
    assert graded("compatible", "stale").evidence == "compatible"
    assert graded("stale").evidence == "stale"
    assert (
        check(extractor(), head(), evidence=[attrs.evolve(cell("none"), restricted=None)]).evidence == "none"
    )
    found = only(graded("compatible"), "evidence")
    assert (found.level, found.severity) == ("empirical", "informs")
    assert "0.500 [0.400, 0.600] on 100 images" in found.came
    assert "measure again" in only(graded("stale"), "evidence").remedy


def test_equal_shapes_are_not_compatibility() -> None:
    for anchors in ((), (initial("one"),)):
        report = check(extractor(anchors=anchors), head(anchors=anchors))
        assert report.word == "unproven"
        assert "Equal shapes are not compatibility." in str(report)
        assert only(report, "evidence").severity == "warns"
        assert "equal shapes are not compatibility" in json.dumps(report.to_json())
    promised = check(extractor(anchors=(shared("dcc"),)), head(anchors=(shared("dcc"),)))
    assert "equal shapes" not in str(promised).lower()
    measured = check(extractor(), head(), evidence=[cell("compatible")])
    assert "equal shapes" not in str(measured).lower()


@pytest.mark.parametrize(
    ("wiring", "promise", "evidence", "word"),
    [
        ("refused", "shared-head", "perfect", "refused"),
        ("needs-adapter", "none", "none", "adaptable"),
        ("needs-adapter", "none", "chance", "incompatible"),
        ("direct", "none", "none", "unproven"),
        ("direct", "shared-init", "none", "unproven"),
        ("direct", "shared-head", "none", "promised"),
        ("direct", "shared-head", "stale", "promised"),
        ("direct", "shared-head", "chance", "incompatible"),
        ("direct", "none", "undecided", "undecided"),
        ("direct", "none", "compatible", "compatible"),
        ("direct", "none", "perfect", "perfect"),
    ],
)
def test_one_word(wiring: str, promise: str, evidence: str, word: str) -> None:
    assert Report(wiring, promise, evidence).word == word  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wiring", "promise", "evidence", "satisfied"),
    [
        ("refused", "shared-head", "perfect", ""),
        ("needs-adapter", "shared-head", "perfect", ""),
        ("direct", "shared-head", "chance", ""),
        ("direct", "none", "none", "direct"),
        ("direct", "none", "undecided", "direct"),
        ("direct", "shared-init", "none", "direct shared-init"),
        ("direct", "shared-head", "stale", "direct shared-init shared-head"),
        ("direct", "none", "compatible", "direct compatible"),
        ("direct", "shared-head", "perfect", "direct shared-init shared-head compatible perfect"),
    ],
)
def test_requirements(wiring: str, promise: str, evidence: str, satisfied: str) -> None:
    report = Report(wiring, promise, evidence)  # type: ignore[arg-type]
    assert [level for level in REQUIREMENTS if report.satisfies(level)] == satisfied.split()


def test_an_unknown_requirement_is_refused_with_a_near_name() -> None:
    with pytest.raises(UsageError, match="Did you mean 'shared-head'"):
        Report("direct", "none", "none").satisfies("sharedhead")


def test_wrong_kinds_are_refused() -> None:
    with pytest.raises(UsageError, match="first of the two components must be of kind extractor"):
        check(head(), head())
    with pytest.raises(UsageError, match=r"second .* must be of kind head"):
        check(extractor(), extractor())
    assert check(extractor(), head(kind="auxiliary_head")).wiring == "direct"


def test_the_report_as_json_holds_everything() -> None:
    value = json.loads(json.dumps(check(extractor(map_port(64)), head(map_port(128))).to_json()))
    assert (value["wiring"], value["promise"], value["evidence"], value["word"]) == (
        "needs-adapter",
        "none",
        "none",
        "adaptable",
    )
    assert set(value["findings"][0]) == {"code", "level", "severity", "expected", "came", "whose", "remedy"}


def test_a_check_takes_less_than_a_tenth_of_a_millisecond() -> None:
    left = extractor(
        map_port(64), anchors=(initial("one"), shared("dcc"), shared("rp", "rotation")), normalisation="batch"
    )
    right = head(
        map_port(128),
        data=Data((16, 16), "L", (0.2,), (0.3,)),
        anchors=left.contract.protocol.anchors,
        normalisation="batch",
        classes=labels(*"0123456789"),
    )
    data = asked(*"123456789")
    check(left, right, data=data)
    best = min(timeit.repeat(lambda: check(left, right, data=data), number=200, repeat=5)) / 200
    assert best < 100e-6


def test_importing_the_check_imports_no_heavy_package() -> None:
    code = (
        "import compatkit.compatibility, compatkit.evidence, sys;"
        "print([m for m in ('torch', 'numpy', 'scipy', 'timm', 'safetensors') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
