//! How text becomes terms, the same for documents and queries.
//!
//! Whole strings (names, labels, images) are one lower-case term each. Running text is cut at blanks and brackets into
//! chunks; each chunk is a term, and so is each of its tails that begins behind a separator, and the first word of each. So a prefix search finds
//! `nginx:1.27` in `docker.io/library/nginx:1.27`, and `web-0` in `team-a/web-0`, whole and in parts.

use tantivy::tokenizer::{
    BoxTokenStream, LowerCaser, RawTokenizer, TextAnalyzer, Token, TokenStream, Tokenizer, TokenizerManager,
};

/// Tokenizer of running text.
pub const TEXT: &str = "crowsnest-text";
/// Tokenizer of whole strings.
pub const WHOLE: &str = "crowsnest-whole";

/// Longer chunks (keys, certificates) are no words.
const MAX_CHUNK: usize = 128;
const MAX_TAILS: usize = 10;

pub(crate) fn register(manager: &TokenizerManager) {
    manager.register(TEXT, TextAnalyzer::builder(ChunkTokenizer::default()).build());
    manager.register(WHOLE, TextAnalyzer::builder(RawTokenizer::default()).filter(LowerCaser).build());
}

/// Separates chunks: never part of a name, a label, an image or a path.
fn is_break(c: char) -> bool {
    matches!(c, '"' | '\'' | '`' | ',' | ';' | '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | '|') || c.is_whitespace()
}

/// The chunks of a lower-case text, without punctuation at their ends.
pub fn chunks(lower: &str) -> impl Iterator<Item = &str> {
    let punctuation = |c: char| matches!(c, '.' | ':' | '!' | '?' | '-' | '=' | '/');
    lower.split(is_break).map(move |chunk| chunk.trim_matches(punctuation)).filter(|chunk| !chunk.is_empty())
}

/// Terms of one chunk: itself, its tails, and the first word of each. By those words a search for what begins with
/// `setting` finds `setting_1` to `setting_99` as one term.
pub fn terms(chunk: &str) -> impl Iterator<Item = &str> {
    let whole = (chunk.len() <= MAX_CHUNK).then_some(chunk);
    let separable = if looks_like_uuid(chunk) { "" } else { chunk };
    let mut separated = false;
    let begins = separable.char_indices().filter_map(move |(at, c)| {
        let begins = std::mem::replace(&mut separated, !c.is_alphanumeric()) && !separated;
        (begins && chunk.len() - at <= MAX_CHUNK).then_some(at)
    });
    let tails = whole.into_iter().chain(begins.take(MAX_TAILS).map(move |at| &chunk[at..]));
    tails.flat_map(|tail| [tail].into_iter().chain(first_word(tail)))
}

/// The word a term begins with, where it goes on behind it.
fn first_word(term: &str) -> Option<&str> {
    let end = term.find(|c: char| !c.is_alphanumeric())?;
    (end > 0).then(|| &term[..end])
}

/// Whether a word finds the terms that begin with it. Shorter ones begin too much: they find themselves.
pub fn begins_terms(word: &str) -> bool {
    word.chars().nth(2).is_some()
}

fn looks_like_uuid(chunk: &str) -> bool {
    let bytes = chunk.as_bytes();
    bytes.len() == 36
        && [8, 13, 18, 23].iter().all(|&at| bytes[at] == b'-')
        && bytes.iter().filter(|b| b.is_ascii_hexdigit()).count() == 32
}

/// Keeps the lower-case text of the value it reads, so that terms are slices of it.
#[derive(Clone, Default)]
struct ChunkTokenizer {
    lower: String,
}

struct ChunkStream<I> {
    terms: I,
    token: Token,
}

impl Tokenizer for ChunkTokenizer {
    type TokenStream<'a> = BoxTokenStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> BoxTokenStream<'a> {
        self.lower.clear();
        match text.is_ascii() {
            true => {
                self.lower.push_str(text);
                self.lower.make_ascii_lowercase();
            }
            false => self.lower.push_str(&text.to_lowercase()),
        }
        let terms = chunks(&self.lower).flat_map(terms);
        BoxTokenStream::new(ChunkStream { terms, token: Token::default() })
    }
}

impl<'t, I: Iterator<Item = &'t str>> TokenStream for ChunkStream<I> {
    fn advance(&mut self) -> bool {
        let Some(text) = self.terms.next() else { return false };
        self.token.text.clear();
        self.token.text.push_str(text);
        self.token.position = self.token.position.wrapping_add(1);
        true
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// What lets a search for the beginning of terms look for a word and for what goes on with a letter or digit.
        #[test]
        fn the_first_word_of_every_term_is_a_term(chunk in "[a-c0-9é._:/@–-]{1,30}|([a-c]{1,60}[./]){1,4}|0d9f5a3c-0000-4000-8000-1234567890ab") {
            let all: BTreeSet<&str> = terms(&chunk).collect();
            for term in &all {
                let word = term.split(|c: char| !c.is_alphanumeric()).next().unwrap();
                prop_assert!(word.is_empty() || all.contains(word), "{word} of {term} is not in {all:?}");
            }
        }
    }

    fn all(text: &str) -> Vec<String> {
        let mut tokenizer = ChunkTokenizer::default();
        let (mut stream, mut all) = (tokenizer.token_stream(text), Vec::new());
        stream.process(&mut |token| all.push(token.text.clone()));
        all
    }

    #[test]
    fn names_are_found_whole_and_in_parts() {
        assert_eq!(all("Team-A/web-0"), ["team-a/web-0", "team", "a/web-0", "a", "web-0", "web", "0"]);
        let image = all("image \"docker.io/library/nginx:1.27\".");
        for part in ["docker.io/library/nginx:1.27", "library/nginx:1.27", "nginx:1.27", "1.27", "27"] {
            assert!(image.iter().any(|term| term == part), "{part} in {image:?}");
        }
        assert_eq!(all("Back-off restarting (x3)"), ["back-off", "back", "off", "restarting", "x3"]);
        assert_eq!(all("0d9f5a3c-0000-4000-8000-1234567890ab"), ["0d9f5a3c-0000-4000-8000-1234567890ab", "0d9f5a3c"]);
        assert_eq!(all(&"x".repeat(1000)), Vec::<String>::new());
    }
}
