"""timm's registry is left as it is, and timm's errors become clear ones."""

from __future__ import annotations

import pytest
import timm

from compatkit.adapters import builders
from compatkit.adapters import timm as adapter
from compatkit.errors import UnknownName, UsageError


def test_code_that_builds_a_network():
    assert adapter.expression("resnet18.a1_in1k", {"num_classes": 3}) == (
        "timm.create_model('resnet18.a1_in1k', num_classes=3)"
    )
    assert adapter.expression("nonesuch", {}) is None


def test_there_are_no_pretrained_weights_for_a_network_without_any():
    with pytest.raises(UsageError, match="Leave weights out"):
        adapter.create("test_vit4", pretrained=True)


def test_an_unknown_tag_lists_the_known_ones():
    with pytest.raises(UnknownName, match=r"no weights tagged 'nope'.*resnet18\.a1_in1k"):
        adapter.create("resnet18.nope")


def test_the_library_names_its_version():
    assert adapter.library() == f"timm {timm.__version__}"
    assert builders.BUILDERS["timm"].library() == adapter.library()
