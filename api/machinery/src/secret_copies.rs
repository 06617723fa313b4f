//! Copies of withheld values in annotations, which must not be stored or shown (docs/ARCHITECTURE.md, "Invariants").
//!
//! Tools that apply objects store the last applied configuration in an annotation of the object, each under its own
//! key: as JSON or YAML, compressed and encoded, or as a diff. Not all of these tools are known, so annotations are
//! selected by their values: an object with withheld values keeps only annotations of plain text. An annotation is
//! removed if its value is structured, compressed or encoded, if it has a key `data`, `stringData` or `binaryData`, or
//! if it contains one of the object's own values.
//!
//! The functions of this module read each value a constant number of times and never decompress it.

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;

/// Prefixes of annotation keys whose values are copies of objects.
const COPY_KEY_PREFIXES: [&str; 4] =
    ["kapp.k14s.io/original", "objectset.rio.cattle.io/applied", "banzaicloud.com/last-applied", "helm.sh/release"];
/// Parts of the annotation keys of kubectl, Karmada, Argo CD, Config Sync, kpt and others, which have different prefixes.
const COPY_KEY_PARTS: [&str; 3] = ["last-applied", "lastapplied", "original-"];

/// Maximum total size of all annotations of an object, in bytes.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;
/// Longer words are treated as encoded; hexadecimal digests are shorter.
const MAX_PLAIN_WORD_BYTES: usize = 128;
/// Shorter words are not decoded, because no encoded object is that short.
const MIN_ENCODED_BYTES: usize = 12;
/// Maximum depth of nested encodings.
const MAX_DEPTH: usize = 3;
/// Shorter values of the object are not searched for in annotations, because they may occur by chance.
const MIN_VALUE_BYTES: usize = 6;
/// Shorter values of the object are searched for as whole words only, others within words too.
const MIN_PART_OF_WORD_BYTES: usize = 8;

/// First bytes of compressed data: gzip, zlib, zstd, bzip2, xz.
const COMPRESSION_MAGIC: [&[u8]; 7] =
    [b"\x1f\x8b", b"\x78\x01", b"\x78\x9c", b"\x78\xda", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ"];

/// Accepts text without padding and with trailing bits.
const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// True if an object with withheld values may keep this annotation. `values` contains the withheld values that are known.
pub fn is_harmless(key: &str, value: &str, values: &[Vec<u8>]) -> bool {
    let key = key.to_ascii_lowercase();
    let is_copy = COPY_KEY_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
        || COPY_KEY_PARTS.iter().any(|part| key.contains(part));
    !is_copy
        && is_plain(value, MAX_DEPTH)
        && !values.iter().any(|secret_value| contains_value(secret_value, value.as_bytes()))
}

/// Removes annotations with copies of a Secret's values. Call it before the values are removed.
pub fn remove_copies(secret: &mut Value) {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let values: Vec<Vec<u8>> = ["data", "stringData"]
        .into_iter()
        .flat_map(|field| {
            secret.get(field).and_then(Value::as_object).into_iter().flatten().map(move |entry| (field, entry))
        })
        .filter_map(|(field, (_, value))| Some(secret_values(field, &text(value)?, MAX_ANNOTATION_BYTES)))
        .flatten()
        .collect();
    if let Some(annotations) = secret.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, value| text(value).is_some_and(|value| is_harmless(key, &value, &values)));
    }
}

/// True if the value of an annotation contains a serialized Secret with its values. The annotated object may have any kind.
pub fn contains_secret(value: &str) -> bool {
    let mut kinds = value.split("kind").skip(1).filter_map(first_word);
    kinds.any(|word| matches!(word, "Secret" | "SecretList")) && has_data_key(value)
}

/// The first word of a text, after any number of quotes, backslashes, colons and blanks.
fn first_word(text: &str) -> Option<&str> {
    let rest = text.trim_start_matches(['"', '\'', '\\', ':', ' ']);
    rest.split(|c: char| !c.is_ascii_alphanumeric()).next()
}

/// True if the text is not structured and contains no encoded structured text, up to `max_depth` encodings deep.
fn is_plain(value: &str, max_depth: usize) -> bool {
    let value = value.trim();
    let is_structured = value.starts_with(['{', '[', '"', '\'', '|', '>', '%', '<', '!', '&'])
        || value.starts_with("---")
        || value.contains(['\n', '\r']);
    !is_structured && !has_data_key(value) && !words(value).any(|word| is_encoded(word, max_depth))
}

