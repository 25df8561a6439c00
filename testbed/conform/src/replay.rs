//! Plays one end of a recorded session against a device that takes the place of the other end. Compares what the device
//! sends with what the recorded peer sent.
//!
//! Queue pair numbers, keys and addresses are translated; PSNs are those of the recording. If the recorded peer sent
//! requests, the device's program posts the same requests. Timing does not count as a difference, nor does the number of
//! acknowledgements that are coalesced into one. Differences in opcodes, PSNs, MSNs, syndromes, lengths and data do count.

use crate::{
    bench::{Bench, Got},
    case::{Fail, Outcome, broken},
    conn::{Conn, LOCAL, RECEIVES, TARGET},
    dut::WrOp,
    wire::{Packet, distance, ends_of, is_response, name, op, take_apart},
};
use pcap_file::{
    DataLink,
    pcap::PcapReader,
    pcapng::{Block, PcapNgReader},
};
use std::{collections::BTreeMap, fs, net::IpAddr, path::Path};

/// The maximum number of packets of a recording that are used.
const MOST: usize = 100_000;
/// Size of the longest message that can be played, in bytes: a receive has to fit into the device's memory for receives.
const MESSAGE: usize = LOCAL - RECEIVES;

/// A recorded packet.
#[derive(Clone, Debug)]
struct Recorded {
    /// Whether it was sent by the end that the suite plays.
    ours: bool,
    packet: Packet,
}

/// A difference between what the recorded peer sent and what the device sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Different {
    /// The number of the recorded packet, counted from 1 among the packets of the connection.
    pub at: usize,
    /// The difference in words.
    pub what: String,
    /// The reason why the difference does not matter, if it does not.
    pub because: Option<&'static str>,
}

/// The IP packet of a frame.
fn ip_of(link: DataLink, frame: &[u8]) -> Option<&[u8]> {
    match link {
        DataLink::RAW => Some(frame),
        DataLink::ETHERNET => {
            let kind = frame.get(12..14)?;
            if kind == [0x81, 0x00] { frame.get(18..) } else { frame.get(14..) }
        }
        _ => None,
    }
}

/// All frames of a pcap or pcapng file, with their link type. If the file ends in the middle of a packet, the packets before
/// that one are used.
fn frames(bytes: &[u8]) -> Result<Vec<(DataLink, Vec<u8>)>, String> {
    let mut found = Vec::new();
    if bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) {
        let mut reader = PcapNgReader::new(bytes).map_err(|error| error.to_string())?;
        let mut links = Vec::new();
        while let Some(Ok(block)) = reader.next_block() {
            match block {
                Block::InterfaceDescription(about) => links.push(about.linktype),
                Block::EnhancedPacket(packet) => {
                    let link = links.get(packet.interface_id as usize).copied().unwrap_or(DataLink::ETHERNET);
                    found.push((link, packet.data.to_vec()));
                }
                _ => {}
            }
            if found.len() >= MOST {
                break;
            }
        }
    } else {
        let mut reader =
            PcapReader::new(bytes).map_err(|error| format!("neither pcap nor pcapng: {error}"))?;
        let link = reader.header().datalink;
        while let Some(Ok(packet)) = reader.next_packet() {
            found.push((link, packet.data.to_vec()));
            if found.len() >= MOST {
                break;
            }
        }
    }
    Ok(found)
}

/// A recorded connection.
#[derive(Clone, Debug)]
pub struct Session {
    packets: Vec<Recorded>,
    mtu: u32,
}

