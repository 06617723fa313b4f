//! Applied state: for each object in a member the Work and manifest that it was applied from, its version after that, and what
//! the member changed in the manifest. Used by the execution controller alone.
//!
//! An object that differs from its manifest only by what the member changed when it was applied has not drifted. These
//! differences are stored beside the cache, so that a restart writes nothing again; without them each such object is written once
//! more, without effect.

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

/// Tells manifests apart, the same in every process.
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

/// What was left of one object.
#[derive(Debug, Clone, PartialEq)]
pub struct AppliedState {
    pub work: WorkKey,
    pub manifest: Fingerprint,
    /// Empty when it is not known in this process.
    pub version: String,
    /// What the member made of the manifest; `None` when it took it as it is.
    pub difference: Option<Arc<Value>>,
}

/// What is kept of it over restarts.
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

    /// Takes in what an earlier process noted. What cannot be read is written anew some time.
    pub async fn recall(&self) -> Result<(), Error> {
        for (key, note) in self.cache.notes().await? {
            match serde_json::from_str::<Note>(&note) {
                Ok(Note { work, manifest, difference }) => {
                    let left = AppliedState { work, manifest, version: String::new(), difference: Some(difference) };
                    self.objects.lock().entry(key).or_insert(left);
                }
                Err(error) => tracing::warn!(%error, object = %key.name, "a note cannot be read"),
            }
        }
        Ok(())
    }

    pub fn of(&self, key: &RecordKey) -> Option<AppliedState> {
        self.objects.lock().get(key).cloned()
    }

    /// Remembers what was left. What the member made of it is noted where that is news.
    pub async fn put(&self, key: RecordKey, left: AppliedState) {
        let before = self.objects.lock().insert(key.clone(), left.clone());
        let same = |before: &AppliedState| {
            (&before.work, before.manifest, &before.difference) == (&left.work, left.manifest, &left.difference)
        };
        let nothing = left.difference.is_none() && before.as_ref().is_none_or(|before| before.difference.is_none());
        if nothing || before.as_ref().is_some_and(same) {
            return;
        }
        let AppliedState { work, manifest, difference, .. } = left;
        let note = difference.map(|difference| Note { work, manifest, difference });
        self.note(&key, note.as_ref()).await;
    }

    /// The Works that left objects of this sort.
    pub fn works_of(&self, mut is_meant: impl FnMut(&RecordKey) -> bool) -> Vec<WorkKey> {
        let objects = self.objects.lock();
        objects.iter().filter(|(key, _)| is_meant(key)).map(|(_, left)| left.work.clone()).collect()
    }

    /// Forgets an object that is not ours any more.
    pub async fn remove(&self, key: &RecordKey) {
        let before = self.objects.lock().remove(key);
        if before.is_some_and(|before| before.difference.is_some()) {
            self.note(key, None).await;
        }
    }

    /// Only these Works are there.
    pub async fn keep(&self, works: &HashSet<WorkKey>) {
        let gone = |(key, left): (&RecordKey, &AppliedState)| (!works.contains(&left.work)).then(|| key.clone());
        let gone: Vec<RecordKey> = self.objects.lock().iter().filter_map(gone).collect();
        for key in &gone {
            self.remove(key).await;
        }
    }

    /// The cluster left the fleet.
    pub async fn forget(&self, cluster: &ClusterName) {
        self.objects.lock().retain(|key, _| key.cluster() != cluster);
        if let Err(error) = self.cache.drop_notes(cluster).await {
            tracing::warn!(%cluster, %error, "what is noted about its objects stays");
        }
    }

    /// A note that cannot be kept costs a write after the next start, no more.
    async fn note(&self, key: &RecordKey, note: Option<&Note>) {
        let text = note.map(serde_json::to_string).transpose();
        let noted = match &text {
            Ok(text) => self.cache.note(key, text.as_deref()).await.map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = noted {
            tracing::warn!(cluster = %key.cluster(), object = %key.name, error, "not noted");
        }
    }
}
