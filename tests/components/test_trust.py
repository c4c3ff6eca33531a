"""Doors by attacks: whatever loads, measures or takes in components refuses the same signatures for the same reason."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import pytest
from far import export, import_layout
from small import data_set, quick

import compatkit as ck
from compatkit.errors import (
    BadSignature,
    CompatkitError,
    Distrusted,
    Incomplete,
    OtherDigest,
    SignatureError,
    UnknownSigner,
    Unsigned,
)
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.evidence import UnsignedEvidence
from compatkit.registry.signing.public import Folder, SigningKey, Trusted
from compatkit.registry.signing.signatures import file_name

EXTRACTOR, HEAD = "digits/left.extractor", "digits/left.head"
DATA = data_set("left")


@attrs.frozen
class World:
    """A registry under attack, a key, and the keys that an entry point must trust.

    Attributes:
        root: Of the registry, with an extractor and its head, which was trained with it.
        key: The signer's.
        public: File of its public half.
        elsewhere: A folder for what a door makes.
    """

    root: Path
    key: SigningKey
    public: Path
    elsewhere: Path

    @property
    def digests(self) -> dict[str, str]:
        """Manifest digests by reference."""
        store = ck.Registry.open(self.root).store
        return {f"{name}@1.0.0": str(store.resolve(name).digest) for name in (EXTRACTOR, HEAD)}

    def place(self, reference: str, data: bytes, signed: str) -> None:
        """Put a signature of ``signed`` beside the manifest of a reference."""
        folder = self.root / "signatures" / self.digests[reference].removeprefix("sha256:")
        folder.mkdir()
        (folder / file_name(data, signed)).write_bytes(data)


def unsigned(world: World) -> None:
    """Nothing lies beside the components."""


def by_an_untrusted_key(world: World) -> None:
    ck.Registry.open(world.root).maintenance.sign("*", SigningKey.new("alice"))


def by_a_distrusted_key(world: World) -> None:
    ck.Registry.open(world.root).maintenance.sign("*", world.key)
    Folder.of_user().distrust(world.key.public.id, "laptop stolen")


def tampered(world: World) -> None:
    for reference, digest in world.digests.items():
        good = world.key.sign(digest, None)
        signed_as = world.key.sign(digest, reference)
        data = attrs.evolve(good, signature=signed_as.signature).to_bytes()
        world.place(reference, data, digest)


def of_the_other_component(world: World) -> None:
    first, other = world.digests.items()
    for (reference, _), (name, digest) in ((first, other), (other, first)):
        world.place(reference, world.key.sign(digest, name).to_bytes(), digest)


ATTACKS: dict[Callable[[World], None], type[SignatureError]] = {
    unsigned: Unsigned,
    by_an_untrusted_key: UnknownSigner,
    by_a_distrusted_key: Distrusted,
    tampered: BadSignature,
    of_the_other_component: OtherDigest,
}


def load(world: World, whom: Any) -> Any:
    return ck.Registry.open(world.root, require_signature=whom).load(HEAD)


def load_one(world: World, whom: Any) -> Any:
    return ck.Registry.open(world.root).load(HEAD, require_signature=whom)


def recombine(world: World, whom: Any) -> Any:
    return ck.Registry.open(world.root, require_signature=whom).recombine(EXTRACTOR, HEAD)


def matrix(world: World, whom: Any) -> Any:
    return ck.Registry.open(world.root, require_signature=whom).matrix(EXTRACTOR, HEAD, [DATA.test])


def renewed(registry: ck.Registry, at: ck.Registry) -> str:
    """Publish a new version of the extractor of one registry at another, which a policy measures with the head."""
    registry.policies.set(EXTRACTOR, "backward", data=DATA.test, tolerance=0.5, bn_policy="running")
    manifest = registry.store.manifest(EXTRACTOR)
    statistical = attrs.evolve(manifest.contract.statistical, probe=None)
    contract = attrs.evolve(manifest.contract, statistical=statistical)
    state = {
        key: value * 1.0001 if value.is_floating_point() else value
        for key, value in registry.load(EXTRACTOR).state_dict().items()
    }
    return at.publish(attrs.evolve(manifest, contract=contract), EXTRACTOR, state=state, data=[DATA.test])


def publish(world: World, whom: Any) -> Any:
    """Publish a new extractor, which a policy measures with the released head."""
    plain = ck.Registry.open(shutil.copytree(world.root, world.elsewhere / "publishing"))
    return renewed(plain, ck.Registry.open(plain.store.root, require_signature=whom))


def pull_measured(world: World, whom: Any) -> Any:
    """Pull a new extractor that is signed, which a policy measures with the released head that is here."""
    bob = SigningKey.new("bob")
    registry = ck.Registry.open(shutil.copytree(world.root, world.elsewhere / "there"))
    renewed(registry, registry)
    shutil.rmtree(registry.store.root / "signatures")
    registry.maintenance.sign(EXTRACTOR, bob)
    here = ck.Registry.open(shutil.copytree(world.root, world.elsewhere / "here"))
    here.policies.set(EXTRACTOR, "backward", data=DATA.test, tolerance=0.5, bn_policy="running")
    strict = ck.Registry.open(here.store.root, require_signature=[whom, bob.public.id])
    return strict.pull(
        str(registry.store.root), f"{EXTRACTOR}@^1", evidence=False, measure=True, data=[DATA.test]
    ).created


def import_from(world: World, whom: Any) -> Any:
    ck.Registry.init(world.elsewhere / "importing")
    strict = ck.Registry.open(world.elsewhere / "importing", require_signature=whom)
    return strict.maintenance.import_from(ck.Registry.open(world.root).store)


def pull(world: World, whom: Any) -> Any:
    return ck.Registry.init(world.elsewhere / "pulling").pull(str(world.root), require_signature=whom)


def pull_into_strict(world: World, whom: Any) -> Any:
    ck.Registry.init(world.elsewhere / "strict")
    return ck.Registry.open(world.elsewhere / "strict", require_signature=whom).pull(str(world.root))


def push_into_memory_and_pull(world: World, whom: Any) -> Any:
    remote = f"memory://trust/{world.elsewhere.name}"
    with suppress(Incomplete):  # what is no signature of its manifest stays behind
        ck.Registry.open(world.root).push(remote, create=True)
    return ck.Registry.init(world.elsewhere / "far").pull(remote, require_signature=whom)


def clone(world: World, whom: Any) -> Any:
    return ck.Registry.clone(str(world.root), world.elsewhere / "clone", require_signature=whom)


def oci_read(world: World, whom: Any) -> Any:
    export(ck.Registry.open(world.root).store, world.elsewhere / "layout").check()
    into = ck.Registry.init(world.elsewhere / "reading").store
    return import_layout(
        into, world.elsewhere / "layout", settings=TransferSettings().with_trust(whom)
    ).check()


def export_file(world: World, whom: Any) -> Any:
    file = world.elsewhere / "head.safetensors"
    ck.Registry.open(world.root, require_signature=whom).export(HEAD, file)
    return file.exists()


def verify(world: World, whom: Any) -> Any:
    return ck.Registry.open(world.root).maintenance.verify_signatures(HEAD, whom)


def require(world: World, whom: Any) -> Any:
    store = ck.Registry.open(world.root).store
    digest = world.digests[f"{HEAD}@1.0.0"]
    ck.signing.require(whom)(digest, store.signatures.of(digest), f"{HEAD}@1.0.0")
    return True


DOORS = (
    load,
    load_one,
    recombine,
    matrix,
    publish,
    import_from,
    pull,
    pull_measured,
    pull_into_strict,
    push_into_memory_and_pull,
    clone,
    oci_read,
    export_file,
    verify,
    require,
)


def check(registry: ck.Registry) -> Any:
    report = registry.check(EXTRACTOR, HEAD)
    return report.wiring, report.promise


def check_all(registry: ck.Registry) -> Any:
    return registry.check_all("digits/*.extractor", "digits/*.head").counts()


def search(registry: ck.Registry) -> Any:
    return [str(component) for component in registry.search(kind="head")]


def show(registry: ck.Registry) -> Any:
    return registry.store.manifest(HEAD)


READING = (check, check_all, search, show)
"""Reading contracts runs nothing and needs no signature: these doors are open, whoever signed."""
LEFT_BEHIND = {(push_into_memory_and_pull, of_the_other_component), (oci_read, of_the_other_component)}
"""Where what is no signature of its manifest does not travel, so that the component arrives unsigned."""

TRUSTING: dict[str, Callable[[World], Any]] = {
    "file": lambda world: world.public,
    "folder": lambda world: world.public.parent,
    "text": lambda world: world.key.public.id,
    "list": lambda world: [world.public, world.key.public.id],
    "keys": lambda world: Trusted(keys={world.key.public.id: world.key.public}),
}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    task = ck.Task("left", DATA, "resnet8_cifar", "layer2", size=(16, 16))
    made = ck.Registry.init(tmp_path_factory.mktemp("trust") / "published")
    made.publish(quick(steps=1).fit([task]), prefix="digits")
    return made.store.root


@pytest.fixture
def world(published: Path, tmp_path: Path) -> World:
    key = SigningKey.new("alice")
    public = key.save(tmp_path / "mine" / "alice.pem")
    return World(shutil.copytree(published, tmp_path / "parts"), key, public, tmp_path)


def refused(door: Callable[[World, Any], Any], world: World, whom: Any) -> set[type[CompatkitError]]:
    """Return the classes of the errors with which a door refuses."""
    try:
        door(world, whom)
    except Incomplete as error:
        return {type(entry) for entry in error.errors}
    except CompatkitError as error:
        return {type(error)}
    return set()


@pytest.mark.parametrize("door", DOORS, ids=lambda entry: entry.__name__)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda item: item.__name__)
def test_every_door_refuses_every_attack_for_its_reason(
    world: World, door: Callable[[World, Any], Any], attack: Callable[[World], None]
) -> None:
    attack(world)
    expected = Unsigned if (door, attack) in LEFT_BEHIND else ATTACKS[attack]
    assert refused(door, world, world.public) == {expected}


@pytest.mark.parametrize("door", DOORS, ids=lambda item: item.__name__)
def test_every_door_opens_for_what_a_trusted_key_signed(
    world: World, door: Callable[[World, Any], Any]
) -> None:
    ck.Registry.open(world.root).maintenance.sign("*", world.key)
    assert door(world, world.public)


@pytest.mark.parametrize("whom", TRUSTING)
def test_a_distrusted_key_does_not_count_however_it_is_given(world: World, whom: str) -> None:
    ck.Registry.open(world.root).maintenance.sign("*", world.key)
    inputs = TRUSTING[whom](world)
    opened = ck.Registry.open(world.root, require_signature=inputs)
    assert opened.load(HEAD) and refused(verify, world, inputs) == set()
    Folder.of_user().distrust(world.key.public.id, "laptop stolen")
    for door in (load, load_one, verify, require, import_from):
        assert refused(door, world, inputs) == {Distrusted}
    with pytest.raises(Distrusted, match="laptop stolen"):
        opened.load(HEAD)  # also by who opened the registry before
    Folder.of_user().trust(world.key.public, again=True)
    assert opened.load(HEAD) and refused(load, world, inputs) == set()


def test_a_note_of_distrust_beside_a_key_counts_where_its_file_is_named(world: World) -> None:
    ck.Registry.open(world.root).maintenance.sign("*", world.key)
    team = Folder(world.elsewhere / "team")
    team.trust(world.key.public)
    (file,) = team.path.glob("*.pub")
    assert refused(verify, world, file) == set()
    team.distrust("alice")
    for item in (file, [file], team.path, [world.public, team.path]):
        assert refused(verify, world, item) == {Distrusted}
    assert refused(verify, world, world.public) == set()  # a team's note is that of who names the team


def test_a_damaged_note_of_the_user_is_an_error_and_nothing_is_guessed(world: World) -> None:
    ck.Registry.open(world.root).maintenance.sign("*", world.key)
    mine = Folder.of_user().path
    mine.mkdir(parents=True)
    (mine / f"{world.key.public.id.removeprefix('ed25519:')}.distrusted").write_text("")
    assert refused(verify, world, world.public) == {ck.errors.KeyFileError}


@pytest.mark.parametrize("door", READING, ids=lambda item: item.__name__)
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda entry: entry.__name__)
def test_contracts_are_read_whoever_signed(
    world: World, door: Callable[[ck.Registry], Any], attack: Callable[[World], None]
) -> None:
    expected = door(ck.Registry.open(world.root))
    attack(world)
    assert expected and door(ck.Registry.open(world.root, require_signature=world.public)) == expected


# Measured figures


def measure(world: World) -> None:
    ck.Registry.open(world.root).matrix(EXTRACTOR, HEAD, [DATA.test])


def forge(world: World) -> None:
    """Write another figure beside the measured ones, as anybody may who can write to the registry."""
    store = ck.Registry.open(world.root).store
    functions = [str(store.function_of(digest)) for digest in world.digests.values()]
    (true,) = store.evidence.results(functions[:1], functions[1:])
    figure = [0.01, 1, 100, 0.0, 0.03]
    store.evidence.add(
        *functions,
        conditions=true.conditions,
        settings=true.settings,
        figures={**true.figures, "grade": "chance", "restricted": figure, "unrestricted": figure},
    )


def grade(registry: ck.Registry) -> str:
    return registry.check(EXTRACTOR, HEAD).evidence


def table(registry: ck.Registry) -> str:
    (verdict,) = registry.check_all("digits/*.extractor", "digits/*.head").counts()
    return verdict


def filled(registry: ck.Registry) -> str:
    (cell,) = registry.matrix(EXTRACTOR, HEAD, fill="none").cells
    return cell.grade


def answered(registry: ck.Registry) -> str:
    """What a policy remembers of the pair."""
    functions = [
        str(registry.store.function_of(str(registry.store.resolve(item).digest)))
        for item in (EXTRACTOR, HEAD)
    ]
    result = registry.store.evidence.results(functions[:1], functions[1:])
    return result[-1].figures["grade"] if result else "none"


FIGURES = (grade, table, filled, answered)


@pytest.mark.parametrize("door", FIGURES, ids=lambda item: item.__name__)
def test_a_forged_figure_counts_only_where_no_signature_is_asked_for(
    world: World, door: Callable[[ck.Registry], str]
) -> None:
    measure(world)
    ck.Registry.open(world.root).maintenance.sign("*", world.key)
    honest = door(ck.Registry.open(world.root))
    assert ck.Registry.open(world.root).maintenance.sign_evidence(EXTRACTOR, HEAD, world.key)[0].created
    strict = ck.Registry.open(world.root, require_signature=world.public)
    assert door(strict) == honest
    forge(world)
    assert door(ck.Registry.open(world.root)) in ("chance", "incompatible") and honest == "perfect"
    with pytest.warns(UnsignedEvidence, match="1 of 2 measured results are ignored"):
        assert door(ck.Registry.open(world.root, require_signature=world.public)) == honest


def test_figures_that_nobody_signed_count_for_nothing_where_signatures_are_required(world: World) -> None:
    measure(world)
    plain, strict = (ck.Registry.open(world.root, require_signature=whom) for whom in (False, world.public))
    assert grade(plain) != "none"
    with pytest.warns(UnsignedEvidence):
        assert grade(strict) == "none"
    plain.maintenance.sign_evidence(EXTRACTOR, HEAD, SigningKey.new("mallory"))
    with pytest.warns(UnsignedEvidence):
        assert grade(strict) == "none"
    plain.maintenance.sign_evidence(EXTRACTOR, HEAD, world.key)
    assert grade(strict) == grade(plain)
    Folder.of_user().distrust(world.key.public.id, "laptop stolen")
    with pytest.warns(UnsignedEvidence):
        assert grade(ck.Registry.open(world.root, require_signature=world.public)) == "none"


def test_signatures_of_figures_come_along_and_signing_again_changes_nothing(world: World) -> None:
    measure(world)
    here = ck.Registry.open(world.root)
    here.maintenance.sign("*", world.key)
    first = here.maintenance.sign_evidence("digits/*.extractor", "digits/*.head", world.key)
    again = here.maintenance.sign_evidence("digits/*.extractor", "digits/*.head", world.key)
    assert [item.created for item in (*first, *again)] == [True, False]
    registry = ck.Registry.init(world.elsewhere / "there")
    registry.pull(str(world.root))
    copied = ck.Registry.open(registry.store.root, require_signature=world.public)
    assert grade(copied) == grade(here)
