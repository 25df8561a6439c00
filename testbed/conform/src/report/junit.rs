//! The report as JUnit XML for CI systems, with one test suite per theme.

use super::Report;
use crate::run::Verdict;
use quick_junit::{NonSuccessKind, Report as Xml, SerializeError, TestCase, TestCaseStatus, TestSuite};
use std::time::Duration;

/// The report as XML.
///
/// # Errors
/// If the XML cannot be written. No report has caused this so far.
pub fn junit(report: &Report) -> Result<String, SerializeError> {
    let mut xml = Xml::new(format!("rxe-conform {}", report.about.name));
    for (theme, _) in report.themes() {
        let mut suite = TestSuite::new(theme.as_str());
        for finding in report.findings.iter().filter(|finding| finding.theme == theme) {
            let status = match finding.verdict {
                Verdict::Pass | Verdict::Known | Verdict::Told => TestCaseStatus::success(),
                Verdict::Skip => {
                    let mut status = TestCaseStatus::skipped();
                    status.set_message(finding.why.as_str());
                    status
                }
                Verdict::Fail | Verdict::Mended | Verdict::Gone => {
                    let kind = match finding.verdict {
                        Verdict::Gone => NonSuccessKind::Error,
                        _ => NonSuccessKind::Failure,
                    };
                    let mut status = TestCaseStatus::non_success(kind);
                    status.set_message(finding.why.as_str());
                    status.set_description(format!("{}\n{}\n{}", finding.rule, finding.source, finding.why));
                    status
                }
            };
            let mut case = TestCase::new(finding.id.as_str(), status);
            case.set_time(Duration::from_secs_f64(finding.seconds));
            suite.add_test_case(case);
        }
        xml.add_test_suite(suite);
    }
    xml.to_string()
}
