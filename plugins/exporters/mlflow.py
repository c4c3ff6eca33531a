"""MLflow: a model folder that ``mlflow.pyfunc.load_model`` runs on the CPU, without compatkit or pickled code.

Cost: torch traces the network and MLflow loads the folder once to compare outputs, some seconds for a ResNet.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from compatkit import hookimpl
from compatkit.errors import IncompatibleError, IntegrityError, MissingDependency
from compatkit.hooks import Register

compatkit_api = 1
DESCRIPTION = "compatkit-export.json"
"""File of the folder with the description, which ``compatkit adopt`` reads."""


@hookimpl
def compatkit_exporters(register: Register) -> None:
    """Offer ``mlflow``."""
    register("mlflow", export)


def export(
    folder: Path, module: nn.Module, inputs: tuple[Any, ...], description: str, pixels: bool = False
) -> None:
    """Write a network as a folder of MLflow, for any batch size.

    Args:
        folder: Folder to create.
        module: The network, in eval mode.
        inputs: Example arguments with a batch of two.
        description: JSON that describes the network, stored in the folder and summarized in MLflow's metadata.
        pixels: Take uint8 pixels, channels last, and normalize them in the program, instead of normalized images.

    Raises:
        MissingDependency: MLflow or pandas is not installed.
        IncompatibleError: The network takes or gives several tensors, or ``pixels`` of a network that takes features.
        IntegrityError: What MLflow loads gives other outputs than the network.
    """
    if missing := [name for name in ("mlflow", "pandas") if importlib.util.find_spec(name) is None]:
        raise MissingDependency(
            f"MLflow folders need {' and '.join(missing)}, not installed here. Run: pip install 'compatkit[mlflow]'",
            subject=missing[0],
        )
    import mlflow.pyfunc  # type: ignore[import-not-found]
    from mlflow.models import Model, ModelSignature  # type: ignore[import-not-found]
    from mlflow.pytorch import save_model  # type: ignore[import-not-found]
    from mlflow.types import Schema, TensorSpec  # type: ignore[import-not-found]

    details = json.loads(description)
    network, example = module, inputs[0]
    if pixels:
        network, example = _from_pixels(module, details)
    with torch.no_grad():
        outputs = network(example)
    if not isinstance(example, Tensor) or not isinstance(outputs, Tensor):
        raise IncompatibleError(
            "A pyfunc of MLflow takes one array and gives one; this network takes or gives several. Export it with "
            "format torch_export."
        )
    arrays = (example.numpy(), outputs.numpy())
    takes, gives = (Schema([TensorSpec(array.dtype, (-1, *array.shape[1:]))]) for array in arrays)
    save_model(
        network,
        folder,
        signature=ModelSignature(takes, gives),
        input_example=(example.round() if example.is_floating_point() else example).numpy(),  # short as JSON
        serialization_format="pt2",
        pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}"],
        metadata={"compatkit": _summary(details, pixels)},
    )
    saved = Model.load(folder)
    saved.flavors["python_function"]["config"]["device"] = (
        "cpu"  # else MLflow wants a GPU wherever there is one
    )
    saved.save(folder / "MLmodel")
    (folder / DESCRIPTION).write_text(description, encoding="utf-8")
    _check_outputs(mlflow.pyfunc.load_model(str(folder)), network, example)


def _from_pixels(module: nn.Module, details: dict[str, Any]) -> tuple[nn.Module, Tensor]:
    """Return a network that takes pixels, and two images of them.

    Raises:
        IncompatibleError: The network takes features.
    """
    if details["kind"] not in ("recombination", "extractor"):
        raise IncompatibleError(f"A {details['kind']} takes features, not images; leave out pixels.")
    data = details["contract"]["data"]
    sizes = (2, *data["size"], len(data["mean"]))
    drawn = torch.Generator().manual_seed(0)
    return Pixels(module, data["mean"], data["std"]).eval(), torch.randint(
        256, sizes, generator=drawn, dtype=torch.uint8
    )


class Pixels(nn.Module):
    """A network that takes uint8 images with channels last.

    Attributes:
        network: The network behind it, which takes normalized images.
        mean: Mean of each channel, from 0 to 1.
        std: Standard deviation of each channel.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(-1, 1, 1), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the outputs for ``(batch, height, width, channels)``."""
        return self.network((pixels.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.std)


def _summary(details: dict[str, Any], pixels: bool) -> dict[str, Any]:
    """Return what a user of the folder needs to know, for MLflow's metadata."""
    data = details["contract"]["data"]
    if details["kind"] not in ("recombination", "extractor"):
        takes = "features, as the signature says"
    elif pixels:
        takes = "uint8 images (batch, height, width, channels) of this size, values from 0 to 255"
    else:
        takes = "float32 images (batch, channels, height, width) of this size, as (value from 0 to 1 - mean) / std"
    return {
        **{name: details.get(name, "") for name in ("kind", "reference", "component")},
        "input": takes,
        "preprocessing": {name: value for name, value in data.items() if name != "labels"},
        "classes": [label["name"] for label in data.get("labels") or ()],
    }


def _check_outputs(loaded: Any, network: nn.Module, example: Tensor) -> None:
    """Raise unless MLflow's model gives the network's outputs, for a batch of another size too.

    Raises:
        IntegrityError: It does not.
    """
    for images in (example, torch.cat((example, example[:1]))):
        result = torch.from_numpy(loaded.predict(images.numpy()))
        with torch.no_grad():
            expected = network(images)
        if result.shape != expected.shape or not torch.allclose(result, expected, rtol=1e-4, atol=1e-4):
            raise IntegrityError(
                f"What MLflow loads gives other outputs than the network for {len(images)} inputs. Export it with "
                "format torch_export."
            )
