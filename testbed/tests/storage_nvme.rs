//! NVMe over Fabrics: what becomes of ends that break the rules, die, or do not read. (Both ends here are ours; that they are
//! right is shown by Linux's: `scripts/interop --storage`.)

mod storage_common;

use std::{net::SocketAddr, sync::atomic::AtomicBool, thread, time::Duration};
use storage_common::{ByHand, DEPTH, Machine, PATIENCE, SHORT, Stop, outcome, pair, prepare, until};
use testbed::{
    pattern::pattern,
    storage::{
        link::{Link, LinkError, Listener},
        nvme::{
            Command, ConnectData, Controller, Host, IoQueue, Response, Sgl, Status, Target, TargetOptions,
            fabrics, io,
        },
    },
};

const NQN: &str = "nqn.2014-08.org.nvmexpress:here";
const SIZE: usize = 1 << 20;

/// Runs `client` beside a target, and checks that the target has nothing left of it.
fn with_target(patience: Duration, client: impl FnOnce(&Machine, SocketAddr, &Target)) {
    let (server, machine) = pair();
    let options = TargetOptions { subsystem: NQN.to_owned(), size: SIZE, patience };
    let target = Target::new(&server.manager, server.at(4420), options).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = scope.spawn(|| target.serve(&stop, |_| {}));
        let stopping = Stop(&stop);
        client(&machine, target.address(), &target);
        until("no queue is left", || target.queues() == 0);
        drop(stopping);
        outcome(serving).unwrap();
    });
}

fn host(machine: &Machine) -> Host {
    Host {
        manager: machine.manager.clone(),
        from: None,
        nqn: "nqn.2014-08.org.x:h".to_owned(),
        patience: PATIENCE,
    }
}

fn open(machine: &Machine, to: SocketAddr) -> (Controller, IoQueue) {
    let mut controller = Controller::connect(&host(machine), to, NQN).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let queue = controller.open_queue(1, 8, namespace).unwrap();
    (controller, queue)
}

/// What an initiator says when it connects (RDMA, 2.2), written by hand.
fn private_data(queue: u16, entries: u16) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[2..4].copy_from_slice(&queue.to_le_bytes());
    bytes[4..6].copy_from_slice(&entries.to_le_bytes());
    bytes[6..8].copy_from_slice(&(entries - 1).to_le_bytes());
    bytes
}

/// A command's answer.
fn asked(end: &ByHand, command: &Command, inside: &[u8]) -> Response {
    let message = [&command.encode()[..], inside].concat();
    let response = Response::decode(&end.ask(&message)).unwrap();
    assert_eq!(response.id, command.id);
    response
}

/// Connects a queue by hand; the controller's number.
fn introduce(end: &ByHand, queue: u16, controller: u16, subsystem: &str) -> Response {
    let data = ConnectData {
        host_id: [7; 16],
        controller,
        subsystem: subsystem.to_owned(),
        host: "nqn.2014-08.org.x:h".to_owned(),
    };
    let words = [u32::from(queue) << 16, 7, 0, 0, 0, 0];
    let sgl = Sgl::InCapsule { offset: 0, len: 1024 };
    let command = Command { sgl, ..Command::new(fabrics::OPCODE, fabrics::CONNECT.into(), words) };
    asked(end, &command, &data.encode())
}

/// A read or write of one block at `block`, with data as `sgl` says.
fn block_command(opcode: u8, block: u32, sgl: Sgl) -> Command {
    Command { sgl, id: 5, ..Command::new(opcode, 1, [block, 0, 0, 0, 0, 0]) }
}

/// An I/O queue by hand, beside a controller that is enabled.
fn queue_by_hand(machine: &Machine, to: SocketAddr, reads: bool) -> (Controller, ByHand) {
    let (mut controller, queue) = open(machine, to);
    drop(queue);
    let number = controller.identify().unwrap().id;
    let end = ByHand::connect(machine, to, &private_data(1, 8), reads).unwrap();
    if reads {
        assert_eq!(introduce(&end, 1, number, NQN).status, Status::SUCCESS);
    }
    (controller, end)
}

fn keyed(end: &ByHand, len: u32) -> Sgl {
    Sgl::Keyed { addr: end.memory.addr(), len, key: end.memory.rkey().0, invalidate: false }
}

