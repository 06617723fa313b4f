//! Configuration of `crowsnest up`, `crowsnest apiserver` and `crowsnest member`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apiserver::authn::Oidc;
use crowsnest_controllers::runtime;
use crowsnest_index::CacheOptions;
use crowsnest_kube_apiserver::admission::Plugin;
use crowsnest_kube_apiserver::http::InFlightLimits;
use crowsnest_members::MemberPermissions;
use crowsnest_sim::load::Load;

use super::Server;
use super::fleet::MemberRequest;
use crowsnest_serve::api_config::{ApiConfig, AuditConfig};
use crowsnest_ui::UiConfig;
use crowsnest_ui::oidc::SignInConfig;

/// Configuration of an `up` process.
pub struct Config {
    pub storage: DataDirConfig,
    pub members: Members,
    /// Use the node shapes, feature gates and short intervals of the conformance suite.
    pub is_conformance: bool,
    /// Address of the control plane's API.
    pub listen: SocketAddr,
    /// Address of the web UI, a loopback address.
    pub ui_listen: SocketAddr,
    /// Synthetic workloads of the simulated members.
    pub load: Option<Load>,
    pub metrics_adapter: bool,
    pub controllers: runtime::Config,
    /// Options of the cache; its files are in the data directory.
    pub cache: CacheOptions,
    pub api: ApiConfig,
    pub oidc: Option<Arc<Oidc>>,
    pub sign_in: SignInConfig,
    pub ui: UiConfig,
}

/// The data directory; `reset` deletes its content first.
#[derive(Debug, Clone)]
pub struct DataDirConfig {
    pub data_dir: PathBuf,
    pub reset: bool,
}

/// Members of the fleet.
#[derive(Debug, Clone)]
pub enum Members {
    Simulated(Vec<MemberRequest>),
    /// Real clusters: contexts of a kubeconfig, and the permissions in these clusters.
    Joined {
        kubeconfig: PathBuf,
        contexts: Vec<String>,
        permissions: MemberPermissions,
    },
}

/// Configuration of an `apiserver` process.
pub struct ApiserverConfig {
    pub storage: DataDirConfig,
    pub listen: SocketAddr,
    pub disabled_admission_plugins: Vec<Plugin>,
    pub in_flight: InFlightLimits,
    pub oidc: Option<Arc<Oidc>>,
    pub audit: AuditConfig,
}

/// Configuration of a `member` process.
pub struct MemberConfig {
    pub name: ClusterName,
    pub storage: DataDirConfig,
    /// Address of the API; `None` for that of the last run, or a free one.
    pub listen: Option<SocketAddr>,
    pub load: Option<Load>,
    pub is_conformance: bool,
}

impl Config {
    /// Validates the configuration without opening anything, and returns a server with it.
    pub fn validate(self) -> anyhow::Result<Server> {
        if !self.ui_listen.ip().is_loopback() {
            bail!("--ui-listen {} must be a loopback address, because the UI is plain HTTP", self.ui_listen);
        }
        Ok(Server(self))
    }
}
