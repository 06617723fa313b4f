//! Real clusters that `up` joins. Their kubeconfig is validated before anything starts, and they are contacted before
//! anything is written.
//!
//! A cluster that an earlier `up` joined stays joined if it is unreachable: it must not keep the others from being
//! served.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use crowsnest_api::cluster::Cluster;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::kubeconfig::KubeconfigFile;
use crowsnest_members::join::{JoinOptions, cluster_id, join};
use crowsnest_members::{Error, MemberPermissions};
use futures::future::{join_all, try_join_all};
use kube::{Api, ResourceExt};

use super::progress::Progress;

/// Timeout for reading a cluster's id.
const ID_TIMEOUT: Duration = Duration::from_secs(15);
/// Timeout for refreshing the credentials of a joined cluster.
const REFRESH_TIMEOUT: Duration = Duration::from_secs(15);

/// Clusters of a kubeconfig, named as their contexts.
pub(super) struct JoinedClusters {
    file: PathBuf,
    clusters: Vec<(ClusterName, kube::Config)>,
    permissions: MemberPermissions,
}

impl JoinedClusters {
    /// Reads the file and finds the contexts; contacts no cluster.
    pub(super) async fn read(file: &Path, contexts: &[String], permissions: MemberPermissions) -> anyhow::Result<Self> {
        let kubeconfig = KubeconfigFile::read(file)?;
        let mut clusters: Vec<(ClusterName, kube::Config)> = Vec::new();
        for context in contexts {
            let config = kubeconfig.config(Some(context)).await?;
            let name: ClusterName = context.parse().with_context(|| {
                format!("context {context} is not a valid cluster name; rename it with `kubectl config rename-context`")
            })?;
            if clusters.iter().any(|(other, _)| *other == name) {
                bail!("context {context} is listed twice");
            }
            clusters.push((name, config));
        }
        Ok(Self { file: file.to_owned(), clusters, permissions })
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &ClusterName> {
        self.clusters.iter().map(|(name, _)| name)
    }

    /// Joins the reachable clusters.
    pub(super) async fn join(&self, control_plane: &kube::Client, progress: &Progress) -> anyhow::Result<()> {
        let registered: Api<Cluster> = Api::all(control_plane.clone());
        let registered = registered.list(&Default::default()).await.context("cannot list Clusters")?;
        let is_registered = |name: &ClusterName| registered.iter().any(|cluster| cluster.name_any() == name.as_str());
        let mut reachable: BTreeMap<String, (&ClusterName, &kube::Config)> = BTreeMap::new();
        let ids = join_all(
            self.clusters.iter().map(|(name, config)| async move { (name, config, read_cluster_id(config).await) }),
        );
        for (name, config, id) in ids.await {
            match id {
                Ok(id) => {
                    if let Some((other, _)) = reachable.insert(id, (name, config)) {
                        bail!("contexts {other} and {name} lead to the same cluster ({})", config.cluster_url);
                    }
                }
                Err(error) if is_registered(name) => {
                    progress.warn(&format!("cluster {name} stays joined but is unreachable: {error:#}"));
                }
                Err(error) => return Err(error.context(format!("cannot join cluster {name}"))),
            }
        }
        let joins = reachable.into_values().map(|(name, config)| {
            let is_registered = is_registered(name);
            async move {
                let permissions = self.permissions.clone();
                let options = JoinOptions { refresh: true, permissions, ..JoinOptions::new(name.clone()) };
                let join = join(control_plane, config, &options);
                if !is_registered {
                    return join.await.map(drop).with_context(|| format!("cannot join cluster {name}"));
                }
                let failure = match tokio::time::timeout(REFRESH_TIMEOUT, join).await {
                    Ok(Ok(_)) => return Ok(()),
                    Ok(Err(error)) if !is_unreachable(&error) => {
                        return Err(error).with_context(|| format!("cannot join cluster {name}"));
                    }
                    Ok(Err(error)) => root_cause_message(&error.into()),
                    Err(_) => format!("no response within {} s", REFRESH_TIMEOUT.as_secs()),
                };
                progress
                    .warn(&format!("cluster {name} stays joined, but its credentials were not refreshed: {failure}"));
                Ok(())
            }
        });
        try_join_all(joins).await?;
        Ok(())
    }
}

/// Reads the cluster's id; errors contain the URL.
async fn read_cluster_id(config: &kube::Config) -> anyhow::Result<String> {
    let request = async {
        let client = kube::Client::try_from(config.clone())?;
        Ok::<_, anyhow::Error>(cluster_id(&client).await?)
    };
    match tokio::time::timeout(ID_TIMEOUT, request).await {
        Ok(Ok(id)) => Ok(id),
        Ok(Err(error)) => bail!("{}: {}", config.cluster_url, root_cause_message(&error)),
        Err(_) => bail!("{}: no response within {} s", config.cluster_url, ID_TIMEOUT.as_secs()),
    }
}

/// True if the cluster is unreachable, false if it rejected the request.
fn is_unreachable(error: &Error) -> bool {
    match error {
        Error::Kube { source, .. } => !matches!(&**source, kube::Error::Api(status) if status.code < 500),
        Error::WatchEnded { .. } => true,
        _ => false,
    }
}

/// Message of the innermost cause, or of the Status if the API server returned one.
fn root_cause_message(error: &anyhow::Error) -> String {
    match error.chain().find_map(|cause| cause.downcast_ref::<kube::Error>()) {
        Some(kube::Error::Api(status)) => status.message.clone(),
        _ => error.root_cause().to_string(),
    }
}
