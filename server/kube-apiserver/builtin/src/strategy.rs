//! Strategy of the built-in kinds: common rules, and dispatch to the modules with the rules of each kind.

use std::sync::OnceLock;

use crowsnest_apimachinery::field::FieldError;
use crowsnest_apimachinery::names::format::validate_qualified_name;
use crowsnest_apimachinery::status::ApiResult;
use crowsnest_registry::object::Object;
use crowsnest_registry::strategy::{RequestContext, Strategy, UpdateErrors};
use crowsnest_registry::validation::{validate_kubernetes_finalizers, validate_object_meta};
use crowsnest_schema::apply::{ReplicasPath, VersionSchemas, VersionState};
use crowsnest_schema::decode::decode_value;
use crowsnest_schema::schema_set::SchemaSet;
use crowsnest_schema::{SchemaRef, normalize};
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::object::{are_equal, at, at_mut, copy_field, remove_field, set_field};
use super::{convert, defaults, prepare, selectable_fields, validate, warnings};

/// Strategy of one built-in group, version and kind.
#[derive(Debug)]
pub struct BuiltinStrategy {
    pub(super) group: &'static str,
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    schema: OnceLock<Option<SchemaRef>>,
}

/// Kinds whose update validates the metadata as a create does.
const KINDS_WITH_METADATA_VALIDATION: [&str; 20] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "ConfigMap",
    "ControllerRevision",
    "Endpoints",
    "Ingress",
    "IngressClass",
    "Job",
    "LimitRange",
    "Namespace",
    "Node",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "Role",
    "RoleBinding",
    "RuntimeClass",
    "Secret",
    "ServiceAccount",
    "StorageClass",
];

/// Kinds of changes that increment `metadata.generation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GenerationTrigger {
    /// The kind has no generation.
    None,
    Spec,
    SpecAndAnnotations,
    /// All fields except metadata and status.
    Content,
}

impl BuiltinStrategy {
    pub fn new(group: &'static str, version: &'static str, kind: &'static str) -> Self {
        Self { group, version, kind, schema: OnceLock::new() }
    }

    /// True for kinds whose `status` can only be written through the status subresource.
    fn has_status(&self) -> bool {
        let is_review = matches!(self.group, "authentication.k8s.io" | "authorization.k8s.io");
        !is_review && self.schema().is_some_and(|schema| schema.field("status").is_some())
    }

    fn generation_trigger(&self) -> GenerationTrigger {
        match (self.group, self.kind) {
            ("apps", "Deployment") => GenerationTrigger::SpecAndAnnotations,
            ("apps", "DaemonSet" | "ReplicaSet" | "StatefulSet")
            | ("batch", _)
            | ("", "ReplicationController" | "Pod")
            | ("networking.k8s.io", "Ingress" | "IngressClass" | "NetworkPolicy")
            | ("policy", "PodDisruptionBudget")
            | ("storage.k8s.io", "CSIDriver")
            | ("apiextensions.k8s.io" | "flowcontrol.apiserver.k8s.io", _) => GenerationTrigger::Spec,
            ("admissionregistration.k8s.io", _)
            | ("discovery.k8s.io", _)
            | ("scheduling.k8s.io", _)
            | ("", "PodTemplate") => GenerationTrigger::Content,
            _ => GenerationTrigger::None,
        }
    }

    fn has_generation_changed(&self, old: &Value, new: &Value) -> bool {
        match self.generation_trigger() {
            GenerationTrigger::None => false,
            GenerationTrigger::Spec => !are_equal(at(old, "spec"), at(new, "spec")),
            GenerationTrigger::SpecAndAnnotations => {
                !are_equal(at(old, "spec"), at(new, "spec"))
                    || at(old, "metadata.annotations") != at(new, "metadata.annotations")
            }
            GenerationTrigger::Content => {
                let content = |object: &Value| {
                    let mut copy = object.clone();
                    remove_field(&mut copy, "metadata");
                    remove_field(&mut copy, "status");
                    copy
                };
                !are_equal(&content(old), &content(new))
                    || (self.kind == "EndpointSlice" && at(old, "metadata.labels") != at(new, "metadata.labels"))
            }
        }
    }

    fn normalize(&self, object: &mut Value) {
        if let Some(schema) = self.schema() {
            normalize(&schema, object);
        }
    }
}

