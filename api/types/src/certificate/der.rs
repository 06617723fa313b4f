//! Distinguished Encoding Rules (DER, X.690), limited to the elements of a certificate's subject.
//!
//! x509-parser ignores bytes after the last element that it understands in a SEQUENCE or SET. A subject must not have a
//! part that one parser skips and another one reads. This parser therefore rejects input with unparsed bytes.

pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(super) const UTF8_STRING: u8 = 0x0c;
pub(super) const NUMERIC_STRING: u8 = 0x12;
pub(super) const PRINTABLE_STRING: u8 = 0x13;
pub(super) const T61_STRING: u8 = 0x14;
pub(super) const IA5_STRING: u8 = 0x16;
pub(super) const BMP_STRING: u8 = 0x1e;

/// Mask of the tag number. If all of its bits are set, the tag number follows in further bytes (X.690, 8.1.2.4), which no
/// element of a subject needs.
const HIGH_TAG_NUMBER: u8 = 0x1f;

/// A DER element: tag and content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
}

impl<'a> Element<'a> {
    /// Splits off the first element. `None` if it is truncated, has a tag of several bytes, or a length that is indefinite,
    /// not minimally encoded or longer than three bytes.
    fn split_first(input: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (&tag, rest) = input.split_first()?;
        let (&length_byte, rest) = rest.split_first()?;
        if tag & HIGH_TAG_NUMBER == HIGH_TAG_NUMBER {
            return None;
        }
        let (length, rest) = if length_byte < 0x80 {
            (usize::from(length_byte), rest)
        } else {
            let (bytes, rest) = rest.split_at_checked(usize::from(length_byte & 0x7f))?;
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

    /// Parses `input` as a single element with this tag; returns its content.
    pub(super) fn parse_single(input: &'a [u8], tag: u8) -> Option<&'a [u8]> {
        match Self::split_first(input)? {
            (element, []) if element.tag == tag => Some(element.content),
            _ => None,
        }
    }

    /// Parses `input` as elements without trailing bytes.
    pub(super) fn parse_all(mut input: &'a [u8]) -> Option<Vec<Self>> {
        let mut elements = Vec::new();
        while !input.is_empty() {
            let (element, rest) = Self::split_first(input)?;
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
        let leading_zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        // A usize has eight bytes at most.
        encoded.push(0x80 | (bytes.len() - leading_zeros) as u8);
        encoded.extend_from_slice(&bytes[leading_zeros..]);
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
    #[case::truncated_content(&[SEQUENCE, 2, 0])]
    #[case::trailing_bytes(&[SEQUENCE, 0, 0])]
    #[case::indefinite_length(&[SEQUENCE, 0x80, 0, 0])]
    #[case::length_not_minimal(&[SEQUENCE, 0x81, 1, 0])]
    #[case::length_with_leading_zero(&[SEQUENCE, 0x82, 0, 0x80])]
    #[case::high_tag_number(&[0x3f, 0x81, 0])]
    #[case::other_tag(&[SET, 0])]
    fn invalid_encodings_are_rejected(#[case] input: &[u8]) {
        assert_eq!(Element::parse_single(input, SEQUENCE), None);
    }

    #[rstest]
    #[case(0)]
    #[case(0x7f)]
    #[case(0x80)]
    #[case(0xff)]
    #[case(0x100)]
    #[case(0x1_0000)]
    fn encoded_elements_of_any_length_are_parsed(#[case] length: usize) {
        let content = vec![7; length];
        let encoded = encode(UTF8_STRING, &content);
        assert_eq!(Element::parse_single(&encoded, UTF8_STRING), Some(&*content));
        let two = [encoded.clone(), encoded].concat();
        assert_eq!(Element::parse_all(&two).unwrap().len(), 2);
        assert!(Element::parse_all(&two[..two.len() - 1]).is_none());
    }
}
