//! The plan: all jobs of a matrix, numbered. It follows from the hosts file and what was asked for alone, so that every process
//! that makes it numbers the jobs alike.

use crate::{
    hosts::{Host, Hosts},
    programs::{self, Program},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Wish {
    /// Programs by name; all where there are none.
    pub programs: Vec<String>,
    /// Bytes of messages.
    pub sizes: Vec<u64>,
    /// Messages of each job.
    pub count: u64,
    /// How long a job may take.
    pub limit: Duration,
    /// TCP port of job 0; each job has its own.
    pub first_port: u16,
}

/// One job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Its place in the plan, from 0.
    pub number: usize,
    /// The server's host, by name.
    pub server: String,
    /// The client's.
    pub client: String,
    /// The program, by name.
    pub program: String,
    /// Bytes of a message; 0 where the program takes none.
    pub size: u64,
    /// The commands, as the two shells get them: server and client.
    pub commands: [String; 2],
    /// Seconds that it may take.
    pub limit: u64,
}

/// A whole matrix.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The hosts.
    pub hosts: Hosts,
    /// The programs.
    pub programs: Vec<Program>,
    /// All jobs.
    pub jobs: Vec<Job>,
}

fn command(command: &str, host: &Host) -> String {
    // What stands before a program stands before each of several.
    let parts: Vec<String> = command.split(" && ").map(|part| prefixed(part, &host.before)).collect();
    parts.join(" && ")
}

/// `A=1 B=2 program words` with `before` in front of the program: variables come first in a shell.
fn prefixed(part: &str, before: &str) -> String {
    if before.is_empty() {
        return part.to_owned();
    }
    let is_variable = |word: &&str| word.contains('=') && !word.starts_with('-');
    let words: Vec<&str> = part.split(' ').collect();
    let variables = words.iter().take_while(|word| is_variable(word)).count();
    let all = words[..variables].iter().copied().chain([before]).chain(words[variables..].iter().copied());
    all.collect::<Vec<_>>().join(" ")
}

impl Plan {
    /// Makes the plan.
    ///
    /// # Errors
    /// What was asked for and is not there, in one sentence.
    pub fn new(hosts: Hosts, wish: &Wish) -> Result<Self, String> {
        let added = |program: &Program| hosts.program.iter().any(|other| other.name == program.name);
        let mut programs: Vec<Program> =
            programs::built_in().into_iter().filter(|program| !added(program)).collect();
        programs.extend(hosts.program.iter().cloned());
        if let Some(unknown) =
            wish.programs.iter().find(|name| !programs.iter().any(|program| program.name == **name))
        {
            let known: Vec<_> = programs.iter().map(|program| program.name.as_str()).collect();
            return Err(format!("there is no program {unknown}; there are {}", known.join(", ")));
        }
        programs.retain(|program| wish.programs.is_empty() || wish.programs.contains(&program.name));
        let mut jobs = Vec::new();
        for program in &programs {
            let sizes: Vec<u64> = if program.sizes {
                let fits = |size: &u64| (program.least..=program.most).contains(size);
                wish.sizes.iter().copied().filter(fits).collect()
            } else {
                vec![0]
            };
            for server in &hosts.host {
                for client in hosts.host.iter().filter(|host| host.name != server.name) {
                    for &size in &sizes {
                        let number = jobs.len();
                        let room = usize::from(u16::MAX - wish.first_port) + 1;
                        let port = wish.first_port + u16::try_from(number % room).unwrap_or_default();
                        let values = programs::Values { server, client, port, size, count: wish.count };
                        let filled = [(&program.server, server), (&program.client, client)]
                            .map(|(text, host)| command(&values.fill(text, host), host));
                        jobs.push(Job {
                            number,
                            server: server.name.clone(),
                            client: client.name.clone(),
                            program: program.name.clone(),
                            size,
                            commands: filled,
                            limit: wish.limit.as_secs().max(1),
                        });
                    }
                }
            }
        }
        if jobs.is_empty() {
            return Err("no program takes any of these sizes".into());
        }
        Ok(Self { hosts, programs, jobs })
    }

    /// A job's host, by name.
    pub(crate) fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.host.iter().find(|host| host.name == name)
    }

    /// A job's program.
    pub(crate) fn program(&self, job: &Job) -> Option<&Program> {
        self.programs.iter().find(|program| program.name == job.program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(count: usize) -> Hosts {
        let one = |n: usize| {
            format!(
                "[[host]]\nname = \"h{n}\"\naddress = \"192.0.2.{n}\"\ngid = {n}\nbefore = \"rxe run --\"\n"
            )
        };
        Hosts::parse(&(1..=count).map(one).collect::<String>()).unwrap()
    }

    fn wish(programs: &[&str], sizes: &[u64]) -> Wish {
        Wish {
            programs: programs.iter().map(|name| (*name).to_owned()).collect(),
            sizes: sizes.to_vec(),
            count: 10,
            limit: Duration::from_secs(20),
            first_port: 18000,
        }
    }

    #[test]
    fn every_ordered_pair_program_and_size_is_a_job() {
        let plan =
            Plan::new(hosts(4), &wish(&["ib_write_bw", "rping", "ib_atomic_lat"], &[64, 4096, 1 << 20]))
                .unwrap();
        // rping takes two of the sizes, ib_atomic_lat none.
        assert_eq!(plan.jobs.len(), 12 * (3 + 2 + 1));
        assert!(plan.jobs.iter().enumerate().all(|(at, job)| job.number == at && job.server != job.client));
        let ports: std::collections::HashSet<_> = plan.jobs.iter().map(|job| &job.commands[0]).collect();
        assert_eq!(ports.len(), plan.jobs.len(), "each has a port of its own");
    }

    #[test]
    fn what_stands_before_programs_stands_before_each() {
        let plan = Plan::new(hosts(2), &wish(&["qperf", "ucx_perftest"], &[64])).unwrap();
        let of = |name: &str| &plan.jobs.iter().find(|job| job.program == name).unwrap().commands;
        assert!(
            of("ucx_perftest")[0].starts_with(
                "UCX_NET_DEVICES=rxe0:1 UCX_IB_GID_INDEX=1 UCX_TLS=rc_verbs,self rxe run -- ucx_"
            )
        );
        assert_eq!(of("qperf")[1].matches("rxe run -- qperf").count(), 2);
    }

    #[test]
    fn wishes_that_cannot_be_are_told() {
        assert!(Plan::new(hosts(2), &wish(&["iperf"], &[1])).unwrap_err().contains("no program iperf"));
        assert!(Plan::new(hosts(2), &wish(&["rping"], &[1])).unwrap_err().contains("sizes"));
    }
}
