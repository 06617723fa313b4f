//! Tokenizers that implement [`crate::document::tokens`].

use crate::document::tokens::{chunks, first_word, lower_into, suffixes, terms};
use tantivy::tokenizer::{
    BoxTokenStream, LowerCaser, RawTokenizer, TextAnalyzer, Token, TokenStream, Tokenizer, TokenizerManager,
};

/// Tokenizer of running text.
pub const TEXT: &str = "crowsnest-text";
/// Tokenizer of messages: the same terms, with the position of their chunk.
pub const MESSAGES: &str = "crowsnest-said";
/// Tokenizer of complete strings.
pub const WHOLE: &str = "crowsnest-whole";

pub(crate) fn register(manager: &TokenizerManager) {
    manager.register(TEXT, TextAnalyzer::builder(ChunkTokenizer::default()).build());
    manager.register(MESSAGES, TextAnalyzer::builder(MessageTokenizer::default()).build());
    manager.register(WHOLE, TextAnalyzer::builder(RawTokenizer::default()).filter(LowerCaser).build());
}

/// Owns the lower-case text, so that terms are slices of it.
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
        lower_into(&mut self.lower, text);
        let terms = chunks(&self.lower).flat_map(terms).map(|term| (term, 0));
        BoxTokenStream::new(ChunkStream { terms, token: Token::default() })
    }
}

/// Terms with the positions of their chunks. First words have separate positions after all chunks, because they do
/// not reach the end of a chunk and must not be part of a phrase.
#[derive(Clone, Default)]
struct MessageTokenizer {
    lower: String,
}

impl Tokenizer for MessageTokenizer {
    type TokenStream<'a> = BoxTokenStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> BoxTokenStream<'a> {
        lower_into(&mut self.lower, text);
        let all = || chunks(&self.lower).enumerate();
        let first_free_position = all().count() + 1;
        let suffix_terms = all().flat_map(|(nth, chunk)| suffixes(chunk).map(move |suffix| (suffix, nth)));
        let first_words = all().flat_map(move |(nth, chunk)| {
            suffixes(chunk).filter_map(first_word).map(move |word| (word, first_free_position + 2 * nth))
        });
        BoxTokenStream::new(ChunkStream { terms: suffix_terms.chain(first_words), token: Token::default() })
    }
}

impl<'t, I: Iterator<Item = (&'t str, usize)>> TokenStream for ChunkStream<I> {
    fn advance(&mut self) -> bool {
        let Some((text, position)) = self.terms.next() else { return false };
        self.token.text.clear();
        self.token.text.push_str(text);
        self.token.position = position;
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

    #[test]
    fn positions_in_a_message_are_ascending() {
        let mut tokenizer = MessageTokenizer::default();
        let (mut stream, mut last) = (tokenizer.token_stream("a-b a b-a a"), std::collections::BTreeMap::new());
        let mut places = Vec::new();
        stream.process(&mut |token| {
            let before = last.insert(token.text.clone(), token.position).unwrap_or_default();
            assert!(before <= token.position, "{} at {before} and {}", token.text, token.position);
            places.push((token.text.clone(), token.position));
        });
        let position = |text: &str| places.iter().find(|(term, _)| term == text).map(|(_, at)| *at);
        assert_eq!((position("a-b"), position("b-a"), places.last().unwrap().1), (Some(0), Some(2), 9));
    }

    fn all(text: &str) -> Vec<String> {
        let mut tokenizer = ChunkTokenizer::default();
        let (mut stream, mut all) = (tokenizer.token_stream(text), Vec::new());
        stream.process(&mut |token| all.push(token.text.clone()));
        all
    }

    #[test]
    fn names_are_tokenized_whole_and_in_parts() {
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
