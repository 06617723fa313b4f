//! Pods and pod templates.

use std::collections::BTreeSet;

use super::container::{self, Role};
use super::selector::{label_selector, node_selector, node_selector_term};
use super::{
    Errors, Value, at, dns1123_label, dns1123_subdomain, fields, flag, items, json, label_value, labels, number,
    qualified_name, set, text, volume,
};

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
const UPDATE: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

pub(super) fn create(e: &mut Errors, object: &Value) {
    spec(e, at(object, "spec"), "spec");
    if !items(object, "spec.ephemeralContainers").is_empty() {
        e.forbidden("spec.ephemeralContainers", "cannot be set on create");
    }
}

/// A template: its labels and annotations, then the spec.
pub(super) fn template(e: &mut Errors, template: &Value, path: &str) {
    let metadata = template.get("metadata");
    e.0.extend(labels(metadata.and_then(|m| m.get("labels")), &format!("{path}.labels")));
    e.0.extend(super::super::super::registry::validation::annotations(
        metadata.and_then(|m| m.get("annotations")),
        &format!("{path}.annotations"),
    ));
    spec(e, at(template, "spec"), &format!("{path}.spec"));
    if !items(template, "spec.ephemeralContainers").is_empty() {
        e.forbidden(format!("{path}.spec.ephemeralContainers"), "ephemeral containers not allowed in pod template");
    }
}

