"""What Linux allows of MODIFY_QP: the facts of ib_modify_qp_is_ok (drivers/infiniband/core/verbs.c, 6.12 to 7.2).

Every pair of states that is in none of the two lists is refused for every service. Rate limits, which belong to raw
packets, are left out.
"""

from typing import Final, NamedTuple

CONNECTED: Final = "RC UC XRC_SEND XRC_RECV"
DATAGRAM: Final = "UD SMI GSI"
EVERY: Final = f"{CONNECTED} {DATAGRAM}"


class Fact(NamedTuple):
    """A pair of states, services, and the attributes that these must name, or may."""

    before: str
    after: str
    services: str
    required: str
    optional: str


#: Pairs that carry no attributes at all.
BARE: Final = (
    ("RESET", "RESET"),
    *((state, target) for state in ("INIT", "RTR", "RTS", "SQD", "SQE", "ERR") for target in ("RESET", "ERR")),
)

FACTS: Final = (
    Fact("RESET", "INIT", CONNECTED, "PKEY_INDEX PORT ACCESS_FLAGS", ""),
    Fact("RESET", "INIT", "UD", "PKEY_INDEX PORT QKEY", ""),
    Fact("RESET", "INIT", "SMI GSI", "PKEY_INDEX QKEY", ""),
    Fact("INIT", "INIT", CONNECTED, "", "PKEY_INDEX PORT ACCESS_FLAGS"),
    Fact("INIT", "INIT", "UD", "", "PKEY_INDEX PORT QKEY"),
    Fact("INIT", "INIT", "SMI GSI", "", "PKEY_INDEX QKEY"),
    Fact("INIT", "RTR", "RC XRC_RECV", "AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER",
         "ALT_PATH ACCESS_FLAGS PKEY_INDEX"),
    Fact("INIT", "RTR", "UC XRC_SEND", "AV PATH_MTU DEST_QPN RQ_PSN", "ALT_PATH ACCESS_FLAGS PKEY_INDEX"),
    Fact("INIT", "RTR", DATAGRAM, "", "PKEY_INDEX QKEY"),
    Fact("RTR", "RTS", "RC", "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC",
         "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"),
    Fact("RTR", "RTS", "XRC_SEND", "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC",
         "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"),
    Fact("RTR", "RTS", "XRC_RECV", "TIMEOUT SQ_PSN", "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"),
    Fact("RTR", "RTS", "UC", "SQ_PSN", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"),
    Fact("RTR", "RTS", DATAGRAM, "SQ_PSN", "CUR_STATE QKEY"),
    Fact("RTS", "RTS", "RC XRC_RECV", "", "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"),
    Fact("RTS", "RTS", "UC XRC_SEND", "", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"),
    Fact("RTS", "RTS", DATAGRAM, "", "CUR_STATE QKEY"),
    Fact("RTS", "SQD", EVERY, "", "EN_SQD_ASYNC_NOTIFY"),
    Fact("SQD", "RTS", "RC XRC_RECV", "", "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE"),
    Fact("SQD", "RTS", "UC XRC_SEND", "", "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE"),
    Fact("SQD", "RTS", DATAGRAM, "", "CUR_STATE QKEY"),
    Fact("SQD", "SQD", "RC", "", "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH"
         " ACCESS_FLAGS PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE"),
    Fact("SQD", "SQD", "XRC_SEND", "", "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH ACCESS_FLAGS"
         " PKEY_INDEX PATH_MIG_STATE"),
    Fact("SQD", "SQD", "XRC_RECV", "", "PORT AV TIMEOUT MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS PKEY_INDEX"
         " MIN_RNR_TIMER PATH_MIG_STATE"),
    Fact("SQD", "SQD", "UC", "", "AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE"),
    Fact("SQD", "SQD", DATAGRAM, "", "PKEY_INDEX QKEY"),
    Fact("SQE", "RTS", "RC XRC_SEND XRC_RECV", "", ""),
    Fact("SQE", "RTS", "UC", "", "CUR_STATE ACCESS_FLAGS"),
    Fact("SQE", "RTS", DATAGRAM, "", "CUR_STATE QKEY"),
)  # fmt: skip

#: Initiators of DC, which ib_modify_qp_is_ok does not know: the facts of mlx5's own check (hw/mlx5/qp.c).
DYNAMIC: Final = (
    Fact("RESET", "INIT", "DCI", "PKEY_INDEX PORT", ""),
    Fact("INIT", "INIT", "DCI", "", "PKEY_INDEX PORT"),
    Fact("INIT", "RTR", "DCI", "PATH_MTU", "PKEY_INDEX"),
    Fact("RTR", "RTS", "DCI", "TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC SQ_PSN", "MIN_RNR_TIMER"),
    Fact("RTS", "RTS", "DCI", "", "MIN_RNR_TIMER"),
)
