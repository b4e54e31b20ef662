"""Record what QEMU says to a card, and what the card answers, for test_transcript.py.

`python -m tests.wire.record_transcript > tests/wire/transcript.txt` runs a q35 under qtest through start,
set-up, MSI-X, a system reset, a function level reset and the end. One line per message: `>` from QEMU or
`<` from the server, the bytes in hex, the number of descriptors.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.wire.card import RAM, Card, Pc
from tests.wire.client import header
from tests.wire.qtest import Qtest, ServerThread, client, find_qemu, machine
from vhca.vfio_user.session import Outgoing, Session


class RecordingSession(Session):
    """Prints every command and reply."""

    def handle(
        self, message_id: int, command: int, flags: int, payload: bytes, fds: Sequence[int] = ()
    ) -> Outgoing | None:
        message = header(message_id, command, 16 + len(payload), flags) + payload
        print(">", message.hex(), len(fds))
        answer = super().handle(message_id, command, flags, payload, fds)
        if answer is not None:
            print("<", answer.data.hex(), len(answer.fds))
        return answer


def main() -> None:
    """Record one run."""
    qemu = find_qemu()
    if isinstance(qemu, str):
        sys.exit(qemu)
    version = subprocess.run(
        [*qemu.command, "--version"], capture_output=True, text=True, check=True, env={**os.environ, **qemu.environment}
    )
    print("#", version.stdout.splitlines()[0])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        card = Card(folder / "card.sock", session_type=RecordingSession)
        with ServerThread(card.server):
            with Qtest(qemu, folder, [*machine(), *client(folder / "card.sock")]) as qtest:
                pc = Pc(qtest, card)
                pc.set_up()
                for vector in range(20):
                    pc.arm(vector, RAM, vector)
                pc.enable_msix()
                qtest.qmp("system_reset")
                pc.set_up()
                pc.config_write(card.config.offsets["pcie"] + 8, 2, 0x8000)
                pc.config_read(4, 4)
                qtest.qmp("quit")
                qtest.wait()
            card.wait_for_loss()


if __name__ == "__main__":
    main()
