//! Informers: one per kind and member, each of which updates a [`Store`].
//!
//! They read the member's storage instead of its API. Most changes in a member are writes of its own controllers, which
//! have updated the store with the response; informers recognize these by the revision and do not decode them again.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use crowsnest_registry::Registry;
use crowsnest_registry::error::Error as StorageError;
use crowsnest_registry::resource::ResourceRef;
use crowsnest_registry::storage::{Body, Change, ChangeKind, ListRange, ObjectKey, Record, Revision};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::store::{Identity, Index, Key, Store, StoreObject};
use crate::error::{Error, Result};

/// A typed object for controllers: without managed fields, with its version as a number.
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

impl<K: Resource<DynamicType = ()> + Send + Sync + 'static> StoreObject for Object<K> {
    fn identity(&self) -> Identity<'_> {
        Identity { key: &self.key, uid: &self.uid, version: self.version }
    }

    fn indexes(&self) -> Vec<Index> {
        let owner = controller_of(self.object.meta()).map(|owner| owner.uid.as_str().into());
        Index::by_owner_and_namespace(owner, Arc::clone(&self.key.namespace))
    }
}

impl<K: Resource<DynamicType = ()> + Send + Sync + 'static> Store<Object<K>> {
    /// The object, unless it is being deleted.
    pub fn get_undeleted(&self, key: &Key) -> Option<Arc<Object<K>>> {
        self.get(key).filter(|object| object.meta().deletion_timestamp.is_none())
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

/// The controller owner of an object.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

/// Number of objects that are decoded before the task yields.
const OBJECTS_PER_YIELD: usize = 64;

/// Informer of a kind.
pub struct Informer<T, F> {
    pub registry: Arc<Registry>,
    pub resource: ResourceRef,
    pub store: Arc<Store<T>>,
    /// Converts an object to the form in the store.
    pub convert: F,
}

impl<T: StoreObject, F> Informer<T, F> {
    /// Updates the store from the registry until cancelled.
    pub async fn run<K>(self, stop: CancellationToken)
    where
        K: DeserializeOwned,
        F: Fn(K) -> T,
    {
        loop {
            let error = tokio::select! {
                () = stop.cancelled() => return,
                error = self.list_and_watch::<K>() => error,
            };
            match error {
                StorageError::Closed => return,
                // The watch has expired: all objects are listed again.
                error => tracing::debug!(resource = %self.resource.gvr.resource, %error, "restarting an informer"),
            }
        }
    }

    /// Lists all objects, then watches changes. Returns the error that ends the watch.
    async fn list_and_watch<K>(&self) -> StorageError
    where
        K: DeserializeOwned,
        F: Fn(K) -> T,
    {
        let table = self.resource.table();
        let before = self.store.snapshot();
        let listing = match self.registry.store.list(&table, "", ListRange::ALL) {
            Ok(listing) => listing,
            Err(error) => return error,
        };
        let mut listed = HashSet::with_capacity(listing.records.len());
        for (number, record) in listing.records.into_iter().enumerate() {
            let key = store_key(&record.key);
            if !self.store.has_version(&key, record.revision) {
                self.decode_and_apply::<K>(&record.key, record.revision, &record.body).await;
            }
            listed.insert(key);
            if number % OBJECTS_PER_YIELD == 0 {
                tokio::task::yield_now().await;
            }
        }
        self.store.retain_listed(&before, &listed);
        drop((before, listed));
        let mut watcher = match self.registry.store.watch(&table, listing.revision) {
            Ok(watcher) => watcher,
            Err(error) => return error,
        };
        loop {
            let changes = match watcher.next().await {
                Ok(changes) => changes,
                Err(error) => return error,
            };
            for chunk in changes.chunks(OBJECTS_PER_YIELD) {
                for change in chunk {
                    self.handle_change::<K>(change).await;
                }
                tokio::task::yield_now().await;
            }
        }
    }

    async fn handle_change<K>(&self, change: &Change)
    where
        K: DeserializeOwned,
        F: Fn(K) -> T,
    {
        let key = store_key(&change.key);
        match change.kind {
            ChangeKind::Deleted => match self.store.get(&key) {
                Some(existing) if existing.version() < change.revision => self.store.remove(&key, existing.uid()),
                Some(_) => {}
                // Not in the store yet: a late response to its creation must not add it.
                None => match change.body.ownership() {
                    Ok(ownership) => self.store.remove(&key, &ownership.uid),
                    Err(error) => tracing::error!(key = %change.key, %error, "cannot decode an object"),
                },
            },
            // A bulk writer applies the objects that it creates, so they are not decoded here.
            ChangeKind::Added if self.store.is_expected(&key) => {}
            _ if self.store.has_version(&key, change.revision) => {}
            _ => self.decode_and_apply::<K>(&change.key, change.revision, &change.body).await,
        }
    }

    async fn decode_and_apply<K>(&self, key: &ObjectKey, revision: Revision, body: &Body)
    where
        K: DeserializeOwned,
        F: Fn(K) -> T,
    {
        match self.decode::<K>(key, revision, body).await {
            Ok(object) => {
                self.store.apply((self.convert)(object));
            }
            Err(error) => tracing::error!(%key, %error, "cannot decode an object"),
        }
    }

    async fn decode<K: DeserializeOwned>(&self, key: &ObjectKey, revision: Revision, body: &Body) -> Result<K> {
        let unreadable = |reason: String| Error::Decode { object: format!("{} {key}", self.resource.kind), reason };
        let is_served_as_stored = self.resource.strategy.serves_stored_unchanged();
        if is_served_as_stored && body.api_version() == self.resource.gvr.api_version() {
            let mut text = Vec::new();
            body.write_json(&mut text, revision, true).map_err(|error| unreadable(error.to_string()))?;
            return serde_json::from_slice(&text).map_err(|error| unreadable(error.to_string()));
        }
        let record = Record { key: key.clone(), revision, body: body.clone() };
        let object = self.registry.decode(&self.resource, record).await.map_err(|error| unreadable(error.message))?;
        serde_json::from_value(object).map_err(|error| unreadable(error.to_string()))
    }
}

fn store_key(key: &ObjectKey) -> Key {
    Key::new(key.namespace(), key.name())
}
