"""The last question before a part is kept: does it come back from its blueprint and its weights as it is?"""

from __future__ import annotations

from torch import nn

from compatkit.adapters.blueprints import build
from compatkit.adapters.fingerprint import observe, same_probe
from compatkit.contracts.contract import Blueprint, Contract
from compatkit.errors import CutError


def check_rebuilt(whose: str, module: nn.Module, blueprint: Blueprint, contract: Contract) -> None:
    """Build a part anew, as loading does, and compare it with what its contract promises.

    Args:
        whose: Named in the message.
        module: The part, with its weights, on the CPU.
        blueprint: Of the part.
        contract: Of the part; its probe decides. Without one, only the names and shapes of the weights do.

    Raises:
        CutError: The part is not rebuilt, gives other outputs, or gives random ones in eval mode.
    """
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    again, promised = build(blueprint, state=state, share=True), contract.statistical.probe
    if promised is None:
        return
    dtypes = [port.dtype for port in contract.structural.inputs]
    found = [observe(again, *promised.shapes, dtypes=dtypes, seed=seed).probe for seed in (0, 1)]
    if not same_probe(*found):
        raise CutError(
            f"{whose} gives random outputs in eval mode, so that no contract can promise them; it is not kept. Draw "
            "random numbers only where self.training is set.",
            subject=whose,
        )
    if not same_probe(found[0], promised):
        raise CutError(
            f"{whose}, rebuilt from its blueprint and its weights, gives other outputs on the probe input; it is not "
            "kept. It holds state outside its state dict, draws random numbers when it is built, or was changed after "
            "its contract was derived.",
            subject=whose,
        )
