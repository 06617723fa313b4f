//! ClusterRoles for users of the control plane.

use crowsnest_api::constants::label;
use serde_json::{Value, json};

/// `karmada-view` and `karmada-edit`, aggregated into the default roles view and edit.
pub(crate) fn aggregated_roles() -> [Value; 2] {
    let kinds: [(&str, &[&str]); 5] = [
        ("autoscaling.karmada.io", &["cronfederatedhpas", "federatedhpas"]),
        ("multicluster.x-k8s.io", &["serviceexports", "serviceimports"]),
        ("networking.karmada.io", &["multiclusteringresses", "multiclusterservices"]),
        // Quotas are managed by administrators only: users of a namespace must not raise its quota.
        ("policy.karmada.io", &["overridepolicies", "propagationpolicies"]),
        ("work.karmada.io", &["resourcebindings", "works"]),
    ];
    let role = |name: &str, into: &str, verbs: &[&str]| {
        let rules: Vec<Value> = kinds
            .iter()
            .map(|(group, resources)| {
                let all: Vec<String> =
                    resources.iter().flat_map(|r| [(*r).to_owned(), format!("{r}/status")]).collect();
                json!({"apiGroups": [group], "resources": all, "verbs": verbs})
            })
            .collect();
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": rules,
        "metadata": {"name": name, "labels": {
            label::BOOTSTRAPPING: label::BOOTSTRAPPING_RBAC_DEFAULTS,
            format!("rbac.authorization.k8s.io/aggregate-to-{into}"): "true",
        }}})
    };
    let write = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    [role("karmada-view", "view", &["get", "list", "watch"]), role("karmada-edit", "edit", &write)]
}

/// ClusterRoles for GraphSinks. Reading is aggregated into the default role view. Writing is not part of edit or admin:
/// a GraphSink sends the Secrets of its namespace, and what its ServiceAccounts may list, to an address of its author's
/// choice. Administrators bind `crowsnest:graph-sinks-admin` explicitly.
pub(crate) fn graph_sink_roles() -> [Value; 2] {
    let role = |name: &str, resources: &[&str], verbs: &[&str]| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
               "rules": [{"apiGroups": [crowsnest_api::sink::GROUP], "resources": resources, "verbs": verbs}]})
    };
    let mut view = role("crowsnest:graph-sinks-view", &["graphsinks", "graphsinks/status"], &["get", "list", "watch"]);
    view["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
    let write = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
    [view, role("crowsnest:graph-sinks-admin", &["graphsinks"], &write)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graph_sinks_are_written_only_by_an_explicitly_bound_role() {
        let verbs_in = |role: &Value| -> Vec<String> {
            let rules = role["rules"].as_array().into_iter().flatten();
            let rules = rules.filter(|rule| rule["apiGroups"] == json!(["sink.crowsnest.io"]));
            rules.flat_map(|rule| serde_json::from_value::<Vec<String>>(rule["verbs"].clone()).unwrap()).collect()
        };
        let manifests = crate::base_manifests();
        let roles = manifests.iter().filter(|manifest| !verbs_in(manifest).is_empty());
        let (aggregated, explicit): (Vec<&Value>, Vec<&Value>) =
            roles.partition(|role| role["metadata"]["labels"].is_object());
        assert_eq!(aggregated.len(), 1, "{aggregated:?}");
        let labels = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
        assert_eq!(aggregated[0]["metadata"]["labels"], labels);
        assert_eq!(verbs_in(aggregated[0]), ["get", "list", "watch"]);
        assert_eq!(explicit.len(), 1, "{explicit:?}");
        let name = &explicit[0]["metadata"]["name"];
        let bindings = manifests.iter().filter(|manifest| manifest["roleRef"]["name"] == *name);
        assert_eq!((name, bindings.count()), (&json!("crowsnest:graph-sinks-admin"), 0));
    }
}
