//! Configuration of the agent.

use std::time::Duration;

use crowsnest_component_base::kubeconfig::KubeconfigContext;
use crowsnest_members::JoinOptions;
use crowsnest_process::serving::ProbeAddresses;

/// Configuration of an agent.
#[derive(Debug)]
pub struct Config {
    /// Options of the registration; the agent sets the sync mode. The serving certificate of the cluster's API server must
    /// be valid for the host of the API endpoint.
    pub registration: JoinOptions,
    /// Kubeconfig of the control plane.
    pub control_plane: KubeconfigContext,
    /// Kubeconfig of the cluster; `None` for the service account of the pod.
    pub kubeconfig: Option<KubeconfigContext>,
    pub probe_addresses: ProbeAddresses,
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
