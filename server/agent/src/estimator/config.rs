//! Configuration of the estimator.

use std::net::SocketAddr;
use std::path::PathBuf;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_plan::gates::Gates;

/// Configuration of an estimator, without flags that name files of settings or the format of the log.
#[derive(Debug)]
pub struct Config {
    /// Name of the cluster in the fleet.
    pub cluster_name: ClusterName,
    /// Kubeconfig of the cluster; the service account of the pod where there is none.
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
    /// Port of the gRPC service, on all addresses.
    pub server_port: u16,
    /// TLS of the gRPC service; it serves plain text where there is none.
    pub tls: Option<TlsFiles>,
    pub feature_gates: Gates,
    pub metrics_bind_address: Option<SocketAddr>,
    pub health_probe_bind_address: Option<SocketAddr>,
}

/// Files of a certificate and its key, and of the authority that clients' certificates must be signed by.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients are let in without a certificate where there is none.
    pub client_ca: Option<PathBuf>,
}
