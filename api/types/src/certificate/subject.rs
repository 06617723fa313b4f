//! Subject of a client certificate or of a certificate signing request, parsed strictly.

use super::attribute::{self, AttributeType, COMMON_NAME, KUBERNETES_UID, ORGANIZATION};
use super::der::{Element, OBJECT_IDENTIFIER, SEQUENCE, SET, encode};
use crowsnest_apimachinery::user::UserInfo;

/// Attributes of a subject in their order: at most one common name (the user), organizations (the groups), at most one
/// Kubernetes UID, and descriptive attributes that are not part of the identity.
///
/// Does not keep the raw encoding: a certificate made from this value contains only what was parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateSubject {
    attributes: Vec<(&'static AttributeType, String)>,
}

/// Reason why a subject is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    #[error("the certificate subject is not a distinguished name in DER")]
    Malformed,
    #[error("the certificate subject has an attribute of the unknown type {0}")]
    UnknownAttribute(String),
    #[error("the attribute {0} of the certificate subject is not a string of a supported encoding")]
    Encoding(&'static str),
    #[error("the attribute {0} of the certificate subject is empty")]
    Empty(&'static str),
    #[error("the attribute {0} of the certificate subject has a control character")]
    ControlCharacter(&'static str),
    #[error("the attribute {0} of the certificate subject begins or ends with white space")]
    Padded(&'static str),
    #[error("the certificate subject has more than one {0}")]
    Repeated(&'static str),
}

impl CertificateSubject {
    /// Parses an X.501 `Name` in DER. Attributes keep the order of their encoding, even if several share a relative
    /// distinguished name.
    pub fn from_der(name: &[u8]) -> Result<Self, SubjectError> {
        let mut subject = Self::default();
        let names =
            Element::parse_single(name, SEQUENCE).and_then(Element::parse_all).ok_or(SubjectError::Malformed)?;
        for relative_name in names {
            let attributes = (relative_name.tag == SET).then(|| Element::parse_all(relative_name.content)).flatten();
            let attributes = attributes.filter(|attributes| !attributes.is_empty()).ok_or(SubjectError::Malformed)?;
            for attribute in attributes {
                let (oid, value) = type_and_value(attribute).ok_or(SubjectError::Malformed)?;
                let kind = attribute::find(oid).ok_or_else(|| SubjectError::UnknownAttribute(format_oid(oid)))?;
                let value = attribute::decode(value).ok_or(SubjectError::Encoding(kind.name))?;
                subject.push(kind, value)?;
            }
        }
        Ok(subject)
    }

    /// The subject for a user and its groups.
    pub fn from_user(name: &str, groups: &[String]) -> Result<Self, SubjectError> {
        let mut subject = Self::default();
        subject.push(&COMMON_NAME, name.to_owned())?;
        for group in groups {
            subject.push(&ORGANIZATION, group.clone())?;
        }
        Ok(subject)
    }

    fn push(&mut self, kind: &'static AttributeType, value: String) -> Result<(), SubjectError> {
        if value.is_empty() {
            return Err(SubjectError::Empty(kind.name));
        }
        if value.chars().any(char::is_control) {
            return Err(SubjectError::ControlCharacter(kind.name));
        }
        // Identities are forwarded in HTTP headers, and the recipient of a header trims its value.
        if value.trim() != value {
            return Err(SubjectError::Padded(kind.name));
        }
        let is_single = kind == &COMMON_NAME || kind == &KUBERNETES_UID;
        if is_single && self.values(kind).next().is_some() {
            return Err(SubjectError::Repeated(kind.name));
        }
        self.attributes.push((kind, value));
        Ok(())
    }

    fn values(&self, kind: &'static AttributeType) -> impl Iterator<Item = &str> {
        self.attributes
            .iter()
            .filter(move |(attribute_type, _)| *attribute_type == kind)
            .map(|(_, value)| value.as_str())
    }

    /// The user's name.
    pub fn common_name(&self) -> Option<&str> {
        self.values(&COMMON_NAME).next()
    }

    /// The user's groups.
    pub fn organizations(&self) -> Vec<&str> {
        self.values(&ORGANIZATION).collect()
    }

    /// The user's UID (1.3.6.1.4.1.57683.2).
    pub fn uid(&self) -> Option<&str> {
        self.values(&KUBERNETES_UID).next()
    }

    /// The user that a certificate with this subject authenticates, without extra fields; `None` without a common name.
    pub fn user(&self) -> Option<UserInfo> {
        let mut user = UserInfo::new(self.common_name()?, self.organizations());
        user.uid = self.uid().unwrap_or_default().to_owned();
        Some(user)
    }

    /// X.501 `Name` in DER with one attribute per relative distinguished name.
    pub fn to_der(&self) -> Vec<u8> {
        let relative_name = |(kind, value): &(&'static AttributeType, String)| {
            let pair = [encode(OBJECT_IDENTIFIER, kind.oid), kind.encode(value)].concat();
            encode(SET, &encode(SEQUENCE, &pair))
        };
        encode(SEQUENCE, &self.attributes.iter().map(relative_name).collect::<Vec<_>>().concat())
    }
}

fn type_and_value(attribute: Element<'_>) -> Option<(&[u8], Element<'_>)> {
    let parts = (attribute.tag == SEQUENCE).then(|| Element::parse_all(attribute.content)).flatten()?;
    match parts.as_slice() {
        [kind, value] if kind.tag == OBJECT_IDENTIFIER => Some((kind.content, *value)),
        _ => None,
    }
}

/// An OBJECT IDENTIFIER in dotted notation, or its bytes in hexadecimal if it is not valid DER.
fn format_oid(oid: &[u8]) -> String {
    let mut arcs: Vec<u64> = Vec::new();
    let mut arc = 0u64;
    for byte in oid {
        let Some(shifted) = arc.checked_mul(128) else { return format!("{oid:02x?}") };
        arc = shifted | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            arcs.push(std::mem::take(&mut arc));
        }
    }
    let Some(first) = arcs.first().copied() else { return format!("{oid:02x?}") };
    let root = (first / 40).min(2);
    let rest = arcs[1..].iter().map(|arc| format!(".{arc}"));
    format!("{root}.{}{}", first - root * 40, rest.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    const CN: &[u8] = &[0x55, 4, 3];
    const O: &[u8] = &[0x55, 4, 10];
    const OU: &[u8] = &[0x55, 4, 11];
    const UTF8: u8 = 0x0c;
    const PRINTABLE: u8 = 0x13;
    const T61: u8 = 0x14;
    const UNIVERSAL: u8 = 0x1c;
    const BMP: u8 = 0x1e;
    const OCTETS: u8 = 0x04;

    fn attribute(oid: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        encode(SEQUENCE, &[encode(OBJECT_IDENTIFIER, oid), encode(tag, value)].concat())
    }

    /// A name with these attributes in each relative distinguished name.
    fn name(relative: &[&[Vec<u8>]]) -> Vec<u8> {
        encode(SEQUENCE, &relative.iter().map(|set| encode(SET, &set.concat())).collect::<Vec<_>>().concat())
    }

    fn text(oid: &[u8], value: &str) -> Vec<u8> {
        attribute(oid, UTF8, value.as_bytes())
    }

    #[rstest]
    #[case::utf8(UTF8, "zoë".as_bytes(), Some("zoë"))]
    #[case::not_utf8(UTF8, b"zo\xeb", None)]
    #[case::printable(PRINTABLE, b"ann", Some("ann"))]
    #[case::printable_as_written(PRINTABLE, b"*.example_com@x", Some("*.example_com@x"))]
    #[case::not_ascii(PRINTABLE, "zoë".as_bytes(), None)]
    #[case::numeric(0x12, b"17", Some("17"))]
    #[case::ia5(0x16, b"a@example.com", Some("a@example.com"))]
    #[case::t61(T61, b"ann", Some("ann"))]
    #[case::t61_accent(T61, b"zo\xc8e", None)]
    #[case::bmp(BMP, b"\0a\0n\0n", Some("ann"))]
    #[case::bmp_odd(BMP, b"\0a\0n\0", None)]
    #[case::bmp_surrogates(BMP, b"\xd8\x3d\xde\0", None)]
    #[case::universal(UNIVERSAL, b"\0\0\0a", None)]
    #[case::bytes(OCTETS, b"ann", None)]
    #[case::general(0x1b, b"ann", None)]
    #[case::constructed(0x2c, b"\x0c\x03ann", None)]
    fn values_are_decoded_by_their_string_type(#[case] tag: u8, #[case] value: &[u8], #[case] expected: Option<&str>) {
        let read = CertificateSubject::from_der(&name(&[&[attribute(CN, tag, value)]]));
        match expected {
            Some(expected) => assert_eq!(read.unwrap().common_name(), Some(expected)),
            None => assert_eq!(read, Err(SubjectError::Encoding("CN"))),
        }
    }

    #[rstest]
    #[case::two_names(name(&[&[text(CN, "a")], &[text(CN, "b")]]), SubjectError::Repeated("CN"))]
    #[case::two_names_in_one_set(name(&[&[text(CN, "a"), text(CN, "b")]]), SubjectError::Repeated("CN"))]
    #[case::one_name_twice(name(&[&[text(CN, "a")], &[text(O, "o")], &[text(CN, "a")]]), SubjectError::Repeated("CN"))]
    #[case::empty_name(name(&[&[text(CN, "")]]), SubjectError::Empty("CN"))]
    #[case::empty_group(name(&[&[text(CN, "a")], &[text(O, "")]]), SubjectError::Empty("O"))]
    #[case::empty_unit(name(&[&[text(CN, "a")], &[text(OU, "")]]), SubjectError::Empty("OU"))]
    #[case::padded_group(name(&[&[text(CN, "a")], &[text(O, " system:masters")]]), SubjectError::Padded("O"))]
    #[case::blank(name(&[&[text(CN, " ")]]), SubjectError::Padded("CN"))]
    #[case::nul(name(&[&[text(CN, "front-proxy-client\0x")]]), SubjectError::ControlCharacter("CN"))]
    #[case::line_break(name(&[&[text(CN, "a")], &[text(O, "o\nsystem:masters")]]), SubjectError::ControlCharacter("O"))]
    #[case::c1_control(name(&[&[text(CN, "a\u{85}")]]), SubjectError::ControlCharacter("CN"))]
    #[case::unknown(name(&[&[text(&[0x55, 4, 41], "ann")]]), SubjectError::UnknownAttribute("2.5.4.41".into()))]
    #[case::padded_type(name(&[&[text(&[0x55, 4, 0x80, 3], "a")]]), SubjectError::UnknownAttribute("2.5.4.3".into()))]
    #[case::no_relative_name(name(&[&[]]), SubjectError::Malformed)]
    #[case::no_name(Vec::new(), SubjectError::Malformed)]
    #[case::trailing([name(&[&[text(CN, "a")]]), vec![0]].concat(), SubjectError::Malformed)]
    #[case::attribute_without_value(name(&[&[encode(SEQUENCE, &encode(OBJECT_IDENTIFIER, CN))]]), SubjectError::Malformed)]
    #[case::two_values(
        name(&[&[encode(SEQUENCE, &[&encode(OBJECT_IDENTIFIER, CN)[..], &encode(UTF8, b"a"), &encode(UTF8, b"b")].concat())]]),
        SubjectError::Malformed
    )]
    #[case::trailing_byte_in_set(name(&[&[text(CN, "a"), vec![0x30]]]), SubjectError::Malformed)]
    fn invalid_subjects_are_rejected(#[case] name: Vec<u8>, #[case] expected: SubjectError) {
        assert_eq!(CertificateSubject::from_der(&name), Err(expected));
    }

    #[test]
    fn the_identity_has_name_organizations_and_uid() {
        let uid = [0x2b, 6, 1, 4, 1, 0x83, 0xc2, 0x53, 2];
        let user_id = [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1];
        let email = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1];
        let encoded = name(&[
            &[attribute(&[0x55, 4, 6], PRINTABLE, b"CH"), text(&[0x55, 4, 8], "Bern"), text(&[0x55, 4, 7], "Thun")],
            &[text(O, "dev"), text(OU, "system:masters")],
            &[attribute(O, BMP, b"\0o\0p\0s"), attribute(&[0x55, 4, 5], PRINTABLE, b"42")],
            &[text(&user_id, "root"), attribute(&email, 0x16, b"ann@example.com")],
            &[text(CN, "ann"), text(&uid, "u-1")],
        ]);
        let subject = CertificateSubject::from_der(&encoded).unwrap();
        let user = UserInfo { uid: "u-1".into(), ..UserInfo::new("ann", ["dev", "ops"]) };
        assert_eq!(subject.user(), Some(user));
        assert_eq!(CertificateSubject::from_der(&subject.to_der()), Ok(subject));
    }

    #[test]
    fn a_subject_without_common_name_has_no_user() {
        for encoded in [name(&[]), name(&[&[text(O, "system:masters")]])] {
            assert_eq!(CertificateSubject::from_der(&encoded).unwrap().user(), None);
        }
    }

    #[test]
    fn subjects_are_built_from_users() {
        let groups = ["dev".to_owned(), "équipe".to_owned()];
        let subject = CertificateSubject::from_user("ann", &groups).unwrap();
        assert_eq!(subject.organizations(), groups);
        assert_eq!(CertificateSubject::from_user("", &[]), Err(SubjectError::Empty("CN")));
    }

    proptest! {
        /// For any bytes: no panic, and a certificate made from the parsed subject has the same subject.
        #[test]
        fn any_bytes_are_parsed_or_rejected(tail in prop::collection::vec(any::<u8>(), 0..48), wrapped in any::<bool>()) {
            let encoded = match wrapped {
                true => encode(SEQUENCE, &encode(SET, &encode(SEQUENCE, &tail))),
                false => tail,
            };
            if let Ok(subject) = CertificateSubject::from_der(&encoded) {
                prop_assert_eq!(CertificateSubject::from_der(&subject.to_der()), Ok(subject));
            }
        }

        #[test]
        fn encoded_subjects_are_parsed_unchanged(
            name in "[^\\p{Cc}\\p{Z}]([^\\p{Cc}]{0,78}[^\\p{Cc}\\p{Z}])?",
            groups in prop::collection::vec("[^\\p{Cc}\\p{Z}]([^\\p{Cc}]{0,38}[^\\p{Cc}\\p{Z}])?", 0..5),
        ) {
            let subject = CertificateSubject::from_user(&name, &groups).unwrap();
            let read = CertificateSubject::from_der(&subject.to_der()).unwrap();
            prop_assert_eq!(read.user(), Some(UserInfo::new(name, groups)));
        }
    }
}
