"""torchvision's data sets are read from a local folder: nothing fetched, no unknown pickle opened."""

from __future__ import annotations

import bz2
import pickle
from pathlib import Path

import numpy as np
import pytest

from compatkit.data import load
from compatkit.errors import DataError, EnvironmentFailure
from compatkit_plugins.data_sets.torchvision import SOURCES, default_root

LABELS = np.array([3, 0, 9, 3], np.uint8)


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


def write_mnist(root: Path, kind: str = "MNIST") -> np.ndarray:
    """Write four images a split in the format of MNIST (big-endian header, then bytes)."""
    raw, images = root / kind / "raw", noise(4, 28, 28)
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        head = b"\x00\x00\x08\x03" + b"".join(size.to_bytes(4, "big") for size in (4, 28, 28))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(
            b"\x00\x00\x08\x01\x00\x00\x00\x04" + LABELS.tobytes()
        )
    return images


def test_mnist_is_found_in_the_folder_given(tmp_path):
    images = write_mnist(tmp_path)
    data = load("mnist", root=tmp_path)
    assert data.name == "mnist"
    assert data.classes == tuple("0123456789")
    assert (data.train.images[..., 0] == images).all()
    assert data.test.labels.tolist() == LABELS.tolist()


def test_mnist_is_found_in_torchvisions_own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    assert default_root() == tmp_path / "home" / "datasets"
    write_mnist(default_root())
    assert load("MNIST", root=tmp_path / "elsewhere").train.counts[3] == 2


def test_the_default_folder_without_torch_home(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCH_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_root() == tmp_path / "torch" / "datasets"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_root() == Path.home() / ".cache" / "torch" / "datasets"


def test_fashion_mnist_keeps_its_names(tmp_path):
    write_mnist(tmp_path, "FashionMNIST")
    for spelling in ("FashionMNIST", "fashion-mnist", "fashion_mnist"):
        data = load(spelling, root=tmp_path)
        assert data.name == "fashion-mnist"
        assert data.classes[9] == "Ankle boot"


def test_usps_is_read_from_its_text_file(tmp_path):
    values = np.linspace(-1, 1, 256)
    lines = "".join(
        f"{label + 1} " + " ".join(f"{i}:{v:.6f}" for i, v in enumerate(values, 1)) + "\n" for label in (4, 0)
    )
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / name).write_bytes(bz2.compress(lines.encode()))
    data = load("usps", root=tmp_path)
    assert data.train.labels.tolist() == [4, 0]
    assert (data.train.size, data.train.images[0].min(), data.train.images[0].max()) == ((16, 16), 0, 255)


def test_stl10_has_its_channels_last_and_its_names(tmp_path, monkeypatch):
    from torchvision.datasets import STL10

    folder, images = tmp_path / "stl10_binary", noise(2, 3, 96, 96)
    folder.mkdir()
    names = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]
    (folder / "class_names.txt").write_text("\n".join(names) + "\n")
    for part in ("train", "test"):
        # The file is column-major: torchvision transposes height and width.
        (folder / f"{part}_X.bin").write_bytes(images.transpose(0, 1, 3, 2).tobytes())
        (folder / f"{part}_y.bin").write_bytes(bytes([1, 10]))
    monkeypatch.setattr(STL10, "_check_integrity", lambda self: True)
    data = load("stl10", root=tmp_path)
    assert data.classes == tuple(names)
    assert (data.train.images == images.transpose(0, 2, 3, 1)).all()
    assert data.test.labels.tolist() == [0, 9]


def test_svhn_has_digits_as_names(tmp_path, monkeypatch):
    from torchvision.datasets import SVHN

    class Stub:
        def __init__(self, root: str, split: str, download: bool) -> None:
            assert not download
            self.data, self.labels = noise(2, 3, 32, 32), np.array([1, 0])

    (tmp_path / "train_32x32.mat").touch()
    monkeypatch.setattr("torchvision.datasets.SVHN", Stub)
    data = load("svhn", root=tmp_path)
    assert (data.train.size, data.train.channels, data.classes) == ((32, 32), "RGB", tuple("0123456789"))
    assert SVHN.__name__ in {source.kind for source in SOURCES.values()}


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    ("name", "folder"), [("cifar10", "cifar-10-batches-py"), ("cifar100", "cifar-100-python")]
)
def test_a_cifar_folder_with_foreign_pickles_is_refused_unopened(tmp_path, name, folder):
    mark = tmp_path / "ran"
    (tmp_path / folder).mkdir()
    for file in (
        *(f"data_batch_{i}" for i in range(1, 6)),
        "test_batch",
        "batches.meta",
        "train",
        "test",
        "meta",
    ):
        (tmp_path / folder / file).write_bytes(pickle.dumps(Bomb(mark)))
    with pytest.raises(DataError, match="is damaged or not complete"):
        load(name, root=tmp_path)
    assert not mark.exists()


def test_an_incomplete_folder_is_said_to_be_so(tmp_path):
    write_mnist(tmp_path)
    (tmp_path / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        DataError, match=r"torchvision's MNIST in .* is damaged or not complete: Dataset not found"
    ):
        load("mnist", root=tmp_path)


def test_a_truncated_file_is_said_to_be_damaged(tmp_path):
    write_mnist(tmp_path)
    file = tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(DataError, match="is damaged or not complete"):
        load("mnist", root=tmp_path)
    (tmp_path / "usps.bz2").write_bytes(b"BZh9 no more")
    with pytest.raises(DataError, match=r"torchvision's USPS .* is damaged"):
        load("usps", root=tmp_path)


def test_nothing_is_fetched_unless_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "torchvision.datasets.MNIST.download", lambda self: pytest.fail("went to the network")
    )
    with pytest.raises(
        DataError, match=r"'mnist' is in none of these folders: .*or allow the download"
    ) as caught:
        load("mnist", root=tmp_path)
    assert (caught.value.code, caught.value.subject) == ("data-unavailable", "mnist")
    assert str(tmp_path) in str(caught.value) and str(default_root()) in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_download_goes_to_the_first_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "torchvision.datasets.MNIST.download",
        lambda self: Path(self.raw_folder).exists() or write_mnist(Path(self.root)),
    )
    assert len(load("mnist", root=tmp_path, download=True).train) == 4
    assert (tmp_path / "MNIST" / "raw").exists()


@pytest.mark.parametrize("error", [OSError("no route to host"), RuntimeError("Error downloading MNIST")])
def test_a_download_that_fails_is_the_environments_fault(tmp_path, monkeypatch, error):
    def fail(self):
        raise error

    monkeypatch.setattr("torchvision.datasets.MNIST.download", fail)
    with pytest.raises(
        EnvironmentFailure, match=f"MNIST cannot be fetched into .*{error}. Check the connection"
    ):
        load("mnist", root=tmp_path, download=True)
