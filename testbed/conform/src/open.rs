//! The choice of the device, and of the link to it.

use crate::{Usage, namespace};
use clap::{Args, ValueEnum};
use rxe_conform::wire::Roce;
use rxe_conform::{
    dut::{About, Dut, Feature, agent::AgentDut, core},
    link::{Link, raw::RawLink, udp::UdpLink},
};
use std::{error::Error, net::IpAddr, process::ExitCode};

/// Kinds of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Kind {
    /// Our protocol core, in memory and on simulated time
    Core,
    /// The same over IPv6
    Core6,
    /// Our provider in a process of its own, over UDP on this host's loopback
    Udp,
    /// The same with whole frames, in a network namespace that is made for it
    Raw,
    /// The same by RoCEv1
    Rocev1,
    /// Any device behind an agent: --agent, --device, --address, --own
    Remote,
}

#[derive(Debug, Args)]
pub(crate) struct Which {
    /// The device under test
    #[arg(long, value_enum, default_value = "core", value_name = "DEVICE")]
    dut: Kind,
    /// What the device is called in reports; known differences are looked up by it
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Where the device's agent listens
    #[arg(long, value_name = "HOST:PORT")]
    agent: Option<String>,
    /// What the agent wants to hear first
    #[arg(long, value_name = "WORD", default_value = "", hide_default_value = true)]
    token: String,
    /// The device, as verbs calls it there
    #[arg(long, value_name = "NAME", default_value = "rxe0")]
    device: String,
    /// The device's address on the tested link
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// The suite's own address there
    #[arg(long, value_name = "IP")]
    own: Option<IpAddr>,
    /// Send and receive whole frames by this interface (needs CAP_NET_RAW) instead of by a UDP socket
    #[arg(long, value_name = "INTERFACE")]
    raw: Option<String>,
    /// Talk RoCEv1 to a remote device (with --raw): a GRH in place of IP and UDP
    #[arg(long, requires = "raw")]
    rocev1: bool,
    /// What a remote device does not have
    #[arg(long, value_enum, value_name = "FEATURE", value_delimiter = ',')]
    without: Vec<Lack>,
    /// Serves the provider of this address instead of testing (used by --dut udp)
    #[arg(long, value_name = "IP", hide = true)]
    serve: Option<IpAddr>,
}

/// What a device may lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Lack {
    AtomicWrite,
    Flush,
    Windows,
    Srq,
    Uc,
    Cm,
}

/// A device, and the link to it.
pub(crate) struct Opened {
    pub(crate) dut: Box<dyn Dut>,
    pub(crate) link: Box<dyn Link>,
    /// The interfaces between them, if they were created for this run.
    pub(crate) pair: Option<namespace::Pair>,
}

type Failure = Box<dyn Error>;

impl Which {
    /// Serves a device until it is closed, if this process was started for that instead of testing one.
    #[cfg(feature = "provider")]
    pub(crate) fn serve(&self) -> Result<Option<ExitCode>, Failure> {
        use std::io::{BufRead, Write};
        let Some(address) = self.serve else { return Ok(None) };
        let mut provider = rxe_conform::dut::provider::Provider::open(address)?;
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        let mut token = String::new();
        println!("{}", listener.local_addr()?.port());
        std::io::stdout().flush()?;
        std::io::stdin().lock().read_line(&mut token)?;
        rxe_conform::dut::serve::serve(&mut provider, &listener, token.trim_end())?;
        Ok(Some(ExitCode::SUCCESS))
    }

    #[cfg(not(feature = "provider"))]
    pub(crate) fn serve(&self) -> Result<Option<ExitCode>, Failure> {
        match self.serve {
            None => Ok(None),
            Some(_) => Err("this rxe-conform was built without the provider".into()),
        }
    }

