"""What is an address, what is a path, and what is refused because it only looks like one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compatkit.errors import UsageError
from compatkit.foundation.addresses import is_url, local, normalized


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("s3://bucket/team", "s3://bucket/team"),
        ("S3://Bucket/Team", "s3://Bucket/Team"),  # schemes have no case, the rest has
        ("HF://datasets/me/x", "hf://datasets/me/x"),
        ("hTTps://host/x", "https://host/x"),
        ("seeing://x", "seeing://x"),  # whether there is such a protocol is fsspec's to say
        ("file:///data/team", "/data/team"),
        ("FILE:///data/team", "/data/team"),
        ("file://localhost/data/a%20b", "/data/a b"),
        ("local:///data", "/data"),
    ],
)
def test_urls_have_schemes_in_lower_case_and_files_are_paths(address: str, expected: str):
    assert normalized(address) == expected


@pytest.mark.parametrize(
    "path",
    [
        "parts",
        "../parts",
        "~/parts",
        "/a/b:c/d",
        "data//train",
        "12:30.csv",
        "a b:c",
        "x/y:z/w",
        "file",
        "s3",
        "s3/b",
    ],
)
def test_paths_stay(path: str):
    assert normalized(path) == path
    assert local(path, "a folder") == path


@pytest.mark.parametrize(
    "address",
    [
        *(
            "s3:/bucket",
            "s3:bucket",
            "S3:/bucket",
            "gs:/x",
            "hf:/x",
            "https:/host",
            "file:/x",
            "abc:/x",
            "s3:",
        ),
        *(
            "http//:host/x",
            "https//host/x",
            "s3//bucket",
            "s3;//bucket",
            "s_3://bucket",
            " s3://bucket",
            "://x",
        ),
        *(
            "s3:\\\\bucket",
            "s4:bucket",
            "a:b",
            "out/s3://bucket",
            "/abs/s3://bucket",
            "~/gs://b",
            "./s3://bucket",
        ),
        *("s3:///bucket", "s3://", "gs://", "file://", "file://host/x", "file://~/x", "zip::s3://b/x"),
        *(Path("s3://bucket"), Path("gs:/x"), Path("abc://x"), Path("s3:bucket"), Path("FILE:/x")),
    ],
)
def test_what_only_looks_like_an_address_is_refused(address: str | Path):
    with pytest.raises(UsageError) as error:
        normalized(address)
    assert error.value.subject


@pytest.mark.parametrize("address", ["C:\\parts", "d:/parts", "C:/"])
@pytest.mark.skipif(os.name == "nt", reason="these are paths there")
def test_a_path_of_windows_is_refused_elsewhere(address: str):
    with pytest.raises(UsageError, match="Windows"):
        normalized(address)


def test_a_name_with_a_colon_is_written_so_that_it_stays_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert normalized("./a:b") == str(tmp_path / "a:b")
    assert normalized("./s3:/b") == str(tmp_path / "s3:" / "b")
    assert normalized(Path("a:b")) == "a:b"
    assert normalized(tmp_path / "s3:b") == str(tmp_path / "s3:b")


@pytest.mark.parametrize("address", ["s3://bucket", "hf://datasets/me/x", "unknown://x"])
def test_a_path_is_expected_where_another_machine_is_named(address: str):
    assert is_url(normalized(address))
    with pytest.raises(UsageError) as error:
        local(address, "a registry")
    assert error.value.subject == address


@pytest.mark.parametrize("address", ["s3:/me:secret@bucket", "s3:me:secret@bucket", "s3:///me:secret@bucket"])
def test_passwords_are_not_repeated(address: str):
    with pytest.raises(UsageError) as error:
        normalized(address)
    assert "secret" not in str(error.value)
