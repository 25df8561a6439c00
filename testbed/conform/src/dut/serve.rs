//! Serves a device to the suite over TCP, in the agent's protocol (`testbed/guest/agent.py` defines its calls): each request
//! is one line with a JSON object, and so is each response. A client has to present the token.

use super::{Answer, Av, Change, Cm, Dut, Handle, Mr, QpSpec, RecvWr, Refusal, SendWr};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    time::Duration,
};

/// How long a client may take to send its hello.
const HELLO: Duration = Duration::from_secs(20);

/// The longest request, in bytes. The connection is closed if a request is longer.
const MAX_LINE: u64 = 1 << 20;

/// The first handle of an address handle, above the handles of all devices.
const FIRST_WAY: Handle = 1 << 40;

/// A device, and the state that its agent keeps.
struct Session<'a> {
    dut: &'a mut dyn Dut,
    regions: BTreeMap<Handle, Mr>,
    /// Address handles. The devices here do not use them: each datagram gets the attributes.
    ways: Vec<Av>,
}

fn argument<T: DeserializeOwned>(args: &Value, name: &str) -> Answer<T> {
    let value = args.get(name).cloned().unwrap_or(Value::Null);
    serde_json::from_value(value).map_err(|error| Refusal::words(format!("argument {name}: {error}")))
}

