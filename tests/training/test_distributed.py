"""Several processes that train one run, started by torchrun: equal to one process, or one clear error."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import spread
import torch
import torch.nn.functional as F
from pictured import photos
from small import data_set
from swept import read_recipe as read
from torch import Tensor

import compatkit as ck
from compatkit.adapters.builders import BUILDERS
from compatkit.errors import UsageError
from compatkit.evaluation.batchnorm import norm_layers
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.registry.weights.tensorfile import deserialize, metadata
from compatkit.training.batches.sampler import Sampler
from compatkit.training.batches.sources import ImagePlacement
from compatkit.training.distributed import World
from compatkit.training.networks import prepare_task
from compatkit.training.precision import Precision

PROCESSES = 2
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)),
    *("--local-addr", "127.0.0.1"),
)
EQUAL = (
    "sgd",
    "adam",
    "comforts",
    "phases",
    "reversing",
    "frozen",
    "pretrained",
    "puzzled",
    "photographed",
    "combined",
    "joined",
    "choosing",
    "choosing_ahead",
    "curriculum",
)
REFUSED = ("other_images", "failing", "drifting", "choosing_wrongly")


class Interrupt:
    """Ends a run as a kill would, after a checkpoint."""

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        if step.number == spread.STOPPED:
            raise KeyboardInterrupt


@attrs.frozen
class Outcomes:
    """What the processes wrote about the runs of ``spread.py``."""

    folder: Path

    def written(self, name: str, rank: int = 0) -> dict[str, Any]:
        return json.loads((self.folder / f"{name}.{rank}.json").read_text())

    def state(self, name: str, rank: int = 0) -> dict[str, Tensor]:
        return deserialize((self.folder / f"{name}.{rank}.safetensors").read_bytes())


@pytest.fixture(scope="module", autouse=True)
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The network of these runs, among those that can be built, and the photos of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BUILDERS, "grouped", spread.OFFER)
        patch.setenv("PHOTOS", str(tmp_path_factory.mktemp("photos")))
        patch.setenv("COMPATKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        photos(Path(os.environ["PHOTOS"]) / "pets")
        yield


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, grouped: None) -> Iterator[Outcomes]:
    """All runs in one start of two processes, which is what takes the time."""
    folder = tmp_path_factory.mktemp("spread")
    with pytest.raises(KeyboardInterrupt):
        spread.with_checkpoint(folder / "one.safetensors", Interrupt)
    names = (*EQUAL, "contrasted", "batch_normalized", "blended", "resumed", "stopping", *REFUSED)
    subprocess.run([*TORCHRUN, spread.__file__, *names, folder], check=True, timeout=240, env=surroundings())
    yield Outcomes(folder)


def surroundings() -> dict[str, str]:
    paths = [str(Path(spread.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def assert_equal(got: dict[str, Tensor], expected: dict[str, Tensor], within: float = 1e-5) -> None:
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(
            got[key], value, rtol=within, atol=within, msg=lambda result, key=key: f"{key}: {result}"
        )


@pytest.mark.parametrize("name", EQUAL)
def test_two_processes_equal_one_at_the_same_batch(outcomes: Outcomes, name: str) -> None:
    """With IIW, DCC, RP, other tasks; shared heads of some steps, of some processes, and frozen ones."""
    fit, result = spread.RUNS[name](), outcomes.written(name)
    assert_equal(outcomes.state(name), spread.state(fit))
    assert outcomes.state(name).keys() == outcomes.state(name, 1).keys()
    assert all(
        torch.equal(value, outcomes.state(name, 1)[key]) for key, value in outcomes.state(name).items()
    )
    for got, expected in zip(result["history"], fit.history, strict=True):
        losses = [
            {key: value for key, value in row["losses"].items() if not key.endswith("gradient_ratio")}
            for row in (got, expected)
        ]  # a ratio is that of each process by itself
        assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    for got, expected in zip(result["evaluations"], fit.evaluations, strict=True):
        assert (got["loss"], got["accuracy"]) == pytest.approx(
            (expected["loss"], expected["accuracy"]), abs=1e-5
        )
    if name != "frozen":  # whose plan names the heads that the first run left, to the last bit
        assert result["plan"] == fit.plan
    assert result["run"].get("pretraining") == fit.run.get("pretraining")
    assert result["run"]["environment"].pop("processes") == PROCESSES


def test_processes_agree_on_the_end_that_one_of_them_asks_for(outcomes: Outcomes) -> None:
    fit, result = spread.stopping(), outcomes.written("stopping")
    assert result["run"]["stopped"] == fit.run["stopped"]
    assert outcomes.written("stopping", 1)["run"]["stopped"] == fit.run["stopped"]
    assert fit.run["stopped"] == {"steps": 3, "weights_of_step": 3, "reason": "enough"}
    assert_equal(outcomes.state("stopping"), spread.state(fit))


def test_images_are_mixed_within_their_process(outcomes: Outcomes) -> None:
    result, alone = outcomes.written("blended"), spread.blended()
    assert result["plan"] == alone.plan and result["history"][0] != alone.history[0]
    assert_equal(outcomes.state("blended"), outcomes.state("blended", 1), 0.0)


def test_each_image_of_an_epoch_is_seen_by_one_process(outcomes: Outcomes) -> None:
    """Each process takes half of every batch."""
    spread.photographed()
    alone, *shares = (
        json.loads((Path(os.environ["PHOTOS"]) / f"seen.{rank}").read_text()) for rank in ("alone", 0, 1)
    )
    assert len(set(alone)) == len(alone) == spread.STEPS * spread.BATCH
    half = spread.BATCH // 2
    joined = [shares[place % spread.BATCH // half] for place in range(0, len(alone), half)]
    assert alone == [
        position
        for number, share in enumerate(joined)
        for position in share[number // 2 * half : (number // 2 + 1) * half]
    ]


def test_images_are_contrasted_with_those_of_their_process(outcomes: Outcomes) -> None:
    """Four images of two views have 7 others in their process, and 15 where one has all eight."""
    alone = spread.contrasted().history[0]["losses"]["contrastive/loss"]
    shared = outcomes.written("contrasted")["history"][0]["losses"]["contrastive/loss"]
    assert (alone, shared) == pytest.approx((math.log(15), math.log(7)), abs=1e-3)


def test_batch_normalization_equals_a_loop_over_two_shards(outcomes: Outcomes) -> None:
    """Each half of a batch is normalized by itself; stored statistics are means over both processes."""
    task = ck.Task("left", data_set("left"), "resnet8_cifar", "layer2", size=16)
    state = prepare_task(task, 0, Precision("cpu", "float32", True))
    network = torch.nn.Sequential(state.extractor, state.head).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-7)
    examples, order = prepare(task.data.train, state.data), Sampler(48, spread.BATCH, 0, "left")
    running = [value for layer in norm_layers(network) for value in (layer.running_mean, layer.running_var)]
    stored = [[value.clone() for value in running] for _ in range(2)]
    for step in range(spread.STEPS):
        optimizer.param_groups[0]["lr"] = 0.05 * 0.1**step  # a quarter of four steps is one
        index = order.at(step)
        for shard, own in zip(index.chunk(2), stored, strict=True):
            with torch.no_grad():
                torch._foreach_copy_(running, own)
            pixels = normalize(examples.images[shard], state.data).contiguous(
                memory_format=torch.channels_last
            )
            (F.cross_entropy(network(pixels), examples.labels[shard]) / 2).backward()
            own[:] = [value.clone() for value in running]
        optimizer.step()
        optimizer.zero_grad()
    torch._foreach_copy_(running, [(left + right) / 2 for left, right in zip(*stored, strict=True)])
    expected = {
        f"left.{side}/{key}": value
        for side, module in (("extractor", state.extractor), ("head", state.head))
        for key, value in module.state_dict().items()
        if "num_batches" not in key  # counts both shards here
    }
    got = {
        key: value for key, value in outcomes.state("batch_normalized").items() if "num_batches" not in key
    }
    assert_equal(got, expected)


def test_a_run_of_one_process_goes_on_in_two_and_back(outcomes: Outcomes) -> None:
    assert_equal(outcomes.state("resumed"), spread.state(spread.sgd()))
    # Which wrote a checkpoint in its turn: nothing is left to do.
    assert_equal(
        spread.state(spread.with_checkpoint(outcomes.folder / "one.safetensors")),
        outcomes.state("resumed"),
        within=0,
    )


@pytest.mark.parametrize(
    ("name", "rank", "kind", "message"),
    [
        ("other_images", 0, "TrainingError", "different plans: plan.tasks[0].data.digest is 'data:sha256:"),
        (
            "failing",
            1,
            "PluginError",
            "Plugin 'fails' failed in compatkit_after_step: RuntimeError: the disk is on fire",
        ),
        ("drifting", 0, "TrainingError", "different weights: left.head is 'tensors:sha256:"),
        ("choosing_wrongly", 1, "PluginError", "Plugin 'wrong': compatkit_sampler returned 1 positions"),
    ],
)
def test_one_process_says_what_is_wrong_and_the_other_is_not_left_waiting(
    outcomes: Outcomes, name: str, rank: int, kind: str, message: str
) -> None:
    result, other = outcomes.written(name, rank), outcomes.written(name, 1 - rank)
    assert result["error"] == kind and message in result["message"]
    assert result["message"].endswith(f"Raised in process {rank} of 2.")
    assert other["error"] == "TrainingError"
    assert other["message"].startswith(f"The run cannot continue: process {rank} of 2 failed first: {kind}: ")


@pytest.mark.parametrize(
    ("batch_size", "pieces", "message"),
    [
        (
            9,
            1,
            "among 2 processes in equal parts of 2 or more. Use a multiple of 2 from 4 on",
        ),
        (2, 1, "cannot be divided among 2 processes"),
        (
            6,
            2,
            "2 micro-batches (accumulate) in equal parts of 2 or more. Use a multiple of 4 from 8 on",
        ),
    ],
)
def test_batches_that_cannot_be_shared(batch_size: int, pieces: int, message: str) -> None:
    World(1, 2).check_batch(8, 2)
    World().check_batch(3)
    with pytest.raises(UsageError, match=re.escape(message)):
        World(1, 2).check_batch(batch_size, pieces)


@pytest.mark.parametrize("where", ["resident", "prefetched", "loader"])
def test_shares_of_a_batch_are_the_whole_batch(where: str) -> None:
    """Moved and mirrored as there, in whatever way images are kept."""
    (task,) = spread.tasks("left")
    if where == "loader":
        task = attrs.evolve(task, augment=(), loader=spread.loader(task))
    state, precision = (
        prepare_task(task, 0, Precision("cpu", "float32", True)),
        Precision("cpu", "float32", True),
    )
    place = ImagePlacement("auto" if where == "loader" else where)  # type: ignore[arg-type]

    def batches(share: slice) -> list[Any]:
        with closing(place.source(state, 0, 6, precision, share)) as source:
            return [source.batch(step) for step in (0, 1, 8)]

    parts = zip(*(batches(World(rank, 3).share(6)) for rank in range(3)), strict=True)
    for whole, shares in zip(batches(slice(None)), parts, strict=True):
        for name in ("images", "labels", "index"):
            assert torch.equal(torch.cat([getattr(share, name) for share in shares]), getattr(whole, name))


RECIPE = """
prefix = "digits"
regularizers = ["identical_init", "dcc"]
[trainer]
steps = {steps}
batch_size = 8
precision = "float32"
optimizer = "sgd"
lr = 0.01
log_every = 2
checkpoint_every = 2
"""
TASK = """
[[tasks]]
name = "{name}"
data = {{ name = "{name}.npz" }}
model = "lenet"
cut = "pool1"
size = [16, 16]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Two small tasks without normalization, long enough to be killed."""
    for seed, name in enumerate(("left", "right")):
        data = data_set(name, seed=seed)
        images = {f"x_{part}": getattr(data, part).images for part in ("train", "test")}
        labels = {f"y_{part}": getattr(data, part).labels for part in ("train", "test")}
        np.savez(tmp_path / f"{name}.npz", classes=np.array(data.classes), **images, **labels)
    text = RECIPE.format(steps=100) + "".join(TASK.format(name=name) for name in ("left", "right"))
    (tmp_path / "run.toml").write_text(text)
    return tmp_path / "run.toml"


def start(folder: Path, *words: object) -> subprocess.Popen[str]:
    command = [*TORCHRUN, "-m", "compatkit", "--registry", str(folder / "parts"), *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=surroundings(), text=True, **pipes)


def workers(agent: int) -> list[int]:
    """Ids of the processes of the run, by rank."""
    result = {}
    for number in Path(f"/proc/{agent}/task/{agent}/children").read_text().split():
        report = Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
        result.update({int(line[5:]): int(number) for line in report if line.startswith(b"RANK=")})
    return [result[rank] for rank in sorted(result)]


def test_a_process_that_is_killed_ends_the_run_with_one_error_and_a_checkpoint_that_resumes(
    tmp_path: Path,
) -> None:
    command = [*TORCHRUN, spread.__file__, "killed", tmp_path]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, env=surroundings())
    assert result.returncode == 1
    lines = [line for line in result.stderr.splitlines() if "errors.TrainingError" in line]
    assert len(lines) == 1 and result.stderr.count("Traceback") == 2, (
        result.stderr
    )  # ours, and torchrun's own
    checkpoint = tmp_path / "two.safetensors"
    assert re.fullmatch(
        r"(\[rank0\]: )?compatkit\.errors\.TrainingError: The run cannot continue: process 1 of 2 \(id \d+\) is gone: "
        rf"killed, or out of memory\. Start it again: it resumes from the checkpoint {re.escape(str(checkpoint))}\.",
        lines[0],
    )
    assert_equal(spread.state(spread.with_checkpoint(checkpoint)), spread.state(spread.sgd()))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
def test_a_killed_command_goes_on_from_its_checkpoint_and_one_process_publishes(
    tmp_path: Path, recipe: Path
) -> None:
    """The command line under torchrun: one process prints and publishes; the same command goes on."""
    path_kept = tmp_path / "run.safetensors"
    words = ("train", recipe, "--checkpoint", path_kept)
    running = start(tmp_path, *words)
    deadline = time.monotonic() + 120
    while not path_kept.exists() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    processes = workers(running.pid)
    os.kill(processes[1], signal.SIGKILL)
    out, err = running.communicate(timeout=120)
    assert running.returncode
    assert not out
    assert not [process for process in processes if Path(f"/proc/{process}").exists()]
    result = [line for line in err.splitlines() if line.startswith("error [")]
    assert result == [
        f"error [training] The run cannot continue: process 1 of 2 (id {processes[1]}) is gone: killed, or out of "
        f"memory. Start it again: it resumes from the checkpoint {path_kept}."
    ]
    step = json.loads(metadata(path_kept.read_bytes()) or "")["step"]
    assert 0 < step < 100
    again = start(tmp_path, *words)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    published = [line.split()[1] for line in out.splitlines() if line.startswith("published")]
    assert published == [
        f"digits/{name}@1.0.0"
        for name in ("left.extractor", "right.extractor", "shared.dcc", "left.head", "right.head")
    ]
    assert err.count("100 steps of each task") == out.count("next: ") == 1
    alone = read(recipe)
    fit = alone.trainer.fit(alone.tasks, alone.regularizers)
    registry = ck.Registry.open(tmp_path / "parts")
    got = registry.load("digits/left.extractor").state_dict()
    assert_equal(got, fit.tasks["left"].extractor.state_dict(), within=1e-3)
