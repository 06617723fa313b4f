//! Configuration of the estimator.

use std::net::SocketAddr;
use std::path::PathBuf;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_plan::gates::Gates;

/// Configuration of an estimator.
#[derive(Debug)]
pub struct Config {
    /// Name of the cluster in the control plane.
    pub cluster_name: ClusterName,
    /// Kubeconfig of the cluster; `None` for the service account of the pod.
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
    /// Port of the gRPC service, on all addresses.
    pub server_port: u16,
    /// TLS of the gRPC service; `None` for plain text.
    pub tls: Option<TlsFiles>,
    pub feature_gates: Gates,
    pub metrics_bind_address: Option<SocketAddr>,
    pub health_probe_bind_address: Option<SocketAddr>,
}

/// Files of a certificate and its key, and of the CA for client certificates.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// `None` if clients need no certificate.
    pub client_ca: Option<PathBuf>,
}