/// True if there is a key `data`, `stringData` or `binaryData`, with any quoting.
fn has_data_key(text: &str) -> bool {
    let is_key = |(at, name): (usize, &str)| {
        let before = text.get(..at).and_then(|before| before.bytes().next_back());
        let is_word_start = before.is_none_or(|byte| !byte.is_ascii_alphanumeric());
        let rest = text.get(at + name.len()..).unwrap_or_default();
        let after = rest.bytes().find(|byte| !matches!(byte, b'"' | b'\'' | b'\\' | b' '));
        // Also matches a part of a path, as in a JSON patch.
        is_word_start && matches!(after, Some(b':' | b'/' | b'.' | b'='))
    };
    ["data", "stringData", "binaryData"].iter().any(|name| text.match_indices(name).any(is_key))
}

/// Words of a text: runs of the characters that base64 and hexadecimal encodings use.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '-' | '_' | '=')))
        .filter(|w| !w.is_empty())
}

fn is_encoded(word: &str, max_depth: usize) -> bool {
    if word.len() > MAX_PLAIN_WORD_BYTES {
        return true;
    }
    if word.len() < MIN_ENCODED_BYTES {
        return false;
    }
    let is_copy = |bytes: Vec<u8>| {
        COMPRESSION_MAGIC.iter().any(|magic| bytes.starts_with(magic))
            || std::str::from_utf8(&bytes).is_ok_and(|text| max_depth == 0 || !is_plain(text, max_depth - 1))
    };
    let decoded = [STANDARD.decode(word).ok(), URL_SAFE.decode(word).ok(), decode_hexadecimal(word)];
    decoded.into_iter().flatten().any(is_copy)
}

