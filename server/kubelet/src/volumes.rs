//! Volumes that containers share and that outlive them, as trees of files: those of a pod, of a node and of a claim.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::filesystem::FileSystem;

/// Identity of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VolumeKey {
    /// `emptyDir`, by the pod's uid and the volume's name.
    Pod(String, String),
    /// `hostPath`, by node and path.
    Node(String, String),
    /// The volume of a PersistentVolumeClaim, by the claim's uid.
    Claim(String),
}

impl VolumeKey {
    /// The volume of a `subPath`.
    pub fn part(self, path: &str) -> Self {
        match self {
            Self::Pod(uid, name) => Self::Pod(uid, format!("{name}/{path}")),
            Self::Node(node, at) => Self::Node(node, format!("{at}/{path}")),
            Self::Claim(uid) => Self::Claim(format!("{uid}/{path}")),
        }
    }
}

/// The volumes that were used so far.
#[derive(Default)]
pub struct Volumes {
    trees: Mutex<HashMap<VolumeKey, Arc<FileSystem>>>,
}

impl Volumes {
    /// The tree of a volume, empty at first.
    pub fn tree(&self, key: VolumeKey, now: Timestamp) -> Arc<FileSystem> {
        self.trees.lock().entry(key).or_insert_with(|| Arc::new(FileSystem::new(now))).clone()
    }

    /// Drops the `emptyDir` volumes of a deleted pod.
    pub fn forget(&self, uid: &str) {
        self.trees.lock().retain(|key, _| !matches!(key, VolumeKey::Pod(pod, _) if pod == uid));
    }
}
