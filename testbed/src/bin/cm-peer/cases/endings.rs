//! How connections end: from either side, from both at once, by an id that is destroyed, by a program that is killed.

use super::{Bench, Case};
use crate::{hold::STANDS, ucmatose::nothing_left};
use rxe_cm::{ConnParams, proto::PortSpace};
use rxe_verbs::{QpInit, QpState, QpType};
use serde_json::json;
use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, ChildStdout, Command, Stdio},
};
use testbed::agent::Failure;

pub(super) const ALL: &[Case] = &[
    Case {
        name: "ended by us",
        ours: Some(|bench| by_us(bench, true)),
        kernel: Some(|bench| by_us(bench, false)),
    },
    Case {
        name: "ended by the kernel",
        ours: Some(|bench| by_them(bench, true)),
        kernel: Some(|bench| by_them(bench, false)),
    },
    Case {
        name: "ended by both at once, 10 times",
        ours: Some(|bench| by_both(bench, true)),
        kernel: Some(|bench| by_both(bench, false)),
    },
    Case {
        name: "ended by an id of ours that is destroyed",
        ours: Some(|bench| destroyed(bench, true)),
        kernel: Some(|bench| destroyed(bench, false)),
    },
    Case {
        name: "ended by an id of the kernel's that is destroyed",
        ours: Some(|bench| destroyed_there(bench, true)),
        kernel: Some(|bench| destroyed_there(bench, false)),
    },
    Case { name: "the kernel's program is killed", ours: Some(killed_server), kernel: Some(killed_client) },
    Case {
        name: "our program is killed",
        ours: Some(|bench| killed_here(bench, true)),
        kernel: Some(|bench| killed_here(bench, false)),
    },
];

fn connected(bench: &Bench, by_us: bool) -> Result<(rxe_cm::CmId, super::Theirs<'_>), Failure> {
    if by_us { bench.connected_by_us() } else { bench.connected_by_them() }
}

fn by_us(bench: &Bench, asked: bool) -> Result<(), Failure> {
    let (ours, theirs) = connected(bench, asked)?;
    ours.disconnect()?;
    bench.they_get("DISCONNECTED")?;
    theirs.call("cm_disconnect", &[])?;
    bench.we_get("DISCONNECTED")?;
    nothing_left(&bench.peer)
}

fn by_them(bench: &Bench, asked: bool) -> Result<(), Failure> {
    let (ours, theirs) = connected(bench, asked)?;
    theirs.call("cm_disconnect", &[])?;
    bench.we_get("DISCONNECTED")?;
    ours.disconnect()?;
    bench.they_get("DISCONNECTED")?;
    nothing_left(&bench.peer)
}

/// Either the DREQs cross, or one side's comes first and the other agrees: nobody may wait for ever.
fn by_both(bench: &Bench, asked: bool) -> Result<(), Failure> {
    for round in 0..10 {
        let (ours, theirs) = connected(bench, asked)?;
        if round % 2 == 0 {
            ours.disconnect()?;
            theirs.call("cm_disconnect", &[])?;
        } else {
            std::thread::scope(|scope| {
                let ended = scope.spawn(|| ours.disconnect());
                let told = theirs.call("cm_disconnect", &[]);
                ended.join().map_err(|_| "a panic")??;
                told
            })?;
        }
        bench.we_get("DISCONNECTED")?;
        bench.they_get("DISCONNECTED")?;
    }
    nothing_left(&bench.peer)
}

fn destroyed(bench: &Bench, asked: bool) -> Result<(), Failure> {
    let (ours, theirs) = connected(bench, asked)?;
    drop(ours);
    bench.they_get("DISCONNECTED")?;
    drop(theirs);
    nothing_left(&bench.peer)
}

fn destroyed_there(bench: &Bench, asked: bool) -> Result<(), Failure> {
    let (ours, theirs) = connected(bench, asked)?;
    drop(theirs);
    bench.we_get("DISCONNECTED")?;
    ours.disconnect()?;
    nothing_left(&bench.peer)
}

