"""A Ray cluster: the one that this program is connected to, that of ``RAY_ADDRESS``, or one of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from compatkit import hookimpl
from compatkit.errors import EnvironmentFailure, MissingDependency
from compatkit.hooks import Register

compatkit_api = 1

VARIABLES = (
    "HF_HUB_OFFLINE",
    "COMPATKIT_DATA",
    "COMPATKIT_PLUGINS",
    "COMPATKIT_PLUGIN_FILES",
    "COMPATKIT_DISABLE_PLUGINS",
    "TORCH_HOME",
)
"""Environment variables that are passed to workers."""


@hookimpl
def compatkit_launchers(register: Register) -> None:
    """Offer ``ray``."""
    register("ray", Cluster)


class Cluster:
    """Tasks of a Ray cluster, one thread and one processor each.

    Registry, recipe, data sets and the sweep's folder must have the same paths on all machines.
    """

    def __init__(self, address: str | None = None) -> None:
        """Import ray.

        Args:
            address: Address of the cluster, such as ``"ray://head:10001"`` or ``"auto"``; None for the connected one,
                that of ``RAY_ADDRESS``, or a new one on this machine.

        Raises:
            MissingDependency: It is not installed.
        """
        try:
            import ray
            import ray.exceptions
        except ImportError as error:
            raise MissingDependency(
                f"The launcher ray needs the library ray, which is not installed. Run: pip install 'compatkit[ray]', "
                f"or choose another launcher (sequential, process). ({error})",
                subject="ray",
            ) from error
        self._ray: Any = ray
        self._address = address

    def __call__(
        self, work: Callable[[str], str], jobs: Sequence[str], workers: int | None
    ) -> Iterator[tuple[int, str | Exception]]:
        """Yield the position and answer of each job, or the error that ended its worker, as soon as it has ended.

        Args:
            work: Function of an importable module.
            jobs: Items to call it with.
            workers: Tasks at a time; None for as many as fit the cluster.

        Raises:
            EnvironmentFailure: The cluster cannot be reached.
        """
        started = not self._ray.is_initialized()
        if started:
            self._start(workers)
        elif self._address not in (None, "auto", connected := self._ray.get_runtime_context().gcs_address):
            raise EnvironmentFailure(
                f"This program is connected to the cluster {connected}, not to {self._address}. Leave the address out, "
                "or disconnect first (ray.shutdown()).",
                subject=self._address,
            )
        try:
            yield from self._answers(work, jobs, workers)
        finally:
            if started:
                self._ray.shutdown()

    def _start(self, workers: int | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        address = self._address or os.environ.get("RAY_ADDRESS")
        size: dict[str, Any] = {} if address or workers is None else {"num_cpus": workers}
        dashboard = {} if address else {"include_dashboard": False}
        try:
            self._ray.init(address, log_to_driver=False, **dashboard, **size)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise EnvironmentFailure(
                f"The cluster {address or 'of this machine'} cannot be reached: {error}", subject=address
            ) from error

    def _answers(
        self, work: Callable[[str], str], jobs: Sequence[str], workers: int | None
    ) -> Iterator[tuple[int, str | Exception]]:
        variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        # A run that fails is reported, not retried silently.
        task = self._ray.remote(num_cpus=1, max_retries=0)(_work)
        waiting, running = list(reversed(range(len(jobs)))), dict[Any, int]()
        try:
            while waiting or running:
                while waiting and (workers is None or len(running) < workers):
                    position = waiting.pop()
                    reference = task.remote(work.__module__, work.__qualname__, jobs[position], variables)
                    running[reference] = position
                (ready,), _ = self._ray.wait(list(running), num_returns=1)
                position = running.pop(ready)
                try:
                    yield position, self._ray.get(ready)
                except self._ray.exceptions.RayError as error:
                    first = str(error).strip().splitlines()[0]
                    yield (
                        position,
                        EnvironmentFailure(
                            f"The worker of this run is gone ({type(error).__name__}: {first})."
                        ),
                    )
        finally:
            for reference in running:
                self._ray.cancel(reference, force=True)


def _work(module: str, function: str, job: str, variables: Mapping[str, str]) -> str:
    """Call a function in a worker."""
    os.environ.update(variables)  # before importing timm and plugins, which read them
    import torch

    torch.set_num_threads(1)
    return getattr(import_module(module), function)(job)
