//! Warnings for certificates in Secrets, with the messages of Go's `crypto/tls`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;

const PRIVATE_KEY: &str = "PRIVATE KEY";

/// The error of a certificate and a key that are invalid or do not match. `None` if they are valid.
pub(super) fn key_pair_error(data: &Value) -> Option<String> {
    let read = |key: &str| {
        let bytes = STANDARD.decode(data.get(key).and_then(Value::as_str).unwrap_or_default()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (certificate, key) = (read("tls.crt"), read("tls.key"));
    let types = pem_block_types(&certificate);
    if !types.contains(&"CERTIFICATE") {
        return Some(match types.as_slice() {
            [] => "tls: failed to find any PEM data in certificate input".into(),
            [only] if only.ends_with(PRIVATE_KEY) => "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched".into(),
            types => format!("tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]", types.join(" ")),
        });
    }
    let types = pem_block_types(&key);
    if !types.iter().any(|kind| *kind == PRIVATE_KEY || kind.ends_with(" PRIVATE KEY")) {
        return Some(match types.as_slice() {
            [] => "tls: failed to find any PEM data in key input".into(),
            ["CERTIFICATE"] => "tls: found a certificate rather than a key in the PEM for the private key".into(),
            types => format!(
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]",
                types.join(" ")
            ),
        });
    }
    mismatch_error(&certificate, &key)
}

/// Types of the PEM blocks in a text.
fn pem_block_types(pem: &str) -> Vec<&str> {
    let begins = pem.lines().filter_map(|line| line.trim_end().strip_prefix("-----BEGIN ")?.strip_suffix("-----"));
    begins.filter(|kind| pem.contains(&format!("-----END {kind}-----"))).collect()
}

fn mismatch_error(certificate: &str, key: &str) -> Option<String> {
    let first = CertificateDer::from_pem_slice(certificate.as_bytes()).ok();
    let first = first.as_ref().and_then(|der| x509_parser::parse_x509_certificate(der).ok());
    let Some((_, parsed)) = first else { return Some("x509: malformed certificate".into()) };
    // Keys of an unsupported type may still match.
    let key = rcgen::KeyPair::from_pem(key).ok()?;
    let public_key = rcgen::PublicKeyData::subject_public_key_info(&key);
    (parsed.tbs_certificate.subject_pki.raw != public_key).then(|| "tls: private key does not match public key".into())
}
