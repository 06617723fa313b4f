//! Descriptions of the public kinds for admission.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use crowsnest_api::crd;
use crowsnest_api::storage::{self, STORED_KINDS};
use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::resource::{ResourceInfo, ResourceRef, StorageVersion, Subresource};
use crowsnest_registry::strategy::{RequestContext, Strategy, UpdateErrors, convert_identity};
use crowsnest_schema::apply::VersionSchemas;
use crowsnest_schema::table::Printer;
use crowsnest_schema::{Schema, SchemaRef};
use futures::future::BoxFuture;
use serde_json::Value;

use crate::resource::Definition;
use crate::resource::registry::VERSION;

/// Schemas of the stored kinds, by the name of the public kind.
static SCHEMAS: LazyLock<HashMap<&'static str, SchemaRef>> = LazyLock::new(|| {
    let definitions = crd::crds(None);
    let schema_of = |kind: &str| {
        let is_kind = |definition: &&Value| {
            definition["spec"]["group"] == storage::GROUP && definition["spec"]["names"]["kind"] == kind
        };
        let definition = definitions.iter().find(is_kind)?;
        definition.pointer("/spec/versions/0/schema/openAPIV3Schema").map(Schema::for_custom_resource)
    };
    STORED_KINDS.iter().filter_map(|kind| Some((kind.kind, schema_of(kind.stored_kind)?))).collect()
});

/// Describes a resource of a public group. `own_kind` is the kind of the subresource, if that differs from the
/// resource's.
pub(super) fn describe(group: &str, definition: &Definition, own_kind: Option<&str>) -> ResourceRef {
    let subresource = own_kind.filter(|_| !definition.subresource.is_empty()).map(|kind| Subresource {
        name: definition.subresource,
        kind: kind.to_owned(),
        group: group.to_owned(),
        version: VERSION.to_owned(),
        verbs: definition.verbs.to_vec(),
    });
    Arc::new(ResourceInfo {
        gvr: Gvr::new(group, VERSION, definition.resource),
        kind: definition.kind.to_owned(),
        list_kind: format!("{}List", definition.kind),
        singular: definition.singular.to_owned(),
        namespaced: definition.namespaced,
        short_names: Vec::new(),
        categories: Vec::new(),
        verbs: definition.verbs.to_vec(),
        subresources: subresource.into_iter().collect(),
        scale: None,
        storage: StorageVersion { group: group.to_owned(), version: VERSION.to_owned() },
        printer: Printer::Generic,
        strategy: Arc::new(PublicKind(SCHEMAS.get(definition.kind).cloned())),
    })
}

/// A kind with one version. The control plane sets defaults and validates, so this strategy only has the schema.
#[derive(Debug)]
struct PublicKind(Option<SchemaRef>);

impl VersionSchemas for PublicKind {}

impl Strategy for PublicKind {
    fn validate_create(&self, _ctx: &RequestContext, _object: &Value) -> Vec<FieldError> {
        Vec::new()
    }

    fn validate_update(&self, _ctx: &RequestContext, _old: &Value, _new: &Value) -> UpdateErrors {
        UpdateErrors::default()
    }

    fn validate_name(&self, _name: &str, _prefix: bool) -> Vec<String> {
        Vec::new()
    }

    fn schema(&self) -> Option<SchemaRef> {
        self.0.clone()
    }

    fn convert(&self, objects: Vec<Value>, _to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>> {
        convert_identity(objects)
    }
}
