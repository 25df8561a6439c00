//! A matrix of interoperation: every ordered pair of hosts, every program and every size is one job, in which a server on one host
//! and a client on the other have to end well within a time limit. What runs where is told by a file ([`hosts`]), the programs
//! are data as well ([`programs`]); [`plan`] makes the jobs, [`play`] plays one, and [`report`] tells what came of all. Jobs are
//! played from here, or by a Slurm cluster ([`run`]); it makes no difference to a job.

pub mod hosts;
pub mod plan;
pub mod play;
pub mod programs;
pub mod report;
pub mod run;
