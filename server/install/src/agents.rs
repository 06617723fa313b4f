//! What members' agents are allowed before and while they have a certificate, by Karmada's names: with a bootstrap token of
//! Karmada's group to ask for one, with a certificate to ask for the next. Who may ask for which is granted as rights to create
//! subresources that do not exist; `agentcsrapproving` asks for them.
//!
//! Strangers may read what the control plane is and whose certificate it has (`kube-public/cluster-info`); what signs it tells
//! bearers of a token that it is theirs.
//!
//! Rights on the control plane's objects are not given here: Karmada grants bearers of these tokens everything, which is too much.

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crowsnest_api::constants::label;
use crowsnest_plan::overriding::yaml;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use super::MANAGER;

/// Bearers of the tokens that `karmadactl token create` makes.
const BOOTSTRAPPERS: &str = "system:bootstrappers:karmada:default-cluster-token";
const AGENTS: &str = crowsnest_api::certificate::AGENT_ORGANIZATION;
const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) fn manifests() -> Vec<Value> {
    let approver = "system:karmada:certificatesigningrequest:autoapprover";
    let own_approver = "system:karmada:certificatesigningrequest:selfautoapprover";
    vec![
        role(approver, "clusteragent"),
        binding("system:karmada:agent-autoapprove-bootstrap", approver, BOOTSTRAPPERS),
        role(own_approver, "selfclusteragent"),
        binding("system:karmada:agent-autoapprove-certificate-rotation", own_approver, AGENTS),
        binding("system:karmada:agent-bootstrap", "system:node-bootstrapper", BOOTSTRAPPERS),
    ]
}

/// Where the control plane is and by which authority it is known, for everybody.
pub fn cluster_info(server: &str, ca: &str) -> [Value; 3] {
    let cluster = json!({"certificate-authority-data": STANDARD.encode(ca), "server": server});
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "", "contexts": null, "users": null,
        "clusters": [{"name": "", "cluster": cluster}],
    });
    let name = "system:karmada:bootstrap-signer-clusterinfo";
    let metadata = json!({"name": name, "namespace": "kube-public", "labels": begins_with()});
    let rule =
        json!({"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-info"], "verbs": ["get"]});
    [
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cluster-info", "namespace": "kube-public"},
            "data": {"kubeconfig": yaml::written(&kubeconfig)}}),
        json!({"apiVersion": format!("{RBAC}/v1"), "kind": "Role", "metadata": metadata, "rules": [rule]}),
        json!({"apiVersion": format!("{RBAC}/v1"), "kind": "RoleBinding", "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "system:anonymous"}]}),
    ]
}

/// Address and authority that a ConfigMap tells, where it was us who wrote them there.
pub(super) fn told(map: &ConfigMap) -> anyhow::Result<Option<(String, String)>> {
    let mut managers = map.metadata.managed_fields.iter().flatten().filter_map(|fields| fields.manager.as_deref());
    let text =
        map.data.as_ref().and_then(|data| data.get("kubeconfig")).filter(|_| managers.any(|name| name == MANAGER));
    let Some(text) = text else { return Ok(None) };
    let what = "kubeconfig of ConfigMap kube-public/cluster-info";
    let cluster = Kubeconfig::from_yaml(text).context(what)?.clusters.into_iter().find_map(|named| named.cluster);
    let Some((server, ca)) = cluster.and_then(|cluster| cluster.server.zip(cluster.certificate_authority_data)) else {
        return Ok(None);
    };
    let ca = String::from_utf8(STANDARD.decode(ca).context(what)?).context(what)?;
    Ok(Some((server, ca)))
}

/// What is there from the beginning.
fn begins_with() -> Value {
    json!({label::BOOTSTRAPPING: label::BOOTSTRAPPING_RBAC_DEFAULTS})
}

fn role(name: &str, subresource: &str) -> Value {
    let rule = json!({"apiGroups": ["certificates.k8s.io"], "verbs": ["create"],
        "resources": [format!("certificatesigningrequests/{subresource}")]});
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRole", "rules": [rule],
        "metadata": {"name": name, "labels": begins_with()}})
}

fn binding(name: &str, role: &str, group: &str) -> Value {
    json!({"apiVersion": format!("{RBAC}/v1"), "kind": "ClusterRoleBinding",
        "metadata": {"name": name, "labels": begins_with()},
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
    fn what_we_told_is_told_again(#[case] manager: &str, #[case] again: bool) {
        let [mut map, ..] = cluster_info("https://cp:6443", "a certificate\n");
        map["metadata"]["managedFields"] = json!([{"manager": manager, "operation": "Apply"}]);
        let expected = again.then(|| ("https://cp:6443".to_owned(), "a certificate\n".to_owned()));
        assert_eq!(told(&serde_json::from_value(map).unwrap()).unwrap(), expected);
    }
}
