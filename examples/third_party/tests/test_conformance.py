"""The package's plugins are written as compatkit's hooks ask."""

from compatkit_example.confidence import Confidence
from compatkit_example.feature_norm import FeatureNorm

from compatkit.testing import assert_metric, assert_regularizer


def test_feature_norm_conforms() -> None:
    """Its hooks are spelt, marked and callable, and making it leaves random states alone."""
    assert_regularizer(FeatureNorm, target=2.0)


def test_confidence_conforms() -> None:
    """The result does not depend on how the examples are cut into batches."""
    assert_metric(Confidence)
