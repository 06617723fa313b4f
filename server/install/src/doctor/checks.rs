//! Evaluates the observed state of an installation: problems and their solutions. Has no side effects.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    Good,
    /// The subject works, but will stop working later or does not work as intended.
    Warning,
    Broken,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// The checked item, such as `cluster m1`.
    pub subject: String,
    /// The state that the check found.
    pub observation: String,
    /// The action that solves the problem; empty for [`Severity::Good`].
    pub fix: String,
}

/// The JSON form of a [`Finding`].
#[derive(Serialize)]
struct FindingDocument<'a> {
    severity: Severity,
    name: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: &'a str,
    /// Deprecated aliases of `name`, `message` and `remedy`.
    what: &'a str,
    found: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    mend: &'a str,
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let document = FindingDocument {
            severity: self.severity,
            name: &self.subject,
            message: &self.observation,
            remedy: &self.fix,
            what: &self.subject,
            found: &self.observation,
            mend: &self.fix,
        };
        document.serialize(serializer)
    }
}

impl Finding {
    pub fn good(subject: impl Into<String>, observation: impl Into<String>) -> Self {
        Self { severity: Severity::Good, subject: subject.into(), observation: observation.into(), fix: String::new() }
    }

    pub fn warning(subject: impl Into<String>, observation: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, subject: subject.into(), observation: observation.into(), fix: fix.into() }
    }

    pub fn broken(subject: impl Into<String>, observation: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { severity: Severity::Broken, subject: subject.into(), observation: observation.into(), fix: fix.into() }
    }
}

/// Supported minor versions of Kubernetes.
const SUPPORTED_MINOR_VERSIONS: std::ops::RangeInclusive<u32> = 27..=37;
/// Largest clock skew that certificates and Leases tolerate.
const MAX_CLOCK_SKEW: SignedDuration = SignedDuration::from_secs(5);

pub(super) fn check_version(minor: &str, git_version: &str) -> Finding {
    let subject = "version of the control plane";
    let number: String = minor.chars().take_while(char::is_ascii_digit).collect();
    match number.parse::<u32>() {
        Ok(minor) if SUPPORTED_MINOR_VERSIONS.contains(&minor) => Finding::good(subject, git_version),
        _ => Finding::warning(
            subject,
            format!("{git_version}; Crowsnest supports 1.27 to 1.37"),
            "use a supported version of kube-apiserver",
        ),
    }
}

/// Compares clocks. `server_time` has whole seconds and lies between `sent` and `received`.
pub(super) fn check_clocks(sent: Timestamp, server_time: Timestamp, received: Timestamp) -> Finding {
    let subject = "clocks";
    let early = sent.duration_since(server_time) - SignedDuration::from_secs(1);
    let late = server_time.duration_since(received);
    let skew = early.max(late).max(SignedDuration::ZERO);
    match skew > MAX_CLOCK_SKEW {
        true => Finding::broken(
            subject,
            format!("the clocks of the control plane and this machine differ by {} s", skew.as_secs()),
            "synchronize both clocks (NTP); certificates and leases depend on them",
        ),
        false => Finding::good(subject, "the clocks of the control plane and this machine agree"),
    }
}

/// Backlog of the text search index above which it is reported, in changes.
const MAX_BACKLOG_CHANGES: u64 = 100_000;

/// Checks the state of the text search index, as `search.crowsnest.io` reports it.
pub(super) fn check_search_index(index: &Value) -> Vec<Finding> {
    let subject = "search index";
    let backend = index["backend"].as_str().unwrap_or_default();
    let behind = index["behind"].as_u64().unwrap_or_default();
    let mut findings = Vec::new();
    if let Some(error) = index["trouble"].as_str() {
        let fix =
            "repair the search engine or its credentials; writing resumes automatically (docs/SEARCH-BACKENDS.md)";
        findings.push(Finding::broken(subject, format!("cannot write to {backend}: {error}"), fix));
    }
    if behind > MAX_BACKLOG_CHANGES {
        let fix =
            "`crowsnest index status` shows whether it catches up; give the search engine more CPU or faster disks";
        findings.push(Finding::warning(subject, format!("{backend} is {behind} changes behind"), fix));
    }
    let refused = index["writer"]["refusedDocuments"].as_array().map_or(0, Vec::len);
    if refused > 0 {
        let fix = "`crowsnest index status` shows the reasons; `crowsnest index rebuild` builds an index with the current mapping";
        findings.push(Finding::warning(subject, format!("{backend} rejected {refused} documents"), fix));
    }
    if findings.is_empty() {
        findings.push(Finding::good(subject, format!("{backend}, {behind} changes behind")));
    }
    findings
}

/// Compares an installed object with the one that this version would install.
pub(super) fn check_drift(name: &str, live: Option<&Value>, expected_object: &Value) -> Option<Finding> {
    let fix = "run `crowsnest install`";
    let Some(live) = live else { return Some(Finding::broken(name, "it does not exist", fix)) };
    let differs = first_difference("", &strip_server_fields(live), &strip_server_fields(expected_object));
    differs.map(|path| Finding::warning(name, format!("it differs from the object of this version at {path}"), fix))
}

