//! Devices, contexts and GID tables; and the errors if something is not possible.

mod verbs_common;

use rxe_verbs::{
    Access, AddressError, AsyncEvent, Context, ContextOptions, Device, Gid, ModifyQpError, Mtu, OpenError,
    Pkey, Polling, PortState, Psn, QpChange, QpInit, QpState, QpType, RegisterError, SendOp, SendWr, devices,
    net::{Holder, InprocNet},
};
use std::{collections::HashSet, net::IpAddr, process::Command};
use verbs_common::{End, PATIENCE, connected, inproc, loopback};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn the_loopback_is_a_device() {
    let list = devices().unwrap();
    let lo = list.last().expect("a device");
    assert!(lo.interface().loopback, "the last one is {lo:?}");
    assert_eq!((lo.active_mtu(), lo.state()), (Mtu::M4096, PortState::Active));
    assert_eq!(lo.gids().get(0), Gid::from(ip("127.0.0.1")));
    let names: HashSet<&str> = list.iter().map(Device::name).collect();
    assert!(names.contains("rxe0") && names.len() == list.len());
    assert_eq!(Device::find("lo").unwrap(), Device::find(lo.name()).unwrap());
    let missing = Device::find("rxe99").unwrap_err();
    assert_eq!((missing.errno(), missing.to_string().contains("rxe99")), (libc::ENODEV, true));
}

#[test]
fn one_port_for_a_process() {
    let address = loopback(20);
    let open = || ContextOptions::new().alone().open_address(address).unwrap();
    let (a, b) = (open(), open());
    let (x, y) = (End::new(&a, QpType::Rc, 64), End::new(&b, QpType::Rc, 64));
    assert_ne!(x.qp.qpn(), y.qp.qpn());
    assert_ne!(x.pd.id(), y.pd.id());
    assert_ne!(x.cq.id(), y.cq.id());
    assert_ne!(x.mr.rkey(), y.mr.rkey());
    assert_eq!((a.gids().get(0), a.gids().get(1)), (Gid::from(address), Gid::from(address)));
    assert_eq!(a.gids().len(), 2);
}

#[test]
fn foreign_and_missing_addresses() {
    let error = Context::open_address(ip("192.0.2.77")).unwrap_err();
    assert!(matches!(error, OpenError::NotLocal(_)), "{error}");
    assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
}

/// Another process has the port: this test runs itself again to be that process.
#[test]
fn the_port_is_held() {
    const VARIABLE: &str = "RXE_TEST_HOLD_ADDRESS";
    if let Ok(address) = std::env::var(VARIABLE) {
        let error = ContextOptions::new().alone().open_address(ip(&address)).map(drop).unwrap_err();
        println!("errno {} {error}", error.errno());
        assert!(matches!(
            error,
            OpenError::Link(rxe_verbs::net::OpenError::PortHeld { holder: Holder::Process { .. }, .. })
        ));
        return;
    }
    let address = loopback(21);
    let _context = ContextOptions::new().alone().open_address(address).unwrap();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_port_is_held", "--nocapture"])
        .env(VARIABLE, address.to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let pid = std::process::id();
    assert!(text.contains(&format!("errno {}", libc::EADDRINUSE)), "{text}");
    assert!(text.contains(&format!("process {pid}")), "{text}");
}

#[test]
fn ways_to_a_peer() {
    let context = Context::open_inproc(&InprocNet::new(), &[ip("10.0.0.1"), ip("fd00::1")]).unwrap();
    let to = |index, gid: &str| context.address_vector(index, gid.parse().unwrap());
    let av = to(0, "10.0.0.9").unwrap();
    assert_eq!((av.src, av.dst, av.sgid_index), (ip("10.0.0.1"), ip("10.0.0.9"), 0));
    assert_eq!(to(1, "fd00::9").unwrap().src, ip("fd00::1"));
    assert!(matches!(to(0, "fd00::9"), Err(AddressError::Family { .. })));
    assert!(matches!(to(1, "fe80::9"), Err(AddressError::Scope { .. })));
    assert_eq!(to(7, "10.0.0.9"), Err(AddressError::Index { index: 7, entries: 2 }));
    assert_eq!(context.address_vector(0, Gid::ZERO), Err(AddressError::NoDestination));
}

#[test]
fn interfaces_are_chosen_where_needed() {
    let Some((left, _right)) = verbs_common::namespaces(1500) else { return };
    let context = left.run(|| Context::open(&Device::find("v0").unwrap()).unwrap());
    let index = context.device().interface().index;
    let gids: Vec<_> = context.gids().iter().map(|(index, gid)| (index, gid.address().unwrap())).collect();
    assert_eq!(gids, [(0, ip("10.9.0.1")), (1, ip("fd09::1")), (2, ip("fe80::1"))]);
    assert_eq!(context.port().active_mtu, Mtu::M1024);
    for (source, destination, interface) in [
        (0, "10.9.0.2", index),
        (0, "10.9.0.1", 0),
        (0, "192.0.2.1", 0),
        (0, "239.0.0.1", index),
        (1, "fd09::2", index),
        (1, "2001:db8::1", 0),
        (2, "fe80::2", index),
    ] {
        let av = context.address_vector(source, destination.parse().unwrap()).unwrap();
        assert_eq!(av.ifindex, interface, "{destination}");
    }
}

/// Over veth with IPv4, IPv6 and link-local addresses.
#[test]
fn between_two_namespaces() {
    let Some((left, right)) = verbs_common::namespaces(9000) else { return };
    let a = left.run(|| Context::open(&Device::find("v0").unwrap()).unwrap());
    let b = right.run(|| Context::open(&Device::find("v1").unwrap()).unwrap());
    for index in 0..3 {
        let (x, y) = (End::new(&a, QpType::Rc, 1 << 16), End::new(&b, QpType::Rc, 1 << 16));
        verbs_common::connect_by(&x.qp, &y.qp, Mtu::M4096, index);
        let data = verbs_common::pattern(index.into(), 50_000);
        x.mr.write_at(0, &data).unwrap();
        let remote = rxe_verbs::Remote { addr: y.mr.addr(), rkey: y.mr.rkey() };
        x.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[x.mr.sge(0, 50_000)])).unwrap();
        x.good();
        assert_eq!(y.mr.read_vec(0, 50_000).unwrap(), data);
    }
    assert_eq!(a.port_stats().dropped_icrc + b.port_stats().dropped_icrc, 0);
}

