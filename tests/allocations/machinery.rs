//! Kubernetes machinery: selectors, quantities, JSONPath, RBAC, tables, parsing of requests.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use crowsnest_apimachinery::jsonpath::JsonPath;
use crowsnest_apimachinery::printers;
use crowsnest_apimachinery::quantity::Quantity;
use crowsnest_apimachinery::rbac::{Action, Decision, Rbac, ReadKind, ReadableObjects, Role, RoleBinding};
use crowsnest_apimachinery::request::{Query, RequestInfo};
use crowsnest_apimachinery::selector::{FieldSelector, Selector};
use crowsnest_apimachinery::unstructured;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::selects;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::fixtures::{DEPLOYMENT, PODS, pods, stored_pods, yaml};
use super::hot_path::HotPath;

const SELECTORS: &str = include_str!("data/selectors.yaml");
const QUANTITIES: &str = include_str!("data/quantities.yaml");
const JSON_PATHS: &str = include_str!("data/json-paths.yaml");
const ROLES: &str = include_str!("data/roles.yaml");
const REQUESTS: &str = include_str!("data/requests.yaml");

/// Unix seconds at which tables are printed.
const NOW: i64 = 1_790_000_000;
/// Namespaces in which the role with many rules is bound to the user.
const SHARED_ROLE_NAMESPACES: [&str; 4] = ["team-0", "team-1", "team-2", "team-3"];
/// Namespace in which the role for a few named pods is bound to the user.
const NAMED_PODS_NAMESPACE: &str = "team-7";

pub fn hot_paths() -> Result<Vec<HotPath>> {
    let selectors: Selectors = yaml(SELECTORS)?;
    let pod = pods()?.swap_remove(0);
    let deployment: Value = yaml(DEPLOYMENT)?;
    Ok(vec![
        label_selector(selectors.labels)?,
        field_selector(selectors.fields)?,
        quantities()?,
        json_paths()?,
        rbac_filter()?,
        rbac_authorization()?,
        table_row("machinery/table-row-pod", "", "Pod", &pod)?,
        table_row("machinery/table-row-deployment", "apps", "Deployment", &deployment)?,
        requests()?,
    ])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Selectors {
    labels: String,
    fields: String,
}

/// Parses a label selector and matches the labels of the pods.
fn label_selector(text: String) -> Result<HotPath> {
    let labels: Vec<BTreeMap<String, String>> = pods()?.iter().map(unstructured::labels).collect();
    Ok(HotPath::new("machinery/label-selector", move || {
        let selector = Selector::parse(&text)?;
        Ok(labels.iter().filter(|labels| selector.matches(labels)).count())
    }))
}

/// Parses a field selector and matches the pods in the cache.
fn field_selector(text: String) -> Result<HotPath> {
    let objects = stored_pods()?;
    Ok(HotPath::new("machinery/field-selector", move || {
        let selector = FieldSelector::parse(&text)?;
        let mut count = 0;
        for object in &objects {
            count += u32::from(selects(None, Some(&selector), &object.record)?);
        }
        ensure!(count > 0, "no pod was selected");
        Ok(count)
    }))
}

/// Parses quantities and prints their sum.
fn quantities() -> Result<HotPath> {
    let texts: Vec<String> = yaml(QUANTITIES)?;
    Ok(HotPath::new("machinery/quantities", move || {
        let mut sum = Quantity::ZERO;
        for text in &texts {
            sum += Quantity::parse(text)?;
        }
        Ok(sum.to_string())
    }))
}

/// Parses JSONPath expressions and evaluates them on the Deployment.
fn json_paths() -> Result<HotPath> {
    let (texts, object): (Vec<String>, Value) = (yaml(JSON_PATHS)?, yaml(DEPLOYMENT)?);
    Ok(HotPath::new("machinery/json-paths", move || {
        let mut count = 0;
        for text in &texts {
            let found = JsonPath::parse(text)?.find(&object).len();
            ensure!(found > 0, "{text} selects nothing");
            count += found;
        }
        Ok(count)
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Roles {
    shared: Role,
    named: Role,
}

/// The roles and bindings of a member, and a user who may list some pods there.
fn member_permissions() -> Result<(Rbac, UserInfo)> {
    let roles: Roles = yaml(ROLES)?;
    let mut rbac = Rbac::default();
    rbac.put_role("", "shared", roles.shared);
    rbac.put_role("", "named", roles.named);
    let namespaces = SHARED_ROLE_NAMESPACES
        .into_iter()
        .map(|namespace| (namespace, "shared"))
        .chain([(NAMED_PODS_NAMESPACE, "named")]);
    for (namespace, role) in namespaces {
        let subjects = json!([{"kind": "Group", "name": "store"}, {"kind": "User", "name": "ann"}]);
        let binding = json!({"roleRef": {"kind": "ClusterRole", "name": role}, "subjects": subjects});
        rbac.put_binding(namespace, role, serde_json::from_value::<RoleBinding>(binding)?);
    }
    Ok((rbac, UserInfo::new("ann", ["developers"]).with_implied_groups()))
}

/// Filters the pods of a list by the permissions of a user in the member.
fn rbac_filter() -> Result<HotPath> {
    let (rbac, user) = member_permissions()?;
    let pods: Vec<(String, String)> = pods()?.iter().map(namespace_and_name).collect();
    Ok(HotPath::new("machinery/rbac-filter", move || {
        let readable_objects = ReadableObjects::from_grants(&rbac.grants(&user), ReadKind::Listing, "", "pods");
        let count = pods.iter().filter(|(namespace, name)| readable_objects.allows(namespace, name)).count();
        ensure!(count > 0 && count < pods.len(), "{count} of {PODS} pods are visible");
        Ok(count)
    }))
}

fn namespace_and_name(object: &Value) -> (String, String) {
    (unstructured::namespace(object).to_owned(), unstructured::name(object).to_owned())
}

/// Authorizes a request that the last but one rule of a role allows.
fn rbac_authorization() -> Result<HotPath> {
    let (rbac, user) = member_permissions()?;
    let action = Action::Resource {
        verb: "list".to_owned(),
        group: String::new(),
        resource: "pods".to_owned(),
        subresource: String::new(),
        namespace: SHARED_ROLE_NAMESPACES[0].to_owned(),
        name: String::new(),
    };
    Ok(HotPath::new("machinery/rbac-authorization", move || {
        let decision = rbac.authorize(&user, &action);
        ensure!(matches!(decision, Decision::Allowed { .. }), "the request is denied");
        Ok(decision)
    }))
}

/// Prints the row of an object from its JSON.
fn table_row(name: &'static str, group: &'static str, kind: &'static str, object: &Value) -> Result<HotPath> {
    let body = serde_json::to_vec(object)?;
    Ok(HotPath::new(name, move || {
        let printed = printers::print(group, kind, body.as_slice());
        let cells: Vec<Value> = printed.cells.iter().map(|cell| cell.render(NOW)).collect();
        ensure!(!cells.is_empty(), "the row has no cells");
        Ok((printed, cells))
    }))
}

/// Parses paths and queries of requests.
fn requests() -> Result<HotPath> {
    let urls: Vec<String> = yaml(REQUESTS)?;
    Ok(HotPath::new("machinery/requests", move || {
        let parse = |url: &String| {
            let (path, query) = url.split_once('?').map_or((url.as_str(), None), |(path, query)| (path, Some(query)));
            RequestInfo::parse(&Method::GET, path, &Query::parse(query))
        };
        Ok(urls.iter().map(parse).collect::<Vec<RequestInfo>>())
    }))
}
