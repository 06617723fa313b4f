//! Validation of flow schemas and priority levels. They are stored for clients only; this server limits requests in
//! another way.

use super::{
    Errors, Value, at, go, is_set, items, json, number, text, validate_dns1123_label, validate_dns1123_subdomain,
};

const SUBJECTS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
/// Bits of the hash that assigns queues to flows.
const MAX_HASH_BITS: u32 = 60;
const MAX_QUEUES: i64 = 10_000_000;
const NOT_NEGATIVE: &str = "must be a non-negative integer";

/// `ValidateFlowSchema`.
pub(super) fn validate_flow_schema(e: &mut Errors, object: &Value) {
    let spec = at(object, "spec");
    let (field, precedence) = ("spec.matchingPrecedence", number(spec, "matchingPrecedence").unwrap_or(0));
    let value = json!(precedence);
    if precedence <= 0 {
        e.invalid(field, &value, "must be a positive value");
    }
    if precedence > 10_000 {
        e.invalid(field, &value, "must not be greater than 10000");
    }
    if precedence == 1 && text(object, "metadata.name") != "exempt" {
        e.invalid(field, &value, "only the schema named 'exempt' may have matchingPrecedence 1");
    }
    let method = at(spec, "distinguisherMethod");
    if !method.is_null() && !matches!(text(method, "type"), "ByNamespace" | "ByUser") {
        const METHOD: &str = "flowcontrol.FlowDistinguisherMethod";
        e.push(go::unsupported_struct("spec.distinguisherMethod.type", method, METHOD, &["ByNamespace", "ByUser"]));
    }
    let (field, level) = ("spec.priorityLevelConfiguration.name", text(spec, "priorityLevelConfiguration.name"));
    if level.is_empty() {
        e.required(field, "must reference a priority level");
    } else {
        e.push_name_errors(field, level, validate_dns1123_subdomain(level));
    }
    for (index, rule) in items(spec, "rules").iter().enumerate() {
        validate_rule(e, rule, &format!("spec.rules[{index}]"));
    }
    validate_conditions(e, object);
}

