"""A sends, and B has no receive posted; after a while B posts one (with the word `never` it does not)."""

import sys
import time

from pair import *

never = "never" in sys.argv
# Code 24: B asks A to wait for 41 ms. An RNR retry count of 7 is without end.
a, b = pair(min_rnr_timer=24, rnr_retry=3 if never else 7)
a.mr.write(b"hello", 5)
a.post(1, IBV_WR_SEND, 5)
if not never:
    time.sleep(0.1)
    b.recv(2)
    b.wait()
a.wait()
