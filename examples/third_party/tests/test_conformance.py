"""The package's plugins are written as compatkit's hooks ask."""

from compatkit_example.confidence import Confidence
from compatkit_example.feature_norm import FeatureNorm
from compatkit_example.strips import WIDTHS, build

from compatkit.testing import assert_builder, assert_metric, assert_regularizer


def test_feature_norm_conforms() -> None:
    """Its hooks are spelt, marked and callable, and making it leaves random states alone."""
    assert_regularizer(FeatureNorm, target=2.0)


def test_confidence_conforms() -> None:
    """The result does not depend on how the examples are cut into batches."""
    assert_metric(Confidence)


def test_strips_conform() -> None:
    """The same name and arguments give the same network, and only the class layer follows the classes."""
    for model in WIDTHS:
        assert_builder(build, model, num_classes=5)
    assert_builder(build, "strips_small", in_chans=1, widths=[4, 4, 4])
