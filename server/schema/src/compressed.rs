//! Texts that are kept compressed until they are read: OpenAPI documents, and the schemas of custom resources. Large
//! parts of a schema are compressed separately, so that they can be copied into a compressed OpenAPI document.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::ops::Range;

use flate2::read::{DeflateDecoder, GzDecoder};
use flate2::write::GzEncoder;
use flate2::{Compress, Compression, Crc, FlushCompress};
use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// SHA-256 of a document's text.
pub type ContentHash = [u8; 32];

/// Minimum size in bytes of a property that is compressed separately: smaller ones compress better with the rest.
const MIN_PART_BYTES: usize = 4096;
/// Minimum free space in bytes of the output of deflate, so that a flush completes in few calls.
const MIN_OUTPUT_BYTES: usize = 1024;
/// Header of gzip data (RFC 1952): deflate, no flags, no time, fastest level, unknown operating system.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff];
/// An empty last block of deflate data (RFC 1951).
const LAST_BLOCK: &[u8] = &[0x03, 0x00];

/// Hash of a document's text.
fn content_hash(text: impl AsRef<[u8]>) -> ContentHash {
    Sha256::digest(text).into()
}

/// Compresses a text with gzip at the fastest level.
pub fn compress(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(text.len() / 8), Compression::fast());
    encoder.write_all(text).expect("a vector accepts every write");
    encoder.finish().expect("a vector accepts every write")
}

/// Decompresses the output of [`compress`] or [`GzipWriter`].
pub fn decompress(gzip: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(gzip.len() * 8);
    GzDecoder::new(gzip).read_to_end(&mut text).expect("the input is complete gzip data");
    text
}

/// Compresses a text to deflate blocks that refer to no other data and end at a byte boundary, without a last block.
fn deflate(text: &[u8]) -> Vec<u8> {
    let mut compress = Compress::new(Compression::fast(), false);
    let mut out = Vec::new();
    loop {
        out.reserve(text.len() / 8 + MIN_OUTPUT_BYTES);
        let consumed = usize::try_from(compress.total_in()).unwrap_or(text.len());
        compress.compress_vec(&text[consumed..], &mut out, FlushCompress::Sync).expect("deflate accepts every text");
        // A flush is complete when it leaves space in the output.
        if out.len() < out.capacity() {
            return out;
        }
    }
}

/// A text compressed with deflate that can be a part of any gzip data.
#[derive(Debug)]
pub struct DeflatedText {
    deflate: Box<[u8]>,
    /// Checksum and size of the text.
    crc: Crc,
}

impl DeflatedText {
    /// Compresses a text.
    pub fn new(text: &[u8]) -> Self {
        let mut crc = Crc::new();
        crc.update(text);
        Self { deflate: deflate(text).into(), crc }
    }

    /// Decompresses the text.
    pub fn inflate(&self) -> Vec<u8> {
        let blocks: &[u8] = &self.deflate;
        let mut text = Vec::with_capacity(usize::try_from(self.crc.amount()).unwrap_or_default());
        DeflateDecoder::new(blocks.chain(LAST_BLOCK)).read_to_end(&mut text).expect("the blocks are complete");
        text
    }
}

/// Writer of gzip data, to which compressed texts can be appended without compressing them again.
#[derive(Debug)]
pub struct GzipWriter {
    gzip: Vec<u8>,
    /// Text that is not compressed yet.
    text: Vec<u8>,
    crc: Crc,
}

impl Default for GzipWriter {
    fn default() -> Self {
        Self { gzip: GZIP_HEADER.to_vec(), text: Vec::new(), crc: Crc::new() }
    }
}

impl GzipWriter {
    /// Appends a compressed text.
    pub fn append(&mut self, part: &DeflatedText) {
        self.compress_text();
        self.gzip.extend_from_slice(&part.deflate);
        self.crc.combine(&part.crc);
    }

    /// The complete gzip data.
    pub fn finish(mut self) -> Vec<u8> {
        self.compress_text();
        self.gzip.extend_from_slice(LAST_BLOCK);
        self.gzip.extend_from_slice(&self.crc.sum().to_le_bytes());
        self.gzip.extend_from_slice(&self.crc.amount().to_le_bytes());
        self.gzip.shrink_to_fit();
        self.gzip
    }

    fn compress_text(&mut self) {
        if self.text.is_empty() {
            return;
        }
        self.crc.update(&self.text);
        self.gzip.extend_from_slice(&deflate(&self.text));
        self.text.clear();
    }
}

impl Write for GzipWriter {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.text.extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The text of a schema, and where it contains the members of `properties`.
pub struct SchemaText<'s> {
    text: Vec<u8>,
    members: Vec<Member<'s>>,
}

