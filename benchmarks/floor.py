"""The floor: work that compatkit should do as fast as the best other way, with the goal of each row.

A row names a function of a script of this folder, ``FUNCTION(rounds)``. It measures both contestants by turns in one
process and returns a figure for each round: ours divided by the rival's, or what ours adds. Rows that need a GPU are
left out where there is none; their functions also take the size of the work (``gpu_size``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from statistics import median, quantiles
from typing import Any, Literal

import attrs

Unit = Literal["x", "us", "ms", "slope"]


@attrs.frozen
class Row:
    """A promise about speed.

    Attributes:
        key: Name of the row on the command line.
        work: What is timed.
        rival: What it is compared with.
        unit: ``x``: ratio of times, ours by the rival's; ``us``, ``ms``: time that ours adds; ``slope``: of the line
            through log time over log size, 1 where time is proportional to size.
        goal: Largest median that meets the promise.
        source: ``SCRIPT:FUNCTION`` that measures it.
        rounds: Rounds by default.
        why: Where the time goes, if the goal is missed.
        needs: Device that the row is about, ``"cuda"``; empty for a CPU.
        arguments: Further arguments of the function.
    """

    key: str
    work: str
    rival: str
    unit: Unit
    goal: float
    source: str
    rounds: int = 9
    why: str = ""
    needs: str = ""
    arguments: Mapping[str, Any] = attrs.field(factory=dict, eq=False)

    @property
    def possible(self) -> bool:
        """Whether this machine has what the row needs."""
        return not self.needs or import_module("torch").cuda.is_available()

    def measure(self, rounds: int, **settings: Any) -> list[float]:
        """Return the figure of each round; ``settings`` are further arguments, such as the size of the work."""
        script, function = self.source.split(":")
        call: Callable[..., list[float]] = getattr(import_module(script), function)
        return call(rounds, **self.arguments, **settings)


@attrs.frozen
class Figure:
    """What was measured of a row.

    Attributes:
        key: Name of the row.
        median: Median over the rounds.
        low: Lower quartile.
        high: Upper quartile.
        rounds: Number of rounds.
        load: Load of the machine at the end, averaged over a minute.
        date: Day, ISO 8601.
    """

    key: str
    median: float
    low: float
    high: float
    rounds: int
    load: float
    date: str

    @classmethod
    def of(cls, key: str, values: list[float], load: float, date: str) -> Figure:
        """Summarize the figures of all rounds."""
        low, _, high = quantiles(values, method="inclusive") if len(values) > 1 else 3 * values
        return cls(key, median(values), low, high, len(values), load, date)


def _on_gpu(
    key: str, work: str, rival: str, goal: float, source: str, rounds: int = 7, /, **arguments: str | bool
) -> Row:
    return Row(key, work, rival, "x", goal, source, rounds, needs="cuda", arguments=arguments)


IMAGE_PASSES: tuple[tuple[str, str, float, str, dict[str, Any]], ...] = (
    ("folder-jpeg", "resized crops", 1.0, "", {"jitter": False, "cache": "off"}),
    ("folder-jpeg-jitter", "resized crops and color jitter", 1.0, "", {"jitter": True, "cache": "off"}),
    ("cache-crops", "decoded once, resized crops", 1 / 3, "", {"jitter": False, "cache": "on"}),
    (
        "cache-crops-jitter",
        "decoded once, resized crops and color jitter",
        1 / 3,
        "workers need .74 ms of the processor an image: .2 for one pass of Pillow over the colors, .1 for the mean "
        "gray, .25 for torch's resize, the rest for draws and copies. With torchvision's jitter it would be 1.2.",
        {"jitter": True, "cache": "on"},
    ),
)

ROWS = (
    *(
        Row(
            f"tiny-step-{where}{'' if kind == 'SGD' else f'-{kind.lower()}'}",
            f"{work}, three idle plugins, {kind}",
            "bare loop with the same data, and torch's optimizer",
            "us",
            goal,
            f"trainer_overhead:{where}_step",
            arguments={"kind": kind.lower()},
        )
        for kind in ("SGD", "Adam")
        for where, work, goal in (
            ("fit", "a step of a tiny network through `fit`, everything included", 15),
            ("loop", "the same step in the trainer's loop alone", 8),
        )
    ),
    Row(
        "tiny-step-loop-functional",
        "the same step in the trainer's loop alone, three idle plugins, SGD",
        "the bare loop with SGD's functional form in place of the optimizer",
        "us",
        8,
        "trainer_overhead:functional_loop_step",
        why="26 to 39 us on a shared machine, 12 to 16 % of a step. The same batches, seeds, hooks, guards and results "
        "in one function written out for this case add 3: the rest is some 25 calls of loop, objective and source, "
        "about 1 us each, as Python's code is out of the processor's caches after torch has run. Written out, the step "
        "would stand twice.",
    ),
    Row(
        "cka-grams-once",
        "CKA of 15 x 15 layers, 1,000 images, activations in memory, unbiased and biased",
        "Grams once, by hand, unbiased alone",
        "x",
        1.0,
        "similarity:cka",
        arguments={"rival": "Grams once"},
    ),
    Row(
        "cka-torch-cka",
        "CKA of 15 x 15 layers, 1,000 images, activations in memory",
        "the loop of torch_cka on one batch of all images, the same statistic",
        "x",
        0.2,
        "similarity:cka",
        rounds=3,
        arguments={"rival": "torch_cka"},
    ),
    *(
        Row(
            f"landscape-{'one-layer' if layer else 'all-layers'}",
            f"loss landscape of ResNet-20, {layer or 'all layers'} moving, 9 x 9 points, 128 images of 16 x 16",
            "a plain loop that copies weights into the network and passes the same pieces of the images",
            "x",
            goal,
            "curvature:landscape",
            rounds=5,
            why=""
            if layer
            else "nine tenths of the time of both is the convolutions, batch norm and ReLU of the passes.",
            arguments={"layer": layer},
        )
        for layer, goal in (("", 1.0), ("layer2.1.conv1", 0.5))
    ),
    *(
        Row(
            f"matrix-{policy}",
            f"matrix of 6 x 6 parts of ResNet-20 from a registry, 1,000 images of 16 x 16, {policy} statistics",
            "each extractor once, each head on kept features, by hand, all in memory",
            "x",
            1 / 0.9,
            "matrix:matrix",
            rounds=5,
            why="of 270 ms of the processor added to 1,450, loading the 12 parts takes 110, writing 36 results 100, "
            "half of it syncs of four files and folders each, copies of features and tallies 40, checks 5; on the "
            "clock, the results of a row wait 35 to 40 ms for the disk.",
            arguments={"policy": policy},
        )
        for policy in ("batch", "running")
    ),
    Row(
        "rank",
        "`rank` of six extractors of one data set with six normalizations, 1,000 images of 64 x 64, processor time",
        "by hand, in memory: each extractor once, scores of features and predictions once an extractor, "
        "`theory_transfer` once in all",
        "x",
        1.2,
        "ranking:rank",
        3,
    ),
    Row(
        "rank-theory",
        "`theory_transfer` for six normalizations of one data set, 1,000 images of 128 x 128, processor time",
        "once, by hand",
        "x",
        1.0,
        "ranking:theory_alone",
        3,
    ),
    *(
        Row(
            f"growth-{work}",
            what,
            "time proportional to the number of pairs",
            "slope",
            1.05,
            "growth_pairs:growth",
            3,
            arguments={"work": work},
        )
        for work, what in (
            ("check", "checks of 100, 200 and 400 extractors with as many heads, no two contracts alike"),
            ("matrix", "matrices of 6 x 6, 12 x 12 and 24 x 24 small parts from a registry, processor time"),
            ("bridges", "`ridge` bridges of 2 x 2, 4 x 4 and 8 x 8 small parts, judged, processor time"),
        )
    ),
    *(
        Row(
            key,
            f"a pass over 1,024 photos of 500 x 375 pixels, {what}, two workers",
            "timm's create_loader, with or without its prefetcher, whichever is faster",
            "x",
            goal,
            "images:loading",
            why=why,
            arguments=arguments,
        )
        for key, what, goal, why, arguments in IMAGE_PASSES
    ),
    *(
        _on_gpu(
            f"gpu-step-{depth}-{mode}",
            f"a step of ResNet-{depth} on a GPU, batches of 512, bf16, {mode}",
            "hand-written loop on the same device, the same way",
            1.01,
            "gpu_steps:step",
            network=f"resnet{depth}_cifar",
            mode=mode,
        )
        for depth in (20, 56)
        for mode in ("eager", "graph", "compile+graph")
    ),
    *(
        _on_gpu(
            f"gpu-joint-{mode}",
            f"a step of two tasks with a ResNet-56 each on a GPU, {mode}",
            "two hand-written loops one after the other",
            1.02,
            "gpu_steps:joint",
            network="resnet56_cifar",
            mode=mode,
        )
        for mode in ("eager", "graph")
    ),
    *(
        _on_gpu(
            f"gpu-rotation-{mode}",
            f"a step of ResNet-20 with rotation prediction on a GPU, {mode}",
            "hand-written loop on the same device, the same way",
            1.03,
            "gpu_rotation:rotation",
            network="resnet20_cifar",
            mode=mode,
        )
        for mode in ("eager", "graph", "compile+graph")
    ),
    *(
        _on_gpu(
            f"gpu-one-pass-{mode}",
            f"a step of ResNet-20 with views normalized by themselves, one extractor pass, on a GPU, {mode}",
            "four extractor passes",
            goal,
            "gpu_rotation:one_pass",
            network="resnet20_cifar",
            mode=mode,
        )
        for mode, goal in (("eager", 1 / 1.5), ("compile+graph", 1 / 1.2))
    ),
    *(
        _on_gpu(
            f"gpu-cka-{rival.lower().replace(' ', '-').replace('_', '-')}",
            "CKA of 15 x 15 layers, 1,000 images, activations on a GPU",
            what,
            goal,
            "gpu_similarity:cka",
            rival=rival,
        )
        for rival, what, goal in (
            ("Grams once", "Grams once, by hand, on the same device", 1.0),
            ("torch_cka", "the loop of torch_cka on the same device", 0.2),
        )
    ),
    _on_gpu(
        "gpu-hessian-products",
        "four Hessian products of ResNet-20 on a GPU, 256 images",
        "double backward pass by hand",
        1.02,
        "gpu_hessian:products",
    ),
    _on_gpu(
        "gpu-hessian-top-20",
        "top 20 of the Hessian on a GPU",
        "power iteration, as in PyHessian, on the same device",
        0.2,
        "gpu_hessian:eigenvalues",
        3,
    ),
    *(
        _on_gpu(
            f"gpu-matrix-{policy}",
            f"matrix of 6 x 6 small parts, 10,000 images, on a GPU, {policy} statistics",
            "each extractor once, each head on kept features, by hand",
            1 / 0.9,
            "gpu_matrix:matrix",
            policy=policy,
        )
        for policy in ("running", "batch")
    ),
    *(
        _on_gpu(
            f"gpu-load-{'first' if first else 'later'}-{rival}",
            f"{'first' if first else 'later'} load of 94 MB to a GPU",
            what,
            goal,
            "gpu_loading:load",
            first=first,
            rival=rival,
        )
        for first, rival, what, goal in (
            (True, "timm", "sha256, timm on meta, load_file to the device, assign", 1.3),
            (False, "timm", "timm on meta, load_file to the device, assign", 1.5),
            (False, "bytes", "the file's bytes copied to the device", 2.0),
        )
    ),
    Row(
        "command-version",
        "`compatkit --version`",
        "click, attrs, and the version from metadata",
        "x",
        1.3,
        "first_touch:version",
    ),
    Row(
        "command-help", "`compatkit --help`", "imports of click, attrs", "x", 1.3, "first_touch:program_help"
    ),
    Row(
        "command-every-help",
        "`compatkit COMMAND --help`, mean over all commands",
        "imports of click, attrs, msgspec",
        "x",
        1.5,
        "first_touch:every_help",
        3,
    ),
    Row(
        "command-ls",
        "`compatkit ls` of ten parts",
        "imports of click, attrs, msgspec, sqlite3",
        "x",
        2,
        "first_touch:ls",
    ),
    Row(
        "command-search",
        "`compatkit search` in ten parts",
        "the same imports",
        "x",
        2,
        "first_touch:search",
    ),
    Row(
        "command-show",
        "`compatkit show`",
        "the same imports",
        "x",
        2,
        "first_touch:show",
    ),
    Row(
        "command-train-help",
        "`compatkit train --help`",
        "imports of click, attrs, msgspec",
        "x",
        2,
        "first_touch:train_help",
    ),
    Row(
        "command-check",
        "`compatkit check` of a pair",
        "imports of click, attrs, msgspec, sqlite3",
        "x",
        2,
        "first_touch:check",
    ),
    Row(
        "command-verify",
        "`compatkit verify` of ten parts",
        "these imports and torch's",
        "x",
        2,
        "first_touch:verify",
    ),
    Row(
        "command-verify-quick",
        "`compatkit verify --quick` of ten parts",
        "imports of click, attrs, msgspec, sqlite3",
        "x",
        2,
        "first_touch:verify_quick",
    ),
    Row(
        "command-completion",
        "`compatkit completion bash`",
        "imports of click, attrs",
        "x",
        1.3,
        "first_touch:completion",
    ),
    Row(
        "command-plugins",
        "`compatkit plugins`, from metadata",
        "imports of click, attrs, packaging; names and versions by importlib.metadata",
        "x",
        2,
        "first_touch:plugins",
    ),
    Row(
        "first-touch",
        "`ck.Trainer`, first touch",
        "imports of torch and numpy",
        "x",
        1.2,
        "first_touch:trainer",
    ),
    *(
        Row(
            f"empty-fit-{'later' if known else 'first'}",
            f"a fit of no steps of timm's ResNet-18, in a new process, network {'checked before' if known else 'new'}",
            "`timm.create_model` in a new process",
            "x",
            1.2,
            "first_touch:empty_fit",
            5,
            arguments={"known": known},
        )
        for known in (False, True)
    ),
    *(
        Row(
            f"reverse-autocast{suffix}",
            f"a bf16 step of {what} with the reverse pass",
            "the reverse pass by hand, under one autocast",
            "x",
            1.03,
            "reverse_pass:autocast_ratios",
            arguments={"name": name},
        )
        for suffix, what, name in (
            ("", "ResNet-20, batches of 16 at 32 pixels", "resnet20_cifar"),
            ("-cnn", "a small convolutional network, batches of 32 at 32 pixels", "simple_cnn"),
            ("-vit", "a ViT of six blocks, batches of 8 at 64 pixels", "vit_tiny_patch16_224"),
        )
    ),
    Row(
        "precision-linear",
        "a step in the default number format, fully connected network of 8 x 16, batches of 64",
        "the same in float32",
        "x",
        1.02,
        "precision:linear_auto",
    ),
    Row(
        "precision-lenet",
        "the same, LeNet at 32 pixels",
        "float32",
        "x",
        1.02,
        "precision:lenet_auto",
    ),
    Row(
        "precision-resnet20",
        "the same, ResNet-20 at 32 pixels",
        "float32",
        "x",
        1.02,
        "precision:resnet_auto",
    ),
    Row(
        "precision-resnet20-bf16",
        "the same",
        "bf16",
        "x",
        1.02,
        "precision:resnet_bf16",
    ),
    Row(
        "precision-resnet20-contiguous",
        "the same",
        "float32 in torch's default memory layout",
        "x",
        1.0,
        "precision:resnet_contiguous",
    ),
    Row(
        "publish-large",
        "publish of 94 MB, durable and hashed",
        "save_file, sha256 of the map beside fsync, link, sync of the folder",
        "x",
        1.3,
        "registry_floor:publish_large",
        7,
        "Of 150 ms the file's digest takes 67, with the tensors' digest and the writing beside it on another core. The "
        "sync takes 50 after it, as a known file is not synced. The rival syncs beside its digest.",
    ),
    Row(
        "publish-small",
        "publish of 1 MB, durable and read back, in a registry in use",
        "save, hash, fsync and link weights, manifest and version",
        "ms",
        2,
        "registry_floor:publish_small",
        15,
        "Beyond the rival, the record of the publication is one more file to sync. The folders of a write are synced "
        "at once, the rival's one by one, so on a busy disk ours may take less.",
    ),
    Row(
        "publish-small-processor",
        "the same, processor time",
        "the same",
        "ms",
        2,
        "registry_floor:publish_small_processor",
        15,
        "Of about 5 ms added (10.5 for 5.7), a second digest, of the tensors, takes 0.95 ms, a search for values that "
        "are not finite 0.5, a fourth file, the record of the publication, 1.1, the strict manifest and its edges 0.4. "
        "Each of the three other durable files takes 0.5 more than bare: half for threads that sync folders at once, "
        "half for looking for links among the folders, copies in the trash, and paths.",
    ),
    Row(
        "verify",
        "`verify` of 5,000 versions, processor time",
        "one read of all files",
        "x",
        3,
        "registry_floor:verify",
        5,
        "Of 80 us for a version (one read: 20), 21 read the manifest strictly, 8 of them its title and tags, which are "
        "decoded and encoded again; 13 list and classify files; 11 read and check the version file; 9 read and hash "
        "the manifest's; 10 compare with the version below; 12 record who uses which file; 4 compare modes and sizes.",
    ),
    *(
        Row(
            f"growth-{work}",
            f"{what}, processor time at 2,000, 8,000 and 32,000 versions",
            "time proportional to the number of versions",
            "slope",
            1.05,
            "growth:growth",
            3,
            why="a publish lists all versions of its name five times, so that no other process's is overlooked: "
            "5.1 ms where the name has 125 versions, 9.1 ms where it has 1,636."
            if work == "publish-long"
            else "",
            arguments={"work": work},
        )
        for work, what in (
            ("ls", "`ls`"),
            ("search", "`search` for a word that all versions have"),
            ("index", "rebuilding the index"),
            ("gc", "`gc`, dry run"),
            ("verify", "`verify`"),
            ("publish", "as many publishes as a registry has versions, of names with five each"),
            ("publish-long", "the same, of one name that has a tenth of the versions"),
        )
    ),
    Row(
        "load-large",
        "first load of 94 MB, hashed and probed, processor time",
        "sha256, timm on meta, load, touch",
        "x",
        1.3,
        "loading_floor:large",
        7,
        "Of 182 ms of processor (rival: 140) the hash takes 74, as the rival's, the build within bounds 19 "
        "(rival: 43), the probe 60, of which the pass is 35 without its bounds, or 62 in NHWC. Without the probe "
        "it would be .87. A pass on meta would show shapes only; the contract promises values, by which "
        "exchanged weights are noticed.",
    ),
    *(
        Row(
            f"load-large-later{'' if initialized else '-strict'}",
            "later load of 94 MB in a registry that is opened anew, processor time",
            f"timm on meta{'' if initialized else ' without its initialization'}, load, touch",
            "x",
            goal,
            "loading_floor:large_later",
            arguments={"initialized": initialized},
        )
        for initialized, goal in ((True, 1.0), (False, 1.25))
    ),
    Row(
        "load-small-again",
        "later load of a small part in one process, in a registry that is opened anew, processor time",
        "the whole network built as usual, load, assign, touch",
        "x",
        1.35,
        "loading_floor:small_again",
    ),
    *(
        Row(
            f"load-small-{'later' if known else 'first'}",
            f"first load of a small part in a new process, {'proved before' if known else 'hashed and probed'}, "
            "processor time after imports of torch and timm",
            "sha256, build on meta, load, touch, in a new process",
            "x",
            2,
            "loading_floor:small",
            5,
            "Of 66 ms of a later load (rival: 26), imports take 17 to 20, two traces by torch.fx and their cut 20, "
            "building 7, finding the builder 5 (15 before), assigning weights 3. A first load adds 20: the probe takes "
            "17, of which 9 are the pass in a new process without its bounds.",
            arguments={"known": known},
        )
        for known in (False, True)
    ),
)
