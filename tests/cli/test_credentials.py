"""Credentials in addresses and options: no command prints them, whatever a back end says, and nothing stores them."""

from __future__ import annotations

import json
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import compatkit as ck
from compatkit.cli.output import warn
from compatkit.errors import CompatkitError, DataError, EnvironmentFailure, UsageError
from compatkit.foundation.bars import Lines
from compatkit.registry.remotes.address import locate
from compatkit.registry.remotes.pushpull import clone, pull, push
from compatkit.registry.store import Store

SECRET = "plain words"
"""A password without digits, marks or a telling form: only its place gives it away."""
TOKEN = "hunter2xyz"
ADDRESSES = [
    f"leaky://me:{TOKEN}@host/parts",
    f"leaky://{TOKEN}@host/parts",
    f"leaky://me:a/{TOKEN}@host/parts",
    f"leaky://me:a@b/{TOKEN}@host/parts",
    f"leaky://me:{SECRET}@host/parts",
    "leaky://me:plain%20words@host/parts",
    f"leaky://host/parts?sig={TOKEN}",
    f"leaky://host/parts?X-Amz-Signature={TOKEN}",
    f"leaky://host/parts#token={TOKEN}",
]
OPTIONS = [
    {"secret": SECRET},
    {"key": SECRET},
    {"token": TOKEN},
    {"client_kwargs": {"aws_secret_access_key": SECRET}},
    {"headers": {"Authorization": f"Bearer {SECRET}"}},
    {"headers": {"X-Own": SECRET}},
]


class Leaky(MemoryFileSystem):
    """A file system whose errors repeat everything it was opened with, also where they are the cause of another."""

    protocol = "leaky"
    error: type[BaseException] = OSError
    secrets: tuple[str, ...] = ()

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__()
        self.options = options

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        cls.opened = str(path)
        return "/parts"

    def _fail(self, *words: Any, **options: Any) -> Any:
        opened = f"{self.opened} with {json.dumps(self.options)} failed; {SECRET} and plain%20words are wrong"
        try:
            raise ValueError(f"Authorization: Bearer {TOKEN}: {opened}")
        except ValueError as cause:
            raise self.error(f"cannot open {opened}, {TOKEN}") from cause

    info = find = ls = cat_file = pipe_file = put_file = _fail


