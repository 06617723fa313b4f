//! Regular expressions of the query language in the dialect of Lucene.
//!
//! An engine reads `(?i:…)`, `^`, `$` and `[[:digit:]]` as literals and finds nothing, without an error, and refuses
//! `\x31`. Therefore a pattern is parsed here and written with literals, character ranges, groups and repetitions only,
//! with all punctuation escaped. OpenSearch 2.19.6 and 3.9.0 and Elasticsearch 7.17.28 match such patterns alike with
//! `flags: NONE`.

use super::template::MAX_REGEX;
use regex_syntax::hir::{Class, ClassUnicode, Hir, HirKind, Repetition};

/// A pattern that an engine does not support.
#[derive(Debug, thiserror::Error)]
pub enum RegexError {
    #[error("it is not a valid pattern")]
    Syntax(#[source] Box<regex_syntax::Error>),
    #[error("anchors and word boundaries inside of a pattern are not supported")]
    Look,
    #[error("bytes that are not valid UTF-8 are not supported")]
    Bytes,
    #[error("it expands to {0} characters; the search engine accepts at most {MAX_REGEX}")]
    Length(usize),
}

/// Converts a pattern that matches complete strings, as [`crate::plan`] creates them, to Lucene's dialect.
pub fn to_lucene(pattern: &str) -> Result<String, RegexError> {
    let hir = regex_syntax::Parser::new().parse(pattern).map_err(|error| RegexError::Syntax(Box::new(error)))?;
    let mut written = String::new();
    write(&mut written, &hir)?;
    limit_length(written)
}

/// The pattern, unless it is too long for an engine.
pub fn limit_length(pattern: String) -> Result<String, RegexError> {
    let length = pattern.encode_utf16().count();
    if length > MAX_REGEX { Err(RegexError::Length(length)) } else { Ok(pattern) }
}

/// Escapes a string as a regular expression that matches only this string.
pub fn escape_literal(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    text.chars().for_each(|c| write_char(&mut written, c));
    written
}

/// Escapes a string as a part of a `wildcard` pattern.
pub fn escape_wildcard(text: &str) -> String {
    let mut written = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '*' | '?' | '\\') {
            written.push('\\');
        }
        written.push(c);
    }
    written
}

/// Escapes all punctuation, because Lucene's optional operators give some of it a meaning. Letters are not escaped:
/// escaped letters are character classes.
fn write_char(into: &mut String, c: char) {
    if c.is_ascii_punctuation() {
        into.push('\\');
    }
    into.push(c);
}

fn write(into: &mut String, hir: &Hir) -> Result<(), RegexError> {
    match hir.kind() {
        HirKind::Empty => into.push_str("()"),
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| RegexError::Bytes)?;
            text.chars().for_each(|c| write_char(into, c));
        }
        HirKind::Class(Class::Unicode(class)) if !class.ranges().is_empty() => write_class(into, class),
        HirKind::Class(_) => return Err(RegexError::Bytes),
        HirKind::Look(_) => return Err(RegexError::Look),
        HirKind::Capture(capture) => write_group(into, &capture.sub)?,
        HirKind::Repetition(repetition) => write_repetition(into, repetition)?,
        HirKind::Concat(parts) => parts.iter().try_for_each(|part| write(into, part))?,
        HirKind::Alternation(parts) => {
            into.push('(');
            for (nth, part) in parts.iter().enumerate() {
                if nth > 0 {
                    into.push('|');
                }
                write(into, part)?;
            }
            into.push(')');
        }
    }
    Ok(())
}

fn write_group(into: &mut String, hir: &Hir) -> Result<(), RegexError> {
    into.push('(');
    write(into, hir)?;
    into.push(')');
    Ok(())
}

fn write_repetition(into: &mut String, repetition: &Repetition) -> Result<(), RegexError> {
    write_group(into, &repetition.sub)?;
    match (repetition.min, repetition.max) {
        (0, None) => into.push('*'),
        (1, None) => into.push('+'),
        (0, Some(1)) => into.push('?'),
        (min, None) => into.push_str(&format!("{{{min},}}")),
        (min, Some(max)) => into.push_str(&format!("{{{min},{max}}}")),
    }
    Ok(())
}

