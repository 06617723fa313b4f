//! Applied state: for each object in a member the Work and manifest that it was applied from, the resulting
//! resourceVersion, and the member's changes to the manifest. Used by the execution controller only.
//!
//! An object that differs from its manifest only by the member's changes has not drifted. These changes are persisted
//! next to the cache, so that nothing is rewritten after a restart. If they are lost, each such object is written
//! once more, without effect.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crowsnest_api::keys::WorkKey;
use crowsnest_apimachinery::names::ClusterName;
use crowsnest_index::RecordKey;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::Cache;
use crate::Error;

/// Hash of a manifest, which is stable across processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    pub fn from_manifest(manifest: &Value) -> Self {
        let digest = Sha256::digest(manifest.to_string());
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(digest).for_each(|(byte, digest_byte)| *byte = digest_byte);
        Fingerprint(bytes)
    }
}

/// Applied state of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct AppliedState {
    pub work: WorkKey,
    pub manifest: Fingerprint,
    /// resourceVersion after the manifest was applied. Empty if unknown to this process.
    pub resource_version: String,
    /// The member's changes to the manifest. `None` if there are none.
    pub difference: Option<Arc<Value>>,
}

/// The persisted part of an [`AppliedState`].
#[derive(Serialize, Deserialize)]
struct PersistedState {
    work: WorkKey,
    manifest: Fingerprint,
    difference: Arc<Value>,
}

/// Applied states of all objects in members.
pub struct AppliedStates {
    cache: Cache,
    objects: Mutex<HashMap<RecordKey, AppliedState>>,
}

impl AppliedStates {
    pub fn new(cache: Cache) -> Self {
        AppliedStates { cache, objects: Mutex::default() }
    }

    /// Loads the states persisted by a previous process. Unreadable ones are ignored and eventually overwritten.
    pub async fn load(&self) -> Result<(), Error> {
        for (key, note) in self.cache.notes().await? {
            match serde_json::from_str::<PersistedState>(&note) {
                Ok(PersistedState { work, manifest, difference }) => {
                    let state =
                        AppliedState { work, manifest, resource_version: String::new(), difference: Some(difference) };
                    self.objects.lock().entry(key).or_insert(state);
                }
                Err(error) => tracing::warn!(%error, object = %key.name, "cannot decode a stored applied state"),
            }
        }
        Ok(())
    }

    pub fn get(&self, key: &RecordKey) -> Option<AppliedState> {
        self.objects.lock().get(key).cloned()
    }

    /// Records a state, and persists the member's changes if they differ.
    pub async fn put(&self, key: RecordKey, state: AppliedState) {
        let before = self.objects.lock().insert(key.clone(), state.clone());
        let is_same = |before: &AppliedState| {
            (&before.work, before.manifest, &before.difference) == (&state.work, state.manifest, &state.difference)
        };
        let has_no_difference =
            state.difference.is_none() && before.as_ref().is_none_or(|before| before.difference.is_none());
        if has_no_difference || before.as_ref().is_some_and(is_same) {
            return;
        }
        let AppliedState { work, manifest, difference, .. } = state;
        let note = difference.map(|difference| PersistedState { work, manifest, difference });
        self.persist(&key, note.as_ref()).await;
    }

    /// Works of applied objects that satisfy the predicate.
    pub fn find_works(&self, mut predicate: impl FnMut(&RecordKey) -> bool) -> Vec<WorkKey> {
        let objects = self.objects.lock();
        objects.iter().filter(|(key, _)| predicate(key)).map(|(_, state)| state.work.clone()).collect()
    }

    /// Removes the state of an object that is no longer managed.
    pub async fn remove(&self, key: &RecordKey) {
        let before = self.objects.lock().remove(key);
        if before.is_some_and(|before| before.difference.is_some()) {
            self.persist(key, None).await;
        }
    }

    /// Removes the states of Works that are not in `works`.
    pub async fn retain_works(&self, works: &HashSet<WorkKey>) {
        let is_stale = |(key, state): (&RecordKey, &AppliedState)| (!works.contains(&state.work)).then(|| key.clone());
        let stale: Vec<RecordKey> = self.objects.lock().iter().filter_map(is_stale).collect();
        for key in &stale {
            self.remove(key).await;
        }
    }

    /// Removes the states of a cluster.
    pub async fn remove_cluster(&self, cluster: &ClusterName) {
        self.objects.lock().retain(|key, _| key.cluster() != cluster);
        if let Err(error) = self.cache.delete_notes(cluster).await {
            tracing::warn!(%cluster, %error, "cannot delete the stored applied states of a cluster");
        }
    }

    /// Persists a state. If that fails, the object is written once more after a restart.
    async fn persist(&self, key: &RecordKey, note: Option<&PersistedState>) {
        let text = note.map(serde_json::to_string).transpose();
        let stored = match &text {
            Ok(text) => self.cache.put_note(key, text.as_deref()).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = stored {
            tracing::warn!(cluster = %key.cluster(), object = %key.name, error, "cannot store an applied state");
        }
    }
}
