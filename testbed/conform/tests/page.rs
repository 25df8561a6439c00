//! The report in a browser: somebody looks for the rule that a device breaks, and for the packets that show it.

use rxe_conform::{
    bench::Bench,
    case::{Case, must},
    dut::{Dut, core},
    report::{Report, html::html},
    run::{Differences, Verdict, run},
    wire::{Packet, op},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The second one asks for what no device does: it fails on every one.
const CASES: &[Case] = &[
    must("PAGE.GOOD.1", "A SEND is acknowledged", "none", |b| {
        let mut c = b.rc()?;
        c.post_recv(8)?;
        let psn = c.tx(Packet::of(op::SEND_ONLY).data(vec![1; 8]).ask())?;
        c.acked(psn).map(|_| ())
    }),
    must("PAGE.BAD.1", "A SEND without a receive is refused for good", "none", |b| {
        let mut c = b.rc()?;
        let psn = c.tx(Packet::of(op::SEND_ONLY).data(vec![1; 8]).ask())?;
        c.naked(psn, 0x63).map(|_| ())
    }),
];

#[test]
fn a_broken_rule_is_found_in_the_page() {
    let (dut, link) = core::open(false);
    let about = dut.about().clone();
    let mut bench = Bench::new(Box::new(dut), Box::new(link));
    let findings = run(&mut bench, CASES, &Differences::default(), |_, _| ());
    assert_eq!((findings[0].verdict, findings[1].verdict), (Verdict::Pass, Verdict::Fail));
    let text = html(&Report { about, started: 0, seconds: 0.1, findings });
    let page = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("broken-rule.html");
    fs::write(&page, text).unwrap();
    if !Path::new("/usr/bin/chromedriver").exists() || !Path::new("/usr/bin/chromium").exists() {
        return eprintln!("skipped: a_broken_rule_is_found_in_the_page: needs chromium and chromium-driver");
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page.py");
    let output = Command::new("/usr/bin/python3").arg(script).arg(&page).output().unwrap();
    assert!(output.status.success(), "{}\n{}", page.display(), String::from_utf8_lossy(&output.stderr));
}
