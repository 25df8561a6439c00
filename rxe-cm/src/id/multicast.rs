//! Multicast groups of datagram ids.

use super::{CmId, UDP_QKEY};
use crate::{
    error::CmError,
    event::{DatagramTerms, EventKind},
    route::gid_index,
};
use rxe_verbs::{Gid, Qpn};
use std::{net::IpAddr, sync::Arc};

impl CmId {
    /// Joins a group with the id's queue pair (rdma_join_multicast). On RoCE the group's MGID is its address in IPv6 form.
    /// [`EventKind::MulticastJoin`] tells where to send, [`EventKind::MulticastError`] why it failed. A queue pair that the
    /// program manages has to be attached by the program.
    ///
    /// # Errors
    /// [`CmError::State`] if the id's device is not known, [`CmError::Argument`] if it is no group.
    pub fn join_multicast(&self, group: IpAddr) -> Result<(), CmError> {
        if !group.is_multicast() {
            return Err(CmError::Argument(format!("{group} is no multicast group")));
        }
        let (context, local, qp, qkey) = self.with(|id| match (&id.context, id.local) {
            (Some(context), Some(local)) => Ok((context.clone(), local, id.qp.clone(), id.qkey)),
            _ => Err(id.refuse("join a group")),
        })?;
        let index = gid_index(&context, local.ip()).ok_or_else(|| CmError::NotLocal(local.ip()))?;
        let av = context.address_vector(index, Gid::from(group));
        let av = av.map_err(|error| CmError::Argument(error.to_string()))?;
        let joined = qp.as_ref().map_or(Ok(()), |qp| qp.attach_multicast(Gid::from(group)));
        self.handle().agent.act(|turn| {
            let kind = match joined {
                Ok(()) => {
                    if let (Some(id), true) = (turn.state.ids.get_mut(self.key()), qp.is_some()) {
                        id.groups.push(group);
                    }
                    let qkey = qkey.unwrap_or(UDP_QKEY);
                    EventKind::MulticastJoin(DatagramTerms { av, qpn: Qpn::MULTICAST, qkey })
                }
                Err(error) => EventKind::MulticastError(error.into()),
            };
            turn.emit(self.key(), kind, &[]);
            Ok(())
        })
    }

    /// Leaves a group (rdma_leave_multicast).
    ///
    /// # Errors
    /// [`CmError::Argument`] if it is not joined.
    pub fn leave_multicast(&self, group: IpAddr) -> Result<(), CmError> {
        let qp = self.with(|id| {
            let place = id.groups.iter().position(|joined| *joined == group);
            let place = place.ok_or_else(|| CmError::Argument(format!("{group} is not joined")))?;
            id.groups.swap_remove(place);
            Ok(id.qp.clone())
        })?;
        self.forget_join(group);
        if let Some(qp) = qp {
            qp.detach_multicast(Gid::from(group))?;
        }
        Ok(())
    }

    /// Drops the event of the newest join of a group, if it was not fetched. [`Self::leave_multicast`] does this, too; programs that
    /// manage the queue pair do it when they leave a group.
    pub fn forget_join(&self, group: IpAddr) {
        if let Some(queue) = self.read(|id| Some(Arc::clone(&id.queue))) {
            queue.forget_last(|event| {
                let this = |terms: &DatagramTerms| terms.av.dst == group && event.id.is_same(self);
                matches!(&event.kind, EventKind::MulticastJoin(terms) if this(terms))
            });
        }
    }
}