    /// Refuses options that the device has no use for.
    fn check(&self) -> Result<(), Usage> {
        let remote = [("--agent", self.agent.is_some()), ("--raw", self.raw.is_some())];
        let addresses = [("--address", self.address.is_some()), ("--own", self.own.is_some())];
        let unused = match self.dut {
            Kind::Remote => return Ok(()),
            Kind::Udp => remote.to_vec(),
            _ => [remote, addresses].concat(),
        };
        match unused.into_iter().find(|(_, given)| *given) {
            Some((option, _)) => {
                let kind =
                    self.dut.to_possible_value().map_or_else(String::new, |kind| kind.get_name().to_owned());
                Err(Usage(format!("{option} has no use with --dut {kind}; --dut remote takes it")))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn open(&self) -> Result<Opened, Failure> {
        self.check()?;
        match self.dut {
            Kind::Core | Kind::Core6 => {
                let (dut, link) = core::open(self.dut == Kind::Core6);
                Ok(Opened { dut: Box::new(dut), link: Box::new(link), pair: None })
            }
            Kind::Udp => self.udp(),
            Kind::Raw => self.framed(Roce::V2),
            Kind::Rocev1 => self.framed(Roce::V1),
            Kind::Remote => self.remote(),
        }
    }

    /// The RoCE version of the packets.
    const fn roce(&self) -> Roce {
        if self.rocev1 || matches!(self.dut, Kind::Rocev1) { Roce::V1 } else { Roce::V2 }
    }

    /// Runs the suite again in a network namespace of its own if the device needs one. Returns its exit code.
    pub(crate) fn enclosed(&self) -> Result<Option<ExitCode>, Failure> {
        let framed = self.serve.is_none() && matches!(self.dut, Kind::Raw | Kind::Rocev1);
        if framed { namespace::enclosed() } else { Ok(None) }
    }

    fn about(&self, default: &str, address: IpAddr, raw: bool) -> About {
        let mut features = Feature::VERBS.to_vec();
        features.extend(raw.then_some([Feature::IpHeader, Feature::Ethernet]).into_iter().flatten());
        features.extend((self.roce() == Roce::V2).then_some(Feature::Udp));
        // Agents report themselves whether they can attach queue pairs to multicast groups.
        features.extend((self.dut == Kind::Raw).then_some(Feature::Multicast));
        features.retain(|feature| {
            let lack = match feature {
                Feature::AtomicWrite => Lack::AtomicWrite,
                Feature::Flush => Lack::Flush,
                Feature::Windows => Lack::Windows,
                Feature::Srq => Lack::Srq,
                Feature::Uc => Lack::Uc,
                Feature::Cm => Lack::Cm,
                _ => return true,
            };
            !self.without.contains(&lack)
        });
        let name = self.name.clone().unwrap_or_else(|| default.to_owned());
        About {
            name,
            version: String::new(),
            address,
            features: features.into_iter().collect(),
            path_mtu: None,
        }
    }

    /// The provider over UDP sockets.
    fn udp(&self) -> Result<Opened, Failure> {
        let address = self.address.unwrap_or_else(|| IpAddr::from([127, 0, 0, 2]));
        let own = self.own.unwrap_or_else(|| IpAddr::from([127, 0, 0, 3]));
        let link = UdpLink::open(own)?;
        Ok(Opened { dut: self.provider(address, false, &[])?, link: Box::new(link), pair: None })
    }

    /// The provider with whole frames, at the other end of a pair of interfaces of this namespace.
    fn framed(&self, roce: Roce) -> Result<Opened, Failure> {
        let pair = namespace::Pair::new(roce == Roce::V1)?;
        let variables = [
            ("RXE_LINK", "raw".as_ref()),
            ("RXE_CONFIG", pair.configuration()),
            // Sends whole packets, not batches, which only a real card would cut into packets.
            ("RXE_NET_DISABLE", "gso".as_ref()),
        ];
        let dut = self.provider(pair.device, true, &variables)?;
        let link = RawLink::open(namespace::OWN, pair.own, pair.device, roce)?;
        Ok(Opened { dut, link: Box::new(link), pair: Some(pair) })
    }

    /// Starts a process of this program that serves the provider, and connects to it.
    fn provider(
        &self,
        address: IpAddr,
        raw: bool,
        variables: &[(&str, &std::ffi::OsStr)],
    ) -> Result<Box<dyn Dut>, Failure> {
        use std::io::{BufRead, BufReader, Write};
        let mut child = std::process::Command::new(std::env::current_exe()?)
            .args(["--serve", &address.to_string()])
            .envs(variables.iter().copied())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        let token =
            format!("{:016x}", std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), address));
        if let Some(mut stdin) = child.stdin.take() {
            writeln!(stdin, "{token}")?;
        }
        let mut port = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut port)?;
        }
        if port.is_empty() {
            let status = child.wait()?;
            return Err(format!("the provider's process ended at once ({status})").into());
        }
        let default = match self.dut {
            Kind::Raw => "raw",
            Kind::Rocev1 => "rocev1",
            _ => "udp",
        };
        let about = self.about(default, address, raw);
        let mut dut = AgentDut::connect(&format!("127.0.0.1:{}", port.trim_end()), &token, "", about)?;
        dut.keep(child);
        Ok(Box::new(dut))
    }

    fn remote(&self) -> Result<Opened, Failure> {
        let missing = |what: &str| Usage(format!("--dut remote needs {what}"));
        let agent = self.agent.as_deref().ok_or_else(|| missing("--agent HOST:PORT"))?;
        let address = self.address.ok_or_else(|| missing("--address, the device's on the tested link"))?;
        let own = self.own.ok_or_else(|| missing("--own, an address on the tested link"))?;
        if own.is_ipv4() != address.is_ipv4() {
            return Err(Usage("--own and --address are of different families".into()).into());
        }
        let link: Box<dyn Link> = match &self.raw {
            Some(interface) => Box::new(RawLink::open(interface, own, address, self.roce())?),
            None => Box::new(UdpLink::open(own)?),
        };
        let about = self.about("remote", address, self.raw.is_some());
        let dut = AgentDut::connect(agent, &self.token, &self.device, about)?;
        Ok(Opened { dut: Box::new(dut), link, pair: None })
    }
}

/// The list of differences that comes with the suite.
pub(crate) fn shipped_differences(name: &str) -> &'static str {
    match name {
        "dropin" => include_str!("../expected/dropin.toml"),
        "kernel-6.1" => include_str!("../expected/kernel-6.1.toml"),
        "kernel-6.12" => include_str!("../expected/kernel-6.12.toml"),
        _ => "",
    }
}