/// Waits for an event; others come between, when interfaces settle.
fn await_event(context: &Context, event: AsyncEvent) {
    while context.get_async_event(Some(PATIENCE)).expect("an event") != event {}
}

#[test]
fn the_gid_table_follows_the_network() {
    // With `Busy` the background thread never sleeps.
    for polling in [Polling::Adaptive, Polling::Busy] {
        let Some((left, _right)) = verbs_common::namespaces(1500) else { return };
        check_gid_table(&left, polling);
    }
}

fn check_gid_table(left: &verbs_common::netns::Namespace, polling: Polling) {
    let context =
        left.run(move || ContextOptions::new().polling(polling).open(&Device::find("v0").unwrap()).unwrap());
    // The background thread is the one that hears of changes.
    let _end = left.run({
        let context = context.clone();
        move || End::new(&context, QpType::Rc, 64)
    });
    // Each change is reported when the table already has it. A change that was under way before is reported, too.
    let await_gid = |index, gid: Gid| loop {
        await_event(&context, AsyncEvent::GidChange);
        if context.gids().get(index) == gid {
            break;
        }
    };
    let new: Gid = "10.9.7.7".parse().unwrap();
    left.ip("addr add 10.9.7.7/24 dev v0");
    await_gid(3, new);
    left.ip("addr del 10.9.0.1/24 dev v0");
    await_gid(0, Gid::ZERO);
    assert_eq!(context.gids().get(3), new);
    let gone = context.address_vector(0, "10.9.0.2".parse().unwrap());
    assert!(matches!(gone, Err(AddressError::Index { index: 0, .. })));
    left.ip("link set v0 mtu 4500");
    left.ip("link set v0 down");
    await_event(&context, AsyncEvent::PortError);
    assert_eq!((context.port().state, context.port().active_mtu), (PortState::Down, Mtu::M4096));
    left.ip("link set v0 up");
    await_event(&context, AsyncEvent::PortActive);
}

/// A program that only watches (ibv_asyncwatch) has none.
#[test]
fn events_of_the_network_need_no_queue_pair() {
    let Some((left, _right)) = verbs_common::namespaces(1500) else { return };
    let context = left.run(|| Context::open(&Device::find("v0").unwrap()).unwrap());
    left.ip("addr add 10.9.7.7/24 dev v0");
    let watcher = context.clone();
    left.run(move || {
        let start = std::time::Instant::now();
        while watcher.try_get_async_event() != Some(AsyncEvent::GidChange) {
            assert!(start.elapsed() < PATIENCE, "nobody has heard of the new address");
        }
    });
    std::thread::scope(|scope| {
        let (left, (begun, waits)) = (&left, std::sync::mpsc::channel());
        let waiting = scope.spawn(move || {
            left.run(move || {
                begun.send(()).unwrap();
                await_event(&context, AsyncEvent::GidChange);
            });
        });
        waits.recv().unwrap();
        left.ip("addr del 10.9.7.7/24 dev v0");
        waiting.join().unwrap();
    });
}