impl Session {
    /// Reads the reliable connection of `own` that has the most packets in a capture.
    ///
    /// # Errors
    /// The error of the file, or that it has no such connection.
    pub fn read(path: &Path, own: IpAddr) -> Result<Self, String> {
        let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Self::parse(&bytes, own).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The same for the content of a file.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn parse(bytes: &[u8], own: IpAddr) -> Result<Self, String> {
        let mut all = Vec::new();
        for (number, (link, frame)) in (1..).zip(frames(bytes)?) {
            let Some(ip) = ip_of(link, &frame) else { continue };
            let Some(ends) = ends_of(ip) else { continue };
            if ends.src != own && ends.dst != own {
                continue;
            }
            let whole = trimmed(ip).ok_or_else(|| {
                format!("frame {number} is cut off: was its length limited when recording?")
            })?;
            let Ok(seen) = take_apart(whole, true) else { continue };
            // Reliable connections only, without queue pair 1, which belongs to the connection manager.
            if seen.packet.opcode.is_some_and(|opcode| opcode < 0x20) && seen.packet.dest_qp > Some(1) {
                all.push(Recorded { ours: ends.src == own, packet: seen.packet });
            }
        }
        let mut counts: BTreeMap<(bool, Option<u32>), usize> = BTreeMap::new();
        for one in &all {
            *counts.entry((one.ours, one.packet.dest_qp)).or_default() += 1;
        }
        let busiest = |ours| {
            let of_this = counts.iter().filter(|((whose, _), _)| *whose == ours);
            of_this.max_by_key(|(_, count)| **count).map(|((_, qpn), _)| *qpn)
        };
        let (Some(theirs), Some(ours)) = (busiest(true), busiest(false)) else {
            return Err(format!("no reliable connection with {own} in it that both ends have spoken on"));
        };
        let packets: Vec<_> = all
            .into_iter()
            .filter(|one| one.packet.dest_qp == if one.ours { theirs } else { ours })
            .collect();
        let longest = packets.iter().map(|one| one.packet.data_len() as u32).max().unwrap_or(0);
        // For a connection without a full packet, an MTU of 1024 serves as well as a smaller one.
        let Some(mtu) = [1024, 2048, 4096].into_iter().find(|mtu| longest <= *mtu) else {
            return Err(format!("a payload of {longest} bytes, which no path MTU allows"));
        };
        let session = Self { packets, mtu };
        let starts = (0..session.packets.len()).filter(|at| starts_message(&session.packets[*at].packet));
        let longest = starts.map(|at| session.message(at).len()).max().unwrap_or(0);
        let reads =
            session.packets.iter().filter(|one| !one.ours && one.packet.opcode == Some(op::READ_REQUEST));
        let longest =
            reads.filter_map(|one| one.packet.dma_len).fold(longest, |most, len| most.max(len as usize));
        if longest > MESSAGE {
            return Err(format!("a message of {longest} bytes; {MESSAGE} at most can be played"));
        }
        Ok(session)
    }

    /// First PSN of the requests of one of the two ends.
    fn first(&self, ours: bool) -> u32 {
        let request = |one: &&Recorded| one.ours == ours && !is_response(one.packet.opcode.unwrap_or(0));
        self.packets.iter().find(request).and_then(|one| one.packet.psn).unwrap_or(0x1000)
    }

    /// The payload of the message that begins with packet `at`.
    fn message(&self, at: usize) -> Vec<u8> {
        let mut data = Vec::new();
        let behind = self.packets.iter().enumerate().skip(at);
        for (place, one) in behind.filter(|(_, one)| one.ours == self.packets[at].ours) {
            let code = one.packet.opcode.unwrap_or(0);
            if is_response(code) {
                continue;
            }
            if place > at && starts_message(&one.packet) {
                break;
            }
            data.extend(one.packet.data.iter().flatten());
            if !matches!(code, op::SEND_FIRST | op::SEND_MIDDLE | op::WRITE_FIRST | op::WRITE_MIDDLE) {
                break;
            }
        }
        data
    }
}

/// Whether a packet is the first of a SEND or WRITE request.
const fn starts_message(packet: &Packet) -> bool {
    matches!(
        packet.opcode,
        Some(
            op::SEND_FIRST
                | op::SEND_ONLY
                | op::SEND_ONLY_IMM
                | op::SEND_ONLY_INV
                | op::WRITE_FIRST
                | op::WRITE_ONLY
                | op::WRITE_ONLY_IMM
        )
    )
}

/// An IP packet without Ethernet's padding of a short frame; `None` if the packet was not captured completely.
fn trimmed(ip: &[u8]) -> Option<&[u8]> {
    let word = |at: usize| ip.get(at..at + 2).map_or(0, |two| usize::from(two[0]) << 8 | usize::from(two[1]));
    let length = if ip.first().is_some_and(|first| first >> 4 == 4) { word(2) } else { word(4) + 40 };
    ip.get(..length)
}

/// The places in the target region that stand for the memory of each recorded key.
#[derive(Debug, Default)]
struct Places(BTreeMap<u32, (u64, usize)>);

impl Places {
    /// Assigns a piece of the target region to each key that the played end used.
    fn of(session: &Session) -> Result<Self, Fail> {
        let mut spans: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for one in session.packets.iter().filter(|one| one.ours) {
            let (Some(va), Some(rkey)) = (one.packet.va, one.packet.rkey) else { continue };
            let end = va.saturating_add(one.packet.dma_len.unwrap_or(8).into());
            let span = spans.entry(rkey).or_insert((va, end));
            *span = (span.0.min(va), span.1.max(end));
        }
        let (mut places, mut used) = (Self::default(), 0_u64);
        for (rkey, (start, end)) in spans {
            // The alignment is preserved, because atomics need it.
            let place = used.next_multiple_of(64) + start % 64;
            used = place.saturating_add(end - start);
            if used > TARGET as u64 {
                return Err(Fail::Skip(format!(
                    "the recording reaches over {used} bytes of memory, more than {TARGET}"
                )));
            }
            places.0.insert(rkey, (start, place as usize));
        }
        Ok(places)
    }

