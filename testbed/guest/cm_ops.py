"""The agent's ops over rdma_cm (librdmacm by ctypes: pyverbs tells no event's status)."""

import ctypes
import os
import select
import socket
import struct

_lib = ctypes.CDLL("librdmacm.so.1", use_errno=True)
SPACES = {"TCP": 0x0106, "UDP": 0x0111}
# Of the queue pair numbers that nobody has: only the connection manager is tried.
FIRST_QPN = 0x400000


class _EventChannel(ctypes.Structure):
    _fields_ = [("fd", ctypes.c_int)]


class _ConnParam(ctypes.Structure):
    """rdma_conn_param."""

    _fields_ = [
        ("private_data", ctypes.c_void_p),
        ("private_data_len", ctypes.c_uint8),
        ("responder_resources", ctypes.c_uint8),
        ("initiator_depth", ctypes.c_uint8),
        ("flow_control", ctypes.c_uint8),
        ("retry_count", ctypes.c_uint8),
        ("rnr_retry_count", ctypes.c_uint8),
        ("srq", ctypes.c_uint8),
        ("qp_num", ctypes.c_uint32),
    ]


class _Event(ctypes.Structure):
    """rdma_cm_event; both members of its union begin with the private data."""

    _fields_ = [
        ("id", ctypes.c_void_p),
        ("listen_id", ctypes.c_void_p),
        ("event", ctypes.c_int),
        ("status", ctypes.c_int),
        ("conn", _ConnParam),
    ]


for _name, _result in (("rdma_create_event_channel", ctypes.POINTER(_EventChannel)), ("rdma_event_str", ctypes.c_char_p)):
    getattr(_lib, _name).restype = _result


def _pointer(value):
    return ctypes.c_void_p(value)


def _check(result, what):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _sockaddr(address, port):
    """A sockaddr_in or sockaddr_in6."""
    if ":" in address:
        packed = socket.inet_pton(socket.AF_INET6, address)
        return struct.pack("=H", socket.AF_INET6) + struct.pack("!HI", port, 0) + packed + bytes(4)
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(address) + bytes(8)


class CmChannel:
    """An event channel, and the ids whose events it gets, by their address."""

    def __init__(self):
        self.channel = _lib.rdma_create_event_channel()
        if not self.channel:
            raise OSError(ctypes.get_errno(), "rdma_create_event_channel")
        self.handles = {}

    def event(self, timeout_ms):
        """The next event as (id, listener, name, status, private data), acknowledged; or nothing."""
        if not select.select([self.channel.contents.fd], [], [], timeout_ms / 1000)[0]:
            return None
        found = ctypes.POINTER(_Event)()
        _check(_lib.rdma_get_cm_event(self.channel, ctypes.byref(found)), "rdma_get_cm_event")
        event = found.contents
        name = _lib.rdma_event_str(event.event).decode().removeprefix("RDMA_CM_EVENT_")
        data = ctypes.string_at(event.conn.private_data, event.conn.private_data_len) if event.conn.private_data else b""
        told = (event.id, event.listen_id, name, event.status, data)
        _check(_lib.rdma_ack_cm_event(found), "rdma_ack_cm_event")
        return told

    def close(self):
        _lib.rdma_destroy_event_channel(self.channel)


class CmId:
    """An id without a queue pair."""

    numbers = iter(range(FIRST_QPN, 1 << 24))

    def __init__(self, channel, pointer):
        self.channel, self.pointer = channel, pointer
        self.qpn = next(CmId.numbers)

    @classmethod
    def create(cls, channel, space):
        made = ctypes.c_void_p()
        _check(
            _lib.rdma_create_id(channel.channel, ctypes.byref(made), None, SPACES[space]),
            "rdma_create_id",
        )
        return cls(channel, made.value)

    def call(self, function, *arguments):
        _check(getattr(_lib, function)(_pointer(self.pointer), *arguments), function)

    def expect(self, name):
        """The channel's next event, which has to be of this id and have this name."""
        event = self.channel.event(10_000)
        if event is None or event[0] != self.pointer or event[2] != name:
            raise RuntimeError(f"expected {name}, not {event}")

    def close(self):
        self.channel.handles.pop(self.pointer, None)
        self.call("rdma_destroy_id")


def _enter(session, thing):
    handle = session.add(thing)
    thing.channel.handles[thing.pointer] = handle
    return handle


def _param(cm_id, data, **more):
    data = bytes.fromhex(data)
    buffer = ctypes.create_string_buffer(data, len(data) or 1)
    param = _ConnParam(
        private_data=ctypes.cast(buffer, ctypes.c_void_p) if data else None,
        private_data_len=len(data),
        responder_resources=1,
        initiator_depth=1,
        retry_count=7,
        rnr_retry_count=7,
        qp_num=cm_id.qpn,
    )
    for name, value in more.items():
        setattr(param, name, value)
    # The buffer has to live as long as the parameters.
    return param, buffer


def op_cm_channel(session):
    return {"handle": session.add(CmChannel())}


def op_cm_id(session, channel, space="TCP"):
    return {"handle": _enter(session, CmId.create(session.get(channel, CmChannel), space))}


def op_cm_listen(session, id, addr, port, backlog=0):
    cm_id = session.get(id, CmId)
    cm_id.call("rdma_bind_addr", _sockaddr(addr, port))
    cm_id.call("rdma_listen", backlog)


def op_cm_resolve(session, id, addr, port, src=None):
    cm_id = session.get(id, CmId)
    cm_id.call("rdma_resolve_addr", _sockaddr(src, 0) if src else None, _sockaddr(addr, port), 5000)
    cm_id.expect("ADDR_RESOLVED")
    cm_id.call("rdma_resolve_route", 5000)
    cm_id.expect("ROUTE_RESOLVED")


def op_cm_connect(session, id, data="", qpn=None):
    cm_id = session.get(id, CmId)
    cm_id.qpn = qpn or cm_id.qpn
    param, _buffer = _param(cm_id, data)
    cm_id.call("rdma_connect", ctypes.byref(param))


def op_cm_accept(session, id, data="", qpn=None):
    cm_id = session.get(id, CmId)
    cm_id.qpn = qpn or cm_id.qpn
    param, _buffer = _param(cm_id, data)
    cm_id.call("rdma_accept", ctypes.byref(param))


def op_cm_reject(session, id, data=""):
    data = bytes.fromhex(data)
    session.get(id, CmId).call("rdma_reject", data or None, len(data))


def op_cm_reject_ece(session, id, data=""):
    data = bytes.fromhex(data)
    session.get(id, CmId).call("rdma_reject_ece", data or None, len(data))


def op_cm_establish(session, id):
    session.get(id, CmId).call("rdma_establish")


def op_cm_disconnect(session, id):
    session.get(id, CmId).call("rdma_disconnect")


def op_cm_event(session, channel, timeout_ms=10_000):
    channel = session.get(channel, CmChannel)
    event = channel.event(timeout_ms)
    if event is None:
        return None
    pointer, listener, name, status, data = event
    if name == "CONNECT_REQUEST":
        _enter(session, CmId(channel, pointer))
    return {
        "event": name,
        "status": status,
        "data": data.hex(),
        "id": channel.handles.get(pointer),
        "listener": channel.handles.get(listener),
    }
