"""Record the outputs of a network's layers for a set of images: arrays in memory, or memory-mapped files."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.errors import DataError, EnvironmentFailure, FormatError, UnknownName, suggest
from compatkit.evaluation.metrics import FLATTENINGS, Result, flattened
from compatkit.foundation.addresses import local
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.limits import OneOf
from compatkit.measuring.measure import measure

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.measuring.measure import Images, Network

INDEX, FORMAT = "activations.json", 1
Array = NDArray[Any]


@attrs.frozen(eq=False, repr=False)
class Activations(Mapping[str, Array]):
    """Outputs of layers, one row an image (or a position of one), by the name of the layer.

    Attributes:
        layers: float32 or float64, ``(n, p)`` each; maps of files if they are kept in a folder.
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
                f"There are no activations of {name!r:.80}.{suggest(name, self.layers)} Layers: "
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
            seed: Seed of the order.

        Returns:
            Copies in memory.
        """
        order = np.random.default_rng(seed).permutation(len(self.positions))

        def shuffle(rows: Array) -> Array:
            return rows.reshape(len(order), -1, rows.shape[1])[order].reshape(rows.shape)

        layers = {name: shuffle(rows) for name, rows in self.layers.items()}
        return Activations(layers, self.positions, {**self.settings, "shuffled": seed})

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Activations:
        """Return the activations that ``activations(..., folder=...)`` kept, without reading them into memory.

        Args:
            folder: The same.

        Raises:
            DataError: There are none, or writing them was interrupted.
            FormatError: A file is damaged, or of another version.
        """
        where = Path(local(folder, "a folder of activations"))
        try:
            index = json.loads((where / INDEX).read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(
                f"{where} has no {INDEX}: it holds no complete activations. Record them again.",
                subject=str(where),
            ) from error
        except ValueError as error:
            raise FormatError(f"{where / INDEX} is not JSON: {error}.", subject=str(where)) from error
        try:
            if index["format"] != FORMAT:
                raise ValueError(f"format {index['format']} is not {FORMAT}")
            positions = np.load(where / index["positions"], allow_pickle=False)
            # Copy-on-write: torch needs writable arrays, and files are never written.
            layers = {
                name: np.load(where / entry["file"], mmap_mode="c", allow_pickle=False)
                for name, entry in index["layers"].items()
            }
            for name, rows in layers.items():
                if list(rows.shape) != index["layers"][name]["shape"]:
                    raise ValueError(f"{name} has shape {rows.shape}, not {index['layers'][name]['shape']}")
        except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
            raise FormatError(
                f"The activations in {where} are damaged: {unreadable(error)}. Record them again.",
                subject=str(where),
            ) from error
        return cls(layers, positions, index["settings"])


@attrs.define(eq=False)
class _OutputRecorder:
    """A metric that keeps the outputs of layers; its state is the number of images so far."""

    flatten: str
    images: int
    folder: Path | None
    layers: dict[str, Array] = attrs.field(factory=dict)
    positions: list[NDArray[np.int64]] = attrs.field(factory=list)

    def init(self) -> int:
        return 0

    def update(self, state: int, positions: Tensor, outputs: Mapping[str, Tensor]) -> int:
        for name, output in outputs.items():
            rows = flattened(name, output, self.flatten).cpu().numpy()
            each = len(rows) // len(positions)
            if name not in self.layers:
                self.layers[name] = self._space((self.images * each, rows.shape[1]), rows.dtype)
            self.layers[name][state * each : state * each + len(rows)] = rows
        self.positions.append(positions.cpu().numpy().astype(np.int64))
        return state + len(positions)

    def merge(self, left: int, right: int) -> int:
        raise NotImplementedError  # one pass

    def finalize(self, state: int) -> Result:
        properties = {
            "unit": "count",
            "direction": "none",
            "estimator": self.flatten,
            "paper": "",
            "equation": "",
        }
        return Result(name="activations", value=float(state), count=state, **properties)  # type: ignore[arg-type]

    def _space(self, shape: tuple[int, int], kind: Any) -> Array:
        """Return room for the rows of one layer."""
        if self.folder is None:
            return np.empty(shape, kind)
        path = self.folder / f"{len(self.layers):04}.npy"
        return np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)


@checks_arguments
def activations(
    network: Network,
    data: Images,
    *,
    layers: Sequence[str],
    flatten: str = "all",
    folder: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Activations:
    """Run images through a network once, in eval mode and without gradients, and keep the outputs of its layers.

    Args:
        network: As for ``ck.measure``.
        data: Images with labels, as for ``ck.measure``; the labels are not looked at.
        layers: Names or globs of layers: paths in the complete network. Their outputs are recorded before a later
            in-place activation changes them. A layer called several times is ``name#1``, ``name#2``, ...
        flatten: ``"all"``: every value of an image is a column; ``"pooled"``: channels, each the mean over its
            positions; ``"positions"``: channels, with every position of every image a row.
        folder: A new or empty folder, for sets larger than memory: rows are written there as they come, and the arrays
            are memory-mapped files. ``Activations.open`` reads it again.
        **settings: ``preprocessing``, ``batch_size``, ``seed``, ``precision``, ``device`` and ``progress`` of
            ``ck.measure``.

    Raises:
        UsageError: No layer is named, or a setting is unknown.
        UnknownName: A layer does not exist.
        DataError: Values of a layer are not finite, or have no form that can be flattened; the folder is not empty.
        EnvironmentFailure: The folder cannot be written.
    """
    OneOf(FLATTENINGS).check("activations", flatten=flatten)
    where = None if folder is None else _empty(Path(local(folder, "a folder of activations")))
    sized: Any = data[1] if isinstance(data, tuple) else getattr(data, "test", data)
    recorder = _OutputRecorder(flatten, len(sized), where)
    try:
        with nullcontext() if where is None else _emptied_after_errors(where):
            measurement = measure(network, data, [recorder], layers=layers, **settings)
            positions = np.concatenate(recorder.positions)
            result = Activations(recorder.layers, positions, {**measurement.settings, "flatten": flatten})
            if where is None:
                return result
            _write_index(where, result)
    except OSError as error:
        raise EnvironmentFailure(
            f"Activations could not be written to {where}: {error.strerror or error}.", subject=str(where)
        ) from error
    return Activations.open(where)


def unreadable(error: Exception) -> str:
    """Return why numpy could not read a file; it reports an unknown format as a pickle."""
    objects = "pickle" in str(error) or "object" in str(error)
    return "it holds Python objects, or has another format" if objects else f"{error}".rstrip(".")


@contextmanager
def _emptied_after_errors(folder: Path) -> Iterator[None]:
    """Remove a folder that was empty before, with what was written there, if the block raises."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _empty(folder: Path) -> Path:
    """Return a folder, created if it does not exist; raise if it is not empty or cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        empty = not any(folder.iterdir())
    except OSError as error:
        message = f"The folder {folder} cannot be created: {error.strerror or error}."
        raise EnvironmentFailure(message, subject=str(folder)) from error
    if not empty:
        raise DataError(f"{folder} is not empty; activations need their own folder.", subject=str(folder))
    return folder


def _write_index(folder: Path, result: Activations) -> None:
    """Write the index last: with it, the activations are complete."""
    layers = {}
    for number, (name, rows) in enumerate(result.layers.items()):
        rows.flush()  # type: ignore[attr-defined]
        layers[name] = {"file": f"{number:04}.npy", "shape": list(rows.shape)}
    np.save(folder / "positions.npy", result.positions)
    index = {
        "format": FORMAT,
        "positions": "positions.npy",
        "settings": dict(result.settings),
        "layers": layers,
    }
    draft = folder / f"{INDEX}.part"
    draft.write_text(json.dumps(index, indent=2), encoding="utf-8")
    os.replace(draft, folder / INDEX)
