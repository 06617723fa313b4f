//! Status of built-in kinds: reflection from a member, and aggregation into the template.
//!
//! The status of most workload kinds consists of counters, which a table describes ([`Counters`]); the others have
//! their own functions. Counters that Go marks `omitempty` are omitted if zero, because the stored JSON must equal Karmada's.

use std::collections::{BTreeMap, BTreeSet};

use crowsnest_apimachinery::unstructured;
use serde_json::{Map, Value, json};

use super::container_status;

/// Reported status of an object in a member. `None` until it was collected.
#[derive(Debug, Clone, Copy)]
pub struct MemberStatus<'a> {
    pub cluster: &'a str,
    pub status: Option<&'a Value>,
}

/// The generation that a member's `resourceTemplateGeneration` must reach to count as up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedGeneration {
    /// The kind has no observed generation.
    None,
    /// The template's generation.
    Template,
    /// The member object's own generation (for StatefulSets, as in Karmada).
    Member,
}

/// A kind whose status consists of counters.
#[derive(Debug)]
pub struct Counters {
    /// Counters that are omitted if zero.
    pub optional: &'static [&'static str],
    /// Counters that are always written.
    pub required: &'static [&'static str],
    pub observed: ExpectedGeneration,
    /// True if the reflected status contains the member's `observedGeneration`.
    pub reflect_observed_generation: bool,
}

pub const DEPLOYMENT: Counters = Counters {
    optional: &["replicas", "readyReplicas", "updatedReplicas", "availableReplicas", "unavailableReplicas"],
    required: &[],
    observed: ExpectedGeneration::Template,
    reflect_observed_generation: true,
};

pub const REPLICA_SET: Counters = Counters {
    optional: &["readyReplicas", "availableReplicas"],
    required: &["replicas"],
    observed: ExpectedGeneration::Template,
    reflect_observed_generation: true,
};

pub const STATEFUL_SET: Counters = Counters {
    optional: &["currentReplicas", "readyReplicas", "updatedReplicas"],
    required: &["replicas", "availableReplicas"],
    observed: ExpectedGeneration::Member,
    reflect_observed_generation: false,
};

pub const DAEMON_SET: Counters = Counters {
    optional: &["numberAvailable", "updatedNumberScheduled", "numberUnavailable"],
    required: &["currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady"],
    observed: ExpectedGeneration::Template,
    reflect_observed_generation: true,
};

impl Counters {
    /// The reflected status of a member object. `None` without a status or counters.
    pub fn reflect(&self, member: &Value) -> Option<Value> {
        let status = member.get("status")?;
        let mut reflected = Map::new();
        for field in self.required {
            reflected.insert((*field).to_owned(), json!(count(status, field)));
        }
        for field in self.optional {
            insert_nonzero(&mut reflected, field, count(status, field));
        }
        if self.reflect_observed_generation {
            insert_nonzero(&mut reflected, "observedGeneration", count(status, "observedGeneration"));
        }
        insert_nonzero(&mut reflected, "generation", unstructured::generation(member));
        let template_generation = unstructured::annotation(member, "resourcetemplate.karmada.io/generation");
        let template_generation = template_generation.and_then(|text| text.parse().ok()).unwrap_or_default();
        insert_nonzero(&mut reflected, "resourceTemplateGeneration", template_generation);
        (!reflected.is_empty()).then_some(Value::Object(reflected))
    }

