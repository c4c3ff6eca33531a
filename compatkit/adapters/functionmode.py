"""Intercept the torch functions that foreign code calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode


class FunctionWatch(TorchFunctionMode):
    """Context in which every call of a torch function goes through ``called``."""

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of the call: ``func(*args, **kwargs)``, or a replacement.

        Args:
            func: The torch function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
        """
        raise NotImplementedError

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.called(func, args, kwargs or {})
