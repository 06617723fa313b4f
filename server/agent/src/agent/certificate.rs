//! Client certificate of an agent, requested as a CertificateSigningRequest: with a bootstrap token by `crowsnest
//! register`, later by the agent itself (`renewal`). Waits until the request is approved or denied, or times out.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_api::certificate::{AGENT_ORGANIZATION, agent_name};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::client_errors::reason;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use rand::Rng;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::json;

/// Poll interval; agents can read the request but not watch it.
const AGAIN: Duration = Duration::from_secs(1);

/// A certificate to request.
pub struct Wanted<'a> {
    pub cluster: &'a ClusterName,
    pub seconds: i32,
    /// Time to wait for the certificate.
    pub within: Duration,
}

/// A certificate and its private key, as PEM.
pub struct Issued {
    pub certificate: String,
    pub key: String,
}

impl Wanted<'_> {
    /// Generates a key and requests its certificate.
    pub async fn ask(&self, control_plane: Client) -> anyhow::Result<Issued> {
        let key = KeyPair::generate().context("cannot generate the agent's key")?;
        let name = format!("{}-{:05x}", self.cluster, rand::rng().random_range(0..0x10_0000));
        let requests: Api<CertificateSigningRequest> = Api::all(control_plane);
        let made = requests.create(&PostParams::default(), &self.request(&name, &key)?).await;
        made.map_err(|error| anyhow!("cannot create the certificate signing request: {}", reason(&error)))?;
        let decided = tokio::time::timeout(self.within, decided(&requests, &name)).await;
        let certificate = decided.map_err(|_| {
            anyhow!(
                "certificate signing request {name} was not approved within {} s: cluster {} may exist already, or the token may lack a group; approve it with `kubectl certificate approve {name}`",
                self.within.as_secs(),
                self.cluster
            )
        })??;
        Ok(Issued { certificate, key: key.serialize_pem() })
    }

    fn request(&self, name: &str, key: &KeyPair) -> anyhow::Result<CertificateSigningRequest> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, AGENT_ORGANIZATION);
        params.distinguished_name.push(DnType::CommonName, agent_name(self.cluster));
        let pem = params
            .serialize_request(key)
            .and_then(|request| request.pem())
            .context("cannot build the certificate signing request")?;
        Ok(serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"signerName": "kubernetes.io/kube-apiserver-client", "request": STANDARD.encode(pem),
                "expirationSeconds": self.seconds,
                "usages": ["digital signature", "key encipherment", "client auth"]},
        }))?)
    }
}

async fn decided(requests: &Api<CertificateSigningRequest>, name: &str) -> anyhow::Result<String> {
    loop {
        let request = requests.get_opt(name).await;
        let request =
            request.map_err(|error| anyhow!("cannot read certificate signing request {name}: {}", reason(&error)))?;
        let request = request.with_context(|| format!("certificate signing request {name} was deleted"))?;
        if let Some(status) = request.status {
            match (refused(&status), status.certificate) {
                (Some(why), _) => bail!("certificate signing request {name} was denied: {why}"),
                (None, Some(pem)) => return String::from_utf8(pem.0).context("cannot read the certificate"),
                (None, None) => {}
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn refused(status: &CertificateSigningRequestStatus) -> Option<String> {
    let mut conditions = status.conditions.iter().flatten();
    let refused = conditions.find(|condition| matches!(condition.type_.as_str(), "Denied" | "Failed"))?;
    Some(refused.message.clone().unwrap_or_else(|| refused.type_.clone()))
}
