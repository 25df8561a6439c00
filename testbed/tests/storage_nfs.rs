//! NFS over RDMA: what becomes of ends that break the rules, lie about memory, die, or do not read. (Both ends here are ours;
//! that they are right is shown by Linux's: `scripts/interop --storage`.)

mod storage_common;

use std::{fs, net::SocketAddr, path::Path, sync::atomic::AtomicBool, thread, time::Duration};
use storage_common::{ByHand, DEPTH, Machine, PATIENCE, SHORT, Stop, outcome, pair, prepare, until};
use testbed::{
    pattern::pattern,
    storage::{
        link::{Link, LinkError, Listener},
        nfs::{
            Client, Mount, Server, ServerOptions,
            transport::{Chunks, Header, Kind, ReadSegment, Refusal, Segment, private_data},
            xdr::{Reader, Writer},
        },
    },
};

const PORT: u16 = 20_049;

/// A folder that is gone when the test is over.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rxe-storage-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("sub/deep")).unwrap();
        fs::write(path.join("data"), pattern(1, 700_001)).unwrap();
        fs::write(path.join("empty"), []).unwrap();
        for number in 0..200 {
            let name = format!("sub/deep/a file with a name that takes its room {number}");
            fs::write(path.join(name), number.to_string()).unwrap();
        }
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs `client` beside a server, and checks that the server has nothing left of it.
fn with_server(name: &str, patience: Duration, client: impl FnOnce(&Machine, SocketAddr, &Server)) {
    let folder = Folder::new(name);
    let (machine, asks) = pair();
    let options = ServerOptions { patience };
    let server = Server::new(&machine.manager, machine.at(PORT), &folder.0, options).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.serve(&stop, |_| {}));
        let stopping = Stop(&stop);
        client(&asks, server.address(), &server);
        until("no connection is left", || server.connections() == 0);
        drop(stopping);
        outcome(serving).unwrap();
    });
}

fn mount(machine: &Machine, to: SocketAddr, patience: Duration) -> Mount {
    Mount { manager: machine.manager.clone(), from: None, to, patience, most: 1 << 20, user: 0, group: 0 }
}

#[test]
fn the_two_ends_understand_each_other() {
    with_server("both", PATIENCE, |machine, to, _| {
        let mut client = Client::connect(&mount(machine, to, PATIENCE)).unwrap();
        client.null().unwrap();
        assert_eq!(client.list("/").unwrap(), ["data", "empty", "sub"]);
        assert_eq!(client.list("sub/deep").unwrap().len(), 200);
        for piece in [1 << 18, 65_537] {
            assert_eq!(client.read("/data", piece).unwrap(), pattern(1, 700_001));
        }
        assert!(client.read("empty", 4096).unwrap().is_empty());
        assert_eq!(client.read("sub/deep/a file with a name that takes its room 77", 10).unwrap(), b"77");
        for (what, refused) in [
            ("no such file", client.read("nothing", 10).map(drop)),
            ("a folder", client.read("sub", 10).map(drop)),
            ("a file as a folder", client.list("data").map(drop)),
            ("writing", client.write("data", b"x", 10)),
            ("removing", client.remove("data")),
        ] {
            assert!(matches!(refused, Err(LinkError::Refused { .. })), "{what}: {refused:?}");
        }
        client.leave().unwrap();
    });
}

#[test]
fn a_folder_that_cannot_be_read_is_an_error() {
    let (machine, _) = pair();
    let options = ServerOptions { patience: PATIENCE };
    let none = Server::new(&machine.manager, machine.at(PORT), Path::new("/nowhere"), options);
    assert!(matches!(none, Err(LinkError::Refused { .. })));
}

/// A call of procedure `procedure`, without a credential, written by hand (RFC 5531, 9).
fn call(program: u32, procedure: u32) -> Writer {
    let mut out = Writer::default();
    out.word(9_u32).word(0_u32).word(2_u32).word(program).word(4_u32).word(procedure);
    out.word(0_u32).word(0_u32).word(0_u32).word(0_u32);
    out
}

fn message(chunks: Chunks, call: &[u8]) -> Vec<u8> {
    let mut bytes = Header { xid: 9, credits: 1, kind: Kind::Message(chunks) }.encode();
    bytes.extend_from_slice(call);
    bytes
}

fn open(machine: &Machine, to: SocketAddr) -> ByHand {
    ByHand::connect(machine, to, &private_data(), true).unwrap()
}

fn segment(end: &ByHand, at: u64, len: u32) -> Segment {
    Segment { key: end.memory.rkey().0, len, addr: end.memory.addr() + at }
}

