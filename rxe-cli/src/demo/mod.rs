//! `rxe demo`.
use crate::Result;
/// Demo
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {}
pub(crate) fn run(_: &Args) -> Result<()> { Ok(()) }
pub(crate) fn run_peer(_: &PeerArgs) -> Result<()> { Ok(()) }