#[test]
fn the_two_ends_understand_each_other() {
    with_target(PATIENCE, |machine, to, target| {
        let found = Controller::discover(&host(machine), to).unwrap();
        assert_eq!((found.len(), &*found[0].subsystem, &*found[0].service), (1, NQN, "4420"));
        let (mut controller, mut queue) = open(machine, to);
        controller.keep_alive().unwrap();
        let mut at = 0;
        // In the command, just too long for it, as long as possible.
        for len in [512, 8192, 8704, queue.most_data()] {
            let data = pattern(len as u64, len);
            queue.write((at / 512) as u64, &data).unwrap();
            assert_eq!(target.read(at, len).unwrap(), data);
            assert_eq!(queue.read((at / 512) as u64, len).unwrap(), data);
            at += len;
        }
        queue.flush().unwrap();
        queue.read_many(4096, 100).unwrap();
    });
}

#[test]
fn a_subsystem_that_is_not_there_is_refused() {
    with_target(PATIENCE, |machine, to, _| {
        let refused = Controller::connect(&host(machine), to, "nqn.2014-08.org.x:none").unwrap_err();
        assert!(matches!(refused, LinkError::Refused { what: "Connect", .. }), "{refused}");
    });
}

#[test]
fn a_connection_that_says_nothing_of_queues_is_refused() {
    with_target(PATIENCE, |machine, to, _| {
        for said in [&[0xff; 32][..], &private_data(0, 33), &private_data(1, 1)] {
            assert!(matches!(ByHand::connect(machine, to, said, true), Err(LinkError::Connect { .. })));
        }
    });
}

#[test]
fn wrong_commands_are_answered_and_change_nothing() {
    with_target(PATIENCE, |machine, to, target| {
        target.write(0, &pattern(1, 4096)).unwrap();
        let (_controller, end) = queue_by_hand(machine, to, true);
        end.memory.fill(0xee).unwrap();
        let inside = |offset, len| Sgl::InCapsule { offset, len };
        let (short, right) = (keyed(&end, 511), keyed(&end, 512));
        for (what, command, want) in [
            (
                "longer memory than blocks",
                block_command(io::READ, 0, keyed(&end, 4096)),
                Status::DATA_LENGTH_INVALID,
            ),
            ("shorter memory", block_command(io::WRITE, 0, short), Status::DATA_LENGTH_INVALID),
            (
                "data that are not there",
                block_command(io::WRITE, 0, inside(0, 512)),
                Status::DATA_LENGTH_INVALID,
            ),
            (
                "far behind",
                block_command(io::WRITE, 0, inside(u64::MAX - 5, 512)),
                Status::DATA_LENGTH_INVALID,
            ),
            ("reading into a command", block_command(io::READ, 0, inside(0, 512)), Status::SGL_TYPE_INVALID),
            ("an unknown SGL", block_command(io::READ, 0, Sgl::Other(0x30)), Status::SGL_TYPE_INVALID),
            ("behind the end", block_command(io::READ, 2048, right), Status::OUT_OF_RANGE),
            (
                "another namespace",
                Command { nsid: 2, ..block_command(io::READ, 0, right) },
                Status::INVALID_NAMESPACE,
            ),
            ("an unknown command", block_command(0x55, 0, right), Status::INVALID_OPCODE),
        ] {
            assert_eq!(asked(&end, &command, b"only twelve").status, want, "{what}");
        }
        assert_eq!(target.read(0, 4096).unwrap(), pattern(1, 4096));
        assert!(end.memory.read_vec(0, 8192).unwrap().iter().all(|byte| *byte == 0xee));
        // And the queue still works.
        assert_eq!(asked(&end, &block_command(io::READ, 0, right), &[]).status, Status::SUCCESS);
        assert_eq!(end.memory.read_vec(0, 512).unwrap(), pattern(1, 512));
    });
}

#[test]
fn nothing_is_done_before_connect() {
    with_target(PATIENCE, |machine, to, _| {
        let end = ByHand::connect(machine, to, &private_data(1, 8), true).unwrap();
        let early = block_command(io::READ, 0, keyed(&end, 512));
        assert_eq!(asked(&end, &early, &[]).status, Status::SEQUENCE_ERROR);
        // Nor is a queue added to a controller that is not there.
        assert_eq!(introduce(&end, 1, 77, NQN).status, Status::CONNECT_INVALID_PARAMETERS);
    });
}

#[test]
fn memory_that_is_not_the_initiators_ends_its_queue_only() {
    with_target(PATIENCE, |machine, to, _| {
        for opcode in [io::READ, io::WRITE] {
            let (_controller, end) = queue_by_hand(machine, to, true);
            let Sgl::Keyed { addr, len, key, .. } = keyed(&end, 512) else { unreachable!("it is keyed") };
            let lie = Sgl::Keyed { addr: addr + (1 << 18) - 511, len, key, invalidate: false };
            end.send(&block_command(opcode, 0, lie).encode());
            end.is_ended();
        }
        let (_controller, mut queue) = open(machine, to);
        assert_eq!(queue.read(0, 512).unwrap(), vec![0; 512]);
    });
}

