"""Launch jobs, each a line of text, in this process, in others on this machine, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from compatkit.errors import CompatkitError, UsageError

if TYPE_CHECKING:
    from compatkit.plugins.loading import Offer

SEQUENTIAL, AUTO, PROCESS, RAY = "sequential", "auto", "process", "ray"
Work = Callable[[str], str]
"""Carries out a job in any process; a function of an importable module."""


def choose(name: str, workers: int | None, cluster: str | None = None) -> str:
    """Return the launcher's name; ``"auto"`` is ``ray`` with a cluster, ``process`` with workers, else this process.

    Args:
        name: ``"auto"``, ``"sequential"``, or the name of a plugin.
        workers: Number of jobs at a time, or None.
        cluster: Address of a cluster, or None.

    Raises:
        UsageError: The number of workers is below 1, or the launcher takes no workers or no cluster.
    """
    if workers is not None and workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}.")
    if name == AUTO:
        return RAY if cluster is not None else SEQUENTIAL if workers is None else PROCESS
    if name == SEQUENTIAL and (workers is not None or cluster is not None):
        raise UsageError(f"The launcher {SEQUENTIAL} takes no {'workers' if cluster is None else 'cluster'}.")
    return name


class Launcher:
    """Launcher of a plugin, or this process.

    Attributes:
        name: Name of the plugin, or ``"sequential"``.
        workers: Number of jobs at a time; None for the plugin's default.
    """

    def __init__(self, name: str = AUTO, workers: int | None = None, cluster: str | None = None) -> None:
        """Create the plugin's launcher.

        Args:
            name: As for ``choose``.
            workers: Number of jobs at a time, or None.
            cluster: Address of a cluster, passed to the plugin as ``address``; None passes nothing.

        Raises:
            UsageError: The number of workers is below 1, or the launcher takes no workers or no cluster.
            PluginError: The plugin cannot be used, or takes no address.
            MissingDependency: A library that it needs is not installed.
        """
        self.name, self.workers = choose(name, workers, cluster), workers
        self._offer: Offer | None = None
        if not self.here:
            from compatkit.plugins.discovery import find

            self._offer = find("launchers", self.name)
            self._launch = self._offer.make({} if cluster is None else {"address": cluster})

    @property
    def here(self) -> bool:
        """Whether jobs are carried out in this process."""
        return self.name == SEQUENTIAL

    def answers(
        self, work: Work, jobs: Sequence[str], labels: Sequence[str]
    ) -> Iterator[tuple[int, str | Exception]]:
        """Yield position and answer of each job when it ends, or the error that ended its process.

        Args:
            work: Carries out a job.
            jobs: The jobs.
            labels: Names of the jobs, for messages.

        Raises:
            PluginError: The launcher fails, or returns no answer for a job.
        """
        if self._offer is None:
            for position, job in enumerate(jobs):
                yield position, work(job)
            return
        if not jobs:
            return
        waiting = set(range(len(jobs)))
        answers = self._launch(work, list(jobs), self.workers)
        try:
            for position, answer in answers:
                if position not in waiting or not isinstance(answer, str | Exception):
                    raise self._offer.owner.error(f"it gave {answer!r:.80} for the job {position!r:.80}.")
                waiting.remove(position)
                yield position, answer
        except CompatkitError:
            raise
        except Exception as error:
            from compatkit.plugins.isolation import described

            raise self._offer.owner.error(f"it failed: {described(error)}") from error
        finally:
            answers.close()
        if waiting:
            names = ", ".join(labels[position] for position in sorted(waiting))
            raise self._offer.owner.error(f"it gave no answer for {names}.")
