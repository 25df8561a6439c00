//! The summary as text.

use crate::flow::{Connection, Conversation, Direction, Goodput, Summary, Totals};
use rxe_ladder::{duration, moment};
use std::{collections::HashSet, fmt::Write};

/// Most datagram flows and conversations that are listed.
const MOST_LISTED: usize = 100;
/// Most rounds of a direction that are listed.
const MOST_ROUNDS: usize = 8;

/// A number with its noun.
fn plural(count: u64, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// Bytes with a unit.
fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        10_000_000..10_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Bytes in a time as bits per second.
fn rate(bytes: u64, nanoseconds: u64) -> f64 {
    bytes as f64 * 8e9 / nanoseconds.max(1) as f64
}

/// Bits per second with a unit.
fn speed(bits: f64) -> String {
    match bits {
        ..1e6 => format!("{:.1} kbit/s", bits / 1e3),
        1e6..1e9 => format!("{:.1} Mbit/s", bits / 1e6),
        _ => format!("{:.2} Gbit/s", bits / 1e9),
    }
}

/// The summary as lines.
#[must_use]
pub fn summary(summary: &Summary) -> String {
    let mut out = String::new();
    totals(&summary.totals, &mut out);
    let start = summary.totals.first_ns;
    for connection in &summary.connections {
        connection_lines(connection, summary, start, &mut out);
    }
    let used: HashSet<_> =
        summary.connections.iter().filter_map(|connection| connection.conversation).collect();
    let alone = summary.conversations.iter().enumerate().filter(|(at, _)| !used.contains(at));
    for (_, conversation) in alone.take(MOST_LISTED) {
        let _ = writeln!(out, "\nconnection manager  {} asks {}", conversation.asker, conversation.asked);
        conversation_lines(conversation, start, &mut out);
    }
    if !summary.datagrams.is_empty() {
        let _ = writeln!(out, "\ndatagrams");
    }
    for flow in summary.datagrams.iter().take(MOST_LISTED) {
        let (from, to) = (
            format!("{} qp {:#08x}", flow.from, flow.from_qp),
            format!("{} qp {:#08x}", flow.to, flow.to_qp),
        );
        let _ = writeln!(out, "  {from} > {to}  {}, {}", plural(flow.count, "datagram"), size(flow.bytes));
    }
    let more = summary.datagrams.len().saturating_sub(MOST_LISTED);
    if more > 0 {
        let _ = writeln!(out, "  and {more} more");
    }
    out
}

fn totals(totals: &Totals, out: &mut String) {
    let took = totals.last_ns.saturating_sub(totals.first_ns);
    let _ = write!(out, "{} in {}, ", plural(totals.frames, "frame"), duration(took));
    let _ = writeln!(out, "{}, {}", plural(totals.packets, "RoCE packet"), size(totals.bytes));
    let _ = write!(out, "ICRC: {} right, {} wrong", totals.icrc_right, totals.icrc_wrong);
    let _ =
        if totals.icrc_cut > 0 { write!(out, ", {} not in the capture", totals.icrc_cut) } else { Ok(()) };
    out.push('\n');
    for (count, what) in [
        (
            totals.from_batches,
            "packets left in one piece with others (segmentation offload): one frame shows several",
        ),
        (totals.roce_v1, "packets are RoCEv1"),
        (totals.mirrored, "packets were mirrored in a tunnel"),
        (totals.unreadable, "packets have headers that cannot be read"),
        (totals.lost, "of the packets were lost behind the place of the capture"),
        (totals.not_roce, "frames are not RoCE"),
        (totals.cut_short, "frames were cut too short to tell what they are"),
        (totals.fragments, "frames are fragments of IP datagrams, which RoCE never makes"),
        (totals.unknown_link, "frames are of a link type that is not known"),
        (totals.unfollowed, "packets are of more queue pairs than are followed"),
    ] {
        if count > 0 {
            let _ = writeln!(out, "{count} {what}");
        }
    }
    for (what, count) in &totals.malformed {
        let _ = writeln!(out, "{count} frames are malformed: {what}");
    }
}

fn connection_lines(connection: &Connection, summary: &Summary, start: u64, out: &mut String) {
    let end = |(address, qp): (std::net::IpAddr, Option<u32>)| match qp {
        Some(qp) => format!("{address} qp {qp:#08x}"),
        None => format!("{address} qp unknown"),
    };
    let [a, b] = connection.ends;
    let _ =
        write!(out, "\nconnection {}  {}  {} <> {}", connection.number, connection.service, end(a), end(b));
    let _ = connection.mtu.map_or(Ok(()), |mtu| write!(out, "  MTU {mtu}"));
    let (from, to) = (connection.first_ns.saturating_sub(start), connection.last_ns.saturating_sub(start));
    let _ = writeln!(out, "  {} to {} s", moment(from), moment(to));
    if let Some(conversation) = connection.conversation.and_then(|at| summary.conversations.get(at)) {
        conversation_lines(conversation, start, out);
    }
    for direction in &connection.directions {
        direction_lines(direction, start, out);
    }
}

fn conversation_lines(conversation: &Conversation, start: u64, out: &mut String) {
    let _ = write!(
        out,
        "  CM: {} asked for {}: {}",
        conversation.asker, conversation.service, conversation.outcome
    );
    if conversation.repeated > 0 {
        let _ = write!(out, " ({} said again)", plural(conversation.repeated, "message"));
    }
    out.push('\n');
    let said = conversation.messages.iter().map(|said| {
        let arrow = if said.by_asker { ">" } else { "<" };
        let again = if said.repeated { " again" } else { "" };
        format!("{arrow}{}{again} {}", said.name, moment(said.time_ns.saturating_sub(start)))
    });
    let _ = writeln!(out, "      {}", said.collect::<Vec<_>>().join("  "));
}

fn direction_lines(direction: &Direction, start: u64, out: &mut String) {
    let asked =
        direction.asked.iter().map(|(kind, asked)| format!("{} {kind} ({})", asked.count, size(asked.bytes)));
    let asked: Vec<_> = asked.collect();
    let what = if asked.is_empty() { "nothing that ended".to_owned() } else { asked.join(", ") };
    let _ = writeln!(out, "  {} asks {}: {what}", direction.from, direction.to);
    let _ = write!(out, "      {} completed, {}", direction.completed, size(direction.completed_bytes));
    for (count, what) in [(direction.refused, "refused"), (direction.unanswered, "unanswered")] {
        let _ = if count > 0 { write!(out, ", {count} {what}") } else { Ok(()) };
    }
    let _ = write!(out, "; {}, {}", plural(direction.packets, "packet"), plural(direction.acks, "ACK"));
    let _ = if direction.responses > 0 {
        write!(out, ", {}", plural(direction.responses, "READ response"))
    } else {
        Ok(())
    };
    out.push('\n');
    if let Some(spread) = direction.latency {
        let [min, median, p99, max] =
            [spread.min_ns, spread.median_ns, spread.p99_ns, spread.max_ns].map(duration);
        let _ = writeln!(out, "      answered after {median} (median; {min} to {max}, 99 % within {p99})");
    }
    if let Some(goodput) = direction.goodput.as_ref().filter(|goodput| goodput.bytes.len() > 1) {
        goodput_line(goodput, out);
    }
    troubles(direction, start, out);
}

/// Bars for the bytes of each part of time.
fn goodput_line(goodput: &Goodput, out: &mut String) {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = goodput.bytes.iter().copied().max().unwrap_or(0).max(1);
    let bar = |bytes: &u64| {
        if *bytes == 0 { ' ' } else { BARS[(u128::from(bytes - 1) * 8 / u128::from(most)) as usize] }
    };
    let bars: String = goodput.bytes.iter().map(bar).collect();
    let sum: u64 = goodput.bytes.iter().sum();
    let spent = goodput.last_ns.saturating_sub(goodput.start_ns);
    let whole = rate(sum, if spent == 0 { goodput.width_ns } else { spent });
    // The last part may be shorter than the others, so its rate is too low here. The peak is at least the mean.
    let [whole, peak] = [whole, rate(most, goodput.width_ns).max(whole)].map(speed);
    let _ = writeln!(
        out,
        "      goodput {whole}, at most {peak} |{bars}| of {} each",
        duration(goodput.width_ns)
    );
}

fn troubles(direction: &Direction, start: u64, out: &mut String) {
    if direction.retransmitted > 0 {
        let times = plural(direction.round_count, "time");
        let _ = writeln!(
            out,
            "      sent again: {}, going back {times}",
            plural(direction.retransmitted, "packet")
        );
        for round in direction.rounds.iter().take(MOST_ROUNDS) {
            let time = moment(round.time_ns.saturating_sub(start));
            let psn = round.psn;
            let _ = writeln!(
                out,
                "        at {time} s from psn {psn:06x} on, {}: {}",
                plural(round.packets, "packet"),
                round.why
            );
        }
        let more = direction.round_count.saturating_sub(MOST_ROUNDS as u64);
        let _ = if more > 0 { writeln!(out, "        and {more} more times") } else { Ok(()) };
    }
    if !direction.naks.is_empty() {
        let naks = direction.naks.iter().map(|(what, count)| format!("{count} {what}"));
        let _ = writeln!(out, "      NAKs: {}", naks.collect::<Vec<_>>().join(", "));
    }
    if let Some((least, most)) = direction.credits {
        let _ = writeln!(out, "      end-to-end credits: codes {least} to {most}");
    }
    for (count, what) in [
        (direction.missing, "not in the capture: lost before its place, or by the capture itself"),
        (direction.late, "after later ones (reordered)"),
        (direction.msn_mismatches, "with a message sequence number that does not fit"),
        (direction.marked, "marked by a switch (ECN)"),
        (direction.cnps, "congestion notifications"),
        (direction.bad_icrc - direction.rewritten.min(direction.bad_icrc), "with a wrong ICRC"),
        (
            direction.rewritten,
            "whose addresses or ports were rewritten on the way (NAT), or whose sender computes the ICRC wrongly: \
             no RoCE receiver takes them",
        ),
        (direction.copies, "seen twice (a mirror's copies, or recorded going out and coming in)"),
        (direction.cut, "cut by the capture"),
    ] {
        if count > 0 {
            let _ = writeln!(out, "      {}: {what}", plural(count, "packet"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last part of time may have hardly begun.
    #[test]
    fn goodput_is_that_of_the_time_it_took() {
        let line = |bytes: &[u64], last_ns: u64| {
            let mut out = String::new();
            let goodput =
                Goodput { start_ns: 5_000, last_ns: 5_000 + last_ns, width_ns: 100_000, bytes: bytes.into() };
            goodput_line(&goodput, &mut out);
            out
        };
        let told = line(&[1_000_000, 1_000_000], 101_000);
        assert!(told.contains("goodput 158.42 Gbit/s, at most 158.42 Gbit/s"), "{told}");
        let told = line(&[1_000_000, 500_000], 150_000);
        assert!(told.contains("goodput 80.00 Gbit/s, at most 80.00 Gbit/s"), "{told}");
        let told = line(&[2_000_000, 0, 1_000_000], 300_000);
        assert!(told.contains("goodput 80.00 Gbit/s, at most 160.00 Gbit/s"), "{told}");
        assert!(line(&[1, 1], 0).contains("goodput"));
    }
}
