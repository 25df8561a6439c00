"""Two SENDs from A to B, of which the second is longer than B's receive."""

from pair import *

a, b = pair()
b.recv(1, length=64)
b.recv(2, length=8)
a.mr.write(b"a message, longer than eight bytes", 34)
a.post(11, IBV_WR_SEND, 34)
b.wait()
a.wait()
print("B has", repr(b.text(34)))
a.post(12, IBV_WR_SEND, 34)
b.wait()
a.wait()
