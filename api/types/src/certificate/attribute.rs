//! Attribute types that a subject may have, and the encodings of their values.

use super::der::{BMP_STRING, Element, IA5_STRING, NUMERIC_STRING, PRINTABLE_STRING, T61_STRING, UTF8_STRING, encode};

/// Attribute type, identified by the content of its OBJECT IDENTIFIER. DER has one encoding for each identifier.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AttributeType {
    pub(super) oid: &'static [u8],
    pub(super) name: &'static str,
    /// The encoding that RFC 5280 appendix A requires; `None` if it leaves a choice.
    encoding: Option<u8>,
}

/// Type whose values are a DirectoryString, a choice of string types.
const fn directory_string(oid: &'static [u8], name: &'static str) -> AttributeType {
    AttributeType { oid, name, encoding: None }
}

const fn printable(oid: &'static [u8], name: &'static str) -> AttributeType {
    AttributeType { oid, name, encoding: Some(PRINTABLE_STRING) }
}

const fn ia5(oid: &'static [u8], name: &'static str) -> AttributeType {
    AttributeType { oid, name, encoding: Some(IA5_STRING) }
}

/// User name.
pub(super) static COMMON_NAME: AttributeType = directory_string(&[0x55, 4, 3], "CN");
/// Group; a subject may have several.
pub(super) static ORGANIZATION: AttributeType = directory_string(&[0x55, 4, 10], "O");
/// UID of the user as kube-apiserver reads it: 1.3.6.1.4.1.57683.2 (KEP-5295 calls it `UserUID`).
pub(super) static KUBERNETES_UID: AttributeType =
    directory_string(&[0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2], "1.3.6.1.4.1.57683.2");

/// Descriptive attributes that certificate authorities add (RFC 5280 section 4.1.2.4, RFC 4519, PKCS #9). They are kept
/// in certificates and are never part of an identity.
static INFORMATIONAL: [AttributeType; 21] = [
    directory_string(&[0x55, 4, 4], "SN"),
    printable(&[0x55, 4, 5], "serialNumber"),
    printable(&[0x55, 4, 6], "C"),
    directory_string(&[0x55, 4, 7], "L"),
    directory_string(&[0x55, 4, 8], "ST"),
    directory_string(&[0x55, 4, 9], "street"),
    directory_string(&[0x55, 4, 11], "OU"),
    directory_string(&[0x55, 4, 12], "title"),
    directory_string(&[0x55, 4, 13], "description"),
    directory_string(&[0x55, 4, 15], "businessCategory"),
    directory_string(&[0x55, 4, 17], "postalCode"),
    directory_string(&[0x55, 4, 42], "GN"),
    directory_string(&[0x55, 4, 43], "initials"),
    directory_string(&[0x55, 4, 44], "generationQualifier"),
    printable(&[0x55, 4, 46], "dnQualifier"),
    directory_string(&[0x55, 4, 65], "pseudonym"),
    directory_string(&[0x55, 4, 97], "organizationIdentifier"),
    directory_string(&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1], "UID"),
    ia5(&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25], "DC"),
    ia5(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1], "emailAddress"),
    directory_string(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 2], "unstructuredName"),
];

/// The supported type with this OBJECT IDENTIFIER.
pub(super) fn find(oid: &[u8]) -> Option<&'static AttributeType> {
    let identity = [&COMMON_NAME, &ORGANIZATION, &KUBERNETES_UID];
    identity.into_iter().chain(&INFORMATIONAL).find(|kind| kind.oid == oid)
}

/// Decodes a value to text. `None` for other string types and for bytes that are invalid in their string type.
///
/// T.61 is limited to ASCII letters and digits. UCS-2 (BMPString) has no surrogate pairs. UniversalString is rejected,
/// as by Go's X.509 parser.
pub(super) fn decode(value: Element<'_>) -> Option<String> {
    let bytes = value.content;
    match value.tag {
        UTF8_STRING => std::str::from_utf8(bytes).ok().map(str::to_owned),
        PRINTABLE_STRING | NUMERIC_STRING | IA5_STRING | T61_STRING if bytes.is_ascii() => {
            std::str::from_utf8(bytes).ok().map(str::to_owned)
        }
        BMP_STRING if bytes.len().is_multiple_of(2) => {
            let units = bytes.chunks_exact(2).map(|unit| u16::from_be_bytes([unit[0], unit[1]]));
            units.map(|unit| char::from_u32(u32::from(unit))).collect()
        }
        _ => None,
    }
}

impl AttributeType {
    /// Encodes a value in the encoding that the type requires, else as PrintableString if its characters allow, else as
    /// UTF8String, as Go's X.509 package does.
    pub(super) fn encode(&self, value: &str) -> Vec<u8> {
        let tag = match self.encoding {
            Some(IA5_STRING) if value.is_ascii() => IA5_STRING,
            None | Some(PRINTABLE_STRING) if value.bytes().all(is_printable) => PRINTABLE_STRING,
            _ => UTF8_STRING,
        };
        encode(tag, value.as_bytes())
    }
}

/// Characters of a PrintableString (X.680 section 41.4).
fn is_printable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&byte)
}
