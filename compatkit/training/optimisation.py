"""One optimiser an owner module, with the papers' classic L2 penalty."""

from __future__ import annotations

from typing import Literal

import attrs
import torch
from torch import Tensor, nn

from compatkit.errors import UsageError

Kind = Literal["adam", "sgd"]


@attrs.frozen
class Optimisation:
    """Which optimiser, and how fast.

    Attributes:
        kind: ``"adam"`` or ``"sgd"``.
        lr: Initial learning rate.
        momentum: Of SGD.
        weight_decay: L2 penalty, added to the gradient as in the papers (not decoupled).
    """

    kind: Kind = "adam"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-7

    def make(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        """Return the optimiser of one network, or of one shared module.

        On a GPU the learning rate is a tensor there, which a captured step reads anew at every replay.
        """
        device = parameters[0].device
        lr = torch.tensor(self.lr, device=device) if device.type == "cuda" else self.lr
        if self.kind == "adam":
            return torch.optim.Adam(
                parameters,
                lr=lr,
                weight_decay=self.weight_decay,
                fused=True,
                capturable=device.type == "cuda",
            )
        return torch.optim.SGD(
            parameters, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=True
        )


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give an optimiser another learning rate, in place where it is a tensor."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def check_owners(owners: dict[str, nn.Module]) -> None:
    """Check that every parameter has exactly one owner.

    Raises:
        UsageError: A parameter is held by two owners; both are named.
    """
    seen: dict[int, str] = {}
    for owner, module in owners.items():
        for name, parameter in module.named_parameters():
            other = seen.setdefault(id(parameter), owner)
            if other != owner:
                raise UsageError(
                    f"The parameter {name!r} is owned by {owner!r} and by {other!r}; every parameter needs exactly "
                    "one owner. Share a module through an auxiliary head, not by putting it into two networks."
                )
