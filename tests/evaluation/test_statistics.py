"""The statistical level: one pass over images gives mean and deviation of every channel, whatever the layout."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sample_components import GRAY
from torch import Tensor, nn

from compatkit.contracts.channels import channel_bytes, channel_statistics
from compatkit.contracts.contract import Data, Port
from compatkit.data.dataset import Split
from compatkit.errors import CutError, FormatError, IntegrityError
from compatkit.evaluation.feature_statistics import Moments, feature_moments
from compatkit.evaluation.preprocessing import normalize, prepare

PORTS = {
    "NCHW": Port("features", ("N", 4, "H", "W")),
    "NHWC": Port("features", ("N", "H", "W", 4), layout="NHWC"),
    "NLC": Port("features", ("N", "L", 4), layout="NLC"),
    "NC": Port("features", ("N", 4), layout="NC"),
    "other": Port("features", ("N", 1, "H", "W", 4), layout="other"),
}


class Features(nn.Module):
    """Four channels out of one, with batch normalization, in any layout."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights, self.norm, self.layout = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), layout
        self.norm.running_mean += 0.3

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.weights(x)) + 100
        last = x.permute(0, 2, 3, 1)
        forms = {
            "NCHW": x,
            "NHWC": last,
            "NLC": last.flatten(1, 2),
            "NC": x.mean((2, 3)),
            "other": last[:, None],
        }
        return forms[self.layout]


def split(count: int = 50, size: tuple[int, int] = (8, 8)) -> Split:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (count, *size, 1)).astype(np.uint8)
    return Split(images, np.sort(np.arange(count) % 2), ("0", "1"), "noise/train")


def slow(
    module: nn.Module, images: Split, data: Data, layout: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """All features at once, in float64."""
    with torch.no_grad():
        features = module.eval()(normalize(prepare(images, data).images, data)).double()
    axis = 1 if layout in ("NCHW", "NC") else -1
    values = features.movedim(axis, 0).reshape(4, -1).numpy()
    return values.mean(axis=1), values.std(axis=1)


@pytest.mark.parametrize("layout", list(PORTS))
@pytest.mark.parametrize("batch_size", [7, 64])
def test_mean_and_deviation_are_those_of_all_features_at_once(layout: str, batch_size: int) -> None:
    module, port = Features(layout), PORTS[layout]
    (result,) = feature_moments(module, [port], split(), GRAY, batch_size=batch_size)
    means, stds = slow(module, split(), GRAY, layout)
    # 100 lies far from 0: sums of squares would lose four digits of the deviation.
    # What is left is the rounding of float32 features, which follows the batch.
    np.testing.assert_allclose(result.mean, means, rtol=1e-7)
    np.testing.assert_allclose(np.sqrt(result.squares / result.count), stds, rtol=1e-5)
    stated = result.statistics()
    assert stated.mean == pytest.approx(means.mean(), rel=1e-7)
    assert stated.std == pytest.approx(np.sqrt((stds**2 + (means - means.mean()) ** 2).mean()), rel=1e-5)
    assert stated.samples == 50
    read = channel_statistics(result.blob or b"")
    np.testing.assert_allclose(read[0], means.astype(np.float32), rtol=1e-6)
    np.testing.assert_allclose(read[1], stds.astype(np.float32), rtol=1e-5)
    assert stated.per_channel is not None and stated.per_channel["bytes"] == len(result.blob or b"") == 8 * 4


def test_the_images_are_evenly_spaced_over_the_split_and_no_more_than_asked_for() -> None:
    images = split(10)
    (result,) = feature_moments(Features("NC"), [PORTS["NC"]], images, GRAY, samples=4)
    (expected,) = feature_moments(Features("NC"), [PORTS["NC"]], images.take([0, 2, 5, 7]), GRAY)
    assert result.images == 4
    assert np.array_equal(result.mean, expected.mean)


def test_images_are_prepared_as_the_contract_says() -> None:
    images, data = (
        split(20, (12, 10)),
        Data((8, 8), "L", (0.1,), (0.5,), "bicubic", crop_pct=0.8, crop_mode="center"),
    )
    (result,) = feature_moments(Features("NCHW"), [PORTS["NCHW"]], images, data)
    np.testing.assert_allclose(result.mean, slow(Features("NCHW"), images, data, "NCHW")[0], rtol=1e-10)


def test_stored_statistics_are_used_and_stay_as_they_are() -> None:
    module = Features("NCHW").train()
    before = module.norm.running_mean.clone()
    first = feature_moments(module, [PORTS["NCHW"]], split(), GRAY, batch_size=50)[0]
    second = feature_moments(module, [PORTS["NCHW"]], split(), GRAY, batch_size=5)[0]
    assert module.training and module.norm.training and torch.equal(module.norm.running_mean, before)
    np.testing.assert_allclose(first.mean, second.mean, rtol=1e-6)


def test_every_port_of_a_tuple_has_its_own_figures() -> None:
    class Both(Features):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            shared = torch.arange(8.0).reshape(4, 2)
            return super().forward(x), super().forward(x).mean((2, 3)), shared

    ports = [PORTS["NCHW"], PORTS["NC"], Port("table", (4, 2), layout="other")]
    first, two, shared = feature_moments(Both("NCHW"), ports, split(), GRAY, batch_size=9)
    np.testing.assert_allclose(first.mean, two.mean, rtol=1e-6)
    assert (first.squares / first.count > two.squares / two.count).all()
    # What all images share is the same in every batch.
    np.testing.assert_allclose(shared.mean, [3, 4])
    np.testing.assert_allclose(shared.squares / shared.count, [5, 5])
    with pytest.raises(CutError, match="Expected 2 feature tensors, one per port; got 3"):
        feature_moments(Both("NCHW"), ports[:2], split(), GRAY)


def test_moments_of_two_sets_make_those_of_both() -> None:
    values = torch.randn(40, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = Moments.of(values, PORTS["NC"], 40)
    parts = Moments.of(values[:7], PORTS["NC"], 7).merged(Moments.of(values[7:], PORTS["NC"], 33))
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(parts.squares, whole.squares, rtol=1e-12)
    assert (parts.images, parts.count) == (40, 40)


def test_channels_whose_count_follows_the_image_are_not_kept_apart() -> None:
    (result,) = feature_moments(Features("NC"), [Port("x", ("N", "L"), layout="other")], split(), GRAY)
    assert result.blob is None and result.statistics().per_channel is None


def test_features_that_are_not_finite_are_refused() -> None:
    module = Features("NC")
    module.norm.running_mean.fill_(float("inf"))
    with pytest.raises(IntegrityError, match="features at 'features' are not finite"):
        feature_moments(module, [PORTS["NC"]], split(), GRAY)


def test_the_blob_is_means_then_deviations_as_little_endian_float32() -> None:
    data = channel_bytes([1.0, -2.0], [0.5, 0.0])
    assert data.hex() == "0000803f" + "000000c0" + "0000003f" + "00000000"
    means, stds = channel_statistics(data)
    assert (means.tolist(), stds.tolist()) == ([1.0, -2.0], [0.5, 0.0])
    assert means.dtype == stds.dtype == np.float32


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "got 0 bytes"),
        (b"\0" * 7, "got 7 bytes"),
        (b"\0" * 12, "got 12 bytes"),
        (channel_bytes([float("nan")], [1.0]), "finite"),
        (channel_bytes([0.0], [float("inf")]), "finite"),
        (channel_bytes([0.0], [-1.0]), "non-negative deviations"),
    ],
)
def test_bytes_that_are_no_channel_statistics_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        channel_statistics(data)
