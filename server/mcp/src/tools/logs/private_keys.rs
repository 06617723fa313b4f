//! Finds the lines of private keys in PEM form in the log of a container. Has no side effects.
//!
//! Each line is a cell of its own, so that no pattern can match a whole key. The first and last lines of a key may be outside
//! of the lines that were read.

/// Maximum number of lines of a private key.
const MAX_KEY_LINES: usize = 128;
/// Lengths of the lines of a key, except the last one: RFC 7468, OpenSSH, and MIME.
const LINE_LENGTHS: [usize; 3] = [64, 70, 76];
/// Minimum number of consecutive lines of such a length that count as a key without its first and last lines. A single line may
/// be a digest.
const MIN_RUN: usize = 2;

/// Dashes around the label in a block's first and last line.
const DASHES: &str = "-----";

/// Kind of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineKind {
    Text,
    PrivateKey,
    /// A line of another PEM block, such as a certificate.
    OtherBlock,
}

/// True for each line that is part of a private key. The lines are those of one container, in chronological order.
pub(super) fn find_key_lines(lines: &[&str]) -> Vec<bool> {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    let mut kinds = vec![LineKind::Text; lines.len()];
    mark_after_begin(&lines, &mut kinds);
    mark_before_end(&lines, &mut kinds);
    mark_runs(&lines, &mut kinds);
    kinds.into_iter().map(|kind| kind == LineKind::PrivateKey).collect()
}

/// Text around the contents of lines, such as times or JSON. Numbers are zeros, so that lines of different times have the
/// same frame.
#[derive(Debug, PartialEq, Eq)]
struct Frame {
    before: String,
    /// Text after the contents, with its characters in reverse order.
    after: String,
}

impl Frame {
    fn new(before: &str, after: &str) -> Self {
        Self { before: shape(before.chars()), after: shape(after.chars().rev()) }
    }

    /// The frame of the first or last line of a block.
    fn of_boundary(line: &str) -> Self {
        let before = line.split_once(DASHES).map_or("", |(before, _)| before);
        let after = line.rsplit_once(DASHES).map_or("", |(_, after)| after);
        Self::new(before, after)
    }

    /// The contents of a line with this frame.
    fn contents<'l>(&self, line: &'l str) -> Option<&'l str> {
        let rest = line.get(matching_bytes(line.chars(), &self.before)?..)?;
        let after = matching_bytes(rest.chars().rev(), &self.after)?;
        rest.get(..rest.len().checked_sub(after)?)
    }

    /// True for a line that may be part of the body of a block with this frame.
    fn is_body(&self, line: &str) -> bool {
        is_body(line) || self.contents(line).is_some_and(is_body)
    }
}

/// Replaces each number in a text with a single zero.
fn shape(text: impl Iterator<Item = char>) -> String {
    let mut shape = String::new();
    for character in text {
        let character = if character.is_ascii_digit() { '0' } else { character };
        if character != '0' || !shape.ends_with('0') {
            shape.push(character);
        }
    }
    shape
}

/// Length in bytes of the prefix of a text that has this shape; `None` if the text does not begin with it.
fn matching_bytes(text: impl Iterator<Item = char>, shape: &str) -> Option<usize> {
    let (mut text, mut bytes) = (text.peekable(), 0);
    for expected in shape.chars() {
        if expected == '0' {
            let digits = std::iter::from_fn(|| text.next_if(char::is_ascii_digit)).count();
            bytes += Some(digits).filter(|digits| *digits > 0)?;
        } else {
            bytes += text.next_if_eq(&expected)?.len_utf8();
        }
    }
    Some(bytes)
}

/// The `BEGIN` or `END` marker of a block.
struct Boundary {
    is_begin: bool,
    block: LineKind,
}

/// All boundaries in a line, which may have the end of a block and the beginning of the next one.
fn boundaries(line: &str) -> impl Iterator<Item = Boundary> {
    line.split(DASHES).filter_map(|part| {
        let begin = part.strip_prefix("BEGIN ");
        let label = begin.or_else(|| part.strip_prefix("END "))?;
        let is_key = label.ends_with("PRIVATE KEY") || label.ends_with("PRIVATE KEY BLOCK");
        let block = if is_key { LineKind::PrivateKey } else { LineKind::OtherBlock };
        Some(Boundary { is_begin: begin.is_some(), block })
    })
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/".contains(&byte)
}

/// True for text that may be part of the body of a block.
fn is_body(text: &str) -> bool {
    text.bytes().all(|byte| is_base64(byte) || b"= ".contains(&byte))
}

/// Marks the lines of blocks, starting at their first lines. The lines of a key are not checked, because headers and
/// prefixes may be between them.
fn mark_after_begin(lines: &[&str], kinds: &mut [LineKind]) {
    let mut current_block: Option<(LineKind, Frame, usize)> = None;
    for (line, kind) in lines.iter().zip(kinds) {
        let last = boundaries(line).last();
        if let Some(Boundary { is_begin: true, block }) = last {
            current_block = Some((block, Frame::of_boundary(line), MAX_KEY_LINES));
            continue;
        }
        let Some((block, frame, left)) = current_block.take() else { continue };
        if block == LineKind::OtherBlock && !frame.is_body(line) {
            continue;
        }
        *kind = block;
        let is_end = last.is_some_and(|end| end.block == block);
        current_block = (!is_end && left > 1).then_some((block, frame, left - 1));
    }
}