/// The accept_stat of an answer.
fn accepted(answer: &[u8]) -> u32 {
    let (header, body) = Header::decode(answer).unwrap();
    assert!(matches!(header.kind, Kind::Message(_)), "{header:?}");
    let words = body.chunks_exact(4).map(|word| u32::from_be_bytes(word.try_into().unwrap()));
    words.clone().nth(5).unwrap()
}

fn refusal(answer: &[u8]) -> Refusal {
    match Header::decode(answer).unwrap().0.kind {
        Kind::Error(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_that_make_no_sense_are_answered() {
    with_server("sense", PATIENCE, |machine, to, _| {
        let end = open(machine, to);
        let none = Chunks::default;
        assert_eq!(accepted(&end.ask(&message(none(), &call(100_003, 0).0))), 0);
        // Another program, another procedure, half of the arguments, a list of operations that ends too soon.
        assert_eq!(accepted(&end.ask(&message(none(), &call(100_005, 0).0))), 1);
        assert_eq!(accepted(&end.ask(&message(none(), &call(100_003, 7).0))), 3);
        assert_eq!(accepted(&end.ask(&message(none(), &call(100_003, 1).0))), 4);
        let mut short = call(100_003, 1);
        short.word(0_u32).word(1_u32).word(3_u32);
        assert_eq!(accepted(&end.ask(&message(none(), &short.0))), 4);
        let mut other = message(none(), &call(100_003, 0).0);
        other[7] = 2;
        assert_eq!(refusal(&end.ask(&other)), Refusal::Version);
        // Half a call.
        assert_eq!(refusal(&end.ask(&message(none(), &call(100_003, 0).0[..12]))), Refusal::Chunks);
    });
}

#[test]
fn a_long_call_is_fetched() {
    with_server("long", PATIENCE, |machine, to, _| {
        let end = open(machine, to);
        let null = call(100_003, 0).0;
        end.memory.write_at(100, &null).unwrap();
        // In two pieces, which lie the other way round.
        let half = null.len() as u32 / 2;
        end.memory.write_at(0, &null[half as usize..]).unwrap();
        let reads = [segment(&end, 100, half), segment(&end, 0, null.len() as u32 - half)];
        let reads = reads.map(|segment| ReadSegment { position: 0, segment }).to_vec();
        let kind = Kind::NoMessage(Chunks { reads, ..Chunks::default() });
        assert_eq!(accepted(&end.ask(&Header { xid: 9, credits: 1, kind }.encode())), 0);
    });
}

#[test]
fn chunks_that_make_no_sense_are_refused() {
    with_server("chunks", PATIENCE, |machine, to, _| {
        let end = open(machine, to);
        let null = call(100_003, 0).0;
        let read = |position, len| {
            let reads = vec![ReadSegment { position, segment: segment(&end, 0, len) }];
            Chunks { reads, ..Chunks::default() }
        };
        // Longer than any call, as long as can be said, behind the call's end.
        for chunks in [read(40, 1 << 20), read(40, u32::MAX), read(4000, 4)] {
            assert_eq!(refusal(&end.ask(&message(chunks, &null))), Refusal::Chunks);
        }
        let many = Chunks { writes: vec![vec![]; 100], ..Chunks::default() };
        assert_eq!(refusal(&end.ask(&message(many, &null))), Refusal::Chunks);
        // A list that says more than there is.
        let mut lie = message(Chunks { writes: vec![vec![]], ..Chunks::default() }, &null);
        lie[24..28].copy_from_slice(&u32::MAX.to_be_bytes());
        assert_eq!(refusal(&end.ask(&lie)), Refusal::Chunks);
        assert_eq!(accepted(&end.ask(&message(Chunks::default(), &null))), 0);
    });
}

#[test]
fn memory_that_is_not_the_clients_ends_its_connection_only() {
    with_server("memory", PATIENCE, |machine, to, _| {
        let end = open(machine, to);
        let reads = vec![ReadSegment { position: 0, segment: segment(&end, (1 << 18) - 10, 64) }];
        let kind = Kind::NoMessage(Chunks { reads, ..Chunks::default() });
        end.send(&Header { xid: 9, credits: 1, kind }.encode());
        end.is_ended();
        let mut client = Client::connect(&mount(machine, to, PATIENCE)).unwrap();
        assert_eq!(client.read("/data", 1 << 18).unwrap(), pattern(1, 700_001));
    });
}

#[test]
fn no_message_at_all_ends_its_connection_only() {
    with_server("none", PATIENCE, |machine, to, _| {
        for garbage in [&b"x"[..], &[0; 15], &[0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3]] {
            let end = open(machine, to);
            end.send(garbage);
            end.is_ended();
        }
        Client::connect(&mount(machine, to, PATIENCE)).unwrap().null().unwrap();
    });
}

#[test]
fn a_client_that_never_reads_is_given_up() {
    with_server("reads", SHORT, |machine, to, server| {
        let end = ByHand::connect(machine, to, &private_data(), false).unwrap();
        for _ in 0..2 {
            end.send(&message(Chunks::default(), &call(100_003, 0).0));
        }
        until("the connection is given up", || server.connections() == 0);
    });
}

#[test]
fn a_server_that_stops_ends_what_it_has_begun() {
    let folder = Folder::new("stops");
    let (machine, asks) = pair();
    let options = ServerOptions { patience: PATIENCE };
    let server = Server::new(&machine.manager, machine.at(PORT), &folder.0, options).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = scope.spawn(|| server.serve(&stop, |_| {}));
        let stopping = Stop(&stop);
        let mut client = Client::connect(&mount(&asks, server.address(), PATIENCE)).unwrap();
        assert_eq!(client.read("/data", 4096).unwrap(), pattern(1, 700_001));
        drop(stopping);
        // Some calls may still be answered, and then rightly.
        let ended = loop {
            match client.read("/data", 4096) {
                Ok(data) => assert_eq!(data, pattern(1, 700_001)),
                Err(error) => break error,
            }
        };
        assert!(matches!(ended, LinkError::Ended | LinkError::Work { .. } | LinkError::Post(_)), "{ended}");
        outcome(serving).unwrap();
        assert_eq!(server.connections(), 0);
    });
}

#[test]
fn a_client_takes_no_more_than_it_wants() {
    with_server("most", PATIENCE, |machine, to, _| {
        let mount = mount(machine, to, PATIENCE);
        let connect = |most| Client::connect(&Mount { most, ..mount.clone() }).unwrap();
        assert_eq!(connect(700_001).read("/data", 1 << 18).unwrap().len(), 700_001);
        for piece in [4096, 1 << 18] {
            let refused = connect(700_000).read("/data", piece).unwrap_err();
            assert!(matches!(refused, LinkError::Protocol(_)), "{refused}");
        }
        assert_eq!(connect(20_000).list("/sub/deep").unwrap().len(), 200);
        let refused = connect(10_000).list("/sub/deep").unwrap_err();
        assert!(matches!(refused, LinkError::Protocol(_)), "{refused}");
    });
}

/// A server by hand, for one connection: `play` says what it does.
fn with_false_server(play: impl FnOnce(ByHand) + Send, check: impl FnOnce(LinkError)) {
    let (server, machine) = pair();
    let listener = Listener::new(&server.manager, server.at(PORT)).unwrap();
    thread::scope(|scope| {
        let playing = scope.spawn(|| {
            let caller = listener.next(PATIENCE).unwrap().unwrap();
            let pd = caller.context().unwrap().alloc_pd().unwrap();
            let equip = |link: &Link| prepare(link, true);
            let (link, memory) = Link::accept(caller, &pd, DEPTH, &private_data(), PATIENCE, equip).unwrap();
            play(ByHand::of(link, memory));
        });
        check(Client::connect(&mount(&machine, server.at(PORT), PATIENCE)).unwrap_err());
        outcome(playing);
    });
}

#[test]
fn a_server_that_dies_is_an_error() {
    with_false_server(
        |end| {
            end.receive().unwrap();
            drop(end);
        },
        |error| assert!(matches!(error, LinkError::Ended | LinkError::Work { .. }), "{error}"),
    );
}

#[test]
fn replies_that_nobody_asked_for_are_errors() {
    let far = Segment { key: 1, len: u32::MAX, addr: 0 };
    let chunks = |writes, reply| Chunks { reads: vec![], writes, reply };
    for kind in [
        Kind::Message(Chunks::default()),
        // More bytes than there is room for, or than anybody asked for.
        Kind::Message(chunks(vec![vec![far, far]], None)),
        Kind::NoMessage(chunks(vec![], Some(vec![far, far]))),
        Kind::NoMessage(chunks(vec![], None)),
    ] {
        with_false_server(
            |end| {
                let asked = end.receive().unwrap();
                let xid = Reader::new(&asked).word().unwrap();
                let wrong = if kind == Kind::Message(Chunks::default()) { xid + 1 } else { xid };
                end.send(&Header { xid: wrong, credits: 1, kind }.encode());
                end.is_ended();
            },
            |error| assert!(matches!(error, LinkError::Protocol(_)), "{error}"),
        );
    }
}
