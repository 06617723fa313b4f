//! The serving certificate of `serve`: from files, or from the Secret that `crowsnest install` keeps in the control
//! plane. Both are reloaded when they change.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use crowsnest_apiserver::authn::{Credentials, ServingCertificates};
use crowsnest_component_base::tasks::Tasks;
use crowsnest_process::reload::{ReloadCounters, Reloader};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::watch_object;
use tokio_util::sync::CancellationToken;

use crowsnest_install::SYSTEM_NAMESPACE;
use crowsnest_install::serving::{SECRET, credentials};

/// Loads the serving certificate; files are reloaded by the reloader, the Secret by one of `tasks`.
pub(super) async fn load(
    files: Option<(PathBuf, PathBuf)>,
    reloader: &mut Reloader,
    control_plane: &kube::Client,
    tasks: &Tasks,
) -> anyhow::Result<Arc<ServingCertificates>> {
    let Some((certificate, key)) = files else { return load_secret(control_plane, reloader.counts(), tasks).await };
    let mut contents = Vec::new();
    for file in [&certificate, &key] {
        let content = tokio::fs::read_to_string(file).await;
        contents.push(content.with_context(|| format!("--tls-cert-file, --tls-private-key-file: {}", file.display()))?);
    }
    let certificates =
        ServingCertificates::new(&parse_pair(&contents)).context("--tls-cert-file, --tls-private-key-file")?;
    let reloaded_certificates = Arc::clone(&certificates);
    let replace = move |contents: &[String]| Ok(reloaded_certificates.replace_default(&parse_pair(contents))?);
    reloader.watch("tls-cert-file", vec![certificate, key], replace).await?;
    Ok(certificates)
}

fn parse_pair(contents: &[String]) -> Credentials {
    let content = |index: usize| contents.get(index).cloned().unwrap_or_default();
    Credentials { certificate: content(0), key: content(1) }
}

async fn load_secret(
    control_plane: &kube::Client,
    counts: Arc<ReloadCounters>,
    tasks: &Tasks,
) -> anyhow::Result<Arc<ServingCertificates>> {
    let secrets: Api<Secret> = Api::namespaced(control_plane.clone(), SYSTEM_NAMESPACE);
    let secret =
        secrets.get_opt(SECRET).await.with_context(|| format!("cannot read Secret {SYSTEM_NAMESPACE}/{SECRET}"))?;
    let secret = secret.with_context(|| {
        format!("Secret {SYSTEM_NAMESPACE}/{SECRET} not found; run `crowsnest install`, or specify a certificate with --tls-cert-file")
    })?;
    let certificates = ServingCertificates::new(&credentials(&secret)?)
        .with_context(|| format!("Secret {SYSTEM_NAMESPACE}/{SECRET}"))?;
    let watch = watch_secret(secrets, Arc::clone(&certificates), counts, tasks.stop_token().clone());
    tasks.spawn_until_stop("certificate of the listener", watch);
    Ok(certificates)
}

/// Watches the Secret until `stop`, and replaces the certificate when it changes.
async fn watch_secret(
    secrets: Api<Secret>,
    certificates: Arc<ServingCertificates>,
    counts: Arc<ReloadCounters>,
    stop: CancellationToken,
) {
    let mut changes = std::pin::pin!(watch_object(secrets, SECRET).default_backoff());
    while let Some(Some(event)) = stop.run_until_cancelled(changes.next()).await {
        match event {
            Ok(None) => tracing::warn!("Secret {SYSTEM_NAMESPACE}/{SECRET} was deleted; keeping its certificate"),
            Ok(Some(secret)) => {
                let result = credentials(&secret).and_then(|renewed| Ok(certificates.replace_default(&renewed)?));
                counts.count_certificate_read(result.is_ok());
                if let Err(error) = result {
                    let error = format!("{error:#}");
                    tracing::error!(
                        error,
                        "cannot use Secret {SYSTEM_NAMESPACE}/{SECRET}; keeping the previous certificate"
                    );
                }
            }
            Err(error) => tracing::debug!(%error, "cannot watch Secret {SYSTEM_NAMESPACE}/{SECRET}"),
        }
    }
}
