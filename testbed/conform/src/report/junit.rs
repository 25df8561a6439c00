//! The report as JUnit XML for CI systems, with one test suite per theme.

use super::Report;
use crate::{
    case::Level,
    run::{Finding, Verdict},
};
use quick_junit::{NonSuccessKind, Report as Xml, SerializeError, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;

/// Whether a finding makes the run fail, as the exit code says. A broken "should" does so only where the run is strict.
const fn fails(finding: &Finding, strict: bool) -> bool {
    match finding.verdict {
        Verdict::Fail => strict || matches!(finding.level, Level::Must),
        Verdict::Mended | Verdict::Gone => true,
        Verdict::Pass | Verdict::Known | Verdict::Told | Verdict::Skip => false,
    }
}

/// The report as XML. What does not fail the run (`strict` as on the command line) is no failure there, but says why.
///
/// # Errors
/// If the XML cannot be written. No report has caused this so far.
pub fn junit(report: &Report, strict: bool) -> Result<String, SerializeError> {
    let mut xml = Xml::new(format!("rxe-conform {}", report.about.name));
    for (theme, _) in report.themes() {
        let mut suite = TestSuite::new(theme.as_str());
        for finding in report.findings.iter().filter(|finding| finding.theme == theme) {
            let status = match finding.verdict {
                Verdict::Skip => {
                    let mut status = TestCaseStatus::skipped();
                    status.set_message(finding.why.as_str());
                    status
                }
                _ if fails(finding, strict) => {
                    let kind = match finding.verdict {
                        Verdict::Gone => NonSuccessKind::Error,
                        _ => NonSuccessKind::Failure,
                    };
                    let mut status = TestCaseStatus::non_success(kind);
                    status.set_message(finding.why.as_str());
                    status.set_description(format!("{}\n{}\n{}", finding.rule, finding.source, finding.why));
                    status
                }
                _ => TestCaseStatus::success(),
            };
            let is_silent =
                finding.verdict == Verdict::Skip || fails(finding, strict) || finding.why.is_empty();
            let mut case = TestCase::new(finding.id.as_str(), status);
            if !is_silent {
                case.set_system_out(format!("{:?}: {}", finding.verdict, finding.why));
            }
            case.set_time(Duration::from_secs_f64(finding.seconds));
            suite.add_test_case(case);
        }
        xml.add_test_suite(suite);
    }
    xml.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        bench::Bench,
        case::{Fail, must, should},
        dut::{Dut, core},
        run::{Differences, run},
    };

    #[test]
    fn a_recommendation_that_is_not_followed_fails_where_the_run_is_strict() {
        let (dut, link) = core::open(false);
        let about = dut.about().clone();
        let mut bench = Bench::new(Box::new(dut), Box::new(link));
        let cases = [
            should("T.SHOULD.1", "", "", |_| Err(Fail::Broken("not so good".into()))),
            must("T.MUST.1", "", "", |_| Err(Fail::Broken("wrong".into()))),
        ];
        let findings = run(&mut bench, &cases, &Differences::default(), |_, _| ());
        let report = Report { about, started: 0, seconds: 1.0, findings };
        for (strict, failures) in [(false, 1), (true, 2)] {
            let xml = junit(&report, strict).unwrap();
            assert_eq!(xml.matches("<failure").count(), failures, "{xml}");
            assert!(xml.contains("not so good"), "{xml}");
        }
    }
}
