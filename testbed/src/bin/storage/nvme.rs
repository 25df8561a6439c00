//! `storage nvme`: an initiator that copies blocks to and from files, and a target.

use crate::{Failure, Peer, Place, ready};
use clap::{Args, Subcommand};
use rxe_cm::Manager;
use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};
use testbed::storage::nvme::{Controller, Host, IoQueue, NamespaceInfo, Target, TargetOptions};

#[derive(Subcommand)]
pub(crate) enum Action {
    /// List the subsystems of a target.
    Discover {
        #[command(flatten)]
        peer: Peer,
        /// The target's port.
        #[arg(long, default_value_t = 4420)]
        port: u16,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print what a controller and its namespaces say of themselves.
    Identify {
        #[command(flatten)]
        subsystem: Subsystem,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Write a file to the first namespace.
    Write {
        #[command(flatten)]
        subsystem: Subsystem,
        /// The file; its length is a multiple of the block's.
        file: PathBuf,
        #[command(flatten)]
        pieces: Pieces,
    },
    /// Read from the first namespace into a file.
    Read {
        #[command(flatten)]
        subsystem: Subsystem,
        /// The file.
        file: PathBuf,
        /// Bytes to read.
        #[arg(long)]
        len: usize,
        #[command(flatten)]
        pieces: Pieces,
    },
    /// Measure reads.
    Bench {
        #[command(flatten)]
        subsystem: Subsystem,
        /// Bytes of a read.
        #[arg(long, default_value_t = 131_072)]
        size: usize,
        /// Reads at a time.
        #[arg(long, default_value_t = 8)]
        depth: u16,
        /// Reads in all.
        #[arg(long, default_value_t = 2000)]
        count: u64,
    },
    /// Serve a namespace in memory until killed.
    Serve {
        #[command(flatten)]
        place: Place,
        /// The port.
        #[arg(long, default_value_t = 4420)]
        port: u16,
        /// The subsystem's name.
        #[arg(long, default_value = "nqn.2014-08.org.nvmexpress:rxe-testbed")]
        nqn: String,
        /// MiB of the namespace, 1 to 4096.
        #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
        size: u32,
    },
}

#[derive(Args)]
pub(crate) struct Subsystem {
    #[command(flatten)]
    peer: Peer,
    /// The target's port.
    #[arg(long, default_value_t = 4420)]
    port: u16,
    /// The subsystem's name.
    #[arg(long)]
    nqn: String,
}

/// How to cut data.
#[derive(Args)]
pub(crate) struct Pieces {
    /// The first block.
    #[arg(long, default_value_t = 0)]
    block: u64,
    /// Bytes of a command's data; the most that both ends can if there is none.
    #[arg(long)]
    piece: Option<usize>,
}

fn host(manager: &Manager, peer: &Peer) -> Host {
    Host {
        manager: manager.clone(),
        from: peer.from,
        nqn: "nqn.2014-08.org.nvmexpress:rxe-testbed-host".to_owned(),
        patience: peer.patience(),
    }
}

impl Subsystem {
    fn connect(&self, manager: &Manager) -> Result<Controller, Failure> {
        let to = SocketAddr::new(self.peer.to, self.port);
        Ok(Controller::connect(&host(manager, &self.peer), to, &self.nqn)?)
    }

    /// An I/O queue for the first namespace. The controller ends with its admin queue, so that has to be kept.
    fn queue(&self, manager: &Manager, depth: u16) -> Result<(Controller, NamespaceInfo, IoQueue), Failure> {
        let mut controller = self.connect(manager)?;
        let first = controller.namespaces()?.first().copied().ok_or("the controller has no namespace")?;
        let namespace = controller.namespace(first)?;
        let queue = controller.open_queue(1, depth, namespace)?;
        Ok((controller, namespace, queue))
    }
}

pub(crate) fn run(manager: &Manager, action: Action) -> Result<(), Failure> {
    match action {
        Action::Discover { peer, port, json } => discover(manager, &peer, port, json),
        Action::Identify { subsystem, json } => identify(manager, &subsystem, json),
        Action::Write { subsystem, file, pieces } => {
            let data = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            let (_controller, namespace, mut queue) = subsystem.queue(manager, 2)?;
            let piece = pieces.piece.unwrap_or_else(|| queue.most_data());
            let mut block = pieces.block;
            for part in data.chunks(piece.max(1)) {
                queue.write(block, part)?;
                block += (part.len() / namespace.block as usize) as u64;
            }
            queue.flush()?;
            println!("wrote {} bytes", data.len());
            Ok(())
        }
        Action::Read { subsystem, file, len, pieces } => {
            let (_controller, namespace, mut queue) = subsystem.queue(manager, 2)?;
            let piece = pieces.piece.unwrap_or_else(|| queue.most_data()).max(1);
            let (mut data, mut block) = (Vec::new(), pieces.block);
            while data.len() < len {
                let part = queue.read(block, piece.min(len - data.len()))?;
                block += (part.len() / namespace.block as usize) as u64;
                data.extend(part);
            }
            fs::write(&file, &data).map_err(|error| format!("{}: {error}", file.display()))?;
            println!("read {} bytes", data.len());
            Ok(())
        }
        Action::Bench { subsystem, size, depth, count } => {
            let (_controller, _, mut queue) = subsystem.queue(manager, depth)?;
            // The first ones pay for what comes once.
            queue.read_many(size, u64::from(depth) * 2)?;
            let start = Instant::now();
            queue.read_many(size, count)?;
            let rate = size as f64 * count as f64 / start.elapsed().as_secs_f64() / 1e6;
            println!("{rate:.1} MB/s, {count} reads of {size} bytes, {depth} at a time");
            Ok(())
        }
        Action::Serve { place, port, nqn, size } => {
            let options = TargetOptions {
                subsystem: nqn,
                size: (size as usize) << 20,
                patience: Duration::from_secs(place.patience),
            };
            let target = Target::new(manager, SocketAddr::new(place.at, port), options)?;
            ready()?;
            Ok(target.serve(&AtomicBool::new(false), |error| eprintln!("a queue has ended: {error}"))?)
        }
    }
}

fn discover(manager: &Manager, peer: &Peer, port: u16, json: bool) -> Result<(), Failure> {
    let found = Controller::discover(&host(manager, peer), SocketAddr::new(peer.to, port))?;
    if json {
        let entry = |entry: &testbed::storage::nvme::DiscoveryEntry| {
            serde_json::json!({
                "transport": entry.transport, "family": entry.family, "address": entry.address,
                "service": entry.service, "subsystem": entry.subsystem,
            })
        };
        println!("{}", serde_json::Value::from(found.iter().map(entry).collect::<Vec<_>>()));
        return Ok(());
    }
    for entry in found {
        println!("{} at {} port {}", entry.subsystem, entry.address, entry.service);
    }
    Ok(())
}

fn identify(manager: &Manager, subsystem: &Subsystem, json: bool) -> Result<(), Failure> {
    let mut controller = subsystem.connect(manager)?;
    let info = controller.identify()?;
    let ids = controller.namespaces()?;
    let namespaces: Vec<NamespaceInfo> =
        ids.into_iter().map(|id| controller.namespace(id)).collect::<Result<_, _>>()?;
    if json {
        let namespace = |namespace: &NamespaceInfo| serde_json::json!({"id": namespace.id, "blocks": namespace.blocks, "block": namespace.block});
        let namespaces: Vec<_> = namespaces.iter().map(namespace).collect();
        println!(
            "{}",
            serde_json::json!({
                "controller": info.id, "model": info.model, "serial": info.serial,
                "most_data": info.most_data, "in_capsule": info.in_capsule, "namespaces": namespaces,
            })
        );
        return Ok(());
    }
    println!("controller {}: {} {}", info.id, info.model, info.serial);
    for namespace in namespaces {
        println!("namespace {}: {} blocks of {} bytes", namespace.id, namespace.blocks, namespace.block);
    }
    Ok(())
}
