//! storage.crowsnest.io/v1alpha1: the internal kinds in which the aggregated API server keeps Clusters,
//! ResourceRegistries and saved searches, so that their truth stays in the control plane's own storage. Written and read
//! by that server only; people and controllers use `cluster.karmada.io`, `search.karmada.io` and `search.crowsnest.io`.
//!
//! No name of these kinds is one of a public kind: kubectl takes a name from any group that serves it, and it would show
//! the stored objects while the public group is not served.

use crate::cluster::{ClusterSpec, ClusterStatus};
use crate::object::{kind, shape};
use crate::search::{ResourceRegistrySpec, ResourceRegistryStatus};

/// The API group of this module.
pub const GROUP: &str = "storage.crowsnest.io";

kind! {
    /// A Cluster as stored.
    StoredCluster, Cluster, "storage.crowsnest.io", "v1alpha1", "storedclusters" {
        spec: ClusterSpec,
        status(skip): ClusterStatus,
    }
}

kind! {
    /// A ResourceRegistry as stored.
    StoredResourceRegistry, Cluster, "storage.crowsnest.io", "v1alpha1", "storedresourceregistries" {
        spec: ResourceRegistrySpec,
        status(skip): ResourceRegistryStatus,
    }
}

kind! {
    /// A query somebody keeps.
    StoredSearch, Cluster, "storage.crowsnest.io", "v1alpha1", "storedsearches" {
        spec: SavedSearchSpec,
    }
}

shape! {
    /// A query with what to call it, and whose it is.
    pub struct SavedSearchSpec {
        /// What people see.
        pub title: String,
        /// In the query language of version `syntax`.
        pub query: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub description: String,
        /// Everyone may see it; else only its owner.
        pub shared: bool,
        /// The user who saved it: set by the server.
        pub owner: String,
        /// Of the query language.
        pub syntax: String,
    }
}

/// Conversions between a kind of the internal group and the kind that it is served as.
macro_rules! served_as {
    ($stored:ty, $served:ty) => {
        impl From<$stored> for $served {
            fn from(stored: $stored) -> Self {
                Self { metadata: stored.metadata, spec: stored.spec, status: stored.status }
            }
        }

        impl From<$served> for $stored {
            fn from(served: $served) -> Self {
                Self { metadata: served.metadata, spec: served.spec, status: served.status }
            }
        }
    };
}

served_as!(StoredCluster, crate::cluster::Cluster);
served_as!(StoredResourceRegistry, crate::search::ResourceRegistry);

/// A public kind, and the names under which its objects are stored.
#[derive(Debug, PartialEq, Eq)]
pub struct StoredKind {
    /// Public group.
    pub group: &'static str,
    /// Public plural.
    pub plural: &'static str,
    pub kind: &'static str,
    pub stored_plural: &'static str,
    pub stored_kind: &'static str,
}

pub const CLUSTERS: StoredKind = StoredKind {
    group: "cluster.karmada.io",
    plural: "clusters",
    kind: "Cluster",
    stored_plural: "storedclusters",
    stored_kind: "StoredCluster",
};

pub const RESOURCE_REGISTRIES: StoredKind = StoredKind {
    group: "search.karmada.io",
    plural: "resourceregistries",
    kind: "ResourceRegistry",
    stored_plural: "storedresourceregistries",
    stored_kind: "StoredResourceRegistry",
};

pub const SAVED_SEARCHES: StoredKind = StoredKind {
    group: "search.crowsnest.io",
    plural: "savedsearches",
    kind: "SavedSearch",
    stored_plural: "storedsearches",
    stored_kind: "StoredSearch",
};

/// All kinds of [`GROUP`].
pub const STORED_KINDS: [&StoredKind; 3] = [&CLUSTERS, &RESOURCE_REGISTRIES, &SAVED_SEARCHES];

impl StoredKind {
    /// Path of the stored object, where `tail` is the path of the public one; both begin after the version.
    /// `/storedclusters/m1` for `/clusters/m1`.
    pub fn stored_path(&self, tail: &str) -> String {
        match tail.strip_prefix('/').and_then(|rest| rest.strip_prefix(self.plural)) {
            Some(rest) if rest.is_empty() || rest.starts_with(['/', '?']) => format!("/{}{rest}", self.stored_plural),
            _ => tail.to_owned(),
        }
    }

    /// A message about stored objects in the words of the public kind.
    pub fn public_text(&self, text: &str) -> String {
        text.replace(self.stored_plural, self.plural).replace(self.stored_kind, self.kind).replace(GROUP, self.group)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::Resource;

    use super::*;

    #[test]
    fn names_are_those_of_the_kinds() {
        fn names<K: Resource>() -> (&'static str, &'static str) {
            (K::URL_PATH_SEGMENT, K::KIND)
        }
        let stored = STORED_KINDS.map(|kind| (kind.stored_plural, kind.stored_kind));
        assert_eq!(stored, [names::<StoredCluster>(), names::<StoredResourceRegistry>(), names::<StoredSearch>()]);
        let public = [&CLUSTERS, &RESOURCE_REGISTRIES].map(|kind| (kind.plural, kind.kind));
        assert_eq!(public, [names::<crate::cluster::Cluster>(), names::<crate::search::ResourceRegistry>()]);
    }

    #[test]
    fn paths_and_messages_are_translated() {
        let cases = [
            ("/clusters", "/storedclusters"),
            ("/clusters/m1/status", "/storedclusters/m1/status"),
            ("/clusters?limit=1", "/storedclusters?limit=1"),
            ("/clustersets/m1", "/clustersets/m1"),
            ("", ""),
        ];
        for (public, stored) in cases {
            assert_eq!(CLUSTERS.stored_path(public), stored);
        }
        let text = "storedclusters.storage.crowsnest.io \"m1\" is forbidden: StoredCluster.storage.crowsnest.io";
        let public = "clusters.cluster.karmada.io \"m1\" is forbidden: Cluster.cluster.karmada.io";
        assert_eq!(CLUSTERS.public_text(text), public);
    }
}
