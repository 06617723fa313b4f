//! Karmada's `certRotation`, in our agent: looks now and then how long the certificate in its kubeconfig of the control plane holds. When
//! little of its time is left, asks for the next one as itself and writes it where the kubeconfig is kept: into the Secret that it is
//! mounted from, or into the file. The agent reads its kubeconfig for each tunnel, so the next one has the new certificate.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_plan::overriding::yaml;
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

use super::certificate::{Issued, Wanted};
use super::config::{Config, Rotation, SecretName};
use super::figures::Figures;
use crowsnest_process::data_dir::write_private;

/// How long the control plane may take to sign.
const SIGNED_WITHIN: std::time::Duration = std::time::Duration::from_secs(300);

/// How long a certificate holds, in seconds of Unix time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Validity {
    from: i64,
    until: i64,
}

/// What came of a look.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// It holds long enough.
    Holds,
    Renewed(Validity),
    /// Somebody else has written the kubeconfig meanwhile.
    Overtaken,
    /// The kubeconfig has no certificate in it: what it has instead, others renew.
    OfOthers,
}

/// Where the kubeconfig is kept, and what is kept there.
enum Kept {
    File(PathBuf),
    Secret { secrets: Api<Secret>, secret: Box<Secret>, key: String },
}

/// Looks until told to stop. A look that fails is tried again with the next one.
pub(super) async fn keep(
    config: &Config,
    rotation: &Rotation,
    member: &kube::Config,
    figures: &Figures,
    stop: &CancellationToken,
) {
    let mut is_told = false;
    loop {
        let now = jiff::Timestamp::now().as_second();
        let looked = stop.run_until_cancelled(look((config, rotation), member, figures, now)).await;
        match looked {
            None => return,
            Some(Ok(Outcome::Renewed(validity))) => {
                let until = jiff::Timestamp::from_second(validity.until).unwrap_or(jiff::Timestamp::MAX);
                tracing::info!(%until, "the agent's certificate is renewed");
            }
            Some(Ok(Outcome::Overtaken)) => tracing::info!("another agent has renewed the certificate"),
            // Once: it is so for as long as whoever wrote the kubeconfig wants it.
            Some(Ok(Outcome::OfOthers)) if !is_told => {
                is_told = true;
                tracing::info!(
                    "the agent's kubeconfig holds no client-certificate-data: what it is known by, others renew, and --enable-cert-rotation does nothing"
                );
            }
            Some(Ok(Outcome::Holds | Outcome::OfOthers)) => {}
            Some(Err(error)) => {
                tracing::warn!(error = %format_args!("{error:#}"), "the agent's certificate is not renewed, trying again");
            }
        }
        // Agents of one cluster are not to ask at once.
        let pause = rotation.checking_interval.mul_f64(rand::rng().random_range(0.9..1.1));
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

async fn look(
    (config, rotation): (&Config, &Rotation),
    member: &kube::Config,
    figures: &Figures,
    now: i64,
) -> anyhow::Result<Outcome> {
    let (kept, text) = Kept::read(config, rotation, member).await?;
    let kubeconfig: Value = serde_saphyr::from_str(&text).context("reading the agent's kubeconfig")?;
    let context = config.control_plane_context.as_deref();
    let Some(certificate) = certificate(&kubeconfig, context)? else { return Ok(Outcome::OfOthers) };
    let validity = Validity::of(&certificate)?;
    if !validity.is_due(rotation.remaining_time_threshold, now) {
        return Ok(Outcome::Holds);
    }
    if validity.until <= now {
        bail!("it has expired: delete the agent here, and let `crowsnest register` register the cluster anew");
    }
    let wanted = Wanted { cluster: &config.cluster_name, seconds: rotation.expiration_seconds, within: SIGNED_WITHIN };
    let issued = wanted.ask(super::control_plane(config, figures).await?).await?;
    let renewed = with_certificate(kubeconfig, context, &issued)?;
    let next = Validity::of(issued.certificate.as_bytes())?;
    Ok(if kept.write(yaml::written(&renewed)).await? { Outcome::Renewed(next) } else { Outcome::Overtaken })
}

impl Validity {
    fn of(pem: &[u8]) -> anyhow::Result<Self> {
        let der = CertificateDer::from_pem_slice(pem).context("reading the agent's certificate")?;
        let (_, certificate) = X509Certificate::from_der(&der).context("reading the agent's certificate")?;
        let validity = certificate.validity();
        Ok(Self { from: validity.not_before.timestamp(), until: validity.not_after.timestamp() })
    }

    /// Whether no more than that part of its time is left.
    fn is_due(self, threshold: f64, now: i64) -> bool {
        (self.until - now) as f64 <= (self.until - self.from) as f64 * threshold
    }
}

/// Which of a kubeconfig's users is that of the context.
fn user(kubeconfig: &Value, context: Option<&str>) -> anyhow::Result<usize> {
    let place = |list: &str, name: &str| {
        let mut all = kubeconfig[list].as_array().into_iter().flatten();
        all.position(|one| one["name"] == name)
            .with_context(|| format!("the agent's kubeconfig has no {name:?} in {list}"))
    };
    let context = context.or_else(|| kubeconfig["current-context"].as_str());
    let at = place("contexts", context.context("the agent's kubeconfig has no current-context")?)?;
    place("users", kubeconfig["contexts"][at]["context"]["user"].as_str().unwrap_or_default())
}

/// The certificate of a kubeconfig, as PEM; none where its user is known by something else.
fn certificate(kubeconfig: &Value, context: Option<&str>) -> anyhow::Result<Option<Vec<u8>>> {
    let user = &kubeconfig["users"][user(kubeconfig, context)?]["user"];
    let encoded = user["client-certificate-data"].as_str();
    encoded.map(|encoded| STANDARD.decode(encoded).context("the agent's certificate is no base64")).transpose()
}

/// The kubeconfig with another certificate.
fn with_certificate(mut kubeconfig: Value, context: Option<&str>, issued: &Issued) -> anyhow::Result<Value> {
    let at = user(&kubeconfig, context)?;
    let user = &mut kubeconfig["users"][at]["user"];
    user["client-certificate-data"] = STANDARD.encode(&issued.certificate).into();
    user["client-key-data"] = STANDARD.encode(&issued.key).into();
    if let Some(user) = user.as_object_mut() {
        user.remove("client-key");
    }
    Ok(kubeconfig)
}

impl Kept {
    /// Of the Secret itself, as what is mounted of it comes late.
    async fn read(config: &Config, rotation: &Rotation, member: &kube::Config) -> anyhow::Result<(Self, String)> {
        let file = &config.control_plane_kubeconfig;
        let Some(SecretName { namespace, name }) = &rotation.secret else {
            let text = tokio::fs::read_to_string(file).await.with_context(|| format!("reading {}", file.display()))?;
            return Ok((Self::File(file.clone()), text));
        };
        let secrets: Api<Secret> = Api::namespaced(Client::try_from(member.clone())?, namespace);
        let secret = secrets.get(name).await.with_context(|| format!("reading secret {namespace}/{name}"))?;
        let key = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let data = secret.data.as_ref().and_then(|data| data.get(&key));
        let data = data.with_context(|| format!("secret {namespace}/{name} has no {key}"))?;
        let text = String::from_utf8(data.0.clone()).with_context(|| format!("reading secret {namespace}/{name}"))?;
        Ok((Self::Secret { secrets, secret: Box::new(secret), key }, text))
    }

    /// False where somebody else has written it since it was read.
    async fn write(self, text: String) -> anyhow::Result<bool> {
        match self {
            Self::File(file) => {
                let written = tokio::task::spawn_blocking(move || replace(&file, &text)).await;
                written.context("writing the agent's kubeconfig")??;
                Ok(true)
            }
            Self::Secret { secrets, mut secret, key } => {
                let name = secret.metadata.name.clone().unwrap_or_default();
                secret.data.get_or_insert_default().insert(key, ByteString(text.into_bytes()));
                match secrets.replace(&name, &PostParams::default(), &secret).await {
                    Ok(_) => Ok(true),
                    Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
                    Err(error) => Err(error).with_context(|| format!("writing secret {name}")),
                }
            }
        }
    }
}

/// Whole or not at all: who reads meanwhile reads what was there.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    write_private(file, text.as_bytes()).with_context(|| {
        format!(
            "writing {}; where it is mounted from a Secret, name that with --control-plane-kubeconfig-secret",
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
                {"name": "broken", "context": {"cluster": "cp", "user": "nobody"}}]})
    }

    #[rstest::rstest]
    #[case::new("2026-01-02T00:00:00Z", 0.2, false)]
    #[case::a_bit_more("2026-01-08T23:59:59Z", 0.2, false)]
    #[case::a_fifth("2026-01-09T00:00:00Z", 0.2, true)]
    #[case::half("2026-01-06T00:00:00Z", 0.5, true)]
    #[case::expired("2026-02-01T00:00:00Z", 0.2, true)]
    fn what_is_nearly_over_is_renewed(#[case] now: jiff::Timestamp, #[case] threshold: f64, #[case] expected: bool) {
        let validity = Validity::of(pem().as_bytes()).unwrap();
        assert_eq!(validity.is_due(threshold, now.as_second()), expected);
    }

    #[test]
    fn certificates_are_replaced_and_nothing_else() {
        let old =
            kubeconfig(json!({"client-certificate-data": "b2xk", "client-key-data": "b2xk", "tls-server-name": "x"}));
        assert_eq!(certificate(&old, None).unwrap().unwrap(), b"old");
        assert_eq!(certificate(&kubeconfig(json!({"token": "x"})), None).unwrap(), None);
        let issued = Issued { certificate: "new".to_owned(), key: "key".to_owned() };
        let new = with_certificate(old, Some("agent"), &issued).unwrap();
        let expected = json!({"client-certificate-data": "bmV3", "client-key-data": "a2V5", "tls-server-name": "x"});
        assert_eq!(new, kubeconfig(expected));
    }

    #[rstest::rstest]
    #[case(Some("nosuch"), json!({}), "has no \"nosuch\" in contexts")]
    #[case(Some("broken"), json!({}), "has no \"nobody\" in users")]
    #[case(None, json!({"client-certificate-data": "%"}), "is no base64")]
    fn what_cannot_be_renewed_is_said(#[case] context: Option<&str>, #[case] user: Value, #[case] expected: &str) {
        let error = certificate(&kubeconfig(user), context).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn files_are_replaced_whole() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("kubeconfig");
        std::fs::write(&file, "old").unwrap();
        replace(&file, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = replace(&dir.path().join("no/file"), "new").unwrap_err().to_string();
        assert!(error.contains("--control-plane-kubeconfig-secret"), "{error}");
    }
}
