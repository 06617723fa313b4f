//! Kyverno policies.

use serde_json::{Map, Value, json};

use super::super::status::MemberStatus;
use super::reading::{given, list};
use super::status::{fields_of, is_true, last, merged_conditions, put, sum};
use super::{NOTHING, ThirdPartyKind};
use crowsnest_apimachinery::unstructured::text;

const KIND: ThirdPartyKind = ThirdPartyKind {
    api_version: "kyverno.io/v1",
    reflect: Some(|member| Value::Object(fields_of(member, &["autogen", "conditions", "ready", "rulecount"]))),
    aggregate: Some(|_, members, _| Ok(aggregate(members))),
    health: Some(|member| Ok(is_healthy(member))),
    ..NOTHING
};

pub(super) static KINDS: [ThirdPartyKind; 2] =
    [ThirdPartyKind { kind: "ClusterPolicy", ..KIND }, ThirdPartyKind { kind: "Policy", ..KIND }];

fn is_healthy(member: &Value) -> bool {
    let ready = |condition: &Value| is_true(condition, "Ready") && text(condition, &["reason"]) == "Succeeded";
    match given(member, &["status", "ready"]) {
        Some(flag) => flag.as_bool().unwrap_or_default(),
        None => list(member, &["status", "conditions"]).any(ready),
    }
}

fn aggregate(members: &[MemberStatus<'_>]) -> Map<String, Value> {
    let rules = ["validate", "generate", "mutate", "verifyimages"];
    let rules: Value =
        rules.into_iter().map(|rule| (rule.to_owned(), json!(sum(members, &["rulecount", rule])))).collect();
    let mut status = Map::new();
    put(&mut status, "autogen", last(members, "autogen").cloned());
    put(&mut status, "ready", last(members, "ready").cloned());
    put(&mut status, "rulecount", Some(rules));
    put(&mut status, "conditions", Some(merged_conditions(members)));
    status
}
