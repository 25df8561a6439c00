//! The course (docs/book): every command of every chapter is run as an ordinary user would, and prints what the page shows.

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../rxe-verbs/tests/netns/mod.rs"]
mod netns;
mod pattern;
mod stage;

use common::page::{self, LEFT_OUT};
use pattern::Pattern;
use stage::Stage;
use std::{fs, path::Path};

/// Where the chapters are.
const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/src");

/// Plays a chapter.
fn play(chapter: &str) {
    let Some(mut stage) = Stage::new(&Path::new(BOOK).join("programs")) else { return };
    let text = fs::read_to_string(Path::new(BOOK).join(chapter)).unwrap();
    let mut shown = page::commands(&text);
    stage.play(&mut shown);
    let mut wrong = String::new();
    for (shown, printed) in shown.iter().zip(stage.finish()) {
        let wanted: Vec<_> =
            shown.output.iter().map(|line| (line != LEFT_OUT).then(|| Pattern::new(line))).collect();
        let lines: Vec<_> = printed.text.trim_end().lines().collect();
        let fitting = page::fits(&wanted, &lines, Pattern::fits);
        let why = match fitting {
            Ok(()) if printed.success == (shown.note != stage::FAILS) => continue,
            Ok(()) => format!("it ends with {}", printed.status),
            Err(at) => match shown.output.get(at) {
                Some(line) => format!("it does not print: {line}"),
                None => "it prints more".to_owned(),
            },
        };
        wrong += &format!("\n{chapter}:{}: {}\n{why}\n{}\n", shown.line, shown.command, printed.text);
    }
    assert!(wrong.is_empty(), "{wrong}");
}

macro_rules! chapters {
    ($($name:ident)*) => {
        const CHAPTERS: &[&str] = &[$(concat!(stringify!($name), ".md")),*];
        $(
            #[test]
            fn $name() {
                play(CHAPTERS.iter().find(|file| file.starts_with(stringify!($name))).unwrap());
            }
        )*
    };
}

chapters! {
    introduction first_packet queue_pairs memory completions send_receive one_sided wire losses datagrams connections
    service_levels incast
}

#[test]
fn every_chapter_is_played() {
    let summary = fs::read_to_string(Path::new(BOOK).join("SUMMARY.md")).unwrap();
    let listed: Vec<_> =
        summary.split("](").skip(1).filter_map(|part| part.split_once(')')).map(|(file, _)| file).collect();
    assert_eq!(listed, CHAPTERS);
    for chapter in CHAPTERS {
        let text = fs::read_to_string(Path::new(BOOK).join(chapter)).unwrap();
        let is_introduction = *chapter == CHAPTERS[0];
        assert_eq!(text.contains("\n## Exercise"), !is_introduction, "{chapter}: an exercise");
        assert_eq!(
            text.matches("<details>").count(),
            text.matches("\n## Exercise").count(),
            "{chapter}: an answer"
        );
        assert!(!page::commands(&text).is_empty(), "{chapter}: a command");
    }
}

#[test]
fn only_what_is_marked_may_vary() {
    for (page, printed) in [
        ("psn ‹c66ef1›", "psn 00000a"),
        ("at ‹0.000123› s,  ‹12› packets", "at 17 s, 3 packets"),
        ("took ‹60.9 us›", "took 1.2 ms"),
        ("qp ‹0x01›|", "qp 0xabcdef|"),
        ("  a (b) ‹x y›", "    a (b) anything at all"),
    ] {
        assert!(Pattern::new(page).fits(printed), "{page}");
    }
    for (page, printed) in [
        ("psn ‹c66ef1›", "psn x"),
        ("‹12› packets", "12.5 packets"),
        ("‹12› packets", "12 packets lost"),
        ("qp ‹0x01›", "qp 12"),
        ("a.c", "abc"),
        ("took ‹60.9 us›", "took 1.2 parsecs"),
        ("a b", "ab"),
    ] {
        assert!(!Pattern::new(page).fits(printed), "{page}");
    }
}
