//! Checks of the host: port, buffers, address translation, filters, sandboxes.

use super::{Finding, State};
use crate::run::library;
use rxe_verbs::{
    ContextOptions, Device, OpenError, PortState, check_environment, devices,
    host::{HostConfig, HostError, Observer},
    net::{LinkKind, RawLink},
};
use std::{fs, io, process::Command};

/// The check of the variables.
const ENVIRONMENT: &str = "environment";
/// The port of RoCEv2.
const PORT: u16 = 4791;
/// A receive buffer of this size holds a batch of 64 KiB from each of several peers.
const BUFFER: u64 = 4 << 20;

pub(super) fn examine() -> Vec<Finding> {
    let mut findings = vec![environment(), config()];
    let list = devices().unwrap_or_default();
    findings.extend(interfaces(&list));
    findings.extend(port(&list));
    findings.push(raw_link());
    findings.push(locked_memory());
    findings.push(buffer("rmem_max", "receive buffer"));
    findings.push(buffer("wmem_max", "send buffer"));
    findings.push(reverse_path(&list));
    findings.extend(rules());
    findings.extend(sandbox());
    if let Err(error) = library() {
        findings.push(Finding::note(
            "drop-in",
            error.to_string(),
            "nothing to do, unless programs are to run by `rxe run`",
        ));
    }
    findings
}

/// The variables that every program heeds.
fn environment() -> Finding {
    match check_environment() {
        Ok(()) => Finding::good(ENVIRONMENT, "understood"),
        Err(error) => Finding::bad(ENVIRONMENT, error.to_string(), "correct the variable, or unset it"),
    }
}

fn config() -> Finding {
    match HostConfig::load() {
        Ok(_) => Finding::good("configuration", "readable"),
        Err(error) => Finding::bad("configuration", error.to_string(), "mend the file, or unset RXE_CONFIG"),
    }
}

/// The limit of registered memory, which applies only if the configuration enforces it.
fn locked_memory() -> Finding {
    const CHECK: &str = "locked memory";
    let Ok(config) = HostConfig::load() else {
        return Finding::good(CHECK, "the configuration is not readable");
    };
    let locked = config.locked();
    match locked.limit.filter(|_| !locked.exempt) {
        None if locked.enforced => Finding::good(CHECK, "counted; this user's is not limited"),
        None => Finding::good(
            CHECK,
            "counted, and not limited (memlock = \"enforce\" refuses what a kernel would)",
        ),
        Some(limit) => Finding::note(
            CHECK,
            format!("a process may register {} KiB", limit / 1024),
            "`ulimit -l` or limits.conf raise it; memlock = \"off\" in the configuration lifts it",
        ),
    }
}

fn interfaces(list: &[Device]) -> Vec<Finding> {
    if list.is_empty() {
        let text = "no interface has an IP address, so there is no device";
        return vec![Finding::bad("devices", text, "`ip link set lo up` makes one; so does any address")];
    }
    let about = |device: &Device| {
        let (name, netdev) = (device.name(), device.netdev());
        if device.state() == PortState::Down {
            return Finding::note(
                "devices",
                format!("{name} on {netdev} is down"),
                format!("`ip link set {netdev} up`"),
            );
        }
        let mtu = device.active_mtu().bytes();
        let text = format!("{name} on {netdev}, packets of {mtu} bytes");
        if mtu < 4096 {
            let cure = format!(
                "not needed; where the network takes them, `ip link set {netdev} mtu 4200` allows 4096"
            );
            return Finding::note("devices", text, cure);
        }
        Finding::good("devices", text)
    };
    list.iter().map(about).collect()
}

/// Whether packet sockets may be opened. Only the raw link needs them.
fn raw_link() -> Finding {
    const CHECK: &str = "raw link";
    match RawLink::check_rights() {
        Ok(()) => Finding::good(CHECK, "possible (RXE_LINK=raw, rxe run --link raw)"),
        Err(error) => {
            let wanted = LinkKind::from_environment() == Ok(LinkKind::Raw);
            let text = format!("not possible: {error}");
            let cure = "only RXE_LINK=raw needs it: CAP_NET_RAW (root, or setcap cap_net_raw+ep FILE)";
            if wanted { Finding::bad(CHECK, text, cure) } else { Finding::note(CHECK, text, cure) }
        }
    }
}

