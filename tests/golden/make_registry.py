"""Make ``registry.zip``: a registry with every kind of file, as the code of its day wrote it.

It was made once and stays: later code has to open it, find every byte sound, and say the same of it
(``test_registry.py``). Run it anew only for another layout, beside the old one.

    python tests/golden/make_registry.py FOLDER
"""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from small import data_set, write_pack

import compatkit as ck
from compatkit.cli import main

NETWORK = {"channels": (4, 6), "norm": "batch", "top": "mean"}
MOMENT = (2026, 1, 1, 0, 0, 0)


def run(*words: str) -> None:
    """Run a command line that has to succeed."""
    try:
        main(["--registry", "parts", *words])
    except SystemExit as end:
        if end.code:
            raise


def make(folder: Path) -> None:
    """Fill ``folder`` with a registry ``parts``, packs ``left`` and ``right``, and keys."""
    os.chdir(folder)
    os.environ.update(COMPATKIT_DATA=str(folder), COMPATKIT_CACHE=str(folder / "cache"))
    os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
    sets = [data_set(name, seed=seed) for seed, name in enumerate(("left", "right"))]
    for data in sets:
        write_pack(folder, data)
    tasks = [ck.Task(data.name, data, "conv_chain", "layer1", size=12, kwargs=NETWORK) for data in sets]
    trainer = ck.Trainer(steps=40, batch_size=8, seed=0, precision="float32", progress=False)
    registry = ck.Registry.init("parts")
    methods = ["identical_init", "dcc", "rotation_prediction"]
    registry.publish(trainer.fit(tasks, methods), prefix="digits")  # shared heads, anchors, classes
    registry.publish(ck.Trainer(steps=1, batch_size=8, seed=1, progress=False).fit(tasks), prefix="digits")
    registry.matrix("digits/*.extractor@1.0.0", "digits/*.head@1.0.0", [data.test for data in sets])

    split = ("--size", "12", "--kwargs", '{"channels": [4, 8], "in_chans": 1, "num_classes": 3}')
    run("split", "conv_chain", "--cut", "layer2", *split, "--publish", "zoo/wide")
    pair = "digits/left.extractor@1.0.0", "digits/right.head@1.0.0"
    run("recombine", *pair, "--publish", "mixed/batch", "--no-measure")
    estimated = registry.recombine(*pair, data=sets[0].train)
    registry.publish(estimated, "mixed/estimated")
    fitted = registry.recombine(
        "digits/left.extractor@1.0.0", "zoo/wide.head", insert_adapters=True, data=sets[0].train
    )
    registry.publish(fitted.inserted[-1], "mixed/adapter")
    registry.publish(fitted, "mixed/adapted")

    name = "digits/left.extractor"
    for version in ("1.0.0", "2.0.0", "1.0.0"):
        run("alias", name, "prod", version)
    run("alias", "digits/left.head", "old", "1.0.0")
    run("alias", "digits/left.head", "old", "--remove")
    run("withdraw", "digits/right.head@2.0.0", "--reason", "trained for one step")
    run("policy", "set", "digits/*", "--mode", "backward", "--data", "left/test", "--tolerance", "0.5")
    run("policy", "set", name, "--mode", "none")
    run("policy", "clear", "digits/*")
    run("policy", "set", "digits/*", "--mode", "full_transitive", "--data", "left/test", "--tolerance", "0.1")
    run("keys", "new", "golden")
    run("sign", "digits/*", "--key", "golden", "--all")
    lost = b"nothing refers to these bytes\n"
    digest = hashlib.sha256(lost).hexdigest()
    for place, data in {
        f"blobs/sha256/{digest[:2]}/{digest}": lost,
        f"trash/{'0' * 64}-1-{'1' * 16}": lost,
        f"quarantine/{'2' * 64}-1-{'3' * 16}": lost,
        f"tmp/1-{'4' * 16}": lost[:7],
        "blobs/sha256/stray.txt": b"left here by an editor\n",
    }.items():
        path = folder / "parts" / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)


def pack(folder: Path, target: Path) -> None:
    """Write the registry, the packs and the public key as a zip file whose bytes depend on their contents alone."""
    saved = [*folder.glob("*.npz"), *(folder / "config").rglob("*.pub")]
    saved += [item for item in (folder / "parts").rglob("*") if item.is_file()]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(saved):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), MOMENT)
            archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    made = Path(sys.argv[1]).resolve()
    made.mkdir(parents=True)
    make(made)
    pack(made, Path(__file__).with_name("registry.zip"))