fn validate_rule(e: &mut Errors, rule: &Value, path: &str) {
    let subjects = items(rule, "subjects");
    if subjects.is_empty() {
        e.required(format!("{path}.subjects"), "subjects must contain at least one value");
    }
    for (index, subject) in subjects.iter().enumerate() {
        validate_subject(e, subject, &format!("{path}.subjects[{index}]"));
    }
    let (resources, urls) = (items(rule, "resourceRules"), items(rule, "nonResourceRules"));
    if resources.is_empty() && urls.is_empty() {
        e.required(path, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    for (index, rule) in resources.iter().enumerate() {
        validate_resource_rule(e, rule, &format!("{path}.resourceRules[{index}]"));
    }
    for (index, rule) in urls.iter().enumerate() {
        validate_url_rule(e, rule, &format!("{path}.nonResourceRules[{index}]"));
    }
}

fn validate_subject(e: &mut Errors, subject: &Value, path: &str) {
    let kind = text(subject, "kind");
    let Some((_, member)) = SUBJECTS.iter().find(|(name, _)| *name == kind) else {
        return e.unsupported(format!("{path}.kind"), &json!(kind), &["Group", "ServiceAccount", "User"]);
    };
    let (found, member_path) = (at(subject, member), format!("{path}.{member}"));
    if found.is_null() {
        e.required(member_path, &format!("{member} is required when subject kind is '{kind}'"));
    } else {
        let name = text(found, "name");
        if name.is_empty() {
            e.required(format!("{member_path}.name"), "");
        } else if kind == "ServiceAccount" && name != "*" {
            e.push_name_errors(&format!("{member_path}.name"), name, validate_dns1123_subdomain(name));
        }
        if kind == "ServiceAccount" {
            let (field, namespace) = (format!("{member_path}.namespace"), text(found, "namespace"));
            match namespace {
                "" => e.required(field, "must specify namespace for service account"),
                namespace => e.push_name_errors(&field, namespace, validate_dns1123_label(namespace)),
            }
        }
    }
    // Errors are in this order, regardless of the kind.
    for (name, other) in SUBJECTS.into_iter().filter(|(name, _)| *name != kind) {
        if is_set(subject, other) {
            e.forbidden(format!("{path}.{other}"), &format!("{other} is forbidden when subject kind is not '{name}'"));
        }
    }
}

fn has_wildcard(list: &[Value]) -> bool {
    list.iter().any(|item| item == "*")
}

/// Validates a list that can contain only a wildcard or only other values; returns false for a wildcard.
fn validate_wildcard_list(
    e: &mut Errors,
    rule: &Value,
    field: &str,
    path: &str,
    item_name: &str,
    required: &str,
) -> bool {
    let list = items(rule, field);
    let list_path = format!("{path}.{field}");
    if list.is_empty() {
        e.required(list_path, required);
        return false;
    }
    if !has_wildcard(list) {
        return true;
    }
    if list.len() > 1 {
        e.invalid(list_path, at(rule, field), format!("if '*' is present, must not specify other {item_name}"));
    }
    false
}

fn validate_verbs(e: &mut Errors, rule: &Value, path: &str) {
    let is_explicit = validate_wildcard_list(e, rule, "verbs", path, "verbs", "verbs must contain at least one value");
    let is_verb = |verb: &Value| verb.as_str().is_some_and(|verb| VERBS.contains(&verb));
    if is_explicit && !items(rule, "verbs").iter().all(is_verb) {
        e.unsupported(format!("{path}.verbs"), at(rule, "verbs"), &VERBS);
    }
}

fn validate_resource_rule(e: &mut Errors, rule: &Value, path: &str) {
    validate_verbs(e, rule, path);
    let reason = "resource rules must supply at least one api group";
    validate_wildcard_list(e, rule, "apiGroups", path, "api groups", reason);
    let reason = "resource rules must supply at least one resource";
    validate_wildcard_list(e, rule, "resources", path, "resources", reason);
    let namespaces = items(rule, "namespaces");
    if namespaces.is_empty() && at(rule, "clusterScope") == true {
        return;
    }
    let reason = "resource rules that are not cluster scoped must supply at least one namespace";
    if !validate_wildcard_list(e, rule, "namespaces", path, "namespaces", reason) {
        return;
    }
    for (index, namespace) in namespaces.iter().enumerate() {
        let name = namespace.as_str().unwrap_or_default();
        let problems = validate_dns1123_label(name).into_iter();
        let reason =
            problems.map(|reason| format!("each member of this list must be '*' or a DNS-1123 label; {reason}"));
        e.push_name_errors(&format!("{path}.namespaces[{index}]"), name, reason.collect());
    }
}

fn validate_url_rule(e: &mut Errors, rule: &Value, path: &str) {
    validate_verbs(e, rule, path);
    let reason = "nonResourceURLs must contain at least one value";
    if !validate_wildcard_list(e, rule, "nonResourceURLs", path, "non-resource URLs", reason) {
        return;
    }
    for (index, url) in items(rule, "nonResourceURLs").iter().enumerate() {
        if let Some(reason) = url_path_error(url.as_str().unwrap_or_default()) {
            e.invalid(format!("{path}.nonResourceURLs[{index}]"), url, reason);
        }
    }
}

fn url_path_error(path: &str) -> Option<&'static str> {
    match path {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !path.starts_with('/') => Some("must start with slash"),
        _ if path.contains(' ') => Some("must not contain white-space"),
        _ if path.contains("//") => Some("must not contain double slash"),
        _ => {
            let wildcards = path.matches('*').count();
            let is_invalid = wildcards > 1 || (wildcards == 1 && !path.ends_with("/*"));
            is_invalid.then_some("wildcard can only do suffix matching")
        }
    }
}

/// `ValidatePriorityLevelConfiguration`.
pub(super) fn validate_priority_level(e: &mut Errors, object: &Value) {
    let (spec, kind) = (at(object, "spec"), text(object, "spec.type"));
    if (text(object, "metadata.name") == "exempt") != (kind == "Exempt") {
        e.invalid("spec.type", &json!(kind), "must be 'Exempt' if and only if `name` is 'exempt'");
    }
    let (exempt, limited) = (at(spec, "exempt"), at(spec, "limited"));
    match kind {
        "Exempt" => {
            if !limited.is_null() {
                e.forbidden("spec.limited", "must be nil if the type is not Limited");
            }
            if !exempt.is_null() {
                let shares = at(exempt, "nominalConcurrencyShares");
                if shares.as_i64().is_some_and(|n| n < 0) {
                    e.invalid("spec.exempt.nominalConcurrencyShares", shares, NOT_NEGATIVE);
                }
                validate_lendable_percent(e, exempt, "spec.exempt");
            }
        }
        "Limited" => {
            if !exempt.is_null() {
                e.forbidden("spec.exempt", "must be nil if the type is Limited");
            }
            match limited.is_null() {
                true => e.required("spec.limited", "must not be empty when type is Limited"),
                false => validate_limited(e, limited),
            }
        }
        _ => e.unsupported("spec.type", &json!(kind), &["Exempt", "Limited"]),
    }
    validate_conditions(e, object);
}

fn validate_lendable_percent(e: &mut Errors, level: &Value, path: &str) {
    let percent = at(level, "lendablePercent");
    if percent.as_i64().is_some_and(|percent| !(0..=100).contains(&percent)) {
        e.invalid(format!("{path}.lendablePercent"), percent, "must be between 0 and 100, inclusive");
    }
}

fn validate_limited(e: &mut Errors, limited: &Value) {
    let shares = at(limited, "nominalConcurrencyShares");
    if shares.as_i64().is_some_and(|n| n < 0) {
        e.invalid("spec.limited.nominalConcurrencyShares", shares, NOT_NEGATIVE);
    }
    let (response, path) = (at(limited, "limitResponse"), "spec.limited.limitResponse");
    let queuing = at(response, "queuing");
    match text(response, "type") {
        "Reject" if !queuing.is_null() => {
            e.forbidden(format!("{path}.queuing"), "must be nil if limited.limitResponse.type is not Limited");
        }
        "Reject" => {}
        "Queue" if queuing.is_null() => {
            e.required(format!("{path}.queuing"), "must not be empty if limited.limitResponse.type is Limited");
        }
        "Queue" => validate_queuing(e, queuing, &format!("{path}.queuing")),
        kind => e.unsupported(format!("{path}.type"), &json!(kind), &["Queue", "Reject"]),
    }
    validate_lendable_percent(e, limited, "spec.limited");
    let borrowed = at(limited, "borrowingLimitPercent");
    if borrowed.as_i64().is_some_and(|n| n < 0) {
        let reason = "if specified, must be a non-negative integer";
        e.invalid("spec.limited.borrowingLimitPercent", borrowed, reason);
    }
}

fn validate_queuing(e: &mut Errors, queuing: &Value, path: &str) {
    let count = |field: &str| number(queuing, field).unwrap_or(0);
    let mut reject = |field: &str, reason: String| e.invalid(format!("{path}.{field}"), &json!(count(field)), reason);
    if count("queueLengthLimit") <= 0 {
        reject("queueLengthLimit", "must be positive".to_owned());
    }
    let (queues, hand) = (count("queues"), count("handSize"));
    if queues <= 0 {
        reject("queues", "must be positive".to_owned());
    } else if queues > MAX_QUEUES {
        reject("queues", format!("must not be greater than {MAX_QUEUES}"));
    }
    // The conversion is lossless: both values are far below 2^52.
    let bits = ((queues.max(1) as f64).log2() * hand as f64).ceil();
    if hand <= 0 {
        reject("handSize", "must be positive".to_owned());
    } else if hand > queues {
        reject("handSize", format!("should not be greater than queues ({queues})"));
    } else if bits > f64::from(MAX_HASH_BITS) {
        let reason = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than {MAX_HASH_BITS}"
        );
        reject("handSize", reason);
    }
}

/// Validates conditions: their types must be unique and not empty.
pub(super) fn validate_conditions(e: &mut Errors, object: &Value) {
    let conditions = items(object, "status.conditions");
    for (index, condition) in conditions.iter().enumerate() {
        let (field, kind) = (format!("status.conditions[{index}].type"), at(condition, "type"));
        if conditions[..index].iter().any(|other| at(other, "type") == kind) {
            e.duplicate(field.as_str(), kind);
        }
        if text(condition, "type").is_empty() {
            e.required(field, "");
        }
    }
}