/// Whether the port is free. The only reliable check is to bind it.
fn port(list: &[Device]) -> Vec<Finding> {
    const CHECK: &str = "port 4791";
    let Some(device) = list.first() else { return Vec::new() };
    let served = matches!(Observer::connect(), Ok(Some(_)));
    // Checked for sockets, whatever link is configured. There is another check for frames.
    match ContextOptions::new().link(LinkKind::Udp).open(device) {
        Ok(_) if served => vec![Finding::good(CHECK, "shared by the host service")],
        Ok(_) => vec![Finding::good(CHECK, "free")],
        // Told by its own check.
        Err(OpenError::Config(_)) => Vec::new(),
        Err(error @ OpenError::Capture { .. }) => {
            let cure = "name another file by RXE_PCAP or RXE_TRACE, or unset it";
            vec![Finding::bad(ENVIRONMENT, error.to_string(), cure)]
        }
        Err(error @ OpenError::Host(HostError::Start(_))) => {
            let cure = "RXE_SERVICE names the program that is started: rxe, if it is not set";
            vec![Finding::bad("host service", error.to_string(), cure)]
        }
        Err(error) => {
            let mut text = error.to_string();
            let holders = holders();
            if !holders.is_empty() {
                text = format!("{text} (a socket of {} has it)", holders.join(" and "));
            }
            let cure = if fs::exists("/sys/module/rdma_rxe").unwrap_or_default() {
                "the kernel's rdma_rxe is loaded: `rdma link del` its links, or `modprobe -r rdma_rxe`"
            } else {
                "end the process that has it (`ss -lunp sport = :4791`), or use a network namespace of your own; \
                 processes of one user share it"
            };
            vec![Finding::bad(CHECK, text, cure)]
        }
    }
}

/// The users whose sockets are bound to the port.
fn holders() -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for file in ["/proc/net/udp", "/proc/net/udp6"] {
        let text = fs::read_to_string(file).unwrap_or_default();
        for line in text.lines().skip(1) {
            let mut fields = line.split_ascii_whitespace();
            let bound = fields.nth(1).and_then(|local| local.rsplit_once(':'));
            let port = bound.and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
            // local, remote, state, queues, timer, retransmissions, then the user.
            let user = fields.nth(5);
            if let (Some(PORT), Some(user)) = (port, user) {
                let user = format!("user {user}");
                if !found.contains(&user) {
                    found.push(user);
                }
            }
        }
    }
    found
}

fn number(path: &str) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

fn buffer(name: &'static str, what: &str) -> Finding {
    match number(&format!("/proc/sys/net/core/{name}")) {
        Ok(bytes) if bytes >= BUFFER => Finding::good(name, format!("{bytes} bytes of {what}")),
        Ok(bytes) => Finding::note(
            name,
            format!("only {bytes} bytes of {what}: works, but fast peers lose packets and wait"),
            format!("as root: sysctl -w net.core.{name}={BUFFER}"),
        ),
        Err(error) => Finding::of(
            State::Unknown,
            name,
            format!("cannot be read here: {error}"),
            "in a container it is the host's value",
        ),
    }
}

/// With two interfaces on one network, responses may arrive by the other one, and a strict filter drops them.
fn reverse_path(list: &[Device]) -> Finding {
    const CHECK: &str = "rp_filter";
    let value = |name: &str| number(&format!("/proc/sys/net/ipv4/conf/{name}/rp_filter")).unwrap_or(0);
    let all = value("all");
    let strict: Vec<&str> = list
        .iter()
        .filter(|device| device.netdev() != "lo")
        .map(Device::netdev)
        .filter(|netdev| all.max(value(netdev)) == 1)
        .collect();
    if strict.len() < 2 {
        return Finding::good(CHECK, "does not matter here");
    }
    let text = format!(
        "strict on {}: if two of them are on one network, packets that come by the other one are dropped",
        strict.join(", ")
    );
    Finding::note(CHECK, text, "as root: sysctl -w net.ipv4.conf.all.rp_filter=2")
}

