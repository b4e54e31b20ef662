"""On-demand paging: the host's answer to a page fault."""

from firmware.commands.registry import Command, command, refuse
from firmware.model.hca import Hca
from firmware.transport.engine import page_fault_answered
from vhca.wire.connectx.cmd import Op, PageFaultResumeIn, Status


@command(Op.PAGE_FAULT_RESUME, PageFaultResumeIn)
def page_fault_resume(hca: Hca, request: Command[PageFaultResumeIn]) -> bytes:
    """The pages are there, or cannot be had: whoever waits tries again, or fails."""
    if request.uid:
        refuse(Status.BAD_PARAM, "uid: page faults are between the card and the kernel")
    if not hca.capabilities.general.pg:
        refuse(Status.BAD_OP, "pg: on-demand paging is not advertised")
    view = request.view
    if not page_fault_answered(hca, view.fault_token_47_32 << 32 | view.fault_token_31_0, not view.error):
        refuse(Status.BAD_RES, "fault_token: no such page fault")
    return bytes(16)
