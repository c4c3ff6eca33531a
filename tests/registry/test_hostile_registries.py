"""Container registries that lack something, or lie: against a fake that answers what no real one does."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fake_registry import INDEX, FakeRegistry, Reply, Request, digest, fake_registry
from far import EXTRACTOR, HEAD, content, signature

from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    Incomplete,
    IntegrityError,
    LayoutError,
    NotFound,
    UsageError,
    VersionExists,
)
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.names import check_name
from compatkit.registry.remotes.pushpull import clone, pull, push
from compatkit.registry.store import Store
from compatkit_plugins.remotes import _blob_uploads, _distribution, _registry_session
from compatkit_plugins.remotes._registry_login import read_challenge, stored_credentials
from compatkit_plugins.remotes._repository_names import is_loopback, repository_of, split_address

Publish = Callable[..., Any]
VERSIONS = [f"{EXTRACTOR}@1.0.0", f"{HEAD}@2.0.0"]
TAG = ("team/digits/mnist.head", "2.0.0")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeRegistry]:
    """A registry, and no credentials of whoever runs the tests."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "cache"))
    for variable in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(_registry_session.time, "sleep", lambda seconds: None)
    with fake_registry() as registry:
        yield registry


@pytest.fixture
def pushed(fake: FakeRegistry, source: Store) -> FakeRegistry:
    """A registry with an extractor and a head, which is signed."""
    push(source, fake.address).check()
    fake.requests.clear()
    return fake


def write_login(tmp_path: Path, host: str, login: str, **others: Any) -> Path:
    """Store a login as ``docker login`` does."""
    file = tmp_path / "docker" / "config.json"
    file.parent.mkdir(exist_ok=True)
    auth = base64.b64encode(login.encode()).decode()
    file.write_text(json.dumps({"auths": {host: {"auth": auth}}, **others}))
    return file


def refused(store: Store, fake: FakeRegistry, patterns: list[str] | None = None) -> list[CompatkitError]:
    """Pull, and return what was refused; the rest came."""
    report = pull(store, fake.address, patterns)
    assert examine(store).sound
    return [refusal.error for refusal in report.refused]


# --- registries that lack something


@pytest.mark.parametrize("lack", ["nothing", "referrers", "ranges", "long pages"])
def test_components_go_there_and_come_back(
    monkeypatch: pytest.MonkeyPatch,
    fake: FakeRegistry,
    store: Store,
    source: Store,
    publish: Publish,
    lack: str,
):
    fake.referrers, fake.ranges = lack != "referrers", lack != "ranges"
    fake.page = 1 if lack == "long pages" else 1000
    monkeypatch.setattr("compatkit.registry.disk.CHUNK", 2**14)  # so that a blob is read in ranges
    large = source.put_blob(os.urandom(5 * 2**14))
    publish(source, "large", 7, training={"run": {"blob": large.blob, "bytes": large.bytes}})
    versions = [*VERSIONS, "large@1.0.0"]
    assert sorted(map(str, push(source, fake.address).check().created)) == versions
    again = push(source, fake.address).check()
    assert (again.created, sorted(map(str, again.existing)), again.blobs) == ([], versions, 0)
    pulled = pull(store, fake.address).check()
    assert sorted(map(str, pulled.created)) == versions and pulled.signatures == 1
    here, there = content(store.root), content(source.root)
    assert here.items() <= there.items() and examine(store).sound
    assert [store.resolve(name) for name in (EXTRACTOR, HEAD)] == [
        source.resolve(name) for name in (EXTRACTOR, HEAD)
    ]
    assert pull(store, fake.address).check().blobs == 0


def test_a_prefix_is_not_needed_and_each_is_a_remote_of_its_own(
    fake: FakeRegistry, store: Store, source: Store, publish: Publish, tmp_path: Path
):
    other = Store.init(tmp_path / "other")
    publish(other, EXTRACTOR, 77)
    push(source, f"oci://{fake.host}").check()
    push(other, f"oci://{fake.host}/b/c/").check()
    pull(store, f"OCI://{fake.host}/", [EXTRACTOR, HEAD]).check()
    assert store.resolve(EXTRACTOR) == source.resolve(EXTRACTOR)
    here = Store.init(tmp_path / "here")
    pull(here, f"oci://{fake.host}/b/c").check()
    assert here.resolve(EXTRACTOR) == other.resolve(EXTRACTOR) and here.names() == [EXTRACTOR]


