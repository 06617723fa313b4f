//! Validation of deployments, replica sets, stateful sets, daemon sets, replication controllers and controller
//! revisions.

use super::selector::validate_label_selector;
use super::{Errors, Value, at, fields, go, is_set, items, json, number, pod, storage, text};

const LABEL_SELECTOR: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector";
const STATEFUL_SET_UPDATE: &str = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";

fn is_empty(selector: &Value) -> bool {
    fields(selector, "matchLabels").is_empty() && items(selector, "matchExpressions").is_empty()
}

/// True if the labels satisfy the selector.
pub(super) fn selects(selector: &Value, labels: &serde_json::Map<String, Value>) -> bool {
    let equal = fields(selector, "matchLabels").iter().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && items(selector, "matchExpressions").iter().all(|expression| {
            let found = labels.get(text(expression, "key"));
            let listed = found.is_some_and(|value| items(expression, "values").contains(value));
            match text(expression, "operator") {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => found.is_some(),
                "DoesNotExist" => found.is_none(),
                _ => false,
            }
        })
}

fn validate_selector(e: &mut Errors, object: &Value, kind: &str) {
    let selector = at(object, "spec.selector");
    if selector.is_null() {
        return e.required("spec.selector", "");
    }
    validate_label_selector(e, selector, "spec.selector");
    if is_empty(selector) {
        e.push(go::invalid(
            "spec.selector",
            selector,
            LABEL_SELECTOR,
            &format!("empty selector is invalid for {kind}"),
        ));
    }
}

