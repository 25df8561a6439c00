"""Two queue pairs of one process, connected to each other: A on the left, B on the right. For the programs of the course."""

from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.enums import *
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC
OPCODES = {
    IBV_WC_SEND: "SEND",
    IBV_WC_RDMA_WRITE: "RDMA WRITE",
    IBV_WC_RDMA_READ: "RDMA READ",
    IBV_WC_COMP_SWAP: "COMPARE AND SWAP",
    IBV_WC_FETCH_ADD: "FETCH AND ADD",
    IBV_WC_RECV: "RECEIVE",
    IBV_WC_RECV_RDMA_WITH_IMM: "RECEIVE (RDMA WRITE with immediate)",
}
STATUS = {
    IBV_WC_SUCCESS: "success",
    IBV_WC_LOC_LEN_ERR: "local length error",
    IBV_WC_LOC_PROT_ERR: "local protection error",
    IBV_WC_WR_FLUSH_ERR: "flushed",
    IBV_WC_REM_INV_REQ_ERR: "remote invalid request",
    IBV_WC_REM_ACCESS_ERR: "remote access error",
    IBV_WC_RETRY_EXC_ERR: "retries exceeded",
    IBV_WC_RNR_RETRY_EXC_ERR: "RNR retries exceeded",
}


class End:
    """A protection domain, a completion queue, 4096 bytes of registered memory and a queue pair."""

    def __init__(self, name, context, access, service):
        self.name = name
        self.pd = PD(context)
        self.channel = CompChannel(context)
        self.cq = CQ(context, 64, None, self.channel)
        self.mr = MR(self.pd, 4096, access)
        cap = QPCap(max_send_wr=16, max_recv_wr=16)
        init = QPInitAttr(qp_type=service, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=0)
        attr = QPAttr(qp_state=IBV_QPS_INIT, port_num=1)
        attr.qp_access_flags = ALL  # what the queue pair allows; the memory has rights of its own
        self.qp = QP(self.pd, init, attr)

    def connect(self, peer, gid, *, rnr_retry=7, min_rnr_timer=12, retry_cnt=7, timeout=18, mtu=IBV_MTU_1024):
        attr = QPAttr(qp_state=IBV_QPS_RTR, port_num=1)
        attr.path_mtu = mtu
        attr.dest_qp_num = peer.qp.qp_num
        attr.rq_psn = 100
        attr.sq_psn = 100
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 4
        attr.min_rnr_timer = min_rnr_timer
        attr.rnr_retry = rnr_retry
        attr.retry_cnt = retry_cnt
        attr.timeout = timeout
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid, sgid_index=0))
        self.qp.to_rts(attr)

    def sge(self, offset, length):
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def recv(self, number, length=64, offset=0):
        """Posts a receive for up to `length` bytes."""
        self.qp.post_recv(RecvWR(wr_id=number, sg=[self.sge(offset, length)], num_sge=1))

    def post(self, number, opcode, length, *, offset=0, remote=None, imm=0, flags=IBV_SEND_SIGNALED, compare=0, swap=0):
        """Posts a request of `length` bytes at `offset`; `remote` is (address, rkey)."""
        wr = SendWR(wr_id=number, opcode=opcode, num_sge=1, sg=[self.sge(offset, length)], imm_data=imm, send_flags=flags)
        if opcode in (IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD):
            wr.set_wr_atomic(rkey=remote[1], addr=remote[0], compare_add=compare, swap=swap)
        elif remote:
            wr.set_wr_rdma(rkey=remote[1], addr=remote[0])
        self.qp.post_send(wr)

    def wait(self):
        """Polls until there is a completion, and prints it."""
        found = 0
        while not found:
            found, completions = self.cq.poll()
        self.show(completions[0])
        return completions[0]

    def show(self, wc):
        status = STATUS.get(wc.status, wc.status)
        # Of a request that failed only wr_id, status and queue pair mean anything.
        what = f", {OPCODES[wc.opcode]}, {wc.byte_len} bytes" if wc.status == IBV_WC_SUCCESS else ""
        print(f"{self.name}: request {wc.wr_id}: {status}{what}")

    def at(self, offset=0):
        """What a peer has to know to reach our memory."""
        return self.mr.buf + offset, self.mr.rkey

    def text(self, length, offset=0):
        return self.mr.read(length, offset).decode()


def pair(access=ALL, service=IBV_QPT_RC, **options):
    context = Context(name="rxe0")
    a, b = End("A", context, ALL, service), End("B", context, access, service)
    gid = context.query_gid(1, 0)
    a.connect(b, gid, **options)
    b.connect(a, gid, **options)
    return a, b
