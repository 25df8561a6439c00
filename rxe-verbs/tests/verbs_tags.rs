//! Tag matching queues between two contexts, by messages whose headers the test writes itself (infiniband/tm_types.h).

mod verbs_common;

use rxe_verbs::{
    Completion, CreateError, MAX_TAGS, Mtu, Payload, PostError, Qp, QpChange, QpInit, QpState, QpType,
    RecvWr, SendOp, SendWr, Sge, Srq, TagAction, TagFlags, TagInfo, TagOp, WcExtra, WcOpcode, WcStatus,
};
use verbs_common::{End, PATIENCE, connect, everywhere, inproc, pattern};

const NO_TAG: u8 = 0;
const RENDEZVOUS: u8 = 1;
const FINISHED: u8 = 2;
const EAGER: u8 = 3;
/// Bytes of a region.
const SIZE: usize = 1 << 20;
/// Where plain receives lie, and how long each is.
const PLAIN: usize = 1 << 19;
const LONG: u32 = 1 << 14;
const APP: u32 = 0x0a0b_0c0d;
const EVERY: u64 = u64::MAX;

/// A sender, and a receiver with a tag matching queue, whose completions are the end's.
struct Scene {
    a: End,
    b: End,
    srq: Srq,
    tagged: Qp,
}

fn header(kind: u8, tag: u64) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &APP.to_be_bytes(), &tag.to_be_bytes()].concat()
}

impl Scene {
    fn new(two: &verbs_common::Two, plain: u32) -> Self {
        let (a, b) = (End::new(&two.a, QpType::Rc, SIZE), End::new(&two.b, QpType::Rc, SIZE));
        let srq = b.pd.create_tag_srq(&b.cq, 16, 2, 100).unwrap();
        let tagged = b.pd.create_qp(&QpInit { srq: Some(&srq), ..QpInit::new(QpType::Rc, &b.cq) }).unwrap();
        connect(&a.qp, &tagged, Mtu::M1024);
        let scene = Self { a, b, srq, tagged };
        for number in 0..plain {
            scene.post_plain(number);
        }
        scene
    }

    fn post_plain(&self, number: u32) {
        let sge = self.b.mr.sge(PLAIN + (number * LONG) as usize, LONG);
        self.srq.post_recv(&RecvWr { wr_id: 1000 + u64::from(number), sges: &[sge] }).unwrap();
    }

    /// An operation that completes, and its completion.
    fn act(&self, action: TagAction<'_>, handled: Option<u32>) -> (Option<u32>, Completion, TagFlags) {
        let handle = self.srq.post_tag_op(&TagOp { wr_id: 77, action, signaled: true, handled }).unwrap();
        let wc = self.b.wait();
        assert_eq!(wc.wr_id, 77);
        (handle, wc, self.b.cq.tag_info(&wc).map_or(TagFlags::empty(), |info| info.flags))
    }

    fn add(&self, wr_id: u64, tag: u64, mask: u64, sges: &[Sge]) -> u32 {
        let (handle, wc, _) = self.act(TagAction::Add { recv_wr_id: wr_id, sges, tag, mask }, None);
        assert_eq!((wc.opcode, wc.status), (WcOpcode::TagAdd, WcStatus::Success));
        handle.unwrap()
    }

    /// Sends `bytes` from the start of the sender's region.
    fn send(&self, bytes: &[u8]) {
        self.send_as(SendOp::Send, bytes);
    }

    fn send_as(&self, op: SendOp, bytes: &[u8]) {
        self.a.mr.write_at(0, bytes).unwrap();
        let sges = [self.a.mr.sge(0, bytes.len() as u32)];
        self.a.qp.post_send(&SendWr::new(1, op, &sges)).unwrap();
        self.a.good();
    }

    /// What the receiver's program sees next, and what is known beside it.
    fn next(&self) -> (Completion, TagInfo) {
        let wc = self.b.good();
        assert_eq!(wc.qpn, self.tagged.qpn());
        (wc, self.b.cq.tag_info(&wc).unwrap_or_else(|| TagInfo { extra: wc.extra, ..TagInfo::default() }))
    }
}

