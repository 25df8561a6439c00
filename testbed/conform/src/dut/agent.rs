//! A device behind an agent, in another process, in a guest or on another host. Calls are lines of JSON over TCP;
//! `testbed/guest/agent.py` defines them. `agent.c` beside it implements the same for hosts without pyverbs.

use super::{
    About, Access, Answer, Change, Cm, CmEvent, Dut, Feature, Handle, Mr, Qp, QpSpec, RecvWr, Refusal,
    SendWr, Space, State, Wc, WrOp, serve::hex,
};
use crate::left::{LOOK, Left};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    io::{self, BufRead, BufReader, Write},
    net::{IpAddr, TcpStream, ToSocketAddrs},
    time::{Duration, Instant},
};

/// An agent that has not answered for this long counts as gone. Emulated guests sometimes take a second.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest answer that is accepted, in bytes.
const MAX_LINE: usize = 16 << 20;

/// A connection to an agent, and the device that the agent drives.
#[derive(Debug)]
pub struct AgentDut {
    out: TcpStream,
    lines: BufReader<TcpStream>,
    /// How long an answer may take, from its first byte to its last.
    patience: Duration,
    context: Handle,
    about: About,
    /// The objects that this case has made, oldest first.
    made: Vec<Handle>,
    /// The protection domain made last. Address handles are created in it.
    pd: Handle,
    /// The agent's process, if the suite started it.
    child: Option<std::process::Child>,
}

/// Connects to the first address of this name that accepts.
fn dial(address: &str, patience: Duration) -> Answer<TcpStream> {
    let all = address.to_socket_addrs().map_err(|error| gone(format!("agent {address}: {error}")))?;
    let mut why = gone(format!("agent {address}: no such host"));
    for to in all {
        match TcpStream::connect_timeout(&to, patience) {
            Ok(stream) => return Ok(stream),
            Err(error) => why = gone(format!("agent {address}: {error}; is it started there?")),
        }
    }
    Err(why)
}

fn gone(what: impl std::fmt::Display) -> Refusal {
    Refusal::Gone(what.to_string())
}

impl AgentDut {
    /// Connects to the agent at `address` (host:port) and opens `device`.
    ///
    /// # Errors
    /// The reason why the device cannot be used.
    pub fn connect(address: &str, token: &str, device: &str, about: About) -> Answer<Self> {
        Self::connect_patiently(address, token, device, about, PATIENCE)
    }

    fn connect_patiently(
        address: &str,
        token: &str,
        device: &str,
        mut about: About,
        patience: Duration,
    ) -> Answer<Self> {
        let out = dial(address, patience)?;
        out.set_write_timeout(Some(patience)).map_err(gone)?;
        out.set_nodelay(true).map_err(gone)?;
        let lines = BufReader::new(out.try_clone().map_err(gone)?);
        about.version = String::new();
        let mut dut = Self { out, lines, patience, context: 0, about, made: Vec::new(), pd: 0, child: None };
        let greeting = if token.is_empty() { json!({}) } else { json!({ "token": token }) };
        let hello = dut.call("hello", greeting).map_err(|error| gone(format!("agent {address}: {error}")))?;
        dut.about.version = ["rxe", "kernel", "rdma_core"]
            .iter()
            .filter_map(|key| hello[key].as_str().map(|value| format!("{key} {value}")))
            .collect::<Vec<_>>()
            .join(", ");
        let opened = dut.call("open", json!({ "dev": device }))?;
        dut.context =
            opened["handle"].as_u64().ok_or_else(|| gone("the agent gave no handle for the device"))?;
        dut.about.features.extend(beyond(&dut.about, &opened["features"]));
        dut.about.path_mtu = match dut.call("query_port", json!({ "ctx": dut.context })) {
            Ok(port) => port["active_mtu"].as_u64().and_then(|mtu| u32::try_from(mtu).ok()),
            Err(Refusal::Gone(why)) => return Err(Refusal::Gone(why)),
            // The agent does not report this value.
            Err(_) => None,
        };
        Ok(dut)
    }

    /// Ends this process when the device is dropped.
    pub fn keep(&mut self, child: std::process::Child) {
        self.child = Some(child);
    }

