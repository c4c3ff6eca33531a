"""Every block of Python on every page is sound and runs, and every command of every page is understood.

The blocks of a page run in order in one namespace, beside small data sets and a registry, with few steps.
"""

from __future__ import annotations

import ast
import logging
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType

import click
import pytest
import torch
from followed import Example
from pages import PAGES, REPOSITORY, Block, blocks, repository_path
from photos import class_folder
from small import data_set, quick, write_pack

import compatkit as ck
from compatkit.cli import COMMANDS, program

OF_PLUGINS = [page for page in PAGES if page.parent.name in ("methods", "metrics") and blocks(page, "python")]
"""Pages made by website/plugin_pages.py, one for each method and metric."""
WITH_PYTHON = [page for page in PAGES if blocks(page, "python") and page not in OF_PLUGINS]
ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "docs/how_to/adaptation.md": "tests/test_runnable_pages.py",
    "docs/how_to/adopting.md": "tests/test_runnable_pages.py",
    "docs/how_to/bridges.md": "tests/test_runnable_pages.py",
    "docs/how_to/fleet.md": "tests/test_runnable_pages.py",
    "docs/first_hour/deploy.md": "tests/test_first_hour.py",
    "docs/how_to/from_lightning.md": "tests/test_runnable_pages.py",
    "docs/how_to/from_mlflow.md": "tests/test_runnable_pages.py",
    "docs/how_to/from_timm.md": "tests/test_runnable_pages.py",
    "docs/how_to/recombinations.md": "tests/test_runnable_pages.py",
    "docs/how_to/serving.md": "tests/test_serving_page.py",
    "examples/third_party/README.md": "tests/test_third_party.py",
}
"""Pages whose blocks run as scripts, and the tests that run them."""
SHARING, TRANSFERS = "docs/how_to/sharing.md", "docs/explanation/transfers.md"
SMALLER = {
    "docs/how_to/loaders.md": {"num_workers=4": "num_workers=1"},
    "docs/metrics/hessian_spectrum.md": {"count=5": "count=1, block=1, most=4"},
    "docs/how_to/distributed.md": {"batch_size=512": "batch_size=64"},
    "docs/first_hour/photos.md": {"batch_size=64": "batch_size=8", "size=128": "size=64"},
    "docs/how_to/random_labels.md": {
        "20_000, 25_000": "60, 60",
        "steps = 4000": "steps = 4",
        "batch_size=256": "batch_size=20",
        "evaluate_every=100": "evaluate_every=2",
    },
    "docs/how_to/similarity.md": {"test=1000": "test=60"},
    "docs/how_to/studies.md": {
        'seeds=5, data="DIR"': 'seeds=1, data="packs", arms=["none"], changes={"steps": 2, "train": 100, "test": 100}'
    },
    "docs/how_to/sweeps.md": {"workers=2": 'launcher="sequential"'},
    "docs/explanation/transferability.md": {
        "train=300": "train=80",
        "count=20": "count=1, block=1, most=4",
        '("loss_landscape")\n': '("loss_landscape", points=3)\n',
    },
}
"""What else is made small, by page."""
DIGITS = tuple("0123456789")
OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.mark.parametrize("page", WITH_PYTHON, ids=repository_path)
def test_no_name_is_undefined(page: Path) -> None:
    """A name that a page uses is defined on the page, above it."""
    text = [""] * (page.read_text().count("\n") + 1)
    for block in blocks(page, "python"):
        lines = block.text.splitlines()
        text[block.line - 1 : block.line - 1 + len(lines)] = lines
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "E9,F821,F632,F50,F7", "-"]
    done = subprocess.run(command, input="\n".join(text), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{repository_path(page)}: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", WITH_PYTHON, ids=repository_path)
def test_what_is_called_exists_and_takes_what_it_is_given(page: Path) -> None:
    example = Example()
    for block in blocks(page, "python"):
        example.visit(ast.parse(block.text, repository_path(page)))


def commands(page: Path) -> list[str]:
    """Return the commands of compatkit in a page's blocks, each on one line."""
    text = "".join(block.text for block in blocks(page, "bash", "text", "console")).replace("\\\n", " ")
    parts = [part.split(" > ")[0].strip(" $") for line in text.splitlines() for part in line.split(" && ")]
    return [part for part in parts if part.startswith("compatkit ") and part != "compatkit --version"]


def parsed(line: str) -> None:
    """Parse a command as the program does; raises where it has no such command, argument or option."""
    words = shlex.split(line, comments=True)[1:]
    at = next(index for index, word in enumerate(words) if word in COMMANDS)
    with program.make_context("compatkit", words[:]) as context:
        command: click.Command | None = program.get_command(context, words[at])
        rest = words[at + 1 :]
        while isinstance(command, click.Group):
            default = getattr(command, "default", "")
            if default and (not rest or rest[0] not in command.commands):
                rest.insert(0, default)
            with command.make_context(words[at], rest[:], parent=context) as context:
                command = command.get_command(context, rest.pop(0))
        assert command is not None, f"there is no such command: {line}"
        command.make_context(line, rest, parent=context)


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=repository_path)
def test_commands_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are parsed, not run. Files that the README names must be there; other pages' need not."""
    monkeypatch.chdir(REPOSITORY)
    if repository_path(page) != "README.md":
        monkeypatch.setattr(click.Path, "convert", lambda self, value, param, ctx: value)
    for line in commands(page):
        parsed(re.sub(r"\bDIR\b", ".", line))


