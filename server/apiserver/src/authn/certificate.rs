//! Users of client certificates: common name, organizations, and the UID if there is one.

use crowsnest_api::certificate::{CertificateSubject, SubjectError};
use crowsnest_apimachinery::user::UserInfo;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Extra field that names the credential with which a user authenticated.
pub const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// The subject of a certificate (DER).
pub(super) fn read_subject(der: &[u8]) -> Result<CertificateSubject, SubjectError> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => CertificateSubject::from_der(certificate.subject().as_raw()),
        _ => Err(SubjectError::Malformed),
    }
}

/// The user of a verified certificate; `None` if the subject has no common name.
pub(super) fn read_user(der: &[u8]) -> Result<Option<UserInfo>, SubjectError> {
    let Some(mut user) = read_subject(der)?.user() else { return Ok(None) };
    let digest: String = Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect();
    user.extra.insert(CREDENTIAL.to_owned(), vec![format!("X509SHA256={digest}")]);
    Ok(Some(user))
}