pub(super) fn spec(e: &mut Errors, spec: &Value, path: &str) {
    let volumes = volume::list(e, spec, path);
    let mut names = BTreeSet::new();
    if items(spec, "containers").is_empty() {
        e.required(format!("{path}.containers"), "");
    }
    for (list, role) in
        [("containers", Role::Main), ("initContainers", Role::Init), ("ephemeralContainers", Role::Ephemeral)]
    {
        container::list(e, items(spec, list), role, &volumes, &mut names, &format!("{path}.{list}"));
    }
    e.one_of(&format!("{path}.restartPolicy"), at(spec, "restartPolicy"), &["Always", "OnFailure", "Never"]);
    e.one_of(
        &format!("{path}.dnsPolicy"),
        at(spec, "dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    e.0.extend(labels(spec.get("nodeSelector"), &format!("{path}.nodeSelector")));
    security(e, spec, path);
    for (index, secret) in items(spec, "imagePullSecrets").iter().enumerate() {
        if text(secret, "name").is_empty() {
            e.required(format!("{path}.imagePullSecrets[{index}].name"), "");
        }
    }
    affinity(e, at(spec, "affinity"), &format!("{path}.affinity"));
    dns(e, spec, path);
    for (index, gate) in items(spec, "readinessGates").iter().enumerate() {
        let name = text(gate, "conditionType");
        e.names(&format!("{path}.readinessGates[{index}].conditionType"), name, qualified_name(name));
    }
    gates(e, spec, path);
    spread(e, spec, path);
    identity(e, spec, path);
    tolerations(e, spec, path);
    let class = text(spec, "priorityClassName");
    if !class.is_empty() {
        e.names(&format!("{path}.priorityClassName"), class, dns1123_subdomain(class));
    }
    let runtime = text(spec, "runtimeClassName");
    if !runtime.is_empty() {
        e.names(&format!("{path}.runtimeClassName"), runtime, dns1123_subdomain(runtime));
    }
    e.optional_one_of(
        &format!("{path}.preemptionPolicy"),
        at(spec, "preemptionPolicy"),
        &["Never", "PreemptLowerPriority"],
    );
    e.optional_one_of(&format!("{path}.os.name"), at(spec, "os.name"), &["linux", "windows"]);
}

fn security(e: &mut Errors, spec: &Value, path: &str) {
    let (context, at_path) = (at(spec, "securityContext"), format!("{path}.securityContext"));
    if flag(spec, "hostPID") && flag(spec, "shareProcessNamespace") {
        e.invalid(
            format!("{path}.shareProcessNamespace"),
            &json!(true),
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        if let Some(id) = number(context, field).filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
            e.invalid(format!("{at_path}.{field}"), &json!(id), "must be between 0 and 2147483647, inclusive");
        }
    }
    for (index, group) in items(context, "supplementalGroups").iter().enumerate() {
        if group.as_i64().is_some_and(|id| !(0..=i64::from(i32::MAX)).contains(&id)) {
            e.invalid(
                format!("{at_path}.supplementalGroups[{index}]"),
                group,
                "must be between 0 and 2147483647, inclusive",
            );
        }
    }
    e.optional_one_of(
        &format!("{at_path}.fsGroupChangePolicy"),
        at(context, "fsGroupChangePolicy"),
        &["Always", "OnRootMismatch"],
    );
    container::seccomp(e, at(context, "seccompProfile"), &format!("{at_path}.seccompProfile"));
}

fn affinity(e: &mut Errors, affinity: &Value, path: &str) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
    let node = at(affinity, "nodeAffinity");
    if set(node, REQUIRED) {
        node_selector(e, at(node, REQUIRED), &format!("{path}.nodeAffinity.{REQUIRED}"));
    }
    for (index, term) in items(node, PREFERRED).iter().enumerate() {
        let path = format!("{path}.nodeAffinity.{PREFERRED}[{index}]");
        weight(e, term, &path);
        node_selector_term(e, at(term, "preference"), &format!("{path}.preference"));
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let group = at(affinity, kind);
        for (index, term) in items(group, REQUIRED).iter().enumerate() {
            pod_term(e, term, &format!("{path}.{kind}.{REQUIRED}[{index}]"));
        }
        for (index, term) in items(group, PREFERRED).iter().enumerate() {
            let path = format!("{path}.{kind}.{PREFERRED}[{index}]");
            weight(e, term, &path);
            pod_term(e, at(term, "podAffinityTerm"), &format!("{path}.podAffinityTerm"));
        }
    }
}

fn weight(e: &mut Errors, term: &Value, path: &str) {
    let weight = number(term, "weight").unwrap_or(0);
    if !(1..=100).contains(&weight) {
        e.invalid(format!("{path}.weight"), &json!(weight), "must be in the range 1-100");
    }
}

fn pod_term(e: &mut Errors, term: &Value, path: &str) {
    label_selector(e, at(term, "labelSelector"), &format!("{path}.labelSelector"));
    label_selector(e, at(term, "namespaceSelector"), &format!("{path}.namespaceSelector"));
    let key = text(term, "topologyKey");
    if key.is_empty() {
        e.required(format!("{path}.topologyKey"), "can not be empty");
    } else {
        e.names(&format!("{path}.topologyKey"), key, qualified_name(key));
    }
}

fn dns(e: &mut Errors, spec: &Value, path: &str) {
    let config = at(spec, "dnsConfig");
    if text(spec, "dnsPolicy") == "None" {
        if config.is_null() {
            e.required(format!("{path}.dnsConfig"), "must provide `dnsConfig` when `dnsPolicy` is None");
        } else if items(config, "nameservers").is_empty() {
            e.required(
                format!("{path}.dnsConfig.nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            );
        }
    }
    if items(config, "nameservers").len() > 3 {
        let list = at(config, "nameservers");
        e.invalid(format!("{path}.dnsConfig.nameservers"), list, "must not have more than 3 nameservers");
    }
    for (index, address) in items(config, "nameservers").iter().enumerate() {
        if address.as_str().is_none_or(|a| a.parse::<std::net::IpAddr>().is_err()) {
            e.invalid(format!("{path}.dnsConfig.nameservers[{index}]"), address, super::network::BAD_IP);
        }
    }
}

fn gates(e: &mut Errors, spec: &Value, path: &str) {
    let mut seen: Vec<&str> = Vec::new();
    for (index, gate) in items(spec, "schedulingGates").iter().enumerate() {
        let (name, field) = (text(gate, "name"), format!("{path}.schedulingGates[{index}]"));
        e.names(&field, name, qualified_name(name));
        if seen.contains(&name) {
            e.duplicate(&field, &json!(name));
        }
        seen.push(name);
    }
}

fn spread(e: &mut Errors, spec: &Value, path: &str) {
    for (index, constraint) in items(spec, "topologySpreadConstraints").iter().enumerate() {
        let path = format!("{path}.topologySpreadConstraints[{index}]");
        let skew = number(constraint, "maxSkew").unwrap_or(0);
        if skew <= 0 {
            e.invalid(format!("{path}.maxSkew"), &json!(skew), "must be greater than zero");
        }
        let key = text(constraint, "topologyKey");
        if key.is_empty() {
            e.required(format!("{path}.topologyKey"), "can not be empty");
        } else {
            e.names(&format!("{path}.topologyKey"), key, qualified_name(key));
        }
        let when = text(constraint, "whenUnsatisfiable");
        if !matches!(when, "DoNotSchedule" | "ScheduleAnyway") {
            e.unsupported(format!("{path}.whenUnsatisfiable"), &json!(when), &["DoNotSchedule", "ScheduleAnyway"]);
        }
        label_selector(e, at(constraint, "labelSelector"), &format!("{path}.labelSelector"));
    }
}

fn identity(e: &mut Errors, spec: &Value, path: &str) {
    let account = text(spec, "serviceAccountName");
    if !account.is_empty() {
        e.names(&format!("{path}.serviceAccountName"), account, dns1123_subdomain(account));
    }
    let node = text(spec, "nodeName");
    if !node.is_empty() {
        e.names(&format!("{path}.nodeName"), node, dns1123_subdomain(node));
    }
    if let Some(seconds) = number(spec, "activeDeadlineSeconds").filter(|s| !(1..=i64::from(i32::MAX)).contains(s)) {
        e.invalid(
            format!("{path}.activeDeadlineSeconds"),
            &json!(seconds),
            "must be between 1 and 2147483647, inclusive",
        );
    }
    for field in ["hostname", "subdomain"] {
        let name = text(spec, field);
        if !name.is_empty() {
            e.names(&format!("{path}.{field}"), name, dns1123_label(name));
        }
    }
}

pub(super) fn tolerations(e: &mut Errors, spec: &Value, path: &str) {
    for (index, toleration) in items(spec, "tolerations").iter().enumerate() {
        let path = format!("{path}.tolerations[{index}]");
        let (key, operator, value, effect) = (
            text(toleration, "key"),
            text(toleration, "operator"),
            text(toleration, "value"),
            text(toleration, "effect"),
        );
        if !key.is_empty() {
            e.names(&format!("{path}.key"), key, qualified_name(key));
        } else if operator != "Exists" {
            let why = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            e.invalid(format!("{path}.operator"), &json!(operator), why);
        }
        if set(toleration, "tolerationSeconds") && effect != "NoExecute" {
            e.invalid(
                format!("{path}.effect"),
                &json!(effect),
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            );
        }
        match operator {
            "Equal" | "" => {
                let why = label_value(value);
                if !why.is_empty() {
                    e.invalid(format!("{path}.operator"), &json!(value), why.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                e.invalid(format!("{path}.operator"), toleration, "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            _ => e.unsupported(format!("{path}.operator"), &json!(operator), &["Equal", "Exists"]),
        }
        if !effect.is_empty() && !EFFECTS.contains(&effect) {
            e.unsupported(format!("{path}.effect"), &json!(effect), &EFFECTS);
        }
    }
}

pub(super) fn update(e: &mut Errors, subresource: &str, old: &Value, new: &Value) {
    if matches!(subresource, "ephemeralcontainers" | "resize") {
        spec(e, at(new, "spec"), "spec");
        return;
    }
    let (before, after) = (at(old, "spec"), at(new, "spec"));
    spec(e, after, "spec");
    for list in ["containers", "initContainers"] {
        if items(before, list).len() != items(after, list).len() {
            e.forbidden(format!("spec.{list}"), "pod updates may not add or remove containers");
            return;
        }
    }
    let mut allowed = after.clone();
    for list in ["containers", "initContainers"] {
        let images: Vec<Value> = items(before, list).iter().map(|c| at(c, "image").clone()).collect();
        let mut images = images.into_iter();
        super::super::object::each(&mut allowed, list, |container| {
            super::super::object::put(container, "image", images.next().unwrap_or_default());
        });
    }
    deadline(e, before, after);
    let kept = items(before, "tolerations").iter().all(|t| items(after, "tolerations").contains(t));
    if !kept {
        e.forbidden("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds");
    }
    for field in ["activeDeadlineSeconds", "tolerations"] {
        super::super::object::copy(before, &mut allowed, field);
    }
    if number(before, "terminationGracePeriodSeconds").is_some_and(|n| n < 0)
        && number(after, "terminationGracePeriodSeconds") == Some(1)
    {
        super::super::object::copy(before, &mut allowed, "terminationGracePeriodSeconds");
    }
    let (gates_before, gates_after) = (items(before, "schedulingGates"), items(after, "schedulingGates"));
    if !gates_before.is_empty() {
        // A gated pod may lose gates and be narrowed to fewer nodes.
        if gates_after.iter().any(|gate| !gates_before.contains(gate)) {
            e.forbidden("spec.schedulingGates", "only deletion is allowed, but found new scheduling gate");
        }
        for field in ["schedulingGates", "nodeSelector", "affinity"] {
            super::super::object::copy(before, &mut allowed, field);
        }
    }
    if &allowed != before {
        e.forbidden("spec", UPDATE);
    }
}

fn deadline(e: &mut Errors, before: &Value, after: &Value) {
    let (old, new) = (number(before, "activeDeadlineSeconds"), number(after, "activeDeadlineSeconds"));
    match (old, new) {
        (Some(old), Some(new)) if new > old => {
            e.invalid("spec.activeDeadlineSeconds", &json!(new), "must be less than or equal to previous value");
        }
        (Some(_), None) => e.invalid(
            "spec.activeDeadlineSeconds",
            &Value::Null,
            "must not update from a positive integer to nil value",
        ),
        _ => {}
    }
}

pub(super) fn status(e: &mut Errors, old: &Value, new: &Value) {
    let nominated = text(new, "status.nominatedNodeName");
    if !nominated.is_empty() && nominated != text(old, "status.nominatedNodeName") {
        e.names("status.nominatedNodeName", nominated, dns1123_subdomain(nominated));
    }
    if text(old, "spec.nodeName") != text(new, "spec.nodeName") {
        e.forbidden("status.nodeName", "may not be changed directly");
    }
}

/// Deprecated labels and duplicates worth a word.
pub(super) fn warnings(spec: &Value, path: &str) -> Vec<String> {
    const OLD_LABELS: [(&str, &str); 4] = [
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
    ];
    let mut out = Vec::new();
    for key in fields(spec, "nodeSelector").keys() {
        if let Some((old, new)) = OLD_LABELS.iter().find(|(old, _)| old == key) {
            out.push(format!("{path}.nodeSelector[{old}]: deprecated since v1.14; use \"{new}\" instead"));
        }
    }
    for list in ["initContainers", "containers"] {
        for (index, container) in items(spec, list).iter().enumerate() {
            let mut names: Vec<&str> = Vec::new();
            for (position, variable) in items(container, "env").iter().enumerate() {
                let name = text(variable, "name");
                if names.contains(&name) {
                    let field = format!("{path}.{list}[{index}].env[{position}]");
                    out.push(format!(
                        "{field}: hides previous definition of \"{name}\", which may be dropped when using apply"
                    ));
                }
                names.push(name);
            }
        }
    }
    if set(spec, "terminationGracePeriodSeconds")
        && number(spec, "terminationGracePeriodSeconds").is_some_and(|n| n < 0)
    {
        out.push(format!(
            "{path}.terminationGracePeriodSeconds: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    out
}
