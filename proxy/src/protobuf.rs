//! Kubernetes' protobuf encoding, as far as updates need it: metadata is changed, all other bytes are kept.
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
const LENGTH: u64 = 2;

/// The resourceVersion of an object; None if the bytes are not an object.
pub fn version(body: &[u8]) -> Option<String> {
    let metadata = inside(inside(body.strip_prefix(MAGIC)?, RAW)?, METADATA)?;
    let version = fields(metadata)?.into_iter().rev().find(|field| field.number == RESOURCE_VERSION);
    Some(version.and_then(|field| field.inside).map(text).unwrap_or_default())
}

/// The object with another resourceVersion (empty: none) and without an annotation.
pub fn mend(body: &[u8], version: &str, annotation: &str) -> Option<Vec<u8>> {
    let metadata = |metadata: &[u8]| {
        let mut out = Vec::with_capacity(metadata.len());
        for field in fields(metadata)? {
            let dropped = match (field.number, field.inside) {
                (RESOURCE_VERSION, _) => true,
                (ANNOTATION, Some(entry)) => inside(entry, KEY) == Some(annotation.as_bytes()),
                _ => false,
            };
            if !dropped {
                out.extend_from_slice(field.whole);
            }
        }
        if !version.is_empty() {
            put(RESOURCE_VERSION, version.as_bytes(), &mut out);
        }
        Some(out)
    };
    let mended = within(body.strip_prefix(MAGIC)?, RAW, |object| within(object, METADATA, metadata))?;
    Some([MAGIC, &mended].concat())
}

/// A field: its complete bytes, and its content if it is length-delimited.
struct Field<'b> {
    number: u64,
    whole: &'b [u8],
    inside: Option<&'b [u8]>,
}

/// All fields of a message; None if the bytes are invalid.
fn fields(mut bytes: &[u8]) -> Option<Vec<Field<'_>>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let start = bytes;
        let tag = varint(&mut bytes)?;
        let inside = match tag & 7 {
            0 => varint(&mut bytes).map(|_| None)?,
            1 => bytes.split_off(..8).map(|_| None)?,
            LENGTH => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                Some(bytes.split_off(..length)?)
            }
            5 => bytes.split_off(..4).map(|_| None)?,
            _ => return None,
        };
        found.push(Field { number: tag >> 3, whole: &start[..start.len() - bytes.len()], inside });
    }
    Some(found)
}

/// Content of a field of a message.
fn inside(message: &[u8], number: u64) -> Option<&[u8]> {
    fields(message)?.into_iter().rev().find(|field| field.number == number)?.inside
}

/// Replaces the content of a field; None if the message does not have the field.
fn within(message: &[u8], number: u64, change: impl FnOnce(&[u8]) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
    let changed = change(inside(message, number)?)?;
    let mut out = Vec::with_capacity(message.len());
    for field in fields(message)?.into_iter().filter(|field| field.number != number) {
        out.extend_from_slice(field.whole);
    }
    put(number, &changed, &mut out);
    Some(out)
}

fn put(number: u64, inside: &[u8], out: &mut Vec<u8>) {
    for mut value in [number << 3 | LENGTH, inside.len() as u64] {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }
    out.extend_from_slice(inside);
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
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
        fields.iter().for_each(|(number, inside)| put(*number, inside, &mut out));
        out
    }

    /// A ConfigMap as client-go sends it.
    fn config_map(version: &str) -> Vec<u8> {
        let annotation = |key: &str| message(&[(1, key.as_bytes()), (2, b"m1")]);
        let (ours, other) = (annotation("ours"), annotation("other"));
        let mut metadata = message(&[(1, b"name"), (3, b"default"), (12, &other)]);
        // `generation`, a number.
        metadata.extend_from_slice(&[7 << 3, 0x96, 0x01]);
        metadata.extend(message(&[(12, &ours), (6, version.as_bytes())]));
        let long = [b'x'; 300];
        let object = message(&[(2, &long), (1, &metadata)]);
        let kind = message(&[(1, b"v1"), (2, b"ConfigMap")]);
        [MAGIC, &message(&[(1, &kind), (2, &object)])].concat()
    }

    #[rstest::rstest]
    #[case::as_the_member_knows_it("7")]
    #[case::without_a_version("")]
    fn metadata_is_changed_and_the_rest_is_kept(#[case] wanted: &str) {
        let sent = config_map("composite");
        assert_eq!(version(&sent).as_deref(), Some("composite"));
        let mended = mend(&sent, wanted, "ours").unwrap();
        assert_eq!(version(&mended).as_deref(), Some(wanted));
        let object = inside(&mended[MAGIC.len()..], RAW).unwrap();
        assert_eq!(inside(object, 2), Some(&[b'x'; 300][..]));
        let metadata = inside(object, METADATA).unwrap();
        let annotations: Vec<_> = fields(metadata).unwrap().into_iter().filter(|f| f.number == ANNOTATION).collect();
        assert_eq!(annotations.len(), 1);
        assert_eq!(inside(annotations[0].inside.unwrap(), KEY), Some(&b"other"[..]));
        assert!(fields(metadata).unwrap().iter().any(|f| f.whole == [7 << 3, 0x96, 0x01]));
    }

    #[rstest::rstest]
    #[case::json(b"{}")]
    #[case::nothing(b"k8s\0")]
    #[case::cut_off(b"k8s\0\x12\x7f")]
    #[case::groups(b"k8s\0\x0b")]
    fn invalid_messages_are_left_to_the_member(#[case] body: &[u8]) {
        assert_eq!(version(body), None);
        assert_eq!(mend(body, "1", "ours"), None);
    }
}
