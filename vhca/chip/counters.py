"""What the board counts. `docs/counters.md` is made from this."""

from vhca.counting import Name


class BoardCount(Name):
    """Counters of the board around the program; they last as long as the card."""

    RESETS = "resets", "Resets, whoever asked for them."
    EVENTS_AFTER_DEATH = "events_after_death", "Events that came after the program had failed."
    DMA_WRITE_ERRORS = "dma_write_errors", "Writes to guest memory that failed."
    TRANSMIT_NO_CABLE = "transmit_no_cable", "Packets for a port without a cable."
    FIRMWARE_FAILURES = "firmware_failures", "Times that the program failed and the card was stopped."
    FAULTS = "faults", "Things that a rule of docs/faults.md has let go wrong."
    COMMANDS_MALFORMED = "commands_malformed", "Command queue entries and mailboxes that could not be read."
    BAR_WRITES_IGNORED = "bar_writes_ignored", "Writes to BAR0 that no register, doorbell or memory takes."
    PCI_UNSUPPORTED_REQUESTS = "pci_unsupported_requests", "Accesses to a region while memory is not enabled."