@pytest.mark.parametrize("listing", ["denied", "missing"])
def test_where_repositories_are_not_listed_components_are_named(
    pushed: FakeRegistry, store: Store, source: Store, tmp_path: Path, listing: str
):
    def unlisted(request: Request) -> Reply | None:
        return Reply(403 if listing == "denied" else 404, b"{}") if "_catalog" in request.path else None

    pushed.override = unlisted
    for act in (
        lambda: pull(store, pushed.address),
        lambda: pull(store, pushed.address, "digits/*"),
        lambda: clone(pushed.address, tmp_path / "copy"),
    ):
        with pytest.raises(UsageError) as error:
            act()
        assert (error.value.code, error.value.subject) == ("usage", pushed.address.removeprefix("oci://"))
    assert not (tmp_path / "copy").exists()
    assert [str(item) for item in pull(store, pushed.address, f"{HEAD}@^2").check().created] == VERSIONS[1:]
    with pytest.raises(NotFound, match="has no component 'nothing'") as missing:
        pull(store, pushed.address, "nothing")
    assert missing.value.subject == "nothing"
    with pytest.raises(NotFound):
        pull(store, pushed.address, "a-.b")
    assert push(source, pushed.address, settings=TransferSettings(create=False)).check().blobs == 0
    with pytest.raises(LayoutError):
        push(source, f"{pushed.address}/taem", settings=TransferSettings(create=False))


def test_a_mistyped_prefix_creates_nothing(pushed: FakeRegistry, store: Store, source: Store):
    for act in (
        lambda: push(source, f"oci://{pushed.host}/taem", settings=TransferSettings(create=False)),
        lambda: pull(store, f"oci://{pushed.host}/taem"),
    ):
        with pytest.raises(LayoutError):
            act()
    assert not [line for line in pushed.requests if line.startswith(("POST", "PUT"))]
    planned = push(source, f"oci://{pushed.host}/other", settings=TransferSettings(dry_run=True))
    assert sorted(map(str, planned.created)) == VERSIONS and not planned.existing
    planned = push(source, pushed.address, settings=TransferSettings(dry_run=True))
    assert sorted(map(str, planned.existing)) == VERSIONS and not planned.created
    assert not [line for line in pushed.requests if line.startswith(("POST", "PUT"))]


def test_what_is_no_container_registry_is_said(fake: FakeRegistry, store: Store, source: Store):
    fake.override = lambda request: Reply(404, b"<html>")
    for act in (lambda: pull(store, fake.address), lambda: push(source, fake.address)):
        with pytest.raises(LayoutError) as error:
            act()
        assert error.value.subject == fake.host


def test_a_blob_is_uploaded_once_and_mounted_in_other_repositories(pushed: FakeRegistry, source: Store):
    shared = source.manifest(EXTRACTOR).payload.file.blob
    assert (TAG[0], shared) in pushed.blobs and (f"team/{EXTRACTOR}", shared) in pushed.blobs
    assert len(pushed.uploads) == len({digest for _, digest in pushed.blobs}), (
        "however many repositories have it"
    )


def test_a_push_says_that_two_of_them_can_both_succeed(fake: FakeRegistry, source: Store):
    assert len(push(source, fake.address).check().notes) == 1
    assert push(source, fake.address).check().notes == []


# --- versions that are there


