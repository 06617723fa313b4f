//! Configuration of the agent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_members::ReportedTokens;
use http::Uri;

/// Configuration of an agent.
#[derive(Debug)]
pub struct Config {
    /// Name of the cluster in the control plane.
    pub cluster_name: ClusterName,
    pub control_plane_kubeconfig: PathBuf,
    /// Context of that kubeconfig; `None` for its current context.
    pub control_plane_context: Option<String>,
    /// Kubeconfig of the cluster; `None` for the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
    /// URL of the cluster's API server, with a host that is in its certificate; `None` for the kubeconfig's server.
    pub cluster_api_endpoint: Option<Uri>,
    /// Namespace of the tokens, in the cluster and in the control plane.
    pub cluster_namespace: String,
    pub cluster_provider: Option<String>,
    pub cluster_region: Option<String>,
    pub cluster_zones: Vec<String>,
    /// Tokens of the cluster that are reported to the control plane.
    pub report: ReportedTokens,
    pub health_probe_bind_address: Option<SocketAddr>,
    pub metrics_bind_address: Option<SocketAddr>,
    /// Renewal of the agent's client certificate; `None` disables it.
    pub rotation: Option<Rotation>,
}

/// When and where the agent's certificate is renewed.
#[derive(Debug)]
pub struct Rotation {
    /// The Secret that the kubeconfig is mounted from; `None` to write the file itself.
    pub secret: Option<SecretName>,
    /// Lifetime of a renewed certificate, in seconds.
    pub expiration_seconds: i32,
    pub checking_interval: Duration,
    /// Remaining fraction of the lifetime at which the certificate is renewed, between 0 and 1.
    pub remaining_time_threshold: f64,
}

/// Namespace and name of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
}
