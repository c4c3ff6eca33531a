"""The tiny step through Fabric and Lightning, as their documentation tells it; what can be switched off is off."""

from __future__ import annotations

import logging
import resource
import time
import warnings
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from registry_measuring import Contestant, Taken, say
from torch import Tensor, nn
from trainer_tiny import BATCH, IMAGES, MEAN, STD, STEPS, make_optimizer, network, pictures

BEFORE = 20
"""Steps of Lightning before the clock starts: its own start is not a step."""


def rivals(kind: str) -> Mapping[str, Contestant]:
    """Return those that are installed."""
    try:
        import lightning
    except ImportError:
        say("lightning is not installed: pip install lightning; its rows are left out")
        return {}
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    return {
        f"Fabric {lightning.__version__}": Contestant(fabric(kind)),
        f"Lightning {lightning.__version__}": InLightning(lambda: None, kind=kind),
    }


def fabric(kind: str) -> Callable[[], object]:
    """Return what takes a turn of a loop with Fabric."""
    from lightning.fabric import Fabric

    run = Fabric(accelerator="cpu", devices=1)
    made = nn.Sequential(*network())
    model, optimizer = run.setup(made, make_optimizer(kind, list(made.parameters())))
    images, labels = pictures()
    scale, shift, numbers = torch.tensor(1 / (255 * STD)), torch.tensor(-MEAN / STD), count()

    def turn() -> None:
        order, kept = torch.randperm(IMAGES), []
        for _ in range(STEPS):
            place = next(numbers) * BATCH % IMAGES
            index = order[place : place + BATCH]
            wanted = labels[index]
            logits = model(torch.addcmul(shift, images[index].float(), scale))
            loss = F.cross_entropy(logits, wanted)
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            kept.append((loss.detach(), logits.detach().argmax(1), wanted))

    return turn


@attrs.frozen
class InLightning(Contestant):
    """A turn of Lightning's trainer, from a step after its start to the last one."""

    kind: str = "sgd"

    def turn(self) -> Taken:
        """See ``Contestant``."""
        import lightning.pytorch as pl

        watch = _watch(pl)
        trainer = pl.Trainer(
            accelerator="cpu",
            max_steps=BEFORE + STEPS,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            barebones=False,
            callbacks=[watch],
        )
        trainer.fit(_module(pl, self.kind), train_dataloaders=_Batches())
        return Taken(watch.took[0], watch.took[1])


class _Batches:
    """Positions of images, without a DataLoader's cost."""

    def __len__(self) -> int:
        return BEFORE + STEPS

    def __iter__(self) -> Any:
        order = torch.randperm(IMAGES)
        for number in range(BEFORE + STEPS):
            place = number * BATCH % IMAGES
            yield order[place : place + BATCH]


def _watch(pl: Any) -> Any:
    class Watch(pl.Callback):
        took = (0.0, 0.0)

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
            if number == BEFORE:
                self.begun = time.perf_counter(), _processor()

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self.took = time.perf_counter() - self.begun[0], _processor() - self.begun[1]

    return Watch()


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _module(pl: Any, kind: str) -> Any:
    images, labels = pictures()
    scale, shift = torch.tensor(1 / (255 * STD)), torch.tensor(-MEAN / STD)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.kept = nn.Sequential(*network()), []

        def training_step(self, index: Tensor, number: int) -> Tensor:
            wanted = labels[index]
            logits = self.network(torch.addcmul(shift, images[index].float(), scale))
            loss = F.cross_entropy(logits, wanted)
            self.kept.append((loss.detach(), logits.detach().argmax(1), wanted))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(kind, list(self.parameters()))

    return Module()
