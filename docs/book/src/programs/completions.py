"""Four WRITEs, of which the last alone asks for a completion; then one that is waited for asleep."""

from pair import *

a, b = pair()
a.mr.write(b"abcd", 4)

# The completion queue says nothing of what was not asked for.
for number in range(1, 5):
    flags = IBV_SEND_SIGNALED if number == 4 else 0
    a.post(number, IBV_WR_RDMA_WRITE, 1, offset=number - 1, remote=b.at(number - 1), flags=flags)
a.wait()
print("B has", b.text(4))
found, _ = a.cq.poll()
print("completions left:", found)

# Arm the queue, post, sleep, take the event, and only then poll.
a.cq.req_notify()
a.post(5, IBV_WR_RDMA_WRITE, 4, remote=b.at(100))
a.channel.get_cq_event(a.cq)
a.cq.ack_events(1)
print("woken by an event")
a.wait()
