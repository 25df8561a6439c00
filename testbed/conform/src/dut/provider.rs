//! Our provider as a device: the verbs library over the host's UDP sockets. It runs in a process of its own
//! ([`super::serve`]), so that it cannot affect the process of the suite.

use super::{
    About, Access, Answer, Change, Cm, Dut, Feature, Handle, Mr, Qp, QpSpec, RecvWr, Refusal, SendWr, State,
    Wc,
    convert::{CAPS, STATES, change_of, dest, event_name, flags, in_words, operation, rights, service, sges},
    provider_cm::Side,
};
use rxe_verbs::{AsyncEvent, BindWindow, Completion, Context, ContextOptions, QpInit, SendOp, WindowType};
use std::{collections::BTreeMap, net::IpAddr};

/// Number of completions taken with one call.
const AT_ONCE: usize = 64;

/// An object of the verbs. Dropping it destroys it.
#[derive(Debug)]
enum Object {
    Pd(rxe_verbs::Pd),
    Mr(rxe_verbs::Mr),
    Mw(rxe_verbs::Mw, rxe_verbs::Key),
    Cq(rxe_verbs::Cq),
    Srq(rxe_verbs::Srq),
    Qp(rxe_verbs::Qp),
}

/// The provider.
#[derive(Debug)]
pub struct Provider {
    context: Context,
    objects: BTreeMap<Handle, Object>,
    next: Handle,
    about: About,
    /// Its connection manager, created at the first use: it occupies queue pair 1.
    cm: Option<Side>,
}

macro_rules! find {
    ($self:ident, $handle:expr, $kind:ident) => {
        match $self.objects.get(&$handle) {
            Some(Object::$kind(found, ..)) => Ok(found),
            _ => Err(Refusal::words(concat!("no such ", stringify!($kind)))),
        }
    };
}

impl Provider {
    /// Opens only the device with this address of this host.
    ///
    /// # Errors
    /// The reason why it cannot be opened.
    pub fn open(address: IpAddr) -> Result<Self, rxe_verbs::OpenError> {
        let context = ContextOptions::new().alone().open_address(address)?;
        let about = About {
            name: "udp".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            address,
            features: Feature::VERBS.into(),
            path_mtu: Some(context.port().active_mtu.bytes()),
        };
        Ok(Self { context, objects: BTreeMap::new(), next: 1, about, cm: None })
    }

    fn add(&mut self, object: Object) -> Handle {
        let handle = self.next;
        self.next += 1;
        self.objects.insert(handle, object);
        handle
    }
}

fn refused(error: impl std::fmt::Display, errno: i32) -> Refusal {
    Refusal::Refused { what: error.to_string(), errno: Some(errno) }
}

impl Dut for Provider {
    fn about(&self) -> &About {
        &self.about
    }

    fn reset(&mut self) -> Answer<()> {
        if let Some(cm) = &mut self.cm {
            cm.reset();
        }
        // Newest first, because a later object may use an earlier one.
        while self.objects.pop_last().is_some() {}
        while self.context.try_get_async_event().is_some() {}
        Ok(())
    }

    fn pd(&mut self) -> Answer<Handle> {
        let pd = self.context.alloc_pd().map_err(|error| refused(&error, error.errno()))?;
        Ok(self.add(Object::Pd(pd)))
    }

    fn mr(&mut self, pd: Handle, length: usize, access: &[Access]) -> Answer<Mr> {
        let region = find!(self, pd, Pd)?.alloc_mr(length, rights(access));
        let region = region.map_err(|error| refused(&error, error.errno()))?;
        let (addr, lkey, rkey) = (region.addr(), region.lkey().0, region.rkey().0);
        Ok(Mr { handle: self.add(Object::Mr(region)), addr, length, lkey, rkey })
    }

    fn mem_write(&mut self, mr: &Mr, offset: usize, data: &[u8]) -> Answer<()> {
        find!(self, mr.handle, Mr)?.write_at(offset, data).map_err(Refusal::words)
    }

    fn mem_read(&mut self, mr: &Mr, offset: usize, length: usize) -> Answer<Vec<u8>> {
        find!(self, mr.handle, Mr)?.read_vec(offset, length).map_err(Refusal::words)
    }

    fn cq(&mut self, cqe: u32) -> Answer<Handle> {
        let cq = self.context.create_cq(cqe, None).map_err(|error| refused(&error, error.errno()))?;
        Ok(self.add(Object::Cq(cq)))
    }

    fn srq(&mut self, pd: Handle, max_wr: u32) -> Answer<Handle> {
        let srq =
            find!(self, pd, Pd)?.create_srq(max_wr, 4).map_err(|error| refused(&error, error.errno()))?;
        Ok(self.add(Object::Srq(srq)))
    }

    fn srq_limit(&mut self, srq: Handle, limit: u32) -> Answer<()> {
        find!(self, srq, Srq)?.modify(None, Some(limit)).map_err(Refusal::words)
    }

    fn qp(&mut self, spec: &QpSpec) -> Answer<Qp> {
        if spec.service == super::Service::XrcTarget {
            return Err(Refusal::Lacks("XRC targets".into()));
        }
        let srq = spec.srq.map(|srq| find!(self, srq, Srq)).transpose()?;
        let init = QpInit {
            qp_type: service(spec.service),
            send_cq: find!(self, spec.send_cq, Cq)?,
            recv_cq: find!(self, spec.recv_cq, Cq)?,
            srq,
            caps: CAPS,
            signal_all: spec.sig_all,
        };
        let qp =
            find!(self, spec.pd, Pd)?.create_qp(&init).map_err(|error| refused(&error, error.errno()))?;
        let qpn = qp.qpn().value();
        Ok(Qp { handle: self.add(Object::Qp(qp)), qpn, srq_number: 0 })
    }

