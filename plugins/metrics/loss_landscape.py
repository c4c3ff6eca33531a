"""Loss landscape: the loss around a network's weights, along one or two random filter-normalized directions.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 3 and 4, Fig. 3, 5, 10, 12 and
    13, App. A, after Li et al. (2018), "Visualizing the Loss Landscape of Neural Nets", Sec. 4.
Equation: L(theta + s (p a + q b)) over a grid of whole numbers p and q, center p = q = 0. a and b are Gaussian; each
    filter of b is made orthogonal to that filter of a, so that a and b are orthogonal as a whole; then each filter
    of both is scaled to the norm of theta's. A filter is what one output channel or unit multiplies; one of a single
    value has nothing orthogonal to it, so it moves along a only. Biases and normalization do not move.
Center: the network that is measured, at its start or its end. Layers that are named are the only ones that move.
Paper's grid: 200 x 200, step .001: p from -100 to 99, as here for an even number of points.
Cost: one pass for each point; layers before the first one that moves run once for all points.
Limits: a random plane, and the picture depends on the seed; compare only in one scale. Networks of this size looked
    alike from both starts, where the paper's did not. Biases and normalization do not move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import reduce
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import Number
from compatkit.hooks import Register

from ._loss import CASES, PAPER, LossMetric, LossSurface, SampledExamples, differentiable, weighted

compatkit_api = 1
SHAPE = ("center", "least", "largest", "deviation")
WRITE_EVERY = 64
"""Points between two writes of an interrupted grid."""


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``loss_landscape``."""
    register("loss_landscape", LossLandscape)


def directions(weights: Sequence[Tensor], count: int, draw: torch.Generator) -> list[list[Tensor]]:
    """Return orthogonal directions with the norms of the filters, one tensor a weight.

    Args:
        weights: ``(filters, ...)`` each.
        count: 1 or 2.
        draw: A generator on the CPU.
    """
    sets: list[list[Tensor]] = [[] for _ in range(count)]
    for weight in weights:
        rows, orthogonal = weight.detach().flatten(1).double().cpu(), list[Tensor]()
        for direction in sets:
            new = torch.randn(rows.shape, generator=draw, dtype=torch.float64)
            for other in orthogonal:
                share = (new * other).sum(1, keepdim=True) / other.square().sum(1, keepdim=True)
                new = new - share * other if rows.shape[1] > 1 else torch.zeros_like(new)
            length = new.norm(dim=1, keepdim=True)
            orthogonal.append(new / length.where(length > 0, torch.ones_like(length)))
            direction.append((orthogonal[-1] * rows.norm(dim=1, keepdim=True)).view(weight.shape).to(weight))
    return sets