    fn call(&mut self, op: &str, args: Value) -> Answer<Value> {
        // Sent with one call: otherwise each piece would be a TCP segment.
        let line = format!("{}\n", json!({ "op": op, "args": args }));
        self.out.write_all(line.as_bytes()).map_err(|error| gone(format!("agent: {error}")))?;
        let line = self.line(op)?;
        let mut reply: Value = serde_json::from_slice(&line)
            .map_err(|error| gone(format!("the agent answered {op} with no JSON: {error}")))?;
        if reply["ok"] == true {
            return Ok(reply["result"].take());
        }
        let what = format!("{op}: {}", reply["error"].as_str().unwrap_or("refused without a word"));
        if what.contains("no op '") {
            return Err(Refusal::Lacks(what));
        }
        Err(Refusal::Refused { what, errno: reply["errno"].as_i64().map(|errno| errno as i32) })
    }

    /// The next line. All of it has to arrive in time.
    fn line(&mut self, op: &str) -> Answer<Vec<u8>> {
        let (clock, mut line) = (Instant::now(), Vec::new());
        let (mut left, mut more) = (Left::new(self.patience, Duration::ZERO), true);
        loop {
            if !more {
                return Err(gone(format!("the agent does not answer {op} within {:?}", self.patience)));
            }
            self.out.set_read_timeout(Some(left.time.min(LOOK))).map_err(gone)?;
            let start = clock.elapsed();
            let looked = self.lines.fill_buf();
            more = left.has_more(start, clock.elapsed());
            let part = match looked {
                Ok(part) => part,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) =>
                {
                    continue;
                }
                Err(error) => return Err(gone(format!("agent, at {op}: {error}"))),
            };
            if part.is_empty() {
                return Err(gone(format!("the agent hung up at {op}")));
            }
            let end = part.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(part.len(), |at| at + 1);
            line.extend_from_slice(&part[..taken]);
            self.lines.consume(taken);
            if end.is_some() {
                return Ok(line);
            }
            if line.len() > MAX_LINE {
                return Err(gone(format!("the agent's answer to {op} is longer than {MAX_LINE} bytes")));
            }
        }
    }

    fn typed<T: DeserializeOwned>(&mut self, op: &str, args: Value) -> Answer<T> {
        let value = self.call(op, args)?;
        serde_json::from_value(value)
            .map_err(|error| gone(format!("the agent's answer to {op} is odd: {error}")))
    }

    fn handle(&mut self, op: &str, args: Value) -> Answer<Handle> {
        let reply = self.call(op, args)?;
        let handle =
            reply["handle"].as_u64().ok_or_else(|| gone(format!("the agent gave no handle for {op}")))?;
        self.made.push(handle);
        Ok(handle)
    }
}

impl Drop for AgentDut {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The features beyond the usual verbs that the agent reports for its device, if the link to the device supports them.
fn beyond(about: &About, told: &Value) -> Vec<Feature> {
    let carried = |feature: &Feature| match feature {
        Feature::Xrc => true,
        // A UDP socket would need a route to multicast groups.
        Feature::Multicast => {
            [Feature::Ethernet, Feature::Udp].iter().all(|needed| about.features.contains(needed))
        }
        _ => false,
    };
    let named = told.as_array().into_iter().flatten();
    named.filter_map(|name| serde_json::from_value(name.clone()).ok()).filter(carried).collect()
}

/// A send request in the JSON form that the agent expects.
fn request(wr: &SendWr) -> Value {
    let mut value = json!(wr);
    // For addresses that are wrong on purpose, the agent has to be asked to bypass the checks of the verbs library.
    if let WrOp::AtomicFetchAndAdd { remote_addr, .. } = wr.op
        && remote_addr % 8 != 0
    {
        value["unchecked"] = true.into();
    }
    value
}

impl Dut for AgentDut {
    fn about(&self) -> &About {
        &self.about
    }

    fn reset(&mut self) -> Answer<()> {
        while let Some(handle) = self.made.pop() {
            // Any other refusal means that the case has already destroyed the object itself.
            if let Err(Refusal::Gone(why)) = self.call("close", json!({ "handle": handle })) {
                return Err(Refusal::Gone(why));
            }
        }
        while self.async_event()?.is_some() {}
        Ok(())
    }

    fn pd(&mut self) -> Answer<Handle> {
        self.pd = self.handle("pd", json!({ "ctx": self.context }))?;
        Ok(self.pd)
    }