/// The object without fields that the API server writes.
fn strip_server_fields(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["managedFields", "resourceVersion", "generation", "creationTimestamp", "uid", "selfLink"] {
            metadata.remove(field);
        }
    }
    object
}

/// The first path at which two values differ.
fn first_difference(path: &str, left: &Value, right: &Value) -> Option<String> {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: std::collections::BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            keys.into_iter().find_map(|key| {
                let missing = Value::Null;
                let at = format!("{path}.{key}");
                first_difference(&at, left.get(key).unwrap_or(&missing), right.get(key).unwrap_or(&missing))
            })
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => left
            .iter()
            .zip(right)
            .enumerate()
            .find_map(|(at, (left, right))| first_difference(&format!("{path}[{at}]"), left, right)),
        (left, right) => (left != right).then(|| path.to_owned()),
    }
}

/// Checks one of Crowsnest's APIServices.
pub(super) fn check_registration(service: &Value, address: &str) -> Finding {
    let name = service.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let subject = format!("APIService {name}");
    let conditions = service.pointer("/status/conditions").and_then(Value::as_array);
    let available = conditions.into_iter().flatten().find(|condition| condition["type"] == "Available");
    let field_of = |field: &str| available.and_then(|condition| condition[field].as_str()).unwrap_or_default();
    match field_of("status") {
        "True" => Finding::good(subject, "available"),
        _ => {
            let message = if field_of("message").is_empty() { "not checked yet" } else { field_of("message") };
            let fix = format!(
                "check that `crowsnest serve` runs with the role aggregated, and that the control plane can reach it at {address}"
            );
            Finding::broken(subject, format!("not available: {message}"), fix)
        }
    }
}

/// Checks the Leases of the controllers, by name; `None` is a missing Lease.
pub(super) fn check_leases(leases: &[(&str, Option<Lease>)], now: Timestamp) -> Finding {
    let subject = "leader of the controllers";
    let fix = "start `crowsnest serve` with the role controllers";
    let mut holders: Vec<String> = Vec::new();
    for (name, lease) in leases {
        let spec = lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let holder = spec.and_then(|spec| spec.holder_identity.clone()).filter(|holder| !holder.is_empty());
        let Some((spec, holder)) = spec.zip(holder) else {
            return Finding::broken(subject, format!("Lease {name} has no holder"), fix);
        };
        let lease_duration = SignedDuration::from_secs(i64::from(spec.lease_duration_seconds.unwrap_or(15)));
        let renewed_at = spec.renew_time.as_ref().map_or(Timestamp::MIN, |time| time.0);
        // The holder's clock may be behind.
        if now.duration_since(renewed_at) > lease_duration + MAX_CLOCK_SKEW {
            return Finding::broken(subject, format!("{holder} has not renewed Lease {name} since {renewed_at}"), fix);
        }
        if !holders.contains(&holder) {
            holders.push(holder);
        }
    }
    match holders.as_slice() {
        [holder] => Finding::good(subject, holder.clone()),
        several => Finding::broken(
            subject,
            format!("the Leases are held by {}; no process holds all of them", several.join(" and ")),
            "stop either Karmada's components or `crowsnest serve`",
        ),
    }
}

