//! Certificate renewal, Karmada's `certRotation`: checks the remaining lifetime of the client certificate in the
//! control plane's kubeconfig at intervals. When it is due, the agent requests a new certificate as itself and writes
//! it to the Secret that the kubeconfig is mounted from, or to the file. Each tunnel reads the kubeconfig, so the next
//! one uses the new certificate.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_apimachinery::yaml;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, Client};
use rand::Rng;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certificate::{CertificateRequest, IssuedCertificate};
use super::config::{Config, Rotation, SecretName};
use super::metrics::AgentMetrics;
use crowsnest_process::data_dir::write_private;

/// Time to wait for the signed certificate.
const SIGNING_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(300);

/// Validity period of a certificate in Unix seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Validity {
    not_before: i64,
    not_after: i64,
}

/// Outcome of a check.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The certificate is not due for renewal.
    NotDue,
    Renewed(Validity),
    /// Another process wrote the kubeconfig at the same time, so the new certificate is discarded.
    Conflict,
    /// The kubeconfig has no inline certificate, so there is nothing to renew here.
    NoInlineCertificate,
}

/// Source of the kubeconfig, to which the renewed one is written.
enum KubeconfigLocation {
    File(PathBuf),
    Secret { secrets: Api<Secret>, secret: Box<Secret>, key: String },
}

