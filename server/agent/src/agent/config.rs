//! Configuration of the agent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_members::Reported;
use http::Uri;

/// Configuration of an agent, without flags that name files of settings or the format of the log.
#[derive(Debug)]
pub struct Config {
    /// Name of the cluster in the fleet.
    pub cluster_name: ClusterName,
    pub control_plane_kubeconfig: PathBuf,
    /// Context of that kubeconfig; its current one where there is none.
    pub control_plane_context: Option<String>,
    /// Kubeconfig of the cluster; the service account of the pod where there is none.
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
    /// API server of the cluster as its certificate names it; that of the kubeconfig where there is none.
    pub cluster_api_endpoint: Option<Uri>,
    /// Namespace of the tokens, in the cluster and in the control plane.
    pub cluster_namespace: String,
    pub cluster_provider: Option<String>,
    pub cluster_region: Option<String>,
    pub cluster_zones: Vec<String>,
    /// Tokens of the cluster that the control plane gets.
    pub report: Reported,
    pub health_probe_bind_address: Option<SocketAddr>,
    pub metrics_bind_address: Option<SocketAddr>,
    /// Renewal of the certificate by which the control plane knows the agent; none where others renew it.
    pub rotation: Option<Rotation>,
}

/// When and where the agent's certificate is renewed.
#[derive(Debug)]
pub struct Rotation {
    /// The Secret that the kubeconfig is mounted from; the file itself is written where there is none.
    pub secret: Option<SecretName>,
    /// Lifetime of a renewed certificate, in seconds.
    pub expiration_seconds: i32,
    pub checking_interval: Duration,
    /// The certificate is renewed when this part of its lifetime is left, between 0 and 1.
    pub remaining_time_threshold: f64,
}

/// Namespace and name of a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretName {
    pub namespace: String,
    pub name: String,
}
