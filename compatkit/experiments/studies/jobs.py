"""Runs of a study in other processes: jobs as text, and records as they come."""

from __future__ import annotations

import functools
import json
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compatkit.errors import EnvironmentFailure, Incomplete
from compatkit.experiments.studies.arms import Arm, arms_of
from compatkit.experiments.studies.carrying import carry_out_run, discard_checkpoint
from compatkit.experiments.studies.finding import find
from compatkit.experiments.studies.records import StudyRecord, from_line, to_line
from compatkit.experiments.studies.runs import Run, RunPlan, StudyData
from compatkit.plugins.launching import Launcher
from compatkit.registry import disk
from compatkit.registry.os_errors import environment

ATTEMPTS = 2
"""Processes that one run may lose."""


def run_in_workers(
    launcher: Launcher,
    plan: RunPlan,
    missing: Sequence[tuple[Arm, int]],
    total: int,
    finish: Callable[[StudyRecord], None],
    progress: Callable[[int, int, str], None],
) -> None:
    """Carry out runs in the processes of a launcher; one that dies is started once more.

    Args:
        launcher: Where runs are carried out.
        plan: What they share.
        missing: Arm and seed of each.
        total: Number of all runs of the study, for ``progress``.
        finish: Called with each record.
        progress: Called with runs done, all runs, and the last one.

    Raises:
        EnvironmentFailure: A process does not see the folder of the runs.
        Incomplete: Some runs failed; the message says which and why.
    """
    import torch

    folder = plan.folder.absolute()
    mark = disk.temporary(folder)
    shared: dict[str, Any] = {
        "study": plan.study,
        "size": plan.size,
        "settings": dict(plan.settings),
        "root": None if plan.root is None else str(Path(plan.root).absolute()),
        "digests": dict(plan.digests),
        "folder": str(folder),
        "mark": str(mark),
        "threads": torch.get_num_threads(),
    }
    failed: dict[str, str] = {}
    waiting, attempt = list(missing), 1
    done = total - len(missing)
    with environment("write", mark):
        mark.write_bytes(b"")
    try:
        while waiting:
            again: list[tuple[Arm, int]] = []
            labels = [f"{arm.name}, seed {seed}" for arm, seed in waiting]
            jobs = [json.dumps({**shared, "arm": arm.text, "seed": seed}) for arm, seed in waiting]
            progress(done, total, "")
            for position, text in launcher.answers(work, jobs, labels):
                arm, seed = waiting[position]
                if isinstance(text, Exception) and attempt < ATTEMPTS:
                    again.append((arm, seed))
                    continue
                answer = {"error": str(text)} if isinstance(text, Exception) else json.loads(text)
                if "unseen" in answer:
                    raise EnvironmentFailure(
                        f"A worker does not see the folder of the runs: {answer['unseen']}. Name one that all machines "
                        "mount at the same path (--out).",
                        subject=folder,
                    )
                done += 1
                if "error" in answer:
                    failed[labels[position]] = answer["error"]
                else:
                    finish(from_line(answer["record"].encode(), 1, folder))
                    discard_checkpoint(
                        Run(
                            plan.study,
                            arm.base,
                            seed,
                            plan.settings,
                            StudyData(plan.study, folder=folder),
                            added=arm.added,
                            name=arm.name,
                        )
                    )
                progress(done, total, labels[position])
            waiting, attempt = again, attempt + 1
    finally:
        disk.discard(mark)
    if failed:
        reasons = " ".join(f"{name}: {reason}" for name, reason in failed.items())
        raise Incomplete(
            f"{len(failed)} of {total} runs failed; the others are recorded, and the same command carries out only "
            f"these. {reasons}",
            subject=tuple(failed),
        )


def work(line: str) -> str:
    """Carry out a run in a launcher's process, with data sets cached for the next runs.

    Args:
        line: Job as one line of JSON.

    Returns:
        ``record``, ``error`` or ``unseen``, as one line of JSON.
    """
    import torch

    job = json.loads(line)
    if not Path(job["mark"]).is_file():
        return json.dumps({"unseen": f"{socket.gethostname()} does not see {job['mark']}"})
    torch.set_num_threads(job["threads"])  # as in one process, so that every bit is the same
    try:
        installed = find(job["study"])
        (arm,) = arms_of(installed, [job["arm"]])
        data = _data(job["study"], job["root"], json.dumps(job["digests"]), job["folder"])
        run = Run(job["study"], arm.base, job["seed"], job["settings"], data, added=arm.added, name=arm.name)
        return json.dumps({"record": to_line(carry_out_run(installed, run, arm, job["size"])).strip()})
    except Exception as error:  # reported at the end; other runs go on
        return json.dumps({"error": f"{type(error).__name__}: {error}"})


@functools.lru_cache(1)
def _data(study: str, root: str | None, digests: str, folder: str) -> StudyData:
    return StudyData(study, root, json.loads(digests), Path(folder))