#[test]
fn a_path_mtu_above_the_ports() {
    let Some((left, _right)) = verbs_common::namespaces(1500) else { return };
    let context = left.run(|| Context::open(&Device::find("v0").unwrap()).unwrap());
    let end = left.run({
        let context = context.clone();
        move || End::new(&context, QpType::Rc, 64)
    });
    verbs_common::to_init(&end.qp);
    let change = QpChange {
        state: Some(QpState::Rtr),
        av: Some(context.address_vector(0, "10.9.0.2".parse().unwrap()).unwrap()),
        path_mtu: Some(Mtu::M4096),
        dest_qpn: Some(end.qp.qpn()),
        rq_psn: Some(Psn::new(0)),
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(12),
        ..QpChange::default()
    };
    let error = end.qp.modify(&change).unwrap_err();
    assert!(
        matches!(error, ModifyQpError::PathMtu { wanted: 4096, active: 1024, needed: 4176, .. }),
        "{error}"
    );
    assert_eq!((end.qp.state(), error.errno()), (QpState::Init, libc::EINVAL));
}

#[test]
fn what_is_refused_says_why() {
    let two = inproc();
    let end = End::new(&two.a, QpType::Rc, 64);
    let missing = end.qp.modify(&QpChange { state: Some(QpState::Init), ..QpChange::default() }).unwrap_err();
    assert!(missing.to_string().contains("PKEY_INDEX"), "{missing}");
    let rights = end.pd.alloc_mr(64, Access::REMOTE_WRITE).unwrap_err();
    assert!(matches!(rights, RegisterError::Region(_)) && rights.errno() == libc::EINVAL, "{rights}");
    assert!(end.pd.alloc_mr(0, Access::empty()).is_err());
    let many = two.a.create_cq(u32::MAX, None).unwrap_err();
    assert!(many.to_string().contains("4294967295"), "{many}");
    let other = two.b.create_cq(1, None).unwrap();
    let stranger = end.pd.create_qp(&QpInit::new(QpType::Rc, &other)).unwrap_err();
    assert!(stranger.to_string().contains("completion queue"), "{stranger}");
    assert_eq!(end.mr.read_vec(60, 5).unwrap_err().errno(), libc::EINVAL);
    assert_eq!(end.mr.fetch_add_u64(4, 1).unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn partitions() {
    let net = InprocNet::new();
    let open = |address, pkeys| ContextOptions::new().pkeys(pkeys).open_inproc(&net, &[ip(address)]).unwrap();
    let two = verbs_common::Two::of(
        "partitions",
        open("10.0.0.1", vec![Pkey(0x8005), Pkey(0xffff)]),
        open("10.0.0.2", vec![Pkey(0x0005), Pkey(0xffff)]),
    );
    assert_eq!((two.a.pkeys().len(), two.a.port().pkey_table_len), (2, 2));
    // A full and a limited member of one partition may talk.
    let (a, b) = connected(&two, QpType::Rc, 64, Mtu::M1024);
    a.mr.write_at(0, b"members").unwrap();
    let remote = rxe_verbs::Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
    a.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[a.mr.sge(0, 7)])).unwrap();
    a.good();
    assert_eq!(b.mr.read_vec(0, 7).unwrap(), b"members");
}

/// `RXE_PCAP` and the exit of a process that has not waited: this test runs itself again with the variable.
#[test]
fn a_capture_by_environment() {
    if std::env::var_os("RXE_PCAP").is_some() {
        let address = loopback(30);
        let context = ContextOptions::new().alone().open_address(address).unwrap();
        let (a, b) = (End::new(&context, QpType::Rc, 4096), End::new(&context, QpType::Rc, 4096));
        verbs_common::connect(&a.qp, &b.qp, Mtu::M1024);
        let remote = rxe_verbs::Remote { addr: b.mr.addr(), rkey: b.mr.rkey() };
        a.qp.post_send(&SendWr::new(1, SendOp::Write(remote), &[a.mr.sge(0, 3000)])).unwrap();
        a.good();
        // Leaked on purpose: the file is complete all the same.
        std::mem::forget((context, a, b));
        return;
    }
    let pattern = std::env::temp_dir().join(format!("rxe-test-{}-%p.pcapng", std::process::id()));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_capture_by_environment", "--test-threads=1"])
        .env("RXE_PCAP", &pattern)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let file = pattern.to_string_lossy().replace("%p", &child.id().to_string());
    assert!(child.wait().unwrap().success());
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    // Section header, then interface and packet blocks.
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    let mut packets = 0;
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + 8) {
        packets += usize::from(head[..4] == [6, 0, 0, 0] || head[..4] == [0, 0, 0, 6]);
        let len = u32::from_le_bytes(head[4..].try_into().unwrap());
        let len = if head[4] == 0 && len > 1 << 24 { len.swap_bytes() } else { len };
        at += len as usize;
    }
    // Three packets and an acknowledgement, each sent and received.
    assert_eq!((packets, at), (8, bytes.len()));
}
