"""Cut a network of every timm family, and compare its parts with the whole network.

Run ``python benchmarks/cutting.py [--families vgg,resnet] [--out FOLDER]``. For the smallest classifier of every model
file of timm, with random weights, the network is cut at the canonical seam, at up to four stages named by timm, and at
the first, middle and last block boundary. Each cut is compared bit for bit with the whole network:

- ``eval``: head(extractor(x)) for 2 and for 3 images;
- ``train``: the same in train mode with dropout and stochastic depth, from the same seed;
- ``gradients``: gradients of every parameter in that pass, and every buffer after it;
- ``size``: images of another size, if the whole network accepts them (else ``-``); ``fixed`` if the cut is valid for
  one size only;
- ``rebuild``: both parts built from their blueprints, with strictly loaded weights;
- ``keys``: state keys of the parts, together those of the whole network without duplicates.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from zoo import SMALLEST

from compatkit.adapters.blueprints import build
from compatkit.adapters.builders import create
from compatkit.adapters.cutting.discovery import CutPoint, find_cut_points
from compatkit.adapters.cutting.planning import working_cut
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.initialization import seeded
from compatkit.contracts.contract import Blueprint
from compatkit.errors import CutError

REFUSED: dict[str, set[str]] = {
    "efficientvit_mit": {"stages.3.blocks.1.context_module.main.aggreg.0"},
    "gemma4_vit": {"encoder.blocks.0", "encoder.blocks.8", "encoder.blocks.15"},
}
"""Refused cuts by family; docs/results/cutting gives the reasons."""
COLUMNS = ("eval", "train", "gradients", "size", "rebuild", "keys")
KWARGS: dict[str, Any] = {"drop_rate": 0.1, "drop_path_rate": 0.1}
SIZE = 128
STEPS = ((32, 64), (64, 32), (64, 64), (128, 128))
"""Pixels added to the traced size, tried in turn."""


def main() -> None:
    """Examine the requested families, print a line for each cut, and write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--families", help="model files, separated by commas; default: all")
    parser.add_argument("--out", type=Path, help="folder for cutting.json and table.md")
    options = parser.parse_args()
    families = options.families.split(",") if options.families else list(SMALLEST)
    warnings.filterwarnings("ignore")
    rows: list[dict[str, Any]] = []
    for number, family in enumerate(families, 1):
        for row in examine_family(family, SMALLEST[family]):
            rows.append(row)
            marks = " ".join(f"{column}:{row[column]}" for column in COLUMNS)
            print(
                f"[{number}/{len(families)}] {family} {row['cut']} ({row['approach']}) {marks} {row['note']}",
                flush=True,
            )
        if options.out:
            write(rows, options.out)
    print(summary(rows))


