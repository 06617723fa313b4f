//! Kyverno policies.

use serde_json::{Map, Value, json};

use super::super::status::MemberStatus;
use super::accessors::{list, value_at};
use super::status::{is_true, last_value, merge_conditions, set_or_remove, status_fields, sum};
use super::{NO_RULES, ThirdPartyKind};
use crowsnest_apimachinery::unstructured::text;

const KIND: ThirdPartyKind = ThirdPartyKind {
    api_version: "kyverno.io/v1",
    reflect: Some(|member| Value::Object(status_fields(member, &["autogen", "conditions", "ready", "rulecount"]))),
    aggregate: Some(|_, members, _| Ok(aggregate(members))),
    health: Some(|member| Ok(is_healthy(member))),
    ..NO_RULES
};

pub(super) static KINDS: [ThirdPartyKind; 2] =
    [ThirdPartyKind { kind: "ClusterPolicy", ..KIND }, ThirdPartyKind { kind: "Policy", ..KIND }];

fn is_healthy(member: &Value) -> bool {
    let ready = |condition: &Value| is_true(condition, "Ready") && text(condition, &["reason"]) == "Succeeded";
    match value_at(member, &["status", "ready"]) {
        Some(flag) => flag.as_bool().unwrap_or_default(),
        None => list(member, &["status", "conditions"]).any(ready),
    }
}

fn aggregate(members: &[MemberStatus<'_>]) -> Map<String, Value> {
    let rules = ["validate", "generate", "mutate", "verifyimages"];
    let rules: Value =
        rules.into_iter().map(|rule| (rule.to_owned(), json!(sum(members, &["rulecount", rule])))).collect();
    let mut status = Map::new();
    set_or_remove(&mut status, "autogen", last_value(members, "autogen").cloned());
    set_or_remove(&mut status, "ready", last_value(members, "ready").cloned());
    set_or_remove(&mut status, "rulecount", Some(rules));
    set_or_remove(&mut status, "conditions", Some(merge_conditions(members)));
    status
}
