//! Default roles and bindings (labelled `kubernetes.io/bootstrapping: rbac-defaults`), and how changed ones are
//! reconciled.
//!
//! Their rules are data: `policy/*.yaml` is kube-apiserver's set for the features that are enabled by default.
//! [`bootstrap`] writes them. Has no side effects.
//!
//! [`bootstrap`]: crate::authz::bootstrap

use crowsnest_apimachinery::rbac::PolicyRule;
use crowsnest_apimachinery::status::{ApiError, ApiResult};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::authz::GROUP;

const CLUSTER: &str = include_str!("policy/cluster.yaml");
const CONTROLLERS: &str = include_str!("policy/controllers.yaml");
const NAMESPACED: &str = include_str!("policy/namespaced.yaml");

/// If `false`, a default role or binding is not reconciled.
const AUTOUPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
/// Namespace of the service accounts in default bindings.
const SYSTEM: &str = "kube-system";

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Policy {
    cluster_roles: Vec<RoleEntry>,
    cluster_role_bindings: Vec<BindingEntry>,
    controllers: Vec<RoleEntry>,
    roles: Vec<RoleEntry>,
    role_bindings: Vec<BindingEntry>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct RoleEntry {
    name: String,
    /// Empty for ClusterRoles.
    namespace: String,
    labels: Map<String, Value>,
    /// Label that selects the roles to aggregate.
    aggregates: Option<String>,
    rules: Vec<PolicyRule>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct BindingEntry {
    name: String,
    /// Empty for ClusterRoleBindings.
    namespace: String,
    /// Name of the role, if it differs from the binding's name.
    role: Option<String>,
    groups: Vec<String>,
    users: Vec<String>,
    /// Service accounts in kube-system.
    accounts: Vec<String>,
}

/// All default objects, roles before bindings.
pub fn default_objects() -> ApiResult<Vec<Value>> {
    let read = |text: &str| -> ApiResult<Policy> { serde_saphyr::from_str(text).map_err(ApiError::internal) };
    let (cluster, controllers, namespaced) = (read(CLUSTER)?, read(CONTROLLERS)?, read(NAMESPACED)?);
    let (mut roles, mut bindings) = (cluster.cluster_roles, cluster.cluster_role_bindings);
    for controller in controllers.controllers {
        let name = format!("system:controller:{}", controller.name);
        bindings.push(BindingEntry { name: name.clone(), accounts: vec![controller.name], ..BindingEntry::default() });
        roles.push(RoleEntry { name, ..controller });
    }
    roles.extend(namespaced.roles);
    bindings.extend(namespaced.role_bindings);
    Ok(roles.into_iter().map(role).chain(bindings.into_iter().map(binding)).collect())
}

/// Creates an object with the labels and annotations that all defaults share.
fn object(kind: &str, name: &str, namespace: &str, mut labels: Map<String, Value>) -> Value {
    labels.insert("kubernetes.io/bootstrapping".into(), "rbac-defaults".into());
    let (kind, scope) = match namespace {
        "" => (format!("Cluster{kind}"), json!({})),
        namespace => (kind.to_owned(), json!({"namespace": namespace})),
    };
    let mut object = json!({"apiVersion": format!("{GROUP}/v1"), "kind": kind, "metadata": scope});
    object["metadata"]["name"] = name.into();
    object["metadata"]["labels"] = labels.into();
    object["metadata"]["annotations"] = json!({AUTOUPDATE: "true"});
    object
}

fn role(entry: RoleEntry) -> Value {
    let mut role = object("Role", &entry.name, &entry.namespace, entry.labels);
    role["rules"] = json!(entry.rules);
    if let Some(label) = entry.aggregates {
        role["aggregationRule"] = json!({"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]});
    }
    role
}

fn binding(entry: BindingEntry) -> Value {
    let mut binding = object("RoleBinding", &entry.name, &entry.namespace, Map::new());
    let kind = if entry.namespace.is_empty() { "ClusterRole" } else { "Role" };
    binding["roleRef"] = json!({"apiGroup": GROUP, "kind": kind, "name": entry.role.unwrap_or(entry.name)});
    let subject = |kind: &'static str| move |name: String| json!({"apiGroup": GROUP, "kind": kind, "name": name});
    let accounts = entry.accounts.into_iter();
    let accounts = accounts.map(|name| json!({"kind": "ServiceAccount", "name": name, "namespace": SYSTEM}));
    let users = entry.users.into_iter().map(subject("User"));
    let subjects: Vec<Value> = accounts.chain(users).chain(entry.groups.into_iter().map(subject("Group"))).collect();
    if !subjects.is_empty() {
        binding["subjects"] = subjects.into();
    }
    binding
}

/// Change that an existing default object needs.
#[derive(Debug, Clone, PartialEq)]
pub enum Repair {
    /// No change: the default is complete, or automatic updates are disabled.
    Nothing,
    Update(Value),
    /// The binding has another `roleRef`, which is immutable.
    Recreate,
}

/// Determines the repair of an existing object: missing parts of the default are added, additional rules and subjects
/// are kept.
pub fn plan_repair(existing: &Value, default: &Value) -> Repair {
    if existing["metadata"]["annotations"][AUTOUPDATE] == "false" {
        return Repair::Nothing;
    }
    if existing["roleRef"] != default["roleRef"] {
        return Repair::Recreate;
    }
    let mut repaired = existing.clone();
    for key in ["labels", "annotations"] {
        for (name, value) in default["metadata"][key].as_object().into_iter().flatten() {
            if repaired["metadata"][key][name].is_null() {
                repaired["metadata"][key][name] = value.clone();
            }
        }
    }
    match default["aggregationRule"]["clusterRoleSelectors"].as_array() {
        Some(selectors) => add_missing(&mut repaired["aggregationRule"], "clusterRoleSelectors", selectors),
        None => add_rules(&mut repaired, default),
    }
    add_missing(&mut repaired, "subjects", default["subjects"].as_array().map(Vec::as_slice).unwrap_or_default());
    if repaired == *existing { Repair::Nothing } else { Repair::Update(repaired) }
}

/// Appends the missing elements to a list.
fn add_missing(object: &mut Value, list: &str, required: &[Value]) {
    let mut existing = object[list].as_array().cloned().unwrap_or_default();
    let before = existing.len();
    for item in required {
        if !existing.contains(item) {
            existing.push(item.clone());
        }
    }
    if existing.len() > before {
        object[list] = existing.into();
    }
}

/// Adds the missing rules, with one verb and one resource each.
fn add_rules(role: &mut Value, default: &Value) {
    let read = |role: &Value| Vec::<PolicyRule>::deserialize(&role["rules"]).unwrap_or_default();
    let existing = read(role);
    let subrules = read(default).into_iter().flat_map(|rule| rule.break_down());
    let missing: Vec<PolicyRule> =
        subrules.filter(|subrule| !existing.iter().any(|rule| rule.covers(subrule))).collect();
    if missing.is_empty() {
        return;
    }
    let mut rules = role["rules"].as_array().cloned().unwrap_or_default();
    rules.extend(missing.iter().map(|rule| json!(rule)));
    role["rules"] = rules.into();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn defaults() -> Vec<Value> {
        default_objects().unwrap()
    }

    fn find_default(kind: &str, name: &str) -> Value {
        defaults().into_iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name).unwrap()
    }

    #[test]
    fn default_object_count_matches_kube_apiserver() {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for object in defaults() {
            *counts.entry(object["kind"].as_str().unwrap().to_owned()).or_default() += 1;
            assert_eq!(object["metadata"]["labels"]["kubernetes.io/bootstrapping"], "rbac-defaults");
            assert_eq!(object["metadata"]["annotations"][AUTOUPDATE], "true");
        }
        let counts: Vec<(&str, usize)> = counts.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        assert_eq!(counts, [("ClusterRole", 70), ("ClusterRoleBinding", 51), ("Role", 7), ("RoleBinding", 7)]);
    }

    #[test]
    fn bindings_reference_existing_roles() {
        let all = defaults();
        for binding in all.iter().filter(|object| !object["roleRef"].is_null()) {
            let role = &binding["roleRef"];
            let is_referenced = |object: &&Value| {
                object["kind"] == role["kind"]
                    && object["metadata"]["name"] == role["name"]
                    && object["metadata"]["namespace"] == binding["metadata"]["namespace"]
            };
            assert!(all.iter().any(|object| is_referenced(&object)), "{binding}");
        }
    }

    #[test]
    fn objects_match_kube_apiserver() {
        let metadata = |name: &str, more: Value| {
            let mut metadata = json!({"name": name, "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"},
                                      "annotations": {AUTOUPDATE: "true"}});
            for (key, value) in more.as_object().into_iter().flatten() {
                match key.as_str() {
                    "namespace" => metadata[key] = value.clone(),
                    label => metadata["labels"][label] = value.clone(),
                }
            }
            metadata
        };
        let controller = "system:controller:ttl-after-finished-controller";
        let api = "rbac.authorization.k8s.io/v1";
        let cases = [
            json!({"apiVersion": api, "kind": "ClusterRole", "rules": [],
                   "metadata": metadata("edit", json!({"rbac.authorization.k8s.io/aggregate-to-admin": "true"})),
                   "aggregationRule": {"clusterRoleSelectors": [
                       {"matchLabels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"}}]}}),
            json!({"apiVersion": api, "kind": "ClusterRole", "metadata": metadata(controller, json!({})), "rules": [
                {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["delete", "get", "list", "watch"]},
                {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]}]}),
            json!({"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": metadata(controller, json!({})),
                   "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": controller},
                   "subjects": [{"kind": "ServiceAccount", "name": "ttl-after-finished-controller", "namespace": SYSTEM}]}),
            json!({"apiVersion": api, "kind": "ClusterRoleBinding", "metadata": metadata("system:node", json!({})),
                   "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "system:node"}}),
            json!({"apiVersion": api, "kind": "RoleBinding",
                   "metadata": metadata("system::extension-apiserver-authentication-reader", json!({"namespace": SYSTEM})),
                   "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": "extension-apiserver-authentication-reader"},
                   "subjects": [{"apiGroup": GROUP, "kind": "User", "name": "system:kube-controller-manager"},
                                {"apiGroup": GROUP, "kind": "User", "name": "system:kube-scheduler"}]}),
        ];
        for expected in cases {
            let (kind, name) = (expected["kind"].as_str().unwrap(), expected["metadata"]["name"].as_str().unwrap());
            assert_eq!(find_default(kind, name), expected);
        }
    }

    #[test]
    fn missing_rules_are_restored_and_additions_kept() {
        let role = find_default("ClusterRole", "system:kube-dns");
        let binding = find_default("ClusterRoleBinding", "system:basic-user");
        let edit = find_default("ClusterRole", "edit");
        let with_value = |object: &Value, pointer: &str, value: Value| {
            let mut object = object.clone();
            *object.pointer_mut(pointer).unwrap() = value;
            object
        };
        let rule =
            |verbs: &[&str], resources: &[&str]| json!({"apiGroups": [""], "resources": resources, "verbs": verbs});
        let account = json!({"kind": "ServiceAccount", "name": "a", "namespace": "b"});
        let group = json!({"apiGroup": GROUP, "kind": "Group", "name": "system:authenticated"});
        let no_autoupdate = json!({AUTOUPDATE: "false"});
        let cases = [
            (&role, role.clone(), Repair::Nothing),
            (
                &role,
                with_value(&role, "/rules", json!([rule(&["list"], &["endpoints", "services"])])),
                Repair::Update(with_value(
                    &role,
                    "/rules",
                    json!([
                        rule(&["list"], &["endpoints", "services"]),
                        rule(&["watch"], &["endpoints"]),
                        rule(&["watch"], &["services"]),
                    ]),
                )),
            ),
            // Rules that cover more than the default need no repair.
            (&role, with_value(&role, "/rules", json!([rule(&["*"], &["*"])])), Repair::Nothing),
            // Automatic updates are disabled by annotation.
            (
                &role,
                with_value(&with_value(&role, "/rules", json!([])), "/metadata/annotations", no_autoupdate),
                Repair::Nothing,
            ),
            (&role, with_value(&role, "/metadata/labels", json!({})), Repair::Update(role.clone())),
            (
                &binding,
                with_value(&binding, "/subjects", json!([account])),
                Repair::Update(with_value(&binding, "/subjects", json!([account, group]))),
            ),
            (&binding, with_value(&binding, "/roleRef/name", json!("view")), Repair::Recreate),
            // Rules collected by aggregation are not compared with the default.
            (&edit, with_value(&edit, "/rules", json!([rule(&["get"], &["pods"])])), Repair::Nothing),
        ];
        for (default, existing, expected) in cases {
            assert_eq!(plan_repair(&existing, default), expected, "{existing}");
        }
    }
}
