//! The report as a Markdown table: the themes, then all findings except the passed ones.

use super::{Report, line};
use crate::run::Verdict;
use std::fmt::Write;

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// The report.
#[must_use]
pub fn markdown(report: &Report) -> String {
    let mut text = format!(
        "# Conformance of {}\n\n{} ({}). {}.\n\n",
        report.about.name,
        report.about.version,
        report.about.address,
        line(&report.tally())
    );
    text.push_str("| theme | pass | fail | known | skipped |\n|---|---|---|---|---|\n");
    for (theme, tally) in report.themes() {
        let fails = tally.fail_must + tally.fail_should + tally.gone + tally.mended;
        let _ = writeln!(
            text,
            "| {theme} | {} | {fails} | {} | {} |",
            tally.pass,
            tally.known + tally.told,
            tally.skip
        );
    }
    for (verdict, title) in [
        (Verdict::Fail, "Rules broken"),
        (Verdict::Known, "Known differences"),
        (Verdict::Mended, "Listed as differences, but kept"),
        (Verdict::Told, "Left to the device"),
        (Verdict::Skip, "Not run"),
        (Verdict::Gone, "Not run: the device was gone"),
    ] {
        let list: Vec<_> = report.findings.iter().filter(|finding| finding.verdict == verdict).collect();
        if list.is_empty() {
            continue;
        }
        let _ = write!(text, "\n## {title}\n\n| case | rule | source | what was seen |\n|---|---|---|---|\n");
        for finding in list {
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} |",
                finding.id,
                cell(&finding.rule),
                cell(&finding.source),
                cell(&finding.why)
            );
        }
    }
    text
}
