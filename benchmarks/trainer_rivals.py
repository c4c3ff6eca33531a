"""The tiny step in Fabric and Lightning, as documented, with every optional feature off."""

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
from contest import Contestant, Timing, say
from torch import Tensor, nn
from trainer_tiny import BATCH, IMAGES, MEAN, STD, STEPS, make_optimizer, network, pictures

BEFORE = 20
"""Steps of Lightning before the clock starts, so that its startup is not counted."""


def rivals(kind: str) -> Mapping[str, Contestant]:
    """Return the contestants of the installed rivals."""
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
    """Return a function that runs ``STEPS`` steps of a loop with Fabric."""
    from lightning.fabric import Fabric

    run = Fabric(accelerator="cpu", devices=1)
    module = nn.Sequential(*network())
    model, optimizer = run.setup(module, make_optimizer(kind, list(module.parameters())))
    images, labels = pictures()
    scale, shift, numbers = torch.tensor(1 / (255 * STD)), torch.tensor(-MEAN / STD), count()

    def turn() -> None:
        order, history = torch.randperm(IMAGES), []
        for _ in range(STEPS):
            start = next(numbers) * BATCH % IMAGES
            index = order[start : start + BATCH]
            targets = labels[index]
            logits = model(torch.addcmul(shift, images[index].float(), scale))
            loss = F.cross_entropy(logits, targets)
            run.backward(loss)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            history.append((loss.detach(), logits.detach().argmax(1), targets))

    return turn


@attrs.frozen
class InLightning(Contestant):
    """Contestant of Lightning's trainer, timed from step ``BEFORE`` to the last one."""

    kind: str = "sgd"

    def turn(self) -> Timing:
        """Return the time of one turn."""
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
        return Timing(watch.elapsed[0], watch.elapsed[1])


class _Batches:
    """Positions of images, without a DataLoader's cost."""

    def __len__(self) -> int:
        return BEFORE + STEPS

    def __iter__(self) -> Any:
        order = torch.randperm(IMAGES)
        for number in range(BEFORE + STEPS):
            start = number * BATCH % IMAGES
            yield order[start : start + BATCH]


def _watch(pl: Any) -> Any:
    class Watch(pl.Callback):
        elapsed = (0.0, 0.0)

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
            if number == BEFORE:
                self.started = time.perf_counter(), _processor()

        def on_train_end(self, trainer: Any, module: Any) -> None:
            self.elapsed = time.perf_counter() - self.started[0], _processor() - self.started[1]

    return Watch()


def _processor() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _module(pl: Any, kind: str) -> Any:
    images, labels = pictures()
    scale, shift = torch.tensor(1 / (255 * STD)), torch.tensor(-MEAN / STD)

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.history = nn.Sequential(*network()), []

        def training_step(self, index: Tensor, number: int) -> Tensor:
            targets = labels[index]
            logits = self.network(torch.addcmul(shift, images[index].float(), scale))
            loss = F.cross_entropy(logits, targets)
            self.history.append((loss.detach(), logits.detach().argmax(1), targets))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(kind, list(self.parameters()))

    return Module()