/// Address translation and filters, as far as they are visible.
fn rules() -> Vec<Finding> {
    const NAT: &str = "address translation";
    const FILTER: &str = "packet filter";
    let listed = [("nft", vec!["list", "ruleset"]), ("iptables-save", vec![]), ("ip6tables-save", vec![])]
        .into_iter()
        .filter_map(|(program, arguments)| Command::new(program).args(arguments).output().ok())
        .filter(|output| output.status.success())
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let texts: Vec<String> = listed.collect();
    if texts.is_empty() {
        let text = "the rules cannot be listed here (needs privilege, and nft or iptables-save)";
        let cure = "if peers do not answer: the ICRC covers the addresses, so RoCE does not pass NAT, and both \
                    sides must let UDP 4791 in, from any source port";
        return vec![Finding::of(State::Unknown, FILTER, text, cure)];
    }
    let rules = texts.join("\n");
    vec![translation(NAT, &rules), filter(FILTER, &rules)]
}

fn translation(check: &'static str, rules: &str) -> Finding {
    // Names of ICMP messages contain such words, too (nd-redirect).
    let lines: Vec<String> =
        rules.lines().map(str::to_lowercase).filter(|line| !line.contains("icmp")).collect();
    let words = ["masquerade", "snat", "dnat", "redirect"];
    let found: Vec<&str> =
        words.into_iter().filter(|word| lines.iter().any(|line| line.contains(word))).collect();
    if found.is_empty() {
        return Finding::good(check, "none on this host");
    }
    Finding::note(
        check,
        format!(
            "there are rules with {}: the ICRC covers the addresses, so what they change is dropped",
            found.join(", ")
        ),
        "exempt UDP 4791, or have both peers on a network without translation (docker: --network host)",
    )
}

fn filter(check: &'static str, rules: &str) -> Finding {
    const CURE: &str = "as root: nft add rule inet filter input udp dport 4791 accept (or iptables -I INPUT -p udp --dport \
                        4791 -j ACCEPT)";
    let verdict = |words: &[&str]| {
        let says = |rule: &&str| {
            let what = about_our_port(rule, rules).unwrap_or_default().to_lowercase();
            words.iter().any(|word| what.contains(word))
        };
        rules.lines().find(says).map(str::trim)
    };
    let stateful = rules.contains("ct state") || rules.contains("--ctstate");
    match (verdict(&["accept"]), verdict(&["drop", "reject"])) {
        (None, Some(rule)) => Finding::bad(check, format!("a rule refuses UDP 4791: {rule}"), CURE),
        (Some(_), Some(rule)) => {
            let text = format!("some rules let UDP 4791 in, and one refuses it: {rule}");
            Finding::of(State::Unknown, check, text, "see which of them comes first: nft list ruleset")
        }
        (None, None) if closes_input(rules) => Finding::bad(
            check,
            if stateful {
                "input is dropped unless it answers something, and no rule is about UDP 4791: a peer's first packet \
                 comes from a source port that no packet went to"
            } else {
                "input is dropped, and no rule is about UDP 4791"
            },
            CURE,
        ),
        _ => Finding::good(check, "lets UDP 4791 in"),
    }
}

/// What a rule says of packets to UDP port 4791, if it is about them: the rule itself, or what is in a map of verdicts for the port.
fn about_our_port<'a>(rule: &'a str, rules: &'a str) -> Option<&'a str> {
    let (before, after) = rule.split_once("dport")?;
    let (how, value) = after.split_at(after.find(|c: char| c.is_ascii_digit() || matches!(c, '@' | '{'))?);
    let first = value.split_ascii_whitespace().next()?;
    let list = match (first.strip_prefix('@'), value.strip_prefix('{')) {
        (Some(name), _) => elements(rules, name)?,
        (None, Some(list)) => list.split('}').next()?,
        (None, None) => first,
    };
    let is_udp = |text: &str| text.contains("udp");
    let found =
        list.split(',').find(|entry| (is_udp(rule) || is_udp(entry)) && holds_our_port(entry, how.trim()));
    if how.contains("!=") || before.ends_with("! --") {
        return (is_udp(rule) && found.is_none()).then_some(rule);
    }
    Some(found?.split_once(" : ").map_or(rule, |(_, verdict)| verdict))
}

