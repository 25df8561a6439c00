//! Cases of the connection manager alone: what a kernel's rdma_cm makes of our messages and we of its, step by step, through
//! the agent in its guest. Prints a line a case, as `kernel-ops` does.

mod endings;
mod lossy;
mod odd;
mod private_data;
mod refusals;

use crate::{
    options::Options,
    peer::{PATIENCE, Peer, tell},
};
use rxe_cm::{CmEvent, CmId, ConnParams, ForeignQp, proto::PortSpace};
use rxe_verbs::Qpn;
use serde_json::{Value, json};
use std::{cell::RefCell, net::SocketAddr};
use testbed::agent::{Agent, Failure};

type Run = fn(&Bench) -> Result<(), Failure>;

/// How a case is played, and its name; connecting is ours (`ours`) or the kernel's.
pub(crate) struct Case {
    name: &'static str,
    ours: Option<Run>,
    kernel: Option<Run>,
}

/// Both sides.
pub(crate) struct Bench {
    peer: Peer,
    agent: RefCell<Agent>,
    /// The kernel's event channel.
    channel: u64,
    /// Ports, and queue pair numbers of ours, each used once.
    next: std::cell::Cell<u16>,
}

/// An id of the kernel's, destroyed with this.
pub(crate) struct Theirs<'a> {
    bench: &'a Bench,
    pub(crate) handle: u64,
}

impl Drop for Theirs<'_> {
    fn drop(&mut self) {
        // It may be gone, or the case have failed: the next one tells.
        let _ = self.bench.call("close", &json!({ "handle": self.handle }));
    }
}

impl Theirs<'_> {
    pub(crate) fn call(&self, op: &str, data: &[u8]) -> Result<(), Failure> {
        let order = if data.is_empty() {
            json!({ "id": self.handle })
        } else {
            json!({ "id": self.handle, "data": hex(data) })
        };
        self.bench.call(op, &order).map(drop)
    }
}

/// An event of the kernel's.
pub(crate) struct Told {
    pub(crate) status: i64,
    pub(crate) data: Vec<u8>,
    id: Option<u64>,
}

/// Two digits a byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Result<Vec<u8>, Failure> {
    let digit = |at: usize| text.get(at..at + 2).ok_or("an odd number of digits");
    (0..text.len()).step_by(2).map(|at| Ok(u8::from_str_radix(digit(at)?, 16)?)).collect()
}

impl Bench {
    fn open(agent: &str, options: Options) -> Result<Self, Failure> {
        let mut agent = Agent::connect(agent)?;
        let channel = agent.number("cm_channel", &json!({}), "handle")?;
        let first: u16 = options.get("port", 22_000)?;
        Ok(Self { peer: Peer::open(options)?, agent: agent.into(), channel, next: first.into() })
    }

    pub(crate) fn call(&self, op: &str, args: &Value) -> Result<Value, Failure> {
        self.agent.borrow_mut().call(op, args)
    }

    fn number(&self) -> u16 {
        self.next.replace(self.next.get() + 1)
    }

