//! Values after a key in a text: their extent, and which of them are not secrets.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::REDACTED;
use super::names::ends_with_secret_word;

/// Key of a user name and password in base64, as in the configuration of Docker.
pub(super) const CREDENTIALS_KEY: &str = "auth";

/// Words that follow the name of a flag in a sentence.
const WORDS_AFTER_FLAGS: [&str; 24] = [
    "and", "are", "can", "cannot", "flag", "flags", "for", "from", "has", "if", "in", "instead", "is", "may", "must",
    "not", "option", "or", "requires", "should", "to", "was", "when", "with",
];

/// True for values that are not secrets even if their key names one: booleans, absent values and short numbers.
pub(super) fn is_harmless(value: &str) -> bool {
    let value = strip_quotes(value);
    let word = value.trim_matches(['<', '>', '(', ')']).to_ascii_lowercase();
    value.is_empty()
        || value == REDACTED
        || matches!(word.as_str(), "true" | "false" | "null" | "none" | "nil" | "yes" | "no" | "unset" | "***")
        || (value.len() < 6 && value.bytes().all(|byte| byte.is_ascii_digit()))
}

/// True for a flag whose value is a secret, such as `--password`.
pub(super) fn is_secret_flag(text: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.starts_with('-') && text.bytes().all(is_name) && ends_with_secret_word(text)
}

/// True if the text after a flag is not its value: another flag, or the rest of a sentence.
pub(super) fn is_after_flag_without_value(value: &str) -> bool {
    let value = strip_quotes(value);
    value.starts_with('-') || WORDS_AFTER_FLAGS.contains(&value.trim_end_matches('.'))
}

/// True for a user name and password in base64.
pub(super) fn is_encoded_credentials(value: &str) -> bool {
    let decoded = STANDARD.decode(strip_quotes(value)).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    decoded.is_some_and(|text| text.contains(':'))
}

/// A value without its quotes, which may be escaped.
fn strip_quotes(value: &str) -> &str {
    value.trim_start_matches('\\').trim_matches(['"', '\'']).trim_end_matches('\\')
}

/// Length in bytes of the value at the start of a text; 0 if there is none, an object, or a list of objects.
pub(super) fn value_length(text: &str) -> usize {
    if let Some(rest) = text.strip_prefix(REDACTED) {
        return REDACTED.len() + remainder_length(rest);
    }
    match text.chars().next() {
        None => 0,
        Some('{') => braced_length(text),
        Some('[') => list_length(text).unwrap_or_else(|| word_length(text)),
        Some('|' | '>') => block_length(text).unwrap_or_else(|| word_length(text)),
        Some(_) => quoted_length(text).unwrap_or_else(|| word_length(text)),
    }
}

/// Length of a value that begins with a brace, such as `{SSHA}aGk=`; 0 for an object and for a template.
fn braced_length(text: &str) -> usize {
    let rest = text.get(1..).unwrap_or_default();
    if !rest.starts_with(|character: char| character.is_ascii_alphanumeric()) {
        return 0;
    }
    let length = 1 + word_length(rest);
    match text.get(length..).and_then(|after| after.strip_prefix('}')) {
        Some(after) => length + 1 + word_length(after),
        // The first key of an object.
        None if rest.get(..length - 1).is_some_and(|word| word.contains(':')) => 0,
        None => length,
    }
}

/// Length of a value without quotes. A backslash at its end belongs to the escaped quote after it.
fn word_length(text: &str) -> usize {
    let is_end = |character: char| character.is_whitespace() || ",;&\"']}".contains(character);
    let end = text.find(is_end).unwrap_or(text.len());
    let word = text.get(..end).unwrap_or(text);
    if end < text.len() { word.trim_end_matches('\\').len() } else { end }
}

/// Length of the rest of a partly redacted value. In a JSON string, an escaped line break directly after the redacted
/// text ends the value.
fn remainder_length(text: &str) -> usize {
    if text.starts_with("\\n") || text.starts_with("\\r") { 0 } else { word_length(text) }
}

