"""WebDataset shards: indexed once, read by byte ranges in any order, here and at URLs; what is damaged is refused."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import sys
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.registry import _registry as known
from photos import encoded, photo

import compatkit as ck
from compatkit.data import shardindex
from compatkit.data.filesystem import FileSystem
from compatkit.data.validation import DataWarning
from compatkit.errors import CompatkitError, DataError, EnvironmentFailure, MissingDependency

COUNT = 6


def samples(count: int = COUNT, seed: int = 0, ending: str = "png") -> dict[str, bytes]:
    """Return members by name: photos of their own sizes in three classes."""
    result = {}
    for place in range(count):
        image = photo(8 + place % 3, 11, seed=seed + place)
        result[f"{seed + place:05}.{ending}"] = encoded(image, "JPEG" if ending == "jpg" else "PNG")
        result[f"{seed + place:05}.cls"] = str(place % 3).encode()
    return result


def shard(path: Path, members: dict[str, bytes], **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", **settings) as archive:
        for name, data in members.items():
            first = tarfile.TarInfo(name)
            first.size = len(data)
            archive.addfile(first, io.BytesIO(data))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "birds"
    shard(root / "birds-train-000.tar", samples())
    shard(root / "birds-train-001.tar", samples(seed=100))
    shard(root / "birds-val-000.tar", samples(3, seed=200))
    return root


def test_both_parts_by_the_names_of_shards(folder: Path) -> None:
    data = ck.data.load(folder)
    assert data.name == "birds" and data.classes == ("0", "1", "2")
    assert data.train.counts == (4, 4, 4) and data.test.counts == (1, 1, 1)
    for place, seed in ((7, 101), (0, 0), (11, 105)):
        assert np.array_equal(
            np.asarray(data.train.image(place)), np.asarray(photo(8 + seed % 100 % 3, 11, seed=seed))
        )
    assert data.train.images.reader.name(7) == f"{folder / 'birds-train-001.tar'}:00101.png"
    assert data.source is not None and data.source.spec == {"name": str(folder)}


def test_members_of_a_sample_need_not_stand_together(tmp_path: Path) -> None:
    members = samples(12)
    apart = dict(sorted(members.items(), key=lambda member: member[0].rpartition(".")[::-1]))
    together, other = (
        ck.data.load(shard(tmp_path / name / "a.tar", some)) for name, some in (("a", members), ("b", apart))
    )
    for value, two in ((together.train, other.train), (together.test, other.test)):
        assert (value.labels == two.labels).all() and value.image_digests == two.image_digests


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves the shard open
def test_the_webdataset_library_reads_the_same(folder: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    path = folder / "birds-train-000.tar"
    split = ck.data.load(path, hold_out=0.5)
    mine = {}
    for part in (split.train, split.test):
        for place, position in enumerate(part.images.positions):
            mine[part.images.reader.read(int(position))] = part.classes[part.labels[place]]
    theirs = webdataset.WebDataset(str(path), shardshuffle=False)
    assert mine == {item["png"]: item["cls"].decode() for item in theirs}


def test_folders_of_parts_patterns_and_single_shards(tmp_path: Path, folder: Path) -> None:
    whole = ck.data.load(folder)
    for part, seeds in (("train", (0, 100)), ("test", (200,))):
        for number, seed in enumerate(seeds):
            count = 3 if part == "test" else COUNT
            shard(tmp_path / "training" / "of-birds" / part / f"{number}.tar", samples(count, seed=seed))
    data = ck.data.load(tmp_path / "training" / "of-birds")
    assert (data.train.digest, data.test.digest) == (whole.train.digest, whole.test.digest)
    assert ck.data.load(f"{folder}/*.tar").train.digest == whole.train.digest
    some = ck.data.load(f"{folder}/*train*.tar", hold_out=0.25)
    assert some.train.counts == (3, 3, 3) and some.name == "birds"
    load = ck.data.load(folder / "birds-train-001.tar", hold_out=0.5, seed=3)
    assert load.train.counts == (1, 1, 1) and load.name == "birds-train-001"
    with pytest.raises(DataError, match="test images of its own"):
        ck.data.load(folder, hold_out=0.25)


def test_recipes_take_patterns_beside_them(folder: Path) -> None:
    data = ck.data.load_spec({"name": "birds/*train*.tar", "hold_out": 0.5}, relative_to=folder.parent)
    assert data.train.counts == (2, 2, 2)
    assert (
        ck.data.load("birds/*train*.tar", root=folder.parent, hold_out=0.5).train.digest == data.train.digest
    )


def test_class_names(folder: Path) -> None:
    (folder / "classnames.txt").write_text("great tit\nwren\nrobin\n")
    assert ck.data.load(folder).classes == ("great tit", "wren", "robin")
    (folder / "classes.txt").write_text("tit\nwren\nrobin\n")
    assert ck.data.load(folder).classes == ("tit", "wren", "robin")
    (folder / "classes.txt").write_text("tit\nwren\n")
    with pytest.raises(DataError, match="from 0 to 1") as caught:
        ck.data.load(folder)
    assert caught.value.subject == "2"
    by_name = {name: (b"wren\n" if name.endswith("cls") else data) for name, data in samples().items()}
    path = shard(folder.parent / "named" / "x.tar", by_name)
    assert ck.data.load(path, hold_out=0.5).classes == ("wren",)


def test_other_members_folders_and_kinds_of_archives(tmp_path: Path) -> None:
    members = {f"./a.b/{name}": data for name, data in samples(ending="jpg").items()}
    more = {**members, "./a.b/00000.json": b"{}", "readme.txt": b"-", "./a.b/.hidden.png": b""}
    digests = set()
    for number, format in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        long = {f"{'x' * 60}/{'y' * 90}/{name}" if number else name: data for name, data in more.items()}
        path = shard(tmp_path / f"{number}.tar", long, format=format)
        data = ck.data.load(path, hold_out=0.5)
        digests.add(data.train.digest)
        assert data.train.counts == (1, 1, 1) and data.train.image(0).size == (11, 8)
    assert len(digests) == 1


def test_the_digest_is_of_images_and_classes(tmp_path: Path) -> None:
    first = ck.data.load(shard(tmp_path / "a.tar", samples()), hold_out=0.5).train
    renamed = {f"z{name}": data for name, data in samples().items()}
    assert ck.data.load(shard(tmp_path / "b" / "c.tar", renamed), hold_out=0.5).train.digest == first.digest
    other = {
        name: (b"1" if data == b"0" else b"0" if data == b"1" else data) for name, data in samples().items()
    }
    assert ck.data.load(shard(tmp_path / "d.tar", other), hold_out=0.5).train.digest != first.digest


def test_a_shard_is_indexed_once_and_again_when_it_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    plain = shardindex._build

    def spy(place: FileSystem, path: str, arrived: Any) -> Any:
        seen.append(Path(path).name)
        return plain(place, path, arrived)

    monkeypatch.setattr(shardindex, "_build", spy)
    before = ck.data.load(folder)
    assert len(seen) == 3
    seen.clear()
    assert ck.data.load(folder).train.digest == before.train.digest and not seen
    shard(folder / "birds-train-001.tar", samples(seed=300))
    assert ck.data.load(folder).train.digest != before.train.digest and seen == ["birds-train-001.tar"]


def test_a_shard_that_changes_after_it_was_indexed(folder: Path) -> None:
    split = ck.data.load(folder).train
    path = folder / "birds-train-001.tar"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError) as caught:
        split.image(11)
    assert caught.value.subject == str(path)
    path.unlink()
    with pytest.raises(DataError):
        split.image(11)
    assert split.image(0).size == (11, 8)


def test_shards_travel_to_worker_processes(folder: Path) -> None:
    split = ck.data.load(folder).train
    again = pickle.loads(pickle.dumps(split))
    assert np.array_equal(np.asarray(again.image(3)), np.asarray(split.image(3)))


def refused(path: Path | str, kind: type[CompatkitError] = DataError) -> CompatkitError:
    with pytest.raises(kind) as caught:
        ck.data.load(path, hold_out=0.5)
    return caught.value


def test_every_cut_of_a_shard_is_refused(tmp_path: Path) -> None:
    whole = shard(tmp_path / "a.tar", samples()).read_bytes()
    size = len(whole.rstrip(b"\0"))
    path = tmp_path / "b.tar"
    for end in [*range(0, size, 251), *range(512, size + 512, 512)]:
        path.write_bytes(whole[:end])
        assert refused(path).subject in (str(path), "0", "1", "2"), end
    path.write_bytes(whole[: (size + 511) // 512 * 512 + 512])  # a lone block of zeros ends it
    assert len(ck.data.load(path).train) == 3


@pytest.mark.parametrize("between", [b"", bytes(512 * 7)])
def test_archives_that_were_joined_by_their_bytes(tmp_path: Path, between: bytes) -> None:
    first = shard(tmp_path / "first.tar", samples()).read_bytes()
    second = shard(tmp_path / "second.tar", samples(seed=100)).read_bytes()
    path = tmp_path / "joined" / "0.tar"
    path.parent.mkdir()
    path.write_bytes(first + between + second)
    assert refused(path).subject == str(path) and "joined" in str(refused(path))
    path.write_bytes(first.rstrip(b"\0") + second)  # as a writer that was not closed, and one more
    assert refused(path).subject == str(path)
    path.write_bytes(first + bytes(10240))
    assert len(ck.data.load(path).train) == 3
    path.write_bytes(first + b"signature")
    assert refused(path).subject == str(path)


def test_archives_joined_by_tar_are_whole(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", samples())
    with tarfile.open(path, "a") as archive:
        for name, data in samples(seed=100).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    data = ck.data.load(path, hold_out=0.5)
    assert len(data.train) + len(data.test) == 2 * COUNT


def test_an_index_that_an_older_rule_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shard(tmp_path / "a.tar", samples())
    ck.data.load(path)
    path_state = FileSystem(str(path)).state(str(path))
    monkeypatch.setattr(shardindex, "RULE", shardindex.RULE + 1)
    monkeypatch.setattr(shardindex, "_build", lambda *_: pytest.fail("indexed again"))
    with pytest.raises(pytest.fail.Exception):
        ck.data.load(path)
    assert path_state is not None


@pytest.mark.parametrize(
    "more",
    [
        [("00000.cls", b"1")],
        [("./00000.cls", b"0")],
        [("00000.CLS", b"0")],
        [("00000.jpeg", b"x")],
        [("x/../00000.png", b"x")],
        [("00099.cls", b"1")],
        [("00099.heic", b"x"), ("00099.cls", b"1")],
        [("00099.jpg.gz", b"x")],
        [("00099.cls.gz", b"1")],
    ],
)
def test_samples_that_are_not_one_image_and_one_class(tmp_path: Path, more: list[tuple[str, bytes]]) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name, data in [*samples().items(), *more]:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    assert refused(path).subject == str(path)


@pytest.mark.parametrize("mark", [b"-1", b"nan", b" None ", b"n/a", b'"cat"'])
def test_labels_that_are_none(tmp_path: Path, mark: bytes) -> None:
    path = shard(tmp_path / "a.tar", samples(12) | {"00001.cls": mark, "00002.cls": mark})
    assert refused(path).subject == mark.decode().strip()
    (tmp_path / "classes.txt").write_text("0\n1\n2\nNone\n")
    if mark == b" None ":
        assert ck.data.load(path, hold_out=0.5).classes == ("0", "1", "2", "None")


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        (["train-00000-of-00002"], "train-00001-of-00002.tar"),
        (["train-00001-of-00002"], "train-00000-of-00002.tar"),
        (["a-1-of-3", "a-3-of-3"], "a-2-of-3.tar"),
        (["a_00_of_02", "a_01_of_03"], "a_01_of_02.tar"),
        (["train-0-of-1", "val-0-of-2"], "val-1-of-2.tar"),
    ],
)
def test_sets_of_which_a_shard_is_missing(tmp_path: Path, names: list[str], lost: str) -> None:
    for place, name in enumerate(names):
        shard(tmp_path / "set" / f"{name}.tar", samples(seed=100 * place))
    for address in (tmp_path / "set", tmp_path / "set" / "*.tar"):
        assert refused(address).subject == str(tmp_path / "set" / lost)
    with pytest.warns(DataWarning, match="one of a set"):
        ck.data.load(tmp_path / "set" / f"{names[-1]}.tar", hold_out=0.5)


def test_whole_sets_and_some_of_one(tmp_path: Path) -> None:
    for place in range(3):
        shard(tmp_path / f"a-{place:05}-of-00003.tar", samples(seed=100 * place))
        shard(tmp_path / f"b-{place + 1}-of-3.tar", samples(seed=1000 + 100 * place))
        shard(tmp_path / f"c-{place}-of-3-{place}0f3c5d7e9a1b2c4.tar", samples(seed=2000 + 100 * place))
    data = ck.data.load(tmp_path)
    assert len(data.train) + len(data.test) == 9 * COUNT
    data = ck.data.load(f"{tmp_path}/a-0000[01]-of-*.tar")  # these are meant, and the third is there
    assert len(data.train) + len(data.test) == 2 * COUNT


@pytest.mark.parametrize(
    "name", ["b.tar.gz", "b.tgz", "b.tar.part", "b.tar.zst", "B.TAR.crdownload", "b.TAR"]
)
def test_shards_that_would_be_left_out(tmp_path: Path, name: str) -> None:
    shard(tmp_path / "a.tar", samples())
    (tmp_path / name).write_bytes(b"x")
    (tmp_path / "a.tar.idx").write_bytes(b"")
    assert refused(tmp_path).subject == str(tmp_path / name)
    if ".tar" in name:
        assert refused(f"{tmp_path}/*.tar").subject == str(tmp_path / name)
    assert len(ck.data.load(f"{tmp_path}/a*.tar").train) == 3


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_one_shard_by_two_names(tmp_path: Path, link: Any) -> None:
    shard(tmp_path / "train-0.tar", samples())
    link(tmp_path / "train-0.tar", tmp_path / "val-0.tar")
    assert refused(tmp_path).subject == str(tmp_path / "val-0.tar")


@pytest.mark.parametrize(
    ("train", "test"), [("Train", "Test"), ("TRAINING", "dev"), ("x-train2017", "holdout")]
)
def test_parts_in_any_spelling(tmp_path: Path, train: str, test: str) -> None:
    shard(tmp_path / f"{train}-0.tar", samples())
    shard(tmp_path / test / "0.tar", samples(3, seed=100))
    data = ck.data.load(tmp_path)
    assert (len(data.train), len(data.test)) == (COUNT, 3)


def test_test_shards_beside_those_of_validation_are_told(tmp_path: Path) -> None:
    for place, part in enumerate(("train", "val", "test")):
        shard(tmp_path / f"{part}-0.tar", samples(COUNT if part == "train" else 3, seed=100 * place))
    with pytest.warns(DataWarning, match="test is not used") as caught:
        assert len(ck.data.load(tmp_path).test) == 3
    assert [warning.filename for warning in caught] == [__file__]


def test_parts_within_a_shard(tmp_path: Path) -> None:
    members = [
        {f"{part}/{name}": data for name, data in samples(seed=place).items()}
        for place, part in enumerate(("Train", "val"))
    ]
    path = shard(tmp_path / "all.tar", members[0] | members[1])
    assert refused(path).subject == str(path)
    others = {name.replace("val/", "train/b/"): data for name, data in (members[0] | members[1]).items()}
    assert len(ck.data.load(shard(path, others), hold_out=0.5).train) == COUNT


@pytest.mark.parametrize("other", ["extra-0", "0", "calibration"])
def test_shards_of_no_part_beside_one(tmp_path: Path, other: str) -> None:
    shard(tmp_path / "train-0.tar", samples())
    shard(tmp_path / f"{other}.tar", samples(3, seed=100))
    assert refused(tmp_path).subject == other


def test_members_whose_names_are_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        for name, data in samples().items():
            member = tarfile.TarInfo(f"caf\u00e9-{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    data = ck.data.load(path, hold_out=0.5)
    assert len(data.train) == 3 and "caf" in data.train.images.reader.name(0)


def test_a_damaged_header_does_not_end_a_shard(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", samples())
    with tarfile.open(path) as archive:
        at = archive.getmembers()[6].offset
    data = bytearray(path.read_bytes())
    data[at + 150] ^= 0xFF  # its checksum
    path.write_bytes(data)
    error = refused(path)
    assert error.subject == str(path) and f"{at:,}" in str(error)


def test_archives_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for data in (b"", b"no archive" * 200, gzip.compress(shard(path, samples()).read_bytes())):
        path.write_bytes(data)
        assert refused(path).subject == str(path)
    shard(path, {"readme.txt": b"-"})
    assert "holds no images" in str(refused(path))
    for members in ({"a.heic": b"-"}, {"a.heic": b"-", "a.cls": b"0"}):
        error = refused(shard(path, members))
        assert error.subject == str(path) and "a.heic" in str(error)
    bare = samples()
    del bare["00003.cls"]
    assert "00003.png has no class" in str(refused(shard(path, bare)))
    assert "two images" in str(refused(shard(path, {**samples(), "00003.left.jpg": b""})))
    assert "Braces" in str(refused(tmp_path / "train-{0000..0001}.tar"))
    shard(path, {**samples(), "00003.part.cls": b"0"})  # neither the sample's image nor its class
    assert len(ck.data.load(path).train) + len(ck.data.load(path).test) == len(samples()) // 2
    assert refused(shard(path, {**samples(), "00003.cls": bytes(5000)})).subject == str(path)
    assert refused(tmp_path / "none-*.tar").subject
    assert refused(tmp_path / "none.tar").subject
    shard(tmp_path / "mixed" / "train-0.tar", samples())
    shard(tmp_path / "mixed" / "val-0.tar", samples())
    shard(tmp_path / "mixed" / "more.tar", samples())
    with pytest.raises(DataError) as caught:
        ck.data.load(tmp_path / "mixed")
    assert caught.value.subject == "more"


def test_links_and_sparse_members_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    shard(path, samples())
    with tarfile.open(path, "a") as archive:
        for name, kind in (
            ("9.png", tarfile.SYMTYPE),
            ("8.png", tarfile.LNKTYPE),
            ("7.png", tarfile.DIRTYPE),
        ):
            first = tarfile.TarInfo(name)
            first.type, first.linkname = kind, "/etc/passwd"
            archive.addfile(first)
    data = ck.data.load(path, hold_out=0.5)
    assert len(data.train) + len(data.test) == COUNT


@pytest.fixture
def remote(folder: Path) -> Iterator[tuple[str, Any]]:
    """Return the same shards at a URL, and the file system that holds them."""
    system = fsspec.filesystem("memory")
    for path in folder.iterdir():
        system.pipe_file(f"/bucket/birds/{path.name}", path.read_bytes())
    yield "memory://bucket/birds", system
    system.rm("/bucket", recursive=True)


def test_shards_at_a_url(folder: Path, remote: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    address, system = remote
    near, far = ck.data.load(folder), ck.data.load(address)
    assert (far.train.digest, far.test.digest, far.name) == (near.train.digest, near.test.digest, "birds")
    assert far.source is not None and far.source.spec == {"name": address}
    request: list[tuple[int, int]] = []
    plain = type(system).cat_file

    def spy(self: Any, path: str, start: int, end: int) -> bytes:
        request.append((start, end))
        return plain(self, path, start=start, end=end)

    monkeypatch.setattr(type(system), "cat_file", spy)
    assert np.array_equal(np.asarray(far.train.image(9)), np.asarray(near.train.image(9)))
    assert request == [(request[0][0], request[0][0] + len(near.train.images.reader.read(9)))]
    assert ck.data.load(f"{address}/*train*.tar", hold_out=0.5).train.counts == (2, 2, 2)
    monkeypatch.setattr(shardindex, "_build", lambda *_: pytest.fail("indexed again"))
    assert ck.data.load(address).train.digest == near.train.digest


def test_a_url_that_fails(remote: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    address, system = remote
    split = ck.data.load(address).train

    def fail(*_: object, **__: object) -> bytes:
        raise ConnectionResetError("the other side hung up")

    monkeypatch.setattr(type(system), "cat_file", fail)
    with pytest.raises(EnvironmentFailure) as caught:
        split.image(0)
    assert caught.value.subject == "/bucket/birds/birds-train-000.tar"


def test_what_may_change_unseen_is_not_remembered(
    remote: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, system = remote
    message = {"name": "x", "size": 1, "type": "file"}
    with monkeypatch.context() as patched:
        patched.setattr(type(system), "info", lambda self, path, **_: message)
        assert FileSystem(address).state("/bucket/birds/birds-train-000.tar") is None
        message["ETag"] = "a"
        assert FileSystem(address).state("/bucket/birds/birds-train-000.tar") is not None


def test_addresses_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("memory://bucket/none", "nowhere://bucket/x.tar", "simplecache::memory://bucket/x.tar"):
        assert refused(address).code == "data"
    error = refused("sftp://me:secret@host/x.tar")
    assert "secret" not in str(error)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(known, "s3", raising=False)
    assert refused("s3://bucket/x.tar", MissingDependency).subject == "s3://bucket/x.tar"


def test_indexing_tells_how_far_it_is(folder: Path) -> None:
    message: list[tuple[int, int, str]] = []
    ck.data.load(folder, progress=lambda *news: message.append(news))
    total = sum(path.stat().st_size for path in folder.iterdir())
    assert [value for value, _, _ in message] == sorted(value for value, _, _ in message)
    assert {value for _, value, _ in message} == {total} and message[-1][0] <= total


@pytest.mark.parametrize(
    ("numbers", "missing"),
    [("0 1 3", "2"), ("000 001 005", "2, 3, 4"), ("1 2 3", ""), ("7", ""), ("20240101 20240201", "")],
)
def test_a_gap_in_the_numbers_of_shards_is_told(numbers: str, missing: str, tmp_path: Path) -> None:
    for place, number in enumerate(numbers.split()):
        shard(tmp_path / "birds" / f"all-{number}.tar", samples(seed=100 * place))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = ck.data.load(tmp_path / "birds")
    assert len(data.train) + len(data.test) == COUNT * len(numbers.split())
    message = [str(warning.message) for warning in caught if warning.category is DataWarning]
    assert len(message) == bool(missing) and all(
        f"the numbers {missing} are missing" in text for text in message
    )
