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
pub(super) async fn serving(
    files: Option<(PathBuf, PathBuf)>,
    reloader: &mut Reloader,
    control_plane: &kube::Client,
    tasks: &Tasks,
) -> anyhow::Result<Arc<ServingCertificates>> {
    let Some((certificate, key)) = files else { return load_secret(control_plane, reloader.counts(), tasks).await };
    let mut first = Vec::new();
    for file in [&certificate, &key] {
        let read = tokio::fs::read_to_string(file).await;
        first.push(read.with_context(|| format!("--tls-cert-file, --tls-private-key-file: {}", file.display()))?);
    }
    let own = ServingCertificates::new(&pair(&first)).context("--tls-cert-file, --tls-private-key-file")?;
    let reloaded = Arc::clone(&own);
    let replace = move |read: &[String]| Ok(reloaded.replace_default(&pair(read))?);
    reloader.watch("tls-cert-file", vec![certificate, key], replace).await?;
    Ok(own)
}

fn pair(read: &[String]) -> Credentials {
    let part = |at: usize| read.get(at).cloned().unwrap_or_default();
    Credentials { certificate: part(0), key: part(1) }
}

async fn load_secret(
    control_plane: &kube::Client,
    counts: Arc<ReloadCounters>,
    tasks: &Tasks,
) -> anyhow::Result<Arc<ServingCertificates>> {
    let secrets: Api<Secret> = Api::namespaced(control_plane.clone(), SYSTEM_NAMESPACE);
    let found =
        secrets.get_opt(SECRET).await.with_context(|| format!("cannot read Secret {SYSTEM_NAMESPACE}/{SECRET}"))?;
    let found = found.with_context(|| {
        format!("Secret {SYSTEM_NAMESPACE}/{SECRET} not found; run `crowsnest install`, or name a certificate with --tls-cert-file")
    })?;
    let own = ServingCertificates::new(&credentials(&found)?)
        .with_context(|| format!("Secret {SYSTEM_NAMESPACE}/{SECRET}"))?;
    let following = follow(secrets, Arc::clone(&own), counts, tasks.stopping().clone());
    tasks.keep("certificate of the listener", following);
    Ok(own)
}

async fn follow(
    secrets: Api<Secret>,
    own: Arc<ServingCertificates>,
    counts: Arc<ReloadCounters>,
    stop: CancellationToken,
) {
    let mut changes = std::pin::pin!(watch_object(secrets, SECRET).default_backoff());
    while let Some(Some(seen)) = stop.run_until_cancelled(changes.next()).await {
        match seen {
            Ok(None) => tracing::warn!("Secret {SYSTEM_NAMESPACE}/{SECRET} was deleted; keeping its certificate"),
            Ok(Some(secret)) => {
                let replaced = credentials(&secret).and_then(|next| Ok(own.replace_default(&next)?));
                counts.read_certificate(replaced.is_ok());
                if let Err(error) = replaced {
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
