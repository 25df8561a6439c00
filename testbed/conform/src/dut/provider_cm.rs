//! The connection manager of our provider, for a device under test.

use super::{Answer, Cm, CmEvent, Handle, Refusal, Space, serve::hex};
use rxe_cm::{CmError, CmId, ConnParams, EventChannel, EventKind, ForeignQp, Manager, proto::PortSpace};
use rxe_verbs::{Context, Qpn};
use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// The first handle: above the handles of verbs objects, and below those of address handles.
const FIRST: Handle = 1 << 32;
/// How long an address may take to be resolved.
const RESOLVE: Duration = Duration::from_secs(5);

#[derive(Debug)]
enum Object {
    Channel(EventChannel),
    Id(CmId, EventChannel),
}

/// The connection manager's objects that a case made.
#[derive(Debug)]
pub(super) struct Side {
    manager: Manager,
    objects: BTreeMap<Handle, Object>,
    next: Handle,
}

fn refused(error: &CmError) -> Refusal {
    Refusal::Refused { what: error.to_string(), errno: Some(error.errno()) }
}

impl Side {
    pub(super) fn on(context: &Context) -> Answer<Self> {
        let manager = Manager::on(context).map_err(|error| refused(&error))?;
        Ok(Self { manager, objects: BTreeMap::new(), next: FIRST })
    }

    /// Destroys all, newest first.
    pub(super) fn reset(&mut self) {
        while self.objects.pop_last().is_some() {}
    }

    pub(super) fn has(&self, handle: Handle) -> bool {
        self.objects.contains_key(&handle)
    }

    pub(super) fn close(&mut self, handle: Handle) {
        self.objects.remove(&handle);
    }

    fn add(&mut self, object: Object) -> Handle {
        self.next += 1;
        self.objects.insert(self.next, object);
        self.next
    }

    fn find_channel(&self, handle: Handle) -> Answer<EventChannel> {
        match self.objects.get(&handle) {
            Some(Object::Channel(channel)) => Ok(channel.clone()),
            _ => Err(Refusal::words("no such event channel")),
        }
    }

    fn find(&self, handle: Handle) -> Answer<(CmId, EventChannel)> {
        match self.objects.get(&handle) {
            Some(Object::Id(id, channel)) => Ok((id.clone(), channel.clone())),
            _ => Err(Refusal::words("no such id")),
        }
    }

    fn act(&self, id: Handle, act: impl FnOnce(&CmId) -> Result<(), CmError>) -> Answer<()> {
        act(&self.find(id)?.0).map_err(|error| refused(&error))
    }

    fn known(&self, id: &CmId) -> Option<Handle> {
        self.objects.iter().find_map(|(handle, object)| match object {
            Object::Id(known, _) if known == id => Some(*handle),
            _ => None,
        })
    }
}

/// Parameters for an id whose queue pair is known by its number only.
fn params(qpn: u32, private: &[u8]) -> ConnParams<'_> {
    let qp = Some(ForeignQp { qpn: Qpn::new(qpn), srq: false });
    ConnParams {
        private_data: private,
        responder_resources: Some(1),
        initiator_depth: Some(1),
        qp,
        ..ConnParams::default()
    }
}

impl Cm for Side {
    fn channel(&mut self) -> Answer<Handle> {
        let channel = EventChannel::new().map_err(|error| refused(&error))?;
        Ok(self.add(Object::Channel(channel)))
    }

    fn id(&mut self, channel: Handle, space: Space) -> Answer<Handle> {
        let channel = self.find_channel(channel)?;
        let space = match space {
            Space::Tcp => PortSpace::Tcp,
            Space::Udp => PortSpace::Udp,
        };
        let id = self.manager.create_id(&channel, space).map_err(|error| refused(&error))?;
        Ok(self.add(Object::Id(id, channel)))
    }

    fn listen(&mut self, id: Handle, address: IpAddr, port: u16) -> Answer<()> {
        self.act(id, |id| id.bind(SocketAddr::new(address, port)).and_then(|()| id.listen(0)))
    }

    fn resolve(&mut self, id: Handle, from: IpAddr, to: IpAddr, port: u16) -> Answer<()> {
        let (id, channel) = self.find(id)?;
        let wait = |wanted: &str| match channel.get_event(Some(RESOLVE)) {
            Ok(event) if event.kind.name() == wanted => Ok(()),
            Ok(event) => Err(Refusal::words(format!("expected {wanted}: {}", event.kind.words()))),
            Err(error) => Err(refused(&error)),
        };
        let (from, to) = (SocketAddr::new(from, 0), SocketAddr::new(to, port));
        id.resolve_addr(Some(from), to).map_err(|error| refused(&error))?;
        wait("ADDR_RESOLVED")?;
        id.resolve_route().map_err(|error| refused(&error))?;
        wait("ROUTE_RESOLVED")
    }

    fn connect(&mut self, id: Handle, qpn: u32, private: &[u8]) -> Answer<()> {
        self.act(id, |id| id.connect(&params(qpn, private)))
    }

    fn accept(&mut self, id: Handle, qpn: u32, private: &[u8]) -> Answer<()> {
        self.act(id, |id| id.accept(&params(qpn, private)))
    }

    fn reject(&mut self, id: Handle, private: &[u8]) -> Answer<()> {
        self.act(id, |id| id.reject(private))
    }

    fn establish(&mut self, id: Handle) -> Answer<()> {
        self.act(id, CmId::establish)
    }

    fn disconnect(&mut self, id: Handle) -> Answer<()> {
        self.act(id, CmId::disconnect)
    }

    fn event(&mut self, channel: Handle) -> Answer<Option<CmEvent>> {
        let channel = self.find_channel(channel)?;
        let Some(event) = channel.try_get_event() else { return Ok(None) };
        let id = if matches!(event.kind, EventKind::ConnectRequest(_)) {
            Some(self.add(Object::Id(event.id.clone(), channel)))
        } else {
            self.known(&event.id)
        };
        let name = event.kind.name().to_owned();
        Ok(Some(CmEvent { event: name, status: event.status(), private: hex(&event.private_data), id }))
    }
}