fn decode_hexadecimal(word: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = word.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

/// True if a text contains a value of the object: as a word, or within a word if the value is long enough.
fn contains_value(value: &[u8], text: &[u8]) -> bool {
    if value.len() < MIN_VALUE_BYTES {
        return false;
    }
    memchr::memmem::find_iter(text, value).any(|at| {
        let before = at.checked_sub(1).and_then(|at| text.get(at));
        let is_boundary = |byte: Option<&u8>| byte.is_none_or(|byte| !byte.is_ascii_alphanumeric());
        value.len() >= MIN_PART_OF_WORD_BYTES || is_boundary(before) && is_boundary(text.get(at + value.len()))
    })
}

/// Returns a value of a Secret's `data` or `stringData` in its stored and, for `data`, its decoded form. Forms longer
/// than `max_bytes` are omitted.
pub fn secret_values(field: &str, value: &str, max_bytes: usize) -> Vec<Vec<u8>> {
    let mut values = Vec::new();
    if value.len() <= max_bytes {
        values.push(value.as_bytes().to_vec());
    }
    if field == "data"
        && value.len() / 4 * 3 <= max_bytes + 3
        && let Ok(decoded) = STANDARD.decode(value)
    {
        values.push(decoded.trim_ascii().to_vec());
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn encode(text: &[u8]) -> String {
        base64::engine::general_purpose::STANDARD.encode(text)
    }

    #[rstest]
    #[case::flag("reflector.v1.k8s.emberstack.com/reflection-allowed", "true")]
    #[case::names("cert-manager.io/alt-names", "a.example.com,b.example.com")]
    #[case::issuer("cert-manager.io/issuer-name", "letsencrypt-prod")]
    #[case::release("meta.helm.sh/release-name", "shop")]
    #[case::account("kubernetes.io/service-account.uid", "1f7a1c86-9f1c-4d39-9a0c-0b7a3b1e0e3c")]
    #[case::digest("checksum/config", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
    #[case::path("argocd.argoproj.io/tracking-id", "shop:/Secret:shop/db")]
    #[case::time("example.com/rotated-at", "2026-01-01T00:00:00Z")]
    #[case::sentence("example.com/note", "metadata of the team: ask ops")]
    #[case::empty("example.com/empty", "")]
    fn plain_text_is_kept(#[case] key: &str, #[case] value: &str) {
        assert!(is_harmless(key, value, &[b"hunter2".to_vec()]));
    }

    #[rstest]
    #[case::kubectl("kubectl.kubernetes.io/last-applied-configuration", "x")]
    #[case::kapp("kapp.k14s.io/original", "x")]
    #[case::kapp_difference("kapp.k14s.io/original-diff-md5", "58e0494c51d30eb3494f7c9198986bb9")]
    #[case::rancher("objectset.rio.cattle.io/applied", "x")]
    #[case::banzai("banzaicloud.com/last-applied", "x")]
    #[case::karmada("resource.karmada.io/last-applied-template", "x")]
    #[case::json("a.b/c", r#" {"a":1}"#)]
    #[case::list("a.b/c", r#"[{"op":"replace","path":"/data/p","value":"eA=="}]"#)]
    #[case::json_in_json("a.b/c", r#""{\"data\":{\"p\":\"eA==\"}}""#)]
    #[case::yaml("a.b/c", "apiVersion: v1\nkind: Secret")]
    #[case::yaml_in_a_line("a.b/c", "stringData: {p: x}")]
    #[case::yaml_in_a_line_with_a_space("a.b/c", "data : {p: x}")]
    #[case::document("a.b/c", "--- # applied\n")]
    #[case::path("a.b/c", "set /data/p to x")]
    #[case::own_value("a.b/c", "the password is hunter2, really")]
    #[case::encoded("a.b/c", &encode(br#"{"data":{"p":"eA=="}}"#))]
    #[case::encoded_twice("a.b/c", &encode(encode(br#"{"data":{"p":"eA=="}}"#).as_bytes()))]
    #[case::encoded_yaml("a.b/c", &encode(b"kind: Secret\ndata: {}"))]
    #[case::with_a_prefix("a.b/c", &format!("v1 {}", encode(br#"{"data":{"p":"eA=="}}"#)))]
    #[case::compressed("a.b/c", &encode(b"\x1f\x8b\x08\0\0\0\0\0\0\0"))]
    #[case::compressed_twice("a.b/c", &encode(encode(b"\x1f\x8b\x08\0\0\0\0\0\0\0").as_bytes()))]
    #[case::zstd("a.b/c", &encode(b"\x28\xb5\x2f\xfd\x04\x58\x61\0\0\0\0\0"))]
    #[case::hexadecimal("a.b/c", "7b2264617461223a7b7d7d")]
    #[case::escaped("a.b/c", "%7B%22data%22%3A%7B%7D%7D")]
    #[case::long("a.b/c", &"A".repeat(MAX_PLAIN_WORD_BYTES + 1))]
    fn copies_are_removed(#[case] key: &str, #[case] value: &str) {
        assert!(!is_harmless(key, value, &[b"hunter2".to_vec()]), "{value}");
    }

    #[rstest]
    #[case::json(r#"{"kind":"Secret","apiVersion":"v1","data":{"p":"eA=="}}"#, true)]
    #[case::escaped(r#"{"manifests":[{\"kind\": \"Secret\", \"stringData\": {\"p\":\"x\"}}]}"#, true)]
    #[case::yaml("apiVersion: v1\nkind: Secret\ndata:\n  p: eA==\n", true)]
    #[case::list(r#"{"kind":"SecretList","items":[{"data":{"p":"eA=="}}]}"#, true)]
    #[case::reference(r#"{"kind":"Issuer","spec":{"ca":{"kind":"Secret","name":"ca"}}}"#, false)]
    #[case::store(r#"{"kind":"ExternalSecret","spec":{"secretStoreRef":{"kind":"SecretStore"},"data":[]}}"#, false)]
    #[case::config_map(r#"{"kind":"ConfigMap","data":{"a":"Secret"}}"#, false)]
    fn secrets_are_found_in_annotations_of_other_objects(#[case] value: &str, #[case] expected: bool) {
        assert_eq!(contains_secret(value), expected);
    }

    #[test]
    fn only_values_that_fit_are_compared() {
        assert_eq!(secret_values("data", "aHVudGVyMg==", 100), [b"aHVudGVyMg==".to_vec(), b"hunter2".to_vec()]);
        assert_eq!(secret_values("stringData", "hunter2", 100), [b"hunter2".to_vec()]);
        assert!(secret_values("data", &"A".repeat(1000), 100).is_empty());
    }

    #[test]
    fn copies_of_a_secret_are_removed_from_its_annotations() {
        let mut secret = serde_json::json!({"data": {"p": "aHVudGVyMg=="}, "stringData": {"q": "second-one"}, "metadata": {
            "name": "s", "annotations": {"team": "a", "x": "hunter2", "y": "is second-one", "z": "{}"}}});
        remove_copies(&mut secret);
        assert_eq!(secret["metadata"]["annotations"], serde_json::json!({"team": "a"}));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

        /// A copy of an object is detected up to the maximum depth of encodings.
        #[test]
        fn encoded_objects_are_removed(password in "[a-zA-Z0-9]{8,40}", times in 0_usize..=MAX_DEPTH, field in "data|stringData") {
            let mut value = format!("{{\"{field}\":{{\"p\":\"{password}\"}}}}");
            for _ in 0..times {
                value = encode(value.as_bytes());
            }
            prop_assert!(!is_harmless("a.b/c", &value, &[]), "{}", value);
        }

        #[test]
        fn no_input_causes_a_panic(key in "\\PC{0,40}", value in "\\PC{0,400}", secret in prop::collection::vec(any::<u8>(), 0..20)) {
            is_harmless(&key, &value, &[secret]);
            contains_secret(&value);
        }
    }
}
