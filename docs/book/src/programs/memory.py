"""A registers memory with the rights given as words, and B tries to write to it and to read from it."""

import sys

from pair import *

RIGHTS = {"write": IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE, "read": IBV_ACCESS_REMOTE_READ}
access = IBV_ACCESS_LOCAL_WRITE
for word in sys.argv[1:]:
    access |= RIGHTS.get(word, 0)
a, b = pair(access)
address, rkey = b.at()
print(f"B's memory: {b.mr.length} bytes, lkey {b.mr.lkey:#010x}, rkey {rkey:#010x}")
a.mr.write(b"hello", 5)
length = 5
if "beyond" in sys.argv:
    address += b.mr.length - 4  # the last byte is behind the end
a.post(1, IBV_WR_RDMA_WRITE, length, remote=(address, rkey))
if a.wait().status == IBV_WC_SUCCESS:
    print("B has", b.text(5))
    a.post(2, IBV_WR_RDMA_READ, 5, offset=100, remote=b.at())
    a.wait()
