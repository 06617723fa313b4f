//! CAs that the aggregated API server trusts for front proxies and users. They are read from the ConfigMap
//! `kube-system/extension-apiserver-authentication`, which is watched; files take precedence (`reload`).
//!
//! A change applies to new connections. Invalid content changes nothing.

use anyhow::Context;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::runtime::watcher::watch_object;
use kube::runtime::{WatchStreamExt, wait};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::client_certificate::Authorities;
use crate::serving::{ServingError, Tls};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
/// Time to wait for the ConfigMap at start-up.
const CONFIG_MAP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

/// CAs as PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedCas {
    pub front_proxies: Option<String>,
    /// Accepted common names of front proxies; empty accepts any.
    pub allowed_names: Vec<String>,
    pub users: Option<String>,
}

impl TrustedCas {
    pub fn authorities(&self) -> Result<Authorities, ServingError> {
        Ok(Authorities::new(self.front_proxies.as_deref(), self.allowed_names.clone(), self.users.as_deref())?)
    }

    /// Merges two sources; values of `self` take precedence.
    fn merge(self, other: &Self) -> Self {
        let front_source = if self.front_proxies.is_some() { &self } else { other };
        let (front_proxies, allowed_names) = (front_source.front_proxies.clone(), front_source.allowed_names.clone());
        Self { front_proxies, allowed_names, users: self.users.or_else(|| other.users.clone()) }
    }

    /// Reads the CAs from the ConfigMap.
    fn from_config_map(map: &ConfigMap) -> anyhow::Result<Self> {
        let data = map.data.clone().unwrap_or_default();
        let front_proxies = data.get("requestheader-client-ca-file");
        let front_proxies = front_proxies.with_context(|| format!("{NAME} has no requestheader-client-ca-file"))?;
        let names = data.get("requestheader-allowed-names").map(|text| serde_json::from_str(text)).transpose();
        let allowed_names = names.with_context(|| format!("requestheader-allowed-names of {NAME}"))?;
        Ok(Self {
            front_proxies: Some(front_proxies.clone()),
            allowed_names: allowed_names.unwrap_or_default(),
            users: data.get("client-ca-file").cloned(),
        })
    }
}

/// Updates the CAs that a listener trusts when one of their two sources changes.
pub struct ClientCaUpdater {
    tls: Tls,
    sources: Mutex<Sources>,
}

#[derive(Clone, Default)]
struct Sources {
    control_plane: TrustedCas,
    files: TrustedCas,
}

impl ClientCaUpdater {
    /// Creates the updater of `tls`, which trusts the CAs of the control plane's ConfigMap.
    pub fn new(tls: Tls, control_plane: TrustedCas) -> Self {
        Self { tls, sources: Mutex::new(Sources { control_plane, files: TrustedCas::default() }) }
    }

    /// Updates the CAs read from files.
    pub fn update_files(&self, change: impl FnOnce(&mut TrustedCas)) -> Result<(), ServingError> {
        self.update(|sources| change(&mut sources.files))
    }

    fn update(&self, change: impl FnOnce(&mut Sources)) -> Result<(), ServingError> {
        let mut sources = self.sources.lock();
        let mut next = sources.clone();
        change(&mut next);
        let effective = |sources: &Sources| sources.files.clone().merge(&sources.control_plane);
        let (before, after) = (effective(&sources), effective(&next));
        if before != after {
            self.tls.set_trusted_cas(after.authorities()?);
        }
        *sources = next;
        Ok(())
    }

    /// Watches the ConfigMap until `stop`, and applies its changes.
    pub async fn watch_config_map(&self, control_plane: kube::Client, stop: CancellationToken) {
        let changes = watch_object(config_maps(control_plane), NAME).default_backoff();
        let mut changes = std::pin::pin!(changes);
        while let Some(Some(event)) = stop.run_until_cancelled(changes.next()).await {
            match event {
                // A deleted ConfigMap does not revoke trust.
                Ok(None) => tracing::warn!("{NAMESPACE}/{NAME} was deleted; keeping its last content"),
                Ok(Some(map)) => {
                    let result =
                        TrustedCas::from_config_map(&map).and_then(|cas| Ok(self.update(|s| s.control_plane = cas)?));
                    if let Err(error) = result {
                        let error = format!("{error:#}");
                        tracing::error!(error, "cannot use {NAMESPACE}/{NAME}; keeping the previous content");
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot watch {NAMESPACE}/{NAME}"),
            }
        }
    }
}

fn config_maps(control_plane: kube::Client) -> Api<ConfigMap> {
    Api::namespaced(control_plane, NAMESPACE)
}

/// Waits for the ConfigMap and reads it.
pub async fn load_trusted_cas(control_plane: kube::Client) -> anyhow::Result<TrustedCas> {
    let exists = wait::await_condition(config_maps(control_plane), NAME, |map: Option<&ConfigMap>| map.is_some());
    let map = tokio::time::timeout(CONFIG_MAP_TIMEOUT, exists).await;
    let map = map.with_context(|| format!("timed out waiting for {NAMESPACE}/{NAME}"))??;
    TrustedCas::from_config_map(&map.with_context(|| format!("{NAMESPACE}/{NAME} was deleted"))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn cas(front_proxies: Option<&str>, names: &[&str], users: Option<&str>) -> TrustedCas {
        let allowed_names = names.iter().map(|name| (*name).to_owned()).collect();
        TrustedCas { front_proxies: front_proxies.map(str::to_owned), allowed_names, users: users.map(str::to_owned) }
    }

    #[test]
    fn files_take_precedence() {
        let from_control_plane = cas(Some("front"), &["proxy"], Some("users"));
        assert_eq!(TrustedCas::default().merge(&from_control_plane), from_control_plane);
        let users = cas(None, &[], Some("mine"));
        assert_eq!(users.merge(&from_control_plane), cas(Some("front"), &["proxy"], Some("mine")));
        // The names belong to the CA of the same source.
        let front = cas(Some("mine"), &[], None);
        assert_eq!(front.merge(&from_control_plane), cas(Some("mine"), &[], Some("users")));
    }

    #[rstest]
    #[case(&[("requestheader-client-ca-file", "front"), ("requestheader-allowed-names", "[\"a\"]"),
        ("client-ca-file", "users")], Ok(cas(Some("front"), &["a"], Some("users"))))]
    #[case(&[("requestheader-client-ca-file", "front")], Ok(cas(Some("front"), &[], None)))]
    #[case(&[("client-ca-file", "users")], Err("has no requestheader-client-ca-file"))]
    #[case(&[("requestheader-client-ca-file", "front"), ("requestheader-allowed-names", "a")],
        Err("requestheader-allowed-names"))]
    fn config_map_is_parsed(#[case] data: &[(&str, &str)], #[case] expected: Result<TrustedCas, &str>) {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let parsed = TrustedCas::from_config_map(&ConfigMap { data: Some(data), ..ConfigMap::default() });
        match expected {
            Ok(expected) => assert_eq!(parsed.unwrap(), expected),
            Err(expected) => assert!(parsed.unwrap_err().to_string().contains(expected)),
        }
    }
}
