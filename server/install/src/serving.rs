//! The serving certificate of `serve` if none is configured: created by `install` and stored with its CA in a Secret of
//! the control plane. `serve` reads the certificate and key, `install` renews them before they expire.

use anyhow::Context;
use crowsnest_apiserver::authn::{Authority, Credentials};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

use super::{SERVICE_HOST, SYSTEM_NAMESPACE};

pub const SECRET: &str = "crowsnest-serving";
/// Remaining lifetime below which the certificate is renewed.
const MIN_REMAINING_LIFETIME: SignedDuration = SignedDuration::from_hours(120 * 24);

/// Content of the Secret.
pub struct ServingSecret {
    pub authority: Credentials,
    pub leaf: Credentials,
}

/// The certificate and key of a Secret.
pub fn credentials(secret: &Secret) -> anyhow::Result<Credentials> {
    Ok(Credentials { certificate: text(secret, "tls.crt")?, key: text(secret, "tls.key")? })
}

fn text(secret: &Secret, key: &str) -> anyhow::Result<String> {
    let found = secret.data.as_ref().and_then(|data| data.get(key));
    let found = found.with_context(|| format!("Secret {SYSTEM_NAMESPACE}/{SECRET} has no {key}"))?;
    String::from_utf8(found.0.clone()).with_context(|| format!("{key} of Secret {SYSTEM_NAMESPACE}/{SECRET}"))
}

/// Reads the Secret; `None` if it does not exist.
pub async fn read_secret(client: &kube::Client) -> anyhow::Result<Option<ServingSecret>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let found =
        secrets.get_opt(SECRET).await.with_context(|| format!("cannot read Secret {SYSTEM_NAMESPACE}/{SECRET}"))?;
    let Some(secret) = found else { return Ok(None) };
    let authority = Credentials { certificate: text(&secret, "ca.crt")?, key: text(&secret, "ca.key")? };
    Ok(Some(ServingSecret { authority, leaf: credentials(&secret)? }))
}

/// The certificate for `hosts`: the stored one if it is valid for long enough, otherwise a new one of the same CA.
pub fn issue_or_renew(stored: Option<ServingSecret>, hosts: &[&str], now: Timestamp) -> anyhow::Result<ServingSecret> {
    let default_names = ["localhost", "127.0.0.1", SERVICE_HOST];
    let names: Vec<String> = default_names.iter().chain(hosts).map(|name| (*name).to_owned()).collect();
    match stored {
        Some(stored) if is_valid_for(&stored.leaf.certificate, hosts, now)? => Ok(stored),
        Some(ServingSecret { authority, .. }) => {
            let leaf = Authority::from_credentials(authority.clone())?.issue_serving_certificate(&names)?;
            Ok(ServingSecret { authority, leaf })
        }
        None => {
            let authority = Authority::generate("crowsnest")?;
            Ok(ServingSecret {
                leaf: authority.issue_serving_certificate(&names)?,
                authority: authority.credentials().clone(),
            })
        }
    }
}

impl ServingSecret {
    pub fn manifest(&self) -> Value {
        let Self { authority, leaf } = self;
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": SECRET, "namespace": SYSTEM_NAMESPACE},
            "data": {
                "ca.crt": super::encode_base64(&authority.certificate), "ca.key": super::encode_base64(&authority.key),
                "tls.crt": super::encode_base64(&leaf.certificate), "tls.key": super::encode_base64(&leaf.key),
            },
        })
    }
}

/// True if a certificate covers all `hosts` and is valid for long enough.
fn is_valid_for(pem: &str, hosts: &[&str], now: Timestamp) -> anyhow::Result<bool> {
    let min_expiry = now.checked_add(MIN_REMAINING_LIFETIME)?;
    let coverage = hosts.iter().map(|host| covers(pem, host)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(expiry(pem)? > min_expiry && !coverage.contains(&false))
}

/// Expiry of the first certificate of a PEM.
fn expiry(pem: &str) -> anyhow::Result<Timestamp> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).context("cannot parse a certificate")?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).context("cannot parse a certificate")?;
    Ok(Timestamp::from_second(parsed.validity().not_after.timestamp())?)
}

/// True if the certificate is valid for this name or address.
fn covers(pem: &str, host: &str) -> anyhow::Result<bool> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).context("cannot parse a certificate")?;
    let parsed = rustls::server::ParsedCertificate::try_from(&der).context("cannot parse a certificate")?;
    let name = rustls::pki_types::ServerName::try_from(host.to_owned()).context("invalid host name")?;
    Ok(rustls::client::verify_server_name(&parsed, &name).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_renewed_by_the_same_ca() {
        let now = Timestamp::now();
        let first = issue_or_renew(None, &["crowsnest.example.com"], now).unwrap();
        let (authority, certificate) = (first.authority.certificate.clone(), first.leaf.certificate.clone());
        assert!(covers(&certificate, "crowsnest.example.com").unwrap() && covers(&certificate, SERVICE_HOST).unwrap());
        let unchanged = issue_or_renew(Some(first), &["crowsnest.example.com"], now).unwrap();
        assert_eq!(unchanged.leaf.certificate, certificate, "the certificate is valid for long enough");
        let reissued = issue_or_renew(Some(unchanged), &["crowsnest.example.com", "10.0.0.7"], now).unwrap();
        assert!(reissued.leaf.certificate != certificate && covers(&reissued.leaf.certificate, "10.0.0.7").unwrap());
        assert_eq!(reissued.authority.certificate, authority);
        let certificate = reissued.leaf.certificate.clone();
        let later = now.checked_add(SignedDuration::from_hours(300 * 24)).unwrap();
        let later = issue_or_renew(Some(reissued), &["10.0.0.7"], later).unwrap();
        assert!(later.leaf.certificate != certificate && later.authority.certificate == authority);
    }
}
