//! Limits on writes of members' agents that RBAC cannot express, since it cannot limit `create` to a name or to a
//! type of Secret. kube-apiserver's NodeRestriction does the same for nodes.
//!
//! An agent is identified by the certificate that `agentcsrapproving` approves. Users with a bootstrap token are
//! treated as agents, because they can obtain such a certificate.

use crowsnest_api::cluster::{Cluster, ClusterSyncMode};
use crowsnest_apimachinery::user::UserInfo;
use serde_json::{Value, json};

use super::destination::PriorObject;

/// Field manager with which Crowsnest's agent reports tokens.
pub const FIELD_MANAGER: &str = crowsnest_api::constants::AGENT_FIELD_MANAGER;
/// Field managers of Crowsnest's and Karmada's agents.
const FIELD_MANAGERS: [&str; 2] = [FIELD_MANAGER, "karmada-agent"];
/// Key of a Secret's data that contains the token.
const TOKEN: &str = "f:token";

const GROUP: &str = "system:karmada:agents";
const NAME_PREFIX: &str = "system:karmada:agent:";
const BOOTSTRAPPERS: &str = "system:bootstrappers";

/// Path below the webhooks at which Secrets are reviewed.
pub const PATH: &str = "/agents/secrets";
/// Name of the webhook configuration.
const CONFIGURATION: &str = "agents.crowsnest.io";

/// Match condition of the webhook: selects the requests that [`check_secret`] evaluates.
const MATCH_CONDITION: &str = "request.userInfo.username.startsWith('system:karmada:agent:') || \
    (has(request.userInfo.groups) && request.userInfo.groups.exists(group, group == 'system:karmada:agents' || \
    group.startsWith('system:bootstrappers')))";

/// Webhook configuration for the writes of agents. `base_url` has no trailing slash; `ca_bundle` is PEM in base64.
///
/// API servers before 1.28 have no match conditions and send every Secret for review; the result is the same.
pub fn webhook_configuration(ca_bundle: &str, base_url: &str) -> Value {
    let hook = json!({
        "name": format!("secrets.{CONFIGURATION}"),
        "clientConfig": {"url": format!("{base_url}{PATH}"), "caBundle": ca_bundle},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"],
                   "scope": "Namespaced"}],
        "matchConditions": [{"name": "agents", "expression": MATCH_CONDITION}],
        "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 5,
    });
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": CONFIGURATION},
           "webhooks": [hook]})
}

/// The cluster of an agent, empty for an agent without a cluster; `None` for all other users.
fn cluster_of_agent(user: &UserInfo) -> Option<&str> {
    let cluster = user.name.strip_prefix(NAME_PREFIX);
    let is_group_member = user.groups.iter().any(|group| group == GROUP || group.starts_with(BOOTSTRAPPERS));
    cluster.or(is_group_member.then_some(""))
}

/// Rejects writes of agents to Clusters other than their own. Other users are subject to RBAC only.
pub fn check_cluster(user: &UserInfo, cluster: &str) -> Result<(), String> {
    match cluster_of_agent(user) {
        Some(agent_cluster) if agent_cluster.is_empty() || agent_cluster != cluster => {
            Err(format!("agent {:?} may write its own cluster only, not {cluster:?}", user.name))
        }
        _ => Ok(()),
    }
}

/// Rejects writes of an agent to a Cluster of its name that no agent registered. The agent can have obtained its
/// certificate before an administrator joined a cluster of that name, or after its own cluster was removed. Agents
/// register clusters only in pull mode, and cannot claim the ID of another cluster later.
pub fn check_registration(user: &UserInfo, before: PriorObject<'_>, after: &Cluster) -> Result<(), String> {
    if cluster_of_agent(user).is_none() {
        return Ok(());
    }
    let refuse = |reason: &str| Err(format!("agent {:?} {reason}", user.name));
    let is_pull_mode = |cluster: &Cluster| cluster.spec.sync_mode == ClusterSyncMode::Pull;
    match before {
        _ if !is_pull_mode(after) => refuse("may register clusters in pull mode only"),
        PriorObject::Absent => Ok(()),
        PriorObject::Unseen => refuse("must not apply a cluster that does not exist; create it instead"),
        PriorObject::Stored(before) if !is_pull_mode(before) => {
            refuse("must not change a cluster that no agent registered")
        }
        PriorObject::Stored(before) if !before.spec.id.is_empty() && before.spec.id != after.spec.id => {
            refuse("must not change spec.id")
        }
        PriorObject::Stored(_) => Ok(()),
    }
}

