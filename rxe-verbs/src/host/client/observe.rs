//! Queries to a host service by a program that is not its client.

use super::attach::{Found, HostError, Until, find, receive};
use crate::{
    host::{
        message::{Hello, MAX_ANSWER, Role, ToClient, ToService, decode, encode},
        report::{HostStats, ReloadReport, ServiceReport},
    },
    sys::unix::Channel,
};
use serde::de::DeserializeOwned;
use std::{
    io,
    time::{Duration, Instant},
};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection for queries to the host service.
#[derive(Debug)]
pub struct Observer(Channel);

impl Observer {
    /// Connects to the service of this network namespace; `None` if there is none. It is not started.
    ///
    /// # Errors
    /// [`HostError`], in words for the user.
    pub fn connect() -> Result<Option<Self>, HostError> {
        let channel = match find()? {
            Found::Ours(channel) => channel,
            Found::Nobody => return Ok(None),
            Found::Later => return Err(HostError::Silent),
            Found::Stranger(_, error) => return Err(error),
        };
        let observer = Self(channel);
        match observer.say(&ToService::Hello(Hello::new(Role::Observe))) {
            Ok(()) => Ok(Some(observer)),
            // It has ended without accepting the connection.
            Err(HostError::System { source, .. })
                if matches!(source.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The state of the service.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn status(&self) -> Result<ServiceReport, HostError> {
        self.ask(&ToService::Status)
    }

    /// The counters of its clients. Takes up to a second if one of them is stopped.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn stats(&self) -> Result<HostStats, HostError> {
        self.ask(&ToService::Stats)
    }

    /// Makes it read its configuration again, and send the settings to every process.
    ///
    /// # Errors
    /// [`HostError`]; a mistake in a file is part of the report.
    pub fn reload(&self) -> Result<ReloadReport, HostError> {
        self.ask(&ToService::Reload)
    }

    /// Asks it to end when its last client has left, and to refuse new clients.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn stop(&self) -> Result<(), HostError> {
        self.say(&ToService::Stop)
    }

    fn say(&self, message: &ToService) -> Result<(), HostError> {
        let said = self.0.send(&encode(message), &[]);
        said.map_err(|source| HostError::System { action: "speak to the rxe host service", source })
    }

    fn ask<T: DeserializeOwned>(&self, question: &ToService) -> Result<T, HostError> {
        self.say(question)?;
        let deadline = Instant::now() + PATIENCE;
        let mut bytes = Vec::new();
        loop {
            match receive(&self.0, Until::deadline(deadline))? {
                Some((ToClient::Part(part), _)) => {
                    bytes.extend(part.bytes);
                    if part.last || bytes.len() > MAX_ANSWER {
                        return decode(&bytes).ok_or(HostError::Silent);
                    }
                }
                Some(_) => {}
                None => return Err(HostError::Silent),
            }
        }
    }
}