/// Validates a pod template: its labels must match the selector, and pods must restart always.
fn validate_template(e: &mut Errors, object: &Value, kind: &str) {
    let claims = items(object, "spec.volumeClaimTemplates");
    let template_with_claims;
    let template = match at(object, "spec.template") {
        template if claims.is_empty() => template,
        template => {
            template_with_claims = with_claim_volumes(template, claims);
            &template_with_claims
        }
    };
    let selector = at(object, "spec.selector");
    let labels = at(template, "metadata.labels");
    let valid = {
        let mut selector_errors = Errors::default();
        validate_label_selector(&mut selector_errors, selector, "");
        selector_errors.0.is_empty()
    };
    let stateful = kind == "StatefulSet";
    if !valid {
        let reason = if stateful { "" } else { "invalid label selector" };
        e.push(go::invalid("spec.selector", selector, LABEL_SELECTOR, reason));
        if !stateful {
            return;
        }
    } else {
        let is_mismatch = !is_empty(selector) && !selects(selector, fields(template, "metadata.labels"));
        if selector.is_null() || is_mismatch {
            e.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`");
        }
        pod::validate_pod_template(e, template, "spec.template");
        // kube-apiserver reports these errors twice.
        if stateful {
            pod::validate_template_metadata(e, template, "spec.template");
        }
    }
    validate_restart_always(e, template, kind);
}

fn validate_claim_templates(e: &mut Errors, object: &Value) {
    for (index, claim) in items(object, "spec.volumeClaimTemplates").iter().enumerate() {
        storage::validate_claim_spec(e, at(claim, "spec"), &format!("spec.volumeClaimTemplates[{index}].spec"));
    }
}

/// The template of a stateful set's pods: each claim template adds a volume or replaces the one with its name.
fn with_claim_volumes(template: &Value, claims: &[Value]) -> Value {
    let mut out = template.clone();
    let names: Vec<&str> = claims.iter().map(|claim| text(claim, "metadata.name")).collect();
    let mut volumes: Vec<Value> = items(template, "spec.volumes").to_vec();
    volumes.retain(|volume| !names.contains(&text(volume, "name")));
    volumes.extend(names.iter().map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}})));
    if let Some(spec) = super::super::object::at_mut(&mut out, "spec") {
        super::super::object::set_field(spec, "volumes", volumes);
    }
    out
}

fn validate_restart_always(e: &mut Errors, template: &Value, kind: &str) {
    let policy = at(template, "spec.restartPolicy");
    if policy != "Always" {
        e.unsupported("spec.template.spec.restartPolicy", policy, &["Always"]);
    }
    if is_set(template, "spec.activeDeadlineSeconds") {
        let reason = format!("activeDeadlineSeconds in {kind} is not Supported");
        e.forbidden("spec.template.spec.activeDeadlineSeconds", &reason);
    }
}

/// The digits of a percentage: `50%`.
fn percent_digits(text: &str) -> Option<&str> {
    text.strip_suffix('%').filter(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Validates an integer or percentage.
pub(super) fn validate_int_or_percent(e: &mut Errors, field: &str, value: &Value) {
    match value {
        Value::String(text) => {
            if percent_digits(text).is_none() {
                e.invalid(field, value, "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')");
            }
        }
        number => e.non_negative(field, number),
    }
}

/// The number of an integer or percentage.
fn parse_int_or_percent(value: &Value) -> i64 {
    match value {
        Value::String(text) => text.trim_end_matches('%').parse().unwrap_or(0),
        other => other.as_i64().unwrap_or(0),
    }
}

/// `IsNotMoreThan100Percent`.
pub(super) fn validate_at_most_all(e: &mut Errors, field: &str, value: &Value) {
    let digits = value.as_str().and_then(percent_digits);
    // Digits that do not fit the type are a number that is too large.
    if digits.is_some_and(|digits| digits.parse::<u64>().unwrap_or(u64::MAX) > 100) {
        e.invalid(field, value, "must not be greater than 100%");
    }
}

pub(super) fn validate_deployment(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    e.non_negative("spec.replicas", at(spec, "replicas"));
    validate_selector(e, object, "deployment");
    validate_template(e, object, "ReplicaSet");
    let strategy = at(spec, "strategy");
    match text(strategy, "type") {
        "Recreate" if is_set(strategy, "rollingUpdate") => {
            e.forbidden("spec.strategy.rollingUpdate", "may not be specified when strategy `type` is 'Recreate'");
        }
        "Recreate" => {}
        "RollingUpdate" if !is_set(strategy, "rollingUpdate") => {
            e.required("spec.strategy.rollingUpdate", "this should be defaulted and never be nil");
        }
        "RollingUpdate" => {
            let (unavailable, surge) =
                (at(strategy, "rollingUpdate.maxUnavailable"), at(strategy, "rollingUpdate.maxSurge"));
            validate_int_or_percent(e, "spec.strategy.rollingUpdate.maxUnavailable", unavailable);
            validate_int_or_percent(e, "spec.strategy.rollingUpdate.maxSurge", surge);
            if parse_int_or_percent(unavailable) == 0 && parse_int_or_percent(surge) == 0 {
                e.invalid(
                    "spec.strategy.rollingUpdate.maxUnavailable",
                    unavailable,
                    "may not be 0 when `maxSurge` is 0",
                );
            }
            validate_at_most_all(e, "spec.strategy.rollingUpdate.maxUnavailable", unavailable);
        }
        _ => {
            let supported = ["Recreate", "RollingUpdate"];
            e.push(go::unsupported_struct("spec.strategy", strategy, "apps.DeploymentStrategy", &supported));
        }
    }
    e.non_negative("spec.minReadySeconds", at(spec, "minReadySeconds"));
    e.non_negative("spec.revisionHistoryLimit", at(spec, "revisionHistoryLimit"));
    if let Some(deadline) = number(spec, "progressDeadlineSeconds") {
        e.non_negative("spec.progressDeadlineSeconds", at(spec, "progressDeadlineSeconds"));
        if deadline <= number(spec, "minReadySeconds").unwrap_or(0) {
            e.invalid("spec.progressDeadlineSeconds", &json!(deadline), "must be greater than minReadySeconds");
        }
    }
}

pub(super) fn validate_replica_set(e: &mut Errors, object: &Value) {
    e.non_negative("spec.replicas", at(object, "spec.replicas"));
    e.non_negative("spec.minReadySeconds", at(object, "spec.minReadySeconds"));
    validate_selector(e, object, "deployment");
    validate_template(e, object, "ReplicaSet");
}

/// Validates a stateful set; `new` includes the claim templates, which are immutable.
pub(super) fn validate_stateful_set(e: &mut Errors, object: &Value, new: bool) {
    let spec = at(object, "spec");
    match text(spec, "podManagementPolicy") {
        "" => e.required("spec.podManagementPolicy", ""),
        "OrderedReady" | "Parallel" => {}
        other => e.invalid("spec.podManagementPolicy", &json!(other), "must be 'OrderedReady' or 'Parallel'"),
    }
    let strategy = at(spec, "updateStrategy");
    match text(strategy, "type") {
        "" => e.required("spec.updateStrategy", ""),
        "OnDelete" if is_set(strategy, "rollingUpdate") => {
            let (field, reason) =
                ("spec.updateStrategy.rollingUpdate", "only allowed for updateStrategy 'RollingUpdate'");
            e.push(go::invalid_struct(
                field,
                at(strategy, "rollingUpdate"),
                "apps.RollingUpdateStatefulSetStrategy",
                reason,
            ));
        }
        "OnDelete" => {}
        "RollingUpdate" => {
            e.non_negative("spec.updateStrategy.rollingUpdate.partition", at(strategy, "rollingUpdate.partition"));
            let unavailable = at(strategy, "rollingUpdate.maxUnavailable");
            if !unavailable.is_null() {
                validate_int_or_percent(e, "spec.updateStrategy.rollingUpdate.maxUnavailable", unavailable);
                if parse_int_or_percent(unavailable) == 0 {
                    e.invalid("spec.updateStrategy.rollingUpdate.maxUnavailable", unavailable, "cannot be 0");
                }
                validate_at_most_all(e, "spec.updateStrategy.rollingUpdate.maxUnavailable", unavailable);
            }
        }
        _ => {
            let reason = "must be 'RollingUpdate' or 'OnDelete'";
            e.push(go::invalid_struct("spec.updateStrategy", strategy, "apps.StatefulSetUpdateStrategy", reason));
        }
    }
    for field in ["whenDeleted", "whenScaled"] {
        let path = format!("persistentVolumeClaimRetentionPolicy.{field}");
        let policy = at(spec, &path);
        if !policy.is_null() && policy != "Retain" && policy != "Delete" {
            e.unsupported(format!("spec.{path}"), policy, &["Retain", "Delete"]);
        }
    }
    if new {
        validate_claim_templates(e, object);
    }
    e.non_negative("spec.replicas", at(spec, "replicas"));
    e.non_negative("spec.minReadySeconds", at(spec, "minReadySeconds"));
    e.non_negative("spec.ordinals.start", at(spec, "ordinals.start"));
    let service = text(spec, "serviceName");
    if !service.is_empty() {
        e.push_name_errors("spec.serviceName", service, super::validate_dns1123_label(service));
    }
    validate_selector(e, object, "statefulset");
    validate_template(e, object, "StatefulSet");
}

pub(super) fn validate_stateful_set_update(e: &mut Errors, old: &Value, new: &Value) {
    const MUTABLE_FIELDS: [&str; 7] = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let immutable_part = |object: &Value| super::super::object::without_fields(at(object, "spec"), &MUTABLE_FIELDS);
    if !super::are_equal(&immutable_part(old), &immutable_part(new)) {
        e.forbidden("spec", STATEFUL_SET_UPDATE);
    }
}

pub(super) fn validate_daemon_set(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    validate_label_selector(e, at(spec, "selector"), "spec.selector");
    let (selector, labels) = (at(spec, "selector"), at(spec, "template.metadata.labels"));
    if selector.is_null() {
        e.required("spec.selector", "");
    } else if is_empty(selector) {
        e.push(go::invalid("spec.selector", selector, LABEL_SELECTOR, "empty selector is invalid for daemonset"));
    }
    if !is_empty(selector) && !selects(selector, fields(spec, "template.metadata.labels")) {
        e.invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`");
    }
    let template = at(spec, "template");
    pod::validate_pod_template(e, template, "spec.template");
    validate_restart_always(e, template, "DaemonSet");
    e.non_negative("spec.minReadySeconds", at(spec, "minReadySeconds"));
    let strategy = at(spec, "updateStrategy");
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" if !is_set(strategy, "rollingUpdate") => e.required("spec.updateStrategy.rollingUpdate", ""),
        "RollingUpdate" => {
            let (unavailable, surge) =
                (at(strategy, "rollingUpdate.maxUnavailable"), at(strategy, "rollingUpdate.maxSurge"));
            validate_int_or_percent(e, "spec.updateStrategy.rollingUpdate.maxUnavailable", unavailable);
            validate_int_or_percent(e, "spec.updateStrategy.rollingUpdate.maxSurge", surge);
            validate_at_most_all(e, "spec.updateStrategy.rollingUpdate.maxUnavailable", unavailable);
            validate_at_most_all(e, "spec.updateStrategy.rollingUpdate.maxSurge", surge);
            match (parse_int_or_percent(unavailable), parse_int_or_percent(surge)) {
                (0, 0) => {
                    e.required("spec.updateStrategy.rollingUpdate.maxUnavailable", "cannot be 0 when maxSurge is 0")
                }
                (a, b) if a != 0 && b != 0 => {
                    e.invalid(
                        "spec.updateStrategy.rollingUpdate.maxSurge",
                        surge,
                        "may not be set when maxUnavailable is non-zero",
                    );
                }
                _ => {}
            }
        }
        _ => {
            let supported = ["RollingUpdate", "OnDelete"];
            e.push(go::unsupported_struct("spec.updateStrategy", strategy, "apps.DaemonSetUpdateStrategy", &supported));
        }
    }
    e.non_negative("spec.revisionHistoryLimit", at(spec, "revisionHistoryLimit"));
}