/// Validates the finalizers in a namespace's spec: qualified names, or one of Kubernetes' own.
fn validate_namespace_finalizers(namespace: &Value) -> Vec<FieldError> {
    const STANDARD_FINALIZERS: [&str; 3] = ["kubernetes", "orphan", "foregroundDeletion"];
    let listed = at(namespace, "spec.finalizers").as_array().cloned().unwrap_or_default();
    let mut errors = Vec::new();
    for (index, name) in listed.iter().enumerate() {
        let (field, name) = (format!("spec.finalizers[{index}]"), name.as_str().unwrap_or_default());
        let problems = validate_qualified_name(name).into_iter();
        errors.extend(problems.map(|reason| FieldError::invalid(field.as_str(), name, reason)));
        if !name.contains('/') && !STANDARD_FINALIZERS.contains(&name) {
            let reason = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(field, name, reason));
        }
    }
    errors
}

impl VersionSchemas for BuiltinStrategy {
    fn version(&self, api_version: &str) -> VersionState {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        SchemaSet::builtin().kind(group, version, self.kind).map_or(VersionState::NotServed, VersionState::Served)
    }

    /// As in kube-apiserver's `ReplicasPathMappings`, former versions are known although they are not served.
    fn replicas_path(&self, api_version: &str) -> ReplicasPath<'_> {
        match (self.kind, api_version) {
            ("Deployment" | "StatefulSet", "apps/v1beta1" | "apps/v1beta2") | ("ReplicaSet", "apps/v1beta2") => {
                ReplicasPath::At(".spec.replicas")
            }
            _ => ReplicasPath::UnknownVersion,
        }
    }
}

impl Strategy for BuiltinStrategy {
    fn default(&self, object: &mut Value) {
        self.normalize(object);
        defaults::apply(self.group, self.version, self.kind, object);
        self.normalize(object);
    }

    fn with_owned_defaults(&self, object: &Value) -> Option<Value> {
        prepare::with_owned_defaults(self.kind, object)
    }

    fn prepare_create(&self, ctx: &RequestContext, object: &mut Value) {
        if self.has_status() && self.kind != "Node" {
            remove_field(object, "status");
        }
        // The generation of a CSIDriver starts with its first update.
        if self.generation_trigger() != GenerationTrigger::None
            && self.kind != "CSIDriver"
            && let Some(metadata) = at_mut(object, "metadata")
        {
            set_field(metadata, "generation", 1);
        }
        prepare::prepare_create(ctx, self.kind, object);
        self.normalize(object);
    }

    fn prepare_update(&self, ctx: &RequestContext, old: &Value, new: &mut Value) {
        match ctx.subresource.as_str() {
            "status" => {
                // Only the status and most of the metadata are taken from the request.
                let (status, metadata) = (remove_field(new, "status"), remove_field(new, "metadata"));
                *new = old.clone();
                for (field, value) in [("status", status), ("metadata", metadata)] {
                    match value {
                        Some(value) => set_field(new, field, value),
                        None => drop(remove_field(new, field)),
                    }
                }
            }
            // Only the conditions are taken from the request; they are copied below.
            "approval" => {}
            // The server itself changes the pod.
            "binding" | "eviction" => {}
            _ if self.has_status() => copy_field(old, new, "status"),
            _ => {}
        }
        prepare::prepare_update(ctx, self.kind, old, new);
        let updates_generation = matches!(ctx.subresource.as_str(), "" | "scale" | "ephemeralcontainers" | "resize");
        let before = at(old, "metadata.generation").as_i64();
        if let Some(metadata) = at_mut(new, "metadata") {
            match before {
                Some(generation) => set_field(metadata, "generation", generation),
                None => drop(remove_field(metadata, "generation")),
            }
        }
        self.normalize(new);
        if updates_generation && self.has_generation_changed(old, new) {
            new["metadata"]["generation"] = json!(before.unwrap_or(0) + 1);
        }
    }

    fn validate_create(&self, ctx: &RequestContext, object: &Value) -> Vec<FieldError> {
        let mut errors = validate_kubernetes_finalizers(object);
        errors.extend(validate::validate_create(ctx, self.group, self.kind, object));
        errors
    }

    fn validate_update(&self, ctx: &RequestContext, old: &Value, new: &Value) -> UpdateErrors {
        let mut errors = validate_kubernetes_finalizers(new);
        if KINDS_WITH_METADATA_VALIDATION.contains(&self.kind)
            && ctx.subresource.is_empty()
            && let Some(metadata) = new.metadata()
        {
            let is_namespaced = !new.namespace().is_empty();
            errors.extend(validate_object_meta(metadata, is_namespaced, &|name, prefix| {
                self.validate_name(name, prefix)
            }));
            // As in kube-apiserver, both validations report these errors.
            errors.extend(validate_kubernetes_finalizers(new));
        }
        errors.extend(validate::validate_update(ctx, self.group, self.kind, old, new));
        if (self.group, self.kind, ctx.subresource.as_str()) == ("", "Namespace", "finalize") {
            errors.extend(validate_namespace_finalizers(new));
        }
        errors.into()
    }

