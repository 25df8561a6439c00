//! A window of numbered messages with one loss, as a page or as an image: `cargo run --example windows -- html > w.html`.

use rxe_ladder::{Class, Fate, Field, Hue, Ladder, Step};

fn main() {
    let mut ladder = Ladder::new("Messages in windows of eight");
    ladder.note("Message 42 is lost; the receiver asks for it, and the sender repeats it and all after it.");
    let (a, b) = (ladder.actor("sender", "10.0.0.1"), ladder.actor("receiver", "10.0.0.2"));
    let data = ladder.class(Class::new("data", Hue::Blue));
    let answer = ladder.class(Class::new("answer", Hue::Green));
    let lost = ladder.class(Class::new("lost", Hue::Red).notable().about("sent, but never received"));
    let again = ladder.class(Class::new("again", Hue::Orange).notable().about("sent before"));
    let fields = |number: u32| {
        let head =
            Field::new("head", "").with(Field::new("number", number.to_string()).note("counts from 0"));
        head.with(Field::new("flags", "0x01").with(Field::new("last", "yes")).folded())
    };
    let mut now = 0;
    for number in 0..96 {
        now += 1_500;
        let step =
            Step::arrow(a, b, now, format!("data {number}")).arrived(now + 9_000).field(fields(number));
        let step = match number {
            42 => step.class(lost).fate(Fate::Lost),
            _ => step,
        };
        ladder.push(step.class(data));
        if number == 47 {
            ladder.push(Step::arrow(b, a, now + 9_500, "missing: 42").arrived(now + 18_000).class(answer));
            ladder.push(Step::event(a, now + 8_000_000, "goes back to 42").class(again));
            now += 8_000_000;
            for number in 42..48 {
                now += 1_500;
                let step = Step::arrow(a, b, now, format!("data {number}")).arrived(now + 9_000);
                ladder.push(step.class(again).class(data).field(fields(number)));
            }
        }
        if number % 8 == 7 {
            now += 20_000;
            ladder.push(Step::arrow(b, a, now, format!("have {number}")).arrived(now + 8_000).class(answer));
        }
    }
    match std::env::args().nth(1).as_deref() {
        Some("html") => print!("{}", ladder.html()),
        Some("svg") => print!("{}", ladder.svg()),
        _ => eprintln!("windows: say html or svg"),
    }
}
