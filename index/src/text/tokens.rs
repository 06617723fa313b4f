//! How text becomes terms, the same for documents and queries.
//!
//! Whole strings (names, labels, images) are one lower-case term each. Running text is cut at blanks and brackets into
//! chunks; each chunk is a term, and so is each of its tails that begins behind a separator. So a prefix search finds
//! `nginx:1.27` in `docker.io/library/nginx:1.27`, and `web-0` in `team-a/web-0`, whole and in parts.

use tantivy::tokenizer::{LowerCaser, RawTokenizer, TextAnalyzer, Token, TokenStream, Tokenizer, TokenizerManager};

/// Tokenizer of running text.
pub const TEXT: &str = "crowsnest-text";
/// Tokenizer of whole strings.
pub const WHOLE: &str = "crowsnest-whole";

/// Longer chunks (keys, certificates) are no words.
const MAX_CHUNK: usize = 128;
const MAX_TAILS: usize = 10;

pub(crate) fn register(manager: &TokenizerManager) {
    manager.register(TEXT, TextAnalyzer::builder(ChunkTokenizer).build());
    manager.register(WHOLE, TextAnalyzer::builder(RawTokenizer::default()).filter(LowerCaser).build());
}

/// Separates chunks: never part of a name, a label, an image or a path.
fn is_break(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '`' | ',' | ';' | '(' | ')' | '[' | ']' | '{' | '}' | '<' | '>' | '|')
}

/// The chunks of a text, lower case, without punctuation at their ends.
pub fn chunks(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(is_break).filter_map(|chunk| {
        let chunk = chunk.trim_matches(|c: char| matches!(c, '.' | ':' | '!' | '?' | '-' | '=' | '/'));
        (!chunk.is_empty()).then(|| chunk.to_lowercase())
    })
}

/// Terms of one chunk: itself and its tails.
pub fn terms(chunk: &str) -> Vec<String> {
    let mut terms = Vec::new();
    if chunk.len() <= MAX_CHUNK {
        terms.push(chunk.to_owned());
    }
    if looks_like_uuid(chunk) {
        return terms;
    }
    let mut previous_separates = false;
    let mut tails = 0;
    for (at, c) in chunk.char_indices() {
        let separates = !c.is_alphanumeric();
        if previous_separates && !separates && chunk.len() - at <= MAX_CHUNK {
            terms.push(chunk[at..].to_owned());
            tails += 1;
            if tails == MAX_TAILS {
                break;
            }
        }
        previous_separates = separates;
    }
    terms
}

fn looks_like_uuid(chunk: &str) -> bool {
    let bytes = chunk.as_bytes();
    bytes.len() == 36
        && [8, 13, 18, 23].iter().all(|&at| bytes[at] == b'-')
        && bytes.iter().filter(|b| b.is_ascii_hexdigit()).count() == 32
}

#[derive(Clone, Default)]
struct ChunkTokenizer;

struct ChunkStream {
    tokens: std::vec::IntoIter<String>,
    token: Token,
}

impl Tokenizer for ChunkTokenizer {
    type TokenStream<'a> = ChunkStream;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> ChunkStream {
        let tokens: Vec<String> = chunks(text).flat_map(|chunk| terms(&chunk)).collect();
        ChunkStream { tokens: tokens.into_iter(), token: Token::default() }
    }
}

impl TokenStream for ChunkStream {
    fn advance(&mut self) -> bool {
        match self.tokens.next() {
            Some(text) => {
                self.token.text = text;
                self.token.position = self.token.position.wrapping_add(1);
                true
            }
            None => false,
        }
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

    fn all(text: &str) -> Vec<String> {
        chunks(text).flat_map(|chunk| terms(&chunk)).collect()
    }

    #[test]
    fn names_are_found_whole_and_in_parts() {
        assert_eq!(all("Team-A/web-0"), ["team-a/web-0", "a/web-0", "web-0", "0"]);
        let image = all("image \"docker.io/library/nginx:1.27\".");
        for part in ["docker.io/library/nginx:1.27", "library/nginx:1.27", "nginx:1.27", "1.27", "27"] {
            assert!(image.iter().any(|term| term == part), "{part} in {image:?}");
        }
        assert_eq!(all("Back-off restarting (x3)"), ["back-off", "off", "restarting", "x3"]);
        assert_eq!(all("0d9f5a3c-0000-4000-8000-1234567890ab").len(), 1);
        assert_eq!(all(&"x".repeat(1000)), Vec::<String>::new());
    }
}