def write(rows: list[dict[str, Any]], folder: Path) -> None:
    """Write the rows; keep rows of other families from an earlier run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "cutting.json"
    before = json.loads(path.read_text()) if path.exists() else []
    families = {row["family"] for row in rows}
    merged = sorted(
        [row for row in before if row["family"] not in families] + rows, key=lambda row: row["family"]
    )
    path.write_text(json.dumps(merged, indent=1) + "\n")
    (folder / "table.md").write_text(markdown(merged))


def examine_family(family: str, model: str) -> Iterator[dict[str, Any]]:
    """Yield a row for every cut of one model."""
    whole, kwargs, size = build_whole(model)
    reference = Reference(whole, size)
    for point in choose(whole, size, find_cut_points(whole, (3, *size))):
        started = time.perf_counter()
        row = {"family": family, "model": model, "size": list(size), "cut": point.name, "approach": "none"}
        row |= {column: "-" for column in COLUMNS} | {"tensors": len(point.crossing), "note": ""}
        try:
            row |= examine(whole, reference, model, kwargs, size, point.name)
        except CutError as error:
            row["note"] = f"refused: {error}"[:300]
        except Exception as error:  # a defect is a row too
            row["note"] = f"DEFECT {type(error).__name__}: {error}"[:300]
            traceback.print_exc()
        row["seconds"] = round(time.perf_counter() - started, 2)
        yield row


def build_whole(model: str) -> tuple[nn.Module, dict[str, Any], tuple[int, int]]:
    """Return a network with random weights, its keyword arguments and a supported image size."""
    for kwargs in ({**KWARGS, "num_classes": 10}, {"num_classes": 10}):
        for sized in ({"img_size": SIZE}, {}):
            try:
                with seeded(1):
                    whole = create("timm", model, {**kwargs, **sized})
            except Exception:  # other arguments may work
                continue
            config = whole.pretrained_cfg
            native = tuple(config["input_size"][1:])
            for side in (SIZE, 160, 192, 224, 256, native[0]):
                if _runs(whole, (side, side)):
                    return whole, {**kwargs, **sized}, (side, side)
    raise CutError(f"{model} runs at no size that was tried.")


def _runs(whole: nn.Module, size: tuple[int, int]) -> bool:
    try:
        with torch.no_grad():
            whole.eval()(signal((1, 3, *size)))
    except Exception:  # networks raise different errors
        return False
    return True


def choose(whole: nn.Module, size: tuple[int, int], points: list[CutPoint]) -> list[CutPoint]:
    """Return the canonical cut, four stages, and the first, middle and last block boundary."""
    by_name = {point.name: point for point in points}
    stages = [stage["module"] for stage in getattr(getattr(whole, "feature_info", None), "info", [])]
    if not stages and isinstance(getattr(whole, "feature_info", None), list):
        stages = [stage["module"] for stage in whole.feature_info]  # type: ignore[union-attr]
    usable = {name: point for name, point in by_name.items() if not point.refused}
    names = [name for name in stages if name in usable][-4:]
    containers = {
        name for name, module in whole.named_modules() if isinstance(module, nn.Sequential | nn.ModuleList)
    }
    blocks = [n for n in usable if n.rpartition(".")[0] in containers and usable[n].own and _deep(whole, n)]
    names += [blocks[0], blocks[len(blocks) // 2], blocks[-1]] if blocks else []
    declared = [
        n
        for n in usable
        if n.rpartition(".")[0] in containers and len(usable[n].crossing) > 1 and _deep(whole, n)
    ]
    names += declared[len(declared) // 2 :][:1]
    if hasattr(whole, "forward_features") and hasattr(whole, "forward_head"):
        names = ["forward_features", *names]
    return [by_name.get(name) or points[-1] for name in dict.fromkeys(names)]


def _deep(whole: nn.Module, name: str) -> bool:
    """Return whether a module contains more than one convolution or linear layer."""
    return (
        sum(isinstance(module, nn.Conv2d | nn.Linear) for module in whole.get_submodule(name).modules()) > 1
    )


class Reference:
    """Outputs of the uncut network, computed once for all cuts."""

    def __init__(self, whole: nn.Module, size: tuple[int, int]) -> None:
        self.state = {name: value.clone() for name, value in whole.state_dict().items()}
        self.batches = [signal((batch, 3, *size)) for batch in (2, 3)]
        with torch.no_grad():
            whole.eval()
            self.evaluated = [whole(x.clone()) for x in self.batches]
            self.other: tuple[Tensor, Tensor] | None = None
            for tall, wide in STEPS:
                if _runs(whole, (size[0] + tall, size[1] + wide)):
                    x = signal((2, 3, size[0] + tall, size[1] + wide))
                    self.other = x, whole(x.clone())
                    break
        self.trained = step(whole, whole, self.batches[0])
        self.restore(whole)

    def restore(self, whole: nn.Module) -> None:
        """Restore the weights and buffers of the network, in eval mode."""
        whole.load_state_dict(self.state)
        for module in whole.modules():
            module.train(False)


def step(whole: nn.Module, function: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Return output, gradients and buffers of one pass in train mode."""
    whole.zero_grad(set_to_none=True)
    torch.manual_seed(7)
    output = function.train()(x.clone())
    output = output[0] if isinstance(output, tuple) else output
    (output * signal(output.shape, 9)).sum().backward()
    gradients = {name: p.grad.clone() for name, p in whole.named_parameters() if p.grad is not None}
    whole.zero_grad(set_to_none=True)
    return output.detach(), gradients, {name: b.clone() for name, b in whole.named_buffers()}


