//! The report as one HTML page without external files. It has a summary by theme, and for each case the rule, the result,
//! and the packets as a ladder diagram. The header fields of every packet can be unfolded.

use super::{Report, fields, line, summary};
use crate::{
    bench::{Entry, What},
    run::{Finding, Verdict},
};
use rxe_ladder::{Class, Field, Hue, Ladder, Step};
use std::fmt::Write;

/// The maximum number of steps of one ladder. A case with more steps shows the first ones.
const MOST: usize = 60;

/// The style of the page.
const STYLE: &str = include_str!("report.css");

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Fail => "fail",
        Verdict::Known => "known",
        Verdict::Mended => "mended",
        Verdict::Told => "told",
        Verdict::Skip => "skip",
        Verdict::Gone => "gone",
    }
}

/// The packets of a case as a ladder diagram.
fn ladder(finding: &Finding) -> Ladder {
    let mut ladder = Ladder::new(finding.id.as_str());
    let (suite, device) = (ladder.actor("suite", "scripted peer"), ladder.actor("device", "under test"));
    let classes =
        [("request", Hue::Blue), ("answer", Hue::Green), ("refusal", Hue::Red), ("program", Hue::Grey)]
            .map(|(name, hue)| ladder.class(Class::new(name, hue)));
    let start = finding.log.first().map_or(0, |entry| entry.at.as_nanos());
    for entry in finding.log.iter().take(MOST) {
        let at = (entry.at.as_nanos() - start) as u64;
        let (from, to, packet) = match &entry.what {
            What::Note(text) => {
                ladder.push(Step::event(device, at, text.as_str()).class(classes[3]));
                continue;
            }
            What::Instead(expected, _) => {
                let text = format!("expected: {}", summary(expected));
                ladder.push(Step::event(suite, at, text).class(classes[2]));
                continue;
            }
            What::Sent(packet, _) => (suite, device, packet),
            What::Got(packet, _) => (device, suite, packet),
        };
        let class = match packet.syndrome {
            Some(syndrome) if syndrome >= 0x20 => classes[2],
            Some(_) => classes[1],
            None => classes[0],
        };
        let fields = fields(packet).into_iter();
        let step = Step::arrow(from, to, at, summary(packet)).class(class);
        ladder.push(fields.fold(step, |step, (name, value)| step.field(Field::new(name, value))));
    }
    ladder
}

/// Every packet of a case, each with a table of its fields that can be unfolded.
fn packets(entries: &[Entry], out: &mut String) {
    for entry in entries.iter().take(MOST) {
        let (way, packet) = match &entry.what {
            What::Note(_) | What::Instead(..) => continue,
            What::Sent(packet, _) => ("to the device", packet),
            What::Got(packet, _) => ("from the device", packet),
        };
        let _ = write!(
            out,
            "<details class=packet><summary>{way}: {}</summary><table>",
            escaped(&summary(packet))
        );
        for (name, value) in fields(packet) {
            let _ = write!(out, "<tr><th>{name}<td>{}", escaped(&value));
        }
        out.push_str("</table></details>\n");
    }
}

/// The expected packet beside the received one, field by field. Empty unless a packet differed from the expected one.
fn contrast(entries: &[Entry]) -> String {
    let Some((expected, came)) = entries.iter().rev().find_map(|entry| match &entry.what {
        What::Instead(expected, came) => Some((expected, came)),
        _ => None,
    }) else {
        return String::new();
    };
    let mut rows = String::from("<table class=contrast><tr><th>field<th>expected<th>came\n");
    let found = came.as_ref().map(|came| came.fields()).unwrap_or_default();
    for (name, value) in expected.fields() {
        let other = found.iter().find(|(other, _)| *other == name).map_or("nothing", |(_, value)| value);
        let class = if *other == *value { "same" } else { "wrong" };
        let _ = writeln!(rows, "<tr class={class}><th>{name}<td>{}<td>{}", escaped(&value), escaped(other));
    }
    rows.push_str("</table>");
    rows
}

fn case(finding: &Finding, out: &mut String) {
    let verdict = word(finding.verdict);
    let open = if finding.verdict == Verdict::Fail { " open" } else { "" };
    let _ = writeln!(
        out,
        "<details class=\"case {verdict}\" id=\"{id}\"{open}><summary><b>{verdict}</b> <code>{id}</code> {}</summary>",
        escaped(&finding.rule),
        id = escaped(&finding.id),
    );
    let level = format!("{:?}", finding.level).to_lowercase();
    let _ = writeln!(out, "<p>{level}, {}</p>", escaped(&finding.source));
    if !finding.why.is_empty() {
        let _ = writeln!(out, "<p class=why>{}</p>", escaped(&finding.why));
    }
    out.push_str(&contrast(&finding.log));
    if !finding.log.is_empty() {
        let _ = writeln!(out, "{}", ladder(finding).svg());
        packets(&finding.log, out);
        if finding.log.len() > MOST {
            let _ = writeln!(out, "<p>and {} more steps</p>", finding.log.len() - MOST);
        }
    }
    out.push_str("</details>\n");
}

/// The page.
#[must_use]
pub fn html(report: &Report) -> String {
    let name = escaped(&report.about.name);
    let mut out = format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>Conformance of {name}</title>\n\
         <style>{STYLE}</style>\n<h1>Conformance of {name}</h1>\n<p>{} at {}, {:.1} s</p>\n<p id=summary>{}</p>\n",
        escaped(&report.about.version),
        report.about.address,
        report.seconds,
        line(&report.tally()),
    );
    out.push_str("<table class=themes><tr><th>theme<th>pass<th>fail<th>known<th>skipped\n");
    for (theme, tally) in report.themes() {
        let fails = tally.fail_must + tally.fail_should + tally.gone + tally.mended;
        let class = if fails > 0 { "fail" } else { "pass" };
        let _ = writeln!(
            out,
            "<tr class={class}><td><a href=\"#theme-{theme}\">{theme}</a><td>{}<td>{fails}<td>{}<td>{}",
            tally.pass,
            tally.known + tally.told,
            tally.skip
        );
    }
    out.push_str("</table>\n");
    for (theme, _) in report.themes() {
        let _ = writeln!(out, "<h2 id=\"theme-{theme}\">{theme}</h2>");
        for finding in report.findings.iter().filter(|finding| finding.theme == theme) {
            case(finding, &mut out);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bench::Bench,
        cases,
        dut::{Dut, core},
        run::{Differences, run},
    };
    use std::collections::HashSet;

    #[test]
    fn all_cases_are_in_a_page_below_20_megabytes() {
        let (dut, link) = core::open(false);
        let about = dut.about().clone();
        let mut bench = Bench::new(Box::new(dut), Box::new(link));
        let cases = cases::all();
        let findings = run(&mut bench, &cases, &Differences::default(), |_, _| ());
        let played = findings.iter().filter(|finding| !finding.log.is_empty()).count();
        assert!(played > 500, "{played}");
        let page = html(&Report { about, started: 0, seconds: 1.0, findings });
        assert!(page.len() < 20 << 20, "{} bytes", page.len());
        let ids: HashSet<_> = page.split("id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
        for case in &cases {
            assert!(ids.contains(&*case.id), "{} is missing", case.id);
        }
        assert!(page.matches("<svg").count() == played, "ladders are missing");
        assert_eq!(
            page.matches("http").count(),
            page.matches("http://www.w3.org/2000/svg").count(),
            "needs the network"
        );
    }

    #[test]
    fn words_of_a_device_are_no_markup() {
        assert_eq!(escaped("<script>\"&"), "&lt;script&gt;&quot;&amp;");
    }
}
