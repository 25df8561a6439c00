//! Reads words, numbers and lines of a policy.

use crate::{error::FileError, number};

/// Most ranges of one value.
const MAX_RANGES: usize = 65_536;

/// A position in the text.
pub(super) struct Cursor<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(text: &'a str) -> Self {
        Self { rest: text, line: 1 }
    }

    /// The line of the last item.
    pub(super) const fn here(&self) -> usize {
        self.line
    }

    /// The line of the next item, from 1.
    pub(super) fn line(&mut self) -> usize {
        self.skip();
        self.line
    }

    fn advance(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    /// Skips blanks, line ends and comments.
    fn skip(&mut self) {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.advance(blank);
            if !self.rest.starts_with('#') {
                return;
            }
            self.advance(self.rest.find('\n').unwrap_or(self.rest.len()));
        }
    }

    /// The next word, for messages. It is not consumed.
    fn ahead(&mut self) -> &'a str {
        self.skip();
        let ends = |c: char| c.is_whitespace() || matches!(c, ':' | ',' | '#');
        let word = &self.rest[..self.rest.find(ends).unwrap_or(self.rest.len())];
        if word.is_empty() { &self.rest[..self.rest.chars().next().map_or(0, char::len_utf8)] } else { word }
    }

    pub(super) fn error(&mut self, reason: impl Into<String>) -> FileError {
        let token = self.ahead();
        let reason =
            if token.is_empty() { format!("{}; the file ends here", reason.into()) } else { reason.into() };
        FileError::new(self.line, token, reason)
    }

    pub(super) fn at_end(&mut self) -> bool {
        self.skip();
        self.rest.is_empty()
    }

    /// The next word: letters, digits, '-' and '_'. Empty if something else follows.
    pub(super) fn peek(&mut self) -> &'a str {
        self.skip();
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        &self.rest[..self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len())]
    }

    pub(super) fn word(&mut self) -> &'a str {
        let word = self.peek();
        self.advance(word.len());
        word
    }

    /// Consumes `sign` if it is next.
    pub(super) fn takes(&mut self, sign: char) -> bool {
        self.skip();
        let comes = self.rest.starts_with(sign);
        if comes {
            self.advance(sign.len_utf8());
        }
        comes
    }

    pub(super) fn colon(&mut self, after: &str) -> Result<(), FileError> {
        if self.takes(':') {
            Ok(())
        } else {
            Err(self.error(format!("a colon is expected after \"{after}\"")))
        }
    }

    /// A number that is at most `max`.
    pub(super) fn number(&mut self, max: u64) -> Result<u64, FileError> {
        self.skip();
        let length = self.rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        let parsed = number::parse(&self.rest[..length]);
        let number = parsed.map_err(|why| self.error(why))?;
        if number > max {
            return Err(self.error(format!("the largest number here is {max}")));
        }
        self.advance(length);
        Ok(number)
    }

    /// Numbers and ranges (`5, 10-20`) of numbers that are at most `max`.
    pub(super) fn ranges(&mut self, max: u64) -> Result<Vec<(u64, u64)>, FileError> {
        let mut list = Vec::new();
        loop {
            let first = self.number(max)?;
            let last = if self.takes('-') { self.number(max)? } else { first };
            list.push((first, last));
            if !self.takes(',') {
                return Ok(list);
            }
            if list.len() >= MAX_RANGES {
                return Err(self.error(format!("{MAX_RANGES} ranges are possible")));
            }
        }
    }

    /// Numbers, separated by commas.
    pub(super) fn numbers(&mut self, max: u64) -> Result<Vec<u64>, FileError> {
        let mut list = vec![self.number(max)?];
        while self.takes(',') {
            list.push(self.number(max)?);
            if list.len() > MAX_RANGES {
                return Err(self.error(format!("{MAX_RANGES} numbers are possible")));
            }
        }
        Ok(list)
    }

    /// The rest of the line, without surrounding blanks and comments. Text in quotation marks is not changed.
    pub(super) fn text(&mut self) -> Result<String, FileError> {
        let blank = self.rest.len() - self.rest.trim_start_matches([' ', '\t']).len();
        self.advance(blank);
        if let Some(quoted) = self.rest.strip_prefix('"') {
            let Some(length) = quoted.find('"') else {
                return Err(self.error("the quotation has no end"));
            };
            let text = quoted[..length].to_owned();
            self.advance(length + 2);
            return Ok(text);
        }
        let text = self.rest[..self.rest.find(['\n', '#']).unwrap_or(self.rest.len())].trim();
        if text.is_empty() {
            return Err(self.error("a text is expected on the same line"));
        }
        self.advance(text.len());
        Ok(text.to_owned())
    }

    /// Texts, separated by commas, on one line.
    pub(super) fn texts(&mut self) -> Result<Vec<String>, FileError> {
        let text = self.text()?;
        Ok(text.split(',').map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned).collect())
    }
}
