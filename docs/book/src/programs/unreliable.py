"""Two messages over an unreliable connection (UC), in packets of 512 bytes."""

from pair import *

a, b = pair(service=IBV_QPT_UC, mtu=IBV_MTU_512)
for number in (1, 2):
    b.recv(number, length=2000, offset=2000 * (number - 1))
for number in (11, 12):
    a.mr.write(f"message {number}".encode().ljust(2000), 2000)
    a.post(number, IBV_WR_SEND, 2000)
    a.wait()
b.wait()
print("B's first receive has", repr(b.text(10)))