pub(super) fn validate_replication_controller(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    e.non_negative("spec.minReadySeconds", at(spec, "minReadySeconds"));
    let selector = fields(spec, "selector");
    if selector.is_empty() {
        e.required("spec.selector", "");
    }
    e.non_negative("spec.replicas", at(spec, "replicas"));
    if !is_set(spec, "template") {
        return e.required("spec.template", "");
    }
    let labels = fields(spec, "template.metadata.labels");
    if !selector.is_empty() && selector.iter().any(|(key, value)| labels.get(key) != Some(value)) {
        e.invalid(
            "spec.template.metadata.labels",
            at(spec, "template.metadata.labels"),
            "`selector` does not match template `labels`",
        );
    }
    pod::validate_pod_template(e, at(spec, "template"), "spec.template");
    validate_restart_always(e, at(spec, "template"), "ReplicationController");
}

pub(super) fn validate_controller_revision(e: &mut Errors, object: &Value) {
    e.non_negative("revision", at(object, "revision"));
    let data = at(object, "data");
    if data.is_null() {
        e.required("data", "data is mandatory");
    } else if !data.is_object() {
        e.required("data", "data must be a valid JSON object");
    }
}

/// Validates the status: counters are not negative, and parts do not exceed their total.
pub(super) fn validate_status(e: &mut Errors, kind: &str, old: &Value, object: &Value) {
    validate_counters(e, kind, object);
    // The collision count is part of the name of the next revision.
    let collisions = |object| number(object, "status.collisionCount");
    if collisions(old).is_some_and(|before| collisions(object).is_none_or(|count| count < before)) {
        let reason = "cannot be decremented";
        e.invalid("status.collisionCount", &json!(collisions(object).unwrap_or(0)), reason);
    }
}

