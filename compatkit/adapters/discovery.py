"""Find the modules of a network after which one tensor, and nothing else, crosses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from compatkit.adapters.proof import unchanged
from compatkit.adapters.signals import signal


def valid_modules(whole: nn.Module, image: tuple[int, ...]) -> list[str]:
    """Return paths of modules that are valid split points, in the order in which they finish.

    One forward pass in eval mode is watched: a module is valid if it is called once, gives one tensor, and no
    other tensor made from the image before its end is used after it. Sizes that code reads off a tensor are not
    seen; cutting itself finds those.
    """
    watch = _Watch()
    names = {module: name for name, module in whole.named_modules() if name}
    hooks = [module.register_forward_hook(watch.finished(name)) for module, name in names.items()]
    try:
        with unchanged(whole), torch.no_grad():
            whole.eval()
            images = signal((2, *image))
            watch.made(images)
            with watch:
                whole(images)
    finally:
        for hook in hooks:
            hook.remove()
    return watch.valid()


class _Watch(TorchFunctionMode):
    """Numbers every operation and notes when each tensor that depends on the image is made and last used."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = 0
        self.born: dict[int, int] = {}
        self.used: dict[int, int] = {}
        self.ends: dict[str, list[tuple[int, Any]]] = {}
        self.alive: list[Tensor] = []  # no id may be given twice

    def made(self, tensor: Tensor) -> None:
        if id(tensor) not in self.born:
            self.alive.append(tensor)
            self.born[id(tensor)] = self.clock

    def finished(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            self.clock += 1
            self.ends.setdefault(name, []).append((self.clock, output))

        return hook

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.clock += 1
        inputs = [
            leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and id(leaf) in self.born
        ]
        result = func(*args, **(kwargs or {}))
        for tensor in inputs:
            self.used[id(tensor)] = self.clock
        if inputs:
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self.made(leaf)
        return result

    def valid(self) -> list[str]:
        """Return the modules whose end no other tensor outlives."""
        found = []
        for name, calls in self.ends.items():
            (end, output) = calls[0]
            if len(calls) == 1 and isinstance(output, Tensor) and id(output) in self.born:
                if self.used.get(id(output), 0) > end and not self._outlived(end, id(output)):
                    found.append((end, name))
        return [name for _, name in sorted(found)]

    def _outlived(self, end: int, output: int) -> bool:
        return any(
            born <= end < self.used.get(tensor, 0) for tensor, born in self.born.items() if tensor != output
        )
