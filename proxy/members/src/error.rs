//! Errors of joining member clusters and of connecting to them.

use crowsnest_api::cluster::ClusterSyncMode;
use crowsnest_apimachinery::names::ClusterName;
use std::sync::Arc;
use std::time::Duration;

/// Errors of this crate. Cheap to clone, because the reason of a failed connection is returned to every reader.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    #[error("cluster {0} is not registered")]
    UnknownCluster(ClusterName),
    #[error("cluster {cluster}: spec.apiEndpoint {endpoint:?} is not usable: {reason}")]
    Endpoint { cluster: ClusterName, endpoint: String, reason: String },
    #[error("cluster {cluster}: spec.{field} {problem}")]
    Spec { cluster: ClusterName, field: &'static str, problem: String },
    #[error("cluster {cluster}: secret {namespace}/{name} {reason}")]
    Secret { cluster: ClusterName, namespace: String, name: String, reason: String },
    #[error("cannot connect to {target}: {reason}")]
    Dial { target: String, reason: String },
    #[error("no agent of cluster {0} has a tunnel open, and it can only be reached through a tunnel")]
    NoTunnel(ClusterName),
    #[error("the tunnel was interrupted")]
    Tunnel(#[source] Arc<hyper::Error>),
    #[error("{target} did not accept a connection within {seconds} s")]
    DialTimeout { target: String, seconds: u64 },
    #[error("{problem}")]
    Kube {
        problem: String,
        #[source]
        source: Arc<kube::Error>,
    },
    #[error("{problem}")]
    Parse {
        problem: String,
        #[source]
        source: Arc<serde_json::Error>,
    },
    #[error("cluster {name} is already registered")]
    NameTaken { name: ClusterName },
    #[error("cluster {name} is being deleted; join it again when the deletion is complete")]
    Leaving { name: ClusterName },
    #[error(
        "cluster {name} is registered with ID {registered}, but this cluster has {actual}; use another name, or delete that Cluster first"
    )]
    OtherCluster { name: ClusterName, registered: String, actual: String },
    #[error("cluster {name} is registered in {registered} mode, not in {requested} mode; remove it first")]
    OtherMode { name: ClusterName, registered: ClusterSyncMode, requested: ClusterSyncMode },
    #[error("the cluster with ID {id} is already registered as {name}")]
    IdTaken { id: String, name: String },
    #[error("cannot impersonate {user:?}: {reason}")]
    Impersonate { user: String, reason: String },
    #[error("{0}")]
    Join(String),
    #[error("{object} still exists after {seconds} s: {reason}")]
    DeletionTimeout { object: String, seconds: u64, reason: String },
    #[error("the watch on {resource} ended: {reason}")]
    WatchEnded { resource: &'static str, reason: String },
}

impl Error {
    /// A reference in the spec that is not set.
    pub(crate) fn missing_reference(cluster: &ClusterName, field: &'static str) -> Self {
        Self::Spec { cluster: cluster.clone(), field, problem: "is not set".to_owned() }
    }

    /// A proxy in the spec that cannot be used.
    pub(crate) fn proxy(cluster: &ClusterName, reason: &str) -> Self {
        let problem = format!("is not usable: {reason}");
        Self::Spec { cluster: cluster.clone(), field: "proxyURL or spec.proxyHeader", problem }
    }

    /// A failed request. `problem` names the operation: `cannot read Cluster east`.
    pub fn kube(problem: impl Into<String>, source: kube::Error) -> Self {
        Self::Kube { problem: problem.into(), source: Arc::new(source) }
    }

    /// An object whose finalizers were not removed within `timeout`.
    pub(crate) fn finalizers_remain(object: String, timeout: Duration) -> Self {
        let reason = "its finalizers wait for cleanup".to_owned();
        Self::DeletionTimeout { object, seconds: timeout.as_secs(), reason }
    }

    /// True if the API server responded with 404.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == 404))
    }

    /// True if the API server responded with 403.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Kube { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == 403))
    }

    /// True if the API server responded with 409 and reason AlreadyExists.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Kube { source, .. }
            if matches!(&**source, kube::Error::Api(status) if status.code == 409 && status.reason == "AlreadyExists"))
    }
}