    fn mr(&mut self, pd: Handle, length: usize, access: &[Access]) -> Answer<Mr> {
        let mr: Mr = self.typed("mr", json!({ "pd": pd, "length": length, "access": access }))?;
        self.made.push(mr.handle);
        Ok(mr)
    }

    fn mem_write(&mut self, mr: &Mr, offset: usize, data: &[u8]) -> Answer<()> {
        self.call("mem_write", json!({ "mr": mr.handle, "offset": offset, "hex": hex(data) })).map(|_| ())
    }

    fn mem_read(&mut self, mr: &Mr, offset: usize, length: usize) -> Answer<Vec<u8>> {
        let args = json!({ "mr": mr.handle, "offset": offset, "length": length, "encoding": "hex" });
        let reply = self.call("mem_read", args)?;
        let digits = reply["data"].as_str().unwrap_or_default();
        let bytes: Option<Vec<u8>> =
            (0..length).map(|at| u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()).collect();
        bytes.ok_or_else(|| gone("the agent gave other bytes than were asked for"))
    }

    fn cq(&mut self, cqe: u32) -> Answer<Handle> {
        self.handle("cq", json!({ "ctx": self.context, "cqe": cqe }))
    }

    fn srq(&mut self, pd: Handle, max_wr: u32) -> Answer<Handle> {
        self.handle("srq", json!({ "pd": pd, "max_wr": max_wr }))
    }

    fn srq_limit(&mut self, srq: Handle, limit: u32) -> Answer<()> {
        self.call("modify_srq", json!({ "srq": srq, "limit": limit })).map(|_| ())
    }

    fn qp(&mut self, spec: &QpSpec) -> Answer<Qp> {
        let qp: Qp = self.typed("qp", json!(spec))?;
        self.made.push(qp.handle);
        Ok(qp)
    }

    fn modify(&mut self, qp: Handle, change: &Change) -> Answer<()> {
        let mut args = json!(change);
        args["qp"] = qp.into();
        self.call("modify", args).map(|_| ())
    }

    fn state(&mut self, qp: Handle) -> Answer<State> {
        let mut reply = self.call("query_qp", json!({ "qp": qp }))?;
        serde_json::from_value(reply["state"].take()).map_err(gone)
    }

    fn post_recv(&mut self, qp: Handle, wr: &RecvWr) -> Answer<()> {
        self.call("post_recv", json!({ "qp": qp, "wrs": [wr] })).map(|_| ())
    }

    fn post_srq_recv(&mut self, srq: Handle, wr: &RecvWr) -> Answer<()> {
        self.call("post_srq_recv", json!({ "srq": srq, "wrs": [wr] })).map(|_| ())
    }

    fn post_send(&mut self, qp: Handle, wr: &SendWr) -> Answer<()> {
        let mut value = request(wr);
        if let Some((av, qpn, qkey)) = &wr.dest {
            let ah = self.handle("ah", json!({ "pd": self.pd, "av": av }))?;
            value["ah"] = ah.into();
            value["remote_qpn"] = (*qpn).into();
            value["remote_qkey"] = (*qkey).into();
        }
        self.call("post_send", json!({ "qp": qp, "wrs": [value] })).map(|_| ())
    }

    fn poll(&mut self, cq: Handle) -> Answer<Vec<Wc>> {
        self.typed("poll_cq", json!({ "cq": cq, "count": 64, "timeout_ms": 0 }))
    }

    fn async_event(&mut self) -> Answer<Option<String>> {
        let reply = self.call("async_event", json!({ "ctx": self.context }))?;
        Ok(reply["event"].as_str().map(str::to_owned))
    }

    fn mw(&mut self, pd: Handle, kind: u8) -> Answer<(Handle, u32)> {
        let reply = self.call("mw", json!({ "pd": pd, "type": kind }))?;
        let named = |key: &str| {
            reply[key].as_u64().ok_or_else(|| gone(format!("the agent gave no {key} for a window")))
        };
        let (handle, rkey) = (named("handle")?, named("rkey")?);
        self.made.push(handle);
        Ok((handle, rkey as u32))
    }

