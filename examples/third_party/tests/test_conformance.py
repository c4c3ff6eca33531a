"""The package's plugins are written as compatkit's hooks ask."""

from compatkit_example.confidence import Confidence
from compatkit_example.decoder import Decoder
from compatkit_example.feature_norm import FeatureNorm
from compatkit_example.strips import WIDTHS, build

from compatkit.training.testing import assert_builder, assert_metric, assert_regularizer


def test_feature_norm_conforms() -> None:
    """Its hooks are spelt, marked and callable, two steps can be taken, and random states are left alone."""
    assert_regularizer(FeatureNorm, target=2.0)


def test_decoder_conforms() -> None:
    """The same, and its layer is trained."""
    assert_regularizer(Decoder)


def test_confidence_conforms() -> None:
    """The result does not depend on how the examples are cut into batches."""
    assert_metric(Confidence)


def test_strips_conform() -> None:
    """The same name and arguments give the same network, and only the class layer follows the classes."""
    for model in WIDTHS:
        assert_builder(build, model, num_classes=5)
    assert_builder(build, "strips_small", in_chans=1, widths=[4, 4, 4])
