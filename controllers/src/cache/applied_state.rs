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
    pub fn of(manifest: &Value) -> Self {
        let digest = Sha256::digest(manifest.to_string());
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(digest).for_each(|(byte, of)| *byte = of);
        Fingerprint(bytes)
    }
}

/// Applied state of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct AppliedState {
    pub work: WorkKey,
    pub manifest: Fingerprint,
    /// Empty if unknown to this process.
    pub version: String,
    /// The member's changes to the manifest. `None` if there are none.
    pub difference: Option<Arc<Value>>,
}

/// The persisted part.
#[derive(Serialize, Deserialize)]
struct Note {
    work: WorkKey,
    manifest: Fingerprint,
    difference: Arc<Value>,
}

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
            match serde_json::from_str::<Note>(&note) {
                Ok(Note { work, manifest, difference }) => {
                    let state = AppliedState { work, manifest, version: String::new(), difference: Some(difference) };
                    self.objects.lock().entry(key).or_insert(state);
                }
                Err(error) => tracing::warn!(%error, object = %key.name, "cannot decode a stored applied state"),
            }
        }
        Ok(())
    }

    pub fn of(&self, key: &RecordKey) -> Option<AppliedState> {
        self.objects.lock().get(key).cloned()
    }

    /// Records a state, and persists the member's changes if they differ.
    pub async fn put(&self, key: RecordKey, state: AppliedState) {
        let before = self.objects.lock().insert(key.clone(), state.clone());
        let same = |before: &AppliedState| {
            (&before.work, before.manifest, &before.difference) == (&state.work, state.manifest, &state.difference)
        };
        let nothing = state.difference.is_none() && before.as_ref().is_none_or(|before| before.difference.is_none());
        if nothing || before.as_ref().is_some_and(same) {
            return;
        }
        let AppliedState { work, manifest, difference, .. } = state;
        let note = difference.map(|difference| Note { work, manifest, difference });
        self.note(&key, note.as_ref()).await;
    }

    /// Works of applied objects that satisfy the predicate.
    pub fn works_of(&self, mut predicate: impl FnMut(&RecordKey) -> bool) -> Vec<WorkKey> {
        let objects = self.objects.lock();
        objects.iter().filter(|(key, _)| predicate(key)).map(|(_, state)| state.work.clone()).collect()
    }

    /// Removes the state of an object that is no longer managed.
    pub async fn remove(&self, key: &RecordKey) {
        let before = self.objects.lock().remove(key);
        if before.is_some_and(|before| before.difference.is_some()) {
            self.note(key, None).await;
        }
    }

    /// Removes the states of Works that are not in `works`.
    pub async fn keep(&self, works: &HashSet<WorkKey>) {
        let gone = |(key, state): (&RecordKey, &AppliedState)| (!works.contains(&state.work)).then(|| key.clone());
        let gone: Vec<RecordKey> = self.objects.lock().iter().filter_map(gone).collect();
        for key in &gone {
            self.remove(key).await;
        }
    }

    /// Removes the states of a cluster.
    pub async fn forget(&self, cluster: &ClusterName) {
        self.objects.lock().retain(|key, _| key.cluster() != cluster);
        if let Err(error) = self.cache.drop_notes(cluster).await {
            tracing::warn!(%cluster, %error, "cannot delete the stored applied states of a cluster");
        }
    }

    /// Persists a state. If that fails, the object is written once more after a restart.
    async fn note(&self, key: &RecordKey, note: Option<&Note>) {
        let text = note.map(serde_json::to_string).transpose();
        let stored = match &text {
            Ok(text) => self.cache.note(key, text.as_deref()).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = stored {
            tracing::warn!(cluster = %key.cluster(), object = %key.name, error, "cannot store an applied state");
        }
    }
}