/// Checks a Cluster.
pub(super) fn check_member(cluster: &Value) -> Finding {
    let name = cluster.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let subject = format!("cluster {name}");
    let conditions = cluster.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    let field_of = |field: &str| ready.and_then(|condition| condition[field].as_str()).unwrap_or_default();
    let is_pull = cluster.pointer("/spec/syncMode").and_then(Value::as_str) == Some("Pull");
    match field_of("status") {
        "True" => Finding::good(subject, "ready"),
        _ => {
            let observation = match (field_of("reason"), field_of("message")) {
                ("", "") => "not checked yet".to_owned(),
                (reason, message) => format!("not ready: {reason}: {message}"),
            };
            let fix = match is_pull {
                true => {
                    format!(
                        "check that `crowsnest agent --cluster-name {name}` runs in it and can reach the control plane"
                    )
                }
                false => format!(
                    "check that `crowsnest serve` can reach its API server; renew credentials with `crowsnest join {name} --refresh`"
                ),
            };
            Finding::broken(subject, observation, fix)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[rstest]
    #[case::good(
        Finding::good("version", "v1.36.2"),
        json!({"severity": "good", "name": "version", "message": "v1.36.2", "what": "version", "found": "v1.36.2"})
    )]
    #[case::broken(
        Finding::broken("cluster m1", "not ready", "renew it"),
        json!({"severity": "broken", "name": "cluster m1", "message": "not ready", "remedy": "renew it",
               "what": "cluster m1", "found": "not ready", "mend": "renew it"})
    )]
    fn findings_have_a_json_form(#[case] finding: Finding, #[case] expected: Value) {
        assert_eq!(serde_json::to_value(finding).unwrap(), expected);
    }

    #[rstest]
    #[case("36", Severity::Good)]
    #[case("27+", Severity::Good)]
    #[case("26", Severity::Warning)]
    #[case("", Severity::Warning)]
    fn versions_are_checked(#[case] minor: &str, #[case] expected: Severity) {
        assert_eq!(check_version(minor, "v1.x").severity, expected);
    }

    #[rstest]
    #[case(1000, Severity::Good)]
    #[case::within_the_second(999, Severity::Good)]
    #[case(1006, Severity::Good)]
    #[case(1008, Severity::Broken)]
    #[case(990, Severity::Broken)]
    fn clock_skew_is_reported(#[case] server_time: i64, #[case] expected: Severity) {
        let found = check_clocks(at(1000), at(server_time), at(1001));
        assert_eq!(found.severity, expected, "{found:?}");
    }

    #[rstest]
    #[case(None, Some("it does not exist"))]
    #[case(Some(json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": "7"}, "spec": {"v": [1, 2]}, "status": {}})), None)]
    #[case(Some(json!({"metadata": {"name": "a"}, "spec": {"v": [1, 3]}})), Some("at .spec.v[1]"))]
    #[case(Some(json!({"metadata": {"name": "a"}, "spec": {"v": [1, 2], "w": 1}})), Some("at .spec.w"))]
    fn drift_is_reported_with_its_path(#[case] live: Option<Value>, #[case] expected: Option<&str>) {
        let expected_object = json!({"metadata": {"name": "a"}, "spec": {"v": [1, 2]}});
        let found = check_drift("CustomResourceDefinition a", live.as_ref(), &expected_object);
        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        assert!(found.zip(expected).is_none_or(|(found, expected)| found.observation.contains(expected)));
    }

    #[rstest]
    #[case::up_to_date(json!({"backend": "tantivy", "behind": 3, "trouble": null, "writer": null}), &[Severity::Good])]
    #[case::unreachable(json!({"backend": "opensearch", "behind": 3, "trouble": "no node answers"}), &[Severity::Broken])]
    #[case::behind_with_refused_documents(
        json!({"backend": "opensearch", "behind": 100_001, "writer": {"refusedDocuments": [{"id": "1"}]}}),
        &[Severity::Warning, Severity::Warning]
    )]
    fn search_index_state_is_reported(#[case] index: Value, #[case] expected: &[Severity]) {
        let found: Vec<Severity> = check_search_index(&index).iter().map(|finding| finding.severity).collect();
        assert_eq!(found, expected);
    }

    fn lease(holder: Option<&str>, renewed: i64) -> Option<Lease> {
        let renewed = at(renewed).to_string();
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 10, "renewTime": renewed});
        serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap()
    }

    #[rstest]
    #[case(lease(Some("a"), 100), lease(Some("a"), 101), Severity::Good, "a")]
    #[case(lease(Some("a"), 100), lease(Some("karmada"), 101), Severity::Broken, "no process holds all of them")]
    #[case(lease(Some("a"), 80), lease(Some("a"), 101), Severity::Broken, "a has not renewed Lease one")]
    #[case(lease(Some("a"), 100), lease(None, 101), Severity::Broken, "Lease two has no holder")]
    #[case(None, None, Severity::Broken, "Lease one has no holder")]
    fn lease_holders_are_checked(
        #[case] first: Option<Lease>,
        #[case] second: Option<Lease>,
        #[case] severity: Severity,
        #[case] expected: &str,
    ) {
        let found = check_leases(&[("one", first), ("two", second)], at(104));
        assert!(found.severity == severity && found.observation.contains(expected), "{found:?}");
    }

    #[test]
    fn conditions_are_reported() {
        let condition =
            |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "R", "message": "why"});
        let cluster = |status: Value, mode: &str| json!({"metadata": {"name": "m1"}, "spec": {"syncMode": mode}, "status": status});
        let ready = cluster(json!({"conditions": [condition("Ready", "True")]}), "Push");
        assert_eq!(check_member(&ready).severity, Severity::Good);
        let down = check_member(&cluster(json!({"conditions": [condition("Ready", "False")]}), "Push"));
        assert_eq!((down.severity, down.observation.as_str()), (Severity::Broken, "not ready: R: why"));
        assert!(down.fix.contains("crowsnest join m1 --refresh"));
        assert!(check_member(&cluster(json!({}), "Pull")).fix.contains("crowsnest agent"));
        let service = |status: Value| json!({"metadata": {"name": "v1"}, "status": status});
        let unavailable = check_registration(&service(json!({"conditions": [condition("Available", "False")]})), "h:1");
        assert!(
            unavailable.observation.contains("not available: why") && unavailable.fix.ends_with("at h:1"),
            "{unavailable:?}"
        );
    }
}
