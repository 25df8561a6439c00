//! The rules of `qos-ulps`: upper layer protocols by their names.
//!
//! | rule | is about |
//! |---|---|
//! | `default : SL` | what no other rule is about |
//! | `sdp[, port-num 10000-20000] : SL` | service IDs 0x10000 + port |
//! | `rds[, port-num ...] : SL` | 0x1060000 + port of rdma_cm; without one 0x48ca |
//! | `iser[, port-num ...] : SL` | the same; without one 3260 |
//! | `srp, target-port-guid ... : SL` | paths to these ports |
//! | `ipoib[, pkey ...] : SL` | partitions; without one the default partition |
//! | `any, service-id \| pkey \| target-port-guid \| source-port-guid \| source-target-port-guid ... : SL` | |

use super::{cursor::Cursor, parse::pkeys};
use crate::error::FileError;

/// First service ID of SDP.
const SDP: u64 = 0x1_0000;
/// First service ID of rdma_cm's TCP port space, in which RDS and iSER are.
const TCP: u64 = 0x106_0000;
const RDS_PORT: u64 = 0x48ca;
const ISER_PORT: u64 = 3260;

/// The end of a path to which a GUID refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    Source,
    Target,
    Both,
}

/// The condition of a rule.
#[derive(Debug)]
pub(super) struct Ulp {
    pub(super) line: usize,
    pub(super) services: Vec<(u64, u64)>,
    pub(super) pkeys: Vec<(u64, u64)>,
    pub(super) guids: Option<(Ends, Vec<(u64, u64)>)>,
}

/// A rule and its service level. The default has only the level.
pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<(Option<Ulp>, u8), FileError> {
    let mut ulp = Ulp { line: cursor.line(), services: Vec::new(), pkeys: Vec::new(), guids: None };
    let said = cursor.peek();
    let name = said.to_ascii_lowercase();
    let first = match name.as_str() {
        "default" | "ipoib" | "any" | "srp" => 0,
        "sdp" => SDP,
        "rds" | "iser" => TCP,
        _ => {
            let reason =
                "a protocol is expected: default, sdp, rds, iser, ipoib, srp or any, or end-qos-ulps";
            return Err(cursor.error(reason));
        }
    };
    cursor.word();
    if name != "default" && cursor.takes(',') {
        let key = cursor.peek();
        match (name.as_str(), key) {
            ("any", "service-id") => {
                cursor.word();
                ulp.services = cursor.ranges(u64::MAX)?;
            }
            ("any" | "ipoib", "pkey") => {
                cursor.word();
                ulp.pkeys = pkeys(cursor)?;
            }
            ("any" | "srp", "target-port-guid") | ("any", "source-port-guid" | "source-target-port-guid") => {
                cursor.word();
                let ends = match key {
                    "target-port-guid" => Ends::Target,
                    "source-port-guid" => Ends::Source,
                    _ => Ends::Both,
                };
                ulp.guids = Some((ends, cursor.ranges(u64::MAX)?));
            }
            ("sdp" | "rds" | "iser", "port-num") => {
                cursor.word();
                let ports = cursor.ranges(0xffff)?;
                ulp.services = ports.into_iter().map(|(a, b)| (first + a, first + b)).collect();
            }
            _ => return Err(cursor.error(format!("{said} has no such key"))),
        }
    } else {
        match name.as_str() {
            "sdp" => ulp.services = vec![(SDP, SDP + 0xffff)],
            "rds" => ulp.services = vec![(TCP + RDS_PORT, TCP + RDS_PORT)],
            "iser" => ulp.services = vec![(TCP + ISER_PORT, TCP + ISER_PORT)],
            "ipoib" => ulp.pkeys = vec![(0x7fff, 0x7fff)],
            "default" => {}
            _ => return Err(cursor.error(format!("a comma and what is meant are expected after {said}"))),
        }
    }
    cursor.colon("the rule")?;
    let sl = cursor.number(15)? as u8;
    Ok(((name != "default").then_some(ulp), sl))
}
