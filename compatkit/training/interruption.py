"""Ctrl-C and SIGTERM while steps are taken: held back until a step is done and its state is kept.

Only where the signals would end the process as they do in any program: a handler that somebody else installed stays.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

import attrs

DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""The signals that are held back, and who must have them."""


@attrs.define(eq=False)
class Interruption:
    """Holds signals back inside a ``with``, at whose end they act; a second one acts at once.

    Attributes:
        on: Whether it does anything; it never does outside the main thread.
        came: The signal that came, or None.
        message: Of the KeyboardInterrupt that Ctrl-C then is.
    """

    on: bool
    came: int | None = None
    message: str = ""
    _held: list[signal.Signals] = attrs.field(factory=list)

    def __enter__(self) -> Interruption:
        if self.on and threading.current_thread() is threading.main_thread():
            self._held = [one for one, usual in DEFAULTS.items() if signal.getsignal(one) == usual]
            for one in self._held:
                signal.signal(one, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the program as the signal would have, with exit status 130 or 143.

        An error counts as what came of the signal: Ctrl-C ends the processes of a loader too.

        Raises:
            KeyboardInterrupt: Ctrl-C came.
            SystemExit: SIGTERM came.
        """
        self._give_back()
        if self.came is None or not (kind is None or issubclass(kind, Exception)):
            return
        if self.came == signal.SIGINT:
            raise KeyboardInterrupt(self.message)
        raise SystemExit(128 + self.came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = number
        self._give_back()

    def _give_back(self) -> None:
        for one in self._held:
            signal.signal(one, DEFAULTS[one])
        self._held = []
