"""Whoever builds, recombines or measures may require signatures; the rest works without the library for them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small import data_set, quick

import compatkit as ck
from compatkit.errors import (
    KeyFileError,
    OtherName,
    SignatureError,
    UnknownSigner,
    Unsigned,
    UsageError,
)
from compatkit.registry.evidence import UnsignedEvidence

EXTRACTOR, HEAD = "parts/noise.extractor", "parts/noise.head"


@pytest.fixture(scope="module")
def data() -> Any:
    return data_set("noise")


@pytest.fixture(scope="module")
def fit(data: Any) -> Any:
    task = ck.Task("noise", data, "simple_cnn", "forward_features", size=(16, 16))
    return quick(steps=1).fit([task])


@pytest.fixture
def registry(fit: Any, tmp_path: Path) -> ck.Registry:
    """A head and its extractor, unsigned."""
    made = ck.Registry.init(tmp_path / "parts")
    made.publish(fit, prefix="parts")
    return made


@pytest.fixture(scope="module")
def key() -> Any:
    return ck.signing.SigningKey.new("alice")


@pytest.fixture
def public(key: Any, tmp_path: Path) -> Path:
    return key.save(tmp_path / "keys" / "alice.pem")


def test_a_registry_that_requires_signatures_loads_nothing_else(
    registry: ck.Registry, key: Any, public: Path, data: Any
) -> None:
    strict = ck.Registry.open(registry.store.root, require_signature=public)
    loads: dict[str, Any] = {
        "build": lambda: strict.load(HEAD),
        "recombine": lambda: strict.recombine(EXTRACTOR, HEAD),
        "matrix": lambda: strict.matrix(EXTRACTOR, HEAD, [data.test]),
    }
    for load in loads.values():
        with pytest.raises(Unsigned, match=r"@1\.0\.0 .*is not signed"):
            load()
    registry.maintenance.sign(EXTRACTOR, key)
    with pytest.raises(Unsigned, match=HEAD):
        strict.recombine(EXTRACTOR, HEAD)
    registry.maintenance.sign(HEAD, key)
    for load in loads.values():
        assert load() is not None
    with pytest.warns(UnsignedEvidence):  # what the matrix measured just now
        assert strict.check(EXTRACTOR, HEAD).wiring == "direct"


def test_one_build_may_require_a_signature(registry: ck.Registry, key: Any, public: Path) -> None:
    assert registry.load(HEAD) and registry.load(HEAD, require_signature=None)
    assert ck.Registry.open(registry.store.root, require_signature=None).load(HEAD)
    with pytest.raises(Unsigned):
        registry.load(HEAD, require_signature=public)
    registry.maintenance.sign(HEAD, key)
    assert registry.load(HEAD, require_signature=public)
    assert registry.load(HEAD, require_signature=key.public.id)
    with pytest.raises(UnknownSigner, match="keys trust"):
        registry.load(HEAD, require_signature=True)  # the user trusts nobody yet
    ck.signing.Folder.of_user().trust(key.public)
    assert registry.load(HEAD, require_signature=True)
    assert ck.Registry.open(registry.store.root, require_signature=True).load(HEAD)
    with pytest.raises(KeyFileError, match="no folder or file"):
        registry.load(HEAD, require_signature="nowhere")
    with pytest.raises(KeyFileError, match="Expected a folder, file or key"):
        ck.Registry.open(registry.store.root, require_signature="")  # not the current folder


def test_a_signature_says_nothing_where_bytes_are_not_compared(
    registry: ck.Registry, key: Any, public: Path
) -> None:
    registry.maintenance.sign(HEAD, key)
    with pytest.raises(UsageError, match="compares no digests"):
        registry.load(HEAD, verify="never", require_signature=public)
    assert registry.load(HEAD, verify="always", require_signature=public)


def test_a_name_that_was_pointed_elsewhere_is_not_loaded(
    registry: ck.Registry, key: Any, public: Path
) -> None:
    registry.maintenance.sign([EXTRACTOR, HEAD], key)
    version = registry.store.references.folder(HEAD) / "@versions" / "1.0.0"
    version.chmod(0o644)
    version.write_text(f"{registry.store.resolve(EXTRACTOR).digest}\n")
    with pytest.raises(OtherName, match=rf"as {EXTRACTOR}@1\.0\.0, but used as {HEAD}@1\.0\.0"):
        ck.Registry.open(registry.store.root, require_signature=public).load(HEAD)


def test_signing_takes_a_file_and_tells_what_was_signed(
    registry: ck.Registry, key: Any, public: Path
) -> None:
    done = registry.maintenance.sign("parts/*", public.with_suffix(".pem"), expires="365d")
    assert [str(result.subject) for result in done] == [f"{EXTRACTOR}@1.0.0", f"{HEAD}@1.0.0"]
    assert all(result.created and result.statement.expires is not None for result in done)
    (reply,) = registry.maintenance.signatures(HEAD)
    assert reply.statement == done[1].statement and not reply.valid
    (outcome,) = registry.maintenance.verify_signatures(HEAD, public)
    assert outcome.valid and outcome.key.name == "alice"
    with pytest.raises(SignatureError):
        registry.maintenance.verify_signatures(HEAD)
    with pytest.raises(UsageError, match="Expected a duration"):
        registry.maintenance.sign(HEAD, key, expires="soon")


def test_what_a_store_requires_goes_along_to_other_processes(registry: ck.Registry, public: Path) -> None:
    strict = ck.Registry.open(registry.store.root, require_signature=public)
    again = ck.Registry(pickle.loads(pickle.dumps(strict.store)))
    assert again.store.trusted == strict.store.trusted
    with pytest.raises(Unsigned):
        again.load(HEAD)


WITHOUT = """
import sys
sys.modules["cryptography"] = None  # importing it fails
import compatkit as ck
from compatkit.cli import main
from compatkit.errors import MissingDependency

registry = ck.Registry.open({root!r})
assert registry.load("parts/noise.head") and registry.maintenance.signatures("parts/noise.head")
assert registry.check("parts/noise.extractor", "parts/noise.head").wiring == "direct"
assert registry.maintenance.verify().faults == ()
assert registry.maintenance.import_from(ck.Registry.open({root!r} + "2").store).created
for call in (
    lambda: registry.maintenance.verify_signatures("parts/noise.head", {key!r}),
    lambda: registry.load("parts/noise.head", require_signature={key!r}),
    lambda: ck.Registry.open({root!r}, require_signature={key!r}),
    lambda: registry.maintenance.sign("parts/noise.head", {private!r}),
    lambda: ck.signing.require({key!r}),
):
    try:
        call()
    except MissingDependency as error:
        assert error.code == "missing-dependency" and "pip install 'compatkit[signing]'" in str(error)
    else:
        raise SystemExit("no error")
try:
    main(["--registry", {root!r}, "show", "parts/noise.head"])
except SystemExit as end:
    assert not end.code
main(["--registry", {root!r}, "signatures"])
"""


def test_without_the_library_everything_else_works(
    registry: ck.Registry, fit: Any, key: Any, public: Path, tmp_path: Path
) -> None:
    registry.maintenance.sign("parts/*", key)
    ck.signing.Folder.of_user().trust(key.public)
    other = ck.Registry.init(f"{registry.store.root}2")
    other.publish(fit, prefix="others")
    script = WITHOUT.format(
        root=str(registry.store.root), key=str(public), private=str(public.with_suffix(".pem"))
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "[missing-dependency]" in done.stderr and "pip install 'compatkit[signing]'" in done.stderr
    assert "the signatures were not verified" in done.stderr and "digest" in done.stdout