/// A member of `properties` in the text of a schema.
struct Member<'s> {
    name: &'s str,
    property: &'s Value,
    /// Name and property, without the comma between members.
    range: Range<usize>,
    /// The property alone.
    property_range: Range<usize>,
}

impl<'s> SchemaText<'s> {
    /// Serializes a schema.
    pub fn new(schema: &'s Value) -> Self {
        let (mut text, mut members) = (Vec::new(), Vec::new());
        let Value::Object(fields) = schema else {
            write_json(&mut text, schema);
            return Self { text, members };
        };
        write_object(&mut text, fields, |text, key, value, _| match value {
            Value::Object(properties) if key == "properties" => {
                write_object(text, properties, |text, name, property, start| {
                    let property_start = text.len();
                    write_json(text, property);
                    let (range, property_range) = (start..text.len(), property_start..text.len());
                    members.push(Member { name, property, range, property_range });
                });
            }
            value => write_json(text, value),
        });
        Self { text, members }
    }

    /// Hash of the text.
    pub fn hash(&self) -> ContentHash {
        content_hash(&self.text)
    }

    /// The text without the members for which `is_removed` is true.
    fn without(&self, is_removed: impl Fn(&Member<'s>) -> bool) -> Vec<u8> {
        let (Some(first), Some(last)) = (self.members.first(), self.members.last()) else { return self.text.clone() };
        let kept = self.members.iter().filter(|member| !is_removed(member));
        let kept: Vec<&[u8]> = kept.map(|member| &self.text[member.range.clone()]).collect();
        let kept = kept.join(&b',');
        [&self.text[..first.range.start], kept.as_slice(), &self.text[last.range.end..]].concat()
    }
}

/// Writes an object. `write_value` writes the value of a key; its last argument is the start of the key in the text.
fn write_object<'v>(
    text: &mut Vec<u8>,
    fields: &'v Map<String, Value>,
    mut write_value: impl FnMut(&mut Vec<u8>, &'v str, &'v Value, usize),
) {
    text.push(b'{');
    for (nth, (key, value)) in fields.iter().enumerate() {
        if nth > 0 {
            text.push(b',');
        }
        let start = text.len();
        write_json(text, key);
        text.push(b':');
        write_value(text, key, value, start);
    }
    text.push(b'}');
}

fn write_json(text: &mut Vec<u8>, value: &impl Serialize) {
    serde_json::to_writer(text, value).expect("a vector accepts every write");
}

/// A compressed schema with the hash of its text. Large properties that OpenAPI documents contain unchanged are
/// compressed separately.
pub struct CompressedSchema {
    hash: ContentHash,
    /// The schema without the properties in `parts`, as gzip data.
    rest: Box<[u8]>,
    /// Texts of properties by name.
    parts: BTreeMap<String, DeflatedText>,
}

impl CompressedSchema {
    /// Compresses the text of the schema, which has this hash. `is_copied` returns true for the name and schema of a
    /// property that OpenAPI documents contain unchanged.
    pub fn new(text: &SchemaText<'_>, hash: ContentHash, is_copied: impl Fn(&str, &Value) -> bool) -> Self {
        let is_large = |member: &Member<'_>| member.property_range.len() >= MIN_PART_BYTES;
        let is_part = |member: &Member<'_>| is_large(member) && is_copied(member.name, member.property);
        let parts = text
            .members
            .iter()
            .filter(|member| is_part(member))
            .map(|member| (member.name.to_owned(), DeflatedText::new(&text.text[member.property_range.clone()])));
        let parts: BTreeMap<String, DeflatedText> = parts.collect();
        let rest = text.without(|member| parts.contains_key(member.name));
        Self { hash, rest: compress(&rest).into(), parts }
    }

    /// Hash of the text.
    pub fn hash(&self) -> &ContentHash {
        &self.hash
    }

    /// Size of the compressed texts in bytes.
    pub fn size(&self) -> usize {
        self.rest.len() + self.parts.values().map(|part| part.deflate.len()).sum::<usize>()
    }

    /// The properties that are compressed separately, by name.
    pub fn parts(&self) -> &BTreeMap<String, DeflatedText> {
        &self.parts
    }

    /// Decompresses and parses the schema without the properties in [`CompressedSchema::parts`].
    pub fn decode_rest(&self) -> Value {
        parse(&decompress(&self.rest))
    }

    /// Decompresses and parses the schema.
    pub fn decode(&self) -> Value {
        let mut schema = self.decode_rest();
        if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
            properties.extend(self.parts.iter().map(|(name, part)| (name.clone(), parse(&part.inflate()))));
        }
        schema
    }
}

