"""Remotes of plugins: who opens an address, what is refused, and that a plugin's faults and lies stay its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import attrs
import pytest
from far import content

from compatkit.errors import EnvironmentFailure, FormatError, IntegrityError, PluginError, UsageError
from compatkit.plugins.files import offered
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes.address import locate
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.objectstore import Site
from compatkit.registry.remotes.pushpull import pull, push
from compatkit.registry.remotes.remote import Remote
from compatkit.registry.store import Store

HEADER = """
import errno
from pathlib import Path
from compatkit import hookimpl
from compatkit.registry.remotes.objectstore import ObjectStore

compatkit_api = 1
FILES = {}

@hookimpl
def compatkit_remotes(register):
    register("lab", open_remote)

class Lab(ObjectStore):
    def sizes(self, folder):
        return {path: len(data) for path, data in FILES.items()}
    def size(self, path):
        return len(FILES[path]) if path in FILES else None
    def read(self, path, start, count):
        return FILES[path][start : start + count] if path in FILES else None
    def put(self, path, data):
        FILES[path] = data
    def create(self, path, data):
        return FILES.setdefault(path, data) is data
    def remove(self, path):
        FILES.pop(path, None)
"""
Offer = Callable[[str], None]


@pytest.fixture
def offer(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Offer]:
    """Offer ``lab://`` by a file with this code after the header."""
    with ExitStack() as stack:

        def write(code: str) -> None:
            file = tmp_path / f"lab_{abs(hash(request.node.nodeid))}.py"
            file.write_text(HEADER + dedent(code))
            stack.enter_context(offered([file]))

        yield write


def test_a_remote_that_lists_too_much_and_sends_too_much_carries_a_registry(
    store: Store, source: Store, offer: Offer
):
    """``sizes`` lists every file whatever the folder, and ``read`` gives more than was asked for."""
    offer("""
        def open_remote(address, shelf=None):
            return Greedy()

        class Greedy(Lab):
            def read(self, path, start, count):
                return FILES[path][start:] if path in FILES else None
    """)
    sent = push(source, "lab://server/parts", options={"shelf": 3}).check()
    output = pull(store, "LAB://server/parts").check()
    assert content(store.root) == content(source.root) and examine(store).sound
    assert (sent.blobs, len(output.created)) == (output.blobs, 3)
    assert push(source, "lab://server/parts").check().created == []
    result = locate("lab://server/parts")
    assert isinstance(result, Files)
    assert result.sizes("refs") and all(path.startswith("refs/") for path in result.sizes("refs"))
    assert result.read("compatkit.json", 0, 3) == (source.root / "compatkit.json").read_bytes()[:3]


def test_a_plugin_may_name_a_folder(tmp_path: Path, store: Store, source: Store, offer: Offer):
    offer(f"""
        def open_remote(address):
            return Path({str(tmp_path / "mounted")!r})
    """)
    push(source, "lab://server").check()
    assert content(tmp_path / "mounted") == content(source.root)
    assert len(pull(store, "lab://server").check().created) == 3


def test_folders_need_no_plugin(tmp_path: Path, store: Store, source: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COMPATKIT_PLUGINS", "")
    push(source, tmp_path / "far").check()
    pull(store, tmp_path / "far").check()
    assert content(store.root) == content(source.root)
    with pytest.raises(PluginError, match="COMPATKIT_PLUGINS"):
        push(source, "memory://far")


@pytest.mark.parametrize("address", ["nonsense://user:secret@place/parts", "non+sense://place"])
def test_an_unknown_scheme_is_refused_with_what_is_installed(source: Store, offer: Offer, address: str):
    offer("""
        def open_remote(address): ...
    """)
    with pytest.raises(UsageError, match=r"fsspec, hf, .*lab") as error:
        push(source, address)
    assert error.value.subject == address.replace("user:secret@", "") and "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return {}", PluginError),
        ("return Lab", PluginError),
        ("raise RuntimeError('no licence')", PluginError),
        ("raise ValueError('no such server')", UsageError),
        ("return Lab(5)", UsageError),
    ],
)
def test_a_factory_that_opens_nothing_is_an_error(
    source: Store, offer: Offer, body: str, expected: type[Exception]
):
    offer(f"""
        def open_remote(address):
            {body}
    """)
    with pytest.raises(expected) as error:
        push(source, "lab://server")
    assert type(error.value) is expected


def test_an_option_that_the_plugin_does_not_take_is_refused(source: Store, offer: Offer):
    offer("""
        def open_remote(address, token=None):
            return Lab()
    """)
    with pytest.raises(UsageError, match="tokn") as error:
        push(source, "lab://server", options={"tokn": 1})
    assert error.value.subject == "lab://server"


