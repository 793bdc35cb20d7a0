# SPDX-License-Identifier: Apache-2.0
"""Connects a queue pair of its own to somebody else's, and tries to get or to leave something.

    stranger.py DEVICE QUEUE_PAIR_NUMBER send|read|write REMOTE_KEY

Prints ``refused`` and the completion's status, or ``success``; ends by SIGALRM where the device
completes nothing. The number of the first packet is a guess. Runs with Debian's pyverbs, for which
there are no types.
"""

from __future__ import annotations

import signal
import sys

import pyverbs.enums as ibv
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

SIZE = 64
LIMIT_SECONDS = 30
OPCODES = {
    "send": ibv.IBV_WR_SEND,
    "read": ibv.IBV_WR_RDMA_READ,
    "write": ibv.IBV_WR_RDMA_WRITE,
}


def address(context: Context) -> int:
    """Index of the device's IPv4 address, the one that links of this machine use."""
    count = context.query_port(1).gid_tbl_len
    found = [i for i in range(count) if "0000:ffff:" in context.query_gid(1, i).gid]
    return found[0] if found else 0


def connected(context: Context, domain: PD, queue: CQ, number: int) -> QP:
    index = address(context)
    depth = QPCap(max_send_wr=4, max_recv_wr=4)
    made = QP(domain, QPInitAttr(qp_type=ibv.IBV_QPT_RC, scq=queue, rcq=queue, cap=depth))
    route = GlobalRoute(dgid=context.query_gid(1, index), sgid_index=index)
    wanted = QPAttr(port_num=1)
    wanted.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
    wanted.dest_qp_num = number
    wanted.path_mtu = ibv.IBV_MTU_1024
    wanted.rq_psn = wanted.sq_psn = 0
    wanted.max_rd_atomic = wanted.max_dest_rd_atomic = 1
    wanted.min_rnr_timer = 12
    wanted.timeout = 14
    wanted.retry_cnt = wanted.rnr_retry = 2
    made.to_rts(wanted)
    return made


def main() -> None:
    device, number, operation, key = sys.argv[1:]
    signal.alarm(LIMIT_SECONDS)
    context = Context(name=device)
    channel = CompChannel(context)
    domain, queue = PD(context), CQ(context, 8, None, channel)
    queue.req_notify()
    memory = MR(domain, SIZE, ibv.IBV_ACCESS_LOCAL_WRITE)
    memory.write("\0" * SIZE, SIZE)
    pair = connected(context, domain, queue, int(number))
    request = SendWR(opcode=OPCODES[operation], num_sge=1, sg=[SGE(memory.buf, SIZE, memory.lkey)])
    if operation != "send":
        request.set_wr_rdma(int(key), memory.buf)
    pair.post_send(request)
    channel.get_cq_event(queue)
    queue.ack_events(1)
    _, completions = queue.poll()
    status = completions[0].status
    print("success" if status == ibv.IBV_WC_SUCCESS else f"refused: status {status}")


if __name__ == "__main__":
    main()
