//! Many processes with many queue pairs each: how long it takes to get a slot, and what the service costs then.

use crate::{Home, Options};
use rxe_verbs::{Context, Qp, QpInit, QpType};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Stdio},
    time::Instant,
};
use testbed::agent::Failure;

/// Bytes of memory that the service may have then.
const MEMORY: u64 = 20 << 20;

/// One process: gets a slot, makes its queue pairs, says how long that took, and waits for its end.
pub(crate) fn idle(arguments: &[String]) -> Result<(), Failure> {
    let [address, count] = arguments else { return Err("idle ADDRESS COUNT".into()) };
    let start = Instant::now();
    let context = Context::open_address(address.parse()?)?;
    let attached = start.elapsed();
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None)?;
    let qps: Result<Vec<Qp>, _> =
        (0..count.parse()?).map(|_| pd.create_qp(&QpInit::new(QpType::Rc, &cq))).collect();
    let qps = qps?;
    println!("{}", json!({ "attached": attached.as_secs_f64() * 1e3, "qps": qps.len() }));
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn start(home: &Home, qps: usize) -> Result<(Process, f64), Failure> {
    let child = home
        .command(&std::env::current_exe()?)
        .args(["idle", &home.address.to_string(), &qps.to_string()])
        .env("RXE_SERVICE", &home.rxe)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut process = Process(child);
    let output = process.0.stdout.take().ok_or("no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let said: Value = serde_json::from_str(&line).map_err(|_| format!("a process said {line:?}"))?;
    Ok((process, said["attached"].as_f64().unwrap_or(f64::NAN)))
}

/// Starts them all, one after the other, and prints what was seen.
pub(crate) fn play(options: &Options, processes: usize, qps: usize) -> Result<(), Failure> {
    let home = &options.homes[0];
    let (mut all, mut times) = (Vec::new(), Vec::new());
    for number in 0..processes {
        let (process, time) = start(home, qps).map_err(|error| format!("process {number}: {error}"))?;
        all.push(process);
        // The first one starts the service.
        if number > 0 {
            times.push(time);
        }
    }
    times.sort_by(f64::total_cmp);
    let report = home.ask(&["service", "status"]).ok_or("no service")?;
    let clients = report["clients"].as_array().map_or(0, Vec::len);
    let status = std::fs::read_to_string(format!("/proc/{}/status", report["pid"]))?;
    let memory = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok())
        .ok_or("the service's memory is not told")?
        << 10;
    let middle = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    println!(
        "{clients} processes with {qps} queue pairs each: a slot in {middle:.2} ms (median; {:.2} at most), \
         service {:.1} MiB",
        times.last().copied().unwrap_or(f64::NAN),
        memory as f64 / f64::from(1 << 20)
    );
    if clients != processes || memory > MEMORY {
        return Err(format!("{clients} of {processes} processes, {memory} bytes").into());
    }
    Ok(())
}
