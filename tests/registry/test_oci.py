"""OCI image layouts: valid by the specification, carried by its tools, read as strictly as any remote."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import oci_schemas
import pytest
from far import EXTRACTOR, HEAD, content, export, import_layout, signature
from servers import docker_registry

from compatkit.contracts.manifest import About
from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    FormatError,
    Incomplete,
    IntegrityError,
    LayoutError,
    NotFound,
    VersionExists,
)
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.codec import dumps
from compatkit.registry import disk as durable
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes.pushpull import import_components, pull, push
from compatkit.registry.store import Store

Publish = Callable[..., Any]
REF_NAME = "org.opencontainers.image.ref.name"


@pytest.fixture
def layout(tmp_path: Path, source: Store) -> Path:
    export(source, tmp_path / "layout").check()
    return tmp_path / "layout"


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / "sha256" / digest.removeprefix("sha256:")


def entries(layout: Path) -> dict[str, Any]:
    manifests = json.loads((layout / "index.json").read_bytes())["manifests"]
    return {item["annotations"][REF_NAME]: item for item in manifests}


def image(layout: Path, name: str) -> Any:
    return json.loads(blob(layout, entries(layout)[name]["digest"]).read_bytes())


# --- what is written


def test_a_layout_is_valid_by_the_specification(layout: Path):
    jsonschema.validate(json.loads((layout / "oci-layout").read_bytes()), oci_schemas.LAYOUT)
    jsonschema.validate(json.loads((layout / "index.json").read_bytes()), oci_schemas.INDEX)
    assert sorted(entries(layout)) == [f"{EXTRACTOR}:1.0.0", f"{HEAD}:2.0.0"], "withdrawn versions stay"
    reached = {entry["digest"] for entry in entries(layout).values()}
    for name, entry in entries(layout).items():
        manifest = image(layout, name)
        jsonschema.validate(manifest, oci_schemas.MANIFEST)
        assert manifest["artifactType"] == entry["artifactType"] == "application/vnd.compatkit.component.v1"
        for layer in (entry, manifest["config"], *manifest["layers"]):
            data = blob(layout, layer["digest"]).read_bytes()
            assert (
                len(data) == layer["size"] and f"sha256:{hashlib.sha256(data).hexdigest()}" == layer["digest"]
            )
            reached.add(layer["digest"])
    assert {path.name for path in (layout / "blobs" / "sha256").iterdir()} == {item[7:] for item in reached}


def test_an_image_holds_a_component_and_all_that_it_refers_to(layout: Path, source: Store):
    manifest = image(layout, f"{HEAD}:2.0.0")
    head, extractor = (source.resolve(item).digest for item in (HEAD, EXTRACTOR))
    kinds = {
        layer["digest"]: layer["mediaType"].removeprefix("application/vnd.compatkit.")
        for layer in manifest["layers"]
    }
    assert next(iter(kinds.items())) == (head, "manifest.v1+json"), "its own manifest comes first"
    weights = [source.manifest(item).payload.file.blob for item in (HEAD, EXTRACTOR)]
    expected = {head: "manifest.v1+json", extractor: "manifest.v1+json"} | dict.fromkeys(
        weights, "weights.v1.safetensors"
    )
    assert expected.items() <= kinds.items()
    assert sorted(kinds.values()).count("blob.v1") == 1 and sorted(kinds.values()).count("signature.v1") == 1
    notes = manifest["annotations"]
    assert notes["vnd.compatkit.name"] == HEAD and notes["org.opencontainers.image.version"] == "2.0.0"
    titles = {
        layer["digest"]: layer.get("annotations", {}).get("org.opencontainers.image.title")
        for layer in manifest["layers"]
    }
    assert (titles[head], titles[weights[0]]) == ("manifest.json", "weights.safetensors")


def test_what_is_told_to_people_stands_in_the_annotations(tmp_path: Path, store: Store, publish: Publish):
    publish(store, "a", about=About("Digits", "Reads digits.", license="MIT"))
    export(store, tmp_path / "layout")
    notes = image(tmp_path / "layout", "a:1.0.0")["annotations"]
    message = {key.removeprefix("org.opencontainers.image."): text for key, text in notes.items()}
    assert (message["title"], message["description"], message["licenses"]) == (
        "Digits",
        "Reads digits.",
        "MIT",
    )


def test_the_same_components_give_the_same_bytes(tmp_path: Path, source: Store, layout: Path):
    export(source, tmp_path / "again")
    assert tree(tmp_path / "again") == tree(layout)
    export(source, tmp_path / "parts", [HEAD])
    export(source, tmp_path / "parts", [EXTRACTOR])
    assert tree(tmp_path / "parts") == tree(layout), "whatever the order in which they were written"
    assert export(source, layout).check().blobs == 0 and tree(tmp_path / "again") == tree(layout)


@pytest.mark.parametrize("name", ["a_-b/c", "a__b", "a._-b", "a-b/c_d", "0"])
def test_reference_names_keep_to_their_grammar_and_names_come_back(
    tmp_path: Path, store: Store, publish: Publish, name: str
):
    publish(store, name)
    export(store, tmp_path / "layout").check()
    jsonschema.validate(json.loads((tmp_path / "layout" / "index.json").read_bytes()), oci_schemas.INDEX)
    here = Store.init(tmp_path / "here")
    import_layout(here, tmp_path / "layout").check()
    assert here.names() == [name]


def test_a_number_that_belongs_to_another_component_in_the_layout_is_refused(
    tmp_path: Path, layout: Path, publish: Publish
):
    other = Store.init(tmp_path / "other")
    publish(other, EXTRACTOR, 77)
    publish(other, "new", 5)
    before = entries(layout)
    moved = export(other, layout)
    with pytest.raises(Incomplete) as error:
        moved.check()
    assert isinstance(error.value.errors[0], VersionExists) and [
        refusal.what for refusal in moved.refused
    ] == [f"{EXTRACTOR}@1.0.0"]
    assert entries(layout) == {**before, "new:1.0.0": entries(layout)["new:1.0.0"]}


def test_a_component_that_was_signed_meanwhile_takes_its_own_place(source: Store, layout: Path):
    digest = str(source.resolve(EXTRACTOR).digest)
    source.signatures.add(digest, signature(digest))
    report = export(source, layout).check()
    assert [str(reference) for reference in report.existing] == [f"{EXTRACTOR}@1.0.0", f"{HEAD}@2.0.0"]
    assert report.signatures == 1
    assert digest_of(signature(digest)) not in {blob.digest for blob in report.copied}, (
        "it is no blob as well"
    )
    kinds = [layer["mediaType"] for layer in image(layout, f"{EXTRACTOR}:1.0.0")["layers"]]
    assert kinds.count("application/vnd.compatkit.signature.v1") == 1


def test_other_images_of_a_layout_stay(tmp_path: Path, source: Store, layout: Path):
    foreign = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": f"sha256:{'0' * 64}",
        "size": 3,
        "annotations": {REF_NAME: "debian"},
    }
    value = json.loads((layout / "index.json").read_bytes())
    (layout / "index.json").write_bytes(dumps({**value, "manifests": [foreign, *value["manifests"]]}))
    export(source, layout).check()
    assert entries(layout)["debian"] == foreign


def test_a_folder_with_other_files_is_not_written_to(tmp_path: Path, source: Store):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "me.jpg").write_bytes(b"")
    with pytest.raises(LayoutError, match="other files"):
        export(source, tmp_path / "photos")
    with pytest.raises(NotFound):
        export(source, tmp_path / "new", ["nothing"])
    assert not (tmp_path / "new").exists()


def test_an_export_that_is_cut_off_anywhere_leaves_a_valid_layout_and_goes_on(
    tmp_path: Path, source: Store, layout: Path, monkeypatch: pytest.MonkeyPatch
):
    whole, at, count = tree(layout), 0, 0

    def step(operation: str, path: Path) -> None:
        nonlocal count
        count += "/cut" in str(path)
        if count > at and operation != "unlink":
            raise OSError(28, os.strerror(28), str(path))

    while True:
        folder, count = tmp_path / f"cut{at}", 0
        monkeypatch.setattr(durable, "step", step)
        try:
            export(source, folder).check()
            break
        except EnvironmentFailure as error:
            assert "the disk is full" in str(error)
        monkeypatch.setattr(durable, "step", lambda operation, path: None)
        if (folder / "index.json").exists():
            for name in entries(folder):
                assert all(blob(folder, layer["digest"]).exists() for layer in image(folder, name)["layers"])
        export(source, folder).check()
        assert tree(folder) == whole
        at += 3
    assert at > 30


def test_a_layout_is_a_remote_by_its_address(tmp_path: Path, store: Store, source: Store, layout: Path):
    address, new = f"OCI-LAYOUT://{layout}", f"oci-layout://{tmp_path / 'new'}"
    versions = [f"{EXTRACTOR}@1.0.0", f"{HEAD}@2.0.0"]
    assert sorted(map(str, pull(store, address).check().created)) == versions
    with pytest.raises(LayoutError):
        push(source, new, settings=TransferSettings(create=False))
    planned = push(source, new, settings=TransferSettings(dry_run=True))
    assert (list(map(str, planned.created)), planned.existing, planned.planned) == (versions, [], True)
    assert not (tmp_path / "new").exists()
    again = push(source, address, settings=TransferSettings(create=False, dry_run=True))
    assert (again.created, list(map(str, again.existing))) == ([], versions)
    push(source, new).check()
    assert tree(tmp_path / "new") == tree(layout)


# --- what is read


def test_what_was_exported_and_imported_is_the_same(store: Store, source: Store, layout: Path):
    imported = import_layout(store, layout).check()
    assert (
        sorted(map(str, imported.created)) == [f"{EXTRACTOR}@1.0.0", f"{HEAD}@2.0.0"]
        and imported.signatures == 1
    )
    here, target = content(store.root), content(source.root)
    assert here.items() <= target.items() and examine(store).sound
    assert import_layout(store, layout).check().blobs == 0
    for name in (EXTRACTOR, HEAD):
        assert store.resolve(name) == source.resolve(name)


def test_patterns_say_what_comes_and_a_plan_brings_nothing(store: Store, layout: Path):
    planned = import_layout(store, layout, [EXTRACTOR], settings=TransferSettings(dry_run=True))
    assert [str(reference) for reference in planned.created] == [f"{EXTRACTOR}@1.0.0"] and store.names() == []
    assert [str(reference) for reference in import_layout(store, layout, ["digits/*.extractor"]).created] == [
        f"{EXTRACTOR}@1.0.0"
    ]
    with pytest.raises(NotFound, match=f"perhaps {EXTRACTOR}"):
        import_layout(store, layout, ["digits/mnist.extracter"])


def test_a_differing_version_is_never_overwritten(store: Store, layout: Path, publish: Publish):
    mine = publish(store, EXTRACTOR, 77)
    imported = import_layout(store, layout)
    assert [(refusal.what, type(refusal.error)) for refusal in imported.refused] == [
        (f"{EXTRACTOR}@1.0.0", VersionExists)
    ]
    assert store.resolve(EXTRACTOR) == mine and HEAD in store.names() and examine(store).sound


def test_who_accepts_is_given_the_signatures(store: Store, source: Store, layout: Path):
    requests: dict[str, list[bytes]] = {}

    def accept(digest: str, signatures: Any, name: str) -> None:
        requests[name] = list(signatures)
        if not signatures:
            raise CompatkitError("unsigned")

    imported = import_layout(store, layout, settings=TransferSettings(accept=accept))
    head = str(source.resolve(HEAD).digest)
    assert requests == {f"{EXTRACTOR}@1.0.0": [], f"{HEAD}@2.0.0": [signature(head)]}
    assert [refusal.what for refusal in imported.refused] == [f"{EXTRACTOR}@1.0.0"] and store.names() == [
        HEAD
    ]


def changed(name: str, change: Callable[[Any], None]) -> Callable[[Path, Store], None]:
    """Let an entry of the index be another image manifest, whose digest and size are right."""

    def lie(layout: Path, source: Store) -> None:
        value = image(layout, name)
        change(value)
        data = dumps(value)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        blob(layout, digest).write_bytes(data)
        index = json.loads((layout / "index.json").read_bytes())
        for entry in index["manifests"]:
            if entry["annotations"][REF_NAME] == name:
                entry.update(digest=digest, size=len(data))
        (layout / "index.json").write_bytes(dumps(index))

    return lie


def damaged(
    which: Callable[[Path, Store], str], change: Callable[[bytes], bytes]
) -> Callable[[Path, Store], None]:
    def lie(layout: Path, source: Store) -> None:
        path = blob(layout, which(layout, source))
        path.write_bytes(change(path.read_bytes()))

    return lie


def weights(layout: Path, source: Store) -> str:
    return source.manifest(HEAD).payload.file.blob


def linked(layout: Path, source: Store) -> None:
    path = blob(layout, weights(layout, source))
    path.rename(layout.parent / "secret")
    path.symlink_to(layout.parent / "secret")


def sparse(layout: Path, source: Store) -> None:
    os.truncate(blob(layout, entries(layout)[f"{HEAD}:2.0.0"]["digest"]), 2**40)


IMAGE = f"{HEAD}:2.0.0"
LIES: dict[str, Callable[[Path, Store], None]] = {
    "weights flipped": damaged(weights, lambda data: data[:-1] + b"?"),
    "weights cut": damaged(weights, lambda data: data[:-1]),
    "weights missing": lambda layout, source: blob(layout, weights(layout, source)).unlink(),
    "weights linked": linked,
    "component flipped": damaged(
        lambda layout, source: str(source.resolve(HEAD).digest), lambda data: data[:-2] + b"}}"
    ),
    "image flipped": damaged(
        lambda layout, source: entries(layout)[IMAGE]["digest"], lambda data: data[:-2] + b"}}"
    ),
    "image huge": sparse,
    "layer size": changed(IMAGE, lambda value: value["layers"][1].update(size=1)),
    "layer digest": changed(IMAGE, lambda value: value["layers"][1].update(digest="sha256:../../secret")),
    "layer kind": changed(IMAGE, lambda value: value["layers"][1].update(mediaType="application/x-sh")),
    "signature size": changed(IMAGE, lambda value: value["layers"][-1].update(size=2**14 + 1)),
    "no layers": changed(IMAGE, lambda value: value.update(layers=[])),
    "other first layer": changed(IMAGE, lambda value: value["layers"].reverse()),
    "config": changed(IMAGE, lambda value: value["config"].update(digest=f"sha256:{'0' * 64}")),
    "no config": changed(IMAGE, lambda value: value.pop("config")),
    "name": changed(IMAGE, lambda value: value["annotations"].update({"vnd.compatkit.name": "../../evil"})),
    "version": changed(IMAGE, lambda value: value["annotations"].update({"vnd.compatkit.version": "1"})),
    "another's name": changed(
        IMAGE,
        lambda value: value["annotations"].update(
            {"vnd.compatkit.name": EXTRACTOR, "vnd.compatkit.version": "1.0.0"}
        ),
    ),
    "no annotations": changed(IMAGE, lambda value: value.pop("annotations")),
    "annotations of layers": changed(IMAGE, lambda value: value["layers"][0].update(annotations={"a": 1})),
}


@pytest.mark.parametrize("kind", LIES)
def test_what_a_layout_lies_about_is_refused_and_the_rest_comes(
    tmp_path: Path, store: Store, source: Store, layout: Path, kind: str
):
    LIES[kind](layout, source)
    before = {str(path): path.lstat().st_size for path in layout.rglob("*")}
    imported = import_layout(store, layout)
    assert imported.refused and all(isinstance(refusal.error, IntegrityError) for refusal in imported.refused)
    with pytest.raises(Incomplete) as error:
        imported.check()
    assert error.value.exit_code == 3 and "/remote-" not in str(error.value)
    assert [str(reference) for reference in imported.created] == [f"{EXTRACTOR}@1.0.0"] and store.names() == [
        EXTRACTOR
    ]
    assert examine(store).sound and not list(tmp_path.rglob("*evil*"))
    assert {str(path): path.lstat().st_size for path in layout.rglob("*")} == before


def test_a_signature_beside_another_manifest_is_not_taken_for_one(store: Store, source: Store, layout: Path):
    def change(value: Any) -> None:
        for title, signs in (("../../evil", None), ("ok.json", "sha256:../../evil")):
            layer = dict(value["layers"][-1])
            notes = dict(layer["annotations"], **{"org.opencontainers.image.title": title})
            value["layers"].append(
                {**layer, "annotations": {**notes, **({"vnd.compatkit.signs": signs} if signs else {})}}
            )

    changed(IMAGE, change)(layout, source)
    assert import_layout(store, layout).check().signatures == 1
    assert not list(store.root.parent.rglob("*evil*"))


@pytest.mark.parametrize(
    ("file", "data", "error", "message"),
    [
        ("oci-layout", b'{"imageLayoutVersion":"2.0.0"}', LayoutError, "is no OCI image layout"),
        ("oci-layout", b"[]", LayoutError, "is no OCI image layout"),
        ("oci-layout", b"{", FormatError, "not valid JSON"),
        ("index.json", b'{"schemaVersion":1,"manifests":[]}', FormatError, "schemaVersion 2"),
        ("index.json", b'{"schemaVersion":2,"manifests":{}}', FormatError, "a list of manifests"),
        ("index.json", b'{"schemaVersion":2,"schemaVersion":2,"manifests":[]}', FormatError, "appears twice"),
    ],
)
def test_what_is_no_layout_is_refused(
    store: Store, layout: Path, file: str, data: bytes, error: type, message: str
):
    (layout / file).write_bytes(data)
    with pytest.raises(error, match=message):
        import_layout(store, layout)
    (layout / file).unlink()
    with pytest.raises((LayoutError, FormatError)):
        import_layout(store, layout)


@pytest.mark.parametrize(
    "entry",
    [
        1,
        {},
        {"mediaType": "x"},
        {"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": "md5:1", "size": 1},
    ],
)
def test_an_entry_that_is_no_descriptor_is_refused(store: Store, layout: Path, entry: Any):
    value = json.loads((layout / "index.json").read_bytes())
    (layout / "index.json").write_bytes(dumps({**value, "manifests": [entry, *value["manifests"]]}))
    imported = import_layout(store, layout)
    assert [type(refusal.error) for refusal in imported.refused] == [FormatError] and len(
        imported.created
    ) == 2


ODD: list[Any] = [None, True, -1, 2**70, "x", "", [], {}, [{}], {"a": 1}]


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in JSON values, as what holds it and its key there."""
    for key in list(value if isinstance(value, dict) else range(len(value))):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from nodes(value[key])


