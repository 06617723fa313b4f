//! Preparation of objects before storage by the rules of their kind (`PrepareForCreate`, `PrepareForUpdate`).

use crowsnest_registry::object::format_time;
use crowsnest_registry::strategy::RequestContext;
use serde_json::{Map, Value, json};

use super::object::{
    at, at_mut, copy_field, fields, for_each_item, is_set, is_unset, items, remove_field, set_default, set_field, text,
};
use super::{apparmor, autoscaler, feature_gates, pod, service};

pub(super) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// `PrepareForCreate` of the kind.
pub(super) fn prepare_create(ctx: &RequestContext, kind: &str, object: &mut Value) {
    feature_gates::drop_disabled_fields(kind, &Value::Null, object);
    match kind {
        "Pod" => {
            apparmor::convert_annotations(object);
            pod::prepare_create(ctx, object);
        }
        "DaemonSet" => {
            let generation = template_generation(object).max(1);
            annotate(object, TEMPLATE_GENERATION, &generation.to_string());
        }
        "Job" => generate_job_selector(object),
        "HorizontalPodAutoscaler" => autoscaler::restore_status_annotations(&Value::Null, object),
        "Namespace" => {
            set_field(object, "status", json!({"phase": "Active"}));
            add_finalizer(object);
        }
        "PersistentVolume" => {
            let now = format_time(ctx.now);
            set_field(object, "status", json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
        }
        "PersistentVolumeClaim" => {
            set_field(object, "status", json!({"phase": "Pending"}));
            synchronize_data_sources(&Value::Null, object);
        }
        "ServiceAccount" => keep_secret_names(object),
        "EndpointSlice" => drop_topology(&Value::Null, object),
        "Lease" => drop_lease_strategy(object),
        // Limit ranges without a name get a random one.
        "LimitRange" if is_unset(object, "metadata.name") => {
            let name = uuid::Uuid::new_v4().to_string();
            object["metadata"]["name"] = name.into();
        }
        "Service" => service::set_derived_fields(object),
        "Node" => drop_config_source(object),
        "StatefulSet" => drop_max_unavailable(object),
        "CertificateSigningRequest" => set_requester(ctx, object),
        "CustomResourceDefinition" => add_stored_versions(object, Vec::new()),
        _ => {}
    }
}

/// `PrepareForUpdate` of the kind.
pub(super) fn prepare_update(ctx: &RequestContext, kind: &str, old: &Value, new: &mut Value) {
    let subresource = ctx.subresource.as_str();
    if subresource.is_empty() {
        feature_gates::drop_disabled_fields(kind, old, new);
    }
    match (kind, subresource) {
        ("Deployment", "status") => copy_nested_field(old, new, "metadata", "labels"),
        ("Pod", _) => pod::prepare_update(subresource, old, new),
        ("DaemonSet", "") => {
            let generation = template_generation(old).max(1);
            let changed = at(old, "spec.template") != at(new, "spec.template");
            annotate(new, TEMPLATE_GENERATION, &(generation + i64::from(changed)).to_string());
        }
        // The annotation is derived from the spec, which writers of the status may omit.
        ("DaemonSet", "status") => annotate(new, TEMPLATE_GENERATION, &template_generation(old).to_string()),
        ("HorizontalPodAutoscaler", "") => autoscaler::restore_status_annotations(old, new),
        ("Namespace", "") => {
            copy_field(old, new, "spec");
        }
        ("Namespace", "finalize") => {
            let finalizers = at(new, "spec.finalizers").clone();
            *new = old.clone();
            set_field(&mut new["spec"], "finalizers", finalizers);
        }
        ("PersistentVolumeClaim", "") => synchronize_data_sources(old, new),
        ("ServiceAccount", "") => keep_secret_names(new),
        ("EndpointSlice", "") => drop_topology(old, new),
        ("Lease", "") if is_unset(old, "spec.strategy") && is_unset(old, "spec.preferredHolder") => {
            drop_lease_strategy(new)
        }
        ("StatefulSet", "") if is_unset(old, "spec.updateStrategy.rollingUpdate.maxUnavailable") => {
            drop_max_unavailable(new)
        }
        ("Node", "") if is_unset(old, "spec.configSource") => drop_config_source(new),
        ("CertificateSigningRequest", "") => copy_field(old, new, "spec"),
        ("CertificateSigningRequest", "approval") => {
            set_condition_times(ctx, old, new);
            let conditions = at(new, "status.conditions").clone();
            *new = with_new_fields(old, new, &["metadata"]);
            if !is_set(new, "status") {
                set_field(new, "status", json!({}));
            }
            set_field(&mut new["status"], "conditions", conditions);
        }
        ("CertificateSigningRequest", "status") => {
            copy_field(old, new, "spec");
            ["Approved", "Denied"].iter().for_each(|kind| keep_conditions(kind, old, new));
            set_condition_times(ctx, old, new);
        }
        ("Service", "") => {
            service::set_derived_fields(new);
            service::prepare_update(old, new);
        }
        ("CustomResourceDefinition", "") => {
            let before = items(old, "status.storedVersions").to_vec();
            add_stored_versions(new, before);
        }
        ("PersistentVolume", "status") => set_phase_transition_time(old, new, ctx),
        ("Secret", _) if is_unset(new, "type") => copy_field(old, new, "type"),
        _ => {}
    }
}

/// Drops `spec.configSource`: dynamic kubelet configuration has been removed.
fn drop_config_source(node: &mut Value) {
    if let Some(spec) = at_mut(node, "spec") {
        remove_field(spec, "configSource");
    }
}

/// Synchronizes `dataSource` and `dataSourceRef` of a claim; the former supports only claims and snapshots.
fn synchronize_data_sources(old: &Value, claim: &mut Value) {
    const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
    let had_data_source = is_set(old, "spec.dataSource") || is_set(old, "spec.dataSourceRef");
    let Some(spec) = at_mut(claim, "spec") else { return };
    // Data sources in other namespaces are behind a disabled feature gate.
    if !text(spec, "dataSourceRef.namespace").is_empty() && !is_set(old, "spec.dataSourceRef") {
        remove_field(spec, "dataSourceRef");
    }
    let (kind, group) = (text(spec, "dataSource.kind"), text(spec, "dataSource.apiGroup"));
    let is_supported = matches!((kind, group), ("PersistentVolumeClaim", "") | ("VolumeSnapshot", SNAPSHOTS));
    if !had_data_source && !is_set(spec, "dataSourceRef") && !is_supported {
        remove_field(spec, "dataSource");
    }
    // Claims created by older versions have only one of the fields.
    if had_data_source && is_set(old, "spec.dataSource") != is_set(old, "spec.dataSourceRef") {
        return;
    }
    let to_reference = |from: &Value| {
        let mut to = json!({"apiGroup": at(from, "apiGroup")});
        ["kind", "name"].iter().for_each(|field| copy_field(from, &mut to, field));
        to
    };
    match (is_set(spec, "dataSource"), is_set(spec, "dataSourceRef")) {
        (true, false) => set_field(spec, "dataSourceRef", to_reference(at(spec, "dataSource"))),
        (false, true) if text(spec, "dataSourceRef.namespace").is_empty() => {
            set_field(spec, "dataSource", to_reference(at(spec, "dataSourceRef")));
        }
        _ => {}
    }
}

/// Drops everything but the names of a service account's secrets, which are in its namespace.
fn keep_secret_names(account: &mut Value) {
    for_each_item(account, "secrets", |secret| *secret = json!({"name": text(secret, "name")}));
}

/// Drops the topology of older versions from new endpoints; existing ones keep it.
fn drop_topology(old: &Value, slice: &mut Value) {
    const FIELD: &str = "deprecatedTopology";
    let old_topologies: Vec<&Value> = items(old, "endpoints").iter().map(|endpoint| at(endpoint, FIELD)).collect();
    for_each_item(slice, "endpoints", |endpoint| {
        if !old_topologies.contains(&at(endpoint, FIELD)) {
            remove_field(endpoint, FIELD);
        }
    });
}

/// Drops the fields of coordinated leader election, whose feature gate is off by default.
fn drop_lease_strategy(lease: &mut Value) {
    if let Some(spec) = at_mut(lease, "spec") {
        ["strategy", "preferredHolder"].iter().for_each(|field| drop(remove_field(spec, field)));
    }
}

/// Drops `maxUnavailable`, whose feature gate is off by default.
fn drop_max_unavailable(set: &mut Value) {
    if let Some(rolling) = at_mut(set, "spec.updateStrategy.rollingUpdate") {
        remove_field(rolling, "maxUnavailable");
    }
}

/// `old` with the named fields of `new`.
pub(super) fn with_new_fields(old: &Value, new: &Value, fields: &[&str]) -> Value {
    let mut out = old.clone();
    for field in fields {
        copy_field(new, &mut out, field);
    }
    out
}

pub(super) fn copy_nested_field(old: &Value, new: &mut Value, parent: &str, field: &str) {
    let source = at(old, parent).clone();
    if let Some(target) = at_mut(new, parent) {
        copy_field(&source, target, field);
    }
}

fn annotate(object: &mut Value, key: &str, value: &str) {
    let Some(metadata) = at_mut(object, "metadata") else { return };
    if !is_set(metadata, "annotations") {
        set_field(metadata, "annotations", json!({}));
    }
    set_field(&mut metadata["annotations"], key, value);
}

fn template_generation(object: &Value) -> i64 {
    let annotation = fields(object, "metadata.annotations").get(TEMPLATE_GENERATION);
    annotation.and_then(Value::as_str).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Generates the selector of a job and the matching labels of its pod template.
fn generate_job_selector(object: &mut Value) {
    if at(object, "spec.manualSelector") != true {
        let (uid, name) = (text(object, "metadata.uid").to_owned(), text(object, "metadata.name").to_owned());
        if let Some(spec) = at_mut(object, "spec") {
            for field in ["template", "selector"] {
                if !is_set(spec, field) {
                    set_field(spec, field, json!({}));
                }
            }
            if let Some(template) = at_mut(spec, "template") {
                if !is_set(template, "metadata") {
                    set_field(template, "metadata", json!({}));
                }
                if !is_set(template, "metadata.labels") {
                    set_field(&mut template["metadata"], "labels", json!({}));
                }
                let labels = &mut template["metadata"]["labels"];
                for (key, value) in [("controller-uid", &uid), ("job-name", &name)] {
                    set_default(labels, key, value.clone());
                    set_default(labels, &format!("batch.kubernetes.io/{key}"), value.clone());
                }
            }
            if !is_set(spec, "selector.matchLabels") {
                set_field(&mut spec["selector"], "matchLabels", json!({}));
            }
            set_default(&mut spec["selector"]["matchLabels"], "batch.kubernetes.io/controller-uid", uid);
        }
    }
    // With a generated selector, these include its labels.
    if let Some(labels) = default_job_labels(object) {
        set_field(&mut object["metadata"], "labels", labels);
    }
}

/// The labels of a job's template, which are the default for a job without labels.
fn default_job_labels(object: &Value) -> Option<Map<String, Value>> {
    let labels = fields(object, "spec.template.metadata.labels");
    (!labels.is_empty() && fields(object, "metadata.labels").is_empty()).then(|| labels.clone())
}

/// A copy of the object with the defaults whose fields its creator owns in `managedFields`.
pub(super) fn with_owned_defaults(kind: &str, object: &Value) -> Option<Value> {
    let labels = default_job_labels(object).filter(|_| kind == "Job")?;
    let mut owned = object.clone();
    set_field(&mut owned["metadata"], "labels", labels);
    Some(owned)
}

/// Adds the finalizer `kubernetes` to the spec of a namespace.
fn add_finalizer(object: &mut Value) {
    if !is_set(object, "spec") {
        set_field(object, "spec", json!({}));
    }
    let mut finalizers = items(object, "spec.finalizers").to_vec();
    if !finalizers.iter().any(|name| name == "kubernetes") {
        finalizers.push(json!("kubernetes"));
    }
    set_field(&mut object["spec"], "finalizers", finalizers);
}

/// Sets the requesting user of a certificate signing request, ignoring the values in the request.
fn set_requester(ctx: &RequestContext, object: &mut Value) {
    let Some(spec) = at_mut(object, "spec") else { return };
    set_field(spec, "username", ctx.user.name.clone());
    set_field(spec, "uid", ctx.user.uid.clone());
    set_field(spec, "groups", ctx.user.groups.clone());
    set_field(spec, "extra", json!(ctx.user.extra));
}

/// Adds the storage version of a CRD to `stored`, and sets `status.storedVersions`.
fn add_stored_versions(object: &mut Value, mut stored: Vec<Value>) {
    for version in items(object, "spec.versions") {
        let name = at(version, "name");
        if at(version, "storage") == true && !stored.contains(name) {
            stored.push(name.clone());
        }
    }
    if !is_set(object, "status") {
        set_field(object, "status", json!({}));
    }
    set_field(&mut object["status"], "storedVersions", stored);
}

/// Restores conditions of this type if their number is unchanged: another subresource changes them.
fn keep_conditions(kind: &str, old: &Value, new: &mut Value) {
    const LIST: &str = "status.conditions";
    let is_kind = |condition: &&Value| text(condition, "type") == kind;
    let before: Vec<Value> = items(old, LIST).iter().filter(is_kind).cloned().collect();
    if items(new, LIST).iter().filter(is_kind).count() != before.len() {
        return;
    }
    let mut before = before.into_iter();
    for_each_item(new, LIST, |condition| {
        if text(condition, "type") == kind
            && let Some(kept) = before.next()
        {
            *condition = kept;
        }
    });
}

/// Sets the missing timestamps of conditions.
fn set_condition_times(ctx: &RequestContext, old: &Value, new: &mut Value) {
    const LIST: &str = "status.conditions";
    let now = Value::from(format_time(ctx.now));
    for_each_item(new, LIST, |condition| {
        if !is_set(condition, "lastUpdateTime") {
            set_field(condition, "lastUpdateTime", now.clone());
        }
        if is_set(condition, "lastTransitionTime") {
            return;
        }
        let same = |before: &&Value| ["type", "status"].iter().all(|field| at(before, field) == at(condition, field));
        let mut before = items(old, LIST).iter().filter(same).map(|before| at(before, "lastTransitionTime"));
        let since = before.find(|time| !time.is_null()).cloned().unwrap_or_else(|| now.clone());
        set_field(condition, "lastTransitionTime", since);
    });
}

/// Sets the time of a volume's last phase transition; a write with the same phase may omit it.
fn set_phase_transition_time(old: &Value, new: &mut Value, ctx: &RequestContext) {
    const TIME: &str = "status.lastPhaseTransitionTime";
    if at(old, "status.phase") == at(new, "status.phase") {
        if is_unset(new, TIME) {
            copy_nested_field(old, new, "status", "lastPhaseTransitionTime");
        }
    } else if is_unset(new, TIME) || at(old, TIME) == at(new, TIME) {
        set_field(&mut new["status"], "lastPhaseTransitionTime", format_time(ctx.now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::from_the_template("Job", json!({}), json!({"app": "a"}), Some(json!({"app": "a"})))]
    #[case::own_ones("Job", json!({"labels": {"b": "c"}}), json!({"app": "a"}), None)]
    #[case::none("Job", json!({}), json!({}), None)]
    #[case::other_kind("Deployment", json!({}), json!({"app": "a"}), None)]
    fn creators_own_the_labels_of_jobs(
        #[case] kind: &str,
        #[case] metadata: Value,
        #[case] labels: Value,
        #[case] expected: Option<Value>,
    ) {
        let object = json!({"metadata": metadata, "spec": {"template": {"metadata": {"labels": labels}}}});
        let owned = with_owned_defaults(kind, &object).map(|owned| owned["metadata"]["labels"].clone());
        assert_eq!(owned, expected);
    }
}