/// The elements of a named set or map of nft.
fn elements<'a>(rules: &'a str, name: &str) -> Option<&'a str> {
    let found = ["set", "map"].iter().find_map(|kind| rules.split_once(&format!("\t{kind} {name} {{\n")));
    let (set, _) = found?.1.split_once("\n\t}")?;
    set.split_once("elements = {")?.1.split('}').next()
}

/// Whether port 4791 is the one, or one of the range, that an entry of a list has. nft compares with single ports, too.
fn holds_our_port(entry: &str, how: &str) -> bool {
    // A counter may have the same number.
    let entry = entry.split("counter").next().unwrap_or(entry);
    entry.split_ascii_whitespace().any(|word| {
        let (low, high) = word.split_once(['-', ':']).unwrap_or((word, word));
        match (how, low.parse::<u16>(), high.parse::<u16>()) {
            ("<", Ok(port), _) => PORT < port,
            ("<=", Ok(port), _) => PORT <= port,
            (">", Ok(port), _) => PORT > port,
            (">=", Ok(port), _) => PORT >= port,
            (_, Ok(low), Ok(high)) => (low..=high).contains(&PORT),
            _ => false,
        }
    })
}

/// Whether what no rule lets in is dropped: by the policy of a chain for input, or by a rule without a condition in it (firewalld has
/// one at the end).
fn closes_input(rules: &str) -> bool {
    let mut input = false;
    rules.lines().map(str::trim).any(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if line == "}" || line.starts_with("chain ") {
            input = false;
        }
        input |= line.contains("type filter hook input");
        match words[..] {
            [":INPUT", "DROP", ..] | ["-A", "INPUT", "-j", "DROP" | "REJECT", ..] => true,
            ["drop" | "reject", ..] | ["counter", "packets", _, "bytes", _, "drop" | "reject", ..] => input,
            _ => input && line.contains("policy drop"),
        }
    })
}

