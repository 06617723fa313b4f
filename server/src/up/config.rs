//! Configuration of `crowsnest up`, `crowsnest apiserver` and `crowsnest member`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_apiserver::authn::Oidc;
use crowsnest_controllers::runtime;
use crowsnest_index::IndexOptions;
use crowsnest_kube_apiserver::admission::Plugin;
use crowsnest_kube_apiserver::http::InFlight;
use crowsnest_members::Rights;
use crowsnest_sim::load::Load;

use super::Server;
use crate::config::{ApiConfig, AuditConfig};
use crate::ui::UiConfig;
use crate::ui::oidc::SignInConfig;

/// Configuration of an `up` process.
pub(crate) struct Config {
    pub(crate) place: Place,
    pub(crate) members: Members,
    /// The fleet is that of the conformance suite: node shapes, gates, quick periods.
    pub(crate) is_conformance: bool,
    /// Address of the control plane's API.
    pub(crate) listen: SocketAddr,
    /// Address of the web UI, a loopback address.
    pub(crate) ui_listen: SocketAddr,
    /// Synthetic workloads of the simulated members.
    pub(crate) load: Option<Load>,
    pub(crate) metrics_adapter: bool,
    pub(crate) controllers: runtime::Config,
    /// The cache; its files are in the data directory.
    pub(crate) cache: IndexOptions,
    pub(crate) api: ApiConfig,
    pub(crate) oidc: Option<Arc<Oidc>>,
    pub(crate) sign_in: SignInConfig,
    pub(crate) ui: UiConfig,
}

/// The data directory, and whether it is emptied first.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) data_dir: PathBuf,
    pub(crate) reset: bool,
}

/// Members of the fleet.
#[derive(Debug, Clone)]
pub(crate) enum Members {
    Simulated(Vec<ClusterName>),
    /// Real clusters: contexts of a kubeconfig, and the rights that we get there.
    Joined {
        kubeconfig: PathBuf,
        contexts: Vec<String>,
        rights: Rights,
    },
}

/// Configuration of an `apiserver` process.
pub(crate) struct ApiserverConfig {
    pub(crate) place: Place,
    pub(crate) listen: SocketAddr,
    pub(crate) disabled_admission: Vec<Plugin>,
    pub(crate) in_flight: InFlight,
    pub(crate) oidc: Option<Arc<Oidc>>,
    pub(crate) audit: AuditConfig,
}

/// Configuration of a `member` process.
pub(crate) struct MemberConfig {
    pub(crate) name: ClusterName,
    pub(crate) place: Place,
    /// Address of its API; that of last time, or any that is free, where there is none.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) load: Option<Load>,
    pub(crate) is_conformance: bool,
}

impl Config {
    /// Checks what can be checked before anything is opened, and returns the server of this configuration.
    pub(crate) fn validate(self) -> anyhow::Result<Server> {
        if !self.ui_listen.ip().is_loopback() {
            bail!(
                "--ui-listen {} is no loopback address; the UI's plain HTTP must not leave this machine",
                self.ui_listen
            );
        }
        Ok(Server(self))
    }
}