@pytest.mark.parametrize("kind", ["another component", "another program's image", "less than the component"])
def test_a_tag_is_never_rewritten(
    tmp_path: Path, pushed: FakeRegistry, source: Store, publish: Publish, kind: str
):
    other = source
    media_type, data = pushed.manifests[TAG[0], pushed.tags[TAG]]
    if kind == "another component":
        other = Store.init(tmp_path / "other")
        publish(other, HEAD, 77, version="2.0.0")
        publish(other, "new", 5)
    else:
        value = json.loads(data)
        value["layers"] = value["layers"][:1]
        if kind == "another program's image":
            value["artifactType"] = "application/vnd.example"
        data = json.dumps(value).encode()
        pushed.manifests[TAG[0], digest(data)] = media_type, data
        pushed.tags[TAG] = digest(data)
    before = dict(pushed.tags)
    report = push(other, pushed.address)
    assert [refusal.what for refusal in report.refused] == [f"{HEAD}@2.0.0"]
    with pytest.raises(Incomplete) as error:
        report.check()
    assert (error.value.errors[0].code, error.value.errors[0].subject) == ("version-exists", f"{HEAD}@2.0.0")
    assert before.items() <= pushed.tags.items()


@pytest.mark.parametrize("answer", [201, 400, 409, 412])
def test_a_lost_race_for_a_tag_is_a_version_that_exists(
    fake: FakeRegistry, source: Store, publish: Publish, tmp_path: Path, answer: int
):
    """Another pusher's tag appears between the look and the write; registries with immutable tags refuse ours."""
    other = Store.init(tmp_path / "other")
    publish(other, EXTRACTOR, 77)
    push(other, fake.address).check()
    place = (f"team/{EXTRACTOR}", "1.0.0")
    theirs = fake.tags.pop(place)

    def overtake(request: Request) -> Reply | None:
        if request.method == "PUT" and request.path.endswith(f"{EXTRACTOR}/manifests/1.0.0"):
            fake.tags[place] = theirs
            return Reply(answer, b"{}")
        return None

    fake.override = overtake
    report = push(source, fake.address, [EXTRACTOR])
    assert [type(refusal.error) for refusal in report.refused] == [VersionExists]


def test_a_component_that_was_signed_later_gets_its_signature_and_no_new_image(
    pushed: FakeRegistry, store: Store, source: Store
):
    component = str(source.resolve(EXTRACTOR).digest)
    source.signatures.add(component, signature(component))
    tags = dict(pushed.tags)
    report = push(source, pushed.address).check()
    assert pushed.tags == tags and report.created == []
    assert pull(store, pushed.address).check().signatures == 2
    assert content(store.root).items() <= content(source.root).items()


def test_signatures_that_are_written_at_the_same_time_are_all_kept(
    fake: FakeRegistry, source: Store, store: Store
):
    """Without the Referrers API, all of them share an index: another program replaces it after our first write."""
    fake.referrers = False
    replaced: list[str] = []

    def replace(request: Request) -> Reply | None:
        if request.method == "PUT" and "/manifests/sha256-" in request.path and not replaced:
            replaced.append(request.path)
            name, tag = request.path.removeprefix("/v2/").split("/manifests/")
            data = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).encode()
            fake.manifests[name, digest(data)] = INDEX, data
            fake.tags[name, tag] = digest(data)
            return Reply(201)
        return None

    fake.override = replace
    push(source, fake.address).check()
    assert replaced and pull(store, fake.address).check().signatures == 1


@pytest.mark.parametrize("name", ["a_-b/c", "a__b", "a._-b", "a-b/c_d", "0"])
def test_names_that_no_repository_can_have_come_back(
    fake: FakeRegistry, store: Store, publish: Publish, tmp_path: Path, name: str
):
    publish(store, name)
    push(store, fake.address).check()
    for number, patterns in enumerate((None, [name])):
        here = Store.init(tmp_path / str(number))
        pull(here, fake.address, patterns).check()
        assert here.names() == [check_name(name)]


# --- uploads


