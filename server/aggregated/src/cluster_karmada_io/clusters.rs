//! `clusters` and `clusters/status`.

use crowsnest_api::storage;

use super::columns::COLUMNS;
use crate::resource::{Definition, Paths, STORED};
use crate::stored::StoredGroup;
use crate::stored::resource::StoredResource;

const GROUP: StoredGroup = StoredGroup { kind: &storage::CLUSTERS, columns: Some(&COLUMNS) };

pub(super) static CLUSTERS: StoredResource = StoredResource {
    definition: Definition {
        singular: "cluster",
        categories: &["karmada-io"],
        ..Definition::new("clusters", "Cluster", STORED, Paths::CollectionAndObject)
    },
    group: GROUP,
    describe: |_| {},
};

pub(super) static STATUS: StoredResource = StoredResource {
    definition: Definition {
        subresource: "status",
        ..Definition::new("clusters", "Cluster", &["get", "patch", "update"], Paths::Object)
    },
    group: GROUP,
    describe: |_| {},
};
