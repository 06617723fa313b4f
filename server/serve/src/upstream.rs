//! Who we are to the control plane. A kubeconfig and the files it names are read again when they change, as a certificate in them may
//! have been renewed: requests from then on are made as they say now, those under way end as they began. Written by the reloader, read
//! by whoever asks.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use arc_swap::ArcSwap;
use crowsnest_component_base::kubeconfig::{self, KubeconfigFile};
use crowsnest_component_base::requests::CountRequests;
use crowsnest_component_base::spans;
use futures::FutureExt;
use kube::client::Body;

use crowsnest_process::reload::Reloader;

/// A client of the control plane that `config` reaches, by `file` where it was read from one.
pub(super) async fn client(
    config: kube::Config,
    file: Option<(PathBuf, Option<String>)>,
    counted: CountRequests,
    reloader: &mut Reloader,
) -> anyhow::Result<kube::Client> {
    let first = spans::client(config, &counted)?;
    // What a pod has for this, kube reads again by itself.
    let Some((file, context)) = file else { return Ok(first) };
    let namespace = first.default_namespace().to_owned();
    let current = Arc::new(ArcSwap::from_pointee(first));
    let shown = Arc::clone(&current);
    let files = named(&file)?;
    let take = move |_: &[String]| {
        let mut config =
            kubeconfig::config(Some(&file), context.as_deref()).now_or_never().context("it takes its time")??;
        config.default_retry = false;
        shown.store(Arc::new(spans::client(config, &counted)?));
        Ok(())
    };
    reloader.watch("kubeconfig", files, take).await?;
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let now = current.load_full();
        async move { now.send(request).await }
    });
    Ok(kube::Client::new(service, namespace))
}

/// A kubeconfig, and the certificates and keys that it names. Tokens in files kube reads again by itself.
fn named(file: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let read = KubeconfigFile::read(file)?.into_content();
    let of_users = read.auth_infos.into_iter().filter_map(|named| named.auth_info);
    let of_users = of_users.flat_map(|user| [user.client_certificate, user.client_key]);
    let of_clusters = read.clusters.into_iter().filter_map(|named| named.cluster?.certificate_authority);
    let mut files = vec![file.to_owned()];
    for named in of_users.flatten().chain(of_clusters) {
        let path = PathBuf::from(named);
        // Of a user that is not ours one may be missing.
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
    fn what_a_kubeconfig_names_is_watched_where_it_is() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.crt", "a.key", "ca.crt"] {
            std::fs::write(folder.path().join(name), "x").unwrap();
        }
        let file = folder.path().join("kubeconfig");
        let text = "{clusters: [{name: c, cluster: {server: 'https://c', certificate-authority: ca.crt}}], \
             users: [{name: a, user: {client-certificate: a.crt, client-key: a.key}}, \
             {name: b, user: {client-certificate: nowhere.crt, client-key: a.key}}]}";
        std::fs::write(&file, text).unwrap();
        let found = named(&file).unwrap();
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_string_lossy()).collect();
        assert_eq!(names, ["kubeconfig", "a.crt", "a.key", "ca.crt"]);
    }
}