@pytest.fixture
def large(source: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let blobs above 1000 bytes be large; return the digest of one."""
    monkeypatch.setattr(_blob_uploads, "CHUNK", 1000)
    return source.put_blob(os.urandom(9_500)).blob


def upload(fake: FakeRegistry, blob: str, source: Store) -> bool:
    """Upload one blob of a store."""
    session = _registry_session.RegistrySession(fake.host, True)
    uploads = _blob_uploads.BlobUploads(_distribution.Distribution(session, "pull,push"))
    with closing(session):
        return uploads.put("team/x", blob, memoryview(source.objects.view(blob)), None)


@pytest.mark.parametrize("fault", ["none", "cut", "busy", "lost", "forgotten", "no chunks", "short"])
def test_a_large_blob_arrives_whatever_happens_on_the_way(
    fake: FakeRegistry, source: Store, large: str, fault: str
):
    patches = 0

    def misbehave(request: Request) -> Reply | None:
        nonlocal patches
        patches += request.method == "PATCH"
        if request.method != "PATCH" or patches != 4:
            return None
        number = request.path.rpartition("/")[2]
        if fault == "cut":  # half of the chunk arrives, and no answer leaves
            fake.uploads[number] += request.body[:500]
            raise ConnectionAbortedError
        if fault == "short":
            fake.uploads[number] += request.body[:500]
            end = len(fake.uploads[number]) - 1
            return Reply(202, b"", {"Location": request.path, "Range": f"0-{end}"})
        if fault == "forgotten":
            del fake.uploads[number]
        return Reply(503, b"{}") if fault == "busy" else None

    fake.chunks = fault != "no chunks"
    fake.override = misbehave
    if fault == "lost":
        fake.override = lambda request: Reply(404, b"{}") if request.method == "PATCH" else None
    assert upload(fake, large, source)
    assert fake.blobs["team/x", large] == source.objects.read(large)


@pytest.mark.parametrize(
    "fault", ["nothing is taken", "always forgotten", "more than was sent", "always busy"]
)
def test_an_upload_that_leads_nowhere_ends(fake: FakeRegistry, source: Store, large: str, fault: str):
    def misbehave(request: Request) -> Reply | None:
        if request.method != "PATCH":
            return None
        if fault == "always forgotten":  # after the first chunk
            return None if fake.uploads.get(request.path.rpartition("/")[2]) == b"" else Reply(404, b"{}")
        ranges = {"nothing is taken": "0-0", "more than was sent": "0-9499"}
        headers = {"Location": request.path, "Range": ranges.get(fault, "")}
        return Reply(503 if fault == "always busy" else 202, b"", headers)

    fake.override = misbehave
    with pytest.raises(OSError):
        upload(fake, large, source)
    assert len(fake.requests) < 40 and ("team/x", large) not in fake.blobs


def test_chunks_are_as_long_as_a_registry_wants_them(fake: FakeRegistry, source: Store, large: str):
    def wants(request: Request) -> Reply | None:
        if request.method != "POST":
            return None
        fake.uploads["7"] = b""
        return Reply(202, b"", {"Location": f"{request.path}7", "OCI-Chunk-Min-Length": "4000"})

    fake.override = wants
    assert upload(fake, large, source) and sum(line.startswith("PATCH") for line in fake.requests) == 3


def test_an_upload_goes_on_in_the_next_run(fake: FakeRegistry, source: Store, large: str, tmp_path: Path):
    fake.override = lambda request: (
        Reply(503, b"{}")
        if request.method == "PATCH" and fake.requests.count(fake.requests[-1]) > 6
        else None
    )
    with pytest.raises(OSError) as error:
        upload(fake, large, source)
    assert "state=" not in str(error.value)
    records = [path for path in (tmp_path / "cache" / "uploads").iterdir() if path.is_file()]
    assert [stat.S_IMODE(path.stat().st_mode) for path in records] == [0o600]
    fake.override = lambda request: None
    fake.requests.clear()
    assert upload(fake, large, source) and fake.blobs["team/x", large] == source.objects.read(large)
    assert sum(line.startswith("PATCH") for line in fake.requests) == 4, "six chunks were there"
    assert not any((tmp_path / "cache" / "uploads").iterdir())


@pytest.mark.parametrize("record", ["elsewhere", "other content", "forgotten", "binary"])
def test_a_remembered_upload_that_is_of_no_use_begins_anew(
    fake: FakeRegistry, source: Store, large: str, tmp_path: Path, record: str
):
    fake.uploads["9"] = b"something else"
    name = digest(f"{fake.host}/team/x@{large}".encode()).removeprefix("sha256:")
    file = tmp_path / "cache" / "uploads" / name
    file.parent.mkdir(parents=True)
    own = f"http://{fake.host}/v2/team/x/blobs/uploads"
    texts = {"elsewhere": "http://192.0.2.1/x", "other content": f"{own}/9", "forgotten": f"{own}/77"}
    file.write_bytes(texts.get(record, "").encode() or b"\xff\x00")
    assert upload(fake, large, source) and fake.blobs["team/x", large] == source.objects.read(large)


# --- lies


def replace_manifest(fake: FakeRegistry, change: Callable[[Any], Any]) -> None:
    """Let the head's tag be another manifest, whose digest is right."""
    media_type, data = fake.manifests[TAG[0], fake.tags[TAG]]
    value = json.loads(data)
    data = json.dumps(change(value) or value).encode()
    fake.manifests[TAG[0], digest(data)] = media_type, data
    fake.tags[TAG] = digest(data)


def answered(path: str, reply: Reply) -> Callable[[Request], Reply | None]:
    return lambda request: reply if path in request.path else None


def endless() -> Iterator[bytes]:
    while True:
        yield b"x" * 2**16


LIES: dict[str, Callable[[FakeRegistry, Store], object]] = {
    "blob flipped": lambda fake, source: fake.blobs.update(
        {key: data[:-1] + b"?" for key, data in fake.blobs.items() if key[0] == TAG[0]}
    ),
    "blob cut": lambda fake, source: fake.blobs.update(
        {key: data[:-1] for key, data in fake.blobs.items() if key[0] == TAG[0]}
    ),
    "blob missing": lambda fake, source: [
        fake.blobs.pop(key) for key in list(fake.blobs) if key[0] == TAG[0]
    ],
    "blob endless": lambda fake, source: setattr(
        fake, "override", answered(f"{TAG[0]}/blobs/", Reply(200, endless()))
    ),
    "manifest of another digest": lambda fake, source: setattr(
        fake,
        "override",
        answered(
            f"{TAG[0]}/manifests/2.0.0", Reply(200, b"{}", {"Docker-Content-Digest": f"sha256:{'0' * 64}"})
        ),
    ),
    "manifest endless": lambda fake, source: setattr(
        fake, "override", answered(f"{TAG[0]}/manifests/2.0.0", Reply(200, endless()))
    ),
    "manifest of a signature flipped": lambda fake, source: fake.manifests.update(
        {
            key: (kind, data.replace(b'"signs"', b'"Signs"'))
            for key, (kind, data) in fake.manifests.items()
            if b'"subject"' in data
        }
        | {key: (kind, data + b" ") for key, (kind, data) in fake.manifests.items() if b'"subject"' in data}
    ),
    "layer size": lambda fake, source: replace_manifest(
        fake, lambda value: value["layers"][1].update(size=1)
    ),
    "layer huge": lambda fake, source: replace_manifest(
        fake, lambda value: value["layers"][1].update(size=2**60)
    ),
    "layer kind": lambda fake, source: replace_manifest(
        fake, lambda value: value["layers"][1].update(mediaType="application/x-sh")
    ),
    "layer digest": lambda fake, source: replace_manifest(
        fake, lambda value: value["layers"][1].update(digest="sha256:../../../x")
    ),
    "other name": lambda fake, source: replace_manifest(
        fake, lambda value: value["annotations"].update({"vnd.compatkit.name": EXTRACTOR})
    ),
    "other version": lambda fake, source: replace_manifest(
        fake, lambda value: value["annotations"].update({"vnd.compatkit.version": "3.0.0"})
    ),
    "too many signatures": lambda fake, source: setattr(
        fake,
        "override",
        answered(
            f"{TAG[0]}/referrers/",
            Reply(
                200,
                json.dumps(
                    {
                        "manifests": [
                            {
                                "mediaType": "x",
                                "digest": digest(str(number).encode()),
                                "size": 1,
                                "artifactType": "application/vnd.compatkit.signature.v1",
                            }
                            for number in range(1001)
                        ]
                    }
                ).encode(),
                {"Content-Type": INDEX},
            ),
        ),
    ),
    "redirect to another host without encryption": lambda fake, source: setattr(
        fake, "override", answered(f"{TAG[0]}/blobs/", Reply(307, b"", {"Location": "http://192.0.2.1/x"}))
    ),
    "redirect to a file": lambda fake, source: setattr(
        fake, "override", answered(f"{TAG[0]}/blobs/", Reply(307, b"", {"Location": "file:///etc/passwd"}))
    ),
    "redirects without end": lambda fake, source: setattr(
        fake, "override", answered(f"{TAG[0]}/blobs/", Reply(307, b"", {"Location": "?again"}))
    ),
}


@pytest.mark.parametrize("kind", LIES)
def test_what_a_registry_lies_about_is_refused_and_the_rest_comes(
    tmp_path: Path, pushed: FakeRegistry, store: Store, source: Store, kind: str
):
    LIES[kind](pushed, source)
    errors = refused(store, pushed)
    assert errors and all(isinstance(error, IntegrityError) for error in errors), errors
    assert store.names() == [EXTRACTOR] and not list(tmp_path.rglob("*evil*"))
    assert not any("passwd" in str(error) for error in errors)


ENDLESS: dict[str, tuple[str, Reply]] = {
    "list without end": ("_catalog", Reply(200, endless())),
    "pages in a circle": (
        "_catalog",
        Reply(200, b'{"repositories":["a"]}', {"Link": '</v2/_catalog>; rel="next"'}),
    ),
    "empty pages": ("_catalog", Reply(200, b'{"repositories":[]}', {"Link": '<?last=1>; rel="next"'})),
    "pages elsewhere": (
        "_catalog",
        Reply(200, b'{"repositories":["a"]}', {"Link": "<http://192.0.2.1/>; rel=next"}),
    ),
    "no list": ("_catalog", Reply(200, b'{"repositories":{}}')),
    "no JSON": ("_catalog", Reply(200, b"<html>")),
    "tags without end": ("tags/list", Reply(200, endless())),
    "tags in a circle": ("tags/list", Reply(200, b'{"tags":["a"]}', {"Link": "<?n=1>; rel=next"})),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_lists_that_do_not_end_or_are_none_stop_the_pull(
    pushed: FakeRegistry, store: Store, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setattr(_distribution, "MAX_PAGES", 20)
    pushed.override = answered(*ENDLESS[kind])
    with pytest.raises(IntegrityError) as error:
        pull(store, pushed.address)
    assert error.value.exit_code == 3 and store.names() == [] and len(pushed.requests) < 80


def test_tags_and_repositories_of_other_programs_are_left_alone(
    pushed: FakeRegistry, store: Store, source: Store
):
    foreign = json.dumps({"schemaVersion": 2, "layers": []}).encode()
    for name, tag in (
        (TAG[0], "latest"),
        (TAG[0], "9.9.9"),
        ("team/../../etc", "1.0.0"),
        ("team/Upper", "1.0.0"),
    ):
        pushed.manifests[name, digest(foreign)] = (
            "application/vnd.docker.distribution.manifest.v2+json",
            foreign,
        )
        pushed.tags[name, tag] = digest(foreign)
    report = pull(store, pushed.address).check()
    assert sorted(map(str, report.created)) == VERSIONS
    assert not [line for line in pushed.requests if ".." in line or "Upper" in line or "latest" in line]


# --- credentials


@pytest.mark.parametrize("bearer", [False, True], ids=["basic", "bearer"])
def test_a_stored_login_is_used_and_a_wrong_one_is_refused_without_being_shown(
    tmp_path: Path, fake: FakeRegistry, store: Store, source: Store, bearer: bool
):
    fake.login, fake.bearer = "alice:s3cret", bearer
    shown: list[str] = []
    for login in (None, "alice:wr0ng", "al1ce:s3cret"):
        if login is not None:
            write_login(tmp_path, fake.host, login)
        for act in (lambda: push(source, fake.address), lambda: pull(store, fake.address)):
            with pytest.raises(EnvironmentFailure) as error:
                act()
            assert (error.value.code, error.value.exit_code) == ("environment", 4)
            shown.append(f"{error.value} {error.value.__cause__!r}")
    write_login(tmp_path, f"http://{fake.host}/v2/", "alice:s3cret")
    push(source, fake.address).check()
    assert sorted(map(str, pull(store, fake.address).check().created)) == VERSIONS
    secrets = (
        "wr0ng",
        "s3cret",
        "al1ce",
        *(base64.b64encode(word.encode()).decode() for word in ("alice:wr0ng",)),
    )
    assert not [text for text in shown if any(secret in text for secret in secrets)]


def test_an_identity_token_buys_tokens(tmp_path: Path, fake: FakeRegistry, source: Store):
    fake.login, fake.bearer = "alice:s3cret", True
    file = write_login(tmp_path, "other", "a:b")
    for token, error in (("wrong", True), ("identity", False)):
        file.write_text(json.dumps({"auths": {fake.host: {"auth": "", "identitytoken": token}}}))
        if error:
            with pytest.raises(EnvironmentFailure):
                push(source, fake.address)
        else:
            push(source, fake.address).check()


@pytest.mark.parametrize("variable", ["REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "DOCKER_CONFIG"])
def test_logins_of_other_programs_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeRegistry, variable: str
):
    write_login(tmp_path, fake.host, "docker:x")
    file = {
        "REGISTRY_AUTH_FILE": "mine.json",
        "XDG_RUNTIME_DIR": "containers/auth.json",
        "DOCKER_CONFIG": "config.json",
    }
    path = tmp_path / "elsewhere" / file[variable]
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"auths": {fake.host: {"auth": base64.b64encode(b"other:x").decode()}}}))
    monkeypatch.setenv(variable, str(path if variable == "REGISTRY_AUTH_FILE" else tmp_path / "elsewhere"))
    found = stored_credentials(fake.host)
    assert found is not None and found.user == "other"
    path.write_text("{}")
    found = stored_credentials(fake.host)
    assert (found is None) == (variable == "DOCKER_CONFIG"), "an entry elsewhere is found, too"


def test_credentials_go_to_the_registry_alone(tmp_path: Path, pushed: FakeRegistry, store: Store):
    write_login(tmp_path, pushed.host, "alice:s3cret")
    pushed.login = "alice:s3cret"
    with fake_registry() as other:
        seen: list[str | None] = []

        def listen(request: Request) -> Reply:
            seen.append(request.headers.get("Authorization"))
            return Reply(404)

        other.override = listen
        session = _registry_session.RegistrySession(pushed.host, True)
        session._basic = "Basic xyz"
        session._authorized("GET", f"http://{other.host}/x", (), {}, None, 1)
        assert seen == [None]


@pytest.mark.parametrize("realm", ["http://192.0.2.1/token", "ftp://x/", "", "http://"])
def test_a_token_service_without_encryption_gets_no_password(
    tmp_path: Path, fake: FakeRegistry, store: Store, realm: str
):
    write_login(tmp_path, fake.host, "alice:s3cret")
    fake.override = lambda request: Reply(401, b"", {"WWW-Authenticate": f'Bearer realm="{realm}"'})
    with pytest.raises(IntegrityError) as error:
        pull(store, fake.address)
    assert error.value.subject == fake.host


@pytest.mark.parametrize("token", [b"{}", b"[]", b"x", b'{"token":"a\\nb"}', b'{"token":7}'])
def test_a_token_that_is_none_is_refused(fake: FakeRegistry, store: Store, token: bytes):
    challenge = f'Bearer realm="http://{fake.host}/token"'

    def answer(request: Request) -> Reply:
        return (
            Reply(200, token)
            if request.path == "/token"
            else Reply(401, b"", {"WWW-Authenticate": challenge})
        )

    fake.override = answer
    with pytest.raises(IntegrityError):
        pull(store, fake.address)


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Bearer", "Bearer realm=,x", "Bearer realm", 'Digest realm="x"', '"', "Bearer ,,=,"],
)
def test_odd_challenges_are_no_defect(fake: FakeRegistry, store: Store, header: str):
    read_challenge([header])
    fake.override = lambda request: Reply(401, b"", {"WWW-Authenticate": header})
    with pytest.raises((EnvironmentFailure, IntegrityError)):
        pull(store, fake.address)


