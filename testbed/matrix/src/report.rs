//! One report of a whole matrix: JSON for machines, Markdown and one HTML page for people.

use crate::{
    plan::Plan,
    play::{End, Outcome, Verdict},
};
use serde::Serialize;
use std::fmt::Write;

/// The style of the page: that of the conformance suite's report.
const STYLE: &str = include_str!("../../conform/src/report/report.css");

/// What came of all jobs, in the plan's order.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How many of which.
    pub counts: Vec<(Verdict, usize)>,
    /// The hosts' names, in the file's order.
    pub hosts: Vec<String>,
    /// The programs' names, in the plan's order.
    pub programs: Vec<String>,
    /// What came of each job.
    pub jobs: Vec<Outcome>,
}

impl Report {
    /// Of what is known; a job that nobody knows of is missing.
    #[must_use]
    pub fn new(plan: &Plan, mut jobs: Vec<Outcome>) -> Self {
        jobs.sort_by_key(|outcome| outcome.job.number);
        let count = |verdict| (verdict, jobs.iter().filter(|outcome| outcome.verdict == verdict).count());
        Self {
            counts: Verdict::ALL.map(count).to_vec(),
            hosts: plan.hosts.host.iter().map(|host| host.name.clone()).collect(),
            programs: plan.programs.iter().map(|program| program.name.clone()).collect(),
            jobs,
        }
    }

    /// How many have a verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.counts.iter().find(|(other, _)| *other == verdict).map_or(0, |(_, count)| *count)
    }

    /// Whether nothing failed, hung or got lost.
    #[must_use]
    pub fn is_good(&self) -> bool {
        [Verdict::Fail, Verdict::Hang, Verdict::Lost].into_iter().all(|verdict| self.count(verdict) == 0)
    }

    /// The counts in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let parts = self.counts.iter().filter(|(verdict, count)| *count > 0 || *verdict == Verdict::Pass);
        parts.map(|(verdict, count)| format!("{count} {}", verdict.word())).collect::<Vec<_>>().join(", ")
    }

    /// The jobs of one program between one server and one client.
    fn cell<'a>(
        &'a self,
        program: &'a str,
        server: &'a str,
        client: &'a str,
    ) -> impl Iterator<Item = &'a Outcome> {
        self.jobs.iter().filter(move |Outcome { job, .. }| {
            job.program == program && job.server == server && job.client == client
        })
    }

    /// A table of passes for each pair and program, then everything that is no pass.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!("# Interoperation of {} hosts\n\n{}.\n\n", self.hosts.len(), self.line());
        let _ = writeln!(text, "| server | client | {} |", self.programs.join(" | "));
        let _ = writeln!(text, "|---|---|{}", "---|".repeat(self.programs.len()));
        for server in &self.hosts {
            for client in self.hosts.iter().filter(|client| *client != server) {
                let cells = self.programs.iter().map(|program| {
                    let all: Vec<_> = self.cell(program, server, client).collect();
                    let passed = all.iter().filter(|outcome| outcome.verdict == Verdict::Pass).count();
                    match all.len() {
                        0 => "-".into(),
                        len if len == passed => format!("{passed}"),
                        len => format!("**{passed} of {len}**"),
                    }
                });
                let _ = writeln!(text, "| {server} | {client} | {} |", cells.collect::<Vec<_>>().join(" | "));
            }
        }
        for verdict in Verdict::ALL.into_iter().filter(|verdict| *verdict != Verdict::Pass) {
            let mut those = self.jobs.iter().filter(|outcome| outcome.verdict == verdict).peekable();
            if those.peek().is_none() {
                continue;
            }
            let _ = write!(
                text,
                "\n## {}\n\n| job | program | size | server | client | why |\n|---|---|---|---|---|---|\n",
                verdict.word()
            );
            for Outcome { job, why, .. } in those {
                let why = why.replace('|', "\\|");
                let _ = writeln!(
                    text,
                    "| {} | {} | {} | {} | {} | {why} |",
                    job.number, job.program, job.size, job.server, job.client
                );
            }
        }
        text
    }

    /// One page that needs nothing else: the table, and every job with its commands and the end of what they printed.
    #[must_use]
    pub fn html(&self) -> String {
        let title = format!("Interoperation of {} hosts", self.hosts.len());
        let mut out = format!(
            "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>{title}</title>\n<style>{STYLE}\n\
             pre {{ font: 12px/1.35 ui-monospace, monospace; background: #f6f8fa; padding: .5em .8em; overflow-x: auto; }}\n\
             td.pass {{ background: #dafbe1; }} td.bad {{ background: #ffebe9; }}\n\
             details.hang, details.lost {{ border-color: #c81e1e; }} details.absent {{ border-color: #6b7280; }}\n\
             </style>\n<h1>{title}</h1>\n<p id=summary>{}</p>\n<table><tr><th>server<th>client",
            escaped(&self.line())
        );
        for program in &self.programs {
            let _ = write!(out, "<th>{}", escaped(program));
        }
        out.push('\n');
        for server in &self.hosts {
            for client in self.hosts.iter().filter(|client| *client != server) {
                let _ = write!(out, "<tr><td>{}<td>{}", escaped(server), escaped(client));
                for program in &self.programs {
                    self.html_cell(program, server, client, &mut out);
                }
                out.push('\n');
            }
        }
        out.push_str("</table>\n");
        // What is wrong comes first.
        for verdict in [Verdict::Fail, Verdict::Hang, Verdict::Lost, Verdict::Absent, Verdict::Pass] {
            let those: Vec<_> = self.jobs.iter().filter(|outcome| outcome.verdict == verdict).collect();
            if !those.is_empty() {
                let _ = writeln!(out, "<h2>{} ({})</h2>", verdict.word(), those.len());
            }
            those.into_iter().for_each(|outcome| html_job(outcome, &mut out));
        }
        out
    }

    fn html_cell(&self, program: &str, server: &str, client: &str, out: &mut String) {
        let all: Vec<_> = self.cell(program, server, client).collect();
        let passed = all.iter().filter(|outcome| outcome.verdict == Verdict::Pass).count();
        let Some(first) = all.iter().find(|outcome| outcome.verdict != Verdict::Pass).or_else(|| all.first())
        else {
            out.push_str("<td>-");
            return;
        };
        let class = if passed == all.len() { "pass" } else { "bad" };
        let _ = write!(
            out,
            "<td class={class}><a href=\"#job-{}\">{passed} of {}</a>",
            first.job.number,
            all.len()
        );
    }
}

