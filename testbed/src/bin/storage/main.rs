//! Storage over RDMA by hand: small initiators, clients, targets and servers, natively on rxe-cm and rxe-verbs. They are the
//! ends of `scripts/interop --storage` that are not a kernel's; `storage --help` lists what they do.

mod nfs;
mod nvme;

use clap::{Args, Parser, Subcommand};
use rxe_cm::Manager;
use std::{
    error::Error,
    io::{Write, stdout},
    net::IpAddr,
    process::ExitCode,
    time::Duration,
};

type Failure = Box<dyn Error + Send + Sync>;

/// Storage over RDMA: NVMe over Fabrics and NFS, both ends.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    protocol: Protocol,
}

#[derive(Subcommand)]
enum Protocol {
    /// NVMe over Fabrics (RDMA transport).
    Nvme {
        #[command(subcommand)]
        action: nvme::Action,
    },
    /// NFS 4.1 (RPC over RDMA).
    Nfs {
        #[command(subcommand)]
        action: nfs::Action,
    },
}

/// Who connects, and to whom.
#[derive(Args)]
struct Peer {
    /// The other end's address.
    to: IpAddr,
    /// Our address; else the one from which the system would go there.
    #[arg(long)]
    from: Option<IpAddr>,
    /// Seconds that the other end may take for anything.
    #[arg(long, default_value_t = 30)]
    patience: u64,
}

impl Peer {
    const fn patience(&self) -> Duration {
        Duration::from_secs(self.patience)
    }
}

/// A place to serve at.
#[derive(Args)]
struct Place {
    /// Our address.
    at: IpAddr,
    /// Seconds that the other end may take for anything.
    #[arg(long, default_value_t = 30)]
    patience: u64,
}

/// Says that somebody may come now.
fn ready() -> Result<(), Failure> {
    println!("listening");
    Ok(stdout().flush()?)
}

fn run() -> Result<(), Failure> {
    let cli = Cli::parse();
    let manager = Manager::open()?;
    match cli.protocol {
        Protocol::Nvme { action } => nvme::run(&manager, action),
        Protocol::Nfs { action } => nfs::run(&manager, action),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("storage: {error}");
            ExitCode::FAILURE
        }
    }
}
