//! `storage nfs`: a client that copies files, and a server of a folder.

use crate::{Failure, Peer, Place, ready};
use clap::{Args, Subcommand};
use rxe_cm::Manager;
use std::{fs, net::SocketAddr, path::PathBuf, sync::atomic::AtomicBool, time::Duration};
use testbed::storage::nfs::{Client, Mount, Server, ServerOptions};

/// Bytes of a file that fit into memory: as many as our own server has of all its files.
const MOST: usize = 1 << 30;

#[derive(Subcommand)]
pub(crate) enum Action {
    /// List a folder of the server's.
    List {
        #[command(flatten)]
        export: Export,
        /// The folder.
        #[arg(default_value = "/")]
        path: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Copy a file from the server.
    Get {
        #[command(flatten)]
        export: Export,
        /// Its name there.
        path: String,
        /// Its name here.
        file: PathBuf,
        /// Bytes of a READ, 256 KiB at most.
        #[arg(long, default_value_t = 131_072)]
        piece: usize,
    },
    /// Copy a file to the server.
    Put {
        #[command(flatten)]
        export: Export,
        /// Its name here.
        file: PathBuf,
        /// Its name there.
        path: String,
        /// Bytes of a WRITE, 256 KiB at most.
        #[arg(long, default_value_t = 131_072)]
        piece: usize,
    },
    /// Remove a file of the server's.
    Remove {
        #[command(flatten)]
        export: Export,
        /// Its name there.
        path: String,
    },
    /// Serve a folder, read-only, until killed.
    Serve {
        #[command(flatten)]
        place: Place,
        /// The port.
        #[arg(long, default_value_t = 20_049)]
        port: u16,
        /// The folder: as it is now.
        folder: PathBuf,
    },
}

#[derive(Args)]
pub(crate) struct Export {
    #[command(flatten)]
    peer: Peer,
    /// The server's port.
    #[arg(long, default_value_t = 20_049)]
    port: u16,
}

impl Export {
    /// A session, after a call that does nothing.
    fn open(&self, manager: &Manager) -> Result<Client, Failure> {
        let mount = Mount {
            manager: manager.clone(),
            from: self.peer.from,
            to: SocketAddr::new(self.peer.to, self.port),
            patience: self.peer.patience(),
            most: MOST,
            user: 0,
            group: 0,
        };
        let mut client = Client::connect(&mount)?;
        client.null()?;
        Ok(client)
    }
}

pub(crate) fn run(manager: &Manager, action: Action) -> Result<(), Failure> {
    match action {
        Action::List { export, path, json } => {
            let mut client = export.open(manager)?;
            let names = client.list(&path)?;
            if json {
                println!("{}", serde_json::json!(names));
            } else {
                names.iter().for_each(|name| println!("{name}"));
            }
            Ok(client.leave()?)
        }
        Action::Get { export, path, file, piece } => {
            let mut client = export.open(manager)?;
            let data = client.read(&path, piece)?;
            fs::write(&file, &data).map_err(|error| format!("{}: {error}", file.display()))?;
            println!("read {} bytes", data.len());
            Ok(client.leave()?)
        }
        Action::Put { export, file, path, piece } => {
            let data = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            let mut client = export.open(manager)?;
            client.write(&path, &data, piece)?;
            println!("wrote {} bytes", data.len());
            Ok(client.leave()?)
        }
        Action::Remove { export, path } => {
            let mut client = export.open(manager)?;
            client.remove(&path)?;
            Ok(client.leave()?)
        }
        Action::Serve { place, port, folder } => {
            let options = ServerOptions { patience: Duration::from_secs(place.patience) };
            let server = Server::new(manager, SocketAddr::new(place.at, port), &folder, options)?;
            ready()?;
            Ok(server.serve(&AtomicBool::new(false), |error| eprintln!("a connection has ended: {error}"))?)
        }
    }
}