/// Checks the certificate at intervals, and renews it when it is due, until the agent stops. A failed check is retried
/// after the next interval.
pub(super) async fn run(
    config: &Config,
    rotation: &Rotation,
    member: &kube::Config,
    agent_metrics: &AgentMetrics,
    stop: &CancellationToken,
) {
    let mut has_logged = false;
    loop {
        let now = jiff::Timestamp::now().as_second();
        let outcome = stop.run_until_cancelled(renew_if_due((config, rotation), member, agent_metrics, now)).await;
        match outcome {
            None => return,
            Some(Ok(Outcome::Renewed(validity))) => {
                let until = jiff::Timestamp::from_second(validity.not_after).unwrap_or(jiff::Timestamp::MAX);
                tracing::info!(%until, "renewed the agent's certificate");
            }
            Some(Ok(Outcome::Conflict)) => tracing::info!("another agent renewed the certificate"),
            // Logged once; the kubeconfig is unlikely to change.
            Some(Ok(Outcome::NoInlineCertificate)) if !has_logged => {
                has_logged = true;
                tracing::info!(
                    "--enable-cert-rotation has no effect: the agent's kubeconfig has no client-certificate-data"
                );
            }
            Some(Ok(Outcome::NotDue | Outcome::NoInlineCertificate)) => {}
            Some(Err(error)) => {
                tracing::warn!(error = %format_args!("{error:#}"), "cannot renew the agent's certificate; will retry");
            }
        }
        // Jitter, so that the agents of a cluster do not renew at the same time.
        let pause = rotation.checking_interval.mul_f64(rand::rng().random_range(0.9..1.1));
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Renews the certificate if it is due at `now`, in Unix seconds.
async fn renew_if_due(
    (config, rotation): (&Config, &Rotation),
    member: &kube::Config,
    agent_metrics: &AgentMetrics,
    now: i64,
) -> anyhow::Result<Outcome> {
    let (location, text) = KubeconfigLocation::read(config, rotation, member).await?;
    let kubeconfig: Value = serde_saphyr::from_str(&text).context("cannot parse the agent's kubeconfig")?;
    let context = config.control_plane.context.as_deref();
    let Some(certificate) = inline_certificate(&kubeconfig, context)? else { return Ok(Outcome::NoInlineCertificate) };
    let validity = Validity::from_pem(&certificate)?;
    if !validity.is_due(rotation.remaining_time_threshold, now) {
        return Ok(Outcome::NotDue);
    }
    if validity.not_after <= now {
        bail!("the certificate has expired; delete the agent and register the cluster again with `crowsnest register`");
    }
    let request = CertificateRequest {
        cluster: &config.registration.name,
        expiration_seconds: rotation.expiration_seconds,
        timeout: SIGNING_TIMEOUT,
    };
    let issued = request.submit(super::connect_control_plane(config, agent_metrics).await?).await?;
    let renewed_kubeconfig = with_certificate(kubeconfig, context, &issued)?;
    let next = Validity::from_pem(issued.certificate.as_bytes())?;
    Ok(if location.write(yaml::to_yaml(&renewed_kubeconfig)).await? {
        Outcome::Renewed(next)
    } else {
        Outcome::Conflict
    })
}

impl Validity {
    fn from_pem(pem: &[u8]) -> anyhow::Result<Self> {
        let der = CertificateDer::from_pem_slice(pem).context("cannot parse the agent's certificate")?;
        let (_, certificate) = X509Certificate::from_der(&der).context("cannot parse the agent's certificate")?;
        let validity = certificate.validity();
        Ok(Self { not_before: validity.not_before.timestamp(), not_after: validity.not_after.timestamp() })
    }

    /// True if at most this fraction of the lifetime is left.
    fn is_due(self, threshold: f64, now: i64) -> bool {
        (self.not_after - now) as f64 <= (self.not_after - self.not_before) as f64 * threshold
    }
}

/// Index of the context's user in the kubeconfig.
fn user_index(kubeconfig: &Value, context: Option<&str>) -> anyhow::Result<usize> {
    let position_of = |list: &str, name: &str| {
        let mut entries = kubeconfig[list].as_array().into_iter().flatten();
        entries
            .position(|entry| entry["name"] == name)
            .with_context(|| format!("the agent's kubeconfig has no {name:?} in {list}"))
    };
    let context = context.or_else(|| kubeconfig["current-context"].as_str());
    let at = position_of("contexts", context.context("the agent's kubeconfig has no current-context")?)?;
    position_of("users", kubeconfig["contexts"][at]["context"]["user"].as_str().unwrap_or_default())
}

/// The inline certificate of the kubeconfig's user as PEM; `None` if it has none.
fn inline_certificate(kubeconfig: &Value, context: Option<&str>) -> anyhow::Result<Option<Vec<u8>>> {
    let user = &kubeconfig["users"][user_index(kubeconfig, context)?]["user"];
    let encoded = user["client-certificate-data"].as_str();
    encoded.map(|encoded| STANDARD.decode(encoded).context("the agent's certificate is not valid base64")).transpose()
}

/// The kubeconfig with a new certificate.
fn with_certificate(mut kubeconfig: Value, context: Option<&str>, issued: &IssuedCertificate) -> anyhow::Result<Value> {
    let at = user_index(&kubeconfig, context)?;
    let user = &mut kubeconfig["users"][at]["user"];
    user["client-certificate-data"] = STANDARD.encode(&issued.certificate).into();
    user["client-key-data"] = STANDARD.encode(&issued.key).into();
    if let Some(user) = user.as_object_mut() {
        user.remove("client-key");
    }
    Ok(kubeconfig)
}

impl KubeconfigLocation {
    /// Reads the Secret itself, because mounted Secrets are updated with delay.
    async fn read(config: &Config, rotation: &Rotation, member: &kube::Config) -> anyhow::Result<(Self, String)> {
        let file = &config.control_plane.file;
        let Some(SecretName { namespace, name }) = &rotation.secret else {
            let text =
                tokio::fs::read_to_string(file).await.with_context(|| format!("cannot read {}", file.display()))?;
            return Ok((Self::File(file.clone()), text));
        };
        let secrets: Api<Secret> = Api::namespaced(Client::try_from(member.clone())?, namespace);
        let secret = secrets.get(name).await.with_context(|| format!("cannot read secret {namespace}/{name}"))?;
        let key = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let data = secret.data.as_ref().and_then(|data| data.get(&key));
        let data = data.with_context(|| format!("secret {namespace}/{name} has no {key}"))?;
        let text =
            String::from_utf8(data.0.clone()).with_context(|| format!("cannot read secret {namespace}/{name}"))?;
        Ok((Self::Secret { secrets, secret: Box::new(secret), key }, text))
    }

    /// Writes the kubeconfig; false if another process has written it since it was read.
    async fn write(self, text: String) -> anyhow::Result<bool> {
        match self {
            Self::File(file) => {
                let result = tokio::task::spawn_blocking(move || replace_file(&file, &text)).await;
                result.context("cannot write the agent's kubeconfig")??;
                Ok(true)
            }
            Self::Secret { secrets, mut secret, key } => {
                let name = secret.metadata.name.clone().unwrap_or_default();
                secret.data.get_or_insert_default().insert(key, ByteString(text.into_bytes()));
                match secrets.replace(&name, &PostParams::default(), &secret).await {
                    Ok(_) => Ok(true),
                    Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
                    Err(error) => Err(error).with_context(|| format!("cannot write secret {name}")),
                }
            }
        }
    }
}

/// Replaces the file atomically.
fn replace_file(file: &Path, text: &str) -> anyhow::Result<()> {
    write_private(file, text.as_bytes()).with_context(|| {
        format!(
            "cannot write {}; if it is mounted from a Secret, use --control-plane-kubeconfig-secret",
            file.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use serde_json::json;

    fn pem() -> String {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2026, 1, 1);
        params.not_after = date_time_ymd(2026, 1, 11);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
    }

    fn kubeconfig(user: Value) -> Value {
        json!({"current-context": "agent", "clusters": [{"name": "cp", "cluster": {"server": "https://cp"}}],
            "users": [{"name": "other", "user": {}}, {"name": "agent", "user": user}],
            "contexts": [{"name": "agent", "context": {"cluster": "cp", "user": "agent"}},
                {"name": "broken", "context": {"cluster": "cp", "user": "missing"}}]})
    }

    #[rstest::rstest]
    #[case::new("2026-01-02T00:00:00Z", 0.2, false)]
    #[case::before_the_threshold("2026-01-08T23:59:59Z", 0.2, false)]
    #[case::at_the_threshold("2026-01-09T00:00:00Z", 0.2, true)]
    #[case::half("2026-01-06T00:00:00Z", 0.5, true)]
    #[case::expired("2026-02-01T00:00:00Z", 0.2, true)]
    fn certificates_are_renewed_at_the_threshold(
        #[case] now: jiff::Timestamp,
        #[case] threshold: f64,
        #[case] expected: bool,
    ) {
        let validity = Validity::from_pem(pem().as_bytes()).unwrap();
        assert_eq!(validity.is_due(threshold, now.as_second()), expected);
    }

    #[test]
    fn only_the_certificate_is_replaced() {
        let old =
            kubeconfig(json!({"client-certificate-data": "b2xk", "client-key-data": "b2xk", "tls-server-name": "x"}));
        assert_eq!(inline_certificate(&old, None).unwrap().unwrap(), b"old");
        assert_eq!(inline_certificate(&kubeconfig(json!({"token": "x"})), None).unwrap(), None);
        let issued = IssuedCertificate { certificate: "new".to_owned(), key: "key".to_owned() };
        let new = with_certificate(old, Some("agent"), &issued).unwrap();
        let expected = json!({"client-certificate-data": "bmV3", "client-key-data": "a2V5", "tls-server-name": "x"});
        assert_eq!(new, kubeconfig(expected));
    }

    #[rstest::rstest]
    #[case(Some("nosuch"), json!({}), "has no \"nosuch\" in contexts")]
    #[case(Some("broken"), json!({}), "has no \"missing\" in users")]
    #[case(None, json!({"client-certificate-data": "%"}), "is not valid base64")]
    fn invalid_kubeconfigs_are_reported(#[case] context: Option<&str>, #[case] user: Value, #[case] expected: &str) {
        let error = inline_certificate(&kubeconfig(user), context).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn files_are_replaced_atomically() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        std::fs::write(&file, "old").unwrap();
        replace_file(&file, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = replace_file(&dir.path().join("no/file"), "new").unwrap_err().to_string();
        assert!(error.contains("--control-plane-kubeconfig-secret"), "{error}");
    }
}
