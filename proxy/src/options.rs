//! Options of lists and watches of the fleet, parsed by [`crowsnest_apimachinery::list_options`], and the fields
//! that their selectors may use.

use crowsnest_apimachinery::list_options;
use crowsnest_apimachinery::names::Gvr;
use crowsnest_apimachinery::request::Query;
use crowsnest_apimachinery::selector::{FieldRequirement, FieldSelector, Selector, SelectorError};

use crate::Error;

/// Validated list options.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    pub labels: Option<Selector>,
    pub fields: Option<FieldSelector>,
    /// Page size; `None` means unlimited.
    pub limit: Option<usize>,
}

impl ListOptions {
    /// Parses the options of a list, or of a watch if `is_watch`. They may have `sendInitialEvents` only if
    /// `allows_initial_events`.
    pub fn parse(query: &Query, is_watch: bool, allows_initial_events: bool) -> Result<Self, Error> {
        let options = list_options::ListOptions::parse(|name| query.first(name));
        let options = options.map_err(|error| Error::BadRequest(error.to_string()))?;
        let invalid = |error: SelectorError| Error::BadRequest(error.to_string());
        let labels = Selector::parse(&options.label_selector).map_err(invalid)?;
        let fields = FieldSelector::parse(&options.field_selector).map_err(invalid)?;
        let limit = options.page_size();
        let errors = list_options::ListOptions { watch: is_watch, ..options }.validate(allows_initial_events);
        if !errors.is_empty() {
            return Err(Error::InvalidOptions(errors));
        }
        Ok(Self {
            labels: Some(labels).filter(|labels| !labels.is_empty()),
            fields: Some(fields).filter(|fields| !fields.is_empty()),
            limit,
        })
    }
}

/// Supported field labels of kinds in the core group. Other kinds support only name and namespace.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "events",
        &[
            "involvedObject.apiVersion",
            "involvedObject.fieldPath",
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.resourceVersion",
            "involvedObject.uid",
            "metadata.name",
            "metadata.namespace",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
    ),
    ("namespaces", &["metadata.name", "status.phase"]),
    ("nodes", &["metadata.name", "spec.unschedulable"]),
    (
        "pods",
        &[
            "metadata.name",
            "metadata.namespace",
            "spec.hostNetwork",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "status.nominatedNodeName",
            "status.phase",
            "status.podIP",
            "status.podIPs",
        ],
    ),
    ("replicationcontrollers", &["metadata.name", "metadata.namespace", "status.replicas"]),
    ("secrets", &["metadata.name", "metadata.namespace", "type"]),
    ("services", &["metadata.name", "metadata.namespace", "spec.clusterIP", "spec.type"]),
];

/// Translates a selector to the resource's field names. Unknown fields are rejected, because they would silently
/// match nothing.
pub fn translate_fields(resource: &Gvr, selector: FieldSelector) -> Result<FieldSelector, Error> {
    let is_core = resource.group.is_empty();
    let mapped_fields =
        FIELDS.iter().find(|(name, _)| is_core && *name == &*resource.resource).map(|(_, fields)| *fields);
    let requirements = selector.requirements().iter().cloned().map(|requirement| {
        let field = match requirement.field.as_str() {
            // Deprecated label for `spec.nodeName`.
            "spec.host" if is_core && &*resource.resource == "pods" => "spec.nodeName",
            field => field,
        };
        let refusal = match mapped_fields {
            Some(fields) if fields.contains(&field) => None,
            None if matches!(field, "metadata.name" | "metadata.namespace") => None,
            Some(_) => Some(format!("field label not supported: {field}")),
            None => {
                Some(format!("{field:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""))
            }
        };
        match refusal {
            None => Ok(FieldRequirement { field: field.to_owned(), ..requirement }),
            Some(refusal) => Err(Error::BadRequest(refusal)),
        }
    });
    requirements.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_error(query: &str, is_watch: bool, allows_initial_events: bool) -> String {
        match ListOptions::parse(&Query::parse(Some(query)), is_watch, allows_initial_events) {
            Ok(_) => String::new(),
            Err(error) => error.list_options_message(),
        }
    }

    const VERSION_REQUIRED: &str =
        "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
    const INITIAL_EVENTS_REQUIRED: &str = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless \
         sendInitialEvents is provided";
    const GATE_DISABLED: &str = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature \
         gate is enabled";

    #[rstest::rstest]
    #[case("labelSelector=a%3Db&fieldSelector=c%3Dd&limit=5&continue=x", false, false, "")]
    #[case("limit=x", false, false, "strconv.ParseInt: parsing \"x\": invalid syntax")]
    #[case("fieldSelector=a", false, false, "invalid selector: 'a'; can't understand 'a'")]
    #[case("resourceVersionMatch=Exact", false, false, VERSION_REQUIRED)]
    #[case::watch_of_the_path("resourceVersionMatch=NotOlderThan", true, true, INITIAL_EVENTS_REQUIRED)]
    #[case("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", true, true, "")]
    #[case("sendInitialEvents=true&resourceVersionMatch=NotOlderThan", true, false, GATE_DISABLED)]
    fn invalid_options_are_rejected_as_by_kube_apiserver(
        #[case] query: &str,
        #[case] is_watch: bool,
        #[case] allows_initial_events: bool,
        #[case] expected: &str,
    ) {
        assert_eq!(parse_error(query, is_watch, allows_initial_events), expected);
    }

    #[rstest::rstest]
    #[case("", "pods", "spec.nodeName=n,status.phase!=Failed", "spec.nodeName=n,status.phase!=Failed")]
    #[case("", "pods", "spec.host=n", "spec.nodeName=n")]
    #[case("", "pods", "spec.foo=n", "field label not supported: spec.foo")]
    #[case("", "nodes", "metadata.namespace=n", "field label not supported: metadata.namespace")]
    #[case("", "services", "spec.type=ClusterIP", "spec.type=ClusterIP")]
    #[case("", "configmaps", "metadata.name=n", "metadata.name=n")]
    #[case(
        "apps",
        "deployments",
        "status.phase=n",
        "\"status.phase\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
    )]
    fn field_selectors_are_translated_or_rejected(
        #[case] group: &str,
        #[case] resource: &str,
        #[case] text: &str,
        #[case] expected: &str,
    ) {
        let selector = FieldSelector::parse(text).unwrap();
        let result = translate_fields(&Gvr::new(group, "v1", resource), selector);
        assert_eq!(result.map_or_else(|error| error.to_string(), |selector| selector.to_string()), expected);
    }
}
