//! The play: pairs at work, deaths, and the reckoning.

use crate::{
    Home, Options,
    pair::{Event, PATIENCE, Pair},
    steering::{Calm, Ledger},
};
use std::{
    process::{Child, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    time::{Duration, Instant},
};
use testbed::agent::Failure;

/// Batches for two slots at once that are sent on purpose.
const STRAYS: u64 = 20;
/// Rubbish of the stranger, while the pairs are at work and when they are quiet; and how fast it comes.
const RUBBISH: u64 = 600;
const PER_SECOND: u64 = 300;
/// How long to listen at a time.
const TURN: Duration = Duration::from_millis(100);
/// A processor may be away for long, so that one death of those that are planned may not take place.
const MISSED: u64 = 1;

#[derive(Default)]
struct Counts {
    messages: u64,
    bytes: u64,
    clients_killed: u64,
    services_killed: u64,
    noticed: u64,
    slowest: Duration,
}

struct Play<'a> {
    options: &'a Options,
    pairs: Vec<Pair>,
    tell: Sender<Event>,
    events: Receiver<Event>,
    /// Of each place.
    ledgers: Vec<Ledger>,
    counts: Counts,
}

pub(crate) fn play(options: &Options) -> Result<(), Failure> {
    for home in options.places() {
        // One that is left from before would tell of what happened then.
        let status = home.command(&home.rxe).args(["service", "stop"]).status()?;
        if !status.success() {
            return Err("the host service is used by others".into());
        }
    }
    let (tell, events) = channel();
    let pairs = (0..options.pairs).map(|number| Pair::start(number, options.pairs, &options.homes, &tell));
    let mut play = Play {
        options,
        pairs: pairs.collect::<Result<_, _>>()?,
        tell,
        events,
        ledgers: vec![Ledger::default(); options.places().len()],
        counts: Counts::default(),
    };
    let (calm, rubbish) = play.acts().inspect_err(|_| {
        // What the processes saw, while they are there.
        for home in options.places() {
            for arguments in [&["service", "status", "--log"][..], &["stat", "--qps"]] {
                let _ = home.command(&home.rxe).args(arguments).status();
            }
        }
    })?;
    let counts = &play.counts;
    let sum = |count: fn(&Ledger) -> u64| calm.iter().map(|calm| count(&calm.ledger)).sum::<u64>();
    let rejoined = sum(|ledger| ledger.rejoined);
    println!(
        "{} - {}: {} pairs, {} messages, {} MiB, {} clients killed and {} partners told (the slowest after {:.1} s), \
         {} services killed, {rejoined} times a client came back, {} packets handed on ({} on purpose), {} left to the \
         dead, {} merged arrivals at the living{}",
        options.homes[0].address,
        options.homes[1].address,
        options.pairs,
        counts.messages,
        counts.bytes >> 20,
        counts.clients_killed,
        counts.noticed,
        counts.slowest.as_secs_f64(),
        counts.services_killed,
        sum(|ledger| ledger.handed_on),
        STRAYS * calm.len() as u64,
        sum(|ledger| ledger.drained),
        calm.iter().map(|calm| calm.sum("merged_receives").to_string()).collect::<Vec<_>>().join(" + "),
        if rubbish == 0 {
            String::new()
        } else {
            format!(
                ", {} packets of rubbish and then {rubbish}, each of them counted",
                options.seconds * PER_SECOND
            )
        }
    );
    let services = options.seconds / options.service_every * options.places().len() as u64;
    if counts.noticed != counts.clients_killed
        || counts.clients_killed + MISSED < options.seconds
        || counts.services_killed + MISSED < services
        || rejoined == 0
    {
        return Err(format!(
            "not everything happened that should have: {} clients and {services} services were to die",
            options.seconds
        )
        .into());
    }
    Ok(())
}