def test_commands_that_do_not_exist_are_not_understood() -> None:
    for wrong in (
        "compatkit trian x.toml",
        "compatkit ls --lonng",
        "compatkit du a b c",
        "compatkit keys mint a",
    ):
        with pytest.raises((click.ClickException, StopIteration, AssertionError)):
            parsed(wrong)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages take for granted: packs, photos, a recipe, a key, and registries signed with it."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "packs").mkdir()
    for seed, name in enumerate(("mnist", "usps", "typeset-digits", "fashion_mnist")):
        write_pack(folder / "packs", data_set(name, classes=DIGITS, size=(16, 16), count=130, seed=seed))
    objects = data_set("cifar10", classes=OBJECTS, size=(32, 32), count=130, channels=3)
    write_pack(folder / "packs", objects)
    for place, part in product(("studio", "phone", "pets"), ("train", "val")):
        class_folder(folder / "photos" / place / part, {"cat": 40, "dog": 40}, size=(40, 48))
    (folder / "examples").mkdir()
    recipe = (REPOSITORY / "examples" / "digits_sweep.toml").read_text()
    few = {
        "steps = 200": "steps = 2",
        'seed" = [0, 1, 2]': 'seed" = [0]',
        ', ["dcc"], ["identical_init", "dcc"]': "",
        'data = "digits"': 'data = {name = "digits", train = 100, test = 50}',
        'data = "typeset-digits"': 'data = {name = "typeset-digits", train = 100, test = 50}',
    }
    for many, less in few.items():
        assert many in recipe
        recipe = recipe.replace(many, less)
    (folder / "examples" / "digits_sweep.toml").write_text(recipe)
    released(folder)
    return folder


def released(folder: Path) -> None:
    """Publish two networks of digits that were trained together, signed, and one in another registry."""
    (folder / "keys").mkdir()
    key = ck.signing.SigningKey.new("release")
    (folder / "keys" / "release.pub").write_bytes(key.public.to_bytes())
    sets = {name: ck.data.load(name, root=folder / "packs") for name in ("mnist", "usps")}
    tasks = [ck.Task(name, data, "resnet8_cifar", "layer2", size=16) for name, data in sets.items()]
    fit = quick(steps=2).fit(tasks, ["identical_init", "dcc"])
    parts = ck.Registry.init(folder / "parts")
    parts.publish(fit, prefix="digits")
    parts.maintenance.sign("digits/*", key)
    ck.Registry.init(folder / "zoo").publish(fit, prefix="zoo")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of an S3 server in this process, with an empty bucket."""
    server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'compatkit[dev]'")
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'compatkit[remotes]'")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    address = "http://{}:{}".format(*running.get_host_and_port())
    s3fs.S3FileSystem(endpoint_url=address, key="tester", secret="tester").mkdir("bucket")
    yield address
    running.stop()


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, as the current one."""
    shutil.copytree(world, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path / "packs"))
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [page for page in WITH_PYTHON if repository_path(page) not in (*ELSEWHERE, SHARING, TRANSFERS)],
    ids=repository_path,
)
def test_the_blocks_of_a_page_run(page: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks(page, monkeypatch)


@pytest.mark.parametrize("page", OF_PLUGINS, ids=repository_path)
def test_the_example_of_a_plugin_runs(page: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_blocks(page, monkeypatch)


def run_blocks(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(page, "python"):
        exec(compile(small(page, block), repository_path(page), "exec"), module.__dict__)


def test_the_blocks_about_remotes_run(endpoint: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a program of its own; the bucket is that of a server in this process."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "tester")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    key = (here / "keys" / "release.pub").read_bytes()
    ck.signing.Folder.of_user().trust(ck.signing.PublicKey.from_bytes(key, what="release.pub"))
    (first,) = blocks(REPOSITORY / SHARING, "python")
    (second,) = blocks(REPOSITORY / TRANSFERS, "python")
    assert "http://127.0.0.1:9000" in first.text
    exec(compile(first.placed().replace("http://127.0.0.1:9000", endpoint), SHARING, "exec"), {})
    shutil.rmtree(here / "mine")
    exec(compile(second.placed(), TRANSFERS, "exec"), {})


def small(page: Path, block: Block) -> str:
    text = re.sub(r"\bsteps=[\d_]+", "steps=4", block.placed())
    for large, less in SMALLER.get(repository_path(page), {}).items():
        text = text.replace(large, less)
    return text


def test_what_is_made_small_and_what_is_left_out_is_on_the_pages() -> None:
    """Neither list may outlive what it is for."""
    for name, changes in SMALLER.items():
        text = (REPOSITORY / name).read_text()
        assert all(large in text for large in changes), name
    for name, test in ELSEWHERE.items():
        assert Path(name).name in (REPOSITORY / test).read_text(), f"{test} does not run {name}"