fn write_class(into: &mut String, class: &ClassUnicode) {
    let ranges = class.ranges();
    if let [all] = ranges
        && (all.start(), all.end()) == ('\0', char::MAX)
    {
        // Any character, including a line break.
        into.push('.');
        return;
    }
    if let [below, above] = ranges
        && (below.start(), below.end(), above.start(), above.end()) == ('\0', '\t', '\u{b}', char::MAX)
    {
        into.push_str("[^\n]");
        return;
    }
    into.push('[');
    ranges.iter().for_each(|range| write_range(into, range.start(), range.end()));
    into.push(']');
}

/// Punctuation at the ends of a range is written separately: Lucene 10 accepts no escaped character as its start and silently
/// matches something else.
fn write_range(into: &mut String, start: char, end: char) {
    let mut inner: Vec<char> = Vec::new();
    let (mut from, mut to) = (start, end);
    while from.is_ascii_punctuation() && from < to {
        inner.push(from);
        from = char::from(from as u8 + 1);
    }
    while to.is_ascii_punctuation() && to > from {
        inner.push(to);
        to = char::from(to as u8 - 1);
    }
    inner.iter().for_each(|sign| write_char(into, *sign));
    write_char(into, from);
    if to > from {
        into.push('-');
        write_char(into, to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opensearch::tests::interpreter::from_lucene;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("web", "web")]
    #[case("web\\.0", "web\\.0")]
    #[case("(?i:w)", "[Ww]")]
    #[case(".*", "([^\n])*")]
    #[case("(?s:.)", ".")]
    #[case("[a-c-]", "[\\-a-c]")]
    #[case("[^=]", "[\\<\\;\\:\0-9\\>\\?\\@A-\u{10FFFF}]")]
    #[case("[!-/]", "[\\!\\\"\\#\\$\\%\\&\\'\\(\\)\\*\\+\\,\\-\\.\\/]")]
    #[case("[[:digit:]]{2,3}", "([0-9]){2,3}")]
    #[case("a{2}|b{3,}|", "((a){2,2}|(b){3,}|())")]
    #[case("\\x31\"#@&~<>", "1\\\"\\#\\@\\&\\~\\<\\>")]
    #[case("(a)(?:bc)+", "(a)(bc)+")]
    #[case("[😀-😂é]", "[é😀-😂]")]
    fn patterns_are_written_out(#[case] pattern: &str, #[case] expected: &str) {
        assert_eq!(to_lucene(pattern).unwrap(), expected);
    }

    #[rstest]
    #[case("a^b", "anchors")]
    #[case("\\bweb", "anchors")]
    #[case("(", "not a valid pattern")]
    #[case("[^\\s\\S]", "not valid UTF-8")]
    fn some_patterns_are_refused(#[case] pattern: &str, #[case] expected: &str) {
        let error = to_lucene(pattern).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn long_patterns_are_refused() {
        assert!(matches!(to_lucene("(?i:[a-zßäöü]{2}\\w)".repeat(60).as_str()), Err(RegexError::Length(_))));
    }

    fn pattern() -> impl Strategy<Value = String> {
        let leaf = prop::sample::select(vec![
            "a",
            "b",
            "-",
            "\\.",
            "\"",
            "#",
            "[a-c]",
            "[^a]",
            "\\d",
            ".",
            "(?i:B)",
            "é",
            "[\\]\\-^]",
            "<1>",
        ]);
        leaf.prop_map(str::to_owned).prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..4).prop_map(|parts| parts.concat()),
                prop::collection::vec(inner.clone(), 2..3).prop_map(|parts| format!("(?:{})", parts.join("|"))),
                (inner, prop::sample::select(vec!["*", "+", "?", "{2}", "{0,2}"]))
                    .prop_map(|(part, times)| format!("(?:{part}){times}")),
            ]
        })
    }

    proptest! {
        /// A written pattern uses only what both dialects read alike.
        #[test]
        fn a_written_pattern_matches_the_same(pattern in pattern(), texts in prop::collection::vec("[abcB1.é\"#<>=\n-]{0,6}", 8)) {
            let full_match = |pattern: &str| regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
            // Lucene's dot is any character.
            let written = full_match(&format!("(?s:{})", from_lucene(&to_lucene(&pattern).unwrap())));
            for text in texts {
                prop_assert_eq!(written.is_match(&text), full_match(&pattern).is_match(&text), "{:?} {:?}", pattern, text);
            }
        }
    }
}
