"""The AETH syndromes that requester and responder exchange (table 43), as plain numbers for what runs per packet."""

from typing import Final

from vhca.wire.headers import AethSyndrome

# Bits 6:5 say what it is, bits 4:0 how much (9.7.5.2).
KIND_MASK: Final = 0x60
ACK: Final = int(AethSyndrome.ACK)
# End-to-end credits are not used.
ACK_NO_CREDITS: Final = int(AethSyndrome.ACK_NO_CREDITS)
RNR_NAK: Final = int(AethSyndrome.RNR_NAK)
NAK_SEQUENCE: Final = int(AethSyndrome.NAK_PSN_SEQUENCE_ERROR)
NAK_INVALID_REQUEST: Final = int(AethSyndrome.NAK_INVALID_REQUEST)
NAK_REMOTE_ACCESS: Final = int(AethSyndrome.NAK_REMOTE_ACCESS_ERROR)
NAK_REMOTE_OPERATION: Final = int(AethSyndrome.NAK_REMOTE_OPERATIONAL_ERROR)