/// Kills a program that waits in the middle of a connection; ours is told, and its queue pair is in the error state after
/// agreeing.
fn killed(bench: &Bench, handle: u64, id: &rxe_cm::CmId) -> Result<(), Failure> {
    bench.call("kill", &json!({ "handle": handle, "signal": 9 }))?;
    bench.we_get("DISCONNECTED")?;
    id.disconnect()?;
    let state = id.qp().ok_or("no queue pair")?.state();
    if state != QpState::Error {
        return Err(format!("our queue pair is in {state:?}").into());
    }
    bench.call("close", &json!({ "handle": handle }))?;
    nothing_left(&bench.peer)
}

fn killed_server(bench: &Bench) -> Result<(), Failure> {
    let port = bench.number();
    let at = SocketAddr::new(bench.peer.options.theirs, port);
    let argv = ["rdma_server", "-s", &at.ip().to_string(), "-p", &port.to_string()];
    let handle = bench.agent.borrow_mut().number("spawn", &json!({ "argv": argv }), "handle")?;
    let id = bench.peer.resolved(PortSpace::Tcp, at)?;
    let (pd, cq) = parts(&id)?;
    id.create_qp(&pd, &QpInit::new(QpType::Rc, &cq))?;
    bench.peer.connect(std::slice::from_ref(&id), &ConnParams::default())?;
    killed(bench, handle, &id)
}

fn killed_client(bench: &Bench) -> Result<(), Failure> {
    let (_listener, at) = bench.our_listener(PortSpace::Tcp)?;
    let argv = ["rdma_client", "-s", &at.ip().to_string(), "-p", &at.port().to_string()];
    let handle = bench.agent.borrow_mut().number("spawn", &json!({ "argv": argv }), "handle")?;
    let id = bench.we_get("CONNECT_REQUEST")?.id;
    let (pd, cq) = parts(&id)?;
    id.create_qp(&pd, &QpInit::new(QpType::Rc, &cq))?;
    id.accept(&ConnParams::default())?;
    bench.we_get("ESTABLISHED")?;
    // Its message finds no receive here and is repeated.
    killed(bench, handle, &id)
}

/// Kills a program of ours that holds a connection: the host service ends it in its name.
fn killed_here(bench: &Bench, by_us: bool) -> Result<(), Failure> {
    let (ours, theirs) = (bench.peer.options.ours, bench.peer.options.theirs);
    let port = bench.number();
    let spawn = |role: &str| -> Result<Holder, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["hold", role, &ours.to_string(), &theirs.to_string(), &format!("port={port}")]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Holder { child, lines })
    };
    let (mut holder, their_end);
    if by_us {
        let listener = bench.their_id(PortSpace::Tcp)?;
        let order = json!({ "id": listener.handle, "addr": theirs.to_string(), "port": port });
        bench.call("cm_listen", &order)?;
        holder = spawn("client")?;
        (their_end, _) = bench.they_are_asked()?;
        their_end.call("cm_accept", &[])?;
        bench.they_get("ESTABLISHED")?;
    } else {
        holder = spawn("server")?;
        holder.says("listening")?;
        their_end = bench.their_resolved(PortSpace::Tcp, SocketAddr::new(ours, port))?;
        their_end.call("cm_connect", &[])?;
        bench.they_get("CONNECT_RESPONSE")?;
        their_end.call("cm_establish", &[])?;
    }
    holder.says(STANDS)?;
    // SIGKILL.
    holder.child.kill()?;
    bench.they_get("DISCONNECTED")?;
    // Everything is as before: the next one is taken.
    drop(their_end);
    let (ours, theirs) = connected(bench, by_us)?;
    drop(ours);
    bench.they_get("DISCONNECTED")?;
    drop(theirs);
    nothing_left(&bench.peer)
}

/// A program of ours, dead when this is dropped.
struct Holder {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Holder {
    /// Its next line.
    fn says(&mut self, what: &str) -> Result<(), Failure> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        if line.trim_end() == what { Ok(()) } else { Err(format!("it said {line:?}, not {what}").into()) }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may be dead.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parts(id: &rxe_cm::CmId) -> Result<(rxe_verbs::Pd, rxe_verbs::Cq), Failure> {
    let context = id.context().ok_or("an id without a device")?;
    Ok((context.alloc_pd()?, context.create_cq(4, None)?))
}