def test_credential_helpers_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake: FakeRegistry):
    helper = tmp_path / "docker-credential-mine"
    helper.write_text('#!/bin/sh\nread host\necho "{\\"Username\\":\\"u\\",\\"Secret\\":\\"$host\\"}"\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    write_login(tmp_path, "other", "a:b", credHelpers={"host:5": "mine"})
    found = stored_credentials("host:5")
    assert found is not None and (found.user, found.password) == ("u", "host:5")
    assert "host:5" not in repr(found)
    helper.write_text("#!/bin/sh\necho credentials not found in native keychain\nexit 1\n")
    assert stored_credentials("host:5") is None
    helper.write_text("#!/bin/sh\necho s3cret\nexit 3\n")
    with pytest.raises(EnvironmentFailure) as error:
        stored_credentials("host:5")
    assert error.value.subject == "docker-credential-mine" and "s3cret" not in str(error.value)
    write_login(tmp_path, "other", "a:b", credsStore="none-such")
    with pytest.raises(EnvironmentFailure):
        stored_credentials("other")
    write_login(tmp_path, "other", "a:b", credsStore="../x")
    with pytest.raises(UsageError):
        stored_credentials("other")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"auths":{"h":{"auth":"!"}}}', '{"auths":{"h":{"auth":"YWI="}}}']
)
def test_a_damaged_file_of_logins_is_named(tmp_path: Path, fake: FakeRegistry, text: str):
    file = write_login(tmp_path, "h", "a:b")
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        stored_credentials("h")
    assert error.value.subject == file
    file.unlink()
    assert stored_credentials("h") is None