impl Play<'_> {
    /// Everything in its order: what was counted at the end, and how many packets of rubbish came last.
    fn acts(&mut self) -> Result<(Vec<Calm>, u64), Failure> {
        self.hear_until(PATIENCE, "not at work", Pair::is_at_work)?;
        let stranger = self.send_rubbish(self.options.seconds * PER_SECOND, &[], &[])?;
        self.deaths()?;
        finish(stranger)?;
        self.all_go_on()?;
        self.quiet()?;
        let calm = self.reckoning()?;
        let rubbish = if self.options.stranger.is_some() { self.count_rubbish(&calm[0])? } else { 0 };
        self.end()?;
        Ok((calm, rubbish))
    }

    /// A client dies each second, and the services now and then.
    fn deaths(&mut self) -> Result<(), Failure> {
        let begin = Instant::now();
        let mut victim = 0;
        for second in 1..=self.options.seconds {
            self.hear(begin + Duration::from_secs(second))?;
            // Pairs take turns; who has not yet done anything is passed over.
            victim += 5;
            let count = self.pairs.len();
            let turns = (victim..victim + count).map(|turn| turn % count);
            if let Some(number) = turns.into_iter().find(|number| self.pairs[*number].is_at_work()) {
                self.pairs[number].kill()?;
            }
            if second.is_multiple_of(self.options.service_every) {
                for (home, ledger) in self.options.places().iter().zip(&mut self.ledgers) {
                    self.counts.services_killed += u64::from(ledger.kill_service(home)?);
                }
            }
            self.replace_dead()?;
        }
        Ok(())
    }

    fn replace_dead(&mut self) -> Result<(), Failure> {
        for pair in self.pairs.iter_mut().filter(|pair| pair.is_over()) {
            pair.start_again(&self.tell)?;
        }
        Ok(())
    }

    /// Takes what the workers say until then.
    fn hear(&mut self, until: Instant) -> Result<(), Failure> {
        loop {
            let begin = Instant::now();
            let left = until.saturating_duration_since(begin).min(TURN);
            let first = self.events.recv_timeout(left).ok();
            // All that was said before anybody is called late: we may have had no processor ourselves.
            for event in first.into_iter().chain(core::iter::from_fn(|| self.events.try_recv().ok())) {
                self.pairs[event.pair].handle(event)?;
            }
            // If we had no processor for longer than that, those who read for us had none either.
            let listened = begin.elapsed().min(TURN);
            for pair in &mut self.pairs {
                let progress = pair.take_progress();
                self.counts.messages += progress.messages;
                self.counts.bytes += progress.bytes;
                self.counts.clients_killed += u64::from(progress.killed);
                if let Some(after) = progress.noticed {
                    self.counts.noticed += 1;
                    self.counts.slowest = self.counts.slowest.max(after);
                }
                pair.check(listened)?;
            }
            if Instant::now() >= until {
                return Ok(());
            }
        }
    }

    /// Hears until it is so of every pair.
    fn hear_until(
        &mut self,
        patience: Duration,
        what: &str,
        is_so: impl Fn(&Pair) -> bool,
    ) -> Result<(), Failure> {
        let begin = Instant::now();
        while let Some(late) = self.pairs.iter().find(|pair| !is_so(pair)) {
            if begin.elapsed() > patience {
                return Err(format!("{what}: {}", late.describe()).into());
            }
            self.hear(Instant::now() + Duration::from_millis(100))?;
        }
        Ok(())
    }

    /// After the last death the partner notices, and from then on everybody goes on, those that are new too.
    fn all_go_on(&mut self) -> Result<(), Failure> {
        self.hear_until(PATIENCE, "a partner of the dead goes on", |pair| !pair.is_mourning())?;
        self.replace_dead()?;
        self.hear_until(PATIENCE, "not at work after the last death", Pair::is_at_work)?;
        self.pairs.iter_mut().for_each(Pair::mark);
        // Whoever receives nothing for long while we listen has failed before.
        self.hear_until(PATIENCE, "stands still since the last death", Pair::has_moved)
    }

    /// All stop, and have received exactly what was sent to them.
    fn quiet(&mut self) -> Result<(), Failure> {
        self.pairs.iter_mut().try_for_each(Pair::stop)?;
        self.hear_until(PATIENCE, "not everything that was sent has arrived", Pair::is_quiet)
    }

    /// Processes that live in each place.
    fn processes(&self) -> usize {
        2 * self.pairs.len() / self.options.places().len()
    }

    /// Compares the counts of each host; what they are at the end.
    fn reckoning(&self) -> Result<Vec<Calm>, Failure> {
        let mut calms = Vec::new();
        for (place, (home, ledger)) in self.options.places().iter().zip(&self.ledgers).enumerate() {
            let before = Calm::wait(home, ledger, self.processes(), |_| None)?;
            if before.sum("merged_receives") == 0 {
                return Err(format!(
                    "{}: packets never arrived merged (UDP_GRO), so their steering as one was not tried",
                    home.address
                )
                .into());
            }
            calms.push(self.make_strays(place, home, ledger, &before)?);
        }
        Ok(calms)
    }

    /// Packets that come to the wrong process for certain: that the counts agree shows something then.
    fn make_strays(
        &self,
        place: usize,
        home: &Home,
        ledger: &Ledger,
        before: &Calm,
    ) -> Result<Calm, Failure> {
        let qpns = [0, 1].map(|pair| self.pairs.get(pair).and_then(|pair| pair.qpn(place)));
        let [Some(first), Some(second)] = qpns else { return Err("two pairs are needed".into()) };
        let status = home
            .command(&std::env::current_exe()?)
            .args(["stray", &home.address.to_string()])
            .args([first, second, STRAYS as u32].map(|number| number.to_string()))
            .status()?;
        if !status.success() {
            return Err("no strays could be sent".into());
        }
        let [first, second] = [first, second].map(|qpn| u64::from(qpn >> 16));
        let more = |calm: &Calm, slot, name| calm.of_slot(slot, name) - before.of_slot(slot, name);
        let calm = Calm::wait(home, ledger, self.processes(), |calm| {
            let places = [(first, "dropped_other_slot"), (second, "handed_over")];
            let wrong = [(first, "dropped_icrc"), (second, "dropped_icrc")];
            let all =
                places.into_iter().chain(wrong).map(|(slot, name)| (slot, name, more(calm, slot, name)));
            let wrong: Vec<_> = all.filter(|(.., count)| *count != STRAYS).collect();
            (!wrong.is_empty()).then(|| format!("of {STRAYS} strays: {wrong:?}"))
        })?;
        let handed_on = calm.ledger.handed_on - before.ledger.handed_on;
        if handed_on != STRAYS || calm.sum("dropped_other_slot") != before.sum("dropped_other_slot") + STRAYS
        {
            return Err(
                format!("{STRAYS} packets came to the wrong process, {handed_on} were handed on").into()
            );
        }
        Ok(calm)
    }

    /// Starts the stranger, if there is to be one.
    fn send_rubbish(&self, count: u64, slots: &[u32], qpns: &[u32]) -> Result<Option<Child>, Failure> {
        let Some(stranger) = &self.options.stranger else { return Ok(None) };
        let list =
            |numbers: &[u32]| numbers.iter().map(|number| number.to_string()).collect::<Vec<_>>().join(",");
        let mut command = stranger.command(&std::env::current_exe()?);
        command.args(["rubbish", &stranger.address.to_string()]);
        command.args([count, PER_SECOND, slots.len() as u64].map(|number| number.to_string()));
        Ok(Some(command.args([list(slots), list(qpns)]).stdout(Stdio::null()).spawn()?))
    }

    /// Rubbish when nothing else is sent: every packet must be counted as dropped.
    fn count_rubbish(&self, before: &Calm) -> Result<u64, Failure> {
        let side_qpns = |pair: &Pair| {
            let sides = if self.options.places().len() == 1 { 0..2 } else { 0..1 };
            sides.filter_map(|side| pair.qpn(side)).collect::<Vec<_>>()
        };
        let qpns: Vec<u32> = self.pairs.iter().flat_map(side_qpns).collect();
        let slots: Vec<u32> = qpns.iter().map(|qpn| qpn >> 16).collect();
        finish(self.send_rubbish(RUBBISH, &slots, &qpns)?)?;
        let (home, ledger) = (&self.options.homes[0], &self.ledgers[0]);
        let after = Calm::wait(home, ledger, self.processes(), |after| {
            let dropped = after.dropped() - before.dropped();
            (dropped != RUBBISH).then(|| format!("{dropped} of {RUBBISH} packets of rubbish were counted"))
        })?;
        Ok(after.dropped() - before.dropped())
    }

    /// Ends all, and hears what they have said to the last word.
    fn end(&mut self) -> Result<(), Failure> {
        self.pairs.iter_mut().try_for_each(Pair::end)?;
        self.hear_until(PATIENCE, "does not end", Pair::is_heard)
    }
}

/// Waits for the stranger, who must have sent everything.
fn finish(stranger: Option<Child>) -> Result<(), Failure> {
    match stranger.map(|mut child| child.wait()).transpose()? {
        Some(status) if !status.success() => Err(format!("the stranger ended with {status}").into()),
        _ => Ok(()),
    }
}
