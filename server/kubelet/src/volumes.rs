//! Volumes that are shared between containers and outlive them: those of a pod, a node, or a claim.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::filesystem::FileSystem;

/// Identity of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum VolumeKey {
    /// `emptyDir`, by pod UID and volume name.
    Pod(String, String),
    /// `hostPath`, by node and path.
    Node(String, String),
    /// The volume of a PersistentVolumeClaim, by UID of the claim.
    Claim(String),
}

impl VolumeKey {
    /// Returns the key of a `subPath` of the volume.
    pub fn with_sub_path(self, path: &str) -> Self {
        match self {
            Self::Pod(uid, name) => Self::Pod(uid, format!("{name}/{path}")),
            Self::Node(node, at) => Self::Node(node, format!("{at}/{path}")),
            Self::Claim(uid) => Self::Claim(format!("{uid}/{path}")),
        }
    }
}

/// File systems of the volumes used so far.
#[derive(Default)]
pub struct Volumes {
    file_systems: Mutex<HashMap<VolumeKey, Arc<FileSystem>>>,
}

impl Volumes {
    /// Returns the file system of a volume, created empty on first use.
    pub fn file_system(&self, key: VolumeKey, now: Timestamp) -> Arc<FileSystem> {
        self.file_systems.lock().entry(key).or_insert_with(|| Arc::new(FileSystem::new(now))).clone()
    }

    /// Drops the `emptyDir` volumes of a deleted pod.
    pub fn remove_pod(&self, uid: &str) {
        self.file_systems.lock().retain(|key, _| !matches!(key, VolumeKey::Pod(pod, _) if pod == uid));
    }

    /// Drops the volume of a deleted claim, including its `subPath` volumes.
    pub fn remove_claim(&self, uid: &str) {
        let belongs_to_claim =
            |claim: &str| claim.strip_prefix(uid).is_some_and(|part| part.is_empty() || part.starts_with('/'));
        self.file_systems.lock().retain(|key, _| !matches!(key, VolumeKey::Claim(claim) if belongs_to_claim(claim)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_end_with_their_pod_or_claim() {
        let volumes = Volumes::default();
        let claim = |uid: &str| VolumeKey::Claim(uid.to_owned());
        let pod = |uid: &str| VolumeKey::Pod(uid.to_owned(), "tmp".to_owned());
        for key in [claim("c1"), claim("c1").with_sub_path("logs"), claim("c10"), pod("p1"), pod("p2")] {
            volumes.file_system(key, Timestamp::UNIX_EPOCH);
        }
        volumes.remove_pod("p1");
        volumes.remove_claim("c1");
        let mut left: Vec<String> = volumes.file_systems.lock().keys().map(|key| format!("{key:?}")).collect();
        left.sort_unstable();
        assert_eq!(left, [format!("{:?}", claim("c10")), format!("{:?}", pod("p2"))]);
    }
}
