//! Users of client certificates: common name, organisations, and the UID where there is one.

use crowsnest_api::user::UserInfo;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The attribute of a subject in which kube-apiserver looks for a UID.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// Where a user's extra fields say which credential proved who they are.
pub(super) const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// The client certificate of a connection, already verified against the server's authority.
#[derive(Debug, Clone)]
pub struct PeerCertificate(UserInfo);

impl PeerCertificate {
    /// Reads the subject of a verified certificate; none when it names nobody, or not clearly.
    pub fn read(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
        let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect();
        let uids = subject.iter_attributes().filter(|attribute| attribute.attr_type().to_id_string() == UID);
        let uids: Option<Vec<&str>> = uids.map(|uid| uid.as_str().ok().filter(|uid| !uid.is_empty())).collect();
        let uid = match uids?.as_slice() {
            [] => String::new(),
            [uid] => (*uid).to_owned(),
            _ => return None,
        };
        let digest: String = Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect();
        let extra = [(CREDENTIAL.to_owned(), vec![format!("X509SHA256={digest}")])].into();
        Some(Self(UserInfo { name, uid, groups, extra }))
    }

    pub fn user(&self) -> UserInfo {
        self.0.clone()
    }
}