/// Rejects writes of agents to Secrets other than the two that report their cluster's tokens. A Secret of type
/// `kubernetes.io/service-account-token` would be filled with a token of the account that it names.
///
/// `before` is the stored Secret, `null` on creation; `cluster` is the stored Cluster of the agent's name. The response
/// to a patch contains all values of the Secret, so an agent must only update Secrets that an agent reported: those
/// whose token an agent wrote last, or that are owned by its own registered Cluster.
pub fn check_secret(user: &UserInfo, secret: &Value, before: &Value, cluster: Option<&Cluster>) -> Result<(), String> {
    let Some(agent_cluster) = cluster_of_agent(user) else { return Ok(()) };
    let text = |pointer: &str| secret.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (name, kind) = (text("/metadata/name"), text("/type"));
    let is_token_secret = !agent_cluster.is_empty()
        && (name == agent_cluster || name.strip_suffix("-impersonator") == Some(agent_cluster));
    if !is_token_secret {
        return Err(format!("agent {:?} may write the secrets of its own cluster only, not {name:?}", user.name));
    }
    if !matches!(kind, "" | "Opaque") {
        return Err(format!("agent {:?} may write secrets of type \"Opaque\" only, not {kind:?}", user.name));
    }
    match before.is_null() || is_token_of_agent(before) || is_owned_by(before, cluster) {
        true => Ok(()),
        false => Err(format!("agent {:?} must not write secret {name:?}, which no agent created", user.name)),
    }
}

/// The cluster of an agent, whose Cluster [`check_secret`] needs. `None` for other users.
pub fn agent_cluster(user: &UserInfo) -> Option<&str> {
    cluster_of_agent(user).filter(|cluster| !cluster.is_empty())
}

/// True if an agent was the last to write the token, by the Secret's managed fields.
fn is_token_of_agent(secret: &Value) -> bool {
    let managers = secret.pointer("/metadata/managedFields").and_then(Value::as_array);
    let mut owners = managers.into_iter().flatten().filter(|entry| !entry["fieldsV1"]["f:data"][TOKEN].is_null());
    let is_agent = |entry: &Value| entry["manager"].as_str().is_some_and(|name| FIELD_MANAGERS.contains(&name));
    // A manager that applied the same value is an owner, too.
    owners.next().is_some_and(is_agent) && owners.all(is_agent)
}

