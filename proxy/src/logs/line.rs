//! Splits the bytes of a log into lines with timestamps, and tracks the position for resuming. Has no side effects.

use std::collections::VecDeque;

use jiff::Timestamp;

/// Maximum length of a line in bytes; the rest is dropped, and the line is marked as truncated.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// Maximum length of the timestamp prefix: 35 bytes with nanoseconds and an offset, and a space.
const MAX_TIMESTAMP_BYTES: usize = 36;

/// One line, without its line feed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Time at which the container wrote the line; None if the member sends no timestamp.
    pub time: Option<Timestamp>,
    pub text: String,
    /// True if the line was longer than [`MAX_LINE_BYTES`].
    pub is_truncated: bool,
}

/// Assembles lines from chunks. Buffers at most one line of the maximum length.
#[derive(Debug, Default)]
pub struct LineSplitter {
    incomplete: Vec<u8>,
    is_truncated: bool,
}

impl LineSplitter {
    /// Adds a chunk of the log and appends the lines that it completes.
    pub fn push(&mut self, piece: &[u8], lines: &mut VecDeque<Line>) {
        let mut parts = piece.split(|byte| *byte == b'\n');
        // The part after the last line feed begins the next line.
        let rest = parts.next_back().unwrap_or_default();
        for part in parts {
            self.add(part);
            lines.extend(self.end());
        }
        self.add(rest);
    }

    /// The incomplete last line when a log is interrupted.
    pub fn finish(&mut self) -> Option<Line> {
        if self.incomplete.is_empty() { None } else { self.end() }
    }

    fn add(&mut self, part: &[u8]) {
        let free_bytes = (MAX_LINE_BYTES + MAX_TIMESTAMP_BYTES).saturating_sub(self.incomplete.len());
        self.is_truncated |= part.len() > free_bytes;
        self.incomplete.extend_from_slice(&part[..part.len().min(free_bytes)]);
    }

    fn end(&mut self) -> Option<Line> {
        let line = Line::parse(&self.incomplete, std::mem::take(&mut self.is_truncated));
        self.incomplete.clear();
        Some(line)
    }
}

impl Line {
    fn parse(bytes: &[u8], is_truncated: bool) -> Self {
        let space = bytes.iter().take(MAX_TIMESTAMP_BYTES).position(|byte| *byte == b' ').unwrap_or(bytes.len());
        let time = std::str::from_utf8(&bytes[..space]).ok().and_then(|time| time.parse().ok());
        let text = if time.is_some() { bytes.get(space + 1..).unwrap_or_default() } else { bytes };
        let truncated = &text[..text.len().min(MAX_LINE_BYTES)];
        Self {
            time,
            text: String::from_utf8_lossy(truncated).into_owned(),
            is_truncated: is_truncated || truncated.len() < text.len(),
        }
    }
}

/// Position in a log for resuming without duplicate or missing lines, even among lines with the same timestamp.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cursor {
    /// Timestamp of the newest line sent, and the number of lines with that timestamp.
    last: Option<(Timestamp, usize)>,
    /// Number of lines with that timestamp received since the log was requested again; None after later lines.
    repeated: Option<usize>,
}

impl Cursor {
    /// Returns the timestamp from which to request the log again; None if no line was sent.
    pub fn resume(&mut self) -> Option<Timestamp> {
        self.repeated = self.last.is_some().then_some(0);
        self.last.map(|(time, _)| time)
    }

    /// Records a line. Returns true if it has not been delivered before.
    pub fn accept(&mut self, line: &Line) -> bool {
        let Some(time) = line.time else { return true };
        let Some((last, delivered)) = &mut self.last else {
            self.last = Some((time, 1));
            return true;
        };
        if let Some(repeated) = &mut self.repeated {
            if time < *last {
                return false;
            }
            if time == *last {
                *repeated += 1;
                let is_new = *repeated > *delivered;
                *delivered = (*delivered).max(*repeated);
                return is_new;
            }
            self.repeated = None;
        }
        match time.cmp(last) {
            std::cmp::Ordering::Greater => self.last = Some((time, 1)),
            std::cmp::Ordering::Equal => *delivered += 1,
            // Lines of stdout and stderr may be out of order.
            std::cmp::Ordering::Less => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&str]) -> Vec<String> {
        let (mut splitter, mut lines) = (LineSplitter::default(), VecDeque::new());
        for piece in pieces {
            splitter.push(piece.as_bytes(), &mut lines);
        }
        lines.extend(splitter.finish());
        let time = |line: &Line| line.time.map(|time| time.to_string()).unwrap_or_default();
        lines.iter().map(|line| format!("{}|{}|{}", time(line), line.text, line.is_truncated)).collect()
    }

