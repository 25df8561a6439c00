//! Scenario files: what the network is, what its switches and adapters do, and who sends what. TOML; every key is described
//! here, and an unknown or wrong one is an error that names its line.

mod check;

use crate::units::{Rate, Size, Span};
use serde::Deserialize;
use thiserror::Error;

/// A whole scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it shows; for the report.
    #[serde(default)]
    pub title: String,
    /// Everything random follows from it.
    #[serde(default = "one")]
    pub seed: u64,
    /// When the simulation ends, whatever is under way. Flows that start later are left out.
    pub end: Span,
    /// Hosts, switches and links.
    pub network: Network,
    /// What switches do.
    #[serde(default)]
    pub switch: Switch,
    /// What adapters do.
    #[serde(default)]
    pub adapter: Adapter,
    /// Who sends what.
    pub traffic: Vec<Traffic>,
    /// What is recorded over time.
    #[serde(default)]
    pub record: Record,
}

/// Hosts, switches and links. Hosts are called `h0`, `h1`, ... but in a custom network.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Network {
    /// All hosts at one switch, `s0`.
    Star {
        /// How many.
        hosts: usize,
        /// Rate of all links.
        rate: Rate,
        /// Propagation delay of all links.
        delay: Span,
        /// Chance that a packet is lost on a host's link, 0 to 1; acknowledgements are spared.
        #[serde(default)]
        loss: f64,
    },
    /// A fat tree of switches with `ports` ports (Al-Fares et al., SIGCOMM 2008): ports cubed over four hosts.
    FatTree {
        /// Ports of a switch: even.
        ports: usize,
        /// Rate of all links.
        rate: Rate,
        /// Propagation delay of all links.
        delay: Span,
    },
    /// Leaf switches with hosts, each connected to every spine switch.
    LeafSpine {
        /// Leaf switches.
        leaves: usize,
        /// Spine switches.
        spines: usize,
        /// Hosts of a leaf.
        hosts: usize,
        /// Rate of hosts' links.
        rate: Rate,
        /// Rate of the links between switches.
        uplink: Rate,
        /// Propagation delay of all links.
        delay: Span,
    },
    /// Pods of top-of-rack switches, `tor0` and so on, and aggregation switches, each connected to all of the other kind in its
    /// pod; the first aggregation switches of all pods are connected to the same core switches, the second ones to others, and so on.
    Pods {
        /// Pods.
        pods: usize,
        /// Top-of-rack switches of a pod.
        tors: usize,
        /// Aggregation switches of a pod.
        aggregations: usize,
        /// Core switches that an aggregation switch is connected to.
        cores: usize,
        /// Hosts of a top-of-rack switch.
        hosts: usize,
        /// Rate of hosts' links.
        rate: Rate,
        /// Rate of the links between switches.
        uplink: Rate,
        /// Propagation delay of all links.
        delay: Span,
    },
    /// By hand.
    Custom {
        /// Names of hosts.
        hosts: Vec<String>,
        /// Names of switches.
        switches: Vec<String>,
        /// Links, by the names of their two ends.
        links: Vec<(String, String)>,
        /// Rate of all links.
        rate: Rate,
        /// Propagation delay of all links.
        delay: Span,
    },
}

/// What switches do. Without a buffer size nothing is ever dropped.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Switch {
    /// Buffer that all ports of a switch share.
    pub buffer: Option<Size>,
    /// Of what is free of the shared buffer a port's queue takes so many times as much at most (dynamic thresholds).
    pub alpha: Option<f64>,
    /// Buffer of its own for what each port receives, in the place of a shared one.
    pub port_buffer: Option<Size>,
    /// Explicit congestion notification.
    pub ecn: Option<Ecn>,
    /// Priority flow control (IEEE 802.1Qbb).
    pub pfc: Option<Pfc>,
}

/// Marking by the length of the queue that a packet joins.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ecn {
    /// Nothing is marked up to here.
    pub kmin: Size,
    /// Everything is marked from here on.
    pub kmax: Size,
    /// Chance just below `kmax`, 0 to 1.
    pub pmax: f64,
    /// The rate of the ports that `kmin` and `kmax` are for: at others they are as many times as large as the rate. The same at
    /// all ports without it.
    pub at: Option<Rate>,
}

/// When the sender at the other end of a link is paused.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pfc {
    /// When so much waits that came from there; in the place of it `alpha`.
    pub xoff: Option<Size>,
    /// When so many times as much waits as is free of the shared buffer.
    pub alpha: Option<f64>,
    /// It may go on when so much less waits.
    pub hysteresis: Size,
}

/// What adapters do.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adapter {
    /// Path MTU: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Congestion control.
    pub control: Control,
    /// What happens to packets behind a lost one.
    pub recovery: Recovery,
    /// Bytes of a queue pair under way at most; without it there is no bound.
    pub window: Option<Size>,
    /// In a message every packet that ends so many bytes asks for an acknowledgement.
    pub ask_after: Size,
    /// Retransmission timeout; of selective repeat the longer one.
    pub timeout: Span,
    /// Selective repeat's timeout while at most three packets are under way.
    pub short_timeout: Span,
    /// DCQCN's parameters, where they are not the paper's.
    pub dcqcn: DcqcnKeys,
    /// TIMELY's parameters, where they are not the paper's.
    pub timely: TimelyKeys,
}