#[test]
fn what_matches_goes_to_its_entry_and_the_rest_to_plain_receives() {
    everywhere(|two| {
        let scene = Scene::new(two, 2);
        let parts = [scene.b.mr.sge(0, 1000), scene.b.mr.sge(5000, 9000)];
        for round in 0..20_u64 {
            // One packet, several, and nothing behind the header.
            let data = pattern(round, [100, 7000, 0, 10_000][round as usize % 4]);
            scene.add(round, 0x55, 0xff, &parts);
            let tag = 0xabcd_0055 + (round << 32);
            let message = [header(EAGER, tag), data.clone()].concat();
            let imm = [1, 2, 3, round as u8];
            scene.send_as(if round % 2 == 0 { SendOp::Send } else { SendOp::SendImm(imm) }, &message);
            let (wc, info) = scene.next();
            assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (round, WcOpcode::TagRecv, data.len() as u32));
            assert!(!wc.grh);
            let extra = if round % 2 == 0 { WcExtra::None } else { WcExtra::Immediate(imm) };
            let flags = TagFlags::MATCH | TagFlags::DATA_VALID;
            assert_eq!(info, TagInfo { tag, app_ctx: APP, flags, extra });
            let first = data.len().min(1000);
            assert_eq!(scene.b.mr.read_vec(0, first).unwrap(), data[..first]);
            assert_eq!(scene.b.mr.read_vec(5000, data.len() - first).unwrap(), data[first..]);
        }
        // The same two receives are there still, and no more.
        for number in 0..2 {
            let message = [&[NO_TAG][..], &pattern(number, 3000)].concat();
            scene.send(&message);
            let (wc, info) = scene.next();
            assert_eq!((wc.opcode, wc.byte_len, info), (WcOpcode::NoTag, 3001, TagInfo::default()));
            let place = (wc.wr_id - 1000) as usize * LONG as usize + PLAIN;
            assert_eq!(scene.b.mr.read_vec(place, 3001).unwrap(), message);
        }
    });
}

#[test]
fn entries_behind_an_unexpected_message_wait_until_it_was_handled() {
    let scene = Scene::new(&inproc(), 4);
    let memory = [scene.b.mr.sge(0, 100)];
    scene.send(&header(EAGER, 1));
    let (wc, info) = scene.next();
    assert_eq!((wc.opcode, wc.byte_len, info), (WcOpcode::TagRecv, 16, TagInfo::default()));
    let (_, wc, flags) =
        scene.act(TagAction::Add { recv_wr_id: 5, sges: &memory, tag: 1, mask: EVERY }, None);
    assert_eq!((wc.opcode, flags), (WcOpcode::TagAdd, TagFlags::SYNC_NEEDED));
    scene.send(&header(EAGER, 1));
    assert_eq!(scene.next().0.wr_id / 1000, 1, "it is unexpected, too");
    let (_, wc, flags) = scene.act(TagAction::Sync, Some(1));
    assert_eq!((wc.opcode, flags), (WcOpcode::TagSync, TagFlags::SYNC_NEEDED));
    assert_eq!(scene.act(TagAction::Sync, Some(2)).2, TagFlags::empty());
    scene.send(&header(EAGER, 1));
    assert_eq!(scene.next().0.wr_id, 5);
    // What has no tag, or tells that a rendezvous is over, is nothing that could have been expected.
    for kind in [NO_TAG, FINISHED] {
        scene.post_plain(0);
        scene.send(&header(kind, 1));
        assert_eq!(scene.next().0.opcode, WcOpcode::NoTag);
        assert_eq!(scene.act(TagAction::Sync, Some(2)).2, TagFlags::empty());
    }
    // What is cut off, or of no known kind, can match nothing.
    scene.add(9, 0, 0, &memory);
    for (number, wrong) in
        [&header(EAGER, 1)[..15], &header(9, 1), &header(RENDEZVOUS, 1), &[]].iter().enumerate()
    {
        scene.post_plain(0);
        scene.send(wrong);
        let (wc, info) = scene.next();
        assert_eq!(
            (wc.opcode, wc.byte_len, info),
            (WcOpcode::TagRecv, wrong.len() as u32, TagInfo::default())
        );
        scene.act(TagAction::Sync, Some(3 + number as u32));
    }
}

#[test]
fn an_entry_that_is_gone_cannot_be_removed() {
    let scene = Scene::new(&inproc(), 1);
    let handle = scene.add(1, 1, EVERY, &[]);
    assert_eq!(scene.act(TagAction::Remove(handle), None).1.status, WcStatus::Success);
    let quiet = |action| scene.srq.post_tag_op(&TagOp { wr_id: 3, action, signaled: false, handled: None });
    quiet(TagAction::Remove(handle)).unwrap();
    let wc = scene.b.wait();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (3, WcStatus::TagMatching, WcOpcode::TagRemove));
    let add = |tag| TagAction::Add { recv_wr_id: 1, sges: &[], tag, mask: EVERY };
    for tag in 0..100 {
        quiet(add(tag)).unwrap();
    }
    assert_eq!(quiet(add(100)), Err(PostError::Full(100)));
    scene.send(&header(EAGER, 50));
    assert_eq!(scene.next().1.tag, 50);
    quiet(add(100)).unwrap();
}