@pytest.mark.parametrize("file", ["oci-layout", "index.json", "image"])
def test_whatever_stands_in_a_layout_is_read_or_refused(store: Store, source: Store, layout: Path, file: str):
    def value() -> Any:
        return image(layout, IMAGE) if file == "image" else json.loads((layout / file).read_bytes())

    sound, places = value(), len(list(nodes(value())))
    index = (layout / "index.json").read_bytes()
    for place in range(places):
        for odd in ODD[::2] if file == "image" else ODD:
            changed_value = json.loads(json.dumps(sound))
            holder, key = list(nodes(changed_value))[place]
            holder[key] = odd
            if file == "image":
                (layout / "index.json").write_bytes(index)
                lie = changed(IMAGE, lambda result, now=changed_value: (result.clear(), result.update(now)))
                lie(layout, source)
            else:
                (layout / file).write_bytes(dumps(changed_value))
            with suppress(CompatkitError):
                import_layout(store, layout, settings=TransferSettings(dry_run=True))
            if file == "index.json":
                with suppress(CompatkitError):
                    export(source, layout, [EXTRACTOR])
    assert store.names() == []


def test_a_file_where_the_blobs_are_kept_is_told(store: Store, source: Store, layout: Path):
    shutil.rmtree(layout / "blobs" / "sha256")
    (layout / "blobs" / "sha256").touch()
    for act in (lambda: import_layout(store, layout), lambda: export(source, layout)):
        with pytest.raises(IntegrityError) as error:
            act()
        assert (error.value.code, error.value.subject) == ("integrity", layout / "blobs" / "sha256")


