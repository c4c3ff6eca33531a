"""Trace one pass of a network: calls of its layers, and of torch functions outside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import attrs
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


@attrs.frozen(eq=False)
class Call:
    """One call of a layer or a function.

    Attributes:
        inputs: Its input tensors, except parameters and buffers.
        output: Its result; the first of several tensors.
        where: The module that it is or that it lies in, for messages.
        path: Path of the layer; None for a function.
        module: The layer.
        function: The function.
        arguments: Positional and keyword arguments of the function.
    """

    inputs: tuple[Tensor, ...]
    output: Tensor
    where: str
    path: str | None = None
    module: nn.Module | None = None
    function: Callable[..., Any] | None = None
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]] = ((), {})

    @property
    def name(self) -> str:
        """The path of the layer, or the name of the function."""
        return self.path if self.path is not None else getattr(self.function, "__name__", repr(self.function))

    @property
    def what(self) -> str:
        """Description of what is called, for messages."""
        return type(self.module).__name__ if self.module is not None else f"{self.name}()"

    def again(self, value: Tensor) -> Tensor:
        """Return the result of the same call for another tensor.

        Args:
            value: Takes the place of the call's first tensor.

        Returns:
            What the module or function gives.
        """
        if self.module is not None:
            return self.module(value)
        positions, names = self.arguments
        own = self.inputs[0]
        return cast(Callable[..., Tensor], self.function)(
            *(value if argument is own else argument for argument in positions),
            **{name: value if argument is own else argument for name, argument in names.items()},
        )


def tracked(parts: Any, images: Tensor, run: Callable[[Any, Tensor], Tensor]) -> list[Call]:
    """Run a network once and return its calls, in the order in which they end.

    The first entry stands for the images, the last for the output. A layer without child layers is one call, and its
    internal calls are left out; so is batch normalization with an activation inside.

    Args:
        parts: A network, or its parts in order.
        images: Input of the network, ``(batch, ...)``.
        run: Runs the parts on the images.
    """
    watch = _Watch(parts)
    try:
        with watch:
            output = run(parts, images)
    finally:
        watch.release()
    return [Call((), images, "images"), *watch.calls, Call((output,), output, "output")]


class _Watch(TorchFunctionMode):
    """Records calls of layers with hooks, and calls of functions outside layers."""

    def __init__(self, parts: Any) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._inside, self._places, self._handles = 0, [""], []
        modules = [parts] if isinstance(parts, nn.Module) else list(parts)
        self._own = {id(tensor) for part in modules for tensor in (*part.parameters(), *part.buffers())}
        for part in modules:
            for path, module in part.named_modules():
                if path:
                    self._watch(path, module)

    def release(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def _watch(self, path: str, module: nn.Module) -> None:
        leaf = not any(module.children()) or _whole(module)

        def enter(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            self._places.append(path)
            self._inside += leaf

        def leave(_: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            self._places.pop()
            self._inside -= leaf
            tensor = _first(output)
            if leaf and not self._inside and tensor is not None:
                self.calls.append(Call(self._tensors(arguments), tensor, path, path, module))

        self._handles += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def _tensors(self, values: Iterable[Any]) -> tuple[Tensor, ...]:
        tensors: list[Tensor] = []
        for value in values:
            if isinstance(value, Tensor):
                tensors += [value] if id(value) not in self._own else []
            elif isinstance(value, Sequence) and not isinstance(value, str):
                tensors.extend(self._tensors(value))
        return tuple(tensors)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        self._inside += 1  # nested calls belong to this function
        try:
            result = func(*args, **kwargs)
        finally:
            self._inside -= 1
        first = _first(result)
        if first is not None:
            inputs = self._tensors((*args, *kwargs.values()))
            where = self._places[-1] or "the network"
            self.calls.append(Call(inputs, first, where, function=func, arguments=(args, kwargs)))
        return result


def _whole(module: nn.Module) -> bool:
    """Return whether a module counts as one layer despite its children: norm with activation, timm's pooling."""
    timms = hasattr(module, "flatten") and hasattr(module, "pool_type")
    return timms or isinstance(module, torch.nn.modules.batchnorm._BatchNorm)


def _first(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, tuple | list) and value and isinstance(value[0], Tensor):
        return value[0]
    return None
