//! Configuration of the estimator.

use std::path::PathBuf;

use crowsnest_apimachinery::names::ClusterName;
use crowsnest_component_base::kubeconfig::KubeconfigContext;
use crowsnest_plan::gates::Gates;
use crowsnest_process::serving::ProbeAddresses;

/// Configuration of an estimator.
#[derive(Debug)]
pub struct Config {
    /// Name of the cluster in the control plane.
    pub cluster_name: ClusterName,
    /// Kubeconfig of the cluster; `None` for the service account of the pod.
    pub kubeconfig: Option<KubeconfigContext>,
    /// Port of the gRPC service, on all addresses.
    pub server_port: u16,
    /// TLS of the gRPC service; `None` for plain text.
    pub tls: Option<TlsFiles>,
    pub feature_gates: Gates,
    pub probe_addresses: ProbeAddresses,
}

/// Files of a certificate and its key, and of the CA for client certificates.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// `None` if clients need no certificate.
    pub client_ca: Option<PathBuf>,
}
