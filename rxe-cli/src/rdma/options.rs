//! Options in the form of getopt_long(3): before, between and after the words, with combined letters and abbreviated long
//! names.

use crate::Result;

/// The given options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub(super) struct Options {
    pub(super) json: bool,
    /// JSON on several lines.
    pub(super) pretty: bool,
    pub(super) details: bool,
    pub(super) version: bool,
    pub(super) help: bool,
    /// Whether this is one of our own commands. JSON then has several lines on a terminal.
    pub(super) own: bool,
}

/// Letter and long name. Options for the form of numbers and drivers' values, and for forcing an action, are ignored.
const ALL: [(char, &str); 8] = [
    ('V', "version"),
    ('h', "help"),
    ('j', "json"),
    ('p', "pretty"),
    ('d', "details"),
    ('f', "force"),
    ('r', "raw"),
    ('g', "driver"),
];

impl Options {
    /// Separates options from words.
    pub(super) fn take<'a>(words: &[&'a str]) -> Result<(Self, Vec<&'a str>)> {
        let (mut options, mut rest) = (Self::default(), Vec::new());
        let mut left = words.iter().copied();
        while let Some(word) = left.next() {
            if word == "--" {
                rest.extend(left.by_ref());
            } else if let Some(name) = word.strip_prefix("--") {
                options.set(long(name).ok_or_else(|| format!("rdma: unknown option {word}"))?);
            } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                // The manual page writes -j[son].
                let whole = ALL.iter().find(|(_, name)| *name == letters).map(|(letter, _)| *letter);
                for letter in whole.map_or_else(|| letters.chars().collect(), |letter| vec![letter]) {
                    if !ALL.iter().any(|(known, _)| *known == letter) {
                        return Err(format!("rdma: unknown option -{letter}").into());
                    }
                    options.set(letter);
                }
            } else {
                rest.push(word);
            }
        }
        Ok((options, rest))
    }

    const fn set(&mut self, letter: char) {
        match letter {
            'V' => self.version = true,
            'h' => self.help = true,
            'j' => self.json = true,
            'p' => self.pretty = true,
            'd' => self.details = true,
            _ => {}
        }
    }
}

/// The option whose name begins with this text; `None` if there is none or more than one.
fn long(name: &str) -> Option<char> {
    let mut found = ALL.iter().filter(|(_, whole)| whole.starts_with(name));
    let (letter, _) = found.next()?;
    found.next().is_none().then_some(*letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_may_stand_anywhere() {
        let json = Options { json: true, ..Options::default() };
        let pretty = Options { pretty: true, ..json };
        let details = Options { details: true, ..Options::default() };
        for (line, options, rest) in [
            ("link show", Options::default(), "link show"),
            ("-j link show", json, "link show"),
            ("link show -j", json, "link show"),
            ("link -json show rxe0/1", json, "link show rxe0/1"),
            ("link -jp", pretty, "link"),
            ("--js dev --pretty", pretty, "dev"),
            ("dev -d", details, "dev"),
            ("-f link -- -j", Options::default(), "link -j"),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let rest: Vec<&str> = rest.split(' ').collect();
            assert_eq!(Options::take(&words).unwrap(), (options, rest), "{line}");
        }
        for wrong in ["-x", "-jx", "--nope", "--"] {
            assert_eq!(Options::take(&[wrong]).is_err(), wrong != "--", "{wrong}");
        }
    }
}
