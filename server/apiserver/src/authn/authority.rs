//! The server's certificate authority: issues its serving certificate and client certificates for kubeconfigs.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_api::certificate::CertificateSubject;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{ClientAuthorities, ServingCertificates, Tls};
use crate::error::{Error, Result};

/// Validity of a certificate authority in days.
const AUTHORITY_VALIDITY_DAYS: i64 = 3650;
/// Validity of an issued certificate in days.
const CERTIFICATE_VALIDITY_DAYS: i64 = 365;
/// Interval at which certificates of running listeners are renewed, long before they expire.
pub const RENEWAL_INTERVAL: std::time::Duration = std::time::Duration::from_secs(30 * 24 * 3600);

/// A certificate with its key, both PEM.
#[derive(Debug, Clone)]
pub struct Credentials {
    pub certificate: String,
    pub key: String,
}

/// A certificate authority with its key.
pub struct Authority {
    credentials: Credentials,
    pub(super) issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

fn set_validity(params: &mut CertificateParams, days: i64) {
    let now = jiff::Timestamp::now();
    let date = |offset: i64| {
        let day = now
            .checked_add(jiff::SignedDuration::from_hours(offset * 24))
            .unwrap_or(now)
            .to_zoned(jiff::tz::TimeZone::UTC);
        rcgen::date_time_ymd(i32::from(day.year()), day.month() as u8, day.day() as u8)
    };
    params.not_before = date(-1);
    params.not_after = date(days);
}

fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

/// Parameters of a leaf certificate for one purpose. The subject must be set by the caller.
fn leaf_params(purpose: ExtendedKeyUsagePurpose) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, CERTIFICATE_VALIDITY_DAYS);
    params
}

impl Authority {
    /// Creates an authority with a new key.
    pub fn generate(name: &str) -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        set_validity(&mut params, AUTHORITY_VALIDITY_DAYS);
        let certificate = params.self_signed(&key)?.pem();
        let credentials = Credentials { certificate, key: key.serialize_pem() };
        Ok(Self { credentials, issuer: Issuer::new(params, key) })
    }

    /// Opens the authority in `directory`, `<file>.crt` and `<file>.key`; creates it with this name if it does not
    /// exist.
    pub fn open(directory: &Path, file: &str, name: &str) -> Result<Self> {
        let path = |extension: &str| directory.join(format!("{file}.{extension}"));
        let (certificate_path, key_path) = (path("crt"), path("key"));
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        if certificate_path.exists() && key_path.exists() {
            let certificate = std::fs::read_to_string(&certificate_path).map_err(io(&certificate_path))?;
            let key = std::fs::read_to_string(&key_path).map_err(io(&key_path))?;
            let issuer = Issuer::from_ca_cert_pem(&certificate, KeyPair::from_pem(&key)?)?;
            return Ok(Self { credentials: Credentials { certificate, key }, issuer });
        }
        let authority = Self::generate(name)?;
        std::fs::create_dir_all(directory).map_err(io(directory))?;
        write_secret(&key_path, &authority.credentials.key)?;
        std::fs::write(&certificate_path, &authority.credentials.certificate).map_err(io(&certificate_path))?;
        Ok(authority)
    }

    /// Loads an authority that is stored elsewhere, such as in a Secret.
    pub fn from_credentials(credentials: Credentials) -> Result<Self> {
        let issuer = Issuer::from_ca_cert_pem(&credentials.certificate, KeyPair::from_pem(&credentials.key)?)?;
        Ok(Self { credentials, issuer })
    }

    /// The authority's certificate in PEM.
    pub fn certificate(&self) -> &str {
        &self.credentials.certificate
    }

    /// Certificate and key, for controllers that sign on the authority's behalf.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Issues a client certificate for a user.
    pub fn issue_client_certificate(&self, user: &str, groups: &[String]) -> Result<Credentials> {
        let key = KeyPair::generate()?;
        let subject = CertificateSubject::from_user(user, groups)?;
        let certificate = self.sign_for(&subject, leaf_params(ExtendedKeyUsagePurpose::ClientAuth), &key)?;
        Ok(Credentials { certificate, key: key.serialize_pem() })
    }

    /// Issues a serving certificate for host names and IP addresses.
    pub fn issue_serving_certificate(&self, names: &[String]) -> Result<Credentials> {
        let key = KeyPair::generate()?;
        let mut params = leaf_params(ExtendedKeyUsagePurpose::ServerAuth);
        params.distinguished_name = common_name("kube-apiserver");
        for name in names {
            let entry = match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into()?),
            };
            params.subject_alt_names.push(entry);
        }
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Credentials { certificate, key: key.serialize_pem() })
    }

    /// Renews a listener's certificate every [`RENEWAL_INTERVAL`] until `stopped`.
    pub async fn renew(&self, serving: &ServingCertificates, names: &[String], stopped: &CancellationToken) {
        renew("a serving certificate", stopped, || serving.replace_default(&self.issue_serving_certificate(names)?))
            .await;
    }

    /// A kubeconfig in YAML for one user of one server.
    pub fn kubeconfig(&self, context: &str, server: &str, credentials: &Credentials) -> String {
        let encode = |text: &str| STANDARD.encode(text);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": context,
            "clusters": [{"name": context, "cluster": {
                "server": server, "certificate-authority-data": encode(self.certificate())}}],
            "users": [{"name": context, "user": {
                "client-certificate-data": encode(&credentials.certificate),
                "client-key-data": encode(&credentials.key)}}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        });
        serde_saphyr::to_string(&config).unwrap_or_else(|_| config.to_string())
    }

    /// TLS configuration that accepts client certificates of this authority and no front proxies. Client
    /// certificates are optional.
    pub fn tls(&self, serving: Arc<ServingCertificates>) -> Result<Tls> {
        Tls::new(serving, ClientAuthorities::new(None, Vec::new(), Some(self.certificate()))?)
    }
}

/// Calls `issue` every [`RENEWAL_INTERVAL`] until `stopped`; `certificate` is its name in the log.
pub async fn renew(certificate: &str, stopped: &CancellationToken, mut issue: impl FnMut() -> Result<()>) {
    while stopped.run_until_cancelled(tokio::time::sleep(RENEWAL_INTERVAL)).await.is_some() {
        if let Err(error) = issue() {
            tracing::error!(%error, certificate, "cannot renew a certificate");
        }
    }
}

/// Writes a file that only its owner can read.
pub(crate) fn write_secret(path: &Path, text: &str) -> Result<()> {
    use std::io::Write;
    let io = |source| Error::Io { path: path.to_owned(), source };
    let mut options = std::fs::OpenOptions::new();
    options.create(true).truncate(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).map_err(io)?;
    file.write_all(text.as_bytes()).map_err(io)
}
