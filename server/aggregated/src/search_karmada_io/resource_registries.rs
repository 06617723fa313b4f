//! `resourceregistries` and `resourceregistries/status`.

use crowsnest_api::crd;
use crowsnest_api::search::ResourceRegistry;
use crowsnest_api::storage::RESOURCE_REGISTRIES;

use super::NAME;
use crate::resource::openapi::{Document, schema_name};
use crate::resource::registry::VERSION;
use crate::resource::{Definition, Paths, STORED};
use crate::stored::StoredGroup;
use crate::stored::resource::StoredResource;

const GROUP: StoredGroup = StoredGroup { kind: &RESOURCE_REGISTRIES, columns: None };
const KIND: &str = "ResourceRegistry";

pub(super) static REGISTRIES: StoredResource = StoredResource {
    definition: Definition {
        singular: "resourceregistry",
        short_names: &["rr"],
        categories: &["karmada-io"],
        ..Definition::new("resourceregistries", KIND, STORED, Paths::CollectionAndObject)
    },
    group: GROUP,
    describe,
};

pub(super) static STATUS: StoredResource = StoredResource {
    definition: Definition {
        subresource: "status",
        ..Definition::new("resourceregistries", KIND, &["get", "patch", "update"], Paths::Object)
    },
    group: GROUP,
    describe: |_| {},
};

/// Adds the required fields: the control plane's definition of the kind requires fewer.
fn describe(document: &mut Document) {
    let schema = document.schema_mut(&schema_name(NAME, VERSION, KIND));
    if let Some(spec) = schema.and_then(|schema| schema.pointer_mut("/properties/spec")) {
        *spec = crd::schema::<ResourceRegistry>(&[])["properties"]["spec"].take();
    }
}
