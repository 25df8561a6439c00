"""One RDMA WRITE of 2000 bytes, then one RDMA READ of the same bytes, in packets of 512 bytes."""

from pair import *

a, b = pair(mtu=IBV_MTU_512)
data = bytes(range(200)) * 10
a.mr.write(data, 2000)
a.post(1, IBV_WR_RDMA_WRITE, 2000, remote=b.at())
a.wait()
print("B has the bytes:", b.mr.read(2000, 0) == data)
a.post(2, IBV_WR_RDMA_READ, 2000, offset=2000, remote=b.at())
a.wait()
print("A has them back:", a.mr.read(2000, 2000) == data)
