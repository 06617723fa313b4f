//! Standard output for text with values of others: objects, messages, names. Control characters in them are shown, not obeyed, so
//! that no object can move the cursor, change the terminal's title or hide lines. kubectl does the same for its tables.

use std::borrow::Cow;
use std::io::{self, Write};

use super::color::{CYAN, GREEN, RED, YELLOW};

/// Standard output; of escape sequences it writes only those of [`super::color::paint`].
pub fn stdout() -> Terminal<io::StdoutLock<'static>> {
    Terminal::new(io::stdout().lock())
}

/// Standard error, for messages with text of others.
pub fn stderr() -> Terminal<io::StderrLock<'static>> {
    Terminal::new(io::stderr().lock())
}

/// A cell of a table with its control characters shown.
pub(crate) fn shown(cell: &str) -> Cow<'_, str> {
    let mut out = Cow::Borrowed(cell);
    if cell.chars().any(char::is_control) {
        let mut text = String::with_capacity(cell.len() + 8);
        cell.chars().for_each(|c| show(c, &mut text));
        out = Cow::Owned(text);
    }
    out
}

/// Caret notation for most; `\r` and other escapes for the rest. Line breaks and tabs stay.
fn show(c: char, out: &mut String) {
    match c {
        '\n' | '\t' => out.push(c),
        '\r' => out.push_str("\\r"),
        '\u{7f}' => out.push_str("^?"),
        c if c < ' ' => out.extend(['^', char::from(c as u8 + b'@')]),
        c if c.is_control() => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
        c => out.push(c),
    }
}

/// See [`stdout`].
pub struct Terminal<W: Write> {
    inner: W,
    /// The beginning of a character or an escape sequence.
    held: Vec<u8>,
}

/// Longest sequence of ours: `ESC [ 3 1 m`.
const LONGEST: usize = 5;

impl<W: Write> Terminal<W> {
    fn new(inner: W) -> Self {
        Self { inner, held: Vec::new() }
    }

    /// Shows what is held and begins with nothing.
    fn release(&mut self) -> io::Result<()> {
        let held = std::mem::take(&mut self.held);
        self.inner.write_all(shown(&String::from_utf8_lossy(&held)).as_bytes())
    }

    fn text(&mut self, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some(at) = rest.find('\x1b') {
            self.inner.write_all(shown(&rest[..at]).as_bytes())?;
            rest = &rest[at..];
            match colored(rest) {
                Sequence::Ours(length) => {
                    self.inner.write_all(&rest.as_bytes()[..length])?;
                    rest = &rest[length..];
                }
                Sequence::Begun => {
                    self.held = rest.as_bytes().to_vec();
                    return Ok(());
                }
                Sequence::Other => {
                    self.inner.write_all(b"^[")?;
                    rest = &rest[1..];
                }
            }
        }
        self.inner.write_all(shown(rest).as_bytes())
    }
}

enum Sequence {
    /// So many bytes.
    Ours(usize),
    /// More may come.
    Begun,
    Other,
}

fn colored(text: &str) -> Sequence {
    let codes = [0, RED, GREEN, YELLOW, CYAN].map(|code| format!("\x1b[{code}m"));
    match codes.iter().find(|code| text.starts_with(code.as_str())) {
        Some(code) => Sequence::Ours(code.len()),
        None if text.len() < LONGEST && codes.iter().any(|code| code.starts_with(text)) => Sequence::Begun,
        None => Sequence::Other,
    }
}

impl<W: Write> Write for Terminal<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let mut rest = all.as_slice();
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.text(text)?;
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.text(&String::from_utf8_lossy(valid))?;
                    let Some(length) = error.error_len() else {
                        // The character goes on in the next call.
                        self.held.extend_from_slice(after);
                        break;
                    };
                    self.inner.write_all("\u{fffd}".as_bytes())?;
                    rest = &after[length..];
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.release()?;
        self.inner.flush()
    }
}

impl<W: Write> Drop for Terminal<W> {
    fn drop(&mut self) {
        // Nobody is there any more who could be told.
        drop(self.release());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn written(parts: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut terminal = Terminal::new(&mut out);
        parts.iter().for_each(|part| terminal.write_all(part).unwrap());
        drop(terminal);
        String::from_utf8(out).unwrap()
    }

    /// Calls of `write` are separated by `|`.
    #[rstest]
    #[case::plain(b"a b\n\tc", "a b\n\tc")]
    #[case::title(b"m\x1b]0;PWNED\x07", "m^[]0;PWNED^G")]
    #[case::cursor(b"\x1b[2Aup\r", "^[[2Aup\\r")]
    #[case::hidden(b"\x1b[8mhidden", "^[[8mhidden")]
    #[case::own_color(b"\x1b[32mRunning\x1b[0m", "\x1b[32mRunning\x1b[0m")]
    #[case::own_color_in_parts(b"\x1b|[3|2mRunning", "\x1b[32mRunning")]
    #[case::ends_within(b"a\x1b[3", "a^[[3")]
    #[case::c1(b"a\xc2\x9b2Jb", "a\\u{9b}2Jb")]
    #[case::character_in_parts(b"stra\xc3|\x9fe", "straße")]
    #[case::no_utf8(b"a\xff\xfeb", "a\u{fffd}\u{fffd}b")]
    fn control_characters_are_shown(#[case] calls: &[u8], #[case] expected: &str) {
        let calls: Vec<&[u8]> = calls.split(|byte| *byte == b'|').collect();
        assert_eq!(written(&calls), expected);
    }

    proptest! {
        #[test]
        fn nothing_is_obeyed(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..6)) {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut text = written(&parts);
            for code in [0, RED, GREEN, YELLOW, CYAN] {
                text = text.replace(&format!("\x1b[{code}m"), "");
            }
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{text:?}");
        }
    }
}
