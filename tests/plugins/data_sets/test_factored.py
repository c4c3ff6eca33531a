"""Images with factors: sprites and solids drawn here, and readers of dSprites, Cars3D, SmallNORB and CelebA."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import compatkit as ck
from compatkit.errors import DataError, UnknownName
from compatkit_plugins.data_sets.cars3d import cars3d
from compatkit_plugins.data_sets.celeba import celeba
from compatkit_plugins.data_sets.dsprites import dsprites
from compatkit_plugins.data_sets.smallnorb import smallnorb
from compatkit_plugins.data_sets.solids import LIGHT, SOLIDS, planes, render, rotations, solids
from compatkit_plugins.data_sets.sprites import SHAPES, inside, sprites
from compatkit_plugins.factored import Factored


class TestSprites:
    """Shapes by formula, every combination of factors once."""

    def test_every_combination_is_there_once(self) -> None:
        data = sprites(scales=2, orientations=3, positions=4, size=16)
        rows = np.stack(list(data.factors.values()), axis=1)
        assert len(np.unique(rows, axis=0)) == len(data) == 3 * 2 * 3 * 16
        assert data.images.shape[1:] == (16, 16, 1) and set(np.unique(data.images)) == {0, 255}
        assert data is sprites(scales=2, orientations=3, positions=4, size=16)

    def test_the_middle_of_mass_moves_with_the_place_and_nothing_is_cut_off(self) -> None:
        data = sprites(scales=1, orientations=4, positions=5, size=64)
        white = data.images[..., 0] > 0
        columns = (white.sum(1) * np.arange(64)).sum(1) / white.sum((1, 2))
        rows = (white.sum(2) * np.arange(64)).sum(1) / white.sum((1, 2))
        square = data.factors["shape"] == 0
        wanted = np.linspace(0.22, 0.78, 5) * 64 - 0.5
        assert np.abs(columns - wanted[data.factors["x"]])[square].max() < 0.6
        assert np.abs(rows - wanted[data.factors["y"]])[square].max() < 0.6
        area = white.sum((1, 2))
        for shape in range(3):
            mine = area[data.factors["shape"] == shape]
            assert mine.max() - mine.min() < 0.12 * mine.mean()

    @pytest.mark.parametrize(("shape", "area"), [(0, 2.0), (1, np.pi / 2)])
    def test_areas_are_those_of_the_formulas(self, shape: int, area: float) -> None:
        across, up = np.meshgrid(*[np.linspace(-1, 1, 801)] * 2)
        hit = inside(shape, across, up)
        assert hit.mean() * 4 == pytest.approx(area, rel=0.01)

    @pytest.mark.parametrize("shape", range(3))
    def test_no_point_is_farther_than_one(self, shape: int) -> None:
        across, up = np.meshgrid(*[np.linspace(-1.5, 1.5, 601)] * 2)
        assert 0.97 < np.hypot(across, up)[inside(shape, across, up)].max() <= 1

    def test_area_goes_with_the_square_of_the_scale(self) -> None:
        data = sprites(scales=2, orientations=1, positions=1, size=64)
        areas = (data.images > 0).sum((1, 2, 3)).reshape(3, 2)
        np.testing.assert_allclose(areas[:, 1] / areas[:, 0], 4, rtol=0.12)

    def test_by_name_they_are_labeled_by_shape(self) -> None:
        data = ck.data.load("sprites")
        assert data.classes == SHAPES and (len(data.train), len(data.test)) == (5530, 614)


class TestSolids:
    """Half-spaces, poses and light."""

    @pytest.mark.parametrize(
        ("solid", "faces", "radius"), [(0, 4, 1.0), (1, 6, 1.0), (2, 20, 1.0), (4, 50, 1.0)]
    )
    def test_corners_lie_on_the_unit_ball(self, solid: int, faces: int, radius: float) -> None:
        normals, distances = planes(solid)
        assert len(normals) == faces
        np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1, rtol=1e-5)
        points = np.random.default_rng(0).uniform(-1.1, 1.1, (60_000, 3))
        within = (points @ normals.T <= distances).all(1)
        assert 0.9 < np.linalg.norm(points[within], axis=1).max() <= radius + 1e-6

    def test_volumes_are_those_of_the_solids(self) -> None:
        points = np.random.default_rng(0).uniform(-1, 1, (100_000, 3))
        result = []
        for solid in range(5):
            normals, distances = planes(solid)
            result.append((points @ normals.T <= distances).all(1).mean() * 8)
        wanted = [8 * 3**0.5 / 27, (4 / 3) ** 1.5, 2.536, np.pi * 0.375, np.pi / 2**0.5]
        np.testing.assert_allclose(result, wanted, rtol=0.04)

    def test_a_cube_from_the_front_is_a_square_of_one_brightness(self) -> None:
        image = render(1, np.eye(3, dtype=np.float32)[None], np.array([[32.0, 32.0]]), np.array([20.0]), 64)[
            0
        ]
        side = 2 * 20 / 3**0.5
        assert (image > 0).sum() == pytest.approx(side**2, rel=0.1)
        assert set(np.unique(image)) == {0, round((0.25 + 0.75 * LIGHT[2]) * 255)}

    def test_a_turned_solid_is_hit_where_a_search_along_the_ray_finds_it(self) -> None:
        turn = rotations(1, np.random.default_rng(3))
        normals, distances = planes(3)
        image = render(3, turn, np.array([[8.0, 8.0]]), np.array([7.0]), 16)[0]
        depths = np.linspace(-1, 1, 400)
        for row in range(16):
            for column in range(16):
                x, y = (column + 0.5 - 8) / 7, -(row + 0.5 - 8) / 7
                ray = np.stack([np.full(400, x), np.full(400, y), depths], axis=1)
                margin = (ray @ (normals @ turn[0].T).T - distances).max(1).min()
                if abs(margin) > 0.02:
                    assert (image[row, column] > 0) == (margin < 0)

    def test_rotations_are_proper_and_point_everywhere(self) -> None:
        result = rotations(4000, np.random.default_rng(0))
        np.testing.assert_allclose(
            result @ result.transpose(0, 2, 1), np.broadcast_to(np.eye(3), result.shape), atol=1e-5
        )
        np.testing.assert_allclose(np.linalg.det(result), 1, atol=1e-5)
        np.testing.assert_allclose(result.mean(0), 0, atol=0.05)
        np.testing.assert_allclose((result**2).mean(0), 1 / 3, atol=0.03)

    def test_places_and_scales_are_factors_where_they_vary(self) -> None:
        plain, moved = (
            solids(count=20, size=16),
            solids(count=200, positions=3, scales=2, size=16),
        )
        assert list(plain.factors) == ["solid"] and list(moved.factors) == ["solid", "x", "y", "scale"]
        columns = (moved.images[..., 0].sum(1) * np.arange(16)).sum(1) / moved.images.sum((1, 2, 3))
        means = [columns[moved.factors["x"] == place].mean() for place in range(3)]
        assert means[0] < means[1] - 2 < means[2] - 4
        assert ck.data.load("solids").classes == SOLIDS


def write_dsprites(folder: Path, **changes: Any) -> Path:
    draw = np.random.default_rng(0)
    classes = np.array([[0, a, b, 0, c, 0] for a in range(3) for b in range(2) for c in range(5)])
    arrays = {
        "imgs": draw.integers(0, 2, (30, 8, 8)).astype(np.uint8),
        "latents_classes": classes,
        "metadata": np.array({"a": 1}, dtype=object),
        **changes,
    }
    np.savez(folder / "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz", **arrays)
    return folder / "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"


def write_norb(file: Path, values: np.ndarray) -> None:
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[str(values.dtype)]
    lengths = [*values.shape, *[1] * (3 - values.ndim)]
    file.write_bytes(struct.pack(f"<{2 + len(lengths)}i", magic, values.ndim, *lengths) + values.tobytes())


def write_smallnorb(folder: Path) -> None:
    draw = np.random.default_rng(0)
    for split, count in (("training", 6), ("testing", 4)):
        info = np.stack(
            [np.arange(count), np.arange(count) % 9, 2 * np.arange(count), np.arange(count) % 6], axis=1
        )
        for what, values in (
            ("dat", draw.integers(0, 255, (count, 2, 8, 8)).astype(np.uint8)),
            ("cat", (np.arange(count) % 5).astype(np.int32)),
            ("info", info.astype(np.int32)),
        ):
            write_norb(folder / f"smallnorb-5x46789x9x18x6x2x96x96-{split}-{what}.mat", values)


def write_celeba(folder: Path, lines: str = "3\nBald Male\n1.jpg -1 1\n2.jpg 1 -1\n3.jpg -1 -1\n") -> Path:
    (folder / "celeba" / "img_align_celeba").mkdir(parents=True)
    (folder / "celeba" / "list_attr_celeba.txt").write_text(lines)
    for number in (1, 2, 3):
        face = Image.new("RGB", (12, 20), (200, 0, 0))
        face.paste((0, 0, 60 * number), (0, 4, 12, 16))  # the square in the middle
        face.save(folder / "celeba" / "img_align_celeba" / f"{number}.jpg", quality=100, subsampling=0)
    return folder / "celeba"


class TestReaders:
    """Tiny files in the published formats."""

    def test_dsprites_are_read_whole_or_in_part_and_its_pickle_is_not(self, tmp_path: Path) -> None:
        file = write_dsprites(tmp_path)
        whole, some = dsprites(str(tmp_path)), dsprites(tmp_path, count=7, seed=1)
        with np.load(file) as pack:
            assert (whole.images[..., 0] == pack["imgs"] * 255).all()
        assert {name: len(value) for name, value in whole.values.items()} == {
            **{"shape": 3, "scale": 2, "orientation": 1, "x": 5, "y": 1}
        }
        assert len(some) == 7 and {bytes(image) for image in some.images} <= {
            bytes(image) for image in whole.images
        }
        data = ck.data.load("dsprites", root=tmp_path)
        assert data.classes == SHAPES and len(data.train) + len(data.test) == 30

    @pytest.mark.parametrize(
        "changes",
        [
            {"imgs": np.zeros((30, 8), dtype=np.uint8)},
            {"imgs": np.full((30, 8, 8), 7, dtype=np.uint8)},
            {"latents_classes": np.zeros((30, 2), dtype=np.int64)},
        ],
    )
    def test_other_arrays_are_refused(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        file = write_dsprites(tmp_path, **changes)
        with pytest.raises(DataError) as caught:
            dsprites(tmp_path)
        assert caught.value.subject == file

    def test_cars_are_in_the_order_of_elevation_azimuth_and_file(self, tmp_path: Path) -> None:
        from scipy.io import savemat

        (tmp_path / "cars").mkdir()
        for number, name in enumerate(("a", "b")):
            mesh = np.zeros((6, 6, 3, 24, 4), dtype=np.uint8)
            mesh += (np.arange(24, dtype=np.uint8)[:, None] * 4 + np.arange(4, dtype=np.uint8))[
                None, None, None
            ]
            mesh += np.uint8(100 * number)
            savemat(tmp_path / "cars" / f"{name}.mat", {"im": mesh})
        data = cars3d(str(tmp_path), size=4)
        assert data.images.shape == (192, 4, 4, 3) and data.values["type"] == ("a", "b")
        result = data.factors["azimuth"] * 4 + data.factors["elevation"] + 100 * data.factors["type"]
        assert (data.images[:, 2, 2, 0] == result).all()
        assert ck.data.load("cars3d", root=tmp_path).classes == ("0", "1", "2", "3")

    def test_smallnorb_keeps_the_authors_test_images(self, tmp_path: Path) -> None:
        write_smallnorb(tmp_path)
        data = smallnorb(str(tmp_path), size=8)
        assert data.factors["azimuth"].tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
        assert data.partition()[1].tolist() == [6, 7, 8, 9]
        loaded = ck.data.load("smallnorb", root=tmp_path)
        assert (len(loaded.train), len(loaded.test), loaded.train.size) == (6, 4, (64, 64))

    def test_celeba_is_cut_to_its_middle_square(self, tmp_path: Path) -> None:
        data = celeba(str(write_celeba(tmp_path)), size=6)
        assert data.factors["Bald"].tolist() == [0, 1, 0] and data.factors["Male"].tolist() == [1, 0, 0]
        assert np.abs(data.images[:, 3, 3, 2].astype(int) - [60, 120, 180]).max() < 12
        assert data.images[..., 0].max() < 60  # nothing of the red border
        assert ck.data.load("celeba", root=tmp_path).classes == ("no", "yes")

    @pytest.mark.parametrize(
        "lines",
        ["", "1\nBald\n1.jpg 2\n", "1\nBald Male\n1.jpg 1\n", "1\nBald\n9.jpg 1\n", "1\nBald\n1.jpg x\n"],
    )
    def test_damaged_lists_and_missing_faces_are_refused(self, tmp_path: Path, lines: str) -> None:
        with pytest.raises(DataError):
            celeba(write_celeba(tmp_path, lines))

    def test_damaged_files_are_refused(self, tmp_path: Path) -> None:
        write_smallnorb(tmp_path)
        files = sorted(tmp_path.iterdir())
        whole = files[0].read_bytes()
        for content in (b"", whole[:-3], b"x" * 40):
            files[0].write_bytes(content)
            with pytest.raises(DataError) as caught:
                smallnorb(tmp_path)
            assert caught.value.subject == files[0]
        files[0].unlink()
        with pytest.raises(DataError) as caught:
            smallnorb(tmp_path)
        assert caught.value.subject == "smallnorb"
        (tmp_path / "cars").mkdir()
        wrong = tmp_path / "cars" / "car.mat"
        wrong.write_bytes(b"no matlab")
        with pytest.raises(DataError) as caught:
            cars3d(tmp_path)
        assert caught.value.subject == wrong

    @pytest.mark.parametrize("name", ["dsprites", "cars3d", "smallnorb", "celeba"])
    def test_a_folder_without_them_is_named(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(DataError) as caught:
            ck.data.load(name, root=tmp_path)
        assert caught.value.subject == name


class TestFactored:
    """Labels by factor, samples, refusals."""

    def test_any_factor_can_be_the_label(self) -> None:
        data = sprites(scales=2, orientations=3, positions=4, size=16)
        by_place = data.labeled("x", seed=2)
        train, test = data.partition(seed=2)
        assert by_place.classes == ("0", "1", "2", "3")
        assert (by_place.test.labels == data.factors["x"][test]).all()
        assert not set(train) & set(test) and len(train) + len(test) == len(data)
        with pytest.raises(UnknownName) as caught:
            data.labeled("color")
        assert caught.value.subject == "color"

    def test_a_sample_keeps_factors_and_test_images(self) -> None:
        images = np.arange(20, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 1), dtype=np.uint8)
        data = Factored("n", images, {"a": np.arange(20) % 4}, {"a": tuple("wxyz")}, np.arange(15, 20))
        some = data.take(9, seed=0)
        assert (some.images[:, 0, 0, 0] % 4 == some.factors["a"]).all()
        assert (some.images[some.partition()[1], 0, 0, 0] >= 15).all()
        assert data.take(99) is data

    def test_values_out_of_range_are_refused(self) -> None:
        with pytest.raises(DataError):
            Factored("n", np.zeros((2, 2, 2, 1), np.uint8), {"a": np.array([0, 2])}, {"a": ("x", "y")})

    @pytest.mark.parametrize("make", [lambda: sprites(scales=0), lambda: solids(count=0, size=16)])
    def test_counts_below_one_are_refused(self, make: Any) -> None:
        with pytest.raises(DataError):
            make()
