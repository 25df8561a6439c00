"""Datagrams: A sends to B and to C by one queue pair, then one that B does not take."""

from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.enums import *
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

QKEY = 0x11111111
GRH = 40  # room for the network header in front of what comes
context = Context(name="rxe0")
pd = PD(context)
mr = MR(pd, 4096, IBV_ACCESS_LOCAL_WRITE)


class Queue:
    def __init__(self, name, offset):
        self.name, self.offset = name, offset
        self.cq = CQ(context, 16)
        init = QPInitAttr(qp_type=IBV_QPT_UD, scq=self.cq, rcq=self.cq, cap=QPCap(max_send_wr=4, max_recv_wr=4), sq_sig_all=1)
        # No peer among the attributes: whoever knows number and Q_Key may send.
        attr = QPAttr(port_num=1)
        attr.qkey = QKEY
        self.qp = QP(pd, init, attr)
        self.recv()

    def recv(self):
        self.qp.post_recv(RecvWR(wr_id=1, sg=[SGE(mr.buf + self.offset, GRH + 100, mr.lkey)], num_sge=1))

    def send(self, text, way, qpn, qkey=QKEY):
        mr.write(text.encode(), len(text), self.offset)
        wr = SendWR(wr_id=2, opcode=IBV_WR_SEND, num_sge=1, sg=[SGE(mr.buf + self.offset, len(text), mr.lkey)])
        wr.send_flags = IBV_SEND_SIGNALED
        wr.set_wr_ud(way, qpn, qkey)
        self.qp.post_send(wr)

    def wait(self):
        found = 0
        while not found:
            found, completions = self.cq.poll()
        wc = completions[0]
        if wc.opcode == IBV_WC_RECV:
            text = mr.read(wc.byte_len - GRH, self.offset + GRH).decode()
            print(f"{self.name} received {text!r} from queue pair {wc.src_qp:#08x}, {wc.byte_len} bytes with the header")
            self.recv()
        else:
            print(f"{self.name} sent, status {wc.status}")


def way(gid):
    """An address handle: how to get to a GID."""
    return AH(pd, attr=AHAttr(port_num=1, is_global=1, gr=GlobalRoute(dgid=gid, sgid_index=0, hop_limit=1)))


a, b, c = Queue("A", 0), Queue("B", 1000), Queue("C", 2000)
here = way(context.query_gid(1, 0))
a.send("to B alone", here, b.qp.qp_num)
a.wait()
b.wait()
a.send("to C", here, c.qp.qp_num)
a.wait()
c.wait()

# A wrong Q_Key: B never sees it, and nobody tells A.
a.send("with a wrong key", here, b.qp.qp_num, 0x22222222)
a.wait()
a.send("the last one", here, b.qp.qp_num)
a.wait()
b.wait()