    fn modify(&mut self, qp: Handle, change: &Change) -> Answer<()> {
        find!(self, qp, Qp)?.modify(&change_of(change)).map_err(|error| refused(&error, error.errno()))
    }

    fn state(&mut self, qp: Handle) -> Answer<State> {
        let state = find!(self, qp, Qp)?.state();
        Ok(STATES.iter().find(|pair| pair.1 == state).map_or(State::Reset, |pair| pair.0))
    }

    fn post_recv(&mut self, qp: Handle, wr: &RecvWr) -> Answer<()> {
        let sges = sges(&wr.sge);
        let wr = rxe_verbs::RecvWr { wr_id: wr.wr_id, sges: &sges };
        find!(self, qp, Qp)?.post_recv(&wr).map_err(Refusal::words)
    }

    fn post_srq_recv(&mut self, srq: Handle, wr: &RecvWr) -> Answer<()> {
        let sges = sges(&wr.sge);
        let wr = rxe_verbs::RecvWr { wr_id: wr.wr_id, sges: &sges };
        find!(self, srq, Srq)?.post_recv(&wr).map_err(Refusal::words)
    }

    fn post_send(&mut self, qp: Handle, wr: &SendWr) -> Answer<()> {
        let sges = sges(&wr.sge);
        let mut made = rxe_verbs::SendWr::new(wr.wr_id, operation(&wr.op), &sges);
        made.flags = flags(&wr.flags);
        made.dest = wr.dest.as_ref().map(dest);
        find!(self, qp, Qp)?.post_send(&made).map_err(Refusal::words)
    }

    fn poll(&mut self, cq: Handle) -> Answer<Vec<Wc>> {
        let mut found = vec![Completion::default(); AT_ONCE];
        let count = find!(self, cq, Cq)?.poll(&mut found).map_err(Refusal::words)?;
        Ok(found[..count].iter().map(in_words).collect())
    }

    fn async_event(&mut self) -> Answer<Option<String>> {
        Ok(self.context.try_get_async_event().and_then(|event| match event {
            AsyncEvent::Queue(event) | AsyncEvent::Heard { event, .. } => Some(event_name(event).to_owned()),
            AsyncEvent::CqError(_) => Some("CQ_ERR".to_owned()),
            // An event of the host, not of a case.
            _ => None,
        }))
    }

    fn mw(&mut self, pd: Handle, kind: u8) -> Answer<(Handle, u32)> {
        let kind = if kind == 1 { WindowType::One } else { WindowType::Two };
        let window = find!(self, pd, Pd)?.alloc_mw(kind).map_err(|error| refused(&error, error.errno()))?;
        let key = window.rkey();
        Ok((self.add(Object::Mw(window, key)), key.0))
    }

    fn bind_mw(
        &mut self,
        qp: Handle,
        mw: Handle,
        mr: &Mr,
        range: (usize, usize),
        access: &[Access],
    ) -> Answer<u32> {
        let Some(Object::Mw(window, key)) = self.objects.get(&mw) else {
            return Err(Refusal::words("no such window"));
        };
        let region = find!(self, mr.handle, Mr)?;
        let (addr, len, access) = (mr.addr + range.0 as u64, range.1 as u64, rights(access));
        let queue = find!(self, qp, Qp)?;
        let new = if window.kind() == WindowType::One {
            let flags = rxe_verbs::SendFlags::SIGNALED;
            let bind = rxe_verbs::MwBind { wr_id: 0, flags, region, addr, len, access };
            queue.bind_mw(window, &bind).map_err(Refusal::words)?
        } else {
            let new_rkey = key.rotated();
            let bind = BindWindow { window: *key, new_rkey, region: region.lkey(), addr, len, access };
            let wr = rxe_verbs::SendWr::new(0, SendOp::BindWindow(bind), &[]);
            queue.post_send(&wr).map_err(Refusal::words)?;
            new_rkey
        };
        if let Some(Object::Mw(_, key)) = self.objects.get_mut(&mw) {
            *key = new;
        }
        Ok(new.0)
    }

    fn attach(&mut self, qp: Handle, group: IpAddr) -> Answer<()> {
        find!(self, qp, Qp)?.attach_multicast(group.into()).map_err(|error| refused(&error, error.errno()))
    }

    fn detach(&mut self, qp: Handle, group: IpAddr) -> Answer<()> {
        find!(self, qp, Qp)?.detach_multicast(group.into()).map_err(|error| refused(&error, error.errno()))
    }

    fn cm(&mut self) -> Answer<&mut dyn Cm> {
        let side = match self.cm.take() {
            Some(side) => side,
            None => Side::on(&self.context)?,
        };
        Ok(self.cm.insert(side))
    }

    fn close(&mut self, handle: Handle) -> Answer<()> {
        if let Some(cm) = self.cm.as_mut().filter(|cm| cm.has(handle)) {
            cm.close(handle);
            return Ok(());
        }
        match self.objects.remove(&handle) {
            Some(Object::Mr(region)) => {
                if let Err((region, error)) = region.deregister() {
                    self.objects.insert(handle, Object::Mr(region));
                    return Err(refused(&error, error.errno()));
                }
                Ok(())
            }
            Some(_) => Ok(()),
            None => Err(Refusal::words("no such object")),
        }
    }
}