/// Counters in the order of validation.
fn counter_fields(kind: &str) -> &'static [&'static str] {
    match kind {
        "Deployment" => &[
            "observedGeneration",
            "replicas",
            "updatedReplicas",
            "readyReplicas",
            "availableReplicas",
            "unavailableReplicas",
            "terminatingReplicas",
            "collisionCount",
        ],
        "StatefulSet" => &[
            "replicas",
            "readyReplicas",
            "currentReplicas",
            "updatedReplicas",
            "availableReplicas",
            "observedGeneration",
            "collisionCount",
        ],
        "DaemonSet" => &[
            "currentNumberScheduled",
            "numberMisscheduled",
            "desiredNumberScheduled",
            "numberReady",
            "observedGeneration",
            "updatedNumberScheduled",
            "numberAvailable",
            "numberUnavailable",
            "collisionCount",
        ],
        _ => &[
            "replicas",
            "fullyLabeledReplicas",
            "readyReplicas",
            "availableReplicas",
            "observedGeneration",
            "terminatingReplicas",
        ],
    }
}

fn validate_counters(e: &mut Errors, kind: &str, object: &Value) {
    let status = at(object, "status");
    for field in counter_fields(kind) {
        e.non_negative(format!("status.{field}"), at(status, field));
    }
    if kind == "DaemonSet" {
        return;
    }
    let count = |field: &str| number(status, field).unwrap_or(0);
    let parts: &[&str] = match kind {
        "Deployment" => &["updatedReplicas", "readyReplicas", "availableReplicas"],
        "StatefulSet" => &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
        _ => &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
    };
    for field in parts {
        if count(field) > count("replicas") {
            e.invalid(format!("status.{field}"), &json!(count(field)), "cannot be greater than status.replicas");
        }
    }
    if count("availableReplicas") > count("readyReplicas") {
        e.invalid(
            "status.availableReplicas",
            &json!(count("availableReplicas")),
            match kind {
                "StatefulSet" => "cannot be greater than status.readyReplicas",
                _ => "cannot be greater than readyReplicas",
            },
        );
    }
}
