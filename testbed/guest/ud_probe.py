#!/usr/bin/python3
"""Sends one RoCEv2 UD SEND from an ordinary UDP socket, built from zlib's crc32 alone.

  ud_probe.py SOURCE DESTINATION QPN QKEY SOURCE_QPN TEXT

It proves that a path from a namespace to a kernel rxe works before anything else is blamed.
"""

import ipaddress
import socket
import struct
import sys
import zlib

IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PMTUDISC_PROBE = 10, 23, 3


def icrc(source, destination, udp, transport):
    """The invariant CRC: variable fields as ones; an unconnected PROBE socket sends ID 0 and DF."""
    length = 8 + len(transport) + 4
    if source.version == 4:
        ip = struct.pack("!BBHHHBBH", 0x45, 0xFF, 20 + length, 0, 0x4000, 0xFF, 17, 0xFFFF)
    else:
        ip = struct.pack("!IHBB", 0x6FFFFFFF, length, 17, 0xFF)
    ip += source.packed + destination.packed
    masked = transport[:4] + b"\xff" + transport[5:]
    return zlib.crc32(b"\xff" * 8 + ip + struct.pack("!HHHH", *udp, length, 0xFFFF) + masked)


def main():
    source, destination = (ipaddress.ip_address(text) for text in sys.argv[1:3])
    qpn, qkey, source_qpn = (int(text, 0) for text in sys.argv[3:6])
    payload = sys.argv[6].encode()
    pad = -len(payload) % 4
    bth = struct.pack("!BBHII", 0x64, pad << 4, 0xFFFF, qpn, 7)
    transport = bth + struct.pack("!II", qkey, source_qpn) + payload + b"\0" * pad
    family = socket.AF_INET if source.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        if source.version == 4:
            sender.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PMTUDISC_PROBE)
        else:
            sender.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PMTUDISC_PROBE)
        sender.bind((str(source), 0))
        check = icrc(source, destination, (sender.getsockname()[1], 4791), transport)
        sender.sendto(transport + struct.pack("<I", check), (str(destination), 4791))


if __name__ == "__main__":
    main()