    #[rstest::rstest]
    #[case::nothing(&[""], &[])]
    #[case::one(&["2026-01-01T00:00:00.5Z a b\n"], &["2026-01-01T00:00:00.5Z|a b|false"])]
    #[case::in_pieces(&["2026-01-01T00", ":00:00Z a\n2026-01-01T00:00:01Z ", "b\n"], &["2026-01-01T00:00:00Z|a|false", "2026-01-01T00:00:01Z|b|false"])]
    #[case::offset(&["2026-01-01T01:00:00.123456789+01:00 a\n"], &["2026-01-01T00:00:00.123456789Z|a|false"])]
    #[case::empty_lines(&["2026-01-01T00:00:00Z \n\n"], &["2026-01-01T00:00:00Z||false", "||false"])]
    #[case::no_time(&["failed to open log\nx"], &["|failed to open log|false", "|x|false"])]
    #[case::interrupted(&["2026-01-01T00:00:00Z a"], &["2026-01-01T00:00:00Z|a|false"])]
    fn logs_are_split_into_lines(#[case] pieces: &[&str], #[case] expected: &[&str]) {
        assert_eq!(lines(pieces), expected);
    }

    #[rstest::rstest]
    #[case::at_the_limit(MAX_LINE_BYTES, false)]
    #[case::longer(MAX_LINE_BYTES + 1, true)]
    #[case::much_longer(5 * MAX_LINE_BYTES, true)]
    fn long_lines_are_truncated(#[case] length: usize, #[case] is_truncated: bool) {
        let (mut splitter, mut lines) = (LineSplitter::default(), VecDeque::new());
        splitter.push(b"2026-01-01T00:00:00.123456789Z ", &mut lines);
        for piece in vec![b'x'; length].chunks(1000) {
            splitter.push(piece, &mut lines);
            assert!(splitter.incomplete.len() <= MAX_LINE_BYTES + MAX_TIMESTAMP_BYTES);
        }
        splitter.push(b"\n2026-01-01T00:00:01Z next\n", &mut lines);
        assert_eq!((lines[0].text.len(), lines[0].is_truncated), (length.min(MAX_LINE_BYTES), is_truncated));
        assert_eq!((lines[1].text.as_str(), lines[1].is_truncated), ("next", false));
    }

    /// A letter is a line, and the digit before it is its second. At `|` the log is requested again.
    #[rstest::rstest]
    #[case::no_duplicates("1a2b|1a2b3c", "a b c")]
    #[case::same_time("1a1b|1a1b1c2d", "a b c d")]
    #[case::resumed_twice("1a|1a1b|1a1b1c", "a b c")]
    #[case::out_of_order("2a1b3c|2a1b3c4d", "a b c d")]
    #[case::nothing_sent_before("|1a", "a")]
    fn a_log_is_resumed(#[case] received: &str, #[case] expected: &str) {
        let mut cursor = Cursor::default();
        let mut lines_kept = Vec::new();
        let mut second = 0;
        for c in received.chars() {
            match c {
                '|' => drop(cursor.resume()),
                '0'..='9' => second = i64::from(c.to_digit(10).unwrap()),
                text => {
                    let time = Timestamp::from_second(second).ok();
                    let line = Line { time, text: text.to_string(), is_truncated: false };
                    if cursor.accept(&line) {
                        lines_kept.push(text.to_string());
                    }
                }
            }
        }
        let letters: Vec<&str> = expected.split(' ').collect();
        assert_eq!(lines_kept, letters, "{received}");
    }
}
