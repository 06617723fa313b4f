//! Strings as terms of an engine, the same for documents and queries.

use std::borrow::Cow;

/// Maximum length of a term in Lucene, in UTF-8 bytes. A longer one fails its document (`immense term`); `ignore_above`
/// would drop it silently.
pub const MAX_TERM: usize = 32_766;

/// Characters in a window of [`grams`].
pub const WINDOW: usize = 3;

/// Offset from a whitespace character of Java to the character in plane 15 (private use) that replaces it.
const PRIVATE: u32 = 0xF_0000;

/// Placeholder for a chunk without a term, so that phrases do not match across it.
pub const GAP: char = '\u{F8FF}';

/// True for whitespace in Java (`Character.isWhitespace`), at which the analyzer `whitespace` splits. U+001C to U+001F
/// are whitespace in Java only; U+0085, U+00A0, U+2007 and U+202F in Rust only.
pub fn is_java_whitespace(c: char) -> bool {
    match c {
        '\u{9}'..='\u{d}' | '\u{1c}'..='\u{20}' | '\u{1680}' | '\u{2028}' | '\u{2029}' | '\u{205f}' | '\u{3000}' => {
            true
        }
        '\u{2000}'..='\u{200a}' => c != '\u{2007}',
        _ => false,
    }
}

/// The replacement for a character that would be read as a separator.
pub fn private_use_char(c: char) -> char {
    char::from_u32(PRIVATE + c as u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// One token of the analyzer `whitespace`: whitespace of Java becomes private-use characters.
pub fn token(text: &str) -> Cow<'_, str> {
    match text.contains(is_java_whitespace) {
        true => Cow::Owned(text.chars().map(|c| if is_java_whitespace(c) { private_use_char(c) } else { c }).collect()),
        false => Cow::Borrowed(text),
    }
}

/// The string, truncated to the maximum length of a term.
pub fn truncate_term(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TERM.min(text.len()))]
}

/// A complete string in lower case as a term.
pub fn lower_term(text: &str) -> String {
    let mut lower = text.to_lowercase();
    lower.truncate(truncate_term(&lower).len());
    lower
}

/// A lower-case string as its windows of three characters, and the shorter ones at its end. Each position of the string
/// begins a token, so a phrase of windows, or the prefix of a token, finds any part of it.
pub fn grams(lower: &str) -> String {
    windows(&token(lower), 1)
}

/// The windows of a searched part; `None` for parts shorter than a window.
pub fn phrase_windows(part: &str) -> Option<String> {
    let part = token(part);
    part.chars().nth(WINDOW - 1).is_some().then(|| windows(&part, WINDOW))
}

/// Windows at each position of a text with at least `min_length` remaining characters, separated by spaces.
fn windows(text: &str, min_length: usize) -> String {
    let offsets: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut windows = String::with_capacity(text.len() * 4);
    for (nth, from) in offsets.iter().enumerate().take(offsets.len().saturating_sub(min_length)) {
        let to = offsets.get(nth + WINDOW).copied().unwrap_or(text.len());
        if nth > 0 {
            windows.push(' ');
        }
        windows.push_str(&text[*from..to]);
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("web-0", "web eb- b-0 -0 0", Some("web eb- b-0"))]
    #[case("ab", "ab b", None)]
    #[case("", "", None)]
    #[case("aéz", "aéz éz z", Some("aéz"))]
    #[case("a b", "a\u{F0020}b \u{F0020}b b", Some("a\u{F0020}b"))]
    fn strings_are_windows(#[case] text: &str, #[case] expected: &str, #[case] part: Option<&str>) {
        assert_eq!((grams(text).as_str(), phrase_windows(text).as_deref()), (expected, part));
    }

    #[test]
    fn java_whitespace_is_that_of_its_documentation() {
        let whitespace = (0..=0xFFFF).filter_map(char::from_u32).filter(|c| is_java_whitespace(*c));
        let only_java: Vec<u32> = whitespace.clone().filter(|c| !c.is_whitespace()).map(|c| c as u32).collect();
        assert_eq!((whitespace.count(), only_java), (25, vec![0x1c, 0x1d, 0x1e, 0x1f]));
    }

    /// Tokens of the analyzer `whitespace`.
    fn tokenize(text: &str) -> Vec<&str> {
        text.split(is_java_whitespace).filter(|token| !token.is_empty()).collect()
    }

    proptest! {
        #[test]
        fn parts_are_found_by_windows(text in "[ab \u{1c}é𝒳-]{0,12}", part in "[ab \u{1c}é𝒳-]{1,5}") {
            let grams = grams(&text);
            let tokens = tokenize(&grams);
            let found = match phrase_windows(&part) {
                Some(phrase) => {
                    let phrase_terms = tokenize(&phrase);
                    tokens.windows(phrase_terms.len()).any(|window| window == phrase_terms.as_slice())
                }
                None => tokens.iter().any(|gram| gram.starts_with(&*token(&part))),
            };
            prop_assert_eq!(found, text.contains(&part));
        }

        #[test]
        fn no_term_is_too_long(text in "[aé𝒳]{0,3}", times in 0..20_000_usize) {
            let long = text.repeat(times);
            let term = lower_term(&long);
            prop_assert!(term.len() <= MAX_TERM && long.to_lowercase().starts_with(&term));
            prop_assert!(term.len() == long.len() || long.len() > MAX_TERM);
        }
    }
}