@pytest.mark.parametrize("way", ["export", "layout", "import", "pull", "push"])
def test_a_limit_on_the_size_of_files_is_told(
    tmp_path: Path, store: Store, source: Store, layout: Path, memory: str, way: str
):
    resource = pytest.importorskip("resource")
    push(source, memory).check()
    act = {
        "export": lambda: export(source, tmp_path / "new"),
        "layout": lambda: import_layout(store, layout),
        "import": lambda: import_components(source, store),
        "pull": lambda: pull(store, memory),
        "push": lambda: push(source, str(tmp_path / "there")),
    }[way]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(EnvironmentFailure) as error:
            act()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.code == "environment" and store.names() == []


def test_images_of_something_else_are_left_alone(tmp_path: Path, store: Store, source: Store, layout: Path):
    changed(f"{EXTRACTOR}:1.0.0", lambda value: value.update(artifactType="application/vnd.example"))(
        layout, source
    )
    value = json.loads((layout / "index.json").read_bytes())
    nested = {
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "digest": f"sha256:{'0' * 64}",
        "size": 3,
    }
    (layout / "index.json").write_bytes(dumps({**value, "manifests": [nested, *value["manifests"]]}))
    assert [str(reference) for reference in import_layout(store, layout).check().created] == [f"{HEAD}@2.0.0"]
    assert [str(reference) for reference in import_layout(store, layout).check().unnamed] == []