@attrs.define(eq=False, kw_only=True)
class LossLandscape(LossMetric):
    """Tables ``loss_landscape`` (the grid) and ``loss_landscape/shape``; named layers are the only ones that move.

    Attributes:
        points: Points of each axis; an odd number is symmetric around the center.
        step: Distance of two points, in norms of the filters.
        dimensions: 1 or 2.
        along: Directions to go along, one for each dimension, in place of drawn ones: tensors by the path of the
            weight, such as the difference of two networks' weights. They are taken as they are, so that ``step`` is a
            share of them; other weights stay.
        resume: File (.npz) that keeps the losses computed so far; one of another grid is refused. None keeps none.
    """

    points: int = attrs.field(default=21, validator=Number(least=2, whole=True))
    step: float = attrs.field(default=0.01, validator=Number(above=0))
    dimensions: int = attrs.field(default=2, validator=Number(least=1, most=2, whole=True))
    along: Sequence[Mapping[str, Tensor]] = ()
    resume: str | Path | None = None

    def __attrs_post_init__(self) -> None:
        if self.along and len(self.along) != self.dimensions:
            raise UsageError(
                f"loss_landscape: along names a direction for each of {self.dimensions} dimensions; got "
                f"{len(self.along)}.",
                subject="along",
            )
        if self.resume is not None and not Path(self.resume).parent.is_dir():
            raise UsageError(
                f"loss_landscape: resume is a file in a folder that exists; got {str(self.resume)!r:.100}.",
                subject="resume",
            )

    @property
    def coordinates(self) -> tuple[float, ...]:
        """Return the coordinates along an axis."""
        return tuple((index - self.points // 2) * self.step for index in range(self.points))

    def finalize(
        self, state: SampledExamples | None, network: nn.Module, layers: Mapping[str, nn.Module]
    ) -> tuple[Table, Table]:
        """Return the tables."""
        cases = CASES if self.controls else CASES[:1]
        names = tuple(f"{coordinate:.6g}" for coordinate in self.coordinates)
        grid = [TableCell(None, "undefined", "no examples")] * (len(cases) * self.points**self.dimensions)
        shape = grid[:1] * (len(cases) * len(SHAPE))
        if state is not None:
            surfaces = self.surfaces(state, network, layers)
            losses = np.stack([self.losses(surface, case) for case, surface in surfaces.items()])
            lost = TableCell(None, "undefined", "the loss is not finite here")
            grid = [TableCell(loss) if np.isfinite(loss) else lost for loss in losses.flatten().tolist()]
            shape = [cell for values in losses for cell in self._shape(values)]
        fields: dict[str, Any] = {
            "unit": "loss",
            "direction": "none",
            "count": 0 if state is None else len(state.labels),
            "paper": PAPER,
            "equation": "App. A",
            "estimator": f"along the directions given, {self.precision}; what they do not name is fixed"
            if self.along
            else f"filter-normalized, orthogonal in each filter, seed {self.seed}, {self.precision}; biases and "
            "normalization fixed",
        }
        axes = {"p": names} if self.dimensions == 1 else {"p": names, "q": names}
        return (
            Table(name="loss_landscape", axes={"case": cases, **axes}, cells=tuple(grid), **fields),
            Table(
                name="loss_landscape/shape",
                axes={"case": cases, "quantity": SHAPE},
                cells=tuple(shape),
                **fields,
            ),
        )

    def losses(self, surface: LossSurface, case: str) -> NDArray[np.float64]:
        """Return the mean loss at each point, ``(points,)`` or ``(points, points)``."""
        paths, ways = self._ways(surface)
        key = "" if self.resume is None else self._key(surface, paths, case, ways)
        surface, ways = _channels_last(surface), [[_nhwc(step) for step in way] for way in ways]
        pieces, shape = list(surface.pieces()), (self.points,) * self.dimensions
        some_stay = len(paths) < len(weighted({"": surface.network}))
        sums = self._kept(case, key, (len(pieces), *shape))
        for number, (images, labels) in enumerate(pieces):
            open_points = [tuple(point) for point in np.argwhere(np.isnan(sums[number]))]
            if not open_points:
                continue
            once = unmoved(surface, paths, images) if some_stay else nullcontext()
            with differentiable(), torch.no_grad(), once:
                for first in range(0, len(open_points), WRITE_EVERY):
                    some = open_points[first : first + WRITE_EVERY]
                    sums[(number, *np.transpose(some))] = self._walk(
                        surface, (images, labels), paths, ways, some
                    )
                    if self.resume is not None:
                        _write(Path(self.resume), case, key, sums)
        return sums.sum(0) / len(surface.labels)

    def _walk(
        self,
        surface: LossSurface,
        piece: tuple[Tensor, Tensor],
        paths: Sequence[str],
        ways: Sequence[Sequence[Tensor]],
        points: Sequence[tuple[int, ...]],
    ) -> list[float]:
        """Return the sum of the losses of some examples at each point."""
        images, labels = piece
        weights = [surface.parameters[path] for path in paths]
        moved = [weight.clone() for weight in weights]

        def walk() -> list[float]:
            losses = []
            for at in points:
                for index, weight in enumerate(weights):
                    steps = (self.coordinates[axis] * way[index] for axis, way in zip(at, ways, strict=True))
                    torch.add(weight, reduce(torch.add, steps), out=moved[index])
                losses.append(
                    float(F.cross_entropy(surface.network(images.clone()), labels, reduction="sum"))
                )
            return losses

        return surface.within({**surface.parameters, **dict(zip(paths, moved, strict=True))}, walk)

    def _ways(self, surface: LossSurface) -> tuple[list[str], list[list[Tensor]]]:
        """Return the paths of the weights that move, and for each dimension how each moves.

        Raises:
            UsageError: A direction names no parameter that may move, or has another shape.
        """
        if not self.along:
            paths = _moving(surface)
            weights = [surface.parameters[path] for path in paths]
            return paths, directions(weights, self.dimensions, torch.Generator().manual_seed(self.seed + 1))
        for way in self.along:
            for path, step in way.items():
                weight = surface.parameters.get(path)
                if weight is None or weight.shape != step.shape:
                    expected = (
                        "no parameter that moves"
                        if weight is None
                        else f"a parameter of shape {tuple(weight.shape)}"
                    )
                    raise UsageError(
                        f"loss_landscape: along has {path!r} of shape {tuple(step.shape)}; the network has {expected}.",
                        subject=path,
                    )
        paths = list(dict.fromkeys(path for way in self.along for path in way))
        zeros = {path: torch.zeros_like(surface.parameters[path]) for path in paths}
        return paths, [[way.get(path, zeros[path]).to(zeros[path]) for path in paths] for way in self.along]

    def _shape(self, losses: NDArray[np.float64]) -> list[TableCell]:
        if not np.isfinite(losses).all():
            return [TableCell(None, "undefined", "some losses are not finite")] * len(SHAPE)
        center = losses[(self.points // 2,) * self.dimensions]
        return [TableCell(float(loss)) for loss in (center, losses.min(), losses.max(), losses.std())]

    def _key(
        self, surface: LossSurface, paths: Sequence[str], case: str, ways: Sequence[Sequence[Tensor]]
    ) -> str:
        """Return a digest of all that the losses depend on."""
        digest = hashlib.sha256(
            repr((case, paths, self.coordinates, self.dimensions, self.seed, surface.chunk)).encode()
        )
        steps = (
            [step for way in ways for step in way] if self.along else []
        )  # drawn ones follow from the seed
        for tensor in (
            *steps,
            *surface.parameters.values(),
            *surface.fixed.values(),
            surface.images,
            surface.labels,
        ):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _kept(self, case: str, key: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Return the sums of losses so far, NaN where there are none.

        Raises:
            DataError: The file holds another grid, or none.
        """
        sums = np.full(shape, np.nan)
        if self.resume is None or not Path(self.resume).exists():
            return sums
        try:
            with np.load(self.resume, allow_pickle=False) as archive:
                if f"{case}/key" not in archive:
                    return sums
                known, sums = str(archive[f"{case}/key"]), archive[f"{case}/sums"]
        except (OSError, ValueError) as error:
            raise DataError(
                f"{self.resume} does not hold a landscape: {error}. Name a new file, or remove it.",
                subject=str(self.resume),
            ) from error
        if known != key or sums.shape != shape:
            raise DataError(
                f"{self.resume} holds the landscape of other weights, examples or settings. Name a new file, or remove "
                "it.",
                subject=str(self.resume),
            )
        return sums


def _moving(surface: LossSurface) -> list[str]:
    """Return the paths of the weights that move."""
    paths = {id(parameter): path for path, parameter in surface.network.named_parameters()}
    weights = [paths.get(id(layer.weight)) for layer in surface.layers.values()]
    return list(dict.fromkeys(weight for weight in weights if weight in surface.parameters))  # type: ignore[misc]


def _nhwc(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def _channels_last(surface: LossSurface) -> LossSurface:
    """Return the surface with images and convolution weights as NHWC in memory, in which convolutions are faster."""
    tensors = surface.parameters, surface.fixed
    parameters, fixed = ({path: _nhwc(tensor) for path, tensor in some.items()} for some in tensors)
    return attrs.evolve(surface, parameters=parameters, fixed=fixed, images=_nhwc(surface.images))


def _write(path: Path, case: str, key: str, sums: NDArray[np.float64]) -> None:
    """Write one case, keep the others; the file is replaced at once."""
    arrays: dict[str, Any] = {}
    if path.exists():
        with np.load(path, allow_pickle=False) as old:
            arrays = {name: old[name] for name in old.files}
    beside = path.with_name(f"{path.name}.new.npz")
    np.savez(beside, **{**arrays, f"{case}/key": np.array(key), f"{case}/sums": sums})
    beside.replace(path)


@contextmanager
def unmoved(surface: LossSurface, paths: Sequence[str], images: Tensor) -> Iterator[None]:
    """Let modules that are done before the first moving layer give what they gave once, until the block ends.

    Only where this is sure: every moving layer is called as a module; the module holds no moving weight, gives one
    tensor and is not called again later.

    Args:
        surface: The loss.
        paths: Paths of the weights that move.
        images: Those that will pass in the block.
    """
    network = surface.network
    moving = {id(network.get_parameter(path)) for path in paths}
    layers = [
        layer for layer in network.modules() if any(id(w) in moving for w in layer.parameters(recurse=False))
    ]
    outputs_by_module: dict[nn.Module, list[Any]] = {}
    reached: set[nn.Module] = set()
    late: set[nn.Module] = set()

    def arrive(module: nn.Module, inputs: Any) -> None:
        reached.add(module)

    def done(module: nn.Module, inputs: Any, output: Any) -> None:
        if reached:
            late.add(module)
        else:
            outputs_by_module.setdefault(module, []).append(
                output.clone() if isinstance(output, Tensor) else None
            )

    handles = [layer.register_forward_pre_hook(arrive) for layer in layers]
    handles += [layer.register_forward_hook(done, prepend=True) for layer in network.modules()]
    try:
        surface.summed(surface.parameters, images, surface.labels[:1].expand(len(images)))
    finally:
        for handle in handles:
            handle.remove()
    known = {
        module: outputs
        for module, outputs in outputs_by_module.items()
        if module not in late
        and all(output is not None for output in outputs)
        and not any(id(w) in moving for w in module.parameters())
    }
    if reached != set(layers):
        known = {}
    inner = {child for module in known for child in module.modules() if child is not module}
    patched = [module for module in known if module not in inner]
    try:
        for module in patched:
            module.forward = _Again(known[module])  # type: ignore[method-assign]
        yield
    finally:
        for module in patched:
            module.__dict__.pop("forward", None)


class _Again:
    """Gives what a module gave, call by call; copies, which may be changed in place."""

    def __init__(self, outputs: Sequence[Tensor]) -> None:
        self.outputs, self.calls = outputs, 0

    def __call__(self, *inputs: Any, **keywords: Any) -> Tensor:
        self.calls += 1
        return self.outputs[(self.calls - 1) % len(self.outputs)].clone()
