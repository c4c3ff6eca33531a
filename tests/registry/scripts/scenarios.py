"""What can be interrupted: each scenario prepares a registry, does one thing to it, and knows when that is done."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
from registry_parts import CONDITIONS, check, manifest_for, put

from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.manifest import Manifest, Parent, function_digest
from compatkit.errors import IntegrityError, NotFound
from compatkit.evaluation.conditions import Conditions, ImageFacts
from compatkit.evaluation.records import keep
from compatkit.foundation.codec import dumps
from compatkit.registry import disk as durable
from compatkit.registry.authorship import Author
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.dropping import drop
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.policies import Images, Policy
from compatkit.registry.remotes.pushpull import import_components, pull, push
from compatkit.registry.restoring import restore
from compatkit.registry.second_names import copy
from compatkit.registry.settings import change_settings
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.store import Store

FIRST, SECOND, UNUSED, GONE = 0, 1, 2, 3
LARGE = 2**17
"""Numbers of large weights: 512 KiB, in pieces of 64 KiB."""
EXTRACTOR, HEAD = "value:sha256:" + "1" * 64, "value:sha256:" + "2" * 64


@attrs.frozen
class Scenario:
    """One thing that is done to a registry.

    Attributes:
        prepare: Makes the registry in a folder that exists; None where there is none before.
        act: Does it; repeated after an interruption.
        finished: What can be named afterwards, ``whole``.
        atomic: Whether there is nothing between before and after but bytes that nothing refers to.
        sound: Whether all is well before.
    """

    name: str
    prepare: Callable[[Path], object] | None
    act: Callable[[Path], object]
    finished: tuple[str, ...]
    atomic: bool = True
    sound: bool = True


@attrs.frozen
class Named:
    """What is needed of a part to keep its results.

    Attributes:
        reference: Name.
        function: Function digest.
    """

    reference: str
    function: str


def publish(root: Path, value: int, name: str = "a/b") -> str:
    """Put weights and publish them."""
    store = Store.open(root)
    return str(store.publish(name, manifest_for(put(store, value))))


def with_one_version(root: Path) -> None:
    """Make a registry with one version."""
    Store.init(root)
    publish(root, FIRST)


def two(root: Path) -> None:
    """Make a registry with two versions and an alias."""
    with_one_version(root)
    publish(root, SECOND)
    Store.open(root).set_alias("a/b", "prod", "1.0.0")


def publish_large(root: Path) -> None:
    """Publish weights that are written in many pieces."""
    durable.CHUNK = 2**16
    store = Store.open(root)
    store.publish("a/b", manifest_for(put(store, FIRST, LARGE)))


def untidy(root: Path) -> None:
    """Make a registry with a bit of everything that can be collected, and a blob in trash that is referred to."""
    two(root)
    store = Store.open(root)
    store.withdraw("a/b", "1.0.0", "wrong")
    for value in (UNUSED, UNUSED + 10):
        put(store, value)
    for number, digest in enumerate((put(store, GONE).file.blob, str(store.resolve("a/b").digest))):
        path = store.objects.path(digest)
        path.rename(root / "trash" / f"{path.name}-1-{number:016x}")
    for number, content in enumerate((b"half a blob", b"sha256:" + b"0" * 64 + b"\n")):
        (root / "tmp" / f"{2**22 + 1}-{number:016x}").write_bytes(content)
    (root / "refs/left/over/@versions").mkdir(parents=True)


def collect(root: Path) -> None:
    """Collect everything at once."""
    plan(Store.open(root), grace=timedelta(0), alone=True, withdrawn=True).apply()


def family(root: Path) -> None:
    """Make an empty registry, and beside it one with a pair, its result, a withdrawn version and an alias."""
    Store.init(root)
    source = Store.init(root.with_name("source"))
    run = source.put_blob(dumps({"run": 1}))
    training = {"run": {"blob": run.blob, "bytes": run.bytes}}
    extractor = source.publish("a/extractor", manifest_for(put(source, FIRST), training=training))
    parents = (Parent("trained_with", str(extractor.digest)),)
    heads: list[Manifest] = [
        manifest_for(put(source, value), kind="head", parents=parents, training=training)
        for value in (SECOND, UNUSED)
    ]
    for head in heads:
        source.publish("a/head", head)
    source.withdraw("a/head", "1.0.0", "wrong")
    source.set_alias("a/head", "prod", "2.0.0")
    functions = [function_digest(item) for item in (source.manifest(extractor), heads[1])]
    source.evidence.record(*functions, CONDITIONS, dumps({"accuracy": 0.5}))


def bring(root: Path) -> None:
    """Import the pair."""
    import_components(
        Store.open(root.with_name("source")), Store.open(root), ["a/head"], settings=TransferSettings(jobs=1)
    )


def damaged(root: Path) -> None:
    """Make a registry in which the weights of the one version are damaged."""
    with_one_version(root)
    store = Store.open(root)
    path = store.objects.path(store.manifest("a/b").payload.file.blob)
    path.chmod(0o644)
    path.write_bytes(b"damaged")


def heal(root: Path) -> None:
    """Read the damaged weights, which moves them away, and put them again."""
    store = Store.open(root)
    payload = store.manifest("a/b").payload
    with suppress(IntegrityError):
        store.read_blob(payload.file.blob)
    check(put(store, FIRST) == payload, "the same weights have the same digest")


def record(root: Path) -> None:
    """Keep a measured result."""
    Store.open(root).evidence.record(EXTRACTOR, HEAD, CONDITIONS, dumps({"accuracy": 0.5}))


def record_row(root: Path) -> None:
    """Keep the results of a row, which several threads write."""
    conditions = Conditions("running").settings(
        ImageFacts("a/test", "data:sha256:0", 100), batch_norm=False, bound=""
    )
    parts: Any = [
        Named("e", EXTRACTOR),
        *(Named(f"h{number}", f"{HEAD[:-1]}{number}") for number in range(4)),
    ]
    figure = Figure(0.5, 50, 100, 0.4, 0.6)
    keep(
        Store.open(root),
        parts,
        [
            Cell(
                "e",
                head.reference,
                "direct",
                "none",
                "compatible",
                restricted=figure,
                settings=dict(conditions),
            )
            for head in parts[1:]
        ],
    )


def make(root: Path) -> None:
    """Make a registry."""
    Store.init(root, exist_ok=True)


def withdraw(root: Path) -> None:
    """Withdraw a version."""
    Store.open(root).withdraw("a/b", "2.0.0", "wrong")


def move(root: Path) -> None:
    """Move an alias."""
    Store.open(root).set_alias("a/b", "prod", "2.0.0")


def remove(root: Path) -> None:
    """Remove an alias."""
    Store.open(root).set_alias("a/b", "prod", None)


def rename(root: Path) -> None:
    """Give a version another name."""
    copy(Store.open(root), "a/b@1.0.0", "c/d")


def renamed(root: Path) -> None:
    """Make a registry with a version that has two numbers."""
    with_one_version(root)
    copy(Store.open(root), "a/b@1.0.0", "a/b@2.0.0")


def free(root: Path) -> None:
    """Drop the first number."""
    drop(Store.open(root), "a/b@1.0.0", "taken")


POLICY = Policy(scope="a/b", mode="backward", data=Images("images/test", "data:sha256:" + "a" * 64))


def promise(root: Path) -> None:
    """Set a policy."""
    Store.open(root).set_policy("a/b", POLICY)


def promised(root: Path) -> None:
    """Make a registry with an extractor, a head that was trained with it, and a policy that asks about both."""
    with_one_version(root)
    store = Store.open(root)
    parents = (Parent("trained_with", str(store.resolve("a/b").digest)),)
    store.publish("a/head", manifest_for(put(store, UNUSED), kind="head", parents=parents))
    promise(root)


def keep_promise(root: Path) -> None:
    """Publish what the policy lets pass."""
    store = Store.open(root)
    store.publish("a/b", manifest_for(put(store, SECOND)), policy_check=lambda question: None)


def staged(root: Path) -> None:
    """Make that registry, with another extractor under another name."""
    promised(root)
    publish(root, SECOND, "staging")


def promote(root: Path) -> None:
    """Let it in under the name that the policy is about, though nobody measured it."""
    copy(Store.open(root), "staging", "a/b", unmeasured=True)


KEY = SigningKey.new("everybody")


def opened(root: Path) -> Store:
    """Open the registry with the key."""
    return Store.open(root, key=KEY)


def govern(root: Path) -> None:
    """Say who may do what."""
    role = (KEY.public.id,)
    roles = {"owners": role, "maintainers": role, "publishers": role}
    change_settings(root, Author.of(KEY), **roles, protected_aliases=["prod"], require_signature=True)


def governed(root: Path) -> None:
    """Make a registry with settings and two signed versions, of which one is in use."""
    Store.init(root)
    govern(root)
    for value in (FIRST, SECOND):
        opened(root).publish("a/b", manifest_for(put(opened(root), value)))
    opened(root).set_alias("a/b", "prod", "1.0.0")


def unprotect(root: Path) -> None:
    """Change the settings."""
    change_settings(root, Author.of(KEY), protected_aliases=["prod", "release-*"])


def publish_signed(root: Path) -> None:
    """Publish with the key."""
    opened(root).publish("a/b", manifest_for(put(opened(root), UNUSED)))


def move_signed(root: Path) -> None:
    """Move the protected alias."""
    opened(root).set_alias("a/b", "prod", "2.0.0")


def withdrawn(root: Path) -> None:
    """Make that registry, with a version withdrawn."""
    governed(root)
    opened(root).withdraw("a/b", "2.0.0", "wrong")


def take_back(root: Path) -> None:
    """Restore the version."""
    with suppress(NotFound):  # it is restored
        restore(opened(root), "a/b", "2.0.0", "it was right")


def partner(root: Path) -> Store:
    """Open the registry beside this one."""
    return opened(root.with_name("source"))


def apart(root: Path) -> None:
    """Make two registries that began alike; in the one beside, an alias moved, and versions came and went."""
    governed(root)
    shutil.copytree(root, partner_root := root.with_name("source"))
    move_signed(partner_root)
    publish_signed(partner_root)
    partner(root).withdraw("a/b", "1.0.0", "wrong")


def push_there(root: Path) -> None:
    """Push everything from the registry beside this one to this one."""
    push(partner(root), str(root), settings=TransferSettings(jobs=1))


def pull_there(root: Path) -> None:
    """Pull everything, and follow the changes."""
    pull(opened(root), str(root.with_name("source")), settings=TransferSettings(jobs=1).following())


BOTH = ("a/b@1.0.0", "a/b@2.0.0")
SCENARIOS = (
    Scenario("init", None, make, ()),
    Scenario("first_publish", Store.init, lambda root: publish(root, FIRST), BOTH[:1]),
    Scenario("next_publish", with_one_version, lambda root: publish(root, SECOND), BOTH),
    Scenario("publish_large", Store.init, publish_large, BOTH[:1]),
    Scenario("move", two, move, BOTH),
    Scenario("remove", two, remove, BOTH),
    # What remembers a withdrawal is there before the tombstone: verify names one without the other, a retry finishes.
    Scenario("withdraw", two, withdraw, BOTH[:1], atomic=False),
    Scenario("copy", with_one_version, rename, ("a/b@1.0.0", "c/d@1.0.0")),
    # The record of a drop is there before the number is free; a retry finishes.
    Scenario("drop", renamed, free, BOTH[1:], atomic=False),
    Scenario("collect", untidy, collect, BOTH[1:]),
    Scenario("import", family, bring, ("a/extractor@1.0.0", "a/head@2.0.0"), atomic=False),
    Scenario("heal", damaged, heal, BOTH[:1], sound=False),
    Scenario("record", with_one_version, record, BOTH[:1]),
    Scenario("record_row", with_one_version, record_row, BOTH[:1], atomic=False),
    Scenario("promise", with_one_version, promise, BOTH[:1]),
    Scenario("keep_promise", promised, keep_promise, ("a/b@1.0.0", "a/b@1.1.0", "a/head@1.0.0")),
    Scenario("govern", Store.init, govern, ()),
    Scenario("settings", governed, unprotect, BOTH),
    Scenario("publish_signed", governed, publish_signed, (*BOTH, "a/b@3.0.0")),
    Scenario("move_signed", governed, move_signed, BOTH),
    Scenario("restore", withdrawn, take_back, BOTH, atomic=False),
    Scenario("push", apart, push_there, ("a/b@2.0.0", "a/b@3.0.0"), atomic=False),
    Scenario("pull", apart, pull_there, ("a/b@2.0.0", "a/b@3.0.0"), atomic=False),
    # The policy's log says what comes in unmeasured before it does; a retry finishes.
    Scenario(
        "promote", staged, promote, ("a/b@1.0.0", "a/b@1.1.0", "a/head@1.0.0", "staging@1.0.0"), atomic=False
    ),
)


def settle() -> None:
    """Let time pass, so that files of this moment are not of the future on the clock of the file system."""
    time.sleep(0.01)


def no_waiting() -> None:
    """Do not wait for the disk: the kernel outlives every death that is staged here."""
    os.fsync = lambda descriptor: None
