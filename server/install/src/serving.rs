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
const BEFORE_IT_ENDS: SignedDuration = SignedDuration::from_hours(120 * 24);

/// Content of the Secret.
pub struct ServingSecret {
    pub authority: Credentials,
    pub own: Credentials,
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
pub async fn kept(client: &kube::Client) -> anyhow::Result<Option<ServingSecret>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), SYSTEM_NAMESPACE);
    let found =
        secrets.get_opt(SECRET).await.with_context(|| format!("cannot read Secret {SYSTEM_NAMESPACE}/{SECRET}"))?;
    let Some(secret) = found else { return Ok(None) };
    let authority = Credentials { certificate: text(&secret, "ca.crt")?, key: text(&secret, "ca.key")? };
    Ok(Some(ServingSecret { authority, own: credentials(&secret)? }))
}

/// The certificate for `hosts`: the stored one if it is valid for long enough, otherwise a new one of the same CA.
pub fn renewed(kept: Option<ServingSecret>, hosts: &[&str], now: Timestamp) -> anyhow::Result<ServingSecret> {
    let own = ["localhost", "127.0.0.1", SERVICE_HOST];
    let names: Vec<String> = own.iter().chain(hosts).map(|name| (*name).to_owned()).collect();
    match kept {
        Some(kept) if is_good(&kept.own.certificate, hosts, now)? => Ok(kept),
        Some(ServingSecret { authority, .. }) => {
            let own = Authority::of(authority.clone())?.server(&names)?;
            Ok(ServingSecret { authority, own })
        }
        None => {
            let authority = Authority::generate("crowsnest")?;
            Ok(ServingSecret { own: authority.server(&names)?, authority: authority.credentials().clone() })
        }
    }
}

impl ServingSecret {
    pub fn manifest(&self) -> Value {
        let Self { authority, own } = self;
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
            "metadata": {"name": SECRET, "namespace": SYSTEM_NAMESPACE},
            "data": {
                "ca.crt": super::encoded(&authority.certificate), "ca.key": super::encoded(&authority.key),
                "tls.crt": super::encoded(&own.certificate), "tls.key": super::encoded(&own.key),
            },
        })
    }
}

/// True if a certificate covers all `hosts` and is valid for long enough.
fn is_good(pem: &str, hosts: &[&str], now: Timestamp) -> anyhow::Result<bool> {
    let enough = now.checked_add(BEFORE_IT_ENDS)?;
    let covered = hosts.iter().map(|host| covers(pem, host)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(ends(pem)? > enough && !covered.contains(&false))
}

/// Expiry of the first certificate of a PEM.
fn ends(pem: &str) -> anyhow::Result<Timestamp> {
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
        let first = renewed(None, &["crowsnest.example.com"], now).unwrap();
        let (authority, own) = (first.authority.certificate.clone(), first.own.certificate.clone());
        assert!(covers(&own, "crowsnest.example.com").unwrap() && covers(&own, SERVICE_HOST).unwrap());
        let same = renewed(Some(first), &["crowsnest.example.com"], now).unwrap();
        assert_eq!(same.own.certificate, own, "the certificate is valid for long enough");
        let moved = renewed(Some(same), &["crowsnest.example.com", "10.0.0.7"], now).unwrap();
        assert!(moved.own.certificate != own && covers(&moved.own.certificate, "10.0.0.7").unwrap());
        assert_eq!(moved.authority.certificate, authority);
        let own = moved.own.certificate.clone();
        let later = now.checked_add(SignedDuration::from_hours(300 * 24)).unwrap();
        let later = renewed(Some(moved), &["10.0.0.7"], later).unwrap();
        assert!(later.own.certificate != own && later.authority.certificate == authority);
    }
}