    fn bind_mw(
        &mut self,
        qp: Handle,
        mw: Handle,
        mr: &Mr,
        range: (usize, usize),
        access: &[Access],
    ) -> Answer<u32> {
        let args = json!({
            "qp": qp, "mw": mw, "mr": mr.handle, "offset": range.0, "length": range.1, "access": access,
        });
        let reply = self.call("bind_mw", args)?;
        let rkey = reply["rkey"].as_u64().ok_or_else(|| gone("the agent gave no key for a bound window"))?;
        Ok(rkey as u32)
    }

    fn attach(&mut self, qp: Handle, group: IpAddr) -> Answer<()> {
        self.call("attach_mcast", json!({ "qp": qp, "group": group })).map(|_| ())
    }

    fn detach(&mut self, qp: Handle, group: IpAddr) -> Answer<()> {
        self.call("detach_mcast", json!({ "qp": qp, "group": group })).map(|_| ())
    }

    fn close(&mut self, handle: Handle) -> Answer<()> {
        self.call("close", json!({ "handle": handle }))?;
        self.made.retain(|made| *made != handle);
        Ok(())
    }

    fn cm(&mut self) -> Answer<&mut dyn Cm> {
        Ok(self)
    }
}

impl Cm for AgentDut {
    fn channel(&mut self) -> Answer<Handle> {
        self.handle("cm_channel", json!({}))
    }

    fn id(&mut self, channel: Handle, space: Space) -> Answer<Handle> {
        self.handle("cm_id", json!({ "channel": channel, "space": space }))
    }

    fn listen(&mut self, id: Handle, address: IpAddr, port: u16) -> Answer<()> {
        self.call("cm_listen", json!({ "id": id, "addr": address, "port": port })).map(|_| ())
    }

    fn resolve(&mut self, id: Handle, from: IpAddr, to: IpAddr, port: u16) -> Answer<()> {
        self.call("cm_resolve", json!({ "id": id, "src": from, "addr": to, "port": port })).map(|_| ())
    }

    fn connect(&mut self, id: Handle, qpn: u32, private: &[u8]) -> Answer<()> {
        self.call("cm_connect", json!({ "id": id, "qpn": qpn, "data": hex(private) })).map(|_| ())
    }

    fn accept(&mut self, id: Handle, qpn: u32, private: &[u8]) -> Answer<()> {
        self.call("cm_accept", json!({ "id": id, "qpn": qpn, "data": hex(private) })).map(|_| ())
    }

    fn reject(&mut self, id: Handle, private: &[u8]) -> Answer<()> {
        self.call("cm_reject", json!({ "id": id, "data": hex(private) })).map(|_| ())
    }

    fn establish(&mut self, id: Handle) -> Answer<()> {
        self.call("cm_establish", json!({ "id": id })).map(|_| ())
    }

    fn disconnect(&mut self, id: Handle) -> Answer<()> {
        self.call("cm_disconnect", json!({ "id": id })).map(|_| ())
    }

    fn event(&mut self, channel: Handle) -> Answer<Option<CmEvent>> {
        let event: Option<CmEvent> =
            self.typed("cm_event", json!({ "channel": channel, "timeout_ms": 0 }))?;
        // A connection request brings a new id, which has to be destroyed as well.
        let new = event.as_ref().and_then(|event| event.id).filter(|id| !self.made.contains(id));
        self.made.extend(new);
        Ok(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dut::core;
    use std::net::TcpListener;

    /// An agent that answers the hello, and then sends `then` repeatedly as the answer to the next call.
    fn with_agent(then: &'static [u8], patience: Duration) -> Refusal {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let agent = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            lines.next().unwrap().unwrap();
            stream.write_all(b"{\"ok\": true, \"result\": {}}\n").unwrap();
            lines.next().unwrap().unwrap();
            // Until the suite closes the connection.
            while stream.write_all(then).is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let about = core::open(false).0.about().clone();
        let refusal = AgentDut::connect_patiently(&address, "", "rxe0", about, patience).unwrap_err();
        agent.join().unwrap();
        refusal
    }

    #[test]
    fn an_agent_that_answers_without_end_is_gone() {
        let slow = with_agent(b" ", Duration::from_secs(2));
        assert!(matches!(&slow, Refusal::Gone(why) if why.contains("does not answer open")), "{slow}");
        let long = with_agent(&[b'x'; 1 << 16], Duration::from_secs(600));
        assert!(matches!(&long, Refusal::Gone(why) if why.contains("longer than")), "{long}");
    }
}
