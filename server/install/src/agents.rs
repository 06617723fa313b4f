//! RBAC of agents for their certificates, named as in Karmada: holders of a bootstrap token of Karmada's group may
//! request a certificate, and holders of a certificate may request its renewal. The permissions are verbs on
//! subresources that do not exist; the controller `agentcsrapproving` checks them.
//!
//! Anonymous users may read the address and CA of the control plane (`kube-public/cluster-info`); the bootstrap signer
//! signs it with the tokens, so that their holders can verify it.
//!
//! Permissions on the control plane's objects are not granted here. Karmada grants holders of these tokens all
//! permissions, which is more than an agent needs.

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_api::constants::label;
use crowsnest_apimachinery::yaml;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use super::MANAGER;

/// Group of the tokens that `karmadactl token create` creates.
const BOOTSTRAPPERS: &str = "system:bootstrappers:karmada:default-cluster-token";
const AGENTS: &str = crowsnest_api::certificate::AGENT_ORGANIZATION;
const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) fn manifests() -> Vec<Value> {
    let approver = "system:karmada:certificatesigningrequest:autoapprover";
    let renewal_approver = "system:karmada:certificatesigningrequest:selfautoapprover";
    vec![
        role(approver, "clusteragent"),
        binding("system:karmada:agent-autoapprove-bootstrap", approver, BOOTSTRAPPERS),
        role(renewal_approver, "selfclusteragent"),
        binding("system:karmada:agent-autoapprove-certificate-rotation", renewal_approver, AGENTS),
        binding("system:karmada:agent-bootstrap", "system:node-bootstrapper", BOOTSTRAPPERS),
    ]
}

/// The ConfigMap `cluster-info` with the address and CA of the control plane, readable without authentication.
pub fn cluster_info(server: &str, ca: &str) -> [Value; 3] {
    let cluster = json!({"certificate-authority-data": STANDARD.encode(ca), "server": server});
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "", "contexts": null, "users": null,
        "clusters": [{"name": "", "cluster": cluster}],
    });
    let name = "system:karmada:bootstrap-signer-clusterinfo";
    let metadata = json!({"name": name, "namespace": "kube-public", "labels": bootstrap_labels()});
    let rule =
        json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"]});
    [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info", "namespace": "kube-public"},
            "data": {"kubeconfig": yaml::to_yaml(&kubeconfig)}}),
        json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": metadata, "rules": [rule]}),
        json!({"apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "system:anonymous"}]}),
    ]
}

/// Address and CA of a `cluster-info` ConfigMap that Crowsnest wrote; `None` if another manager wrote it.
pub(super) fn parse_cluster_info(map: &ConfigMap) -> anyhow::Result<Option<(String, String)>> {
    let mut managers = map.metadata.managed_fields.iter().flatten().filter_map(|fields| fields.manager.as_deref());
    let text =
        map.data.as_ref().and_then(|data| data.get("kubeconfig")).filter(|_| managers.any(|name| name == MANAGER));
    let Some(text) = text else { return Ok(None) };
    let context = "kubeconfig of ConfigMap kube-public/cluster-info";
    let cluster = Kubeconfig::from_yaml(text).context(context)?.clusters.into_iter().find_map(|named| named.cluster);
    let Some((server, ca)) = cluster.and_then(|cluster| cluster.server.zip(cluster.certificate_authority_data)) else {
        return Ok(None);
    };
    let ca = String::from_utf8(STANDARD.decode(ca).context(context)?).context(context)?;
    Ok(Some((server, ca)))
}

/// Labels of bootstrap objects.
fn bootstrap_labels() -> Value {
    json!({label::BOOTSTRAPPING: label::BOOTSTRAPPING_RBAC_DEFAULTS})
}

fn role(name: &str, subresource: &str) -> Value {
    let rule = json!({"apiGroups": ["certificates.k8s.io"], "verbs": ["create"],
        "resources": [format!("certificatesigningrequests/{subresource}")]});
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "rules": [rule],
        "metadata": {"name": name, "labels": bootstrap_labels()}})
}

fn binding(name: &str, role: &str, group: &str) -> Value {
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": bootstrap_labels()},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "Group", "name": group}]})
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("crowsnest", true)]
    #[case::of_kubeadm("kubeadm", false)]
    fn only_cluster_info_of_crowsnest_is_read(#[case] manager: &str, #[case] is_read: bool) {
        let [mut map, ..] = cluster_info("https://cp:6443", "a certificate\n");
        map["metadata"]["managedFields"] = json!([{"manager": manager, "operation": "Apply"}]);
        let expected = is_read.then(|| ("https://cp:6443".to_owned(), "a certificate\n".to_owned()));
        assert_eq!(parse_cluster_info(&serde_json::from_value(map).unwrap()).unwrap(), expected);
    }
}