/// A rendezvous request for `len` bytes at `at` of the sender's region.
fn request(end: &End, tag: u64, at: u64, len: u32) -> Vec<u8> {
    let (va, rkey) = ((end.mr.addr() + at).to_be_bytes(), end.mr.rkey().0.to_be_bytes());
    [header(RENDEZVOUS, tag), va.to_vec(), rkey.to_vec(), len.to_be_bytes().to_vec()].concat()
}

#[test]
fn a_rendezvous_is_read_and_its_sender_told() {
    everywhere(|two| {
        let scene = Scene::new(two, 1);
        let data = pattern(7, 300_000);
        scene.a.mr.write_at(4096, &data).unwrap();
        for round in 0..3_u64 {
            scene.b.mr.write_at(0, &[0; 400_000]).unwrap();
            let memory = [scene.b.mr.sge(0, 100_000), scene.b.mr.sge(150_000, 250_000)];
            scene.add(round, 9, EVERY, &memory);
            scene.a.qp.post_recv(&RecvWr { wr_id: 8, sges: &[scene.a.mr.sge(1000, 32)] }).unwrap();
            let asked = request(&scene.a, 9, 4096, 300_000);
            scene.send(&asked);
            let (wc, info) = scene.next();
            assert_eq!((wc.wr_id, info.flags), (round, TagFlags::MATCH));
            assert_eq!((info.tag, info.app_ctx), (9, APP));
            let (wc, info) = scene.next();
            assert_eq!((wc.wr_id, info.flags, info.app_ctx), (round, TagFlags::DATA_VALID, 0));
            assert_eq!(wc.byte_len, 300_000);
            assert_eq!(scene.b.mr.read_vec(0, 100_000).unwrap(), data[..100_000]);
            assert_eq!(scene.b.mr.read_vec(150_000, 200_000).unwrap(), data[100_000..]);
            let told = scene.a.good();
            assert_eq!((told.wr_id, told.byte_len), (8, 32));
            let mut notice = asked;
            notice[0] = FINISHED;
            assert_eq!(scene.a.mr.read_vec(1000, 32).unwrap(), notice);
        }
    });
}

/// More than the send queue has room for: the others wait their turn, and none is lost.
#[test]
fn rendezvous_wait_for_room() {
    let scene = Scene::new(&inproc(), 16);
    scene.a.mr.write_at(4096, &pattern(3, 1000)).unwrap();
    for tag in 0..100_u64 {
        scene.a.qp.post_recv(&RecvWr { wr_id: 8, sges: &[scene.a.mr.sge(1000, 32)] }).unwrap();
        let action = TagAction::Add {
            recv_wr_id: tag,
            sges: &[scene.b.mr.sge(tag as usize * 1000, 1000)],
            tag,
            mask: EVERY,
        };
        scene.srq.post_tag_op(&TagOp { wr_id: 0, action, signaled: false, handled: None }).unwrap();
    }
    let requests: Vec<_> = (0..100).map(|tag| request(&scene.a, tag, 4096, 1000)).collect();
    let wrs: Vec<_> = requests
        .iter()
        .map(|bytes| SendWr { payload: Payload::Inline(bytes), ..SendWr::new(1, SendOp::Send, &[]) })
        .collect();
    scene.a.qp.post_send_list(&wrs).unwrap();
    let mut valid = Vec::new();
    for _ in 0..200 {
        let (wc, info) = scene.next();
        if info.flags == TagFlags::DATA_VALID {
            valid.push(wc.wr_id);
        }
    }
    valid.sort_unstable();
    assert_eq!(valid, (0..100).collect::<Vec<_>>());
    for tag in 0..100_usize {
        assert_eq!(scene.b.mr.read_vec(tag * 1000, 1000).unwrap(), pattern(3, 1000));
    }
    let told = (0..200).filter(|_| scene.a.good().opcode == WcOpcode::Recv).count();
    assert_eq!(told, 100);
}

#[test]
fn memory_that_is_too_small() {
    let scene = Scene::new(&inproc(), 2);
    // A rendezvous: the program goes on with it.
    scene.add(1, 1, EVERY, &[scene.b.mr.sge(0, 999)]);
    let asked = request(&scene.a, 1, 4096, 1000);
    scene.send(&asked);
    let wc = scene.b.wait();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::RendezvousIncomplete));
    assert_eq!(scene.b.mr.read_vec(0, 32).unwrap(), asked);
    assert_eq!(scene.tagged.state(), QpState::Rts);
    // Data: as a receive that is too short.
    scene.add(2, 2, EVERY, &[scene.b.mr.sge(0, 99)]);
    scene.send(&[header(EAGER, 2), vec![5; 100]].concat());
    let wc = scene.b.wait();
    assert_eq!((wc.wr_id, wc.status), (2, WcStatus::LocalLength));
    assert_eq!(scene.tagged.state(), QpState::Error);
}

