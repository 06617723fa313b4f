//! Users of client certificates: common name and organisations.

use crowsnest_api::user::UserInfo;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The client certificate of a connection, already verified against the server's authority.
#[derive(Debug, Clone)]
pub struct PeerCertificate(UserInfo);

impl PeerCertificate {
    /// Reads the subject of a verified certificate.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect();
        Some(Self(UserInfo { name, groups, ..UserInfo::default() }))
    }

    pub fn user(&self) -> UserInfo {
        self.0.clone()
    }
}