@pytest.fixture(autouse=True)
def leaky(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fsspec.register_implementation("leaky", Leaky, clobber=True)
    monkeypatch.setattr("compatkit_plugins.remotes.fsspec.PROTOCOLS", ("leaky",))
    monkeypatch.setattr("compatkit.foundation.credentials._known", {})
    yield


def check(*texts: object, address: str = "", options: Any = None) -> None:
    """Fail if a text has a secret that came with the address or the options, or that tells itself."""
    given = f"{address} {json.dumps(options or {})}".replace("%20", " ")
    for text in map(str, texts):
        assert TOKEN not in text, text
        if SECRET in given:
            assert SECRET not in text and "plain%20words" not in text, text


def known_from(address: str) -> dict[str, str]:
    # the back end repeats TOKEN in every error; an option tells it where the address does not
    return {} if TOKEN in address else {"token": TOKEN}


@pytest.mark.parametrize("error", [OSError, RuntimeError, PermissionError])
@pytest.mark.parametrize(
    ("address", "options"),
    [
        *((a, known_from(a)) for a in ADDRESSES),
        *(("leaky://host/parts", {"password": TOKEN, **o}) for o in OPTIONS),
    ],
)
def test_errors_of_back_ends_have_no_credentials(
    tmp_path: Path,
    address: str,
    options: dict[str, Any],
    error: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Leaky, "error", error)
    store = Store.init(tmp_path / "here")
    calls = (
        lambda: push(store, address, options=options),
        lambda: pull(store, address, options=options),
        lambda: clone(address, tmp_path / "new", options=options),
    )
    for call in calls:
        with pytest.raises(EnvironmentFailure) as caught:
            call()
        shown = "".join(traceback.format_exception(caught.value))
        check(caught.value, repr(caught.value), caught.value.subject, shown, address=address, options=options)
        assert "wrong" in str(caught.value)  # the rest of what the back end said
    check(repr(locate(address, options)), address=address, options=options)


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("command", ["push", "pull", "clone"])
def test_commands_print_no_credentials(run: Any, tmp_path: Path, address: str, command: str) -> None:
    run("init", tmp_path / "here")
    words = [command, address, *([tmp_path / "new"] if command == "clone" else [])]
    options = [f"{key}={value}" for key, value in known_from(address).items()]
    for more in ([], ["--json"], ["--traceback"], ["--quiet"]):
        result = run(
            "--registry", tmp_path / "here", *words, *(w for o in options for w in ("--option", o)), *more
        )
        assert result.code == 4
        check(result.out, result.err, address=address)
        assert "parts" in result.out + result.err or "***" in result.out + result.err


@pytest.mark.parametrize(
    "words",
    [
        ["pull", f"s3:/me:{TOKEN}@bucket"],
        ["pull", f"s3:me:{TOKEN}@bucket"],
        ["pull", f"http//:me:{TOKEN}@bucket"],
        ["pull", f"simplecache::s3://me:{TOKEN}@bucket"],
        ["pull", f"nobody://me:{TOKEN}@bucket"],
        ["pull", f"s3://bucket/x?sig={TOKEN}", "--no-such-option"],
        ["pull", "s3://bucket", "--option", TOKEN],
        ["pull", "s3://bucket", "--option", f"secret-key={TOKEN}"],
        ["clone", "s3://bucket", "new", f"https://me:{TOKEN}@h"],
        ["show", f"https://me:{TOKEN}@h/digits"],
        ["show", f"hf://{TOKEN}@h/digits"],
        ["show", f"sftp://me:a/{TOKEN}@h/digits"],
        ["import", f"s3://me:{TOKEN}@bucket"],
        ["inspect", f"https://me:{TOKEN}@h/x.safetensors"],
        ["adopt", f"https://me:{TOKEN}@h/x.pt", "resnet18", "layer3", "a"],
        ["data", f"https://me:{TOKEN}@h/x.tar"],
        ["data", f"https://h/x.tar?X-Amz-Signature={TOKEN}"],
        ["data", f"https://h/x.tar?sv=1&sig={TOKEN}"],
        ["ls", "--registry", f"s3://me:{TOKEN}@bucket"],
    ],
)
def test_refused_words_of_a_command_line_are_printed_without_credentials(
    run: Any, tmp_path: Path, words: list[str]
) -> None:
    run("init", "here")
    registry = [] if "--registry" in words else ["--registry", "here"]
    for more in ([], ["--json"], ["--traceback"]):
        result = run(*registry, *words, *more)
        assert result.code in (2, 3, 4), result
        check(result.out, result.err)


def test_the_name_of_a_signing_key_is_printed(run: Any) -> None:
    run("init", "here")
    result = run("--registry", "here", "sign", "digits@1.0.0", "--key=release")
    assert result.code == 2 and "***" not in result.err
    result = run("pull", "memory://nothing", f"--option=secret={TOKEN}", TOKEN)
    check(result.out, result.err)


def test_a_defect_is_reported_without_credentials(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*words: Any, **options: Any) -> None:
        raise ZeroDivisionError(f"s3://me:{TOKEN}@bucket and token={TOKEN}")

    monkeypatch.setattr(Store, "init", fail)
    for more in ([], ["--json"]):
        result = run("init", "here", *more)
        assert result.code == 70 and "s3://bucket" in result.err + result.out
        check(result.out, result.err)


@pytest.mark.parametrize(
    "address",
    [f"https://me:{TOKEN}@h/x.tar", f"https://h/x.tar?sig={TOKEN}", f"s3://me:a/{TOKEN}@b/x-*.tar"],
)
def test_a_data_set_at_an_address_with_credentials_is_refused_as_it_would_be_stored(address: str) -> None:
    with pytest.raises(DataError) as caught:
        ck.data.load(address)
    check(caught.value, caught.value.subject)


def test_warnings_and_progress_have_no_credentials(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    warn(f"the mirror s3://me:{TOKEN}@bucket is slow")
    monkeypatch.setattr("compatkit.foundation.bars.LINE_INTERVAL", 0)
    monkeypatch.setattr("compatkit.foundation.bars.line_interval", lambda passed: 0)
    Lines("pulling")(1, 2, f"s3://me:{TOKEN}@bucket/x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn(str(CompatkitError(f"s3://me:{TOKEN}@bucket")), stacklevel=1)
    out, err = capsys.readouterr()
    check(out, err, caught[0].message)
    assert err.count("s3://bucket") == 2


@pytest.mark.parametrize("value", [b"s3://me:%s@bucket" % TOKEN.encode(), [f"s3://me:{TOKEN}@bucket"]])
def test_an_address_of_another_type_is_refused_without_credentials(value: Any) -> None:
    with pytest.raises(UsageError) as caught:
        locate(value)
    check(caught.value, caught.value.subject)


def test_nothing_with_credentials_is_written(run: Any, tmp_path: Path) -> None:
    run("init", "here")
    for address in ADDRESSES:
        run("--registry", "here", "pull", address)
        run("clone", address, "new")
    for file in tmp_path.rglob("*"):
        check(file, file.read_bytes() if file.is_file() else "")
