"""What crossed the wire for each slot of our host, from a capture: an account that shares no code with ours."""

import collections
import ipaddress
import struct

ROCE = 4791
# struct pcap_file_header and pcap_pkthdr (pcap-savefile(5)), the magic number in either byte order.
MAGICS = {b"\xd4\xc3\xb2\xa1": "<", b"\xa1\xb2\xc3\xd4": ">", b"\x4d\x3c\xb2\xa1": "<", b"\xa1\xb2\x3c\x4d": ">"}
# Connection manager (IBTA vol. 1, 12.6): what names nobody on our side yet, and where the rest names its receiver.
REQUESTS = {0x10, 0x17}
SIDR_REP = 0x18
REPLIES = {0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x19, 0x1A}


def frames(path):
    """The Ethernet frames of a capture."""
    with open(path, "rb") as file:
        data = file.read()
    order = MAGICS[data[:4]]
    at = 24
    while at + 16 <= len(data):
        length, original = struct.unpack_from(order + "8xII", data, at)
        if length < original:
            raise ValueError(f"{path}: a frame was cut off")
        yield data[at + 16 : at + 16 + length]
        at += 16 + length


def arrivals(path, addresses):
    """The RoCE packets to these addresses, from BTH to ICRC."""
    wanted = {ipaddress.ip_address(address).packed for address in addresses}
    for frame in frames(path):
        kind = int.from_bytes(frame[12:14], "big")
        if kind == 0x0800 and frame[23] == 17:
            udp, target = 14 + (frame[14] & 15) * 4, frame[30:34]
        elif kind == 0x86DD and frame[20] == 17:
            udp, target = 54, frame[38:54]
        else:
            continue
        _, port, length = struct.unpack_from(">HHH", frame, udp)
        if port == ROCE and target in wanted:
            yield frame[udp + 8 : udp + length]


def slot_of(packet):
    """Whose packet it is: of the high byte of its queue pair; on queue pair 1, of the communication ID that is answered."""
    if packet[5:8] != b"\0\0\1":
        return packet[5]
    management, attribute = packet[21], int.from_bytes(packet[36:38], "big")
    if management != 7 or attribute in REQUESTS:
        return 0
    if attribute == SIDR_REP:
        return packet[44]
    return packet[48] if attribute in REPLIES else 0


def by_slot(path, addresses):
    """How many packets came for each slot."""
    return collections.Counter(slot_of(packet) for packet in arrivals(path, addresses))
