"""Carry out jobs in the processes of a launcher; one that dies costs at most the smallest part of a job."""

from __future__ import annotations

import functools
import json
import socket
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import attrs

from compatkit.components.loading import PartLoader, check_signature
from compatkit.components.workers.handing import received
from compatkit.errors import CompatkitError, EnvironmentFailure, UsageError
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Progress
from compatkit.foundation.cache import mirrored
from compatkit.foundation.codec import structure
from compatkit.plugins.launching import Launcher, Work
from compatkit.registry.names import Reference, Version
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.data.split import Split

ATTEMPTS = 2
"""Processes that the smallest part of a job may kill."""
Names = tuple[str, str, str]
"""Name, version and digest of a component."""


class Job(Protocol):
    """A job, an attrs class; all values are JSON values."""

    @property
    def registry(self) -> str:
        """Root of the registry, the same on all machines."""
        ...

    @property
    def label(self) -> str:
        """Name for messages."""
        ...

    @property
    def size(self) -> int:
        """Number of cells or pairs."""
        ...

    def halves(self) -> Sequence[Self]:
        """Return two jobs of half the size; only for a size above 1."""
        ...


@attrs.frozen(kw_only=True)
class Answer:
    """What a worker answers.

    Attributes:
        error: Why there is no result; else empty.
        unseen: The machine and the file that it does not see; else empty.
        notes: Warnings.
    """

    error: str = ""
    unseen: str = ""
    notes: tuple[str, ...] = ()

    @classmethod
    def loads(cls, line: str) -> Self:
        """Read the output of ``answered``."""
        return structure(cls, json.loads(line), "answer")


JobT = TypeVar("JobT", bound=Job)
AnswerT = TypeVar("AnswerT", bound=Answer)


def answered(kind: type[Answer], mark: str, carry_out: Callable[[], Mapping[str, Any]]) -> str:
    """Carry out a job in a launcher's process and return its answer as one line.

    Args:
        kind: Class of the answer.
        mark: File that is seen by processes which see the registry.
        carry_out: Returns the values of the answer.
    """
    if not Path(mark).is_file():
        return _line(kind(unseen=f"{socket.gethostname()} does not see {mark}"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            values = carry_out()
        except CompatkitError as failure:
            values = {"error": str(failure)}
        except Exception as failure:  # a module of a plugin may raise anything; other jobs continue
            values = {"error": f"{type(failure).__name__}: {failure}"}
    notes = tuple(dict.fromkeys(str(item.message) for item in caught if item.category is UserWarning))
    return _line(kind(**values, notes=notes))


def _line(answer: Answer) -> str:
    return json.dumps(attrs.asdict(answer))


def carry_out(
    jobs: Sequence[JobT],
    work: Work,
    kind: type[AnswerT],
    launcher: Launcher,
    take: Callable[[JobT, AnswerT], None],
    progress: Progress | None,
    done: int = 0,
) -> list[str]:
    """Carry out jobs; those with a dead process are divided and carried out again.

    Args:
        jobs: The jobs.
        work: Carries out one in any process.
        kind: Class of its answer.
        launcher: Where jobs are carried out.
        take: Called with each job, or the part of one, and its answer, when it ends.
        progress: Called with the size of what is done, of all, and the job.
        done: Size of what was done before.

    Returns:
        Warnings of the processes.

    Raises:
        EnvironmentFailure: A process does not see the registry.
    """
    notes, total = list[str](), done + sum(job.size for job in jobs)
    waiting = [(job, 1) for job in jobs]
    while waiting:
        again = list[tuple[JobT, int]]()
        labels = [job.label for job, _ in waiting]
        lines = [json.dumps(attrs.asdict(job)) for job, _ in waiting]  # type: ignore[arg-type]
        for position, line in launcher.answers(work, lines, labels):
            job, attempt = waiting[position]
            if isinstance(line, Exception) and job.size > 1:
                again += [(half, 1) for half in job.halves()]
                continue
            if isinstance(line, Exception) and attempt < ATTEMPTS:
                again.append((job, attempt + 1))
                continue
            answer = kind(error=str(line)) if isinstance(line, Exception) else kind.loads(line)
            if answer.unseen:
                raise EnvironmentFailure(
                    f"A worker does not see the registry: {answer.unseen}. Workers need a folder that all machines "
                    "mount at the same path.",
                    subject=job.registry,
                )
            notes += [note for note in answer.notes if note not in notes]
            take(job, answer)
            done += job.size
            if progress is not None:
                progress(done, total, job.label)
        waiting = again
    return notes


def check_shared(store: Store, parts: Iterable[Component]) -> None:
    """Check, before anything is handed out, that workers may read parts and write results.

    Args:
        store: Registry of the parts.
        parts: All parts that workers load.

    Raises:
        UsageError: The registry is a remote.
        SignatureError: A part lacks a required signature.
    """
    if (address := mirrored(store.root)) is not None:
        raise UsageError(
            f"{address} is a remote, which workers cannot record results in. Clone it into a folder that they all see, "
            "or measure without workers.",
            subject=address,
        )
    for part in parts:
        check_signature(store, part.resolved, False, "auto")


def names_of(component: Component) -> Names:
    """Return what finds a component in any process; the version may be empty."""
    resolved = component.resolved
    return resolved.name, str(resolved.version or ""), str(resolved.digest)


def reference_of(names: Names) -> str:
    """Return the pinned reference of a component."""
    name, version, digest = names
    return f"{name}@{version}" if version else digest


def component_of(parts: PartLoader, names: Names) -> Component:
    """Return a component in a worker."""
    name, version, digest = names
    return parts.component(Reference(name, Version.parse(version) if version else None, digest=digest))


@functools.lru_cache(1)
def heads_of(registry: str) -> PartLoader:
    """Return the loader of a worker's heads, which keeps them from job to job."""
    return PartLoader(Store.open(registry), admitted=True)


@functools.lru_cache(4)
def images_of(file: str) -> Split:
    """Return the images of a file that was handed over, kept from job to job."""
    return received(Path(file))
