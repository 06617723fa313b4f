//! Validation of reviews, without side effects.

use std::collections::BTreeSet;

use crowsnest_apimachinery::field::{FieldError, FieldErrorKind};
use crowsnest_apimachinery::names::format::validate_dns1123_label;
use crowsnest_apimachinery::rbac::access::Scope;
use crowsnest_apimachinery::rbac::{Action, ObjectKind, ObjectName, selectors};
use crowsnest_apimachinery::request::is_path_segment;

use super::body::{ActionSpec, Coverage, NonResourceAttributes, ObjectReference, ResourceAttributes, SubjectSpec};
use super::page::{MAX_PAGE_SIZE, RowKey};

/// Maximum number of items in the lists of a spec.
const MAX_CLUSTERS: usize = 1000;
const MAX_NAMESPACES: usize = 100;
const MAX_OBJECTS: usize = 100;
const MAX_GROUPS: usize = 1000;
const ALL_NAMESPACES: &str = "*";

/// Validated fields that both kinds of reviews have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ValidatedCoverage {
    /// Clusters to review; `None` for all that the caller may see.
    pub clusters: Option<BTreeSet<String>>,
    /// Objects that the evaluation ignores.
    pub without: Vec<Removal>,
    /// True if indirect paths are requested.
    pub indirect: bool,
    /// Maximum number of rows of the page.
    pub limit: usize,
    /// Last row of the previous page.
    pub after: Option<RowKey>,
}

/// An object that the evaluation of `cluster` ignores, or of each reviewed cluster if it is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Removal {
    pub cluster: Option<String>,
    pub object: ObjectName,
}

