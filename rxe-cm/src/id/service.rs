//! Services that are named by a service ID instead of a port, as in ib_cm. IPoIB's connected mode has such services.

use super::CmId;
use crate::{
    agent::{Exchange, Place, Taken},
    error::CmError,
    proto::ServiceId,
};
use std::net::SocketAddr;

impl CmId {
    /// Makes a new id listen to this service, or connect to it (ib_cm_listen and ib_send_cm_req in Linux). The ports of its
    /// addresses have no meaning then. A request is for the address at which it arrives. There is no IP CM header, so
    /// private data has 92 bytes with connect. [`Self::bind`] takes no port, and [`Self::listen`] takes the service.
    ///
    /// # Errors
    /// [`CmError::State`] unless the id is new; [`CmError::Argument`] for a service that is a port of rdma_cm, and for
    /// datagram services.
    pub fn name_service(&self, service: ServiceId) -> Result<(), CmError> {
        if let Some((space, port)) = service.port() {
            let text =
                format!("{service} is port {port} of rdma_cm's port space {space:?}: bind or resolve that");
            return Err(CmError::Argument(text));
        }
        self.with(|id| match (id.local, id.peer, id.exchange) {
            _ if id.qp_type == rxe_verbs::QpType::Ud => {
                Err(CmError::Argument("datagram services are found by ports alone".to_owned()))
            }
            (None, None, Exchange::None) => {
                id.named = Some(service);
                Ok(())
            }
            _ => Err(id.refuse("name a service")),
        })
    }

    /// Takes the service of the id, if it has one. Its address is bound already.
    pub(super) fn claim_named(&self) -> Result<(), CmError> {
        let (named, local, reuse) = self.with(|id| Ok((id.named, id.local, id.options.reuse_addr)))?;
        let (Some(service), Some(local)) = (named, local) else { return Ok(()) };
        let address = SocketAddr::new(local.ip(), 0);
        match self.claim(service, Place::of(local.ip(), false), reuse)? {
            Ok(()) => Ok(()),
            Err(Taken::Same | Taken::Wide) => Err(CmError::Argument(format!(
                "somebody on this host listens to service {service} on {}",
                address.ip()
            ))),
        }
    }
}