/// Length of a value in quotes, which are escaped if the value is in JSON that is in a JSON string; `None` if the text
/// does not begin with a quote. A value without a closing quote ends with its line.
fn quoted_length(text: &str) -> Option<usize> {
    let escapes = text.bytes().take_while(|byte| *byte == b'\\').count();
    let quote = *text.as_bytes().get(escapes).filter(|byte| b"\"'".contains(byte))?;
    let start = escapes + 1;
    let mut backslashes = 0;
    let mut bytes = text.bytes().enumerate().skip(start).peekable();
    while let Some((at, byte)) = bytes.next() {
        if byte == quote && is_closing(backslashes, escapes) {
            // A doubled quote is part of the value in YAML.
            if escapes > 0 || bytes.next_if(|(_, next)| *next == quote).is_none() {
                return Some(at + 1);
            }
        }
        backslashes = if byte == b'\\' { backslashes + 1 } else { 0 };
    }
    Some(text.find('\n').unwrap_or(text.len()))
}

/// True if a quote after this many backslashes closes a value whose opening quote has `escapes` backslashes. Each level of
/// JSON in JSON doubles the backslashes of a value and adds one to its quotes.
fn is_closing(backslashes: usize, escapes: usize) -> bool {
    backslashes.checked_sub(escapes).is_none_or(|more| more.is_multiple_of(2 * (escapes + 1)))
}

/// Length of a list of values in brackets; 0 if it is empty or contains objects, and `None` for other text. A list without a
/// closing bracket ends with its last value.
fn list_length(text: &str) -> Option<usize> {
    let is_between = |character: char| character.is_whitespace() || character == ',';
    let first = text.get(1..)?.trim_start_matches(is_between);
    let is_empty = first.strip_prefix(']').is_some_and(|after| word_length(after) == 0);
    if is_empty || first.starts_with('{') {
        return Some(0);
    }
    let mut rest = first;
    loop {
        let length = item_length(rest);
        if length == 0 {
            break;
        }
        rest = rest.get(length..)?.trim_start_matches(is_between);
    }
    if rest.len() == first.len() {
        return None;
    }
    let after = rest.strip_prefix(']').or_else(|| rest.get(word_length(rest)..)).unwrap_or(rest);
    Some(text.len() - after.len())
}

/// Length of an item of a list, in quotes or without; 0 if there is none.
fn item_length(text: &str) -> usize {
    if let Some(rest) = text.strip_prefix(REDACTED) {
        return REDACTED.len() + remainder_length(rest);
    }
    quoted_length(text).unwrap_or_else(|| plain_item_length(text))
}

/// Length of an item without quotes, which may contain spaces; 0 if neither a comma nor a bracket ends it.
fn plain_item_length(text: &str) -> usize {
    let end = text.find([',', ']', '\n', '[', '{', '"', '\\']).unwrap_or(text.len());
    let is_item = text.get(end..).is_some_and(|after| after.trim_start().starts_with([',', ']']));
    if is_item { end } else { 0 }
}

/// Length of a YAML list with an item in each line, without its last line break; 0 for a list of objects. The text starts at
/// the first item, whose line has this indentation.
pub(super) fn block_list_length(text: &str, indentation: usize) -> usize {
    let first = text.trim_start_matches(['-', ' ']);
    if first.starts_with('{') || begins_with_key(first) {
        return 0;
    }
    let is_item = |line: &str| line.trim_end() == "-" || line.starts_with("- ");
    let belongs_to_list = |line: &str| {
        let (indent, content) = (indentation_of(line), line.trim_start());
        content.is_empty() || indent > indentation || indent == indentation && is_item(content)
    };
    let lines = text.split_inclusive('\n').enumerate().take_while(|(nth, line)| *nth == 0 || belongs_to_list(line));
    let length = lines.map(|(_, line)| line.len()).sum::<usize>();
    text.get(..length).unwrap_or(text).trim_end().len()
}

/// True for the first field of an object in YAML, such as `name: x`.
pub(super) fn begins_with_key(text: &str) -> bool {
    let is_of_key = |character: char| character.is_ascii_alphanumeric() || "_-./".contains(character);
    let rest = text.trim_start_matches(is_of_key);
    let after = rest.strip_prefix(':').filter(|_| rest.len() < text.len());
    after.is_some_and(|after| after.is_empty() || after.starts_with(char::is_whitespace))
}

fn indentation_of(line: &str) -> usize {
    line.len() - line.trim_start_matches([' ', '\t']).len()
}

