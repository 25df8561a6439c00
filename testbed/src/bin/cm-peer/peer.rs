//! Our side of every program: the connection manager, a channel, and what one waits for.

use crate::{options::Options, record};
use rxe_cm::{
    CmEvent, CmId, ConnParams, EventChannel, EventKind, Manager,
    proto::{PortSpace, RejectReason, SidrStatus},
};
use rxe_verbs::{Completion, Cq, Mr, Sge, WcStatus};
use std::{
    fs::OpenOptions,
    io::{Write, stdout},
    net::SocketAddr,
    thread::sleep,
    time::{Duration, Instant},
};
use testbed::agent::Failure;

/// How long anything of the other end may take. Emulated machines stall, and a lost message is repeated after 6 s.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The other end's program may not have come so far as to listen.
const TRIES: u32 = 150;
const PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Peer {
    pub(crate) manager: Manager,
    pub(crate) channel: EventChannel,
    pub(crate) options: Options,
}

/// Says that somebody may connect now.
pub(crate) fn ready() -> Result<(), Failure> {
    println!("listening");
    Ok(stdout().flush()?)
}

/// An event in words.
pub(crate) fn tell(event: &CmEvent) -> Failure {
    format!("{} (status {}): {}", event.kind.name(), event.status(), event.kind.words()).into()
}

impl Peer {
    pub(crate) fn open(options: Options) -> Result<Self, Failure> {
        let manager = Manager::open()?;
        let sent: String = options.get("sent", String::new())?;
        if !sent.is_empty() {
            let file =
                OpenOptions::new().append(true).open(&sent).map_err(|error| format!("{sent}: {error}"))?;
            manager.watch(move |crossing| record::note(&file, crossing));
        }
        Ok(Self { manager, channel: EventChannel::new()?, options })
    }

    /// The next event but for the ends of TIMEWAIT, which come whenever they like.
    pub(crate) fn next(&self) -> Result<CmEvent, Failure> {
        loop {
            let event = self.channel.get_event(Some(PATIENCE))?;
            if !matches!(event.kind, EventKind::TimewaitExit) {
                return Ok(event);
            }
        }
    }

    /// The next event, which has this name.
    pub(crate) fn expect(&self, name: &str) -> Result<CmEvent, Failure> {
        let event = self.next()?;
        if event.kind.name() == name { Ok(event) } else { Err(tell(&event)) }
    }

    pub(crate) fn id(&self, space: PortSpace) -> Result<CmId, Failure> {
        Ok(self.manager.create_id(&self.channel, space)?)
    }

    /// A listener, and its word that it is one.
    pub(crate) fn listen(&self, space: PortSpace, at: SocketAddr) -> Result<CmId, Failure> {
        let id = self.id(space)?;
        id.bind(at)?;
        id.listen(0)?;
        ready()?;
        Ok(id)
    }

    /// An id that knows its way.
    pub(crate) fn resolved(&self, space: PortSpace, to: SocketAddr) -> Result<CmId, Failure> {
        let id = self.id(space)?;
        id.resolve_addr(Some(SocketAddr::new(self.options.ours, 0)), to)?;
        self.expect("ADDR_RESOLVED")?;
        id.resolve_route()?;
        self.expect("ROUTE_RESOLVED")?;
        Ok(id)
    }

    /// Connects all of them and gives their events: one, which asks again while nobody listens there, then the others at
    /// once.
    pub(crate) fn connect(&self, ids: &[CmId], params: &ConnParams<'_>) -> Result<Vec<CmEvent>, Failure> {
        let Some((first, others)) = ids.split_first() else { return Ok(Vec::new()) };
        let mut established = vec![self.connect_first(first, params)?];
        for id in others {
            id.connect(params)?;
        }
        for _ in others {
            established.push(self.expect("ESTABLISHED")?);
        }
        Ok(established)
    }

    fn connect_first(&self, id: &CmId, params: &ConnParams<'_>) -> Result<CmEvent, Failure> {
        let mut tries = 0;
        loop {
            id.connect(params)?;
            let event = self.next()?;
            let nobody = match &event.kind {
                EventKind::Established(_) => return Ok(event),
                EventKind::Rejected(reason) => *reason == RejectReason::INVALID_SERVICE_ID,
                EventKind::NoService(status) => *status == SidrStatus::UNSUPPORTED,
                _ => false,
            };
            tries += 1;
            if !nobody || tries == TRIES {
                return Err(tell(&event));
            }
            sleep(PAUSE);
        }
    }
}

/// The next completion, a success.
pub(crate) fn completion(cq: &Cq) -> Result<Completion, Failure> {
    let end = Instant::now() + PATIENCE;
    // Waits asleep: the guests need the processors.
    while Instant::now() < end {
        if let Some(wc) = cq.poll_within(Duration::from_micros(100))? {
            return if wc.status == WcStatus::Success {
                Ok(wc)
            } else {
                Err(format!("a completion is {wc:?}").into())
            };
        }
        sleep(Duration::from_micros(500));
    }
    Err("no completion".into())
}

/// Compares bytes.
pub(crate) fn same(what: &str, have: &[u8], want: &[u8]) -> Result<(), Failure> {
    if have == want {
        return Ok(());
    }
    let place = have.iter().zip(want).take_while(|(have, want)| have == want).count();
    let (have_len, want_len) = (have.len(), want.len());
    Err(format!("{what}: {have_len} bytes differ from the {want_len} expected from byte {place} on").into())
}

/// A part of a region.
pub(crate) fn part(memory: &Mr, offset: usize, len: usize) -> Sge {
    memory.sge(offset, u32::try_from(len).unwrap_or(u32::MAX))
}
