//! Tokenization, shared by documents and queries.
//!
//! Whole strings (names, labels, images) are one lower-case term each. Running text is split at whitespace and brackets
//! into chunks. Terms of a chunk are the chunk itself, its suffixes after a separator, and the first word of each.
//! Therefore a prefix search finds `docker.io/library/nginx:1.27` by `nginx:1.27` and by `ngin`, and `team-a/web-0` by
//! `web-0`.

use std::collections::HashSet;

/// Maximum length of a term in bytes; longer chunks (keys, certificates) are indexed only by their shorter suffixes.
pub const MAX_CHUNK_BYTES: usize = 128;
/// Approximate number of bytes of a manifest per distinct chunk.
const BYTES_PER_CHUNK: usize = 32;
/// Maximum number of suffixes of a chunk.
const MAX_SUFFIXES: usize = 10;

/// True if the character separates chunks. Such characters do not occur in names, labels, images or paths.
fn is_break(c: char) -> bool {
    matches!(c, '"' | '\'' | '`' | ',' | ';' | '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | '|') || c.is_whitespace()
}

/// True if the character is removed from both ends of chunks.
fn is_punctuation(c: char) -> bool {
    matches!(c, '.' | ':' | '!' | '?' | '-' | '=' | '/')
}

/// The chunks of a lower-case text, without punctuation at their ends.
pub fn chunks(lower: &str) -> impl Iterator<Item = &str> {
    lower.split(is_break).map(|chunk| chunk.trim_matches(is_punctuation)).filter(|chunk| !chunk.is_empty())
}

/// The distinct chunks of a text, in lower case and separated by spaces. Their terms are those of the text.
pub fn unique_chunks(text: &str) -> String {
    let mut lower = String::new();
    lower_into(&mut lower, text);
    let mut seen =
        HashSet::with_capacity_and_hasher(lower.len() / BYTES_PER_CHUNK, foldhash::fast::RandomState::default());
    let mut unique = String::with_capacity(lower.len() / 2);
    for chunk in chunks(&lower).filter(|chunk| seen.insert(*chunk)) {
        unique.push_str(chunk);
        unique.push(' ');
    }
    unique
}

/// The chunk at a byte position of a lower-case text, and the position of the separator after it.
pub fn chunk_around(lower: &str, at: usize) -> (&str, usize) {
    let (before, after) = lower.split_at(at);
    let start = before.char_indices().rfind(|(_, c)| is_break(*c)).map_or(0, |(at, c)| at + c.len_utf8());
    let end = after.find(is_break).map_or(lower.len(), |end| at + end);
    (lower[start..end].trim_matches(is_punctuation), end)
}

/// Terms of a chunk: itself, its suffixes, and the first word of each. With the latter, a search for the prefix
/// `setting` finds `setting_1` to `setting_99` by one term.
pub fn terms(chunk: &str) -> impl Iterator<Item = &str> {
    suffixes(chunk).flat_map(|suffix| [suffix].into_iter().chain(first_word(suffix)))
}

/// A chunk and its suffixes after separators. A UUID has no suffixes.
pub fn suffixes(chunk: &str) -> impl Iterator<Item = &str> {
    let complete_chunk = (chunk.len() <= MAX_CHUNK_BYTES).then_some(chunk);
    let separable = if looks_like_uuid(chunk) { "" } else { chunk };
    let mut after_separator = false;
    let suffix_starts = separable.char_indices().filter_map(move |(at, c)| {
        let is_start = std::mem::replace(&mut after_separator, !c.is_alphanumeric()) && !after_separator;
        (is_start && chunk.len() - at <= MAX_CHUNK_BYTES).then_some(at)
    });
    complete_chunk.into_iter().chain(suffix_starts.take(MAX_SUFFIXES).map(move |at| &chunk[at..]))
}

/// True if a lower-case message contains these chunks in sequence. All but the last must be a chunk of the message or a suffix
/// of one; the last may be a prefix of such a term.
pub fn contains_phrase(lower: &str, phrase: &[String]) -> bool {
    let fits = |term: &str, word: &str| term == word || matches_by_prefix(word) && term.starts_with(word);
    match phrase {
        [] => false,
        [word] => chunks(lower).flat_map(terms).any(|term| fits(term, word)),
        [words @ .., last] => {
            let all: Vec<&str> = chunks(lower).collect();
            all.windows(phrase.len()).any(|window| {
                let starts_match =
                    window.iter().zip(words).all(|(chunk, word)| suffixes(chunk).any(|suffix| suffix == word));
                starts_match && window.last().is_some_and(|chunk| suffixes(chunk).any(|suffix| fits(suffix, last)))
            })
        }
    }
}

/// The first word of a term, if the term is longer.
pub fn first_word(term: &str) -> Option<&str> {
    let end = term.find(|c: char| !c.is_alphanumeric())?;
    (end > 0).then(|| &term[..end])
}

/// True if a word has the three characters that are required to match terms by prefix. Shorter words match exactly, because
/// they are prefixes of too many terms.
pub fn matches_by_prefix(word: &str) -> bool {
    word.chars().nth(2).is_some()
}

fn looks_like_uuid(chunk: &str) -> bool {
    let bytes = chunk.as_bytes();
    bytes.len() == 36
        && [8, 13, 18, 23].iter().all(|&at| bytes[at] == b'-')
        && bytes.iter().filter(|b| b.is_ascii_hexdigit()).count() == 32
}

/// Replaces the content of a buffer with the text in lower case.
pub fn lower_into(buffer: &mut String, text: &str) {
    buffer.clear();
    match text.is_ascii() {
        true => {
            buffer.push_str(text);
            buffer.make_ascii_lowercase();
        }
        false => buffer.push_str(&text.to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// With this property, a prefix search has to look up only a word and its continuations with a letter or digit.
        #[test]
        fn the_first_word_of_every_term_is_a_term(chunk in "[a-c0-9é._:/@–-]{1,30}|([a-c]{1,60}[./]){1,4}|0d9f5a3c-0000-4000-8000-1234567890ab") {
            let all: BTreeSet<&str> = terms(&chunk).collect();
            for term in &all {
                let word = term.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                prop_assert!(word.is_empty() || all.contains(word), "{word} of {term} is not in {all:?}");
            }
        }
    }

    #[rstest::rstest]
    #[case::together("pulling image", true)]
    #[case::not_adjacent("failed image", false)]
    #[case::wrong_order("image pulling", false)]
    #[case::first_chunk_ends_a_word("off pulling", true)]
    #[case::across_punctuation("image library/nginx:1.27", true)]
    #[case::last_chunk_is_a_prefix("pulling ima", true)]
    #[case::first_chunk_is_not_a_prefix("pull image", false)]
    #[case::first_word_is_not_the_whole_chunk("back pulling", false)]
    #[case::short_chunks_match_exactly("pulling im", false)]
    #[case::one("ngin", true)]
    #[case::none("", false)]
    fn phrases_match_in_sequence(#[case] phrase: &str, #[case] expected: bool) {
        let phrase_chunks: Vec<String> = chunks(phrase).map(str::to_owned).collect();
        assert_eq!(
            contains_phrase("back-off pulling image \"docker.io/library/nginx:1.27\": failed", &phrase_chunks),
            expected
        );
    }

    proptest! {
        #[test]
        fn unique_chunks_have_the_terms_of_the_text(text in "([aBé.:/-]{1,4}[ \n(\"]){0,20}") {
            let all_terms = |text: &str| -> Vec<String> { chunks(text).flat_map(terms).map(str::to_owned).collect() };
            let (unique, lower) = (unique_chunks(&text), text.to_lowercase());
            let set = |terms: Vec<String>| terms.into_iter().collect::<BTreeSet<_>>();
            prop_assert_eq!(set(all_terms(&unique)), set(all_terms(&lower)));
            let unique_chunks: Vec<&str> = chunks(&unique).collect();
            prop_assert_eq!(unique_chunks.iter().collect::<BTreeSet<_>>().len(), unique_chunks.len());
        }
    }

    proptest! {
        #[test]
        fn chunks_are_found_around_their_positions(text in "[abé. \"-]{0,30}") {
            let all: Vec<&str> = chunks(&text).collect();
            let mut around: Vec<&str> = text.char_indices().map(|(at, _)| chunk_around(&text, at).0).collect();
            around.retain(|chunk| !chunk.is_empty());
            around.dedup_by_key(|chunk| chunk.as_ptr());
            prop_assert_eq!(around, all);
        }
    }
}
