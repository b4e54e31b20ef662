"""What a card is taken for unless somebody says otherwise: a ConnectX-6 with one port."""

from typing import Final

DEVICE_ID: Final = 0x101B
BOARD_ID: Final = "MT_0000000223"
FW_VERSION: Final = (20, 43, 1014)
MTU_BYTES: Final = 4096
