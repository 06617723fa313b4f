//! Configuration of `crowsnest serve`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crowsnest_api::role::Role;
use crowsnest_apiserver::authn::Oidc;
use crowsnest_component_base::kubeconfig::KubeconfigContext;
use crowsnest_controllers::runtime;
use crowsnest_index::CacheOptions;

use super::Server;
use crate::api_config::{ApiConfig, TrustedClients};
use crowsnest_process::serving::ProbeAddresses;
use crowsnest_runtime::leader_election::Timings;
use crowsnest_ui::UiConfig;
use crowsnest_ui::oidc::SignInConfig;

/// Address of the UI in URLs if this process does not serve it.
const DEFAULT_UI_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7080);

/// Configuration of a `serve` process.
pub struct Config {
    /// Kubeconfig of the control plane; `None` for the service account of the pod.
    pub kubeconfig: Option<KubeconfigContext>,
    pub roles: Vec<Role>,
    /// Unique name of this process.
    pub replica: String,
    /// Folder of the text index, the audit log and, with SQLite, the cache; one per process.
    pub data_dir: PathBuf,
    /// Options of the cache. An empty path means the data directory.
    pub cache: CacheOptions,
    /// Address of the aggregated APIs and the webhooks.
    pub listen: SocketAddr,
    /// Files of the certificate and its key; `None` for the certificate that `crowsnest install` created.
    pub certificate: Option<(PathBuf, PathBuf)>,
    pub probe_addresses: ProbeAddresses,
    pub ui_listen: Option<SocketAddr>,
    pub metrics_adapter: bool,
    /// Allow loopback and link-local addresses as endpoints and proxies of Clusters.
    pub allow_local_endpoints: bool,
    /// Time to continue serving after a signal, while not ready.
    pub shutdown_delay: Duration,
    pub leader_election: LeaderElection,
    pub controllers: runtime::Config,
    pub api: ApiConfig,
    /// Client certificates of the API servers that may call the webhooks; `None` accepts any client.
    pub webhook_clients: Option<TrustedClients>,
    pub oidc: Option<Arc<Oidc>>,
    pub sign_in: SignInConfig,
    pub ui: UiConfig,
}

/// Leader election of the controllers.
pub struct LeaderElection {
    pub is_enabled: bool,
    pub namespace: String,
    pub timings: Timings,
}

impl Config {
    /// Validates the options that can be checked without a control plane, and returns a server with this configuration.
    pub fn validate(self) -> anyhow::Result<Server> {
        self.leader_election.timings.validate().map_err(anyhow::Error::msg)?;
        let ui = self.ui_listen.unwrap_or(DEFAULT_UI_ADDRESS);
        let sign_in = self.oidc.clone().map(|oidc| anyhow::Ok((oidc, self.sign_in.build_client(ui)?))).transpose()?;
        Ok(Server::new(self, sign_in))
    }

    pub fn has_role(&self, role: Role) -> bool {
        self.roles.contains(&role) || self.roles.contains(&Role::All)
    }

    /// True if any role reads the cache.
    pub fn has_cache(&self) -> bool {
        [Role::Aggregated, Role::Controllers, Role::Cache].into_iter().any(|role| self.has_role(role))
    }
}