class Joined(nn.Module):
    """Extractor and head in one module."""

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor, self.head = extractor, head

    def forward(self, x: Tensor) -> Any:
        """Return the logits of images."""
        return self.head(self.extractor(x))


def examine(
    whole: nn.Module,
    reference: Reference,
    model: str,
    kwargs: dict[str, Any],
    size: tuple[int, int],
    cut: str,
) -> dict[str, Any]:
    """Return the row of one cut.

    Raises:
        CutError: The cut is refused.
    """
    requested = Blueprint("timm", "timm", model, kwargs, cut, "extractor", "", size)
    blueprint, extractor, head = working_cut(whole, requested)
    joined = Joined(extractor, head)
    with torch.no_grad():
        joined.eval()
        outputs = [joined(x.clone()) for x in reference.batches]
    row: dict[str, Any] = {"approach": blueprint.approach, "tensors": blueprint.cut_outputs}
    row["eval"] = _mark(all(map(_same, outputs, reference.evaluated)))
    row["size"] = _other_size(joined, reference)
    output, gradients, buffers = step(whole, joined, reference.batches[0])
    reference.restore(whole)
    row["train"] = _mark(_same(output, reference.trained[0]))
    row["gradients"] = _mark(
        _equal(gradients, reference.trained[1]) and _equal(buffers, reference.trained[2])
    )
    own, other = extractor.state_dict(), head.state_dict()
    shared = {parameter.data_ptr() for parameter in extractor.parameters()} & {
        parameter.data_ptr() for parameter in head.parameters()
    }
    union = own.keys() | other.keys() == reference.state.keys() and not own.keys() & other.keys()
    row["keys"] = _mark(union and not shared - {0})
    rebuilt = Joined(
        build(blueprint, state=own), build(attrs.evolve(blueprint, side="head"), state=other)
    ).eval()
    with torch.no_grad():
        row["rebuild"] = _mark(_same(rebuilt(reference.batches[0].clone()), reference.evaluated[0]))
    return row


def _other_size(joined: nn.Module, reference: Reference) -> str:
    if reference.other is None:
        return "-"
    x, expected = reference.other
    try:
        with torch.no_grad():
            return _mark(_same(joined(x.clone()), expected))
    except CutError:
        return "fixed"


def _same(actual: Any, expected: Any) -> bool:
    if isinstance(expected, tuple):
        return isinstance(actual, tuple) and all(map(_same, actual, expected))
    return actual.shape == expected.shape and bool(
        ((actual == expected) | (actual.isnan() & expected.isnan())).all()
    )


def _equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return actual.keys() == expected.keys() and all(
        _same(value, expected[name]) for name, value in actual.items()
    )


def _mark(passed: bool) -> str:
    return "yes" if passed else "NO"


def summary(rows: list[dict[str, Any]]) -> str:
    """Return counts for every column."""
    cuts = [row for row in rows if row["approach"] != "none"]
    lines = [
        f"{len({row['family'] for row in rows})} families, {len(rows)} cuts, {len(rows) - len(cuts)} refused"
    ]
    for column in COLUMNS:
        counts: dict[str, int] = {}
        for row in cuts:
            counts[row[column]] = counts.get(row[column], 0) + 1
        lines.append(f"{column}: " + ", ".join(f"{count} {mark}" for mark, count in sorted(counts.items())))
    return "\n".join(lines)


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table with its summary."""
    head = ["family", "model", "cut", "way", "tensors", *COLUMNS, "note"]
    lines = [*(f"- {line}" for line in summary(rows).splitlines()), "", " | ".join(["", *head, ""]).strip()]
    lines.append("|" + "---|" * len(head))
    for row in rows:
        cells = [row["family"], row["model"], row["cut"], row["approach"], str(row["tensors"])]
        cells += [row[column] for column in COLUMNS] + [row["note"].replace("|", "/")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
