//! Two ends with memory between them, and peers that lie.

use super::*;
use proptest::prelude::*;

const BUFFER: u64 = 0x10_0000;
const DIRECTORY_AT: u64 = 0x900;

fn limits(receives: u16, buffer: u32) -> Limits {
    Limits { receives, sends: 16, receive_buffer: buffer, send_buffer: 4096, inline: 64 }
}

fn hello(limits: &Limits) -> Hello {
    Hello {
        big_endian: cfg!(target_endian = "big"),
        credits: limits.receives,
        iomap: 0,
        directory: Piece { addr: DIRECTORY_AT, key: 7, len: DIRECTORY },
        buffer: Piece { addr: BUFFER, key: 9, len: limits.half() },
    }
}

/// A message, and what is written where with it.
type Request = (Message, Option<(Piece, Vec<u8>)>);

/// An end with its memory, and requests under way to it.
struct End {
    stream: Stream,
    memory: Vec<u8>,
    directory: [Piece; 2],
    arriving: VecDeque<Request>,
    read: Vec<u8>,
}

impl End {
    fn new(own: Limits, peer: Limits) -> Self {
        Self {
            stream: Stream::new(own, &hello(&peer)),
            memory: vec![0; own.receive_buffer as usize],
            directory: [Piece::default(); 2],
            arriving: VecDeque::new(),
            read: Vec::new(),
        }
    }

    /// Sends up to `len` bytes of `data`; how many.
    fn send(&mut self, peer: &mut Self, data: &[u8]) -> usize {
        if let Some(entry) = self.stream.wants_entry()
            && self.stream.take_entry(self.directory[entry as usize])
        {
            self.directory[entry as usize] = Piece::default();
        }
        let Some(chunk) = self.stream.take_chunk(data.len()) else { return 0 };
        let len = chunk.len as usize;
        assert_eq!(chunk.through.is_none(), len <= 64);
        assert_eq!(chunk.through.map_or(len as u32, |[a, b]| a.1 + b.1), chunk.len);
        peer.arriving.push_back((chunk.message, Some((chunk.to, data[..len].to_vec()))));
        len
    }

    fn tell(&mut self, peer: &mut Self) {
        while let Some((message, write)) = self.stream.take_control(9, BUFFER) {
            peer.arriving.push_back((message, write.map(|update| (update.to, update.entry.to_vec()))));
        }
    }