impl fmt::Debug for CompressedSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompressedSchema").field("size", &self.size()).finish_non_exhaustive()
    }
}

fn parse(text: &[u8]) -> Value {
    serde_json::from_slice(text).expect("the text is that of a JSON value")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// A schema of about `fields` times 500 bytes.
    fn property(fields: usize) -> Value {
        let field = json!({"type": "string", "description": "The name of the issuer. ".repeat(20)});
        json!({"type": "object", "properties": (0..fields).map(|nth| (format!("field{nth}"), field.clone()))
            .collect::<Map<_, _>>()})
    }

    fn compressed(schema: &Value) -> CompressedSchema {
        let is_copied = |name: &str, _: &Value| name != "metadata";
        let text = SchemaText::new(schema);
        CompressedSchema::new(&text, text.hash(), is_copied)
    }

    #[rstest]
    #[case::large_properties(json!({"type": "object", "properties": {
        "metadata": property(50), "spec": property(50), "status": property(100), "small": {"type": "string"}}}), &["spec", "status"])]
    #[case::small_properties(json!({"properties": {"spec": property(2)}, "required": ["spec"]}), &[])]
    #[case::mixed_sizes(json!({"properties": {"a": property(1), "b": property(50), "c \"d\"": property(50), "e": {}}}), &["b", "c \"d\""])]
    #[case::empty_properties(json!({"properties": {}, "type": "object"}), &[])]
    #[case::no_properties(json!({"type": "object", "additionalProperties": property(50)}), &[])]
    #[case::wrong_properties(json!({"properties": [property(50)]}), &[])]
    #[case::not_an_object(json!(true), &[])]
    fn schemas_are_restored(#[case] schema: Value, #[case] parts: &[&str]) {
        let compressed = compressed(&schema);
        assert_eq!(compressed.decode(), schema);
        assert_eq!(compressed.hash(), &content_hash(schema.to_string()));
        assert_eq!(compressed.parts().keys().collect::<Vec<_>>(), parts);
        let mut rest = schema.clone();
        for (name, part) in compressed.parts() {
            assert_eq!(part.inflate(), schema["properties"][name].to_string().into_bytes());
            rest["properties"].as_object_mut().unwrap().remove(name);
        }
        assert_eq!(compressed.decode_rest(), rest);
    }

    #[test]
    fn compressed_schemas_are_smaller() {
        let schema = json!({"properties": {"spec": property(50), "metadata": property(50)}});
        let (size, text) = (compressed(&schema).size(), schema.to_string());
        assert!(size * 10 < text.len(), "{size} of {} bytes", text.len());
    }

    /// Bytes that do not compress.
    fn noise(length: usize) -> Vec<u8> {
        let hashes = (0..length.div_ceil(32)).flat_map(|nth| Sha256::digest(nth.to_le_bytes()));
        hashes.take(length).collect()
    }

    #[rstest]
    #[case::nothing(vec![])]
    #[case::text(vec![(vec![b'x'; 20], false)])]
    #[case::part(vec![(vec![b'x'; 20], true)])]
    #[case::empty_parts(vec![(vec![], true), (vec![], true), (vec![b'x'], false), (vec![], true)])]
    #[case::repeated_text(vec![(vec![b'x'; 100_000], true), (vec![b'x'; 100_000], true), (vec![b'x'; 100_000], false)])]
    #[case::mixed(vec![(b"{\"a\":".to_vec(), false), (noise(300_000), true), (b",\"b\":".to_vec(), false),
        (noise(70_000), true), (noise(1), true), (noise(200_000), false)])]
    fn gzip_data_contains_texts_and_parts(#[case] pieces: Vec<(Vec<u8>, bool)>) {
        let mut writer = GzipWriter::default();
        let mut expected = Vec::new();
        for (piece, is_part) in pieces {
            expected.extend_from_slice(&piece);
            match is_part {
                true => writer.append(&DeflatedText::new(&piece)),
                false => writer.write_all(&piece).unwrap(),
            }
        }
        let gzip = writer.finish();
        // Decompression verifies the checksum at the end.
        assert!(decompress(&gzip) == expected);
        assert_eq!(gzip[gzip.len() - 4..], u32::try_from(expected.len()).unwrap().to_le_bytes());
    }

    #[test]
    fn blocks_of_every_size_are_complete() {
        for length in (0..600).chain([MIN_OUTPUT_BYTES * 8, 65_535, 65_536, 131_072, 1_000_003]) {
            let text = noise(length);
            assert!(DeflatedText::new(&text).inflate() == text, "{length}");
        }
    }
}
