//! The raw link between network namespaces: both RoCEs, segmentation by the kernel and without it, VLANs, bad surroundings.
//! What leaves is judged by scripts/icrc-check, which shares no code with us. Needs root.

mod verbs_common;

use rxe_core::wire::icrc;
use rxe_verbs::{
    Context, ContextOptions, Gid, GidType, Mtu, OpenError, QpType, Qpn, RecvWr, Remote, SendOp, SendWr,
    UdDest, WcStatus,
    net::{LinkKind, OpenError as LinkError, RawLink, UdpConfig, UdpLink},
};
use std::{
    io::Write,
    net::IpAddr,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};
use verbs_common::{
    End, Two, connect_by, datagram_end, namespaces,
    netns::{
        self,
        frames::{TaggingSwitch, frames, injector},
    },
    pattern,
};

fn open(namespace: &netns::Namespace, address: &'static str, kind: LinkKind) -> Context {
    let address: IpAddr = address.parse().unwrap();
    namespace.run(move || ContextOptions::new().alone().link(kind).open_address(address).unwrap())
}

fn remote(end: &End) -> Remote {
    Remote { addr: end.mr.addr(), rkey: end.mr.rkey() }
}

/// Messages of every kind between the GIDs of a type, and back.
fn play(two: &Two, kind: GidType, mtu: Mtu) -> (End, End) {
    const LEN: usize = 150_000;
    let index = two.a.gids().find(two.a.gids().get(0), kind).expect("a GID of this type");
    let (a, b) = (End::new(&two.a, QpType::Rc, 2 * LEN), End::new(&two.b, QpType::Rc, 2 * LEN));
    connect_by(&a.qp, &b.qp, mtu, index);
    let data = pattern(kind as u64 + 1, LEN);
    a.mr.write_at(0, &data).unwrap();
    a.qp.post_send(&SendWr::new(1, SendOp::Write(remote(&b)), &[a.mr.sge(0, LEN as u32)])).unwrap();
    let wc = a.wait();
    let about = |context: &Context| format!("{:?}\n{:?}", context.port_stats(), context.link_report());
    assert_eq!(wc.status, WcStatus::Success, "{kind}\n{}\n{}", about(&two.a), about(&two.b));
    a.qp.post_send(&SendWr::new(2, SendOp::Read(remote(&b)), &[a.mr.sge(LEN, LEN as u32)])).unwrap();
    a.good();
    let mut back = vec![0; LEN];
    a.mr.read_at(LEN, &mut back).unwrap();
    assert!(back == data, "{kind}: what was read back differs");
    for (from, to) in [(&a, &b), (&b, &a)] {
        to.qp.post_recv(&RecvWr { wr_id: 3, sges: &[to.mr.sge(0, 100)] }).unwrap();
        from.qp.post_send(&SendWr::new(3, SendOp::Send, &[from.mr.sge(0, 100)])).unwrap();
        assert_eq!((from.good().wr_id, to.good().byte_len), (3, 100));
    }
    for context in [&two.a, &two.b] {
        let stats = context.port_stats();
        assert_eq!((stats.dropped_icrc, stats.dropped_by_qp), (0, 0), "{kind}: {stats:?}");
    }
    (a, b)
}