fn unhex(text: &str) -> Answer<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    match digits {
        Some(digits) if digits.len().is_multiple_of(2) => {
            Ok(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
        }
        _ => Err(Refusal::words("hex: no even number of hexadecimal digits")),
    }
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Session<'_> {
    fn region(&self, args: &Value, name: &str) -> Answer<Mr> {
        let handle: Handle = argument(args, name)?;
        self.regions
            .get(&handle)
            .copied()
            .ok_or_else(|| Refusal::words(format!("handle {handle} is no region")))
    }

    fn memory(&mut self, op: &str, args: &Value) -> Answer<Value> {
        let mr = self.region(args, "mr")?;
        let offset: usize = argument(args, "offset")?;
        let fits = |length: usize| offset.checked_add(length).is_some_and(|end| end <= mr.length);
        if op == "mem_write" {
            let data = unhex(&argument::<String>(args, "hex")?)?;
            if !fits(data.len()) {
                return Err(Refusal::words("outside the region"));
            }
            return self.dut.mem_write(&mr, offset, &data).map(|()| Value::Null);
        }
        let length: usize = argument(args, "length")?;
        if !fits(length) {
            return Err(Refusal::words("outside the region"));
        }
        Ok(json!({ "data": hex(&self.dut.mem_read(&mr, offset, length)?) }))
    }

    fn post(&mut self, op: &str, args: &Value) -> Answer<Value> {
        let queue: Handle = argument(args, if op == "post_srq_recv" { "srq" } else { "qp" })?;
        if op == "post_send" {
            for (at, mut wr) in argument::<Vec<SendWr>>(args, "wrs")?.into_iter().enumerate() {
                wr.dest = self.dest(&args["wrs"][at])?;
                self.dut.post_send(queue, &wr)?;
            }
            return Ok(Value::Null);
        }
        for wr in argument::<Vec<RecvWr>>(args, "wrs")? {
            if op == "post_recv" {
                self.dut.post_recv(queue, &wr)?;
            } else {
                self.dut.post_srq_recv(queue, &wr)?;
            }
        }
        Ok(Value::Null)
    }

    /// The destination of a datagram, if the request gives one.
    fn dest(&self, wr: &Value) -> Answer<Option<(Av, u32, u32)>> {
        let Some(handle) = wr["ah"].as_u64() else { return Ok(None) };
        let at = usize::try_from(handle.wrapping_sub(FIRST_WAY)).ok();
        let way =
            at.and_then(|at| self.ways.get(at)).ok_or_else(|| Refusal::words("no such address handle"))?;
        Ok(Some((way.clone(), argument(wr, "remote_qpn")?, argument(wr, "remote_qkey")?)))
    }

    fn window(&mut self, op: &str, args: &Value) -> Answer<Value> {
        if op == "mw" {
            let (handle, rkey) = self.dut.mw(argument(args, "pd")?, argument(args, "type")?)?;
            return Ok(json!({ "handle": handle, "rkey": rkey }));
        }
        let mr = self.region(args, "mr")?;
        let range = (argument(args, "offset")?, argument(args, "length")?);
        let access: Vec<super::Access> = argument(args, "access")?;
        let rkey = self.dut.bind_mw(argument(args, "qp")?, argument(args, "mw")?, &mr, range, &access)?;
        Ok(json!({ "rkey": rkey }))
    }

    fn call(&mut self, op: &str, args: &Value) -> Answer<Value> {
        let handle = |handle: Handle| json!({ "handle": handle });
        match op {
            "ping" => Ok("pong".into()),
            "hello" => Ok(json!({ "rxe": self.dut.about().version, "protocol": 1 })),
            "open" => Ok(handle(0)),
            "query_port" => Ok(json!({ "active_mtu": self.dut.about().path_mtu })),
            "pd" => self.dut.pd().map(handle),
            "mr" => {
                let access: Vec<super::Access> = argument(args, "access")?;
                let mr = self.dut.mr(argument(args, "pd")?, argument(args, "length")?, &access)?;
                self.regions.insert(mr.handle, mr);
                Ok(json!(mr))
            }
            "mem_write" | "mem_read" => self.memory(op, args),
            "cq" => self.dut.cq(argument(args, "cqe")?).map(handle),
            "srq" => self.dut.srq(argument(args, "pd")?, argument(args, "max_wr")?).map(handle),
            "modify_srq" => {
                self.dut.srq_limit(argument(args, "srq")?, argument(args, "limit")?).map(|()| Value::Null)
            }
            "qp" => {
                let spec: QpSpec = serde_json::from_value(args.clone())
                    .map_err(|error| Refusal::words(format!("qp: {error}")))?;
                Ok(json!(self.dut.qp(&spec)?))
            }
            "modify" => {
                let change: Change = serde_json::from_value(args.clone())
                    .map_err(|error| Refusal::words(format!("modify: {error}")))?;
                self.dut.modify(argument(args, "qp")?, &change).map(|()| Value::Null)
            }
            "attach_mcast" => {
                self.dut.attach(argument(args, "qp")?, argument(args, "group")?).map(|()| Value::Null)
            }
            "detach_mcast" => {
                self.dut.detach(argument(args, "qp")?, argument(args, "group")?).map(|()| Value::Null)
            }
            "query_qp" => Ok(json!({ "state": self.dut.state(argument(args, "qp")?)? })),
            "post_recv" | "post_srq_recv" | "post_send" => self.post(op, args),
            "poll_cq" => Ok(json!(self.dut.poll(argument(args, "cq")?)?)),
            "async_event" => {
                Ok(self.dut.async_event()?.map_or(Value::Null, |event| json!({ "event": event })))
            }
            "mw" | "bind_mw" => self.window(op, args),
            "ah" => {
                self.ways.push(argument(args, "av")?);
                Ok(handle(FIRST_WAY + self.ways.len() as u64 - 1))
            }
            _ if op.starts_with("cm_") => managed(self.dut.cm()?, op, args),
            "close" => {
                let handle: Handle = argument(args, "handle")?;
                if handle >= FIRST_WAY {
                    return Ok(Value::Null);
                }
                self.dut.close(handle)?;
                self.regions.remove(&handle);
                Ok(Value::Null)
            }
            "close_all" => {
                self.regions.clear();
                self.dut.reset().map(|()| Value::Null)
            }
            _ => Err(Refusal::Lacks(format!("no op '{op}'"))),
        }
    }
}

