//! The messages, each as a table of its fields (IBTA vol. 1, 12.6 and 12.11).

mod connect;
mod path;
mod reject;
mod release;
mod req;
mod sidr;

pub use connect::{Mra, Rep, Rtu};
pub use path::{Apr, Lap, Path};
pub use reject::Rej;
pub use release::{Drep, Dreq};
pub use req::Req;
pub use sidr::{SidrRep, SidrReq};