# --- addresses


@pytest.mark.parametrize(
    "address",
    [
        "oci://user:s3cret@host/team",
        "oci://bucket@namespace/x",
        "oci://host:port/x",
        "oci://ho st/x",
        "oci://host/Team",
        "oci://host/team:1.0.0",
        "oci://host/team@1.0.0",
        "oci://host/a//b",
        "oci://host/../x",
        "oci://host/x?y=1",
        "oci://-host/x",
    ],
)
def test_an_address_that_is_none_is_refused(store: Store, address: str):
    with pytest.raises(UsageError) as error:
        pull(store, address)
    assert error.value.code == "usage" and "s3cret" not in str(error.value)


def test_options_are_checked(store: Store):
    for options in ({"plain_http": "yes"}, {"user": "x"}):
        with pytest.raises(UsageError):
            pull(store, "oci://host/x", options=options)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost:5000", True),
        ("127.0.0.1", True),
        ("127.9.9.9:1", True),
        ("[::1]:5000", True),
        ("127.0.0.1.example.org", False),
        ("localhost.example.org", False),
        ("example.org", False),
        ("[2001:db8::1]", False),
    ],
)
def test_encryption_is_left_out_on_this_machine_alone(host: str, loopback: bool):
    assert is_loopback(host) == loopback and split_address(f"oci://{host}/a/b/") == (host, "a/b")
    assert split_address(f"oci://{host}") == (host, "")


def test_repositories_follow_the_prefix():
    assert repository_of("", "a/b") == "a/b" and repository_of("t/x", "a._b") == "t/x/a--b"


def test_a_registry_that_cannot_be_reached_is_a_failure_of_the_network(store: Store, fake: FakeRegistry):
    with pytest.raises(EnvironmentFailure) as error:
        pull(store, "oci://127.0.0.1:1/team")
    assert (error.value.exit_code, error.value.subject) == (4, "oci://127.0.0.1:1/team")
    with pytest.raises(EnvironmentFailure):  # no encryption there
        pull(store, fake.address, options={"plain_http": False})
