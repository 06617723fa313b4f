//! Standard output and error for text from other sources: objects, messages, names. Control characters are escaped, so
//! that no object can move the cursor, set the terminal's title or hide lines. kubectl does the same for its tables.

use std::borrow::Cow;
use std::io::{self, Write};

use super::color::{CYAN, GREEN, RED, YELLOW};

/// Returns standard output; only colour sequences written by [`super::color::paint`] pass unescaped.
pub fn stdout() -> Terminal<io::StdoutLock<'static>> {
    Terminal::new(io::stdout().lock())
}

/// Returns standard error with the same escaping.
pub fn stderr() -> Terminal<io::StderrLock<'static>> {
    Terminal::new(io::stderr().lock())
}

/// Escapes the control characters of a table cell.
pub(crate) fn escape(cell: &str) -> Cow<'_, str> {
    let mut out = Cow::Borrowed(cell);
    if cell.chars().any(char::is_control) {
        let mut text = String::with_capacity(cell.len() + 8);
        cell.chars().for_each(|c| escape_char(c, &mut text));
        out = Cow::Owned(text);
    }
    out
}

/// Escapes a control character: caret notation for most, Rust escapes for `\r` and others. Line breaks and tabs are
/// kept.
fn escape_char(c: char, out: &mut String) {
    match c {
        '\n' | '\t' => out.push(c),
        '\r' => out.push_str("\\r"),
        '\u{7f}' => out.push_str("^?"),
        c if c < ' ' => out.extend(['^', char::from(c as u8 + b'@')]),
        c if c.is_control() => out.push_str(&format!("\\u{{{:x}}}", u32::from(c))),
        c => out.push(c),
    }
}

/// A writer that escapes control characters; see [`stdout`].
pub struct Terminal<W: Write> {
    inner: W,
    /// An incomplete character or escape sequence from the previous write.
    pending: Vec<u8>,
}

/// Length in bytes of the longest colour sequence: `ESC [ 3 1 m`.
const MAX_SEQUENCE_BYTES: usize = 5;

impl<W: Write> Terminal<W> {
    fn new(inner: W) -> Self {
        Self { inner, pending: Vec::new() }
    }

    /// Escapes and writes an incomplete sequence.
    fn flush_pending(&mut self) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.inner.write_all(escape(&String::from_utf8_lossy(&pending)).as_bytes())
    }

    fn write_text(&mut self, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some(at) = rest.find('\x1b') {
            self.inner.write_all(escape(&rest[..at]).as_bytes())?;
            rest = &rest[at..];
            match match_color_sequence(rest) {
                EscapeSequence::Color(length) => {
                    self.inner.write_all(&rest.as_bytes()[..length])?;
                    rest = &rest[length..];
                }
                EscapeSequence::Incomplete => {
                    self.pending = rest.as_bytes().to_vec();
                    return Ok(());
                }
                EscapeSequence::Other => {
                    self.inner.write_all(b"^[")?;
                    rest = &rest[1..];
                }
            }
        }
        self.inner.write_all(escape(rest).as_bytes())
    }
}

enum EscapeSequence {
    /// A colour sequence of this length in bytes.
    Color(usize),
    /// Possibly the start of a colour sequence.
    Incomplete,
    Other,
}

fn match_color_sequence(text: &str) -> EscapeSequence {
    let codes = [0, RED, GREEN, YELLOW, CYAN].map(|code| format!("\x1b[{code}m"));
    match codes.iter().find(|code| text.starts_with(code.as_str())) {
        Some(code) => EscapeSequence::Color(code.len()),
        None if text.len() < MAX_SEQUENCE_BYTES && codes.iter().any(|code| code.starts_with(text)) => {
            EscapeSequence::Incomplete
        }
        None => EscapeSequence::Other,
    }
}

impl<W: Write> Write for Terminal<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = std::mem::take(&mut self.pending);
        all.extend_from_slice(bytes);
        let mut rest = all.as_slice();
        while !rest.is_empty() {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    self.write_text(text)?;
                    break;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    self.write_text(&String::from_utf8_lossy(valid))?;
                    let Some(length) = error.error_len() else {
                        // The rest of the character arrives with the next write.
                        self.pending.extend_from_slice(after);
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
        self.flush_pending()?;
        self.inner.flush()
    }
}

impl<W: Write> Drop for Terminal<W> {
    fn drop(&mut self) {
        // A destructor cannot report the error.
        drop(self.flush_pending());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn write_parts(parts: &[&[u8]]) -> String {
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
        assert_eq!(write_parts(&calls), expected);
    }

    proptest! {
        #[test]
        fn no_control_character_passes(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..6)) {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut text = write_parts(&parts);
            for code in [0, RED, GREEN, YELLOW, CYAN] {
                text = text.replace(&format!("\x1b[{code}m"), "");
            }
            prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{text:?}");
        }
    }
}
