//! The packets of a failed case as a pcapng file, for Wireshark.

use crate::{
    bench::What,
    run::{Finding, Verdict},
};
use pcap_file::{
    DataLink,
    pcapng::{
        PcapNgWriter,
        blocks::{enhanced_packet::EnhancedPacketBlock, interface_description::InterfaceDescriptionBlock},
    },
};
use std::{borrow::Cow, fs, io, path::Path};

fn write(finding: &Finding, path: &Path) -> Result<(), io::Error> {
    let mut writer =
        PcapNgWriter::new(io::BufWriter::new(fs::File::create(path)?)).map_err(io::Error::other)?;
    writer.write_pcapng_block(InterfaceDescriptionBlock::new(DataLink::RAW, 0)).map_err(io::Error::other)?;
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
    Ok(())
}

/// Writes one file, named as the case, for each that failed; how many.
///
/// # Errors
/// What the file system says.
pub fn captures(findings: &[Finding], folder: &Path) -> Result<usize, io::Error> {
    fs::create_dir_all(folder)?;
    let failed =
        findings.iter().filter(|finding| finding.verdict != Verdict::Pass && !finding.log.is_empty());
    let mut count = 0;
    for finding in failed {
        write(finding, &folder.join(format!("{}.pcapng", finding.id)))?;
        count += 1;
    }
    Ok(count)
}