/// Has scripts/icrc-check judge the frames that a capture holds.
fn judge(wire: &socket2::Socket, least: usize) {
    let mut text = String::new();
    for frame in frames(wire) {
        frame.iter().for_each(|byte| text += &format!("{byte:02x}"));
        text.push('\n');
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/icrc-check");
    let mut child = Command::new(script)
        .args(["--min", &least.to_string(), "/dev/stdin"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("scripts/icrc-check");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn both_roces_over_veth() {
    for (mtu, path_mtu) in [(1500, Mtu::M1024), (9000, Mtu::M4096)] {
        let Some((left, right)) = namespaces(mtu) else { return };
        // Batches are cut before they reach the capture.
        left.ip(&format!("link set v0 gso_max_size {}", path_mtu.bytes() + 150));
        right.ip(&format!("link set v1 gso_max_size {}", path_mtu.bytes() + 150));
        let wire = netns::capture(&right);
        // The link has the system look for the neighbour.
        left.ip("neigh flush dev v0");
        right.ip("neigh flush dev v1");
        let two =
            Two::of("raw", open(&left, "10.9.0.1", LinkKind::Raw), open(&right, "10.9.0.2", LinkKind::Raw));
        for kind in [GidType::RoceV2, GidType::RoceV1] {
            drop(play(&two, kind, path_mtu));
            // What the capture's buffer takes: some dozens of packets at least.
            judge(&wire, 15);
        }
    }
}

/// Frames of several packets arrive where the sender is on the same host, and are cut here.
#[test]
fn merged_frames_are_cut() {
    let Some((left, right)) = namespaces(9000) else { return };
    let two = Two::of("raw", open(&left, "10.9.0.1", LinkKind::Raw), open(&right, "10.9.0.2", LinkKind::Raw));
    play(&two, GidType::RoceV2, Mtu::M4096);
    let two = Two::of("mixed", open(&left, "fd09::1", LinkKind::Raw), open(&right, "fd09::2", LinkKind::Udp));
    play(&two, GidType::RoceV2, Mtu::M4096);
}

/// A socket at one end, frames at the other, either way; and nobody is told that the port is closed.
#[test]
fn raw_talks_to_sockets() {
    let Some((left, right)) = namespaces(1500) else { return };
    let two =
        Two::of("mixed", open(&left, "10.9.0.1", LinkKind::Raw), open(&right, "10.9.0.2", LinkKind::Udp));
    play(&two, GidType::RoceV2, Mtu::M1024);
    play(&Two::of("turned", two.b.clone(), two.a.clone()), GidType::RoceV2, Mtu::M1024);
    let unreachable = left.run(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let row = |text: &str| {
        text.lines().filter(|line| line.starts_with("Icmp:")).map(str::to_owned).collect::<Vec<_>>()
    };
    let rows = row(&unreachable);
    let names: Vec<&str> = rows[0].split(' ').collect();
    let values: Vec<&str> = rows[1].split(' ').collect();
    let at = names.iter().position(|name| *name == "OutDestUnreachs").expect("a counter");
    assert_eq!(values[at], "0", "the kernel answered a peer");
}

#[test]
fn both_roces_over_a_vlan() {
    let Some((left, right)) = namespaces(1500) else { return };
    if !left.has_vlans("v0") {
        return;
    }
    for (namespace, parent, number) in [(&left, "v0", 1), (&right, "v1", 2)] {
        namespace.ip(&format!("link add link {parent} name vlan5 type vlan id 5"));
        namespace.ip("link set vlan5 up");
        namespace.ip(&format!("addr add 10.9.5.{number}/24 dev vlan5"));
    }
    let two =
        Two::of("vlan", open(&left, "10.9.5.1", LinkKind::Raw), open(&right, "10.9.5.2", LinkKind::Raw));
    for kind in [GidType::RoceV2, GidType::RoceV1] {
        play(&two, kind, Mtu::M1024);
    }
}

/// Every frame has a VLAN tag on its way. (Frames of other VLANs than 0 come and go by the system's interfaces for them, as
/// above.)
#[test]
fn both_roces_with_priority_tags() {
    let Some(([left, right], switch)) = TaggingSwitch::new() else { return };
    left.ip("addr add 10.9.0.1/24 dev v0");
    right.ip("addr add 10.9.0.2/24 dev v1");
    let two = Two::of("raw", open(&left, "10.9.0.1", LinkKind::Raw), open(&right, "10.9.0.2", LinkKind::Raw));
    for kind in [GidType::RoceV2, GidType::RoceV1] {
        let before = switch.tagged();
        play(&two, kind, Mtu::M1024);
        // The packets of the WRITE and of the READ's answer. How many acknowledgements there are is chance.
        assert!(switch.tagged() >= before + 2 * 147, "they have gone another way");
    }
}

/// Two contexts on one host: packets go by the loopback interface.
#[test]
fn two_on_one_interface() {
    let Some((left, _right)) = namespaces(1500) else { return };
    left.ip("addr add 10.9.0.11/24 dev v0");
    let two = Two::of("one", open(&left, "10.9.0.1", LinkKind::Raw), open(&left, "10.9.0.11", LinkKind::Raw));
    for kind in [GidType::RoceV2, GidType::RoceV1] {
        play(&two, kind, Mtu::M1024);
    }
}

/// Loopback addresses come from outside by no wire, but they do come by the loopback interface.
#[test]
fn two_on_loopback_addresses() {
    let Some((left, _right)) = namespaces(1500) else { return };
    let two = Two::of("lo", open(&left, "127.0.0.1", LinkKind::Raw), open(&left, "127.0.0.2", LinkKind::Raw));
    play(&two, GidType::RoceV2, Mtu::M1024);
}

/// What cannot work is said in words.
#[test]
fn missing_neighbours_and_interfaces_are_named() {
    let Some((left, right)) = namespaces(1500) else { return };
    let two = Two::of("raw", open(&left, "10.9.0.1", LinkKind::Raw), open(&right, "10.9.0.2", LinkKind::Raw));
    let [from, to] = [&two.a, &two.b].map(datagram_end);
    let dest = way(&from, &to);
    let await_words = |words: &str| {
        let mut waiting = netns::Waiting::new();
        while !two.a.link_report().last_error.is_some_and(|error| error.contains(words)) {
            assert!(!waiting.is_over(), "{words}: {:?}", two.a.link_report());
            send_datagram(&from, dest);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    left.sysctl("ipv4/neigh/v0/mcast_solicit", "1");
    right.ip("link set v1 arp off");
    right.ip("link set v1 address 02:00:00:00:99:99");
    left.ip("neigh flush dev v0");
    left.ip("neigh replace 10.9.0.2 dev v0 nud failed");
    await_words("neighbour table has no address for 10.9.0.2 on v0");
    assert!(two.a.link_report().no_neighbour > 0, "{:?}", two.a.link_report());
    right.ip("link set v1 arp on");
    right.ip("link set v1 address 02:00:00:00:77:77");
    left.ip("neigh replace 10.9.0.2 dev v0 lladdr 02:00:00:00:77:77");
    post_recv(&to, 1);
    send_datagram(&from, dest);
    to.good();
    left.ip("link set v0 down");
    await_words("v0 is down");
    assert!(two.a.link_report().interface_down > 0, "{:?}", two.a.link_report());
}

/// The way to a datagram queue pair.
fn way(from: &End, to: &End) -> UdDest {
    let av = from.qp.context().address_vector(0, to.gid()).unwrap();
    from.pd.create_ah(av).dest(to.qp.qpn(), verbs_common::QKEY)
}

/// Sends a datagram.
fn send_datagram(from: &End, dest: UdDest) {
    let sges = [from.mr.sge(0, 20)];
    from.qp.post_send(&SendWr { dest: Some(dest), ..SendWr::new(1, SendOp::Send, &sges) }).unwrap();
    from.good();
}

fn post_recv(end: &End, wr_id: u64) {
    end.qp.post_recv(&RecvWr { wr_id, sges: &[end.mr.sge(0, 100)] }).unwrap();
}

/// A packet waits for as long as the kernel looks for the neighbour, and those for others do not wait with it.
#[test]
fn one_waits_for_its_neighbour_and_the_others_do_not() {
    let Some((left, right)) = namespaces(1500) else { return };
    right.ip("addr add 10.9.0.3/24 dev v1");
    right.ip("link set v1 address 02:00:00:00:77:77");
    right.ip("link set v1 arp off");
    left.ip("neigh flush dev v0");
    left.ip("neigh replace 10.9.0.3 dev v0 lladdr 02:00:00:00:77:77");
    // It looks for a minute.
    left.sysctl("ipv4/neigh/v0/mcast_solicit", "60");
    let from = datagram_end(&open(&left, "10.9.0.1", LinkKind::Raw));
    let sought = datagram_end(&open(&right, "10.9.0.2", LinkKind::Raw));
    let known = datagram_end(&open(&right, "10.9.0.3", LinkKind::Raw));
    (0..2).for_each(|wr_id| post_recv(&sought, wr_id));
    (0..3).for_each(|wr_id| post_recv(&known, wr_id));
    let [to_sought, to_known] = [&sought, &known].map(|to| way(&from, to));
    send_datagram(&from, to_sought);
    for turn in 0..3 {
        send_datagram(&from, to_known);
        assert_eq!(known.good().wr_id, turn);
    }
    send_datagram(&from, to_sought);
    let report = from.qp.context().link_report();
    assert_eq!((report.unreachable, report.blocked), (0, 0), "{report:?}");
    left.ip("neigh replace 10.9.0.2 dev v0 lladdr 02:00:00:00:77:77");
    assert_eq!((sought.good().wr_id, sought.good().wr_id), (0, 1));
}

/// Whoever goes on sending to a neighbour that was not found finds it when it is there.
#[test]
fn a_neighbour_that_comes_late_is_found() {
    let Some((left, right)) = namespaces(1500) else { return };
    right.ip("link set v1 arp off");
    left.ip("neigh flush dev v0");
    left.sysctl("ipv4/neigh/v0/mcast_solicit", "1");
    let from = datagram_end(&open(&left, "10.9.0.1", LinkKind::Raw));
    let to = datagram_end(&open(&right, "10.9.0.2", LinkKind::Raw));
    post_recv(&to, 1);
    let (mut waiting, dest) = (netns::Waiting::new(), way(&from, &to));
    let report = || from.qp.context().link_report();
    // All that wait for one search are lost with it, each counted.
    (0..5).for_each(|_| send_datagram(&from, dest));
    while report().no_neighbour < 5 {
        assert!(!waiting.is_over(), "{:?}", report());
        std::thread::sleep(Duration::from_millis(5));
    }
    while report().no_neighbour < 7 {
        assert!(!waiting.is_over(), "{:?}", report());
        send_datagram(&from, dest);
        std::thread::sleep(Duration::from_millis(5));
    }
    right.ip("link set v1 arp on");
    let mut found = None;
    while found.is_none() {
        assert!(!waiting.is_over(), "{:?}", report());
        send_datagram(&from, dest);
        found = to.cq.poll_within(Duration::from_millis(5)).unwrap();
    }
}

/// A neighbour that gets another station's address without a word is found again, by both families: the kernel hears that its
/// entry is in use, though no packet of ours goes by it, and looks whether it still holds.
#[test]
fn a_neighbour_with_another_station_is_found_again() {
    let Some((left, right)) = namespaces(1500) else { return };
    left.ip("link set v0 address 02:00:00:00:66:01");
    for (own, other, family) in [("10.9.0.1", "10.9.0.2", "ipv4"), ("fd09::1", "fd09::2", "ipv6")] {
        // One look that has no answer is enough.
        for (name, value) in [("delay_first_probe_time", "1"), ("ucast_solicit", "1")] {
            left.sysctl(&format!("{family}/neigh/v0/{name}"), value);
        }
        right.ip("link set v1 address 02:00:00:00:66:02");
        // The entry is old, and the other host asks for nobody, by which it would tell its address.
        left.ip(&format!("neigh replace {other} dev v0 lladdr 02:00:00:00:66:02 nud stale"));
        right.ip(&format!("neigh replace {own} dev v1 lladdr 02:00:00:00:66:01 nud permanent"));
        let from = datagram_end(&open(&left, own, LinkKind::Raw));
        let to = datagram_end(&open(&right, other, LinkKind::Raw));
        let (mut waiting, dest) = (netns::Waiting::new(), way(&from, &to));
        post_recv(&to, 1);
        send_datagram(&from, dest);
        to.good();
        post_recv(&to, 2);
        right.ip("link set v1 address 02:00:00:00:66:03");
        let mut found = None;
        while found.is_none() {
            assert!(!waiting.is_over(), "{:?}", from.qp.context().link_report());
            send_datagram(&from, dest);
            found = to.cq.poll_within(Duration::from_millis(20)).unwrap();
        }
    }
}

#[test]
fn a_v1_gid_needs_the_raw_link() {
    let Some((left, _right)) = namespaces(1500) else { return };
    let context = open(&left, "10.9.0.1", LinkKind::Udp);
    assert_eq!(context.gids().find(context.gids().get(0), GidType::RoceV1), None);
    let context = open(&left, "fd09::1", LinkKind::Raw);
    assert!(context.gids().find(context.gids().get(0), GidType::RoceV1).is_some());
}

/// Without the capability the error says what would help. The thread gives it up for itself alone.
#[test]
fn without_the_capability_it_says_so() {
    let Some(namespace) = netns::Namespace::new() else { return };
    let error = namespace.run(|| {
        let udp = UdpConfig { slots: None, ..UdpConfig::only([127, 0, 0, 1].into(), 0) };
        let port = UdpLink::open(&udp).unwrap();
        // SAFETY: a system call that changes the calling thread's user alone, which ends with the namespace.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, 65_534, -1) }, 0);
        RawLink::open(port, 0, false, &udp).map(drop)
    });
    assert!(matches!(error, Err(LinkError::RawForbidden { .. })), "{error:?}");
    let words = OpenError::from(error.unwrap_err()).to_string();
    assert!(words.contains("CAP_NET_RAW") && words.contains("setcap"), "{words}");
}

/// A group of RoCE v1 has a GID of its own, which is no mapped IPv4 address: its frames go to 33:33 and its last four bytes.
#[test]
fn groups_of_both_roces() {
    let Some((left, right)) = namespaces(1500) else { return };
    let wire = netns::capture(&right);
    let two = Two::of("raw", open(&left, "10.9.0.1", LinkKind::Raw), open(&right, "10.9.0.2", LinkKind::Raw));
    let ends = [&two.a, &two.b].map(datagram_end);
    for (kind, group, station) in [
        (GidType::RoceV2, "239.1.2.3", [0x01, 0x00, 0x5e, 1, 2, 3]),
        (GidType::RoceV1, "ff0e::ffff:ef01:203", [0x33, 0x33, 0xef, 1, 2, 3]),
    ] {
        let group: Gid = Gid::from(group.parse::<IpAddr>().unwrap());
        for (from, to) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            let context = from.qp.context();
            to.qp.attach_multicast(group).unwrap();
            to.qp.post_recv(&RecvWr { wr_id: 7, sges: &[to.mr.sge(0, 100)] }).unwrap();
            let index = context.gids().find(context.gids().get(0), kind).unwrap();
            let av = context.address_vector(index, group).unwrap();
            let dest = from.pd.create_ah(av).dest(Qpn::MULTICAST, verbs_common::QKEY);
            let sges = [from.mr.sge(0, 20)];
            from.qp.post_send(&SendWr { dest: Some(dest), ..SendWr::new(8, SendOp::Send, &sges) }).unwrap();
            from.good();
            let wc = to.good();
            assert_eq!((wc.wr_id, wc.byte_len, wc.src_qp), (7, 60, from.qp.qpn()), "{kind}");
            to.qp.detach_multicast(group).unwrap();
        }
        let to_station = frames(&wire).into_iter().filter(|frame| frame.starts_with(&station)).count();
        // One came, the other left.
        assert!(to_station >= 1, "{kind}");
    }
}

/// What is thrown away is counted by its reason, and does no harm.
#[test]
fn what_is_thrown_away_is_counted_by_name() {
    let Some((left, right)) = namespaces(1500) else { return };
    let wire = netns::capture(&left);
    let two = Two::of("raw", open(&left, "10.9.0.1", LinkKind::Raw), open(&right, "10.9.0.2", LinkKind::Raw));
    // The acknowledgement of a small message.
    let answer = |kind, ethertype: [u8; 2]| {
        let (a, b) = play(&two, kind, Mtu::M1024);
        frames(&wire);
        a.qp.post_send(&SendWr::new(1, SendOp::Write(remote(&b)), &[a.mr.sge(0, 100)])).unwrap();
        a.good();
        let is_answer = |frame: &Vec<u8>| frame[12..14] == ethertype && (60..80).contains(&frame.len());
        let frame = frames(&wire).into_iter().find(is_answer).expect("an acknowledgement");
        ((a, b), frame)
    };
    let ((a, b), v2) = answer(GidType::RoceV2, [0x08, 0x00]);
    let (_others, mut v1) = answer(GidType::RoceV1, [0x89, 0x15]);
    v1[54 + 5..54 + 8].copy_from_slice(&a.qp.qpn().value().to_be_bytes()[1..]);
    icrc::seal(&icrc::Route::v1([10, 9, 0, 2].into(), [10, 9, 0, 1].into()), 0, &mut v1[54..]);
    let with = |frame: &[u8], at: usize, bytes: &[u8]| {
        let mut frame = frame.to_vec();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let tagged = [&v2[..12], &[0x81, 0x00, 0x00, 0x05], &v2[12..]].concat();
    let to_another = with(&v2, 0, &[0x02, 0, 0, 0, 0x99, 0x99]);
    let cases = [
        ("dropped_other_station", to_another),
        ("dropped_other_vlan", tagged),
        ("dropped_frame_length", with(&v1, 18, &[0x00, 0xff])),
        ("dropped_frame_length", with(&v2, 38, &[0x0f, 0xff])),
        ("dropped_foreign_frame", with(&v1, 14, &[0x50])),
        ("dropped_fragment", with(&v2, 20, &[0x20])),
    ];
    let (socket, to) = injector(&right, "v1");
    let count = |name: &str| {
        let report = two.a.link_report();
        report.counters().find(|(own, _)| *own == name).unwrap_or_else(|| panic!("no {name}")).1
    };
    let mut waiting = netns::Waiting::new();
    for (name, frame) in cases {
        let before = count(name);
        while count(name) == before {
            assert!(!waiting.is_over(), "{name}: {:?}", two.a.link_report());
            socket.send_to(&frame, &to).unwrap();
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    // RoCE v1 for a queue pair of RoCE v2.
    while a.qp.stats().dropped_gid_type == 0 {
        assert!(!waiting.is_over(), "{:?}", a.qp.stats());
        socket.send_to(&v1, &to).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    // Padded to the shortest length that Ethernet has, and further: it is the packet that it was.
    let stats = || (two.a.port_stats().packets_received, two.a.port_stats().dropped_icrc);
    let before = stats();
    while stats().0 == before.0 {
        assert!(!waiting.is_over(), "{:?}", two.a.port_stats());
        socket.send_to(&[&v2[..], &[0; 30]].concat(), &to).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(stats().1, before.1, "padding counts as a part of the packet");
    // The connection has not noticed.
    a.qp.post_send(&SendWr::new(1, SendOp::Write(remote(&b)), &[a.mr.sge(0, 1000)])).unwrap();
    a.good();
}
