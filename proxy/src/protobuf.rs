//! The part of Kubernetes' protobuf encoding that updates need: metadata is rewritten, all other bytes are kept.
//!
//! The format is `k8s\0` followed by `runtime.Unknown`, whose `raw` is the object. Every object has its
//! `ObjectMeta` as field 1.

const MAGIC: &[u8] = b"k8s\0";
/// `runtime.Unknown.raw`
const RAW: u64 = 2;
/// `metadata` of any object.
const METADATA: u64 = 1;
/// `ObjectMeta.resourceVersion`
const RESOURCE_VERSION: u64 = 6;
/// `ObjectMeta.annotations`, one field per entry.
const ANNOTATION: u64 = 12;
/// `key` of a map entry.
const KEY: u64 = 1;
/// Wire type of length-delimited fields.
const LENGTH_DELIMITED: u64 = 2;

/// The resourceVersion of an object; None if the bytes are not an object.
pub fn version(body: &[u8]) -> Option<String> {
    let metadata = content_of(content_of(body.strip_prefix(MAGIC)?, RAW)?, METADATA)?;
    let version = fields(metadata)?.into_iter().rev().find(|field| field.number == RESOURCE_VERSION);
    Some(version.and_then(|field| field.content).map(text).unwrap_or_default())
}

/// The object with another resourceVersion (empty: none) and without an annotation.
pub fn rewrite_metadata(body: &[u8], version: &str, annotation: &str) -> Option<Vec<u8>> {
    let metadata = |metadata: &[u8]| {
        let mut out = Vec::with_capacity(metadata.len());
        for field in fields(metadata)? {
            let is_dropped = match (field.number, field.content) {
                (RESOURCE_VERSION, _) => true,
                (ANNOTATION, Some(entry)) => content_of(entry, KEY) == Some(annotation.as_bytes()),
                _ => false,
            };
            if !is_dropped {
                out.extend_from_slice(field.bytes);
            }
        }
        if !version.is_empty() {
            put_field(RESOURCE_VERSION, version.as_bytes(), &mut out);
        }
        Some(out)
    };
    let message =
        replace_content(body.strip_prefix(MAGIC)?, RAW, |object| replace_content(object, METADATA, metadata))?;
    Some([MAGIC, &message].concat())
}

/// A field: its complete bytes, and its content if it is length-delimited.
struct Field<'b> {
    number: u64,
    bytes: &'b [u8],
    content: Option<&'b [u8]>,
}

/// All fields of a message; None if the bytes are invalid.
fn fields(mut bytes: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let start = bytes;
        let tag = read_varint(&mut bytes)?;
        let content = match tag & 7 {
            0 => read_varint(&mut bytes).map(|_| None)?,
            1 => bytes.split_off(..8).map(|_| None)?,
            LENGTH_DELIMITED => {
                let length = usize::try_from(read_varint(&mut bytes)?).ok()?;
                Some(bytes.split_off(..length)?)
            }
            5 => bytes.split_off(..4).map(|_| None)?,
            _ => return None,
        };
        fields.push(Field { number: tag >> 3, bytes: &start[..start.len() - bytes.len()], content });
    }
    Some(fields)
}

/// Content of a field of a message.
fn content_of(message: &[u8], number: u64) -> Option<&[u8]> {
    fields(message)?.into_iter().rev().find(|field| field.number == number)?.content
}

/// Replaces the content of a field; None if the message does not have the field.
fn replace_content(message: &[u8], number: u64, change: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let changed = change(content_of(message, number)?)?;
    let mut out = Vec::with_capacity(message.len());
    for field in fields(message)?.into_iter().filter(|field| field.number != number) {
        out.extend_from_slice(field.bytes);
    }
    put_field(number, &changed, &mut out);
    Some(out)
}

fn put_field(number: u64, content: &[u8], out: &mut Vec<u8>) {
    for mut value in [number << 3 | LENGTH_DELIMITED, content.len() as u64] {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }
    out.extend_from_slice(content);
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message of length-delimited fields.
    fn message(fields: &[(u64, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        fields.iter().for_each(|(number, content)| put_field(*number, content, &mut out));
        out
    }

    /// A ConfigMap as client-go sends it.
    fn config_map(version: &str) -> Vec<u8> {
        let annotation = |key: &str| message(&[(1, key.as_bytes()), (2, b"m1")]);
        let (cluster_annotation, other_annotation) = (annotation("ours"), annotation("other"));
        let mut metadata = message(&[(1, b"name"), (3, b"default"), (12, &other_annotation)]);
        // `generation`, a number.
        metadata.extend_from_slice(&[7 << 3, 0x96, 0x01]);
        metadata.extend(message(&[(12, &cluster_annotation), (6, version.as_bytes())]));
        let long = [b'x'; 300];
        let object = message(&[(2, &long), (1, &metadata)]);
        let kind = message(&[(1, b"v1"), (2, b"ConfigMap")]);
        [MAGIC, &message(&[(1, &kind), (2, &object)])].concat()
    }

    #[rstest::rstest]
    #[case::version_of_the_member("7")]
    #[case::without_a_version("")]
    fn metadata_is_rewritten_and_the_rest_is_kept(#[case] new_version: &str) {
        let sent = config_map("composite");
        assert_eq!(version(&sent).as_deref(), Some("composite"));
        let rewritten = rewrite_metadata(&sent, new_version, "ours").unwrap();
        assert_eq!(version(&rewritten).as_deref(), Some(new_version));
        let object = content_of(&rewritten[MAGIC.len()..], RAW).unwrap();
        assert_eq!(content_of(object, 2), Some(&[b'x'; 300][..]));
        let metadata = content_of(object, METADATA).unwrap();
        let annotations: Vec<_> = fields(metadata).unwrap().into_iter().filter(|f| f.number == ANNOTATION).collect();
        assert_eq!(annotations.len(), 1);
        assert_eq!(content_of(annotations[0].content.unwrap(), KEY), Some(&b"other"[..]));
        assert!(fields(metadata).unwrap().iter().any(|f| f.bytes == [7 << 3, 0x96, 0x01]));
    }

    #[rstest::rstest]
    #[case::json(b"{}")]
    #[case::empty(b"k8s\0")]
    #[case::truncated(b"k8s\0\x12\x7f")]
    #[case::groups(b"k8s\0\x0b")]
    fn invalid_messages_are_not_rewritten(#[case] body: &[u8]) {
        assert_eq!(version(body), None);
        assert_eq!(rewrite_metadata(body, "1", "ours"), None);
    }
}