/// Marks the lines of blocks whose first lines are older than the lines that were read.
fn mark_before_end(lines: &[&str], kinds: &mut [LineKind]) {
    let mut current_block: Option<(LineKind, Frame, usize)> = None;
    for (line, kind) in lines.iter().zip(kinds).rev() {
        if let Some(Boundary { is_begin: false, block }) = boundaries(line).next() {
            current_block = Some((block, Frame::of_boundary(line), MAX_KEY_LINES));
            if block == LineKind::PrivateKey {
                *kind = block;
            }
            continue;
        }
        let Some((block, frame, left)) =
            current_block.take().filter(|(_, frame, left)| *left > 1 && frame.is_body(line))
        else {
            continue;
        };
        if block == LineKind::PrivateKey || *kind == LineKind::Text {
            *kind = block;
        }
        current_block = Some((block, frame, left - 1));
    }
}

/// Marks lines that look like the body of a block without its first and last lines, because the block may be a key.
fn mark_runs(lines: &[&str], kinds: &mut [LineKind]) {
    let mut start = 0;
    while start < lines.len() {
        let text = |nth: usize| lines.get(nth).copied().filter(|_| kinds[nth] == LineKind::Text);
        let Some((frame, first)) = text(start).and_then(full_line) else {
            start += 1;
            continue;
        };
        let data = |nth| {
            let (other_frame, data) = text(nth).and_then(full_line)?;
            (other_frame == frame && data.len() == first.len()).then_some(data)
        };
        let run: Vec<&str> = (start..).map_while(data).collect();
        let end = start + run.len();
        if run.iter().filter(|data| has_both_cases(data)).count() >= MIN_RUN {
            let has_last_line = text(end).is_some_and(|line| is_last_line(&frame, line, first.len()));
            kinds[start..end + usize::from(has_last_line)].fill(LineKind::PrivateKey);
        }
        start = end;
    }
}

/// The frame and the base64 text of a line that may be in the body of a block; `None` for last lines, which are shorter.
fn full_line(line: &str) -> Option<(Frame, &str)> {
    let mut start = 0;
    line.as_bytes().split(|byte| !is_base64(*byte)).find_map(|data| {
        let (from, to) = (start, start + data.len());
        start = to + 1;
        if !LINE_LENGTHS.contains(&data.len()) {
            return None;
        }
        Some((Frame::new(line.get(..from)?, line.get(to..)?), line.get(from..to)?))
    })
}

/// True for a line that may be the last one of the body of a block with lines of this length.
fn is_last_line(frame: &Frame, line: &str, length: usize) -> bool {
    frame.contents(line).is_some_and(|contents| {
        let data = contents.trim_end_matches('=');
        let is_padded = data.len() < contents.len();
        !data.is_empty()
            && contents.len() <= length
            && data.bytes().all(is_base64)
            && (is_padded || has_both_cases(data))
    })
}

