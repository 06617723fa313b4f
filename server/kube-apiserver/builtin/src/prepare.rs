//! Preparation of objects before storage by the rules of their kind (`PrepareForCreate`, `PrepareForUpdate`).

use crowsnest_registry::object::format_time;
use crowsnest_registry::strategy::RequestContext;
use serde_json::{Map, Value, json};

use super::object::{at, copy, default, each, fields, inside, is_set, is_unset, items, put, take, text};
use super::{apparmor, autoscaler, gated, pod, service};

pub(super) const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

pub(super) fn create(ctx: &RequestContext, kind: &str, object: &mut Value) {
    gated::drop_fields(kind, &Value::Null, object);
    match kind {
        "Pod" => {
            apparmor::settle(object);
            pod::create(ctx, object);
        }
        "DaemonSet" => {
            let generation = template_generation(object).max(1);
            annotate(object, TEMPLATE_GENERATION, &generation.to_string());
        }
        "Job" => job(object),
        "HorizontalPodAutoscaler" => autoscaler::without_status(&Value::Null, object),
        "Namespace" => {
            put(object, "status", json!({"phase": "Active"}));
            finalizer(object);
        }
        "PersistentVolume" => {
            let now = ctx.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            put(object, "status", json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
        }
        "PersistentVolumeClaim" => {
            put(object, "status", json!({"phase": "Pending"}));
            data_sources(&Value::Null, object);
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
        "CertificateSigningRequest" => requester(ctx, object),
        "CustomResourceDefinition" => stored_versions(object, Vec::new()),
        _ => {}
    }
}

pub(super) fn update(ctx: &RequestContext, kind: &str, old: &Value, new: &mut Value) {
    let subresource = ctx.subresource.as_str();
    if subresource.is_empty() {
        gated::drop_fields(kind, old, new);
    }
    match (kind, subresource) {
        ("Deployment", "status") => copy_below(old, new, "metadata", "labels"),
        ("Pod", _) => pod::update(subresource, old, new),
        ("DaemonSet", "") => {
            let generation = template_generation(old).max(1);
            let changed = at(old, "spec.template") != at(new, "spec.template");
            annotate(new, TEMPLATE_GENERATION, &(generation + i64::from(changed)).to_string());
        }
        // It is derived from the spec, which writers of the status need not send.
        ("DaemonSet", "status") => annotate(new, TEMPLATE_GENERATION, &template_generation(old).to_string()),
        ("HorizontalPodAutoscaler", "") => autoscaler::without_status(old, new),
        ("Namespace", "") => {
            copy(old, new, "spec");
        }
        ("Namespace", "finalize") => {
            let finalizers = at(new, "spec.finalizers").clone();
            *new = old.clone();
            put(&mut new["spec"], "finalizers", finalizers);
        }
        ("PersistentVolumeClaim", "") => data_sources(old, new),
        ("ServiceAccount", "") => keep_secret_names(new),
        ("EndpointSlice", "") => drop_topology(old, new),
        ("Lease", "") if is_unset(old, "spec.strategy") && is_unset(old, "spec.preferredHolder") => {
            drop_lease_strategy(new)
        }
        ("StatefulSet", "") if is_unset(old, "spec.updateStrategy.rollingUpdate.maxUnavailable") => {
            drop_max_unavailable(new)
        }
        ("Node", "") if is_unset(old, "spec.configSource") => drop_config_source(new),
        ("CertificateSigningRequest", "") => copy(old, new, "spec"),
        ("CertificateSigningRequest", "approval") => {
            condition_times(ctx, old, new);
            let conditions = at(new, "status.conditions").clone();
            *new = keep(old, new, &["metadata"]);
            if !is_set(new, "status") {
                put(new, "status", json!({}));
            }
            put(&mut new["status"], "conditions", conditions);
        }
        ("CertificateSigningRequest", "status") => {
            copy(old, new, "spec");
            ["Approved", "Denied"].iter().for_each(|kind| keep_conditions(kind, old, new));
            condition_times(ctx, old, new);
        }
        ("Service", "") => {
            service::set_derived_fields(new);
            service::update(old, new);
        }
        ("CustomResourceDefinition", "") => {
            let before = items(old, "status.storedVersions").to_vec();
            stored_versions(new, before);
        }
        ("PersistentVolume", "status") => phase_time(old, new, ctx),
        ("Secret", _) if is_unset(new, "type") => copy(old, new, "type"),
        _ => {}
    }
}

/// Drops `spec.configSource`: dynamic kubelet configuration has been removed.
fn drop_config_source(node: &mut Value) {
    if let Some(spec) = inside(node, "spec") {
        take(spec, "configSource");
    }
}

/// Synchronizes `dataSource` and `dataSourceRef` of a claim; the former supports only claims and snapshots.
fn data_sources(old: &Value, claim: &mut Value) {
    const SNAPSHOTS: &str = "snapshot.storage.k8s.io";
    let known = is_set(old, "spec.dataSource") || is_set(old, "spec.dataSourceRef");
    let Some(spec) = inside(claim, "spec") else { return };
    // Data sources in other namespaces are behind a disabled feature gate.
    if !text(spec, "dataSourceRef.namespace").is_empty() && !is_set(old, "spec.dataSourceRef") {
        take(spec, "dataSourceRef");
    }
    let (kind, group) = (text(spec, "dataSource.kind"), text(spec, "dataSource.apiGroup"));
    let of_old = matches!((kind, group), ("PersistentVolumeClaim", "") | ("VolumeSnapshot", SNAPSHOTS));
    if !known && !is_set(spec, "dataSourceRef") && !of_old {
        take(spec, "dataSource");
    }
    // Claims created by older versions have only one of the fields.
    if known && is_set(old, "spec.dataSource") != is_set(old, "spec.dataSourceRef") {
        return;
    }
    let copy = |from: &Value| {
        let mut to = json!({"apiGroup": at(from, "apiGroup")});
        ["kind", "name"].iter().for_each(|field| copy(from, &mut to, field));
        to
    };
    match (is_set(spec, "dataSource"), is_set(spec, "dataSourceRef")) {
        (true, false) => put(spec, "dataSourceRef", copy(at(spec, "dataSource"))),
        (false, true) if text(spec, "dataSourceRef.namespace").is_empty() => {
            put(spec, "dataSource", copy(at(spec, "dataSourceRef")));
        }
        _ => {}
    }
}

/// Drops everything but the names of a service account's secrets, which are in its namespace.
fn keep_secret_names(account: &mut Value) {
    each(account, "secrets", |secret| *secret = json!({"name": text(secret, "name")}));
}

/// Drops the topology of older versions from new endpoints; existing ones keep it.
fn drop_topology(old: &Value, slice: &mut Value) {
    const FIELD: &str = "deprecatedTopology";
    let known: Vec<&Value> = items(old, "endpoints").iter().map(|endpoint| at(endpoint, FIELD)).collect();
    each(slice, "endpoints", |endpoint| {
        if !known.contains(&at(endpoint, FIELD)) {
            take(endpoint, FIELD);
        }
    });
}

/// Drops the fields of coordinated leader election, whose feature gate is off by default.
fn drop_lease_strategy(lease: &mut Value) {
    if let Some(spec) = inside(lease, "spec") {
        ["strategy", "preferredHolder"].iter().for_each(|field| drop(take(spec, field)));
    }
}

/// Drops `maxUnavailable`, whose feature gate is off by default.
fn drop_max_unavailable(set: &mut Value) {
    if let Some(rolling) = inside(set, "spec.updateStrategy.rollingUpdate") {
        take(rolling, "maxUnavailable");
    }
}

/// `old` with the named fields of `new`.
pub(super) fn keep(old: &Value, new: &Value, from_new: &[&str]) -> Value {
    let mut out = old.clone();
    for field in from_new {
        copy(new, &mut out, field);
    }
    out
}

pub(super) fn copy_below(old: &Value, new: &mut Value, parent: &str, field: &str) {
    let source = at(old, parent).clone();
    if let Some(target) = inside(new, parent) {
        copy(&source, target, field);
    }
}

fn annotate(object: &mut Value, key: &str, value: &str) {
    let Some(metadata) = inside(object, "metadata") else { return };
    if !is_set(metadata, "annotations") {
        put(metadata, "annotations", json!({}));
    }
    put(&mut metadata["annotations"], key, value);
}

fn template_generation(object: &Value) -> i64 {
    let annotation = fields(object, "metadata.annotations").get(TEMPLATE_GENERATION);
    annotation.and_then(Value::as_str).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Generates the selector of a job and the matching labels of its pod template.
fn job(object: &mut Value) {
    if at(object, "spec.manualSelector") != true {
        let (uid, name) = (text(object, "metadata.uid").to_owned(), text(object, "metadata.name").to_owned());
        if let Some(spec) = inside(object, "spec") {
            for field in ["template", "selector"] {
                if !is_set(spec, field) {
                    put(spec, field, json!({}));
                }
            }
            if let Some(template) = inside(spec, "template") {
                if !is_set(template, "metadata") {
                    put(template, "metadata", json!({}));
                }
                if !is_set(template, "metadata.labels") {
                    put(&mut template["metadata"], "labels", json!({}));
                }
                let labels = &mut template["metadata"]["labels"];
                for (key, value) in [("controller-uid", &uid), ("job-name", &name)] {
                    default(labels, key, value.clone());
                    default(labels, &format!("batch.kubernetes.io/{key}"), value.clone());
                }
            }
            if !is_set(spec, "selector.matchLabels") {
                put(&mut spec["selector"], "matchLabels", json!({}));
            }
            default(&mut spec["selector"]["matchLabels"], "batch.kubernetes.io/controller-uid", uid);
        }
    }
    // With a generated selector, these include its labels.
    if let Some(labels) = default_job_labels(object) {
        put(&mut object["metadata"], "labels", labels);
    }
}

/// The labels of a job's template, which are the default for a job without labels.
fn default_job_labels(object: &Value) -> Option<Map<String, Value>> {
    let labels = fields(object, "spec.template.metadata.labels");
    (!labels.is_empty() && fields(object, "metadata.labels").is_empty()).then(|| labels.clone())
}

/// The object with the defaults that its creator owns.
pub(super) fn with_owned_defaults(kind: &str, object: &Value) -> Option<Value> {
    let labels = default_job_labels(object).filter(|_| kind == "Job")?;
    let mut owned = object.clone();
    put(&mut owned["metadata"], "labels", labels);
    Some(owned)
}

fn finalizer(object: &mut Value) {
    if !is_set(object, "spec") {
        put(object, "spec", json!({}));
    }
    let mut finalizers = items(object, "spec.finalizers").to_vec();
    if !finalizers.iter().any(|name| name == "kubernetes") {
        finalizers.push(json!("kubernetes"));
    }
    put(&mut object["spec"], "finalizers", finalizers);
}

/// Sets the requesting user of a certificate signing request, ignoring the values in the request.
fn requester(ctx: &RequestContext, object: &mut Value) {
    let Some(spec) = inside(object, "spec") else { return };
    put(spec, "username", ctx.user.name.clone());
    put(spec, "uid", ctx.user.uid.clone());
    put(spec, "groups", ctx.user.groups.clone());
    put(spec, "extra", json!(ctx.user.extra));
}

fn stored_versions(object: &mut Value, mut stored: Vec<Value>) {
    for version in items(object, "spec.versions") {
        let name = at(version, "name");
        if at(version, "storage") == true && !stored.contains(name) {
            stored.push(name.clone());
        }
    }
    if !is_set(object, "status") {
        put(object, "status", json!({}));
    }
    put(&mut object["status"], "storedVersions", stored);
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
    each(new, LIST, |condition| {
        if text(condition, "type") == kind
            && let Some(kept) = before.next()
        {
            *condition = kept;
        }
    });
}

/// Sets the missing timestamps of conditions.
fn condition_times(ctx: &RequestContext, old: &Value, new: &mut Value) {
    const LIST: &str = "status.conditions";
    let now = Value::from(format_time(ctx.now));
    each(new, LIST, |condition| {
        if !is_set(condition, "lastUpdateTime") {
            put(condition, "lastUpdateTime", now.clone());
        }
        if is_set(condition, "lastTransitionTime") {
            return;
        }
        let same = |before: &&Value| ["type", "status"].iter().all(|field| at(before, field) == at(condition, field));
        let mut before = items(old, LIST).iter().filter(same).map(|before| at(before, "lastTransitionTime"));
        let since = before.find(|time| !time.is_null()).cloned().unwrap_or_else(|| now.clone());
        put(condition, "lastTransitionTime", since);
    });
}

/// Sets the time of a volume's last phase transition; a write with the same phase may omit it.
fn phase_time(old: &Value, new: &mut Value, ctx: &RequestContext) {
    const TIME: &str = "status.lastPhaseTransitionTime";
    if at(old, "status.phase") == at(new, "status.phase") {
        if is_unset(new, TIME) {
            copy_below(old, new, "status", "lastPhaseTransitionTime");
        }
    } else if is_unset(new, TIME) || at(old, TIME) == at(new, TIME) {
        let now = ctx.now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        put(&mut new["status"], "lastPhaseTransitionTime", now);
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