    /// The template's status with the sums of the members' counters. Other fields are kept.
    pub fn aggregate(&self, template: &Value, members: &[MemberStatus<'_>]) -> Value {
        let generation = unstructured::generation(template);
        let mut status = template.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
        let reported: Vec<&Value> = members.iter().filter_map(|member| member.status).collect();
        let up_to_date = reported.iter().filter(|status| self.is_up_to_date(status, generation)).count();
        if self.observed != ExpectedGeneration::None && up_to_date == members.len() && generation != 0 {
            status.insert("observedGeneration".to_owned(), json!(generation));
        }
        for field in self.required {
            status.insert((*field).to_owned(), json!(sum(&reported, field)));
        }
        for field in self.optional {
            status.remove(*field);
            insert_nonzero(&mut status, field, sum(&reported, field));
        }
        Value::Object(status)
    }

    fn is_up_to_date(&self, status: &Value, template_generation: i64) -> bool {
        let member_generation = count(status, "generation");
        let required =
            if self.observed == ExpectedGeneration::Member { member_generation } else { template_generation };
        count(status, "observedGeneration") >= member_generation
            && count(status, "resourceTemplateGeneration") >= required
    }
}

pub(super) fn count(status: &Value, field: &str) -> i64 {
    status.get(field).and_then(Value::as_i64).unwrap_or_default()
}

fn sum(statuses: &[&Value], field: &str) -> i64 {
    statuses.iter().map(|status| count(status, field)).sum()
}

fn insert_nonzero(map: &mut Map<String, Value>, field: &str, value: i64) {
    if value != 0 {
        map.insert(field.to_owned(), json!(value));
    }
}

/// The complete `.status`, for kinds without a rule.
pub fn reflect_full_status(member: &Value) -> Option<Value> {
    member.get("status").filter(|status| status.is_object()).cloned()
}

/// The load balancer status of a Service of type LoadBalancer. `None` for other types.
pub fn reflect_service(member: &Value) -> Option<Value> {
    if !is_load_balancer(member) {
        return None;
    }
    let status = member.get("status")?;
    Some(json!({"loadBalancer": status.get("loadBalancer").cloned().unwrap_or_else(|| json!({}))}))
}

fn is_load_balancer(service: &Value) -> bool {
    unstructured::text(service, &["spec", "type"]) == "LoadBalancer"
}

pub fn reflect_job(member: &Value) -> Option<Value> {
    let status = member.get("status")?;
    let mut reflected = copy_fields(status, &["conditions", "startTime", "completionTime"]);
    for field in ["active", "succeeded", "failed"] {
        insert_nonzero(&mut reflected, field, count(status, field));
    }
    Some(Value::Object(reflected))
}

pub fn reflect_pod_disruption_budget(member: &Value) -> Option<Value> {
    let status = member.get("status")?;
    let mut reflected = copy_fields(status, &["disruptedPods"]);
    for field in BUDGET_COUNTERS {
        reflected.insert(field.to_owned(), json!(count(status, field)));
    }
    Some(Value::Object(reflected))
}

pub fn reflect_horizontal_pod_autoscaler(member: &Value) -> Option<Value> {
    let status = member.get("status")?;
    Some(Value::Object(autoscaler_status(count(status, "currentReplicas"), count(status, "desiredReplicas"))))
}

fn autoscaler_status(current: i64, desired: i64) -> Map<String, Value> {
    let mut status = Map::new();
    status.insert("currentMetrics".to_owned(), Value::Null);
    insert_nonzero(&mut status, "currentReplicas", current);
    status.insert("desiredReplicas".to_owned(), json!(desired));
    status
}

pub(super) fn copy_fields(status: &Value, fields: &[&str]) -> Map<String, Value> {
    let present = |field: &&str| {
        let value = status.get(*field)?;
        (!value.is_null()).then(|| ((*field).to_owned(), value.clone()))
    };
    fields.iter().filter_map(present).collect()
}

const BUDGET_COUNTERS: [&str; 4] = ["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"];

/// Sums of the members' counters. Names of disrupted pods are prefixed with their cluster.
pub fn aggregate_pod_disruption_budget(_template: &Value, members: &[MemberStatus<'_>]) -> Value {
    let reported: Vec<&Value> = members.iter().filter_map(|member| member.status).collect();
    let mut status = Map::new();
    for field in BUDGET_COUNTERS {
        status.insert(field.to_owned(), json!(sum(&reported, field)));
    }
    let disrupted: Map<String, Value> = members
        .iter()
        .filter_map(|member| Some((member.cluster, member.status?.get("disruptedPods")?.as_object()?)))
        .flat_map(|(cluster, pods)| pods.iter().map(move |(pod, time)| (format!("{cluster}/{pod}"), time.clone())))
        .collect();
    if !disrupted.is_empty() {
        status.insert("disruptedPods".to_owned(), Value::Object(disrupted));
    }
    Value::Object(status)
}

pub fn aggregate_horizontal_pod_autoscaler(_template: &Value, members: &[MemberStatus<'_>]) -> Value {
    let reported: Vec<&Value> = members.iter().filter_map(|member| member.status).collect();
    Value::Object(autoscaler_status(sum(&reported, "currentReplicas"), sum(&reported, "desiredReplicas")))
}

/// Load balancer ingress of all members, without duplicates and sorted. Services of other types keep their status.
pub fn aggregate_service(template: &Value, members: &[MemberStatus<'_>]) -> Value {
    if is_load_balancer(template) {
        aggregate_load_balancer(template, members)
    } else {
        template.get("status").cloned().unwrap_or_else(|| json!({}))
    }
}

/// Load balancer ingress of all members, sorted by host name, then address and mode. Ports of the same ingress point in
/// several members are merged.
pub fn aggregate_load_balancer(_template: &Value, members: &[MemberStatus<'_>]) -> Value {
    let mut points: BTreeMap<_, BTreeMap<_, &Value>> = BTreeMap::new();
    for point in members
        .iter()
        .filter_map(|member| unstructured::at(member.status?, &["loadBalancer", "ingress"])?.as_array())
        .flatten()
    {
        let (hostname, mode) = (unstructured::text(point, &["hostname"]), unstructured::text(point, &["ipMode"]));
        let point_key = (hostname.is_empty(), hostname, unstructured::text(point, &["ip"]), mode.is_empty(), mode);
        let ports = points.entry(point_key).or_default();
        for port in point.get("ports").and_then(Value::as_array).into_iter().flatten() {
            let key =
                (count(port, "port"), unstructured::text(port, &["protocol"]), unstructured::text(port, &["error"]));
            ports.entry(key).or_insert(port);
        }
    }
    let ingress: Vec<Value> = points
        .into_iter()
        .map(|((_, hostname, ip, _, mode), ports)| {
            let mut point = Map::new();
            for (field, text) in [("hostname", hostname), ("ip", ip), ("ipMode", mode)] {
                if !text.is_empty() {
                    point.insert(field.to_owned(), json!(text));
                }
            }
            if !ports.is_empty() {
                point.insert("ports".to_owned(), ports.into_values().cloned().collect());
            }
            Value::Object(point)
        })
        .collect();
    match ingress.is_empty() {
        true => json!({"loadBalancer": {}}),
        false => json!({"loadBalancer": {"ingress": ingress}}),
    }
}

/// Active jobs of all members, and the latest times.
pub fn aggregate_cron_job(template: &Value, members: &[MemberStatus<'_>]) -> Value {
    let mut status = template.get("status").and_then(Value::as_object).cloned().unwrap_or_default();
    let reported: Vec<&Value> = members.iter().filter_map(|member| member.status).collect();
    let active: Vec<Value> =
        reported.iter().filter_map(|status| status.get("active")?.as_array()).flatten().cloned().collect();
    status.remove("active");
    if !active.is_empty() {
        status.insert("active".to_owned(), Value::Array(active));
    }
    for field in ["lastScheduleTime", "lastSuccessfulTime"] {
        status.remove(field);
        if let Some(latest) = times(&reported, field).into_iter().max() {
            status.insert(field.to_owned(), json!(latest));
        }
    }
    Value::Object(status)
}

/// Values of a time field. RFC 3339 UTC times sort as text.
pub(super) fn times<'a>(statuses: &[&'a Value], field: &str) -> Vec<&'a str> {
    statuses.iter().filter_map(|status| status.get(field)?.as_str()).collect()
}

/// The worst phase of all members; a member without status counts as Pending. Only name, readiness and state of
/// containers are kept. The template keeps its QoS class, which the API server has set.
pub fn aggregate_pod(template: &Value, members: &[MemberStatus<'_>]) -> Value {
    if members.is_empty() {
        return template.get("status").cloned().unwrap_or_else(|| json!({}));
    }
    let phase = find_worst_phase(&phases(members), &["Failed", "Pending", "Running", "Succeeded"]);
    let reported: Vec<&Value> = members.iter().filter_map(|member| member.status).collect();
    let mut status = template.get("status").map_or_else(Map::new, |status| copy_fields(status, &["qosClass"]));
    if let Some(phase) = phase {
        status.insert("phase".to_owned(), json!(phase));
    }
    for (field, containers) in [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")] {
        let statuses = container_status::aggregate(template, &reported, field, containers);
        if !statuses.is_empty() {
            status.insert(field.to_owned(), Value::Array(statuses));
        }
    }
    Value::Object(status)
}

fn phases<'a>(members: &[MemberStatus<'a>]) -> BTreeSet<&'a str> {
    members
        .iter()
        .map(|member| member.status.map_or("Pending", |status| unstructured::text(status, &["phase"])))
        .collect()
}

fn find_worst_phase(present: &BTreeSet<&str>, order: &[&'static str]) -> Option<&'static str> {
    order.iter().find(|phase| present.contains(**phase)).copied()
}

/// The worst phase of all members; a member without status counts as Pending. While the phase is unchanged, its
/// transition time, which the API server has set, is kept.
pub fn aggregate_persistent_volume(template: &Value, members: &[MemberStatus<'_>]) -> Value {
    let Some(phase) = find_worst_phase(&phases(members), &["Failed", "Pending", "Available", "Bound", "Released"])
    else {
        return json!({});
    };
    let mut status = json!({"phase": phase});
    let since = unstructured::at(template, &["status", "lastPhaseTransitionTime"]);
    if let Some(since) = since.filter(|_| unstructured::text(template, &["status", "phase"]) == phase) {
        status["lastPhaseTransitionTime"] = since.clone();
    }
    status
}

/// Bound only if all reporting members are Bound; Lost takes precedence.
pub fn aggregate_persistent_volume_claim(_template: &Value, members: &[MemberStatus<'_>]) -> Value {
    let mut phase = "Bound";
    for status in members.iter().filter_map(|member| member.status) {
        match unstructured::text(status, &["phase"]) {
            "Lost" => return json!({"phase": "Lost"}),
            "Bound" => {}
            other => phase = other,
        }
    }
    json!({"phase": phase})
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::running(&["Running", "Running"], json!({"phase": "Running", "qosClass": "Burstable"}))]
    #[case::not_all_started(&["Running", ""], json!({"phase": "Pending", "qosClass": "Burstable"}))]
    #[case::failed_somewhere(&["Succeeded", "Failed"], json!({"phase": "Failed", "qosClass": "Burstable"}))]
    #[case::no_members(&[], json!({"phase": "Pending", "qosClass": "Burstable", "message": "new"}))]
    fn pods(#[case] phases: &[&str], #[case] expected: Value) {
        let template = json!({"status": {"phase": "Pending", "qosClass": "Burstable", "message": "new"}});
        let reported: Vec<Option<Value>> = phases
            .iter()
            .map(|phase| (!phase.is_empty()).then(|| json!({"phase": phase, "podIP": "10.0.0.1"})))
            .collect();
        let members: Vec<MemberStatus<'_>> =
            reported.iter().map(|status| MemberStatus { cluster: "m", status: status.as_ref() }).collect();
        assert_eq!(aggregate_pod(&template, &members), expected);
    }
}