    /// The next request arrives.
    fn arrive(&mut self, peer: &mut Self) {
        let Some((message, write)) = self.arriving.pop_front() else { return };
        match write {
            Some((to, bytes)) if to.key == 9 => {
                let at = (to.addr - BUFFER) as usize;
                self.memory[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Some((to, bytes)) => {
                let entry = (to.addr - DIRECTORY_AT) as usize / Piece::LEN;
                assert_eq!(
                    self.directory[entry],
                    Piece::default(),
                    "an entry was overwritten before it was used"
                );
                self.directory[entry] = Piece::decode(bytes[..].try_into().unwrap());
            }
            None => {}
        }
        self.stream.on_message(message);
        peer.stream.on_sent(message);
    }

    fn read(&mut self, len: usize) {
        let mut all = 0;
        for (at, len) in self.stream.unread_ranges(len) {
            self.read.extend(&self.memory[at as usize..(at + len) as usize]);
            all += len;
        }
        self.stream.consume(all);
    }
}

proptest! {
    /// Whatever the order of things: the bytes arrive in theirs, nothing is overwritten, and nothing stops.
    #[test]
    fn all_bytes_arrive_in_order(
        steps in prop::collection::vec((0..6_u8, 1..3000_usize), 1..400),
        receives in 2..20_u16,
        half in 1..1500_u32,
    ) {
        let (small, large) = (limits(receives, half * 2), limits(16, 8192));
        let (mut a, mut b) = (End::new(large, small), End::new(small, large));
        let data: Vec<u8> = (0..20_000_u32).map(|n| (n * 7 + n / 256) as u8).collect();
        let mut sent = 0;
        let end = (0..200_000_u32).map(|n| ((n % 5) as u8, 700));
        for (what, len) in steps.into_iter().chain(end) {
            match what {
                0 => sent += a.send(&mut b, &data[sent..data.len().min(sent + len)]),
                1 => b.read(len),
                2 => { a.tell(&mut b); b.tell(&mut a); }
                3 => b.arrive(&mut a),
                _ => a.arrive(&mut b),
            }
            prop_assert_eq!((a.stream.phase(), b.stream.phase()), (Phase::Open, Phase::Open));
            if b.read.len() == data.len() && b.arriving.is_empty() && a.arriving.is_empty() {
                break;
            }
        }
        prop_assert_eq!(b.read.len(), data.len());
        prop_assert!(b.read == data);
    }

    /// A peer may say anything.
    #[test]
    fn lies_do_no_harm(words in prop::collection::vec((any::<u32>(), any::<bool>()), 1..200)) {
        let limits = limits(8, 1000);
        let mut stream = Stream::new(limits, &hello(&limits));
        for (word, small) in words {
            let word = if small { word & 0xe000_01ff } else { word };
            stream.on_message(Message::decode(word.to_be_bytes()));
            prop_assert!(stream.unread() <= 1000);
            let ranges = stream.unread_ranges(usize::MAX);
            prop_assert!(ranges.iter().all(|(at, len)| at + len <= 1000));
            if word & 1 == 1 { stream.consume(word); }
            while let Some((message, _)) = stream.take_control(1, 1) { stream.on_sent(message); }
            if let Some(chunk) = stream.take_chunk(word as usize) { stream.on_sent(chunk.message); }
            let piece = Piece { addr: u64::MAX, key: word, len: word };
            if stream.wants_entry().is_some() { stream.take_entry(piece); }
        }
    }
}

fn pair() -> (End, End) {
    let limits = limits(8, 1000);
    (End::new(limits, limits), End::new(limits, limits))
}

fn settle(a: &mut End, b: &mut End) {
    for _ in 0..20 {
        a.tell(b);
        b.tell(a);
        a.arrive(b);
        b.arrive(a);
    }
}

#[test]
fn more_than_there_is_room_for_cuts_the_connection() {
    let (mut a, _) = pair();
    a.stream.on_message(Message::Data(501));
    let violation = Violation::Room { wrote: 501, room: 500 };
    assert_eq!(a.stream.phase(), Phase::Failed(Failure::Protocol(violation)));
    assert_eq!(a.stream.unread(), 0);
    let (mut a, _) = pair();
    for _ in 0..9 {
        a.stream.on_message(Message::Data(1));
    }
    assert_eq!(a.stream.phase(), Phase::Failed(Failure::Protocol(Violation::Credits(8))));
}

#[test]
fn a_half_close_leaves_the_other_half() {
    let (mut a, mut b) = pair();
    settle(&mut a, &mut b);
    assert_eq!(a.send(&mut b, b"the last words"), 14);
    a.stream.shut_down(How::Write);
    assert!(!a.stream.is_all_sent());
    settle(&mut a, &mut b);
    assert!(a.stream.is_all_sent() && !a.stream.is_writable() && a.stream.can_come());
    assert!(b.stream.is_writable() && !b.stream.can_come());
    b.read(100);
    assert_eq!(b.read, b"the last words");
    assert_eq!(b.send(&mut a, b"an answer"), 9);
    b.stream.shut_down(How::Write);
    settle(&mut a, &mut b);
    assert_eq!((a.stream.phase(), b.stream.phase()), (Phase::Ended, Phase::Ended));
    a.read(100);
    assert_eq!(a.read, b"an answer");
}

/// What is under way, or not even sent, must not be cut off.
#[test]
fn two_half_closes_at_once_lose_nothing() {
    for credits in [0, 4] {
        let (mut a, mut b) = pair();
        settle(&mut a, &mut b);
        for _ in 0..credits {
            // They take all the room for messages without data, so the end has to wait.
            a.stream.controls -= 1;
        }
        assert_eq!(a.send(&mut b, b"the tail"), 8);
        a.stream.shut_down(How::Write);
        a.tell(&mut b);
        b.stream.shut_down(How::Write);
        b.tell(&mut a);
        a.arrive(&mut b);
        assert!(a.stream.phase() == Phase::Open && !a.stream.is_all_sent(), "{credits} credits");
        for _ in 0..credits {
            a.stream.on_sent(Message::Credits(8));
        }
        settle(&mut a, &mut b);
        b.read(100);
        assert_eq!(b.read, b"the tail");
        assert_eq!((a.stream.phase(), b.stream.phase()), (Phase::Ended, Phase::Ended));
    }
}

/// The peer goes when both directions have ended. The acknowledgement of our end may be lost by that, which is no failure. But an end
/// that was not even sent is.
#[test]
fn a_peer_that_goes_after_both_ends_were_told_has_not_cut_the_connection() {
    for (credits, phase) in [(0, Phase::Ended), (4, Phase::Failed(Failure::Reset))] {
        let (mut a, mut b) = pair();
        settle(&mut a, &mut b);
        for _ in 0..credits {
            a.stream.controls -= 1;
        }
        a.stream.shut_down(How::Write);
        a.tell(&mut b);
        b.stream.shut_down(How::Write);
        b.tell(&mut a);
        a.arrive(&mut b);
        assert_eq!(a.stream.phase(), Phase::Open);
        a.stream.fail(Failure::Reset);
        assert_eq!(a.stream.phase(), phase);
    }
}

#[test]
fn messages_of_mapped_buffers_give_their_credits_back() {
    let (mut a, mut b) = pair();
    settle(&mut a, &mut b);
    for round in 0..24 {
        let message = a.stream.take_map(0).unwrap_or_else(|| panic!("no credit in round {round}"));
        b.arriving.push_back((message, None));
        settle(&mut a, &mut b);
    }
    assert!(a.stream.can_send());
}

/// rshutdown(SHUT_RD), then SHUT_WR: the peer hears that nothing goes any more.
#[test]
fn both_halves_one_after_the_other_are_an_end() {
    for order in [[How::Read, How::Write], [How::Write, How::Read]] {
        let (mut a, mut b) = pair();
        order.into_iter().for_each(|how| a.stream.shut_down(how));
        settle(&mut a, &mut b);
        assert_eq!((a.stream.phase(), b.stream.phase()), (Phase::Ended, Phase::Ended));
    }
}

#[test]
fn the_first_reason_counts() {
    let (mut a, _) = pair();
    a.stream.on_message(Message::Control(Control::Disconnect));
    a.stream.fail(Failure::Reset);
    assert_eq!(a.stream.phase(), Phase::Ended);
    assert!(a.stream.take_chunk(1).is_none() && a.stream.take_control(0, 0).is_none());
}

#[test]
fn a_message_follows_while_others_are_under_way() {
    let (mut a, _) = pair();
    let mut send = || a.stream.take_chunk(100).unwrap();
    let first = send();
    assert_eq!((first.follows, send().follows), (false, true));
    a.stream.on_sent(first.message);
    a.stream.on_sent(first.message);
    assert!(!a.stream.take_chunk(100).unwrap().follows);
}
