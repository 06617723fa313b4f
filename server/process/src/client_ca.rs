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
const TOLD_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);

/// CAs as PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Believed {
    pub front_proxies: Option<String>,
    /// Accepted common names of front proxies; empty accepts any.
    pub allowed_names: Vec<String>,
    pub users: Option<String>,
}

impl Believed {
    pub fn authorities(&self) -> Result<Authorities, ServingError> {
        Ok(Authorities::new(self.front_proxies.as_deref(), self.allowed_names.clone(), self.users.as_deref())?)
    }

    /// Merges two sources; values of `self` take precedence.
    fn or(self, other: &Self) -> Self {
        let front = if self.front_proxies.is_some() { &self } else { other };
        let (front_proxies, allowed_names) = (front.front_proxies.clone(), front.allowed_names.clone());
        Self { front_proxies, allowed_names, users: self.users.or_else(|| other.users.clone()) }
    }

    /// Reads the CAs from the ConfigMap.
    fn told(map: &ConfigMap) -> anyhow::Result<Self> {
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

/// The CAs that a listener trusts, from both sources.
pub struct Trust {
    tls: Tls,
    sources: Mutex<Sources>,
}

#[derive(Clone, Default)]
struct Sources {
    control_plane: Believed,
    files: Believed,
}

impl Trust {
    /// Creates the trust of `tls` from the control plane's ConfigMap.
    pub fn new(tls: Tls, control_plane: Believed) -> Self {
        Self { tls, sources: Mutex::new(Sources { control_plane, files: Believed::default() }) }
    }

    /// Applies a change of the files.
    pub fn read(&self, change: impl FnOnce(&mut Believed)) -> Result<(), ServingError> {
        self.change(|sources| change(&mut sources.files))
    }

    fn change(&self, change: impl FnOnce(&mut Sources)) -> Result<(), ServingError> {
        let mut sources = self.sources.lock();
        let mut next = sources.clone();
        change(&mut next);
        let believed = |sources: &Sources| sources.files.clone().or(&sources.control_plane);
        let (before, now) = (believed(&sources), believed(&next));
        if before != now {
            self.tls.believe(now.authorities()?);
        }
        *sources = next;
        Ok(())
    }

    /// Watches the ConfigMap until `stop`.
    pub async fn follow(&self, control_plane: kube::Client, stop: CancellationToken) {
        let told = watch_object(maps(control_plane), NAME).default_backoff();
        let mut told = std::pin::pin!(told);
        while let Some(Some(seen)) = stop.run_until_cancelled(told.next()).await {
            match seen {
                // A deleted ConfigMap does not revoke trust.
                Ok(None) => tracing::warn!("{NAMESPACE}/{NAME} was deleted; keeping its last content"),
                Ok(Some(map)) => {
                    let told = Believed::told(&map).and_then(|told| Ok(self.change(|s| s.control_plane = told)?));
                    if let Err(error) = told {
                        let error = format!("{error:#}");
                        tracing::error!(error, "cannot use {NAMESPACE}/{NAME}; keeping the previous content");
                    }
                }
                Err(error) => tracing::debug!(%error, "cannot watch {NAMESPACE}/{NAME}"),
            }
        }
    }
}

fn maps(control_plane: kube::Client) -> Api<ConfigMap> {
    Api::namespaced(control_plane, NAMESPACE)
}

/// Waits for the ConfigMap and reads it.
pub async fn told(control_plane: kube::Client) -> anyhow::Result<Believed> {
    let found = wait::await_condition(maps(control_plane), NAME, |map: Option<&ConfigMap>| map.is_some());
    let map = tokio::time::timeout(TOLD_WITHIN, found).await;
    let map = map.with_context(|| format!("timed out waiting for {NAMESPACE}/{NAME}"))??;
    Believed::told(&map.with_context(|| format!("{NAMESPACE}/{NAME} was deleted"))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn believed(front_proxies: Option<&str>, names: &[&str], users: Option<&str>) -> Believed {
        let allowed_names = names.iter().map(|name| (*name).to_owned()).collect();
        Believed { front_proxies: front_proxies.map(str::to_owned), allowed_names, users: users.map(str::to_owned) }
    }

    #[test]
    fn files_take_precedence() {
        let told = believed(Some("front"), &["proxy"], Some("users"));
        assert_eq!(Believed::default().or(&told), told);
        let users = believed(None, &[], Some("mine"));
        assert_eq!(users.or(&told), believed(Some("front"), &["proxy"], Some("mine")));
        // The names belong to the CA of the same source.
        let front = believed(Some("mine"), &[], None);
        assert_eq!(front.or(&told), believed(Some("mine"), &[], Some("users")));
    }

    #[rstest]
    #[case(&[("requestheader-client-ca-file", "front"), ("requestheader-allowed-names", "[\"a\"]"),
        ("client-ca-file", "users")], Ok(believed(Some("front"), &["a"], Some("users"))))]
    #[case(&[("requestheader-client-ca-file", "front")], Ok(believed(Some("front"), &[], None)))]
    #[case(&[("client-ca-file", "users")], Err("has no requestheader-client-ca-file"))]
    #[case(&[("requestheader-client-ca-file", "front"), ("requestheader-allowed-names", "a")],
        Err("requestheader-allowed-names"))]
    fn config_map_is_parsed(#[case] data: &[(&str, &str)], #[case] expected: Result<Believed, &str>) {
        let data = data.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let told = Believed::told(&ConfigMap { data: Some(data), ..ConfigMap::default() });
        match expected {
            Ok(expected) => assert_eq!(told.unwrap(), expected),
            Err(why) => assert!(told.unwrap_err().to_string().contains(why)),
        }
    }
}