    /// A queue pair number of ours that no other connection has; there is no such queue pair.
    pub(crate) fn params<'a>(&self, private_data: &'a [u8]) -> ConnParams<'a> {
        let qpn = Qpn::new(0x70_0000 + u32::from(self.number()));
        ConnParams { private_data, qp: Some(ForeignQp { qpn, srq: false }), ..ConnParams::default() }
    }

    pub(crate) fn our_listener(&self, space: PortSpace) -> Result<(CmId, SocketAddr), Failure> {
        let address = SocketAddr::new(self.peer.options.ours, self.number());
        let id = self.peer.id(space)?;
        id.bind(address)?;
        id.listen(0)?;
        Ok((id, address))
    }

    pub(crate) fn their_id(&self, space: PortSpace) -> Result<Theirs<'_>, Failure> {
        let space = if space == PortSpace::Udp { "UDP" } else { "TCP" };
        let order = json!({ "channel": self.channel, "space": space });
        let handle = self.agent.borrow_mut().number("cm_id", &order, "handle")?;
        Ok(Theirs { bench: self, handle })
    }

    pub(crate) fn their_listener(&self, space: PortSpace) -> Result<(Theirs<'_>, SocketAddr), Failure> {
        let address = SocketAddr::new(self.peer.options.theirs, self.number());
        let id = self.their_id(space)?;
        let order = json!({ "id": id.handle, "addr": address.ip().to_string(), "port": address.port() });
        self.call("cm_listen", &order)?;
        Ok((id, address))
    }

    /// A kernel's id that knows its way to us.
    pub(crate) fn their_resolved(&self, space: PortSpace, to: SocketAddr) -> Result<Theirs<'_>, Failure> {
        let id = self.their_id(space)?;
        let order = json!({ "id": id.handle, "addr": to.ip().to_string(), "port": to.port() });
        self.call("cm_resolve", &order)?;
        Ok(id)
    }

    /// The kernel's next event but for the ends of TIMEWAIT.
    pub(crate) fn they_get(&self, name: &str) -> Result<Told, Failure> {
        let patience = u64::try_from(PATIENCE.as_millis())?;
        loop {
            let event = self.call("cm_event", &json!({ "channel": self.channel, "timeout_ms": patience }))?;
            if event["event"] == "TIMEWAIT_EXIT" && name != "TIMEWAIT_EXIT" {
                continue;
            }
            if event["event"] != name {
                return Err(format!("the kernel got {event}, not {name}").into());
            }
            let data = unhex(event["data"].as_str().unwrap_or_default())?;
            return Ok(Told {
                status: event["status"].as_i64().unwrap_or(-1),
                data,
                id: event["id"].as_u64(),
            });
        }
    }

    /// The kernel's next event, a request, and the id made for it.
    pub(crate) fn they_are_asked(&self) -> Result<(Theirs<'_>, Told), Failure> {
        let told = self.they_get("CONNECT_REQUEST")?;
        let handle = told.id.ok_or("a request without an id")?;
        Ok((Theirs { bench: self, handle }, told))
    }

    /// Our next event.
    pub(crate) fn we_get(&self, name: &str) -> Result<CmEvent, Failure> {
        self.peer.expect(name)
    }

    /// Our next event, which has this status.
    pub(crate) fn we_get_status(&self, name: &str, status: i32) -> Result<CmEvent, Failure> {
        let event = self.we_get(name)?;
        if event.status() == status {
            Ok(event)
        } else {
            Err(format!("expected status {status}, not {}", tell(&event)).into())
        }
    }

    /// A connection that stands; we have asked for it.
    pub(crate) fn connected_by_us(&self) -> Result<(CmId, Theirs<'_>), Failure> {
        let (_listener, address) = self.their_listener(PortSpace::Tcp)?;
        let ours = self.peer.resolved(PortSpace::Tcp, address)?;
        ours.connect(&self.params(&[]))?;
        let (theirs, _) = self.they_are_asked()?;
        theirs.call("cm_accept", &[])?;
        self.we_get("CONNECT_RESPONSE")?;
        ours.establish()?;
        self.they_get("ESTABLISHED")?;
        Ok((ours, theirs))
    }

    /// A connection that stands; the kernel has asked for it.
    pub(crate) fn connected_by_them(&self) -> Result<(CmId, Theirs<'_>), Failure> {
        let (_listener, address) = self.our_listener(PortSpace::Tcp)?;
        let theirs = self.their_resolved(PortSpace::Tcp, address)?;
        theirs.call("cm_connect", &[])?;
        let ours = self.we_get("CONNECT_REQUEST")?.id;
        ours.accept(&self.params(&[]))?;
        self.they_get("CONNECT_RESPONSE")?;
        theirs.call("cm_establish", &[])?;
        self.we_get("ESTABLISHED")?;
        Ok((ours, theirs))
    }
}

/// Plays all cases, or those with `only` in their names; `agent` drives the kernel.
pub(crate) fn play(agent: &str, options: Options) -> Result<(), Failure> {
    let bench = Bench::open(agent, options)?;
    let mut failed = 0;
    // Endings come first: they wait until no connection is left, and refusals are kept for as long as a lost one could be asked
    // for again, a minute and more.
    let sets: &[&[Case]] = match bench.peer.options.get("set", String::new())?.as_str() {
        "lossy" => &[lossy::ALL],
        _ => &[endings::ALL, odd::ALL, refusals::ALL, private_data::ALL],
    };
    for case in sets.iter().copied().flatten() {
        for (role, run) in [("ours", case.ours), ("kernel", case.kernel)] {
            let Some(run) = run else { continue };
            if !case.name.contains(&bench.peer.options.get("only", String::new())?) {
                continue;
            }
            let began = std::time::Instant::now();
            match run(&bench) {
                Ok(()) => {
                    println!("{:9}{role:8}{} [{:.1} s]", "ok", case.name, began.elapsed().as_secs_f32())
                }
                Err(error) => {
                    failed += 1;
                    println!("{:9}{role:8}{}: {error}", "FAILED", case.name);
                    // What is left over of it must not be taken for the next one's.
                    while bench.peer.channel.try_get_event().is_some() {}
                    let order = json!({ "channel": bench.channel, "timeout_ms": 500 });
                    while !bench.call("cm_event", &order)?.is_null() {}
                }
            }
        }
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} cases failed").into()) }
}
