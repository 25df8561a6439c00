//! `--between`: the tester as a bridge between two hosts.

use crate::Usage;
use clap::Args;
use rxe_conform::{
    between::{self, Between, Bridge, Programs},
    dut::About,
    run::Finding,
};
use std::{error::Error, net::Ipv4Addr, time::Duration};

#[derive(Debug, Args)]
pub(crate) struct Middle {
    /// Stand between two hosts: pass frames from one interface to the other (needs CAP_NET_RAW), and lose, repeat, delay or
    /// change those that a case picks, while --left and --right run
    #[arg(long, value_names = ["LEFT", "RIGHT"], num_args = 2, requires_all = ["left", "right"])]
    between: Option<Vec<String>>,
    /// With --between: a shell command that listens on the left host, and ends with 0 if its data came
    #[arg(long, value_name = "COMMAND")]
    left: Option<String>,
    /// With --between: one that connects from the right host
    #[arg(long, value_name = "COMMAND")]
    right: Option<String>,
    /// With --between: how long the left one needs until it listens
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = crate::seconds)]
    settle: Duration,
    /// With --between: how long both may take
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = crate::seconds)]
    limit: Duration,
}

impl Middle {
    pub(crate) const fn is_wanted(&self) -> bool {
        self.between.is_some()
    }

    /// Runs the cases whose id begins with one of `filter`. Returns what was tested, and the findings.
    pub(crate) fn run(
        &self,
        filter: &[String],
        name: Option<&str>,
        watch: impl FnMut(&str, Option<&Finding>),
    ) -> Result<(About, Vec<Finding>), Box<dyn Error>> {
        let (Some([left, right]), Some(first), Some(second)) =
            (self.between.as_deref(), &self.left, &self.right)
        else {
            return Err(Usage("--between wants two interfaces, --left and --right".into()).into());
        };
        let cases = chosen(filter);
        if cases.is_empty() {
            return Err(Usage(format!("no case between hosts begins with {}", filter.join(" or "))).into());
        }
        let programs =
            Programs { left: first.clone(), right: second.clone(), settle: self.settle, limit: self.limit };
        let bridge = Bridge::open(left, right)?;
        let findings = between::run(&bridge, &cases, &programs, watch);
        let about = About {
            name: name.unwrap_or("between").to_owned(),
            version: format!("{first} | {second}"),
            address: Ipv4Addr::UNSPECIFIED.into(),
            features: Default::default(),
            path_mtu: None,
        };
        Ok((about, findings))
    }
}

/// The cases whose id begins with one of these.
pub(crate) fn chosen(filter: &[String]) -> Vec<&'static Between> {
    let wanted =
        |case: &&Between| filter.is_empty() || filter.iter().any(|start| case.id.starts_with(start.as_str()));
    between::all().iter().filter(wanted).collect()
}
