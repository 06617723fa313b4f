//! storage.crowsnest.io/v1alpha1: the internal kinds in which the aggregated API server stores Clusters,
//! ResourceRegistries and saved searches in the control plane. Written and read only by that server; clients use
//! `cluster.karmada.io`, `search.karmada.io` and `search.crowsnest.io`.
//!
//! The names of these kinds differ from those of public kinds, because kubectl resolves a name in any served group
//! and would show the stored objects while the public group is not served.

use crate::cluster::{ClusterSpec, ClusterStatus};
use crate::object::{api_structs, kinds};
use crate::search::{ResourceRegistrySpec, ResourceRegistryStatus};

/// The API group of this module.
pub const GROUP: &str = "storage.crowsnest.io";

kinds! { "storage.crowsnest.io", "v1alpha1";
    /// StoredCluster is the stored form of a Cluster.
    StoredCluster(Cluster, "storedclusters") { spec: ClusterSpec, status(skip): ClusterStatus }

    /// StoredResourceRegistry is the stored form of a ResourceRegistry.
    StoredResourceRegistry(Cluster, "storedresourceregistries") {
        spec: ResourceRegistrySpec, status(skip): ResourceRegistryStatus
    }

    /// StoredSearch is the stored form of a saved search.
    StoredSearch(Cluster, "storedsearches") { spec: SavedSearchSpec }
}

api_structs! {
    /// SavedSearchSpec is a saved query with its title and owner.
    pub struct SavedSearchSpec {
        /// Title is the title shown to users.
        pub title: String,
        /// Query is the query, in the version of the query language given by syntax.
        pub query: String,
        pub description(skip): String,
        /// Shared makes the search visible to all users; otherwise only its owner can see it.
        pub shared: bool,
        /// Owner is the user who saved the search; it is set by the server.
        pub owner: String,
        /// Syntax is the version of the query language.
        pub syntax: String,
    }
}

/// Implements the conversions between an internal kind and the public kind whose objects it stores.
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
    /// Path of the stored object for the `resource_path` of a public one; both begin after the version, for example
    /// `/storedclusters/m1` for `/clusters/m1`.
    pub fn stored_path(&self, resource_path: &str) -> String {
        match resource_path.strip_prefix('/').and_then(|rest| rest.strip_prefix(self.plural)) {
            Some(rest) if rest.is_empty() || rest.starts_with(['/', '?']) => format!("/{}{rest}", self.stored_plural),
            _ => resource_path.to_owned(),
        }
    }

    /// Replaces the names of the stored kind in a message with those of the public kind.
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
