//! Client certificate of an agent, requested as a CertificateSigningRequest: with a bootstrap token by `crowsnest
//! register`, later by the agent itself (`renewal`). Waits until the request is approved or denied, or times out.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_api::certificate::{AGENT_ORGANIZATION, agent_name};
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::client_errors::describe_cause;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestStatus};
use kube::api::PostParams;
use kube::{Api, Client};
use rand::Rng;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::json;

/// Poll interval; agents can read the request but not watch it.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Request for a client certificate of an agent.
pub struct CertificateRequest<'a> {
    pub cluster: &'a ClusterName,
    /// Requested lifetime in seconds.
    pub expiration_seconds: i32,
    /// Time to wait for the certificate.
    pub timeout: Duration,
}

/// A certificate and its private key, as PEM.
pub struct IssuedCertificate {
    pub certificate: String,
    pub key: String,
}

impl CertificateRequest<'_> {
    /// Generates a key, requests its certificate and waits until it is issued.
    pub async fn submit(&self, control_plane: Client) -> anyhow::Result<IssuedCertificate> {
        let key = KeyPair::generate().context("cannot generate the agent's key")?;
        let name = format!("{}-{:05x}", self.cluster, rand::rng().random_range(0..0x10_0000));
        let requests: Api<CertificateSigningRequest> = Api::all(control_plane);
        let creation = requests.create(&PostParams::default(), &self.signing_request(&name, &key)?).await;
        creation
            .map_err(|error| anyhow!("cannot create the certificate signing request: {}", describe_cause(&error)))?;
        let decision = tokio::time::timeout(self.timeout, wait_for_decision(&requests, &name)).await;
        let certificate = decision.map_err(|_| {
            anyhow!(
                "certificate signing request {name} was not approved within {} s: cluster {} may exist already, or the token may lack a group; approve it with `kubectl certificate approve {name}`",
                self.timeout.as_secs(),
                self.cluster
            )
        })??;
        Ok(IssuedCertificate { certificate, key: key.serialize_pem() })
    }

    fn signing_request(&self, name: &str, key: &KeyPair) -> anyhow::Result<CertificateSigningRequest> {
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
                "expirationSeconds": self.expiration_seconds,
                "usages": ["digital signature", "key encipherment", "client auth"]},
        }))?)
    }
}

async fn wait_for_decision(requests: &Api<CertificateSigningRequest>, name: &str) -> anyhow::Result<String> {
    loop {
        let request = requests.get_opt(name).await;
        let request = request
            .map_err(|error| anyhow!("cannot read certificate signing request {name}: {}", describe_cause(&error)))?;
        let request = request.with_context(|| format!("certificate signing request {name} was deleted"))?;
        if let Some(status) = request.status {
            match (denial(&status), status.certificate) {
                (Some(reason), _) => bail!("certificate signing request {name} was denied: {reason}"),
                (None, Some(pem)) => return String::from_utf8(pem.0).context("cannot read the certificate"),
                (None, None) => {}
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn denial(status: &CertificateSigningRequestStatus) -> Option<String> {
    let mut conditions = status.conditions.iter().flatten();
    let denial = conditions.find(|condition| matches!(condition.type_.as_str(), "Denied" | "Failed"))?;
    Some(denial.message.clone().unwrap_or_else(|| denial.type_.clone()))
}