/// Length of a block of indented lines in YAML, without its last line break; `None` for other text.
fn block_length(text: &str) -> Option<usize> {
    let (header, rest) = text.split_once('\n')?;
    if !header.trim_end().bytes().all(|byte| byte.is_ascii_digit() || b"|>+-".contains(&byte)) {
        return None;
    }
    let first = rest.lines().find(|line| !line.trim().is_empty())?;
    let block_indent = indentation_of(first);
    if block_indent == 0 {
        return None;
    }
    let lines =
        rest.split_inclusive('\n').take_while(|line| line.trim().is_empty() || indentation_of(line) >= block_indent);
    let end = header.len() + 1 + lines.map(str::len).sum::<usize>();
    Some(text.get(..end)?.trim_end().len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::word("hunter22 user", "hunter22")]
    #[case::end_of_a_list("hunter22]", "hunter22")]
    #[case::end_of_an_escaped_text(r#"hunter22\",\"x\":1"#, "hunter22")]
    #[case::quotes(r#""a b" c"#, r#""a b""#)]
    #[case::escaped_quote(r#""a\"b" c"#, r#""a\"b""#)]
    #[case::escaped_backslash(r#""a\\" "c""#, r#""a\\""#)]
    #[case::single_quotes("'it''s' c", "'it''s'")]
    #[case::empty(r#""","c":1"#, r#""""#)]
    #[case::json_in_json(r#"\"a b\",\"c\":1"#, r#"\"a b\""#)]
    #[case::escaped_quote_in_json_in_json(r#"\"a\\\"b\",\"c\":1"#, r#"\"a\\\"b\""#)]
    #[case::escaped_backslash_in_json_in_json(r#"\"a\\\\\",\"c\":1"#, r#"\"a\\\\\""#)]
    #[case::json_in_json_in_json(r#"\\\"a b\\\",\\\"c\\\":1"#, r#"\\\"a b\\\""#)]
    #[case::truncated("\"a b\nc", "\"a b")]
    #[case::list(r#"["a","b"],"c""#, r#"["a","b"]"#)]
    #[case::truncated_list(r#"["a", "b"#, r#"["a", "b"#)]
    #[case::plain_list("[a, b c], d", "[a, b c]")]
    #[case::plain_list_in_lines("[\n  a,\n  b\n]\nc", "[\n  a,\n  b\n]")]
    #[case::one_plain_item("[a b]", "[a b]")]
    #[case::truncated_plain_list("[a, b", "[a, b")]
    #[case::redacted_item("[[redacted], b]", "[[redacted], b]")]
    #[case::a_list_of_objects("[{name: a}]", "")]
    #[case::an_empty_list("[ ], a", "")]
    #[case::bracket("[a b", "[a")]
    #[case::block("|-\n  a\n\n  b\nc: d", "|-\n  a\n\n  b")]
    #[case::a_sign("|a b", "|a")]
    #[case::an_object(r#"{"a": 1}"#, "")]
    #[case::a_template("{{ .Values.password }}", "")]
    #[case::a_scheme_in_braces("{SSHA}aGk= b", "{SSHA}aGk=")]
    #[case::an_object_without_quotes("{length: 12}", "")]
    #[case::an_open_brace("{a b", "{a")]
    #[case::redacted("[redacted] b", "[redacted]")]
    #[case::partly_redacted("[redacted]ab c", "[redacted]ab")]
    #[case::redacted_before_an_escaped_line(r"[redacted]\nb: c", "[redacted]")]
    #[case::nothing("", "")]
    fn extents_of_values_are_found(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(&text[..value_length(text)], expected);
    }

    #[rstest]
    #[case::lines("- a\n- b c\nd: e", 0, "- a\n- b c")]
    #[case::indented("- a\n    b\n\n  - c\n  d: e", 2, "- a\n    b\n\n  - c")]
    #[case::outer_item("- a\n- d: e", 2, "- a")]
    #[case::quotes("- \"a: b\"\n- c", 0, "- \"a: b\"\n- c")]
    #[case::an_address("- http://a", 0, "- http://a")]
    #[case::objects("- name: a\n- name: b", 0, "")]
    #[case::objects_in_braces("- {name: a}", 0, "")]
    fn extents_of_block_lists_are_found(#[case] text: &str, #[case] indentation: usize, #[case] expected: &str) {
        assert_eq!(&text[..block_list_length(text, indentation)], expected);
    }

    #[rstest]
    #[case("YXBwOnBhc3M=", true)]
    #[case(r#"\"YXBwOnBhc3M=\""#, true)]
    #[case("basic", false)]
    #[case("required", false)]
    #[case("", false)]
    fn encoded_credentials_are_recognized(#[case] value: &str, #[case] expected: bool) {
        assert_eq!(is_encoded_credentials(value), expected);
    }
}
