"""Walks a queue pair through its states. With a word, one attribute is left out on the way to RTR: `states.py path_mtu`."""

import sys

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import *
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

NAMES = {IBV_QPS_RESET: "RESET", IBV_QPS_INIT: "INIT", IBV_QPS_RTR: "RTR", IBV_QPS_RTS: "RTS", IBV_QPS_ERR: "ERR"}
# What each step needs for a reliable connection.
INIT = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS
RTR = {
    "path_mtu": IBV_QP_PATH_MTU,
    "dest_qp_num": IBV_QP_DEST_QPN,
    "rq_psn": IBV_QP_RQ_PSN,
    "max_dest_rd_atomic": IBV_QP_MAX_DEST_RD_ATOMIC,
    "min_rnr_timer": IBV_QP_MIN_RNR_TIMER,
    "ah_attr": IBV_QP_AV,
}
RTS = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC

context = Context(name="rxe0")
pd = PD(context)
cq = CQ(context, 16)
init = QPInitAttr(qp_type=IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=8, max_recv_wr=8))
qp = QP(pd, init)


def show():
    attr, _ = qp.query(IBV_QP_STATE)
    print(f"queue pair {qp.qp_num:#08x} is in {NAMES[attr.qp_state]}")


show()

attr = QPAttr(qp_state=IBV_QPS_INIT, port_num=1)
attr.qp_access_flags = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE
qp.modify(attr, INIT)
show()

attr = QPAttr(qp_state=IBV_QPS_RTR, port_num=1)
attr.path_mtu = IBV_MTU_1024
attr.dest_qp_num = qp.qp_num  # itself: a queue pair may talk to itself
attr.rq_psn = 100
attr.max_dest_rd_atomic = 4
attr.min_rnr_timer = 12
route = GlobalRoute(dgid=context.query_gid(1, 0), sgid_index=0)
attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
mask = IBV_QP_STATE
for name, bit in RTR.items():
    if name not in sys.argv[1:]:
        mask |= bit
try:
    qp.modify(attr, mask)
except PyverbsRDMAError as error:
    show()
    sys.exit(f"the step to RTR was refused: {error}")
show()

attr = QPAttr(qp_state=IBV_QPS_RTS)
attr.sq_psn = 100
attr.timeout = 14  # 4.096 us * 2^14 = 67 ms
attr.retry_cnt = 7
attr.rnr_retry = 7
attr.max_rd_atomic = 4
qp.modify(attr, RTS)
show()
