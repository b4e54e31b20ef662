"""The command interface: codes, the queue in host memory, and the input and output of every command.

Import from here; the modules behind it only keep the files short.
"""

from vhca.wire.connectx.cmd.codes import (
    DeliveryStatus as DeliveryStatus,
)
from vhca.wire.connectx.cmd.codes import (
    Op as Op,
)
from vhca.wire.connectx.cmd.codes import (
    Status as Status,
)
from vhca.wire.connectx.cmd.common import (
    BareIn as BareIn,
)
from vhca.wire.connectx.cmd.common import (
    CmdIn as CmdIn,
)
from vhca.wire.connectx.cmd.common import (
    CmdOut as CmdOut,
)
from vhca.wire.connectx.cmd.devx import (
    CreateUctxIn as CreateUctxIn,
)
from vhca.wire.connectx.cmd.devx import (
    CreateUctxOut as CreateUctxOut,
)
from vhca.wire.connectx.cmd.devx import (
    CreateUmemIn as CreateUmemIn,
)
from vhca.wire.connectx.cmd.devx import (
    CreateUmemOut as CreateUmemOut,
)
from vhca.wire.connectx.cmd.devx import (
    DestroyUctxIn as DestroyUctxIn,
)
from vhca.wire.connectx.cmd.devx import (
    DestroyUmemIn as DestroyUmemIn,
)
from vhca.wire.connectx.cmd.devx import (
    GeneralObjectIn as GeneralObjectIn,
)
from vhca.wire.connectx.cmd.devx import (
    GeneralObjectOut as GeneralObjectOut,
)
from vhca.wire.connectx.cmd.hca import (
    AccessRegisterIn as AccessRegisterIn,
)
from vhca.wire.connectx.cmd.hca import (
    DisableHcaIn as DisableHcaIn,
)
from vhca.wire.connectx.cmd.hca import (
    EnableHcaIn as EnableHcaIn,
)
from vhca.wire.connectx.cmd.hca import (
    InitHcaIn as InitHcaIn,
)
from vhca.wire.connectx.cmd.hca import (
    MadIfcIn as MadIfcIn,
)
from vhca.wire.connectx.cmd.hca import (
    MadIfcOut as MadIfcOut,
)
from vhca.wire.connectx.cmd.hca import (
    ManagePagesIn as ManagePagesIn,
)
from vhca.wire.connectx.cmd.hca import (
    ManagePagesOut as ManagePagesOut,
)
from vhca.wire.connectx.cmd.hca import (
    QueryAdapterParamBlock as QueryAdapterParamBlock,
)
from vhca.wire.connectx.cmd.hca import (
    QueryHcaCapIn as QueryHcaCapIn,
)
from vhca.wire.connectx.cmd.hca import (
    QueryIssiOut as QueryIssiOut,
)
from vhca.wire.connectx.cmd.hca import (
    QueryPagesIn as QueryPagesIn,
)
from vhca.wire.connectx.cmd.hca import (
    QueryPagesOut as QueryPagesOut,
)
from vhca.wire.connectx.cmd.hca import (
    QuerySpecialContextsOut as QuerySpecialContextsOut,
)
from vhca.wire.connectx.cmd.hca import (
    SetDriverVersionIn as SetDriverVersionIn,
)
from vhca.wire.connectx.cmd.hca import (
    SetHcaCapIn as SetHcaCapIn,
)
from vhca.wire.connectx.cmd.hca import (
    SetIssiIn as SetIssiIn,
)
from vhca.wire.connectx.cmd.hca import (
    TeardownHcaIn as TeardownHcaIn,
)
from vhca.wire.connectx.cmd.memic import (
    AllocMemicIn as AllocMemicIn,
)
from vhca.wire.connectx.cmd.memic import (
    AllocMemicOut as AllocMemicOut,
)
from vhca.wire.connectx.cmd.memic import (
    DeallocMemicIn as DeallocMemicIn,
)
from vhca.wire.connectx.cmd.memic import (
    ModifyMemicIn as ModifyMemicIn,
)
from vhca.wire.connectx.cmd.memic import (
    ModifyMemicOut as ModifyMemicOut,
)
from vhca.wire.connectx.cmd.odp import PageFaultResumeIn as PageFaultResumeIn
from vhca.wire.connectx.cmd.qp import (
    CreateQpIn as CreateQpIn,
)
from vhca.wire.connectx.cmd.qp import (
    CreateQpOut as CreateQpOut,
)
from vhca.wire.connectx.cmd.qp import (
    DestroyQpIn as DestroyQpIn,
)
from vhca.wire.connectx.cmd.qp import (
    Qp2errIn as Qp2errIn,
)
from vhca.wire.connectx.cmd.qp import (
    QueryQpIn as QueryQpIn,
)
from vhca.wire.connectx.cmd.qp import (
    QueryQpOut as QueryQpOut,
)
from vhca.wire.connectx.cmd.qp import (
    Rst2initQpIn as Rst2initQpIn,
)
from vhca.wire.connectx.cmd.queue import (
    BLOCK_DATA_SIZE as BLOCK_DATA_SIZE,
)
from vhca.wire.connectx.cmd.queue import (
    ENTRY_TYPE_PCIE as ENTRY_TYPE_PCIE,
)
from vhca.wire.connectx.cmd.queue import (
    INLINE_SIZE as INLINE_SIZE,
)
from vhca.wire.connectx.cmd.queue import (
    OWNER_HW as OWNER_HW,
)
from vhca.wire.connectx.cmd.queue import (
    CmdMailboxBlock as CmdMailboxBlock,
)
from vhca.wire.connectx.cmd.queue import (
    CmdQueueEntry as CmdQueueEntry,
)
from vhca.wire.connectx.cmd.queues import (
    CreateCqIn as CreateCqIn,
)
from vhca.wire.connectx.cmd.queues import (
    CreateCqOut as CreateCqOut,
)
from vhca.wire.connectx.cmd.queues import (
    CreateEqIn as CreateEqIn,
)
from vhca.wire.connectx.cmd.queues import (
    CreateEqOut as CreateEqOut,
)
from vhca.wire.connectx.cmd.queues import (
    CreateMkeyIn as CreateMkeyIn,
)
from vhca.wire.connectx.cmd.queues import (
    CreateMkeyOut as CreateMkeyOut,
)
from vhca.wire.connectx.cmd.queues import (
    DestroyCqIn as DestroyCqIn,
)
from vhca.wire.connectx.cmd.queues import (
    DestroyEqIn as DestroyEqIn,
)
from vhca.wire.connectx.cmd.queues import (
    DestroyMkeyIn as DestroyMkeyIn,
)
from vhca.wire.connectx.cmd.queues import (
    ModifyCqIn as ModifyCqIn,
)
from vhca.wire.connectx.cmd.queues import (
    QueryCqIn as QueryCqIn,
)
from vhca.wire.connectx.cmd.queues import (
    QueryCqOut as QueryCqOut,
)
from vhca.wire.connectx.cmd.queues import (
    QueryEqIn as QueryEqIn,
)
from vhca.wire.connectx.cmd.queues import (
    QueryEqOut as QueryEqOut,
)
from vhca.wire.connectx.cmd.queues import (
    QueryMkeyIn as QueryMkeyIn,
)
from vhca.wire.connectx.cmd.queues import (
    QueryMkeyOut as QueryMkeyOut,
)
from vhca.wire.connectx.cmd.resources import (
    AllocPdOut as AllocPdOut,
)
from vhca.wire.connectx.cmd.resources import (
    AllocQCounterOut as AllocQCounterOut,
)
from vhca.wire.connectx.cmd.resources import (
    AllocTransportDomainOut as AllocTransportDomainOut,
)
from vhca.wire.connectx.cmd.resources import (
    AllocUarOut as AllocUarOut,
)
from vhca.wire.connectx.cmd.resources import (
    AllocXrcdOut as AllocXrcdOut,
)
from vhca.wire.connectx.cmd.resources import (
    AttachToMcgIn as AttachToMcgIn,
)
from vhca.wire.connectx.cmd.resources import (
    DeallocPdIn as DeallocPdIn,
)
from vhca.wire.connectx.cmd.resources import (
    DeallocQCounterIn as DeallocQCounterIn,
)
from vhca.wire.connectx.cmd.resources import (
    DeallocTransportDomainIn as DeallocTransportDomainIn,
)
from vhca.wire.connectx.cmd.resources import (
    DeallocUarIn as DeallocUarIn,
)
from vhca.wire.connectx.cmd.resources import (
    DeallocXrcdIn as DeallocXrcdIn,
)
from vhca.wire.connectx.cmd.resources import (
    DetachFromMcgIn as DetachFromMcgIn,
)
from vhca.wire.connectx.cmd.resources import (
    QueryQCounterIn as QueryQCounterIn,
)
from vhca.wire.connectx.cmd.resources import (
    QueryQCounterOut as QueryQCounterOut,
)
from vhca.wire.connectx.cmd.srq import (
    ArmXrcSrqIn as ArmXrcSrqIn,
)
from vhca.wire.connectx.cmd.srq import (
    CreateRmpIn as CreateRmpIn,
)
from vhca.wire.connectx.cmd.srq import (
    CreateRmpOut as CreateRmpOut,
)
from vhca.wire.connectx.cmd.srq import (
    CreateXrcSrqIn as CreateXrcSrqIn,
)
from vhca.wire.connectx.cmd.srq import (
    CreateXrcSrqOut as CreateXrcSrqOut,
)
from vhca.wire.connectx.cmd.srq import (
    DestroyRmpIn as DestroyRmpIn,
)
from vhca.wire.connectx.cmd.srq import (
    DestroyXrcSrqIn as DestroyXrcSrqIn,
)
from vhca.wire.connectx.cmd.srq import (
    ModifyRmpIn as ModifyRmpIn,
)
from vhca.wire.connectx.cmd.srq import (
    QueryRmpIn as QueryRmpIn,
)
from vhca.wire.connectx.cmd.srq import (
    QueryRmpOut as QueryRmpOut,
)
from vhca.wire.connectx.cmd.srq import (
    QueryXrcSrqIn as QueryXrcSrqIn,
)
from vhca.wire.connectx.cmd.srq import (
    QueryXrcSrqOut as QueryXrcSrqOut,
)
from vhca.wire.connectx.cmd.vport import (
    QueryHcaVportContextIn as QueryHcaVportContextIn,
)
from vhca.wire.connectx.cmd.vport import (
    QueryHcaVportContextOut as QueryHcaVportContextOut,
)
from vhca.wire.connectx.cmd.vport import (
    QueryHcaVportGidIn as QueryHcaVportGidIn,
)
from vhca.wire.connectx.cmd.vport import (
    QueryHcaVportGidOut as QueryHcaVportGidOut,
)
from vhca.wire.connectx.cmd.vport import (
    QueryHcaVportPkeyIn as QueryHcaVportPkeyIn,
)
from vhca.wire.connectx.cmd.vport import (
    QueryHcaVportPkeyOut as QueryHcaVportPkeyOut,
)
from vhca.wire.connectx.cmd.vport import (
    QueryVportStateIn as QueryVportStateIn,
)
from vhca.wire.connectx.cmd.vport import (
    QueryVportStateOut as QueryVportStateOut,
)