fn html_job(outcome: &Outcome, out: &mut String) {
    let Outcome { job, verdict, why, seconds, .. } = outcome;
    let open = if matches!(verdict, Verdict::Fail | Verdict::Hang | Verdict::Lost) { " open" } else { "" };
    let size = if job.size > 0 { format!("{} bytes, ", job.size) } else { String::new() };
    let _ = writeln!(
        out,
        "<details class=\"case {word}\" id=\"job-{}\"{open}><summary><b>{word}</b> <code>{}</code> {} to {}, {size}{seconds:.1} s</summary>",
        job.number,
        escaped(&job.program),
        escaped(&job.client),
        escaped(&job.server),
        word = verdict.word(),
    );
    if !why.is_empty() {
        let _ = writeln!(out, "<p class=why>{}</p>", escaped(why));
    }
    let ends = [("server", &job.server, &outcome.server, 0), ("client", &job.client, &outcome.client, 1)];
    for (what, host, End { code, output, tries }, side) in ends {
        let ended = code.map_or_else(|| "ended by us".to_owned(), |code| format!("ended with {code}"));
        let times = if *tries > 1 { format!(" at try {tries}") } else { String::new() };
        let _ = writeln!(
            out,
            "<p>{what} on {}, {ended}{times}: <code>{}</code></p>\n<pre>{}</pre>",
            escaped(host),
            escaped(&job.commands[side]),
            escaped(output)
        );
    }
    out.push_str("</details>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