#[test]
fn a_rendezvous_that_names_wrong_memory_fails() {
    let scene = Scene::new(&inproc(), 2);
    scene.add(1, 1, EVERY, &[scene.b.mr.sge(0, 5000)]);
    let mut asked = request(&scene.a, 1, 0, 5000);
    asked[26] ^= 0xff;
    // Whether its own request counts as done before it refuses the READ is open.
    let wr = SendWr { payload: Payload::Inline(&asked), ..SendWr::new(1, SendOp::Send, &[]) };
    scene.a.qp.post_send(&wr).unwrap();
    assert_eq!(scene.next().1.flags, TagFlags::MATCH);
    let wc = scene.b.wait();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::RemoteAccess));
}

#[test]
fn the_send_queue_is_not_the_programs() {
    let scene = Scene::new(&inproc(), 1);
    let wr = SendWr::new(1, SendOp::Send, &[]);
    assert_eq!(scene.tagged.post_send(&wr), Err(PostError::Operation));
    assert_eq!(scene.tagged.post_send_all(&[wr]).unwrap_err().reason, PostError::Operation);
    let init = QpInit { srq: Some(&scene.srq), ..QpInit::new(QpType::Uc, &scene.b.cq) };
    assert!(matches!(scene.b.pd.create_qp(&init), Err(CreateError::TagMatching(QpType::Uc))));
    let plain = scene.b.pd.create_srq(4, 1).unwrap();
    let op = TagOp { wr_id: 1, action: TagAction::Sync, signaled: true, handled: Some(0) };
    assert_eq!(plain.post_tag_op(&op), Err(PostError::Operation));
    assert!(matches!(
        scene.b.pd.create_tag_srq(&scene.b.cq, 1, 1, MAX_TAGS + 1),
        Err(CreateError::Limit { .. })
    ));
}

/// Queue pairs end in the middle of messages, again and again: each takes its receive along, as with any shared queue, and the
/// room for it is free.
#[test]
fn queue_pairs_that_end_leave_room() {
    let two = inproc();
    let scene = Scene::new(&two, 0);
    for round in 0..40 {
        scene.post_plain(0);
        let a = End::new(&two.a, QpType::Rc, 1 << 16);
        let qp = scene
            .b
            .pd
            .create_qp(&QpInit { srq: Some(&scene.srq), ..QpInit::new(QpType::Rc, &scene.b.cq) })
            .unwrap();
        connect(&a.qp, &qp, Mtu::M1024);
        // A message that is longer than the receive: it is refused when its end comes, and the receive is lost with it.
        if round % 2 == 0 {
            a.qp.post_send(&SendWr::new(1, SendOp::Send, &[a.mr.sge(0, LONG + 1)])).unwrap();
            assert_ne!(a.wait().status, WcStatus::Success);
            let wc = scene.b.wait();
            assert_eq!((wc.wr_id, wc.status), (1000, WcStatus::LocalLength));
        } else {
            a.mr.write_at(0, &header(NO_TAG, 0)).unwrap();
            a.qp.post_send(&SendWr::new(1, SendOp::Send, &[a.mr.sge(0, 16)])).unwrap();
            a.good();
            assert_eq!(scene.b.good().wr_id, 1000);
        }
    }
    for number in 0..16 {
        scene.post_plain(number);
    }
    let sge = scene.b.mr.sge(0, 1);
    assert_eq!(scene.srq.post_recv(&RecvWr { wr_id: 0, sges: &[sge] }), Err(PostError::Full(16)));
    assert_eq!(scene.srq.modify(Some(15), None), Err(PostError::Full(15)));
    assert!(scene.b.cq.poll_within(PATIENCE / 1000).unwrap().is_none());
}

#[test]
fn a_reset_that_is_refused_changes_nothing() {
    everywhere(|two| {
        let scene = Scene::new(two, 1);
        let wrong = QpChange {
            state: Some(QpState::Reset),
            current_state: Some(QpState::Init),
            ..QpChange::default()
        };
        assert!(scene.tagged.modify(&wrong).is_err());
        assert_eq!(scene.tagged.state(), QpState::Rts);
        assert_eq!(scene.b.cq.poll(&mut [Completion::default()]), Ok(0), "nothing was flushed");
    });
}