/// A call of the connection manager.
fn managed(cm: &mut dyn Cm, op: &str, args: &Value) -> Answer<Value> {
    let handle = |handle: Handle| json!({ "handle": handle });
    let id = || argument::<Handle>(args, "id");
    let private = || unhex(args["data"].as_str().unwrap_or_default());
    let done = match op {
        "cm_channel" => return cm.channel().map(handle),
        "cm_id" => return cm.id(argument(args, "channel")?, argument(args, "space")?).map(handle),
        "cm_event" => return Ok(json!(cm.event(argument(args, "channel")?)?)),
        "cm_listen" => cm.listen(id()?, argument(args, "addr")?, argument(args, "port")?),
        "cm_resolve" => {
            let (from, to) = (argument(args, "src")?, argument(args, "addr")?);
            cm.resolve(id()?, from, to, argument(args, "port")?)
        }
        "cm_connect" => cm.connect(id()?, argument(args, "qpn")?, &private()?),
        "cm_accept" => cm.accept(id()?, argument(args, "qpn")?, &private()?),
        "cm_reject" => cm.reject(id()?, &private()?),
        "cm_establish" => cm.establish(id()?),
        "cm_disconnect" => cm.disconnect(id()?),
        _ => return Err(Refusal::Lacks(format!("no op '{op}'"))),
    };
    done.map(|()| Value::Null)
}

fn reply(answer: Answer<Value>) -> Value {
    match answer {
        Ok(result) => json!({ "ok": true, "result": result }),
        Err(Refusal::Refused { what, errno: Some(errno) }) => {
            json!({ "ok": false, "error": what, "errno": errno })
        }
        Err(refusal) => json!({ "ok": false, "error": refusal.to_string() }),
    }
}

/// Reads the first line from a client. Returns both directions of the connection if the line has the token.
fn welcome(stream: TcpStream, token: &str) -> io::Result<Option<(TcpStream, BufReader<TcpStream>)>> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(HELLO))?;
    let mut out = stream.try_clone()?;
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    (&mut lines).take(MAX_LINE).read_line(&mut line)?;
    let hello: Value = serde_json::from_str(&line).unwrap_or_default();
    if hello["op"] != "hello" || hello["args"]["token"] != token {
        writeln!(out, "{}", json!({ "ok": false, "error": "wrong token" }))?;
        return Ok(None);
    }
    out.set_read_timeout(None)?;
    Ok(Some((out, lines)))
}

/// Serves `dut` to the first client that presents the token, until it closes the connection. Other clients are turned away.
/// A client that sends nothing delays the next one, for at most 20 s.
///
/// # Errors
/// The error of the listener, or of the connection that is served.
pub fn serve(dut: &mut dyn Dut, listener: &TcpListener, token: &str) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        // A client without the token that closes its connection causes no error here.
        let Ok(Some((mut out, mut lines))) = welcome(stream, token) else { continue };
        let mut line = String::new();
        let mut session = Session { dut: &mut *dut, regions: BTreeMap::new(), ways: Vec::new() };
        writeln!(out, "{}", reply(session.call("hello", &Value::Null)))?;
        loop {
            line.clear();
            if (&mut lines).take(MAX_LINE).read_line(&mut line)? == 0 || !line.ends_with('\n') {
                return Ok(());
            }
            let answer = match serde_json::from_str::<Value>(&line) {
                Ok(request) => session.call(request["op"].as_str().unwrap_or(""), &request["args"]),
                Err(error) => Err(Refusal::words(format!("no JSON: {error}"))),
            };
            out.write_all(format!("{}\n", reply(answer)).as_bytes())?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dut::{agent::AgentDut, core};

    #[test]
    fn strangers_are_turned_away_and_end_nothing() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let about = core::open(false).0.about().clone();
        let server = std::thread::spawn(move || serve(&mut core::open(false).0, &listener, "word"));
        // Three clients without the token: one closes with a reset at once, one sends invalid text, one sends a wrong token.
        let gone = socket2::Socket::from(TcpStream::connect(at).unwrap());
        gone.set_linger(Some(Duration::ZERO)).unwrap();
        drop(gone);
        TcpStream::connect(at).unwrap().write_all(&[0xff, b'\n']).unwrap();
        let refused = AgentDut::connect(&at.to_string(), "wrong", "", about.clone()).unwrap_err();
        assert!(refused.to_string().contains("wrong token"), "{refused}");
        let mut dut = AgentDut::connect(&at.to_string(), "word", "", about).unwrap();
        assert!(dut.about().version.starts_with("rxe "), "{}", dut.about().version);
        dut.pd().unwrap();
        drop(dut);
        server.join().unwrap().unwrap();
    }
}