    fn offset(&self, va: u64, rkey: u32) -> Option<usize> {
        let (start, offset) = self.0.get(&rkey)?;
        Some(offset + usize::try_from(va.checked_sub(*start)?).ok()?)
    }
}

/// A session being played.
struct Player<'a> {
    session: &'a Session,
    conn: Conn,
    places: Places,
    /// The last PSN that the device has acknowledged.
    acked: Option<u32>,
    differences: Vec<Different>,
}

impl Player<'_> {
    /// Posts the receives for the messages of the played end, and writes the bytes that its READs will read.
    fn prepare(&mut self) -> Outcome {
        let session = self.session;
        let (mut wanted, mut written) = (Vec::new(), false);
        for (at, one) in session.packets.iter().enumerate() {
            let packet = &one.packet;
            match packet.opcode {
                Some(op::SEND_FIRST | op::SEND_ONLY | op::SEND_ONLY_IMM | op::SEND_ONLY_INV) if one.ours => {
                    self.conn.post_recv(session.message(at).len().max(1))?;
                }
                Some(op::WRITE_ONLY_IMM | op::WRITE_LAST_IMM) if one.ours => {
                    self.conn.post_recv(1)?;
                }
                Some(op::WRITE_FIRST | op::WRITE_ONLY) if one.ours => written = true,
                Some(op::READ_REQUEST) if one.ours && !written => {
                    wanted.push((
                        packet.psn,
                        self.places.offset(packet.va.unwrap_or(0), packet.rkey.unwrap_or(0)),
                    ));
                }
                Some(op::READ_FIRST | op::READ_ONLY) if !one.ours => {
                    let place =
                        wanted.iter().find(|(psn, _)| *psn == packet.psn).and_then(|(_, offset)| *offset);
                    // Response data that does not fit into the target region is not written.
                    if let (Some(offset), Some(data)) = (place, &packet.data)
                        && offset + data.len() <= TARGET
                    {
                        self.conn.set(offset, data)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends a recorded packet of the played end.
    fn say(&self, packet: &Packet) -> Outcome {
        let target = self.conn.objects.target;
        let place = packet.va.zip(packet.rkey).and_then(|(va, rkey)| self.places.offset(va, rkey));
        // Fields that depend on addresses and queue pair numbers are computed anew, because these differ from the recording.
        let mut sent = Packet {
            dest_qp: None,
            ident: None,
            ip_len: None,
            udp_len: None,
            udp_sum: None,
            sport: None,
            ..packet.clone()
        };
        if let Some(offset) = place {
            (sent.va, sent.rkey) = (Some(target.addr + offset as u64), Some(target.rkey));
        }
        self.conn.raw(sent)
    }

    /// If this packet begins a request, lets the device's program post the same request as the recorded peer's program.
    fn act(&mut self, at: usize) -> Outcome {
        let packet = &self.session.packets[at].packet;
        let (remote_addr, rkey) = (packet.va.unwrap_or(0), packet.rkey.unwrap_or(0));
        let imm = packet.imm.unwrap_or(0);
        let wr = match packet.opcode.unwrap_or(0) {
            op::SEND_FIRST | op::SEND_ONLY => WrOp::Send,
            op::SEND_ONLY_IMM => WrOp::SendWithImm { imm },
            op::WRITE_FIRST | op::WRITE_ONLY => WrOp::RdmaWrite { remote_addr, rkey },
            op::WRITE_ONLY_IMM => WrOp::RdmaWriteWithImm { remote_addr, rkey, imm },
            op::READ_REQUEST => WrOp::RdmaRead { remote_addr, rkey },
            op::FETCH_ADD => WrOp::AtomicFetchAndAdd { remote_addr, rkey, add: packet.swap_add.unwrap_or(0) },
            op::COMPARE_SWAP => WrOp::AtomicCmpAndSwp {
                remote_addr,
                rkey,
                compare: packet.compare.unwrap_or(0),
                swap: packet.swap_add.unwrap_or(0),
            },
            _ => return Ok(()),
        };
        let len = match wr {
            WrOp::RdmaRead { .. } => packet.dma_len.unwrap_or(0) as usize,
            WrOp::AtomicFetchAndAdd { .. } | WrOp::AtomicCmpAndSwp { .. } => 8,
            _ => {
                let data = self.session.message(at);
                self.conn.set_local(0, &data)?;
                data.len()
            }
        };
        self.conn.post(wr, len).map(|_| ())
    }

    fn hear(&mut self, at: usize) -> Outcome {
        let recorded = &self.session.packets[at].packet;
        let is_ack =
            recorded.opcode == Some(op::ACK) && recorded.syndrome.is_some_and(|syndrome| syndrome < 0x20);
        let psn = recorded.psn.unwrap_or(0);
        if is_ack && self.acked.is_some_and(|acked| distance(acked, psn) >= 0) {
            return Ok(());
        }
        self.act(at)?;
        loop {
            let Some(got) = self.conn.next(self.conn.patience())? else {
                return broken(format!("packet {}: {} never came", at + 1, recorded.summary()));
            };
            let acks = got.opcode == Some(op::ACK) && got.syndrome.is_some_and(|syndrome| syndrome < 0x20);
            if acks {
                self.acked = got.psn;
                // The device may send one acknowledgement for each request although the recorded peer sent one for several,
                // or the other way round.
                if !is_ack || distance(got.at_psn(), psn) < 0 {
                    continue;
                }
            }
            self.compare(at, &got);
            return Ok(());
        }
    }

    fn compare(&mut self, at: usize, got: &Got) {
        let recorded = &self.session.packets[at].packet;
        let coalesced = recorded.opcode == Some(op::ACK) && got.psn != recorded.psn;
        let both_positive =
            [recorded.syndrome, got.syndrome].iter().all(|code| code.is_some_and(|code| code < 0x20));
        for wrong in recorded.mismatches(&got.packet) {
            let because = match wrong.field {
                "ident" | "sport" | "tos" | "ttl" | "dest_qp" | "vlan" | "udp_sum" | "flow" | "fragment"
                | "ip_len" | "udp_len" => continue,
                "psn" | "msn" if coalesced => Some("one acknowledgement for several"),
                "syndrome" if both_positive => Some("credits: each end has receives of its own"),
                "migreq" => Some("paths do not migrate"),
                "ack_req" => Some("when an acknowledgement is asked for is the sender's choice"),
                _ => None,
            };
            let what = format!("packet {} ({}): {wrong}", at + 1, name(recorded.opcode.unwrap_or(0)));
            self.differences.push(Different { at: at + 1, what, because });
        }
    }
}

/// Plays a session.
///
/// # Errors
/// If the device stops answering, or if the recording cannot be played against it.
pub fn play(bench: &mut Bench, session: &Session) -> Outcome<Vec<Different>> {
    bench.clear()?;
    let (psn, dut_psn, mtu) = (session.first(true), session.first(false), session.mtu);
    let conn = bench.rc_with(|o| (o.psn, o.dut_psn, o.mtu) = (psn, dut_psn, mtu))?;
    let places = Places::of(session)?;
    let mut player = Player { session, conn, places, acked: None, differences: Vec::new() };
    player.prepare()?;
    for (at, one) in session.packets.iter().enumerate() {
        if one.ours {
            player.say(&one.packet)?;
        } else {
            player.hear(at)?;
        }
    }
    Ok(player.differences)
}

#[cfg(test)]
mod tests;
