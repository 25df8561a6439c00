"""WRITE, READ and the two atomics from A on B's memory, of which B's program hears nothing."""

from pair import *

a, b = pair()
counter = b.at(512)

a.mr.write(b"written by A", 12)
a.post(1, IBV_WR_RDMA_WRITE, 12, remote=b.at())
a.wait()
print("B's memory:", b.text(12))

b.mr.write(b"put there by B", 14, 100)
a.post(2, IBV_WR_RDMA_READ, 14, offset=200, remote=b.at(100))
a.wait()
print("A has read:", a.text(14, 200))


def number(end, offset):
    return int.from_bytes(end.mr.read(8, offset), "little")


for round in range(3):
    a.post(3 + round, IBV_WR_ATOMIC_FETCH_AND_ADD, 8, offset=304, remote=counter, compare=10)
    a.wait()
    print(f"the counter was {number(a, 304)} and is {number(b, 512)}")

# It becomes 99 if it is 30, and then no more.
for round in range(2):
    a.post(6 + round, IBV_WR_ATOMIC_CMP_AND_SWP, 8, offset=304, remote=counter, compare=30, swap=99)
    a.wait()
    print(f"the counter was {number(a, 304)} and is {number(b, 512)}")

# With an immediate the other side hears of a WRITE: it costs B a receive.
b.recv(20)
a.post(10, IBV_WR_RDMA_WRITE_WITH_IMM, 12, remote=b.at(), imm=0x12345678)
print(f"B is told {b.wait().imm_data:#010x}")
a.wait()
