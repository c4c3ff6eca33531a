"""Rivals, used as their manuals show; missing packages are skipped."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import registry_bare as bare
import torch
from contest import Contestant, version
from huggingface_hub import PyTorchModelHubMixin
from safetensors.torch import load_file
from torch import nn

if TYPE_CHECKING:
    from registry_weights import PublishedExtractor

Prepare = Callable[[], object]
os.environ |= {"HF_HUB_OFFLINE": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
os.environ |= {"MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "true", "MLFLOW_LOGGING_LEVEL": "ERROR"}


class Hub(nn.Module, PyTorchModelHubMixin):
    """Network of timm in the format of the Hugging Face hub."""

    def __init__(self, network: str = "", kwargs: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.net = bare.create_model(network, **(kwargs or {})) if network else nn.Identity()


def hf_save(module: nn.Module, folder: Path, prepare: Prepare) -> Contestant:
    """Return the contestant that saves a module to a folder with Hugging Face's mixin."""
    hub = Hub()
    hub.net = module
    return Contestant(lambda: hub.save_pretrained(folder / "hf"), prepare)


def with_mlflow(folder: Path) -> Any:
    """Return the module ``mlflow`` with a SQLite database in ``folder``; None if MLflow is not installed."""
    if version("mlflow") is None:
        return None
    warnings.filterwarnings("ignore")
    import mlflow
    import mlflow.pytorch

    for name in ("mlflow", "alembic", "mlflow.utils", "mlflow.store"):
        logging.getLogger(name).setLevel(logging.ERROR)
    folder.mkdir(exist_ok=True)
    mlflow.set_tracking_uri(f"sqlite:///{folder / 'mlflow.db'}")
    mlflow.set_registry_uri(f"sqlite:///{folder / 'mlflow.db'}")
    if mlflow.get_experiment_by_name("bench") is None:
        mlflow.create_experiment("bench", artifact_location=(folder / "artifacts").as_uri())
    mlflow.set_experiment("bench")
    return mlflow


def mlflow_publish(module: nn.Module, folder: Path, prepare: Prepare) -> dict[str, Contestant]:
    """Return the contestant that publishes a module with MLflow."""
    mlflow = with_mlflow(folder)
    if mlflow is None:
        return {}

    def clean() -> None:
        shutil.rmtree(folder / "artifacts", ignore_errors=True)
        prepare()

    def work() -> None:
        with mlflow.start_run():
            mlflow.pytorch.log_model(
                module,
                name="net",
                registered_model_name="net",
                pip_requirements=[],
                serialization_format="pickle",
            )

    return {"MLflow log_model + register (neither fsync nor hash)": Contestant(work, clean)}


def loads(part: PublishedExtractor, folder: Path) -> dict[str, Contestant]:
    """Return the rivals' contestants that load a network from a local folder."""
    network, kwargs = part.manifest.blueprint.model, dict(part.kwargs)
    hub = Hub(network, kwargs)
    hub.net.load_state_dict(part.module.state_dict())
    hub.save_pretrained(folder / f"hf-{network}", config={"network": network, "kwargs": kwargs})
    pickled = folder / f"{network}.pt"
    torch.save(part.module.state_dict(), pickled)

    def create(read: Callable[[], Any]) -> float:
        module = bare.create_model(network, **kwargs)
        module.load_state_dict(read())
        return bare.touch(module.eval())

    def from_hub() -> float:
        return bare.touch(Hub.from_pretrained(folder / f"hf-{network}").net)

    contestants = {
        "HF mixin from_pretrained": Contestant(from_hub, check=part.check),
        "timm.create_model + safetensors": Contestant(
            lambda: create(lambda: load_file(part.file)), check=part.check
        ),
        "timm.create_model + torch.load": Contestant(
            lambda: create(lambda: torch.load(pickled, weights_only=True)), check=part.check
        ),
    }
    mlflow = with_mlflow(folder / "mlflow")
    if mlflow is not None:
        saved = folder / f"mlflow-{network}"
        mlflow.pytorch.save_model(part.module, saved, pip_requirements=[], serialization_format="pickle")
        contestants["MLflow load_model (pickle)"] = Contestant(
            lambda: bare.touch(mlflow.pytorch.load_model(saved.as_uri())), check=part.check
        )
    return contestants
