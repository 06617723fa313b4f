//! The crate's error: failures of certificates, keys and TLS.

use std::path::PathBuf;

/// Reason why a certificate, key or TLS configuration cannot be created or used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    #[error("key: {0}")]
    Key(String),
    #[error(transparent)]
    ClientAuthority(#[from] crate::authn::peer::AuthorityError),
    #[error(transparent)]
    Subject(#[from] crowsnest_api::certificate::SubjectError),
}

/// Result of operations on certificates, keys and TLS.
pub type Result<T, E = Error> = std::result::Result<T, E>;
