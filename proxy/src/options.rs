//! What lists and watches may be asked, checked as kube-apiserver checks it (`ListOptions`).

use crowsnest_api::field::FieldError;
use crowsnest_api::names::Gvr;
use crowsnest_api::selector::{FieldRequirement, FieldSelector, Selector, SelectorError};

use crate::Error;
use crate::native::Query;

const MATCH: &str = "resourceVersionMatch";
const INITIAL: &str = "sendInitialEvents";
const NOT_OLDER_THAN: &str = "NotOlderThan";

/// Options that were read and make sense together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    pub labels: Option<Selector>,
    pub fields: Option<FieldSelector>,
    /// Objects of a page; none is all.
    pub limit: Option<usize>,
}

impl ListOptions {
    /// `watch_list`: whether a watch may begin with what is there.
    pub fn parse(query: &Query, watch: bool, watch_list: bool) -> Result<Self, Error> {
        let bad = |error: SelectorError| Error::BadRequest(error.to_string());
        let labels = Selector::parse(query.get("labelSelector")).map_err(bad)?;
        let fields = FieldSelector::parse(query.get("fieldSelector")).map_err(bad)?;
        let limit = integer(query, "limit")?;
        integer(query, "timeoutSeconds")?;
        let errors = if watch { check_watch(query, watch_list) } else { check_list(query) };
        if !errors.is_empty() {
            return Err(Error::InvalidOptions(errors));
        }
        Ok(Self {
            labels: Some(labels).filter(|labels| !labels.is_empty()),
            fields: Some(fields).filter(|fields| !fields.is_empty()),
            limit: usize::try_from(limit).ok().filter(|limit| *limit > 0),
        })
    }
}

/// 0 where nothing is said.
fn integer(query: &Query, key: &str) -> Result<i64, Error> {
    if !query.has(key) {
        return Ok(0);
    }
    let text = query.get(key);
    text.parse().map_err(|_| Error::BadRequest(format!("strconv.ParseInt: parsing {text:?}: invalid syntax")))
}

fn check_list(query: &Query) -> Vec<FieldError> {
    let (matching, version) = (query.get(MATCH), query.get("resourceVersion"));
    let mut errors = Vec::new();
    let mut forbid = |field: &str, detail: &str| errors.push(FieldError::forbidden(field, detail));
    if !matching.is_empty() {
        if version.is_empty() {
            forbid(MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided");
        }
        if !query.get("continue").is_empty() {
            forbid(MATCH, "resourceVersionMatch is forbidden when continue is provided");
        }
        if matching == "Exact" && version == "0" {
            forbid(MATCH, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
        }
    }
    if query.has(INITIAL) {
        forbid(INITIAL, "sendInitialEvents is forbidden for list");
    }
    if !matches!(matching, "" | "Exact" | NOT_OLDER_THAN) {
        errors.push(FieldError::not_supported(MATCH, matching, &["Exact", NOT_OLDER_THAN, ""]));
    }
    errors
}

fn check_watch(query: &Query, watch_list: bool) -> Vec<FieldError> {
    let (matching, initial) = (query.get(MATCH), query.has(INITIAL));
    let mut errors = Vec::new();
    let mut forbid = |field: &str, detail: &str| errors.push(FieldError::forbidden(field, detail));
    if initial && matching != NOT_OLDER_THAN {
        forbid(MATCH, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
    }
    if initial && !watch_list {
        forbid(INITIAL, "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled");
    }
    if !matching.is_empty() && !initial {
        forbid(MATCH, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided");
    }
    if !matching.is_empty() && !query.get("continue").is_empty() {
        forbid(MATCH, "resourceVersionMatch is forbidden when continue is provided");
    }
    if !matches!(matching, "" | NOT_OLDER_THAN) {
        errors.push(FieldError::not_supported(MATCH, matching, &[NOT_OLDER_THAN]));
    }
    errors
}

/// Fields that selectors of the core group's kinds may name. Anything else has its name and namespace alone.
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

/// The selector in the resource's own names; a field it does not know would match nothing without a word.
pub fn known_fields(resource: &Gvr, selector: FieldSelector) -> Result<FieldSelector, Error> {
    let core = resource.group.is_empty();
    let known = FIELDS.iter().find(|(name, _)| core && *name == &*resource.resource).map(|(_, fields)| *fields);
    let requirements = selector.requirements().iter().cloned().map(|requirement| {
        let field = match requirement.field.as_str() {
            // What old clients send.
            "spec.host" if core && &*resource.resource == "pods" => "spec.nodeName",
            field => field,
        };
        let refusal = match known {
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

    fn said(query: &str, watch: bool, watch_list: bool) -> String {
        match ListOptions::parse(&Query::parse(Some(query)), watch, watch_list) {
            Ok(_) => String::new(),
            Err(error) => error.options(),
        }
    }

    const INTEGER: &str = "strconv.ParseInt: parsing \"x\": invalid syntax";

    #[rstest::rstest]
    #[case("labelSelector=a%3Db&fieldSelector=c%3Dd&limit=5&continue=x", "")]
    #[case("resourceVersion=7&resourceVersionMatch=Exact", "")]
    #[case("resourceVersion=0&resourceVersionMatch=NotOlderThan&limit=-1", "")]
    #[case("limit=x", INTEGER)]
    #[case("timeoutSeconds=x", INTEGER)]
    #[case("fieldSelector=a", "invalid selector: 'a'; can't understand 'a'")]
    #[case(
        "resourceVersionMatch=Exact",
        "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    )]
    #[case(
        "resourceVersionMatch=Exact&resourceVersion=0",
        "resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\""
    )]
    #[case(
        "resourceVersionMatch=NotOlderThan&resourceVersion=7&continue=x",
        "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided"
    )]
    #[case(
        "resourceVersionMatch=Newest&resourceVersion=7",
        "resourceVersionMatch: Unsupported value: \"Newest\": supported values: \"Exact\", \"NotOlderThan\", \"\""
    )]
    #[case("sendInitialEvents=false", "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list")]
    fn lists(#[case] query: &str, #[case] expected: &str) {
        assert_eq!(said(query, false, false), expected);
    }

    const BEGIN: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";

    #[rstest::rstest]
    #[case("timeoutSeconds=5", false, "")]
    #[case(BEGIN, true, "")]
    #[case(
        BEGIN,
        false,
        "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
    )]
    #[case(
        "sendInitialEvents=true",
        true,
        "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
    )]
    #[case(
        "resourceVersionMatch=NotOlderThan",
        true,
        "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
    )]
    fn watches(#[case] query: &str, #[case] watch_list: bool, #[case] expected: &str) {
        assert_eq!(said(query, true, watch_list), expected);
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
    fn fields(#[case] group: &str, #[case] resource: &str, #[case] text: &str, #[case] expected: &str) {
        let selector = FieldSelector::parse(text).unwrap();
        let told = known_fields(&Gvr::new(group, "v1", resource), selector);
        assert_eq!(told.map_or_else(|error| error.to_string(), |selector| selector.to_string()), expected);
    }
}