    fn warnings(&self, ctx: &RequestContext, old: Option<&Value>, new: &Value) -> Vec<String> {
        match ctx.subresource.as_str() {
            "" => warnings::warnings_for(self.group, self.kind, old, new),
            _ => Vec::new(),
        }
    }

    fn validates_metadata(&self) -> bool {
        !matches!((self.group, self.kind), ("", "Event") | ("policy", "PodDisruptionBudget"))
    }

    fn deprecation_warning(&self) -> Option<&str> {
        match (self.group, self.kind) {
            ("", "Endpoints") => Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
            ("", "ComponentStatus") => Some("v1 ComponentStatus is deprecated in v1.19+"),
            _ => None,
        }
    }

    fn validate_name(&self, name: &str, prefix: bool) -> Vec<String> {
        validate::name_errors(self.group, self.kind, name, prefix)
    }

    fn schema(&self) -> Option<SchemaRef> {
        self.schema.get_or_init(|| SchemaSet::builtin().kind(self.group, self.version, self.kind)).clone()
    }

    fn reset_fields(&self, subresource: &str) -> &'static [&'static [&'static str]] {
        match (subresource, self.kind) {
            ("", _) if self.has_status() => &[&["status"]],
            ("status", "Deployment") => &[&["spec"], &["metadata", "labels"]],
            ("status", "Pod") => &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]],
            ("status", _) => &[&["spec"]],
            _ => &[],
        }
    }

    fn allow_unconditional_update(&self) -> bool {
        !matches!(
            (self.group, self.kind),
            ("coordination.k8s.io", "Lease")
                | ("apiregistration.k8s.io", _)
                | ("apiextensions.k8s.io", _)
                | ("policy", _)
                | ("networking.k8s.io", "IPAddress")
                | ("node.k8s.io", "RuntimeClass")
                | ("storage.k8s.io", "CSIDriver" | "CSINode" | "CSIStorageCapacity" | "VolumeAttachment")
                | ("admissionregistration.k8s.io", _)
        )
    }

    fn allow_create_on_update(&self) -> bool {
        matches!(
            (self.group, self.kind),
            ("coordination.k8s.io", "Lease")
                | ("", "Endpoints" | "Event" | "LimitRange")
                | ("rbac.authorization.k8s.io", _)
                | ("events.k8s.io", "Event")
                | ("networking.k8s.io", "IPAddress")
                | ("node.k8s.io", "RuntimeClass")
                | ("storage.k8s.io", "CSIDriver" | "CSINode" | "CSIStorageCapacity" | "VolumeAttachment")
        )
    }

    fn prune(&self, object: &mut Value) {
        if let Some(schema) = self.schema() {
            let decoded = decode_value(object.clone(), &schema);
            if decoded.type_error.is_none() {
                *object = decoded.object;
            }
        }
    }

    fn selectable_fields(&self, object: &Value) -> Vec<(String, String)> {
        selectable_fields::selectable_fields(self.group, self.kind, object)
    }

    fn convert(&self, objects: Vec<Value>, to_api_version: &str) -> BoxFuture<'_, ApiResult<Vec<Value>>> {
        let converted = objects.into_iter().map(|object| convert::convert(object, to_api_version)).collect();
        Box::pin(async move { Ok(converted) })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::first_version("Deployment", "apps/v1beta1", true)]
    #[case::second_version("Deployment", "apps/v1beta2", true)]
    #[case::stateful_set("StatefulSet", "apps/v1beta1", true)]
    #[case::replica_set("ReplicaSet", "apps/v1beta2", true)]
    #[case::version_without_replica_sets("ReplicaSet", "apps/v1beta1", false)]
    #[case::unknown("Deployment", "apps/v2", false)]
    #[case::other_group("Deployment", "extensions/v1beta1", false)]
    fn replicas_have_a_path_in_former_versions(
        #[case] kind: &'static str,
        #[case] api_version: &str,
        #[case] is_known: bool,
    ) {
        let expected = if is_known { ReplicasPath::At(".spec.replicas") } else { ReplicasPath::UnknownVersion };
        assert_eq!(BuiltinStrategy::new("apps", "v1", kind).replicas_path(api_version), expected);
    }
}
