//! Validation of updates of signing requests: approval and denial are final, and each subresource writes its own
//! fields.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use x509_parser::prelude::{FromDer, Pem, X509Certificate};

use super::difference::format_difference;
use super::{Errors, Value, at, cluster, items, json, text};

const CONDITIONS: &str = "status.conditions";
const CERTIFICATE: &str = "status.certificate";

fn conditions_of_type<'a>(object: &'a Value, kind: &str) -> Vec<&'a Value> {
    items(object, CONDITIONS).iter().filter(|condition| text(condition, "type") == kind).collect()
}

/// `validateCertificateSigningRequestUpdate` for `approval` and `status`.
pub(super) fn validate_update(e: &mut Errors, subresource: &str, old: &Value, new: &Value) {
    // Unchanged conditions are not validated, so existing invalid ones do not prevent updates.
    if at(old, CONDITIONS) != at(new, CONDITIONS) {
        cluster::validate_approval(e, new);
    }
    let changed = at(old, CERTIFICATE) != at(new, CERTIFICATE);
    if changed && let Some(reason) = certificate_error(text(new, CERTIFICATE)) {
        e.invalid(CERTIFICATE, &json!("<certificate data>"), reason);
    }
    for kind in ["Approved", "Denied", "Failed"] {
        if conditions_of_type(new, kind).len() < conditions_of_type(old, kind).len() {
            e.forbidden(CONDITIONS, &format!("updates may not remove a condition of type {kind:?}"));
        }
    }
    if subresource != "approval" {
        ["Approved", "Denied"].iter().for_each(|kind| validate_approval_condition(e, kind, old, new));
    }
    if changed && subresource != "status" {
        e.forbidden(CERTIFICATE, "updates may not set certificate content");
    } else if changed && !text(old, CERTIFICATE).is_empty() {
        e.forbidden(CERTIFICATE, "updates may not modify existing certificate content");
    }
}

/// Validates that a condition of approval or denial is unchanged; only the `approval` subresource can write it.
fn validate_approval_condition(e: &mut Errors, kind: &str, old: &Value, new: &Value) {
    let (before, after) = (conditions_of_type(old, kind), conditions_of_type(new, kind));
    if after.len() > before.len() {
        e.forbidden(CONDITIONS, &format!("updates may not add a condition of type {kind:?}"));
    } else if after.len() == before.len() && before != after {
        let difference =
            format_difference("[]certificates.CertificateSigningRequestCondition", &json!(before), &json!(after));
        e.forbidden(CONDITIONS, &format!("updates may not modify a condition of type {kind:?}\n{difference}"));
    }
}

/// The error of a certificate chain in base64; empty data is valid.
fn certificate_error(data: &str) -> Option<String> {
    if data.is_empty() {
        return None;
    }
    let bytes = STANDARD.decode(data).unwrap_or_default();
    let mut blocks = 0;
    for block in Pem::iter_from_buffer(&bytes) {
        let Ok(block) = block else { break };
        if block.label != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        if X509Certificate::from_der(&block.contents).is_err() {
            return Some("x509: malformed certificate".to_owned());
        }
        blocks += 1;
    }
    (blocks == 0).then(|| "must contain at least one CERTIFICATE PEM block".to_owned())
}
