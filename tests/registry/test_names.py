"""Names, versions and references: valid on every file system, or refused with the rule."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import PurePath, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compatkit.errors import InvalidName
from compatkit.registry.names import (
    Range,
    Reference,
    Version,
    check_alias,
    check_digest,
    check_name,
    check_segment,
)

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize("name", ["a", "mnist.head", "digits/mnist.extractor", "a/b/c", "0-1_2.3", "a" * 64])
def test_good_names_are_returned(name: str):
    assert check_name(name) == name


@pytest.mark.case("B1", "B3")
@pytest.mark.parametrize(
    "name",
    [
        *("", "/", "a/", "/a", "a//b", "a/b/c/d", ".", "..", "../a", "a/../b", "a/..", "a..b", "./a"),
        *("..\\a", "a\\b", "/etc/passwd", "C:\\a", "C:/a", "D:rel", "\\\\server\\share", "\\x"),
        *("con", "nul.txt", "a/com1", "lpt9.head", "aux", "a/prn"),
        *("a.", "a ", " a", "a:b", "a@b", "-a", "a-", "_a", ".hidden", "@versions", "a/@aliases"),
        *(
            "//server/share",
            "\\\\?\\C:\\x",
            "a/..\\..\\b",
            "..%2f..",
            "a/C:/b",
            "nul",
            "com0",
            "lpt1.x.y",
            "a/con.b",
        ),
        *("A", "Digits/Mnist", "a" * 65, "a" * 300, "a\nb", "a\0", "a\n", "~", "$HOME", "%2e%2e"),
        *("a" * 256, "a/" * 200 + "a", "\u212a", "\u0131", "a\u200db", "a\ufe0fb", "\ufeffa"),
        *("é", "e\u0301", "\u0430bc", "\u202eabc", "\U0001f600", "\ud800", "\u0661"),
    ],
    ids=ascii,
)
def test_bad_names_are_refused(name: str):
    with pytest.raises(InvalidName) as caught:
        check_name(name)
    assert caught.value.exit_code == 2


hostile = st.text(
    st.one_of(st.sampled_from("ab1./\\:@^-_~ \0\n\u0130\u212a\u0301"), st.characters(exclude_categories=[])),
    max_size=24,
)
written = st.text(st.sampled_from("ab9.-_"), min_size=1, max_size=8).map(lambda text: text.strip("."))


@pytest.mark.case("B1", "B4")
@given(hostile | st.lists(written, min_size=1, max_size=4).map("/".join))
def test_what_is_taken_stays_below_its_folder_under_the_rules_of_every_system(text: str):
    taken: dict[Callable[[str], object], list[str]] = {
        check_name: text.split("/") if isinstance(text, str) else [],
        check_segment: [text],
        check_alias: [text],
        check_digest: [text],
        Version.parse: [text],
    }
    for check, parts in taken.items():
        try:
            check(text)
        except InvalidName:
            continue
        roots: list[PurePath] = [PurePosixPath("/r/refs"), PureWindowsPath("C:\\r\\refs")]
        for root in roots:
            if check is not check_digest:  # its colon is taken off before the rest becomes a path
                assert list(root.joinpath(*parts).parts) == [*root.parts, *parts]
        assert text == text.casefold() == unicodedata.normalize("NFKC", text) and text.isascii()


@pytest.mark.parametrize("value", [None, 3, b"a"])
def test_what_is_no_text_is_no_name(value: object):
    with pytest.raises(InvalidName):
        check_name(value)  # type: ignore[arg-type]


def test_a_name_in_capitals_gets_a_suggestion():
    with pytest.raises(InvalidName, match=r"perhaps 'mnist.head'"):
        check_name("Mnist.Head")


@pytest.mark.case("B6")
@pytest.mark.parametrize(
    "version",
    [
        *("1", "1.0", "01.0.0", "1.0.0+x", "1.0.0-rc1", "v1.0.0", "1.0.0 ", "1..0", "-1.0.0", "1.0.0.0"),
        *(
            "",
            "\u0661.0.0",
            "1234567890.0.0",
            "1.0.0\n",
            "00.0.0",
            "1.0.0+",
            "1.0.0/../2.0.0",
            "1,0,0",
            "0x1.0.0",
        ),
    ],
)
def test_versions_have_one_spelling(version: str):
    with pytest.raises(InvalidName):
        Version.parse(version)


def test_versions_order_by_number_not_by_letter():
    texts = ["1.10.0", "1.9.0", "10.0.0", "1.9.11", "0.1.0"]
    assert [str(entry) for entry in sorted(map(Version.parse, texts))] == [
        *("0.1.0", "1.9.0", "1.9.11", "1.10.0", "10.0.0")
    ]


def test_bumps():
    version = Version(1, 2, 3)
    bumps = [str(version.bumped(bump)) for bump in ("none", "patch", "minor", "major")]
    assert bumps == ["1.2.3", "1.2.4", "1.3.0", "2.0.0"]


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("^1", ["1.0.0", "1.99.0"], ["0.9.9", "2.0.0"]),
        ("^1.2", ["1.2.0", "1.10.0"], ["1.1.9", "2.0.0"]),
        ("^1.2.3", ["1.2.3", "1.3.0"], ["1.2.2", "2.0.0"]),
        ("^0", ["0.0.0", "0.9.0"], ["1.0.0"]),
        ("^0.3", ["0.3.0", "0.3.9"], ["0.4.0", "0.2.9"]),
        ("^0.0", ["0.0.7"], ["0.1.0"]),
        ("^0.0.3", ["0.0.3"], ["0.0.4", "0.0.2"]),
    ],
)
def test_a_range_ends_where_something_may_break(text: str, inside: list[str], outside: list[str]):
    wanted = Range.parse(text)
    assert str(wanted) == text
    assert all(Version.parse(entry) in wanted for entry in inside)
    assert not any(Version.parse(entry) in wanted for entry in outside)


numbers = st.integers(0, 999_999_999)
versions = st.builds(Version, numbers, numbers, numbers)


@given(versions)
def test_a_version_is_what_it_prints(version: Version):
    assert Version.parse(str(version)) == version


@given(versions, st.sampled_from(["patch", "minor", "major"]))
def test_a_bump_is_a_step_up(version: Version, bump):
    assert version.bumped(bump) > version


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("a/b", Reference("a/b")),
        ("a/b@1.2.0", Reference("a/b", Version(1, 2, 0))),
        ("a/b@^1.2", Reference("a/b", range=Range.parse("^1.2"))),
        ("a/b:prod", Reference("a/b", alias="prod")),
        (f"a/b@{DIGEST}", Reference("a/b", digest=DIGEST)),
    ],
)
def test_references_are_read_and_written(text: str, reference: Reference):
    assert Reference.parse(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize(
    "text",
    ["@1.0.0", "a@", "a@latest", "a@1.0", "a:1.0.0", "a:v1", "a:latest", "a:", "a:b:c", "a@1.0.0:prod"],
)
def test_bad_references_are_refused(text: str):
    with pytest.raises(InvalidName):
        Reference.parse(text)


@pytest.mark.case("B2")
@pytest.mark.parametrize(
    "digest",
    [
        *("sha256:", "sha256:" + "0" * 63, "sha256:" + "0" * 65, DIGEST.upper(), DIGEST.replace("a", "A")),
        *("sha256:../../x", "md5:" + "0" * 32, "0" * 64, DIGEST + "\n", "sha256:" + "g" * 64, ""),
    ],
)
def test_digests_have_one_spelling_so_that_none_is_a_path(digest: str):
    with pytest.raises(InvalidName):
        check_digest(digest)


@pytest.mark.case("B1", "B6")
@pytest.mark.parametrize("alias", ["1.0.0", "1", "v2", "latest", "a/b", "", "Prod", "a@b", "../x"])
def test_an_alias_never_looks_like_a_version_or_a_path(alias: str):
    with pytest.raises(InvalidName):
        check_alias(alias)