/// True if the Secret is owned by this Cluster and an agent registered the Cluster. Earlier versions of the agent did
/// not name themselves in managed fields.
fn is_owned_by(secret: &Value, cluster: Option<&Cluster>) -> bool {
    let Some(cluster) = cluster.filter(|cluster| cluster.spec.sync_mode == ClusterSyncMode::Pull) else { return false };
    let uid = cluster.metadata.uid.as_deref().filter(|uid| !uid.is_empty());
    let owners = secret.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let mut owners = owners.into_iter().flatten();
    owners.any(|owner| owner["kind"] == "Cluster" && uid.is_some() && owner["uid"].as_str() == uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    fn agent() -> UserInfo {
        UserInfo::new("system:karmada:agent:m1", [GROUP])
    }

    #[rstest]
    #[case::own_cluster(agent(), "m1", true)]
    #[case::other_cluster(agent(), "m2", false)]
    #[case::generated_name(agent(), "", false)]
    #[case::by_name_alone(UserInfo::new("system:karmada:agent:m1", ["x"]), "m2", false)]
    #[case::by_group_alone(UserInfo::new("eve", [GROUP]), "eve", false)]
    #[case::without_a_cluster(UserInfo::new("system:karmada:agent:", [GROUP]), "", false)]
    #[case::bootstrap_user(UserInfo::new("system:bootstrap:abcdef", ["system:bootstrappers:karmada:default-cluster-token"]), "m1", false)]
    #[case::other_user(UserInfo::new("alice", ["dev"]), "m1", true)]
    #[case::account_of_an_agent(UserInfo::new("system:serviceaccount:karmada-cluster:agent-m1", ["x"]), "m1", true)]
    fn agents_write_their_own_cluster(#[case] user: UserInfo, #[case] cluster: &str, #[case] expected: bool) {
        assert_eq!(check_cluster(&user, cluster).is_ok(), expected);
    }

    #[rstest]
    #[case::token(agent(), json!({"metadata": {"name": "m1"}, "type": "Opaque"}), None)]
    #[case::impersonator(agent(), json!({"metadata": {"name": "m1-impersonator"}}), None)]
    #[case::other_cluster(agent(), json!({"metadata": {"name": "m2"}}), Some("its own cluster only, not \"m2\""))]
    #[case::repeated_suffix(agent(), json!({"metadata": {"name": "m1-impersonator-impersonator"}}), Some("its own cluster only"))]
    #[case::unnamed(agent(), json!({"metadata": {"generateName": "m1"}}), Some("its own cluster only"))]
    #[case::token_of_an_account(agent(),
        json!({"metadata": {"name": "m1", "annotations": {"kubernetes.io/service-account.name": "agent-m2"}},
            "type": "kubernetes.io/service-account-token"}),
        Some("of type \"Opaque\" only, not \"kubernetes.io/service-account-token\""))]
    #[case::bootstrap_token(agent(), json!({"metadata": {"name": "m1"}, "type": "bootstrap.kubernetes.io/token"}), Some("Opaque"))]
    #[case::bootstrap_user(UserInfo::new("system:bootstrap:abcdef", ["system:bootstrappers"]), json!({"metadata": {"name": "m1"}}),
        Some("its own cluster only"))]
    #[case::other_user(UserInfo::new("alice", ["dev"]), json!({"metadata": {"name": "m2"}, "type": "any"}), None)]
    fn agents_write_only_reported_tokens(
        #[case] user: UserInfo,
        #[case] secret: Value,
        #[case] expected: Option<&str>,
    ) {
        let found = check_secret(&user, &secret, &Value::Null, None).err();
        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()));
    }

    fn registered(mode: &str, id: &str) -> Cluster {
        serde_json::from_value(json!({"apiVersion": "cluster.karmada.io/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "m1", "uid": "u1"}, "spec": {"syncMode": mode, "id": id}}))
        .expect("a Cluster")
    }

    fn secret_with_managers(managers: &[&str]) -> Value {
        let entry = |manager: &&str| json!({"manager": manager, "fieldsV1": {"f:data": {".": {}, "f:token": {}}}});
        json!({"metadata": {"name": "m1", "managedFields": managers.iter().map(entry).collect::<Vec<_>>()}})
    }

    /// The response to a patch would contain a Secret of another user.
    #[rstest]
    #[case::new_secret(Value::Null, None, true)]
    #[case::reported(secret_with_managers(&["crowsnest-agent"]), None, true)]
    #[case::reported_by_karmada_agent(secret_with_managers(&["karmada-agent"]), None, true)]
    #[case::written_by_join(secret_with_managers(&["crowsnest"]), None, false)]
    #[case::written_by_agent_and_kubectl(secret_with_managers(&["crowsnest-agent", "kubectl"]), None, false)]
    #[case::without_managed_fields(json!({"metadata": {"name": "m1"}}), Some("Pull"), false)]
    #[case::another_field(json!({"metadata": {"managedFields": [
        {"manager": "crowsnest-agent", "fieldsV1": {"f:data": {"f:other": {}}}}]}}), None, false)]
    #[case::owned_by_registered_cluster(json!({"metadata": {"ownerReferences": [{"kind": "Cluster", "uid": "u1"}]}}), Some("Pull"), true)]
    #[case::owned_by_joined_cluster(json!({"metadata": {"ownerReferences": [{"kind": "Cluster", "uid": "u1"}]}}), Some("Push"), false)]
    #[case::owned_by_deleted_cluster(json!({"metadata": {"ownerReferences": [{"kind": "Cluster", "uid": "u0"}]}}), Some("Pull"), false)]
    fn agents_update_secrets_of_agents_only(#[case] before: Value, #[case] mode: Option<&str>, #[case] expected: bool) {
        let secret = json!({"metadata": {"name": "m1"}, "type": "Opaque"});
        let cluster = mode.map(|mode| registered(mode, "id-1"));
        assert_eq!(check_secret(&agent(), &secret, &before, cluster.as_ref()).is_ok(), expected);
    }

    #[rstest]
    #[case::new("", "Pull", "id-1", true)]
    #[case::new_in_push_mode("", "Push", "id-1", false)]
    #[case::unchanged_in_pull_mode("Pull", "Pull", "id-1", true)]
    #[case::joined_cluster("Push", "Push", "id-1", false)]
    #[case::push_to_pull("Push", "Pull", "id-1", false)]
    #[case::pull_to_push("Pull", "Push", "id-1", false)]
    #[case::changed_id("Pull", "Pull", "id-2", false)]
    fn agents_write_clusters_of_agents_only(
        #[case] before: &str,
        #[case] after: &str,
        #[case] id: &str,
        #[case] expected: bool,
    ) {
        let (stored, after) = (registered(before, "id-1"), registered(after, id));
        let before = if before.is_empty() { PriorObject::Absent } else { PriorObject::Stored(&stored) };
        assert_eq!(check_registration(&agent(), before, &after).is_ok(), expected);
        assert!(check_registration(&UserInfo::new("alice", ["dev"]), before, &after).is_ok());
    }

    #[test]
    fn agents_cannot_apply_unseen_clusters() {
        assert!(check_registration(&agent(), PriorObject::Unseen, &registered("Pull", "")).is_err());
    }
}