#[test]
fn half_a_command_ends_its_queue_only() {
    with_target(PATIENCE, |machine, to, _| {
        let (_controller, end) = queue_by_hand(machine, to, true);
        end.send(&[1; 10]);
        end.is_ended();
        let (_controller, mut queue) = open(machine, to);
        queue.write(3, &pattern(2, 512)).unwrap();
    });
}

#[test]
fn an_initiator_that_never_reads_is_given_up() {
    with_target(SHORT, |machine, to, target| {
        let (controller, end) = queue_by_hand(machine, to, false);
        end.send(&block_command(io::READ, 0, keyed(&end, 512)).encode());
        // The admin queue is the other one.
        until("the queue is given up", || target.queues() <= 1);
        drop(controller);
    });
}

#[test]
fn a_target_that_stops_ends_what_it_has_begun() {
    let (server, machine) = pair();
    let options = TargetOptions { subsystem: NQN.to_owned(), size: SIZE, patience: PATIENCE };
    let target = Target::new(&server.manager, server.at(4420), options).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let serving = scope.spawn(|| target.serve(&stop, |_| {}));
        let stopping = Stop(&stop);
        let (mut controller, mut queue) = open(&machine, target.address());
        queue.write(0, &pattern(3, 512)).unwrap();
        drop(stopping);
        // Some requests may still be answered, and then rightly.
        let ended = loop {
            match queue.read(0, 512) {
                Ok(data) => assert_eq!(data, pattern(3, 512)),
                Err(error) => break error,
            }
        };
        assert!(matches!(ended, LinkError::Ended | LinkError::Work { .. } | LinkError::Post(_)), "{ended}");
        outcome(serving).unwrap();
        assert_eq!(target.queues(), 0);
        let ended = controller.keep_alive().unwrap_err();
        assert!(matches!(ended, LinkError::Ended | LinkError::Work { .. } | LinkError::Post(_)), "{ended}");
    });
}

/// A target by hand, for one connection: `play` says what it does. The host waits for it as long as `patience` says.
fn with_false_target(
    patience: Duration,
    play: impl FnOnce(ByHand) + Send,
    check: impl FnOnce(Result<Controller, LinkError>),
) {
    let (server, machine) = pair();
    let listener = Listener::new(&server.manager, server.at(4420)).unwrap();
    thread::scope(|scope| {
        let playing = scope.spawn(|| {
            let caller = listener.next(PATIENCE).unwrap().unwrap();
            let pd = caller.context().unwrap().alloc_pd().unwrap();
            let equip = |link: &Link| prepare(link, true);
            let (link, memory) = Link::accept(caller, &pd, DEPTH, &[0; 32], PATIENCE, equip).unwrap();
            play(ByHand::of(link, memory));
        });
        check(Controller::connect(&Host { patience, ..host(&machine) }, server.at(4420), NQN));
        outcome(playing);
    });
}

#[test]
fn a_target_that_dies_is_an_error() {
    with_false_target(
        PATIENCE,
        |end| {
            end.receive().unwrap();
            drop(end);
        },
        |connected| {
            let error = connected.unwrap_err();
            assert!(matches!(error, LinkError::Ended | LinkError::Work { .. }), "{error}");
        },
    );
}

#[test]
fn a_target_that_is_silent_is_an_error() {
    with_false_target(
        SHORT,
        |end| {
            end.receive().unwrap();
            end.is_ended();
        },
        |connected| {
            let error = connected.unwrap_err();
            assert!(matches!(error, LinkError::Silent(_)), "{error}");
        },
    );
}

#[test]
fn answers_that_nobody_asked_for_are_errors() {
    let good = Response { result: 1, taken: 1, id: 0, status: Status::SUCCESS };
    for answer in [
        Response { id: 7, ..good }.encode().to_vec(),
        Response { id: 0xffff, ..good }.encode().to_vec(),
        good.encode()[..9].to_vec(),
        vec![],
    ] {
        with_false_target(
            PATIENCE,
            |end| {
                end.receive().unwrap();
                end.send(&answer);
                end.is_ended();
            },
            |connected| {
                let error = connected.unwrap_err();
                assert!(matches!(error, LinkError::Protocol(_)), "{error}");
            },
        );
    }
}
