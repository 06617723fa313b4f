//! One watch per kind and member, feeding that kind's [`Store`].

use std::collections::HashSet;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::store::{Index, Key, Store, Stored};

/// A typed object as controllers keep it: without managed fields, with its version as a number.
#[derive(Debug, Clone)]
pub struct Object<K> {
    key: Key,
    uid: Arc<str>,
    version: u64,
    object: K,
}

impl<K> Deref for Object<K> {
    type Target = K;
    fn deref(&self) -> &K {
        &self.object
    }
}

impl<K: Resource<DynamicType = ()>> From<K> for Object<K> {
    fn from(mut object: K) -> Self {
        let meta = object.meta_mut();
        meta.managed_fields = None;
        Self {
            key: key_of(meta),
            uid: meta.uid.as_deref().unwrap_or_default().into(),
            version: version_of(meta),
            object,
        }
    }
}

impl<K: Resource<DynamicType = ()> + Send + Sync + 'static> Stored for Object<K> {
    fn key(&self) -> Key {
        self.key.clone()
    }
    fn uid(&self) -> &str {
        &self.uid
    }
    fn version(&self) -> u64 {
        self.version
    }
    fn indexes(&self) -> Vec<Index> {
        let namespace = self.key.namespace.clone();
        match controller_of(self.object.meta()) {
            Some(owner) => vec![Index::Owner(owner.uid.as_str().into()), Index::Namespace(namespace)],
            None => vec![Index::Orphan(namespace.clone()), Index::Namespace(namespace)],
        }
    }
}

/// Namespace and name of an object.
pub fn key_of(meta: &ObjectMeta) -> Key {
    Key::new(meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// The resourceVersion as a number; 0 for an object that was never stored.
pub fn version_of(meta: &ObjectMeta) -> u64 {
    meta.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// The owner that controls an object.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Keeps `store` equal to what `api` serves until cancelled. A broken watch is resumed by kube's watcher with its backoff.
pub async fn run<K, T>(
    api: Api<K>,
    config: watcher::Config,
    store: Arc<Store<T>>,
    keep: impl Fn(K) -> T,
    stop: CancellationToken,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Stored,
{
    let mut before = store.snapshot();
    let mut seen = HashSet::new();
    let mut events = watcher(api, config).default_backoff().take_until(stop.cancelled_owned()).boxed();
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::Init)) => {
                before = store.snapshot();
                seen.clear();
            }
            Ok(Some(watcher::Event::InitApply(object))) => {
                seen.insert(key_of(object.meta()));
                store.apply(keep(object));
            }
            Ok(Some(watcher::Event::InitDone)) => {
                store.retain_seen(&before, &seen);
                before.clear();
                seen = HashSet::new();
            }
            Ok(Some(watcher::Event::Apply(object))) => {
                store.apply(keep(object));
            }
            Ok(Some(watcher::Event::Delete(object))) => {
                let meta = object.meta();
                store.remove(&key_of(meta), meta.uid.as_deref().unwrap_or_default());
            }
            Ok(None) => return,
            Err(error) => tracing::debug!(kind = %K::kind(&()), %error, "watch broke; resuming"),
        }
    }
}
