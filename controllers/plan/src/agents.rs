//! RBAC of a pull-mode agent in the control plane (docs/TUNNEL.md): register its own Cluster, report its own tokens,
//! open its tunnel and request its next certificate. The agent CSR approving controller grants it to the user
//! `system:karmada:agent:<cluster>`.

use crowsnest_api::names::NAMESPACE_KARMADA_CLUSTER as KARMADA_CLUSTER;
use crowsnest_apimachinery::names::ClusterName;
use serde_json::{Value, json};

use super::certificates::agent_name;

const RBAC: &str = "rbac.authorization.k8s.io";
/// Annotation of an agent's ClusterRole: UID of the CertificateSigningRequest for which it was created.
const GRANTED_FOR: &str = "fleet.crowsnest.io/granted-for";

/// Name of an agent's roles and role bindings, which are deleted when its cluster is unregistered.
pub fn role_name(cluster: &ClusterName) -> String {
    format!("crowsnest:agent:{cluster}")
}

/// True if an agent's ClusterRole was created for this CertificateSigningRequest.
pub fn is_granted_for(role: &Value, request_uid: &str) -> bool {
    !request_uid.is_empty() && role["metadata"]["annotations"][GRANTED_FOR] == request_uid
}

/// Records in an agent's ClusterRole the UID of the CertificateSigningRequest for which it is created.
pub fn set_granted_for(role: &mut Value, request_uid: &str) {
    role["metadata"]["annotations"] = json!({GRANTED_FOR: request_uid});
}

/// An agent's RBAC objects: ClusterRole, ClusterRoleBinding, and the Role and RoleBinding in the namespace of the
/// clusters' tokens, in this order.
pub fn rbac_objects(cluster: &ClusterName) -> [Value; 4] {
    let (name, cluster_name) = (role_name(cluster), cluster.as_str());
    let rule = |group: &str, resource: &str, names: &[&str], verbs: &[&str]| {
        let mut rule = json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
        if !names.is_empty() {
            rule["resourceNames"] = json!(names);
        }
        rule
    };
    let impersonator = format!("{cluster_name}-impersonator");
    let clusters = [
        rule("cluster.karmada.io", "clusters", &[], &["create"]),
        rule("cluster.karmada.io", "clusters", &[cluster_name], &["get", "patch"]),
        rule("cluster.karmada.io", "clusters/attach", &[cluster_name], &["create"]),
        rule("", "namespaces", &[KARMADA_CLUSTER], &["get"]),
        rule("certificates.k8s.io", "certificatesigningrequests", &[], &["create", "get"]),
    ];
    let secrets =
        [rule("", "secrets", &[], &["create"]), rule("", "secrets", &[cluster_name, &impersonator], &["patch"])];
    let subject = json!({"apiGroup": RBAC, "kind": "User", "name": agent_name(cluster)});
    let object = |kind: &str, fields: Value| {
        let mut object = json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": {"name": name}});
        if !kind.starts_with("Cluster") {
            object["metadata"]["namespace"] = KARMADA_CLUSTER.into();
        }
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
            object.extend(fields);
        }
        object
    };
    let binding_fields =
        |role: &str| json!({"roleRef": {"apiGroup": RBAC, "kind": role, "name": name}, "subjects": [subject]});
    [
        object("ClusterRole", json!({"rules": clusters})),
        object("ClusterRoleBinding", binding_fields("ClusterRole")),
        object("Role", json!({"rules": secrets})),
        object("RoleBinding", binding_fields("Role")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rbac_objects_match_the_documentation() {
        let document = include_str!("../../../docs/TUNNEL.md");
        let yaml = document.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a YAML block");
        let documented: Vec<Value> = serde_saphyr::from_multiple(yaml).expect("YAML");
        let rules = |objects: &[Value], kind: &str| {
            objects.iter().find(|object| object["kind"] == kind).map(|object| object["rules"].clone())
        };
        let objects = rbac_objects(&ClusterName::parse("m1").expect("a name"));
        for kind in ["ClusterRole", "Role"] {
            assert_eq!(rules(&objects, kind), rules(&documented, kind), "{kind}");
        }
        assert_eq!(objects[3]["subjects"][0]["name"], "system:karmada:agent:m1");
        assert_eq!(objects[3]["metadata"], json!({"name": "crowsnest:agent:m1", "namespace": "karmada-cluster"}));
    }
}
