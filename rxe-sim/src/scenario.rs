//! Scenario files (TOML): the network, its switches and adapters, and the traffic. Every key is described here. An unknown or
//! wrong key is an error that names its line.

mod check;

use crate::units::{Rate, Size, Span};
use serde::Deserialize;
use thiserror::Error;

/// A whole scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// A description, for the report.
    #[serde(default)]
    pub title: String,
    /// The seed of all random numbers.
    #[serde(default = "one")]
    pub seed: u64,
    /// When the simulation ends, even if flows are under way. Flows that would start later are left out.
    pub end: Span,
    /// Hosts, switches and links.
    pub network: Network,
    /// How switches work.
    #[serde(default)]
    pub switch: Switch,
    /// How adapters work.
    #[serde(default)]
    pub adapter: Adapter,
    /// The traffic.
    pub traffic: Vec<Traffic>,
    /// What is recorded over time.
    #[serde(default)]
    pub record: Record,
}

/// Hosts, switches and links. Hosts are called `h0`, `h1`, ... except in a custom network.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Network {
    /// All hosts at one switch, `s0`.
    Star {
        /// Number of hosts.
        hosts: usize,
        /// Rate of all links.
        rate: Rate,
        /// Propagation delay of all links.
        delay: Span,
        /// Probability that a packet is lost on a host's link, 0 to 1. Acknowledgements are not lost.
        #[serde(default)]
        loss: f64,
    },
    /// A fat tree of switches with `ports` ports (Al-Fares et al., SIGCOMM 2008). It has ports³ / 4 hosts.
    FatTree {
        /// Ports of a switch, an even number.
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
    /// A network whose links are listed.
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

/// How switches work. Without a buffer size no packet is dropped.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Switch {
    /// Buffer that all ports of a switch share.
    pub buffer: Option<Size>,
    /// The most bytes in a port's queue, as a multiple of the free part of the shared buffer (dynamic thresholds).
    pub alpha: Option<f64>,
    /// A separate buffer for what each port receives, instead of a shared one.
    pub port_buffer: Option<Size>,
    /// Explicit congestion notification.
    pub ecn: Option<Ecn>,
    /// Priority flow control (IEEE 802.1Qbb).
    pub pfc: Option<Pfc>,
}

/// Marking of packets by the length of the queue that they join.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ecn {
    /// Up to this length no packet is marked.
    pub kmin: Size,
    /// From this length on every packet is marked.
    pub kmax: Size,
    /// Probability just below `kmax`, 0 to 1.
    pub pmax: f64,
    /// The rate of the ports for which `kmin` and `kmax` are given. Ports with another rate have proportional values. Without
    /// this key all ports have the same values.
    pub at: Option<Rate>,
}

/// When the sender at the other end of a link is paused.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pfc {
    /// When this many bytes from that sender wait; or use `alpha`.
    pub xoff: Option<Size>,
    /// When the bytes that wait are this multiple of the free part of the shared buffer.
    pub alpha: Option<f64>,
    /// The pause ends when this many bytes less wait.
    pub hysteresis: Size,
}

/// How adapters work.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Adapter {
    /// Path MTU: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Congestion control.
    pub control: Control,
    /// What happens to packets behind a lost one.
    pub recovery: Recovery,
    /// Most bytes of a queue pair that are under way; without this key there is no limit.
    pub window: Option<Size>,
    /// A packet in a message asks for an acknowledgement after each such number of bytes.
    pub ask_after: Size,
    /// Retransmission timeout; with selective repeat the longer one.
    pub timeout: Span,
    /// The timeout of selective repeat while at most three packets are under way.
    pub short_timeout: Span,
    /// Parameters of DCQCN that differ from the paper's.
    pub dcqcn: DcqcnKeys,
    /// Parameters of TIMELY that differ from the paper's.
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
    /// As in RoCE: the responder drops packets that are out of sequence, and the requester sends all packets again from the
    /// lost one on.
    GoBackN,
    /// As in IRN (SIGCOMM 2018): only lost packets are sent again. This is a layer of the simulated adapters, below the queue
    /// pairs.
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
    /// Whether every cut lowers the target rate, also a second one in a row.
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
    /// The rate rises below this round-trip time.
    pub low: Option<Span>,
    /// The rate falls above this round-trip time.
    pub high: Option<Span>,
    /// The network's smallest round-trip time.
    pub smallest: Option<Span>,
}

/// Traffic. Every flow is one RDMA WRITE with immediate, and has its own queue pair.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Traffic {
    /// Several hosts send to one.
    Flows {
        /// Names of the senders.
        from: Vec<String>,
        /// Name of the receiver.
        to: String,
        /// Bytes of each flow, at most 2 GiB.
        size: Size,
        /// When they start.
        #[serde(default = "zero")]
        start: Span,
        /// Time between the starts of two flows.
        #[serde(default = "zero")]
        apart: Span,
        /// Flows of each sender.
        #[serde(default = "one_flow")]
        count: usize,
    },
    /// Each host sends to one other host, and receives from one other, chosen at random.
    Permutation {
        /// Bytes of each.
        size: Size,
        /// When they start.
        #[serde(default = "zero")]
        start: Span,
    },
    /// Repeatedly, several hosts send to one host at the same time, all chosen at random.
    Incast {
        /// Number of senders.
        fan_in: usize,
        /// Bytes of each.
        size: Size,
        /// Time between two of them, and before the first.
        every: Span,
        /// How many times; without this key until the end.
        times: Option<usize>,
    },
    /// Flows between random pairs of hosts. Their starts are a Poisson process.
    Poisson {
        /// Sizes.
        sizes: Sizes,
        /// Payload as a part of the rate of all hosts' links, 0 to 1.
        load: f64,
        /// No flow starts after this time.
        until: Span,
    },
}

/// The distribution of flow sizes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sizes {
    /// Web search (DCTCP, SIGCOMM 2010), as HPCC's authors tabulate it.
    WebSearch,
    /// Facebook's Hadoop cluster (SIGCOMM 2015), as HPCC's authors tabulate it.
    Hadoop,
    /// The heavy-tailed one of IRN: half of the flows are single packets of 32 B to 1 KB, 15 % have 200 KB to 3 MB, and the
    /// others are between.
    Irn,
    /// One size.
    Fixed(Size),
}

/// What is recorded over time.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Record {
    /// The time between two samples; without this key nothing is recorded.
    pub every: Option<Span>,
    /// The report's figures of queues begin at this time, so that they can leave out the start. Tables and plots have all
    /// samples.
    pub from: Span,
    /// Queues, such as `"s0-h1"`: the packets that `s0` has for `h1`.
    pub queues: Vec<String>,
    /// Whether the goodput of flows is recorded, of at most 64.
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
    /// The file is not a scenario. The text names line and key.
    #[error("{0}")]
    File(#[from] Box<toml::de::Error>),
    /// A value makes no sense.
    #[error("{key}: {problem}")]
    Value {
        /// Its key.
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
    /// [`ScenarioError`], with the line and key of the mistake.
    pub fn read(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(Box::new)?;
        scenario.check()?;
        Ok(scenario)
    }
}