fn sandbox() -> Vec<Finding> {
    const CHECK: &str = "sandbox";
    let mut findings = Vec::new();
    let version = fs::read_to_string("/proc/version").unwrap_or_default();
    // gVisor always reports this version.
    if version.contains("Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016") {
        findings.push(Finding::note(
            CHECK,
            "this looks like gVisor: sockets have neither segmentation offload nor steering programs",
            "works, more slowly, and for one process: RXE_SERVICE=off",
        ));
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    };
    if field("Seccomp") == Some("2") {
        findings.push(Finding::note(
            CHECK,
            "system calls are filtered here (seccomp)",
            "if a program ends by SIGSYS or says EPERM, allow bpf-free socket options, memfd_create, pidfd_open and \
             process_vm_readv; RXE_USERCOPY=kernel and RXE_SERVICE=off need fewer",
        ));
    }
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let whole = map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    if !map.is_empty() && !whole {
        findings.push(Finding::note(
            CHECK,
            "this is a user namespace: processes outside of it are another user's",
            "run all processes that share an address in the same one",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::good(CHECK, "none seen"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_as_nft_and_iptables_list_them() {
        let open =
            "table inet filter {\n\tchain input {\n\t\ttype filter hook input priority 0; policy accept;\n";
        assert_eq!(filter("", open).state, State::Good);
        let closed = open.replace("accept", "drop");
        assert_eq!(filter("", &closed).state, State::Bad);
        let stateful = format!("{closed}\t\tct state established accept\n");
        assert!(filter("", &stateful).text.contains("answers something"));
        let let_in = format!("{stateful}\t\tudp dport 4791 accept\n");
        assert_eq!(filter("", &let_in).state, State::Good);
        let old = "*filter\n:INPUT DROP [0:0]\n:FORWARD ACCEPT [0:0]\n";
        assert_eq!(filter("", old).state, State::Bad);
        assert_eq!(filter("", &format!("{old}-A INPUT -p udp --dport 4791 -j ACCEPT\n")).state, State::Good);
        assert_eq!(translation("", old).state, State::Good);
        let docker = "-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE\n";
        assert_eq!(translation("", docker).state, State::Note);
        let neighbours = "\t\ticmpv6 type { nd-redirect, nd-neighbor-solicit } accept\n";
        assert_eq!(translation("", neighbours).state, State::Good);
    }

    /// firewalld's chain accepts by its policy, and refuses by its last rule.
    #[test]
    fn a_last_rule_that_refuses_everything_closes_the_input() {
        let firewalld = "table inet firewalld {\n\tchain filter_INPUT {\n\t\ttype filter hook input priority filter + 10; \
                         policy accept;\n\t\tct state { established, related } accept\n\t\tjump filter_INPUT_ZONES\n\
                         \t\treject with icmpx admin-prohibited\n\t}\n";
        assert_eq!(filter("", firewalld).state, State::Bad);
        let zone = "\tchain filter_IN_public_allow {\n\t\tudp dport 4791 accept\n\t}\n";
        assert_eq!(filter("", &format!("{firewalld}{zone}")).state, State::Good);
        let elsewhere = firewalld.replace("hook input", "hook forward");
        assert_eq!(filter("", &elsewhere).state, State::Good);
        let old = ":INPUT ACCEPT [0:0]\n-A INPUT -i lo -j ACCEPT\n";
        assert_eq!(filter("", old).state, State::Good);
        let rejects = "-A INPUT -j REJECT --reject-with icmp-host-prohibited\n";
        assert_eq!(filter("", &format!("{old}{rejects}")).state, State::Bad);
    }

    #[test]
    fn a_rule_that_refuses_the_port_does_not_let_it_in() {
        assert_eq!(filter("", "\t\tudp dport 4791 drop\n").state, State::Bad);
        assert_eq!(filter("", "-A INPUT -p udp -m udp --dport 4791 -j REJECT\n").state, State::Bad);
        let counted = ":INPUT DROP [0:0]\n\t\tudp dport 53 counter packets 4791 bytes 9 accept\n";
        assert_eq!(filter("", counted).state, State::Bad);
        let both = "\t\tiifname \"eth1\" udp dport { 4789, 4791 } drop\n\t\tudp dport 4791 accept\n";
        assert_eq!(filter("", both).state, State::Unknown);
    }

    /// Most firewalls have lists and ranges, with 4791 somewhere in them.
    #[test]
    fn ports_are_found_in_ranges_lists_and_sets() {
        let closed = ":INPUT DROP [0:0]\n";
        let sets = "\tset ports {\n\t\ttype inet_service\n\t\tflags interval\n\t\telements = { 53, 80,\n\t\t\t     4000-5000 }\n\t}\n\
                    \tmap verdicts {\n\t\ttype inet_service : verdict\n\t\telements = { 53 : drop, 4791 : accept }\n\t}\n\
                    \tset both {\n\t\telements = { tcp . 22, udp . 4791 }\n\t}\n\
                    \tset other {\n\t\telements = { 4790, tcp . 4791 }\n\t}\n";
        let state = |rule: &str| filter("", &format!("{closed}{sets}\t\t{rule}\n")).state;
        for rule in [
            "udp dport 4000-5000 accept",
            "udp dport { 53, 4000-5000 } counter packets 0 bytes 0 accept",
            "udp dport >= 1024 accept",
            "udp dport != 53 accept",
            "udp dport @ports accept",
            "udp dport vmap { 53 : drop, 4000-5000 : accept }",
            "udp dport vmap @verdicts",
            "meta l4proto . th dport @both accept",
            "-A INPUT -p udp -m udp --dport 4000:5000 -j ACCEPT",
            "-A INPUT -p udp -m multiport --dports 53,4000:5000 -j ACCEPT",
        ] {
            assert_eq!(state(rule), State::Good, "{rule}");
        }
        for rule in [
            "udp dport 4792-5000 accept",
            "udp dport < 4791 accept",
            "udp dport != { 53, 4000-5000 } accept",
            "udp dport 53 meta length 100-5000 accept",
            "udp dport vmap { 53 : accept, 4791 : drop }",
            "th dport @other accept",
            "tcp dport != 22 accept",
            "udp dport @nowhere accept",
            "-A INPUT -p udp -m udp ! --dport 4000:5000 -j ACCEPT",
        ] {
            assert_eq!(state(rule), State::Bad, "{rule}");
        }
    }
}
