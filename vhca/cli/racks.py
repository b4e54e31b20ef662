"""The rack with a protocol analyser beside it: what ``--capture`` adds to a rack of cards."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from vhca.chip.rack import STOP_S, Rack


class RecordedRack(Rack):
    """A rack whose cables are recorded from before the first packet until it stops, if ``capture`` names a file.

    ``ports`` names the cards to record, ``None`` for all; ``both_ends``: where packets arrive, too.
    """

    def __init__(
        self,
        hcas: int,
        directory: Path,
        capture: Path | None,
        mkey: int | None = None,
        card_memory: int | None = None,
        ports: Sequence[str] | None = None,
        both_ends: bool = False,
    ) -> None:
        super().__init__(hcas, directory, mkey=mkey, card_memory=card_memory)
        self._capture = capture
        self._ports = ports
        self._both_ends = both_ends
        self._recording = contextlib.ExitStack()

    def start(self) -> None:
        """See :meth:`vhca.chip.rack.Rack.start`; ``OSError`` if the file cannot be written."""
        super().start()
        if self._capture is not None:
            try:
                self._recording.enter_context(
                    self.fabric.capture(self._capture, self._ports, both_ends=self._both_ends)
                )
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """See :meth:`vhca.chip.rack.Rack.stop`; closes the file first."""
        if self.loop.responds(STOP_S):
            self._recording.close()
        super().stop()
