//! Limits on the writes of members' agents that RBAC cannot express: RBAC cannot limit `create` to a name or to a type
//! of Secret. kube-apiserver's NodeRestriction does the same for nodes.
//!
//! An agent is identified by the certificate that `agentcsrapproving` approves. Bearers of bootstrap tokens are treated
//! as agents, because they can obtain such a certificate.

use crowsnest_api::user::UserInfo;
use serde_json::Value;

const GROUP: &str = "system:karmada:agents";
const NAME_PREFIX: &str = "system:karmada:agent:";
const BOOTSTRAPPERS: &str = "system:bootstrappers";

/// Match condition of the webhook: selects the requests that [`check_secret`] evaluates.
pub const MATCH_CONDITION: &str = "request.userInfo.username.startsWith('system:karmada:agent:') || \
    (has(request.userInfo.groups) && request.userInfo.groups.exists(group, group == 'system:karmada:agents' || \
    group.startsWith('system:bootstrappers')))";

/// The cluster of an agent, empty for an agent without a cluster; `None` for all other users.
fn cluster_of_agent(user: &UserInfo) -> Option<&str> {
    let own = user.name.strip_prefix(NAME_PREFIX);
    let in_group = user.groups.iter().any(|group| group == GROUP || group.starts_with(BOOTSTRAPPERS));
    own.or(in_group.then_some(""))
}

/// Refuses agents that write a cluster other than their own. Other users are subject to RBAC only.
pub fn check_cluster(user: &UserInfo, cluster: &str) -> Result<(), String> {
    match cluster_of_agent(user) {
        Some(own) if own.is_empty() || own != cluster => {
            Err(format!("agent {:?} may write its own cluster only, not {cluster:?}", user.name))
        }
        _ => Ok(()),
    }
}

/// Refuses agents that write Secrets other than the two that report their cluster's tokens. A Secret of type
/// `kubernetes.io/service-account-token` would be filled with a token of the account that it names.
pub fn check_secret(user: &UserInfo, secret: &Value) -> Result<(), String> {
    let Some(own) = cluster_of_agent(user) else { return Ok(()) };
    let text = |pointer: &str| secret.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (name, kind) = (text("/metadata/name"), text("/type"));
    let reported = !own.is_empty() && (name == own || name.strip_suffix("-impersonator") == Some(own));
    if !reported {
        return Err(format!("agent {:?} may write the secrets of its own cluster only, not {name:?}", user.name));
    }
    match kind {
        "" | "Opaque" => Ok(()),
        kind => Err(format!("agent {:?} may write secrets of type \"Opaque\" only, not {kind:?}", user.name)),
    }
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
    #[case::its_own(agent(), "m1", true)]
    #[case::anothers(agent(), "m2", false)]
    #[case::one_to_be_named(agent(), "", false)]
    #[case::by_name_alone(UserInfo::new("system:karmada:agent:m1", ["x"]), "m2", false)]
    #[case::by_group_alone(UserInfo::new("eve", [GROUP]), "eve", false)]
    #[case::without_a_cluster(UserInfo::new("system:karmada:agent:", [GROUP]), "", false)]
    #[case::to_become_one(UserInfo::new("system:bootstrap:abcdef", ["system:bootstrappers:karmada:default-cluster-token"]), "m1", false)]
    #[case::somebody_else(UserInfo::new("alice", ["dev"]), "m1", true)]
    #[case::account_of_an_agent(UserInfo::new("system:serviceaccount:karmada-cluster:agent-m1", ["x"]), "m1", true)]
    fn agents_write_their_own_cluster(#[case] user: UserInfo, #[case] cluster: &str, #[case] expected: bool) {
        assert_eq!(check_cluster(&user, cluster).is_ok(), expected);
    }

    #[rstest]
    #[case::token(agent(), json!({"metadata": {"name": "m1"}, "type": "Opaque"}), None)]
    #[case::impersonator(agent(), json!({"metadata": {"name": "m1-impersonator"}}), None)]
    #[case::anothers(agent(), json!({"metadata": {"name": "m2"}}), Some("its own cluster only, not \"m2\""))]
    #[case::longer(agent(), json!({"metadata": {"name": "m1-impersonator-impersonator"}}), Some("its own cluster only"))]
    #[case::unnamed(agent(), json!({"metadata": {"generateName": "m1"}}), Some("its own cluster only"))]
    #[case::token_of_an_account(agent(),
        json!({"metadata": {"name": "m1", "annotations": {"kubernetes.io/service-account.name": "agent-m2"}},
            "type": "kubernetes.io/service-account-token"}),
        Some("of type \"Opaque\" only, not \"kubernetes.io/service-account-token\""))]
    #[case::bootstrap_token(agent(), json!({"metadata": {"name": "m1"}, "type": "bootstrap.kubernetes.io/token"}), Some("Opaque"))]
    #[case::to_become_one(UserInfo::new("system:bootstrap:abcdef", ["system:bootstrappers"]), json!({"metadata": {"name": "m1"}}),
        Some("its own cluster only"))]
    #[case::somebody_else(UserInfo::new("alice", ["dev"]), json!({"metadata": {"name": "m2"}, "type": "any"}), None)]
    fn agents_report_tokens_and_nothing_else(
        #[case] user: UserInfo,
        #[case] secret: Value,
        #[case] expected: Option<&str>,
    ) {
        let found = check_secret(&user, &secret).err();
        assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
        assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()));
    }
}
