//! Reading the configuration again while programs run.

use super::Service;
use crate::host::{config::HostConfig, message::ToClient, report::ReloadReport, settings::Settings};

impl Service {
    /// Reads the configuration again, and sends the settings to every process. If a file has an error, nothing changes.
    pub(super) fn reload(&mut self, observer: usize) {
        let report = match HostConfig::load() {
            Ok(config) => self.adopt(config),
            Err(error) => {
                self.journal.note(&format!("the configuration was read again, and stays as it was: {error}"));
                ReloadReport { error: Some(error.to_string()), ..ReloadReport::default() }
            }
        };
        self.answer_in_parts(observer, &report);
    }

    fn adopt(&mut self, config: HostConfig) -> ReloadReport {
        let (before, now) = (Settings::of(&self.config), Settings::of(&config));
        let mut report = ReloadReport {
            pkeys: (before.pkeys.clone(), before.of_interface.clone())
                != (now.pkeys.clone(), now.of_interface.clone()),
            lanes: before.lanes != now.lanes,
            warnings: config.host_fabric().warnings().to_vec(),
            ..ReloadReport::default()
        };
        self.config = config;
        if before != now {
            let keys: Vec<usize> = self.presences.connected().map(|(_, key)| key).collect();
            report.told = keys.len();
            for key in keys {
                self.answer(key, &ToClient::Settings(now.clone()));
            }
        }
        self.journal.note(&format!(
            "the configuration was read again: P_Keys {}, lanes {}, {} slots told",
            if report.pkeys { "changed" } else { "as before" },
            if report.lanes { "changed" } else { "as before" },
            report.told
        ));
        report
    }
}