# --- other programs


def skopeo(*words: str) -> str:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed: apt-get install skopeo")
    done = subprocess.run(["skopeo", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(180)
def test_skopeo_reads_an_image_and_copies_it_to_another_layout(
    tmp_path: Path, store: Store, source: Store, layout: Path
):
    for name in entries(layout):
        raw = skopeo("inspect", "--raw", f"oci:{layout}:{name}")
        assert json.loads(raw) == image(layout, name)
        skopeo("copy", f"oci:{layout}:{name}", f"oci:{tmp_path / 'copy'}:{name}")
    assert {name: item["digest"] for name, item in entries(tmp_path / "copy").items()} == {
        name: item["digest"] for name, item in entries(layout).items()
    }
    import_layout(store, tmp_path / "copy").check()
    assert store.resolve(HEAD) == source.resolve(HEAD) and examine(store).sound


@pytest.fixture
def container_registry(tmp_path: Path) -> Iterator[str]:
    """Debian's container registry, on loopback."""
    with docker_registry(tmp_path / "registry") as server:
        yield server.host


@pytest.mark.timeout(180)
def test_a_container_registry_carries_components(
    tmp_path: Path, store: Store, source: Store, layout: Path, container_registry: str
):
    for name in entries(layout):
        target = f"docker://{container_registry}/team/{name}"
        skopeo("copy", "--dest-tls-verify=false", f"oci:{layout}:{name}", target)
        skopeo("copy", "--src-tls-verify=false", target, f"oci:{tmp_path / 'back'}:{name}")
    imported = import_layout(store, tmp_path / "back").check()
    assert len(imported.created) == 2 and imported.signatures == 1
    assert store.resolve(HEAD) == source.resolve(HEAD) and examine(store).sound
