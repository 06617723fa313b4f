//! Distinguished encoding rules (X.690), limited to what a subject contains.
//!
//! x509-parser ignores bytes after the last element that it understands in a SEQUENCE or SET. A subject must not have a
//! part that one parser skips and another one reads. This parser therefore accounts for every byte.

pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(super) const UTF8_STRING: u8 = 0x0c;
pub(super) const NUMERIC_STRING: u8 = 0x12;
pub(super) const PRINTABLE_STRING: u8 = 0x13;
pub(super) const T61_STRING: u8 = 0x14;
pub(super) const IA5_STRING: u8 = 0x16;
pub(super) const BMP_STRING: u8 = 0x1e;

/// Bits of a tag that continues in further bytes; no element of a subject needs one.
const LONG_TAG: u8 = 0x1f;

/// One element: tag and content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
}

impl<'a> Element<'a> {
    /// Splits off the first element. `None` unless its length is definite and minimally encoded.
    fn split(input: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (&tag, rest) = input.split_first()?;
        let (&first, rest) = rest.split_first()?;
        if tag & LONG_TAG == LONG_TAG {
            return None;
        }
        let (length, rest) = if first < 0x80 {
            (usize::from(first), rest)
        } else {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            if bytes.is_empty() || bytes.len() > 3 || bytes[0] == 0 {
                return None;
            }
            let length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            if length < 0x80 {
                return None;
            }
            (length, rest)
        };
        let (content, rest) = rest.split_at_checked(length)?;
        Some((Self { tag, content }, rest))
    }

    /// The content of the only element of `input`, which must have this tag.
    pub(super) fn only(input: &'a [u8], tag: u8) -> Option<&'a [u8]> {
        match Self::split(input)? {
            (element, []) if element.tag == tag => Some(element.content),
            _ => None,
        }
    }

    /// All elements of `input`, which must end with the last one.
    pub(super) fn all(mut input: &'a [u8]) -> Option<Vec<Self>> {
        let mut elements = Vec::new();
        while !input.is_empty() {
            let (element, rest) = Self::split(input)?;
            elements.push(element);
            input = rest;
        }
        Some(elements)
    }
}

/// Encodes one element.
pub(super) fn encode(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut encoded = vec![tag];
    if let Ok(short @ 0..0x80) = u8::try_from(length) {
        encoded.push(short);
    } else {
        let bytes = length.to_be_bytes();
        let skipped = bytes.iter().take_while(|byte| **byte == 0).count();
        // A usize has eight bytes at most.
        encoded.push(0x80 | (bytes.len() - skipped) as u8);
        encoded.extend_from_slice(&bytes[skipped..]);
    }
    encoded.extend_from_slice(content);
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::empty(&[])]
    #[case::no_length(&[SEQUENCE])]
    #[case::too_short(&[SEQUENCE, 2, 0])]
    #[case::trailing(&[SEQUENCE, 0, 0])]
    #[case::indefinite(&[SEQUENCE, 0x80, 0, 0])]
    #[case::length_not_minimal(&[SEQUENCE, 0x81, 1, 0])]
    #[case::length_with_leading_zero(&[SEQUENCE, 0x82, 0, 0x80])]
    #[case::long_tag(&[0x3f, 0x81, 0])]
    #[case::other_tag(&[SET, 0])]
    fn other_encodings_are_refused(#[case] input: &[u8]) {
        assert_eq!(Element::only(input, SEQUENCE), None);
    }

    #[rstest]
    #[case(0)]
    #[case(0x7f)]
    #[case(0x80)]
    #[case(0xff)]
    #[case(0x100)]
    #[case(0x1_0000)]
    fn elements_of_any_length_are_read_back(#[case] length: usize) {
        let content = vec![7; length];
        let encoded = encode(UTF8_STRING, &content);
        assert_eq!(Element::only(&encoded, UTF8_STRING), Some(&*content));
        let two = [encoded.clone(), encoded].concat();
        assert_eq!(Element::all(&two).unwrap().len(), 2);
        assert!(Element::all(&two[..two.len() - 1]).is_none());
    }
}
