"""Record the outputs of a network's layers for a set of images."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.errors import UnknownName, suggest
from compatkit.evaluation.metrics import FLATTENINGS, Result, flattened
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.limits import OneOf
from compatkit.measuring.measure import measure

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.measuring.measure import Images, Network

Array = NDArray[Any]


@attrs.frozen(eq=False, repr=False)
class Activations(Mapping[str, Array]):
    """Outputs of layers, one row an image (or a position of one), by the name of the layer.

    Attributes:
        layers: float32 or float64, ``(n, p)`` each.
        positions: Index of each image in its data set, in the order of the rows, int64.
        settings: Data, layers, batch size, precision, device, flattening.
    """

    layers: Mapping[str, Array]
    positions: NDArray[np.int64]
    settings: Mapping[str, Any]

    def __getitem__(self, name: str) -> Array:
        """Return the rows of a layer.

        Raises:
            UnknownName: There is no such layer.
        """
        if name not in self.layers:
            raise UnknownName(
                f"There are no activations of {name!r:.80}.{suggest(name, self.layers)} Layers here: "
                f"{', '.join(self.layers)}.",
                subject=name,
            )
        return self.layers[name]

    def __contains__(self, name: object) -> bool:
        """Return whether there is a layer of this name."""
        return name in self.layers

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {rows.shape[0]} x {rows.shape[1]}" for name, rows in self.layers.items())
        return f"Activations({len(self.positions)} images: {shapes})"

    @property
    def order(self) -> str:
        """A digest of which images these are, and in which order."""
        about = f"{self.settings.get('data_digest', '')}\n".encode()
        return hashlib.sha256(about + self.positions.astype("<i8").tobytes()).hexdigest()

    def shuffled(self, seed: int = 0) -> Activations:
        """Return the same rows in a random order under the same positions: a control, in which no image has its own.

        Args:
            seed: Of the order.

        Returns:
            Copies in memory.
        """
        order = np.random.default_rng(seed).permutation(len(self.positions))

        def moved(rows: Array) -> Array:
            return rows.reshape(len(order), -1, rows.shape[1])[order].reshape(rows.shape)

        settings = {**self.settings, "shuffled": seed}
        return Activations(
            {name: moved(rows) for name, rows in self.layers.items()}, self.positions, settings
        )


@attrs.define(eq=False)
class _OutputRecorder:
    """A metric that keeps the outputs of layers; its state is the number of images so far."""

    flatten: str
    images: int
    layers: dict[str, Array] = attrs.field(factory=dict)
    positions: list[NDArray[np.int64]] = attrs.field(factory=list)

    def init(self) -> int:
        return 0

    def update(self, state: int, positions: Tensor, outputs: Mapping[str, Tensor]) -> int:
        for name, output in outputs.items():
            rows = flattened(name, output, self.flatten).cpu().numpy()
            each = len(rows) // len(positions)
            if name not in self.layers:
                self.layers[name] = np.empty((self.images * each, rows.shape[1]), rows.dtype)
            self.layers[name][state * each : state * each + len(rows)] = rows
        self.positions.append(positions.cpu().numpy().astype(np.int64))
        return state + len(positions)

    def merge(self, left: int, right: int) -> int:
        raise NotImplementedError  # one pass

    def finalize(self, state: int) -> Result:
        facts: dict[str, Any] = {"unit": "count", "direction": "none", "estimator": self.flatten, "paper": ""}
        return Result(name="activations", value=float(state), count=state, equation="", **facts)


@checks_arguments
def activations(
    network: Network,
    data: Images,
    *,
    layers: Sequence[str],
    flatten: str = "all",
    **settings: Any,
) -> Activations:
    """Run images through a network once, in eval mode and without gradients, and keep the outputs of its layers.

    Args:
        network: As for ``ck.measure``.
        data: Images with labels, as for ``ck.measure``; the labels are not looked at.
        layers: Names or globs of layers: paths in the whole network. Their outputs are taken as they leave the layer,
            before an activation that works in place. A layer called several times is ``name#1``, ``name#2``, ...
        flatten: ``"all"``: every value of an image is a column; ``"pooled"``: channels, each the mean over its
            positions; ``"positions"``: channels, with every position of every image a row.
        **settings: ``preprocessing``, ``batch_size``, ``seed``, ``precision``, ``device`` and ``progress`` of
            ``ck.measure``.

    Raises:
        UsageError: No layer is named, or a setting is unknown.
        UnknownName: A layer does not exist.
        DataError: Values of a layer are not finite, or have no form that can be flattened.
    """
    OneOf(FLATTENINGS).check("activations", flatten=flatten)
    sized: Any = data[1] if isinstance(data, tuple) else getattr(data, "test", data)
    recorder = _OutputRecorder(flatten, len(sized))
    measurement = measure(network, data, [recorder], layers=layers, **settings)
    facts = {**measurement.settings, "flatten": flatten}
    return Activations(recorder.layers, np.concatenate(recorder.positions), facts)