/// True for text with letters of both cases, which hexadecimal digests do not have.
fn has_both_cases(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_lowercase()) && text.bytes().any(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const BODY: &str = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj";
    /// A line of zero bytes in base64.
    const UNIFORM: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    const OPENSSH: &str = "b3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW";
    const MIME: &str = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKjMzEfYyjiWA4R";
    const SHA256: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    const BEGIN: &str = "-----BEGIN PRIVATE KEY-----";
    const END: &str = "-----END PRIVATE KEY-----";
    const BEGIN_CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";
    const END_CERTIFICATE: &str = "-----END CERTIFICATE-----";

    /// In `expected`, `x` stands for a line of a key, `.` for any other line.
    #[rstest]
    #[case::complete(&["a", BEGIN, "Proc-Type: 4,ENCRYPTED", "MIIE", END, "b"], "..xxx.")]
    #[case::without_begin(&["it starts.", "MIIE", "x9==", END, "b"], ".xxx.")]
    #[case::without_end(&["a", BEGIN, BODY, "MIIE"], "..xx")]
    #[case::certificate(&[BEGIN_CERTIFICATE, BODY, BODY, "Ab3=", END_CERTIFICATE], ".....")]
    #[case::certificate_without_begin(&[BODY, BODY, "Ab3=", END_CERTIFICATE], "....")]
    #[case::certificate_without_end(&[BEGIN_CERTIFICATE, BODY, BODY], "...")]
    #[case::key_after_a_certificate(&[BODY, END_CERTIFICATE, BEGIN, BODY, END], "...xx")]
    #[case::lines_after_an_interrupted_certificate(&[BEGIN_CERTIFICATE, BODY, "stopped.", BODY, BODY], "...xx")]
    #[case::without_both(&["a b", BODY, BODY, BODY, "c d"], ".xxx.")]
    #[case::only_the_body(&[BODY, BODY], "xx")]
    #[case::last_line(&[BODY, BODY, "Rq5w9A==", "started"], "xxx.")]
    #[case::last_line_without_padding(&[BODY, BODY, "Rq5w9Axy", "Rq5w9Axy"], "xxx.")]
    #[case::zeros(&[BODY, UNIFORM, BODY], "xxx")]
    #[case::indented(&["    MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj\r", BODY], "xx")]
    #[case::openssh(&[OPENSSH, OPENSSH, "QyNTUxOQAAACDx"], "xxx")]
    #[case::mime(&[MIME, MIME], "xx")]
    #[case::one_token(&["issued", BODY, "done"], "...")]
    #[case::tokens_between_text(&[BODY, "and", BODY, "and", BODY], ".....")]
    #[case::token_in_a_line(&["digest MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj ok", BODY], "..")]
    #[case::digests(&[SHA256, SHA256, SHA256], "...")]
    #[case::digests_after_a_token(&[BODY, SHA256, SHA256], "...")]
    #[case::other_lengths(&["Rq5w9Axy", "Rq5w9Axy", "Rq5w9Axy"], "...")]
    #[case::different_lengths(&[BODY, OPENSSH, MIME], "...")]
    #[case::separators(&["================================================================"; 3], "...")]
    #[case::nothing(&["", "", ""], "...")]
    #[case::windows_line_breaks(&["-----BEGIN PRIVATE KEY-----\r", "MIIE\r", "-----END PRIVATE KEY-----\r", "b\r"], ".xx.")]
    #[case::pgp(&["-----BEGIN PGP PRIVATE KEY BLOCK-----", "lQOYBF==", "-----END PGP PRIVATE KEY BLOCK-----", "b"], ".xx.")]
    #[case::pgp_public_key(&["-----BEGIN PGP PUBLIC KEY BLOCK-----", BODY, BODY, "-----END PGP PUBLIC KEY BLOCK-----"], "....")]
    #[case::end_and_begin_in_a_line(
        &[BEGIN_CERTIFICATE, BODY, "-----END CERTIFICATE----------BEGIN PRIVATE KEY-----", "Proc-Type: 4", "MIIE"], "...xx")]
    #[case::end_of_a_key_before_a_certificate(&["MIIE", "x9== -----END PRIVATE KEY----------BEGIN CERTIFICATE-----", BODY, BODY], "xx..")]
    fn lines_of_private_keys_are_found(#[case] lines: &[&str], #[case] expected: &str) {
        let found: String = find_key_lines(lines).into_iter().map(|is_key| if is_key { 'x' } else { '.' }).collect();
        assert_eq!(found, expected);
    }

    /// Each line has a time and a level, or is in a field of JSON.
    #[rstest]
    #[case::complete(&["a", BEGIN, BODY, "MIIE", END, "b"], "..xxx.")]
    #[case::without_begin(&["MIIE", "x9==", END, "b"], "xxx.")]
    #[case::without_end(&["a", BEGIN, BODY, "MIIE"], "..xx")]
    #[case::without_both(&["a b", BODY, BODY, "Rq5w9A==", "c d"], ".xxx.")]
    #[case::certificate(&[BEGIN_CERTIFICATE, BODY, BODY, "Ab3=", END_CERTIFICATE], ".....")]
    #[case::certificate_without_begin(&[BODY, BODY, "Ab3=", END_CERTIFICATE], "....")]
    #[case::certificate_without_end(&[BEGIN_CERTIFICATE, BODY, BODY], "...")]
    #[case::digests(&[SHA256, SHA256], "..")]
    #[case::one_token(&["issued", BODY, "done"], "...")]
    fn lines_of_private_keys_are_found_in_frames(#[case] lines: &[&str], #[case] expected: &str) {
        for (before, after) in
            [("2026-01-01T00:00:0#.12#Z info ", ""), ("level=info n=# msg=", ""), (r#"{"n":#,"msg":""#, r#"","é":#}"#)]
        {
            let framed = |(nth, line): (usize, &&str)| {
                let number = (nth * 7).to_string();
                format!("{}{line}{}", before.replace('#', &number), after.replace('#', &number))
            };
            let framed: Vec<String> = lines.iter().enumerate().map(framed).collect();
            let framed: Vec<&str> = framed.iter().map(String::as_str).collect();
            let found: String =
                find_key_lines(&framed).into_iter().map(|is_key| if is_key { 'x' } else { '.' }).collect();
            assert_eq!(found, expected, "{framed:#?}");
        }
    }

    /// The two lines have different frames.
    #[test]
    fn tokens_in_different_texts_are_not_a_key() {
        assert_eq!(find_key_lines(&[&format!("issued {BODY}"), &format!("revoked {BODY}")]), [false, false]);
    }

    #[test]
    fn a_key_without_end_does_not_hide_the_rest_of_a_log() {
        let lines: Vec<&str> = std::iter::once(BEGIN).chain(std::iter::repeat_n("text of a log", 300)).collect();
        assert_eq!(find_key_lines(&lines).into_iter().filter(|is_key| *is_key).count(), MAX_KEY_LINES);
    }
}
