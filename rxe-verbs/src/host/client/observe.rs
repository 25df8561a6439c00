//! Looking at a host service without being its client.

use super::attach::{Found, HostError, Until, find, receive};
use crate::{
    host::{
        message::{Hello, Role, ToClient, ToService, decode, encode},
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
/// Bytes of an answer at most.
const MAX_ANSWER: usize = 64 << 20;

/// A connection that looks at the host service.
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
            // It has ended without taking the connection.
            Err(HostError::System { source, .. })
                if matches!(source.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// How the service is.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn status(&self) -> Result<ServiceReport, HostError> {
        self.ask(&ToService::Status)
    }

    /// What its clients count. Takes up to a second if one of them is stopped.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn stats(&self) -> Result<HostStats, HostError> {
        self.ask(&ToService::Stats)
    }

    /// Has it read its configuration again, and tell every process what holds now.
    ///
    /// # Errors
    /// [`HostError`]; a mistake in a file is part of the report.
    pub fn reload(&self) -> Result<ReloadReport, HostError> {
        self.ask(&ToService::Reload)
    }

    /// Asks it to end with its last client, and to say no to newcomers.
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
