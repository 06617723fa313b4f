//! JSON documents that are kept compressed until they are read, such as the schemas of custom resources.

use std::fmt;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// SHA-256 of a document's text.
pub type ContentHash = [u8; 32];

/// Hash of a document's text.
pub fn content_hash(text: &str) -> ContentHash {
    Sha256::digest(text).into()
}

/// Compresses a text with gzip at the fastest level.
pub fn compress(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    encoder.write_all(text).expect("a vector accepts every write");
    encoder.finish().expect("a vector accepts every write")
}

/// Decompresses the output of [`compress`].
pub fn decompress(gzip: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(gzip.len() * 8);
    GzDecoder::new(gzip).read_to_end(&mut text).expect("the input is complete gzip data");
    text
}

/// A compressed JSON document with the hash of its text.
#[derive(Clone)]
pub struct CompressedJson {
    hash: ContentHash,
    gzip: Box<[u8]>,
}

impl CompressedJson {
    /// Compresses the text of a JSON document.
    pub fn from_text(text: &str) -> Self {
        Self { hash: content_hash(text), gzip: compress(text.as_bytes()).into() }
    }

    /// Hash of the text.
    pub fn hash(&self) -> &ContentHash {
        &self.hash
    }

    /// Size of the compressed text in bytes.
    pub fn size(&self) -> usize {
        self.gzip.len()
    }

    /// The text of the document.
    pub fn decompress(&self) -> Vec<u8> {
        decompress(&self.gzip)
    }

    /// Decompresses and parses the document.
    pub fn decode(&self) -> Value {
        serde_json::from_slice(&self.decompress()).expect("the text is that of a JSON value")
    }
}

impl fmt::Debug for CompressedJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompressedJson").field("size", &self.size()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_are_restored_and_smaller() {
        let property = json!({"type": "string", "description": "The name of the issuer. ".repeat(20)});
        let document = json!({"properties": (0..50).map(|nth| (format!("field{nth}"), property.clone()))
            .collect::<serde_json::Map<_, _>>()});
        let text = document.to_string();
        let compressed = CompressedJson::from_text(&text);
        assert_eq!((compressed.decode(), compressed.decompress()), (document, text.clone().into_bytes()));
        assert_eq!(compressed.hash(), &content_hash(&text));
        assert!(compressed.size() * 10 < text.len(), "{} of {} bytes", compressed.size(), text.len());
    }
}
