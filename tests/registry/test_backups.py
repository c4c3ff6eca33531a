"""A live registry is copied with plain tools, in the documented order, while others write: the copy is sound."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from damages import EXTRACTOR, HEAD, SCOPE, manifest_of, put, weights

from compatkit.contracts.manifest import function_digest
from compatkit.foundation.codec import dumps
from compatkit.registry import disk as durable
from compatkit.registry.maintenance.check import VerificationReport, examine
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.policies import Images, Policy
from compatkit.registry.store import Store

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how_to" / "maintain.md"
Wanted = Callable[[str], bool]


def top(*folders: str) -> Wanted:
    return lambda path: path.split("/")[0] in folders


def refs(kind: str) -> Wanted:
    return lambda path: path.startswith("refs/") and f"/{kind}/" in path


STEPS: dict[str, Wanted] = {
    "rsync -a --include=/compatkit.json --include='/withdrawals/***' --exclude='*' parts/ /backup/parts/": top(
        "compatkit.json", "withdrawals"
    ),
    "rsync -a --include='*/' --include='@aliases/*' --exclude='*' parts/refs /backup/parts/": refs(
        "@aliases"
    ),
    "rsync -a --exclude=@aliases --exclude=@versions parts/refs /backup/parts/": lambda path: (
        path.startswith("refs/") and not refs("@aliases")(path) and not refs("@versions")(path)
    ),
    "rsync -a --include='*/' --include='@versions/*' --exclude='*' parts/refs /backup/parts/": refs(
        "@versions"
    ),
    "rsync -a --exclude=/refs --exclude=/blobs --exclude='/tmp/*' --exclude='/trash/*' parts/ /backup/parts/": (
        lambda path: path.split("/")[0] in ("policies", "evidence", "signatures", "keys")
    ),
    "rsync -a parts/blobs /backup/parts/": top("blobs"),
}
"""The commands of the page in their order, and the files that each copies."""
ORDER = tuple(STEPS.values())
BLOBS_FIRST = (ORDER[-1], *ORDER[:-1])
VERSIONS_FIRST = (ORDER[3], *ORDER[:3], *ORDER[4:])


def test_the_page_has_these_commands() -> None:
    block = re.search(r"```bash\n(rsync .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    lines = block[1].splitlines()
    assert lines[:-1] == list(STEPS)
    assert lines[-1].split("#")[0].split() == "compatkit --registry /backup/parts verify".split()


def copied(source: Path, target: Path, order: tuple[Wanted, ...]) -> Iterator[None]:
    """Copy as a plain tool does: for each command list all files, then read one after the other; stop in between."""
    for folder in ("blobs/sha256", "refs", "evidence", "policies", "signatures", "keys"):
        (target / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("tmp", "trash", "quarantine", "locks"):
        (target / folder).mkdir(exist_ok=True)
    for wanted in order:
        paths = [path.relative_to(source).as_posix() for path in sorted(source.rglob("*")) if path.is_file()]
        for path in filter(wanted, paths):
            yield
            try:
                content = (source / path).read_bytes()
            except FileNotFoundError:  # it vanished, which rsync reports and survives
                continue
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).unlink(missing_ok=True)
            (target / path).write_bytes(content)
            os.chmod(target / path, 0o444)


def work(store: Store, first: int = 10) -> None:
    """Do all that changes a registry: publish, move aliases, withdraw, restore, record, sign, collect."""
    for number in range(first, first + 3):
        extractor = store.publish(EXTRACTOR, manifest_of(put(store, weights(number))))
        head = store.publish(HEAD, manifest_of(put(store, weights(number + 100))))
        store.set_alias(HEAD, "prod", str(head.version))
        left, right = (function_digest(store.manifest(part)) for part in (extractor, head))
        store.evidence.record(left, right, {"seed": number}, dumps({"accuracy": number / 100}))
        if number > first:
            below = store.versions(EXTRACTOR)[-2]
            store.withdraw(EXTRACTOR, below, "too old")
    store.set_policy(
        SCOPE, Policy(scope=SCOPE, mode="full", data=Images("mnist/test", f"data:sha256:{'a' * 64}"))
    )
    store.set_alias(HEAD, "prod", None)
    store.set_alias(HEAD, "stable", "1.0.0")
    plan(store).apply()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.init(tmp_path / "parts")
    store.publish(EXTRACTOR, manifest_of(put(store, weights(1))))
    store.publish(HEAD, manifest_of(put(store, weights(2))))
    store.set_alias(HEAD, "prod", "1.0.0")
    store.put_blob(b"nothing refers to this")
    return store


def interleaved(
    store: Store, target: Path, order: tuple[Wanted, ...], seed: int, monkeypatch: pytest.MonkeyPatch
) -> VerificationReport:
    """Copy some files at each change of the disk that the work makes, and the rest afterwards; verify the copy."""
    draw, copying = random.Random(seed), copied(store.root, target, order)
    start, share = draw.randrange(40), draw.choice((0.2, 0.5, 1.0, 3.0))
    changes = 0

    def step(operation: str, path: Path) -> None:
        nonlocal changes
        changes += 1
        if changes > start and path.is_relative_to(store.root):
            for _ in range(int(share) or int(draw.random() < share)):
                next(copying, None)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "step", step)
        work(store)
    for _ in copying:
        pass
    return examine(Store.open(target))


def faults(report: VerificationReport) -> set[str]:
    return {fault.code for fault in report.faults if fault.severity != "info"}


@pytest.mark.parametrize("seed", range(12))
def test_a_copy_in_the_documented_order_is_sound_whatever_others_do(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    report = interleaved(store, tmp_path / "copy", ORDER, seed, monkeypatch)
    assert faults(report) == set() and report.versions >= 2
    copy = Store.open(tmp_path / "copy")
    for name in copy.names():
        for version in copy.versions(name):
            copy.load_state(copy.manifest(f"{name}@{version}"), verify="always")
    assert examine(store).sound, "and nothing happened to the registry"


@pytest.mark.parametrize(
    ("order", "code"), [(BLOBS_FIRST, "manifest-missing"), (VERSIONS_FIRST, "alias-dangling")]
)
def test_another_order_can_fail(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[Wanted, ...], code: str
) -> None:
    original = shutil.copytree(store.root, tmp_path / "original")
    found: set[str] = set()
    for seed in range(200):
        root = shutil.copytree(original, tmp_path / f"parts{seed}")
        found |= faults(interleaved(Store.open(root), tmp_path / f"copy{seed}", order, seed, monkeypatch))
        if code in found:
            break
    assert code in found


def test_a_later_copy_brings_an_earlier_one_up_to_date(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "copy"
    interleaved(store, target, ORDER, 3, monkeypatch)
    work(store, first=50)
    for _ in copied(store.root, target, ORDER):
        pass
    copy = Store.open(target)
    assert faults(examine(copy)) == set()
    assert [attrs.astuple(version) for version in copy.references.versions(HEAD)] == [
        attrs.astuple(version) for version in store.references.versions(HEAD)
    ]
    assert copy.aliases(HEAD) == store.aliases(HEAD)


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_rsync_while_another_process_publishes(store: Store, tmp_path: Path) -> None:
    """The page's commands as they stand, three times, while a process publishes without a pause."""
    (tmp_path / "backup" / "parts").mkdir(parents=True)
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_backups import work\nfrom compatkit.registry.store import Store\n"
        f"store = Store.open({str(store.root)!r})\nprint('started', flush=True)\n"
        "for number in range(10, 100_000, 10):\n    work(store, number)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "started\n"
            for _ in range(3):
                threading.Event().wait(0.5)
                for command in STEPS:
                    words = command.replace("/backup/", f"{tmp_path}/backup/")
                    done = subprocess.run(["bash", "-c", words], cwd=tmp_path, check=False)
                    assert done.returncode in (0, 24), "24: a file vanished"
                report = examine(Store.open(tmp_path / "backup" / "parts"))
                assert faults(report) == set() and process.poll() is None
        finally:
            process.kill()
    assert len(Store.open(tmp_path / "backup" / "parts").references.versions(HEAD)) > 3
