//! `rxe perf`.
use crate::Result;
/// Measure
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}
pub(crate) fn run(_: &Args) -> Result<()> { Ok(()) }