/// Validates the fields that both kinds of reviews have. `visible_clusters` are those that the caller may see. Any other
/// cluster is reported as not found, even if it exists.
pub(super) fn validate_coverage(
    coverage: &Coverage,
    visible_clusters: &BTreeSet<&str>,
) -> Result<ValidatedCoverage, Vec<FieldError>> {
    let mut errors = Vec::new();
    check_count("spec.clusters", coverage.clusters.len(), MAX_CLUSTERS, &mut errors);
    check_count("spec.namespaces", coverage.namespaces.len(), MAX_NAMESPACES, &mut errors);
    check_count("spec.without", coverage.without.len(), MAX_OBJECTS, &mut errors);
    if !errors.is_empty() {
        return Err(errors);
    }
    let indexed_clusters = coverage.clusters.iter().enumerate();
    errors.extend(
        indexed_clusters.filter_map(|(nth, name)| not_found(format!("spec.clusters[{nth}]"), name, visible_clusters)),
    );
    check_namespaces(&coverage.namespaces, &mut errors);
    let mut without = Vec::new();
    for (nth, reference) in coverage.without.iter().enumerate() {
        without.extend(validate_removal(&format!("spec.without[{nth}]"), reference, visible_clusters, &mut errors));
    }
    let limit = coverage.limit.map_or(Ok(MAX_PAGE_SIZE), |limit| usize::try_from(limit).map_err(|_| limit));
    let limit = match limit {
        Ok(limit) if (1..=MAX_PAGE_SIZE).contains(&limit) => limit,
        _ => {
            errors.push(FieldError::invalid(
                "spec.limit",
                &coverage.limit,
                format!("must be from 1 to {MAX_PAGE_SIZE}"),
            ));
            MAX_PAGE_SIZE
        }
    };
    let token = &coverage.continue_token;
    let after = RowKey::parse(token);
    if after.is_none() && !token.is_empty() {
        errors.push(FieldError::invalid("spec.continue", token, "must be the continue token of a previous page"));
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let clusters = (!coverage.clusters.is_empty()).then(|| coverage.clusters.iter().cloned().collect());
    Ok(ValidatedCoverage { clusters, without, indirect: coverage.indirect, limit, after })
}

fn check_count(field: &str, count: usize, max: usize, errors: &mut Vec<FieldError>) {
    if count > max {
        let detail = format!("must have at most {max} items");
        errors.push(FieldError::new(FieldErrorKind::TooMany, field, Some(count.to_string()), detail));
    }
}

fn not_found(field: String, name: &str, visible_clusters: &BTreeSet<&str>) -> Option<FieldError> {
    (!visible_clusters.contains(name)).then(|| FieldError::not_found(field, name))
}

fn check_namespaces(names: &[String], errors: &mut Vec<FieldError>) {
    for (nth, name) in names.iter().enumerate() {
        let field = format!("spec.namespaces[{nth}]");
        if name == ALL_NAMESPACES {
            if names.len() > 1 {
                errors.push(FieldError::invalid(field, name, "must be the only item"));
            }
            continue;
        }
        errors.extend(
            validate_dns1123_label(name).into_iter().map(|detail| FieldError::invalid(field.clone(), name, detail)),
        );
    }
}

fn validate_removal(
    field: &str,
    reference: &ObjectReference,
    visible_clusters: &BTreeSet<&str>,
    errors: &mut Vec<FieldError>,
) -> Option<Removal> {
    let before = errors.len();
    let ObjectReference { cluster, kind, namespace, name } = reference;
    let kinds = ObjectKind::ALL.map(|kind| kind.to_string());
    let kind = ObjectKind::ALL.into_iter().zip(&kinds).find(|(_, word)| *word == kind).map(|(kind, _)| kind);
    let Some(kind) = kind else {
        let supported: Vec<&str> = kinds.iter().map(String::as_str).collect();
        errors.push(FieldError::not_supported(format!("{field}.kind"), &reference.kind, &supported));
        return None;
    };
    if !cluster.is_empty() {
        errors.extend(not_found(format!("{field}.cluster"), cluster, visible_clusters));
    }
    match (kind.is_namespaced(), namespace.is_empty()) {
        (true, true) => errors.push(FieldError::required(format!("{field}.namespace"), "")),
        (false, false) => {
            errors.push(FieldError::forbidden(format!("{field}.namespace"), format!("{kind} has no namespace")));
        }
        _ => {}
    }
    if name.is_empty() {
        errors.push(FieldError::required(format!("{field}.name"), ""));
    }
    let object = ObjectName { kind, namespace: namespace.clone(), name: name.clone() };
    let cluster = Some(cluster.clone()).filter(|cluster| !cluster.is_empty());
    (errors.len() == before).then_some(Removal { cluster, object })
}

/// Validates a ResourceAccessReview and returns its action and scope.
pub(super) fn validate_action(spec: &ActionSpec, coverage: &Coverage) -> Result<(Action, Scope), Vec<FieldError>> {
    let mut errors = Vec::new();
    let action = match (&spec.resource_attributes, &spec.non_resource_attributes) {
        (Some(attributes), None) => resource_action(attributes, coverage, &mut errors),
        (None, Some(attributes)) => path_action(attributes, coverage, &mut errors),
        _ => {
            let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            return Err(vec![FieldError::required("spec.resourceAttributes", detail)]);
        }
    };
    if errors.is_empty() { Ok(action) } else { Err(errors) }
}

fn resource_action(
    attributes: &ResourceAttributes,
    coverage: &Coverage,
    errors: &mut Vec<FieldError>,
) -> (Action, Scope) {
    let field = |name: &str| format!("spec.resourceAttributes.{name}");
    errors.extend(selectors::validate(&attributes.selectors()));
    let ResourceAttributes { verb, group, resource, subresource, namespace, name, .. } = attributes.clone();
    for (name, value) in [("verb", &verb), ("resource", &resource)] {
        if value.is_empty() {
            errors.push(FieldError::required(field(name), ""));
        }
    }
    let segments = [("resource", &resource), ("subresource", &subresource), ("namespace", &namespace), ("name", &name)];
    for (name, value) in segments.into_iter().filter(|(_, value)| !is_path_segment(value)) {
        errors.push(FieldError::invalid(field(name), value, "may not be '.' or '..' or contain '/' or '%'"));
    }
    if !namespace.is_empty() && !coverage.namespaces.is_empty() {
        let detail = "cannot be specified in combination with resourceAttributes.namespace";
        errors.push(FieldError::forbidden("spec.namespaces", detail));
    }
    let scope = scope_or(coverage, Scope::from_namespace(&namespace));
    (Action::Resource { verb, group, resource, subresource, namespace: String::new(), name }, scope)
}

fn path_action(
    attributes: &NonResourceAttributes,
    coverage: &Coverage,
    errors: &mut Vec<FieldError>,
) -> (Action, Scope) {
    let NonResourceAttributes { verb, path } = attributes;
    if verb.is_empty() {
        errors.push(FieldError::required("spec.nonResourceAttributes.verb", ""));
    }
    if !path.starts_with('/') {
        errors.push(FieldError::invalid("spec.nonResourceAttributes.path", path, "must begin with '/'"));
    }
    if !coverage.namespaces.is_empty() {
        errors.push(FieldError::forbidden("spec.namespaces", "paths have no namespace"));
    }
    // As in kube-apiserver, the verb is compared as it is.
    (Action::Path { verb: verb.clone(), path: path.clone() }, Scope::cluster())
}

/// Validates the subject of a SubjectRulesReview and returns the scope: all namespaces unless some are named.
pub(super) fn validate_subject(spec: &SubjectSpec, coverage: &Coverage) -> Result<Scope, Vec<FieldError>> {
    let mut errors = Vec::new();
    check_count("spec.groups", spec.groups.len(), MAX_GROUPS, &mut errors);
    if spec.user.is_empty() && spec.groups.is_empty() {
        errors.push(FieldError::invalid("spec.user", "", "at least one of user or group must be specified"));
    }
    if errors.is_empty() { Ok(scope_or(coverage, Scope::All)) } else { Err(errors) }
}

fn scope_or(coverage: &Coverage, default: Scope) -> Scope {
    match coverage.namespaces.as_slice() {
        [] => default,
        [all] if all == ALL_NAMESPACES => Scope::All,
        some => Scope::Namespaces(some.iter().cloned().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::field::aggregate;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn text(errors: &[FieldError]) -> String {
        errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    #[rstest]
    #[case::everything(json!({}), "")]
    #[case::named(json!({"clusters": ["m1"], "namespaces": ["shop"], "limit": 5, "continue": "m1///0"}), "")]
    #[case::an_unknown_cluster(json!({"clusters": ["m1", "m9"]}), "spec.clusters[1]: Not found: \"m9\"")]
    #[case::a_limit(json!({"limit": 1001}), "spec.limit: Invalid value: 1001: must be from 1 to 1000")]
    #[case::a_negative_limit(json!({"limit": -1}), "spec.limit: Invalid value: -1: must be from 1 to 1000")]
    #[case::a_token(json!({"continue": "x"}), "spec.continue: Invalid value: \"x\": must be the continue token of a previous page")]
    #[case::all_and_one(json!({"namespaces": ["shop", "*"]}), "spec.namespaces[1]: Invalid value: \"*\": must be the only item")]
    #[case::another_kind(
        json!({"without": [{"kind": "Pod", "name": "x"}]}),
        "spec.without[0].kind: Unsupported value: \"Pod\": supported values: \"Role\", \"ClusterRole\", \"RoleBinding\", \"ClusterRoleBinding\""
    )]
    #[case::incomplete(
        json!({"without": [{"kind": "Role", "cluster": "m9"}, {"kind": "ClusterRole", "name": "x", "namespace": "a"}]}),
        "spec.without[0].cluster: Not found: \"m9\"; spec.without[0].namespace: Required value; spec.without[0].name: Required value; spec.without[1].namespace: Forbidden: ClusterRole has no namespace"
    )]
    #[case::many(json!({"namespaces": vec!["a"; 101]}), "spec.namespaces: Too many: 101: must have at most 100 items")]
    fn invalid_coverages_are_refused(#[case] coverage: Value, #[case] expected: &str) {
        let errors = validate_coverage(&read(coverage), &BTreeSet::from(["m1", "m2"])).err().unwrap_or_default();
        assert_eq!(text(&errors), expected, "{}", aggregate(&errors));
    }

    #[rstest]
    #[case::neither(json!({}), json!({}), "spec.resourceAttributes: Required value: exactly one of nonResourceAttributes or resourceAttributes must be specified")]
    #[case::empty(json!({"resourceAttributes": {}}), json!({}), "spec.resourceAttributes.verb: Required value; spec.resourceAttributes.resource: Required value")]
    #[case::a_subresource_in_the_resource(
        json!({"resourceAttributes": {"verb": "get", "resource": "pods/log"}}), json!({}),
        "spec.resourceAttributes.resource: Invalid value: \"pods/log\": may not be '.' or '..' or contain '/' or '%'"
    )]
    #[case::two_namespaces(
        json!({"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "a"}}), json!({"namespaces": ["b"]}),
        "spec.namespaces: Forbidden: cannot be specified in combination with resourceAttributes.namespace"
    )]
    #[case::a_relative_path(
        json!({"nonResourceAttributes": {"verb": "get", "path": "metrics"}}), json!({}),
        "spec.nonResourceAttributes.path: Invalid value: \"metrics\": must begin with '/'"
    )]
    #[case::two_forms_of_a_selector(
        json!({"resourceAttributes": {"verb": "list", "resource": "pods", "fieldSelector": {"rawSelector": "spec.nodeName=n1",
            "requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]}}}),
        json!({}),
        "spec.resourceAttributes.fieldSelector.rawSelector: Invalid value: \"spec.nodeName=n1\": may not specified at the same time as requirements"
    )]
    #[case::an_empty_selector(
        json!({"resourceAttributes": {"verb": "list", "resource": "pods", "labelSelector": {}}}), json!({}),
        "spec.resourceAttributes.labelSelector.requirements: Required value: when spec.resourceAttributes.labelSelector is specified, requirements or rawSelector is required"
    )]
    fn invalid_actions_are_refused(#[case] spec: Value, #[case] coverage: Value, #[case] expected: &str) {
        assert_eq!(text(&validate_action(&read(spec), &read(coverage)).unwrap_err()), expected);
    }

    #[rstest]
    #[case(json!({"resourceAttributes": {"verb": "get", "resource": "pods"}}), json!({}), Scope::cluster())]
    #[case(json!({"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "a"}}), json!({}), Scope::from_namespace("a"))]
    #[case(json!({"resourceAttributes": {"verb": "get", "resource": "pods"}}), json!({"namespaces": ["*"]}), Scope::All)]
    #[case(json!({"resourceAttributes": {"verb": "get", "resource": "pods"}}), json!({"namespaces": ["a"]}), Scope::from_namespace("a"))]
    #[case(json!({"nonResourceAttributes": {"verb": "GET", "path": "/metrics"}}), json!({}), Scope::cluster())]
    fn actions_have_scopes(#[case] spec: Value, #[case] coverage: Value, #[case] expected: Scope) {
        assert_eq!(validate_action(&read(spec), &read(coverage)).unwrap().1, expected);
    }

    #[rstest]
    #[case::lower_case("get")]
    #[case::upper_case("GET")]
    fn verbs_of_paths_are_compared_as_they_are(#[case] verb: &str) {
        let spec = json!({"nonResourceAttributes": {"verb": verb, "path": "/metrics"}});
        let (action, _) = validate_action(&read(spec), &Coverage::default()).unwrap();
        assert_eq!(action, Action::Path { verb: verb.to_owned(), path: "/metrics".to_owned() });
    }

    #[rstest]
    #[case::requirements(json!({"requirements": [{"key": "app", "operator": "In", "values": ["web"]}]}))]
    #[case::an_unknown_operator(json!({"requirements": [{"key": "app", "operator": "Like", "values": ["w"]}]}))]
    #[case::text(json!({"rawSelector": "app=web"}))]
    #[case::unreadable_text(json!({"rawSelector": "app in (web"}))]
    fn selectors_do_not_change_the_action(#[case] selector: Value) {
        let attributes = json!({"verb": "list", "resource": "pods"});
        let mut selected = attributes.clone();
        selected["labelSelector"] = selector;
        let action = |attributes: Value| {
            validate_action(&read(json!({"resourceAttributes": attributes})), &Coverage::default()).unwrap()
        };
        assert_eq!(action(selected), action(attributes));
    }

    #[test]
    fn a_subject_is_required() {
        let errors = validate_subject(&SubjectSpec::default(), &Coverage::default()).unwrap_err();
        assert_eq!(text(&errors), "spec.user: Invalid value: \"\": at least one of user or group must be specified");
        let subject = validate_subject(&read(json!({"groups": ["sre"]})), &Coverage::default());
        assert_eq!(subject.unwrap(), Scope::All);
    }
}
