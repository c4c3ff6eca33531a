"""Remotes on real servers: what moves, who may, what is said where it fails, and who wins a race."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest
import s3_servers
import servers
from far import HEAD, content

from compatkit.errors import EnvironmentFailure, LayoutError, VersionExists
from compatkit.registry.dropping import drop
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes import files
from compatkit.registry.remotes.address import locate
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.pushpull import clone, pull, push
from compatkit.registry.second_names import copy as copy_version
from compatkit.registry.store import Store

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]
Publish = Callable[..., Any]


@attrs.frozen
class Site:
    """A remote on a running server.

    Attributes:
        address: Address of a folder that does not exist yet.
        options: Options to reach it.
        server: The process.
        strangers: Addresses and options of users who may do nothing.
        readers: Addresses and options of users who may read, and not write.
        exclusive: Whether one of several simultaneous writers wins.
    """

    address: str
    options: Mapping[str, Any]
    server: servers.Server
    strangers: tuple[tuple[str, Mapping[str, Any]], ...]
    readers: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    exclusive: bool = True


def ceph_site(folder: Path, stack: ExitStack) -> Site:
    import json

    import s3fs

    server = stack.enter_context(s3_servers.ceph(folder, "bob", "eve"))
    system = s3fs.S3FileSystem(**server.options, skip_instance_cache=True)
    system.mkdir("parts")
    reading = {
        "Effect": "Allow",
        "Principal": {"AWS": ["arn:aws:iam:::user/bob"]},
        "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": ["arn:aws:s3:::parts", "arn:aws:s3:::parts/*"],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [reading]})
    system.call_s3("put_bucket_policy", Bucket="parts", Policy=policy)
    address = "s3://parts/team"
    wrong = [server.options_of("ALICE", "wrong"), server.options_of("NOBODY", "wrong")]
    strangers = [*wrong, server.options_of(*server.others["eve"])]
    return Site(
        address,
        server.options,
        server.server,
        tuple((address, options) for options in strangers),
        ((address, server.options_of(*server.others["bob"])),),
    )


def s3rver_site(folder: Path, stack: ExitStack) -> Site:
    server = stack.enter_context(s3_servers.s3rver(folder, "parts"))
    address = "s3://parts/team"
    strangers = ((address, server.options_of("NOBODY", "wrong")),)
    return Site(address, server.options, server.server, strangers, exclusive=False)


def sftp_site(folder: Path, stack: ExitStack) -> Site:
    pytest.importorskip("paramiko", reason="paramiko is not installed: pip install 'compatkit[sftp]'")
    server = stack.enter_context(servers.sshd(folder / "server"))
    keygen = servers.program("ssh-keygen", "apt-get install openssh-client")
    command = [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "other")]
    subprocess.run(command, check=True)
    own = {"allow_agent": False, "look_for_keys": False, "known_hosts": str(server.known_hosts)}
    address = f"sftp://{server.user}@{server.server.host}{folder}/files/parts"
    with_password = address.replace("@", ":wrong@")
    strangers = ((with_password, own), (address, {**own, "key_filename": str(folder / "other")}))
    reader = stack.enter_context(servers.sshd(folder / "reader", readonly=True))
    reading = {**own, "known_hosts": str(reader.known_hosts), "key_filename": str(reader.key)}
    readers = ((address.replace(server.server.host, reader.server.host), reading),)
    return Site(address, {**own, "key_filename": str(server.key)}, server.server, strangers, readers)


def webdav_site(folder: Path, stack: ExitStack) -> Site:
    (folder / "files").mkdir(parents=True)
    server = stack.enter_context(servers.webdav(folder / "server", folder / "files"))
    reader = stack.enter_context(servers.webdav(folder / "reader", folder / "files", readonly=True))
    address = f"webdav://alice:secret@{server.host}/deep/parts"
    strangers = (address.replace("secret", "wrong"), address.replace("alice:secret@", ""))
    readers = ((address.replace(server.host, reader.host), {}),)
    return Site(
        address, {}, server, tuple((stranger, {}) for stranger in strangers), readers, exclusive=False
    )


def apache_site(folder: Path, stack: ExitStack) -> Site:
    server, _ = stack.enter_context(servers.apache())
    address = f"webdav://alice:secret@{server.host}/dav/deep/parts"
    strangers = (address.replace("secret", "wrong"), address.replace("alice:secret@", ""))
    return Site(address, {}, server, tuple((stranger, {}) for stranger in strangers), exclusive=False)


SITES = {
    "ceph": ceph_site,
    "s3rver": s3rver_site,
    "sftp": sftp_site,
    "wsgidav": webdav_site,
    "apache": apache_site,
}


@pytest.fixture(autouse=True)
def no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "FSSPEC_S3_ENDPOINT_URL", "SSH_AUTH_SOCK", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield SITES[request.param](tmp_path / "site", stack)


def reach(site: Site) -> Files:
    remote = locate(site.address, site.options)
    assert isinstance(remote, Files)
    return remote


def test_what_is_pushed_pulled_and_cloned_is_the_same_byte_by_byte(
    tmp_path: Path, store: Store, source: Store, site: Site
):
    with pytest.raises(LayoutError):
        pull(store, site.address, options=site.options)
    sent = push(source, site.address, options=site.options).check()
    assert len(sent.created) == 3 and bool(sent.notes) != site.exclusive
    pull(store, site.address, options=site.options).check()
    assert content(store.root) == content(source.root) and examine(store).sound
    copy, _ = clone(site.address, tmp_path / "copy", options=site.options)
    assert content(copy.root) == content(source.root)
    again = push(source, site.address, options=site.options).check()
    assert again.created == [] and again.blobs == 0


def test_a_large_blob_moves_in_parts(
    tmp_path: Path, store: Store, source: Store, site: Site, monkeypatch: pytest.MonkeyPatch
):
    blob = source.put_blob(os.urandom(20 * 2**20))
    remote, sizes = reach(site), list[int]()
    remote.upload("blobs/large", source.objects.path(blob.blob), sizes.append)
    assert sum(sizes) == remote.size("blobs/large") == blob.bytes
    data = source.read_blob(blob.blob)
    assert remote.read("blobs/large", 9 * 2**20, 8 * 2**20) == data[9 * 2**20 : 17 * 2**20]
    assert remote.read("blobs/large", 19 * 2**20, 8 * 2**20) == data[19 * 2**20 :]
    assert remote.read("blobs/large", blob.bytes, 10) == b""
    assert remote.read("blobs/none", 0, 10) is None and remote.size("blobs/none") is None
    remote.put("blobs/large", b"short")
    assert remote.read("blobs/large", 0, 10) == b"short" and remote.sizes("blobs") == {"blobs/large": 5}
    remote.remove("blobs/large")
    remote.remove("blobs/large")
    assert remote.sizes("blobs") == {} and remote.size("blobs") is None


def test_two_teams_that_use_one_number_end_with_both(
    tmp_path: Path, store: Store, publish: Publish, site: Site
):
    other, name = Store.init(tmp_path / "other"), "team/eye"
    theirs, mine = publish(store, name, 1), publish(other, name, 2)
    push(store, site.address, options=site.options).check()
    (refusal,) = push(other, site.address, options=site.options).refused
    assert isinstance(refusal.error, VersionExists) and refusal.what == f"{name}@1.0.0"
    assert f"`compatkit copy {name}@1.0.0 --as {name}@2.0.0`" in str(refusal)
    copy_version(other, f"{name}@1.0.0", f"{name}@2.0.0")
    drop(other, f"{name}@1.0.0", "taken")
    for move, registry in ((pull, other), (push, other), (pull, store)):
        move(registry, site.address, options=site.options).check()
    for registry in (store, other):
        assert registry.resolve(f"{name}@1.0.0").digest == theirs.digest
        assert registry.resolve(f"{name}@2.0.0").digest == mine.digest
        assert examine(registry).sound


def test_who_may_not_is_told_so_and_it_is_no_defect(store: Store, source: Store, site: Site):
    push(source, site.address, options=site.options).check()
    for address, options in site.strangers:
        for move in (pull, push):
            with pytest.raises(EnvironmentFailure, match="no permission") as error:
                move(store, address, options=options)
            assert "secret" not in str(error.value) and "wrong" not in str(error.value)


def test_who_may_read_can_pull_and_not_push(store: Store, source: Store, publish: Publish, site: Site):
    if not site.readers:
        pytest.skip("a server without users who only read")
    push(source, site.address, options=site.options).check()
    publish(source, "news", 9)
    for address, options in site.readers:
        with pytest.raises(EnvironmentFailure, match="no permission"):
            push(source, address, options=options)
        assert len(pull(store, address, options=options).check().created) in (0, 3)
    assert "news" not in store.names() and len(store.names()) == 2


def test_a_server_that_is_killed_half_way_is_told_and_the_same_command_goes_on(
    store: Store, source: Store, site: Site, monkeypatch: pytest.MonkeyPatch
):
    killed = threading.Event()
    at = 0

    def step(operation: str, path: str) -> None:
        nonlocal at
        at -= 1
        if at == 0:
            site.server.kill()
            killed.set()

    monkeypatch.setattr(files, "step", step)
    for move, registry in ((push, source), (pull, store)):
        at = 14
        with pytest.raises(EnvironmentFailure) as error:
            move(registry, site.address, options=site.options)
        assert killed.is_set() and error.value.exit_code == 4
        assert "check the network" in str(error.value)
        killed.clear()
        site.server.start()
        move(registry, site.address, options=site.options).check()
    assert content(store.root) == content(source.root) and examine(store).sound


def test_a_server_that_is_not_there_is_told(store: Store, site: Site):
    site.server.kill()
    with pytest.raises(EnvironmentFailure, match="check the network"):
        pull(store, site.address, options=site.options)


def test_a_host_that_nobody_knows_is_told(store: Store, site: Site):
    nobody = "no-such-host.invalid"
    address = site.address.replace(site.server.host, nobody)
    options = dict(site.options)
    if "endpoint_url" in options:
        options["endpoint_url"] = f"http://{nobody}"
    with pytest.raises(EnvironmentFailure, match="the host is unknown"):
        pull(store, address, options=options)


def test_one_of_many_simultaneous_writers_wins(site: Site):
    if not site.exclusive:
        pytest.skip("a server that promises nothing to simultaneous writers")
    remotes = [reach(site) for _ in range(6)]
    for number in range(20):
        won: list[int] = []
        start = threading.Barrier(len(remotes))
        path = f"refs/a/@versions/{number}.0.0"

        def write(
            writer: int, path: str = path, start: threading.Barrier = start, won: list[int] = won
        ) -> None:
            start.wait()
            if remotes[writer].create(path, f"{writer}\n".encode()):
                won.append(writer)

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(len(remotes))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1 and remotes[0].read(path, 0, 99) == f"{won[0]}\n".encode()


def test_of_two_pushers_of_one_number_the_slower_one_is_told_that_it_exists(
    tmp_path: Path, source: Store, publish: Publish, site: Site, monkeypatch: pytest.MonkeyPatch
):
    rival = Store.init(tmp_path / "rival")
    publish(rival, HEAD, 50, version="2.0.0")
    taken = f"refs/{HEAD}/@versions/2.0.0"
    pushed = False

    def step(operation: str, path: str) -> None:
        nonlocal pushed
        if operation == "create" and path == taken and not pushed:
            pushed = True
            push(rival, site.address, options=site.options).check()

    monkeypatch.setattr(files, "step", step)
    report = push(source, site.address, options=site.options)
    if site.exclusive:
        assert [(item.what, type(item.error)) for item in report.refused] == [
            (f"{HEAD}@2.0.0", VersionExists)
        ]
    else:
        assert report.notes, "a store in which both may succeed says so"
    late = [push(item, site.address, options=site.options) for item in (source, rival)]
    assert sorted(len(item.refused) for item in late) == [0, 1], "one component has the number"


def test_simultaneous_pushes_of_different_components_all_arrive(
    tmp_path: Path, store: Store, publish: Publish, site: Site
):
    """Also the folders above them, and the registry itself, are made by whoever is first."""
    pushers = [Store.init(tmp_path / f"pusher{number}") for number in range(5)]
    names = [f"team/part{number}" for number in range(15)]
    for number, name in enumerate(names):
        publish(pushers[number % 5], name, number)
    errors: list[Exception] = []

    def send(pusher: Store) -> None:
        try:
            push(pusher, site.address, options=site.options).check()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=send, args=(pusher,)) for pusher in pushers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    pull(store, site.address, options=site.options).check()
    assert sorted(store.names()) == sorted(names) and examine(store).sound


# --- what one kind of server alone has


def test_a_bucket_that_does_not_exist_is_told(tmp_path: Path, store: Store, source: Store):
    with s3_servers.s3rver(tmp_path / "server", "parts") as server:
        for move in (pull, push):
            with pytest.raises(EnvironmentFailure, match="does not exist; create it first"):
                move(source, "s3://no-such-bucket/team", options=server.options)


def test_a_folder_that_was_pushed_to_over_ssh_is_a_registry_there(tmp_path: Path, source: Store):
    with servers.sshd(tmp_path / "server") as server:
        options = {"known_hosts": str(server.known_hosts), "key_filename": str(server.key)}
        host = f"sftp://{server.user}@{server.server.host}"
        push(source, f"{host}{tmp_path}/there/parts", options=options).check()
        there = Store.open(tmp_path / "there" / "parts")
        assert content(there.root) == content(source.root) and examine(there).sound
        (tmp_path / "file").write_text("")
        with pytest.raises(EnvironmentFailure):
            push(source, f"{host}{tmp_path}/file/parts", options=options)


def test_an_unknown_key_of_an_ssh_server_is_never_accepted(tmp_path: Path, store: Store):
    with servers.sshd(tmp_path / "server") as server:
        address = f"sftp://{server.user}:secret@{server.server.host}{tmp_path}/parts"
        with pytest.raises(EnvironmentFailure, match="SHA256:"):
            pull(store, address)
        words = server.known_hosts.read_text().split()
        other = (tmp_path / "server" / "user.pub").read_text().split()[1]
        server.known_hosts.write_text(f"{words[0]} {words[1]} {other}\n")
        with pytest.raises(EnvironmentFailure, match="the server's key is not known"):
            pull(store, address, options={"known_hosts": str(server.known_hosts)})


def test_a_folder_without_rights_is_no_empty_one(tmp_path: Path, store: Store, source: Store):
    if os.geteuid() == 0:
        pytest.skip("root may do everything")
    with servers.sshd(tmp_path / "server") as server:
        address = f"sftp://{server.user}@{server.server.host}{tmp_path}/parts"
        options = {"known_hosts": str(server.known_hosts), "key_filename": str(server.key)}
        push(source, address, options=options).check()
        (tmp_path / "parts" / "refs" / "digits").chmod(0)
        with pytest.raises(EnvironmentFailure, match="no permission"):
            pull(store, address, options=options)
