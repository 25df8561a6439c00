//! Writes the packets of a failed case to a pcapng file, for Wireshark.

use crate::{
    bench::What,
    run::{Finding, Verdict},
};
use pcap_file::{
    DataLink,
    pcapng::{
        PcapNgWriter,
        blocks::{
            enhanced_packet::EnhancedPacketBlock,
            interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption},
        },
    },
};
use std::{borrow::Cow, fs, io, path::Path};

/// The unit of all times in the file as a negative power of ten: nanoseconds, as the crate writes them.
const NANOSECONDS: u8 = 9;

/// The file of one case.
fn encode(finding: &Finding) -> Result<Vec<u8>, io::Error> {
    let mut writer = PcapNgWriter::new(Vec::new()).map_err(io::Error::other)?;
    let mut interface = InterfaceDescriptionBlock::new(DataLink::RAW, 0);
    interface.options.push(InterfaceDescriptionOption::IfTsResol(NANOSECONDS));
    writer.write_pcapng_block(interface).map_err(io::Error::other)?;
    for entry in &finding.log {
        let (What::Sent(_, bytes) | What::Got(_, bytes)) = &entry.what else { continue };
        writer
            .write_pcapng_block(EnhancedPacketBlock {
                interface_id: 0,
                timestamp: entry.at,
                original_len: bytes.len() as u32,
                data: Cow::Borrowed(bytes),
                options: vec![],
            })
            .map_err(io::Error::other)?;
    }
    Ok(writer.into_inner())
}

/// Writes one file for each case that failed, named after the case. Returns the number of files.
///
/// # Errors
/// The error of the file system.
pub fn captures(findings: &[Finding], folder: &Path) -> Result<usize, io::Error> {
    fs::create_dir_all(folder)?;
    let failed =
        findings.iter().filter(|finding| finding.verdict != Verdict::Pass && !finding.log.is_empty());
    let mut count = 0;
    for finding in failed {
        fs::write(folder.join(format!("{}.pcapng", finding.id)), encode(finding)?)?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bench::Bench,
        case::{Fail, must},
        dut::core,
        run::{Differences, run},
    };

    /// Checks the section, the interface with its unit of time, and packets with the times of the log.
    #[test]
    fn times_are_those_of_the_log() {
        let (dut, link) = core::open(false);
        let mut bench = Bench::new(Box::new(dut), Box::new(link));
        let case = must("T.FAIL", "", "", |b| {
            let mut c = b.rc()?;
            b.wait(std::time::Duration::from_secs(7))?;
            c.alive()?;
            Err(Fail::Broken("to see the packets".into()))
        });
        let findings = run(&mut bench, &[case], &Differences::default(), |_, _| ());
        let times: Vec<_> = findings[0]
            .log
            .iter()
            .filter(|entry| matches!(entry.what, What::Sent(..) | What::Got(..)))
            .map(|entry| entry.at.as_nanos())
            .collect();
        assert!(times.len() == 2 && times[0] > 7_000_000_000, "{times:?}");
        let file = encode(&findings[0]).unwrap();
        // Walks through the blocks by the lengths in their headers (pcapng, 3.1).
        let (mut at, mut found, mut unit) = (0, Vec::new(), None);
        while at < file.len() {
            let word = |from: usize| u32::from_ne_bytes(file[from..from + 4].try_into().unwrap());
            let half = |from: usize| u16::from_ne_bytes(file[from..from + 2].try_into().unwrap());
            match word(at) {
                // Interface description block: its first option is if_tsresol (9), of one byte.
                1 => unit = Some((half(at + 16), half(at + 18), file[at + 20])),
                6 => found.push(u128::from(word(at + 12)) << 32 | u128::from(word(at + 16))),
                _ => {}
            }
            at += word(at + 4) as usize;
        }
        assert_eq!(unit, Some((9, 1, 9)));
        assert_eq!(found, times);
    }
}
