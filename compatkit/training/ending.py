"""The end of a run on a plugin's request, and the teardown of plugins after any end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import attrs

from compatkit.errors import UsageError
from compatkit.plugins import RunPlugins
from compatkit.training.plugin_setup import SetUp


@attrs.define(eq=False)
class StopRequest:
    """Request of a plugin to end the run after the current step.

    Attributes:
        reason: Reason of the first request of this process, or None.
    """

    reason: str | None = None

    def ask(self, reason: str) -> None:
        """Request the end of the run.

        Args:
            reason: Reason for people; the first one counts.

        Raises:
            UsageError: There is no reason.
        """
        if not isinstance(reason, str) or not reason.strip():
            raise UsageError(
                f"request_stop expects a reason, such as 'the loss is below 0.1'; got {reason!r:.100}.",
                subject=reason,
            )
        self.reason = self.reason or reason


@attrs.frozen(eq=False)
class Evaluation:
    """Evaluation during training, for ``compatkit_after_evaluation``.

    Attributes:
        step: Completed steps of each task.
        on: Images: ``"validation"``, ``"test"`` or ``"train"``.
        metrics: ``{"loss": ..., "accuracy": ...}`` of the trained weights by task, as plain numbers.
        averages: The same of the moving averages; empty without them.
    """

    step: int
    on: str
    metrics: Mapping[str, Mapping[str, float]]
    averages: Mapping[str, Mapping[str, float]]
    _stop: StopRequest

    def request_stop(self, reason: str) -> None:
        """End the run after this step; ``Step.request_stop`` has the rules.

        Args:
            reason: Reason for people.

        Raises:
            UsageError: There is no reason.
        """
        self._stop.ask(reason)


@attrs.define(eq=False)
class Teardown:
    """Plugins to tear down at the end of a run.

    Attributes:
        plugins: Plugins of the run.
        setup: Set-up of the run, once it has begun.
        unready: Instances with a set-up that has not finished.
    """

    plugins: RunPlugins
    setup: SetUp | None = None
    unready: set[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        """Wait for the set-up of every plugin that has one."""
        self.unready = {bound.instance for bound in self.plugins.set_up}

    def run(self, failure: BaseException | None) -> None:
        """Tear the plugins down, the last one first; every one is called.

        Args:
            failure: Error that ends the run; errors of the teardown become its notes.

        Raises:
            PluginError: A teardown failed, and there is no other error.
        """
        if self.setup is None:
            return
        self.setup.instance, own = None, None
        for bound in reversed(self.plugins.teardown):
            if bound.instance in self.unready:
                continue
            try:
                bound.call(self.setup)
            except Exception as error:
                first = failure or own
                if first is not None:
                    first.add_note(f"The teardown failed too: {error}")
                own = own or error
        if failure is None and own is not None:
            raise own


@contextmanager
def torn_down(plugins: RunPlugins) -> Iterator[Teardown]:
    """Tear plugins down at the end of a block, after an error or an interruption too.

    Args:
        plugins: Plugins of the run; those with a set-up are torn down if it finished.

    Raises:
        PluginError: A teardown failed, and the block did not.
    """
    teardown = Teardown(plugins)
    try:
        yield teardown
    except BaseException as error:
        teardown.run(error)
        raise
    teardown.run(None)
