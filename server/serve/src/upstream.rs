//! Client of the control plane, with the identity from the kubeconfig. The kubeconfig and the files it names are
//! reloaded when they change, because certificates are renewed; open requests keep the old identity.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use crowsnest_component_base::kubeconfig::{KubeconfigContext, KubeconfigFile};
use crowsnest_component_base::requests::RequestCountLayer;
use crowsnest_component_base::spans;
use futures::FutureExt;
use kube::client::Body;
use tokio::runtime::Handle;

use crowsnest_process::reload::Reloader;

/// Returns a client for `config`, reloaded from `kubeconfig` if it was read from one. The tasks of the client run on the
/// runtime of the caller, even after a reload.
pub(super) async fn client(
    config: kube::Config,
    kubeconfig: Option<KubeconfigContext>,
    request_metrics: RequestCountLayer,
    reloader: &mut Reloader,
) -> anyhow::Result<kube::Client> {
    let client = spans::traced_client(config, &request_metrics)?;
    // kube reloads a pod's service account token itself.
    let Some(kubeconfig) = kubeconfig else { return Ok(client) };
    let namespace = client.default_namespace().to_owned();
    let current = Arc::new(ArcSwap::from_pointee(client));
    let reloaded_client = Arc::clone(&current);
    let files = files_to_watch(&kubeconfig.file)?;
    // The reloader does not run on the runtime of the leader election client.
    let runtime = Handle::current();
    let reload = move |_: &[String]| {
        let loaded = kubeconfig.load().now_or_never();
        let mut config = loaded.with_context(|| {
            let file = kubeconfig.file.display();
            format!(
                "cannot reload the kubeconfig {file}: loading it would block; restart this process to use the new file"
            )
        })??;
        config.default_retry = false;
        let _context = runtime.enter();
        reloaded_client.store(Arc::new(spans::traced_client(config, &request_metrics)?));
        Ok(())
    };
    reloader.watch("kubeconfig", files, reload).await?;
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let client = current.load_full();
        async move { client.send(request).await }
    });
    Ok(kube::Client::new(service, namespace))
}

/// The kubeconfig and the certificate and key files that it names. kube reloads token files itself.
fn files_to_watch(file: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let kubeconfig = KubeconfigFile::read(file)?.into_content();
    let users = kubeconfig.auth_infos.into_iter().filter_map(|named| named.auth_info);
    let files_of_users = users.flat_map(|user| [user.client_certificate, user.client_key]);
    let files_of_clusters = kubeconfig.clusters.into_iter().filter_map(|named| named.cluster?.certificate_authority);
    let mut files = vec![file.to_owned()];
    for file in files_of_users.flatten().chain(files_of_clusters) {
        let path = PathBuf::from(file);
        // Files of other users may be missing.
        if path.is_file() && !files.contains(&path) {
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_kubeconfig_are_watched() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.crt", "a.key", "ca.crt"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        let file = folder.path().join("kubeconfig");
        let text = "{clusters: [{name: c, cluster: {server: 'https://c', certificate-authority: ca.crt}}], \
             users: [{name: a, user: {client-certificate: a.crt, client-key: a.key}}, \
             {name: b, user: {client-certificate: missing.crt, client-key: a.key}}]}";
        std::fs::write(&file, text).unwrap();
        let files = files_to_watch(&file).unwrap();
        let names: Vec<_> = files.iter().map(|path| path.file_name().unwrap().to_string_lossy()).collect();
        assert_eq!(names, ["kubeconfig", "a.crt", "a.key", "ca.crt"]);
    }
}