def test_what_a_plugin_raises_names_action_file_and_remedy_without_secrets(source: Store, offer: Offer):
    offer("""
        def open_remote(address):
            return Full()

        class Full(Lab):
            def put(self, path, data):
                raise PermissionError(errno.EACCES, "denied at https://user:secret@server", path)
    """)
    with pytest.raises(EnvironmentFailure, match=r"could not write .* no permission") as error:
        push(source, "lab://user:secret@server/parts")
    assert str(error.value.subject).startswith("lab://server/parts/blobs/sha256/")
    assert "secret" not in str(error.value)


def test_a_plugin_that_believes_to_have_created_a_file_of_somebody_else_is_not_believed(
    source: Store, offer: Offer
):
    offer("""
        def open_remote(address):
            return Blind()

        class Blind(Lab):
            def create(self, path, data):
                if "/@versions/" in path:
                    data = b"somebody else's"
                FILES.setdefault(path, data)
                return True
    """)
    with pytest.raises(IntegrityError):
        push(source, "lab://server").check()


# --- packages


BOX = """
    from compatkit.registry.remotes.packages import Package, PackageFile, PackageStore

    def open_remote(address):
        return Box()

    class Box(PackageStore):
        def packages(self, refuse):
            refuse("the third", ValueError("no package"))
            yield Package({name!r}, {version!r}, ({files}))
        def size(self, digest):
            return 5
        def read(self, digest, start, count):
            return b"12345"[start : start + count]
        def begin(self):
            raise PermissionError(errno.EACCES, "denied")
        def write(self, package, read): ...
        def finish(self): ...
"""
FILE = f'PackageFile("sha256:{"0" * 64}", 5, "manifest"),'


@pytest.mark.parametrize(
    ("name", "version", "files", "error"),
    [
        ("a", "1.0.0", FILE, IntegrityError),  # other bytes than the digest says
        ("a", "1.0.0", FILE.replace("5", "4"), IntegrityError),
        ("../../evil", "1.0.0", FILE, FormatError),
        ("a", "1.0", FILE, FormatError),
        ("a", "01.0.0", FILE, FormatError),
        ("a", "1.0.0", "", FormatError),
        ("a", "1.0.0", FILE.replace("manifest", "weights"), FormatError),
    ],
)
def test_a_package_that_lies_is_refused(
    tmp_path: Path, store: Store, offer: Offer, name: str, version: str, files: str, error: type[Exception]
):
    offer(BOX.format(name=name, version=version, files=files))
    moved = pull(store, "lab://box")
    assert [refusal.what for refusal in moved.refused] == ["the third", f"{name}@{version}"]
    assert type(moved.refused[1].error) is error and store.names() == []
    assert not list(tmp_path.rglob("*evil*"))


def test_packages_that_cannot_be_written_are_an_error_of_the_environment(source: Store, offer: Offer):
    offer(BOX.format(name="a", version="1.0.0", files=FILE))
    with pytest.raises(EnvironmentFailure, match="no permission") as error:
        push(source, "lab://box")
    assert error.value.subject == "lab://box"


def test_a_store_with_a_site_is_asked_for_changes_until_nobody_else_writes(offer: Offer, source: Store):
    offer(
        """
        from compatkit.registry.remotes.objectstore import Site

        def open_remote(address):
            return Shown()

        class Shown(Lab):
            exclusive = True
            parallel = 1  # a call that waits for another one would never end
            def present(self, changes):
                for _ in range(2):
                    files = changes(Site("lab://shown"))
                FILES.update((path, bytes(content)) for path, content in files.items())
        """
    )
    asked: list[tuple[str, bytes | None]] = []

    def site_files(store: Store, remote: Remote, site: Site, notes: list[str]) -> dict[str, bytes]:
        asked.append((site.address, remote.files.read("card", 0, 9)))
        notes.append("told once")
        return {"card": " ".join(remote.names()).encode()}

    settings = TransferSettings(site_files=site_files)
    assert push(source, "lab://shown", settings=attrs.evolve(settings, dry_run=True)).notes == []
    assert asked == []
    assert push(source, "lab://shown", settings=settings).check().notes == ["told once"]
    assert asked == [("lab://shown", None)] * 2
    remote = locate("lab://shown")
    assert isinstance(remote, Files)
    assert remote.read("card", 0, 99) == b"digits/mnist.extractor digits/mnist.head"