impl Default for Adapter {
    fn default() -> Self {
        Self {
            mtu: 1024,
            control: Control::None,
            recovery: Recovery::GoBackN,
            window: None,
            ask_after: Size(0),
            timeout: Span(320 * crate::units::MICRO),
            short_timeout: Span(100 * crate::units::MICRO),
            dcqcn: DcqcnKeys::default(),
            timely: TimelyKeys::default(),
        }
    }
}

/// Congestion control.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Control {
    /// Packets leave at the link's rate.
    None,
    /// DCQCN (SIGCOMM 2015).
    Dcqcn,
    /// TIMELY (SIGCOMM 2015).
    Timely,
}

/// Loss recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// RoCE's: the responder drops what is not in sequence, and all is sent again from the lost packet on.
    GoBackN,
    /// IRN's (SIGCOMM 2018): only what was lost is sent again. A layer of simulated adapters, below the queue pairs.
    Selective,
}

/// DCQCN's parameters; see [`rxe_core::qp::DcqcnParams`].
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DcqcnKeys {
    /// Lowest rate.
    pub least: Option<Rate>,
    /// g.
    pub gain: Option<f64>,
    /// Timer of the estimate.
    pub alpha_timer: Option<Span>,
    /// Timer of the increase.
    pub rate_timer: Option<Span>,
    /// Byte counter of the increase.
    pub byte_counter: Option<Size>,
    /// Steps of fast recovery.
    pub recovery: Option<u32>,
    /// Additive increase.
    pub additive: Option<Rate>,
    /// Hyper increase.
    pub hyper: Option<Rate>,
    /// Least time between two cuts.
    pub cut_interval: Option<Span>,
    /// Whether every cut takes the target along, also a second one in a row.
    pub clamp_target: Option<bool>,
    /// Whether only the timer raises the rate, as in the simulator of HPCC's authors.
    pub timer_alone: Option<bool>,
}

/// TIMELY's parameters; see [`rxe_core::qp::TimelyParams`].
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TimelyKeys {
    /// Lowest rate.
    pub least: Option<Rate>,
    /// Additive increase.
    pub additive: Option<Rate>,
    /// Below it the rate rises.
    pub low: Option<Span>,
    /// Above it the rate falls.
    pub high: Option<Span>,
    /// The network's smallest round-trip time.
    pub smallest: Option<Span>,
}

/// Who sends what. Every flow is one RDMA WRITE with immediate of a queue pair of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Traffic {
    /// From each of some hosts to one.
    Flows {
        /// Names of the senders.
        from: Vec<String>,
        /// Name of the receiver.
        to: String,
        /// Bytes of each; 2 GiB at most.
        size: Size,
        /// When they start.
        #[serde(default = "zero")]
        start: Span,
        /// How much later each starts than the one before.
        #[serde(default = "zero")]
        apart: Span,
        /// Flows of each sender.
        #[serde(default = "one_flow")]
        count: usize,
    },
    /// Each host sends to one other, and receives from one other, drawn at random.
    Permutation {
        /// Bytes of each.
        size: Size,
        /// When they start.
        #[serde(default = "zero")]
        start: Span,
    },
    /// Again and again some hosts, drawn at random, send to one at the same time.
    Incast {
        /// How many send.
        fan_in: usize,
        /// Bytes of each.
        size: Size,
        /// Time between two of them, the first one included.
        every: Span,
        /// How many times; as often as there is time without it.
        times: Option<usize>,
    },
    /// Flows between random pairs, which come as a Poisson process.
    Poisson {
        /// Sizes.
        sizes: Sizes,
        /// Payload as a part of all hosts' links, 0 to 1.
        load: f64,
        /// No more start from here on.
        until: Span,
    },
}

/// Where flow sizes are drawn from.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// Web search (DCTCP, SIGCOMM 2010), as HPCC's authors tabulate it.
    WebSearch,
    /// Facebook's Hadoop cluster (SIGCOMM 2015), as HPCC's authors tabulate it.
    Hadoop,
    /// IRN's heavy-tailed one: half are single packets of 32 B to 1 KB, 15 % from 200 KB to 3 MB, the rest between.
    Irn,
    /// One size.
    Fixed(Size),
}

/// What is recorded over time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Record {
    /// How often; nothing is recorded without it.
    pub every: Option<Span>,
    /// The report's figures of queues count from then on, so that they can leave the beginning out. Tables and figures have all.
    pub from: Span,
    /// Queues, as `"s0-h1"`: what `s0` has for `h1`.
    pub queues: Vec<String>,
    /// Whether the goodput of every flow is recorded; for up to 64 flows.
    pub flows: bool,
}

const fn one() -> u64 {
    1
}

const fn one_flow() -> usize {
    1
}

const fn zero() -> Span {
    Span(0)
}

/// Why a scenario cannot be played.
#[derive(Debug, Error)]
pub enum ScenarioError {
    /// Not a scenario file; says line and key.
    #[error("{0}")]
    File(#[from] Box<toml::de::Error>),
    /// A value makes no sense.
    #[error("{key}: {problem}")]
    Value {
        /// Which.
        key: &'static str,
        /// What is wrong, and what to do.
        problem: String,
    },
}

impl ScenarioError {
    /// A value that makes no sense.
    pub(crate) fn value(key: &'static str, problem: impl Into<String>) -> Self {
        Self::Value { key, problem: problem.into() }
    }
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// [`ScenarioError`], with line and key where the file is wrong.
    pub fn read(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(Box::new)?;
        scenario.check()?;
        Ok(scenario)
    }
}
