//! Identities for which the client certificate authority must not issue certificates.

use super::{AGENT_ORGANIZATION, Agent, CertificateSubject};

/// Common name of the API server's certificate for extension API servers. A separate authority issues it.
pub const FRONT_PROXY: &str = "front-proxy-client";

/// Prefix of the names that Kubernetes and its components use for themselves.
const SYSTEM_PREFIX: &str = "system:";
const BOOTSTRAP_USER_PREFIX: &str = "system:bootstrap:";
const BOOTSTRAP_GROUP: &str = "system:bootstrappers";

/// Reason why a certificate request is rejected: its subject has a reserved identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReservedIdentity {
    #[error(
        "the common name {FRONT_PROXY} is reserved for the front proxy, which has a separate certificate authority"
    )]
    FrontProxy,
    #[error("{name:?} is a reserved name; {requester:?} may request no reserved names except those of cluster agents")]
    System { name: String, requester: String },
}

/// Checks that the requester of a client certificate may have one with this subject, independent of the
/// approval of the request.
///
/// Several clusters may join with the same bootstrap token, and agents run in members. Holders of such credentials
/// therefore get no name that is reserved for the system (`system:masters`, `system:nodes`, `system:admin`, other
/// components), except an agent's name. The signers of kubelet certificates have their own rules and are not affected.
pub fn check_requester(subject: &CertificateSubject, requester: &str, groups: &[&str]) -> Result<(), ReservedIdentity> {
    if subject.common_name() == Some(FRONT_PROXY) {
        return Err(ReservedIdentity::FrontProxy);
    }
    if !is_restricted(requester, groups) || Agent::from_subject(subject).is_some() {
        return Ok(());
    }
    let names = subject.common_name().into_iter().chain(subject.organizations());
    match names.into_iter().find(|name| name.starts_with(SYSTEM_PREFIX)) {
        Some(name) => Err(ReservedIdentity::System { name: name.to_owned(), requester: requester.to_owned() }),
        None => Ok(()),
    }
}

/// True for holders of bootstrap tokens and for agents.
fn is_restricted(requester: &str, groups: &[&str]) -> bool {
    let is_bootstrap_group =
        |group: &str| group.strip_prefix(BOOTSTRAP_GROUP).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
    requester.starts_with(BOOTSTRAP_USER_PREFIX)
        || groups.iter().any(|group| is_bootstrap_group(group) || *group == AGENT_ORGANIZATION)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const AGENT: &str = "system:karmada:agent:m1";
    const TOKEN: &str = "system:bootstrap:abcdef";

    #[rstest]
    #[case::agent(TOKEN, "", AGENT, &[AGENT_ORGANIZATION], true)]
    #[case::rbac_generator(TOKEN, "", "system:karmada:agent:rbac-generator", &[AGENT_ORGANIZATION], true)]
    #[case::person(TOKEN, "", "ann", &["dev"], true)]
    #[case::front_proxy(TOKEN, "", "front-proxy-client", &[], false)]
    #[case::front_proxy_agent(TOKEN, "", "front-proxy-client", &[AGENT_ORGANIZATION], false)]
    #[case::masters(TOKEN, "", "ann", &["system:masters"], false)]
    #[case::agent_with_masters_group(TOKEN, "", AGENT, &[AGENT_ORGANIZATION, "system:masters"], false)]
    #[case::node(TOKEN, "", "system:node:n1", &["system:nodes"], false)]
    #[case::nodes(TOKEN, "", "ann", &["system:nodes"], false)]
    #[case::admin(TOKEN, "", "system:admin", &["admins"], false)]
    #[case::component(TOKEN, "", "system:karmada:controller-manager", &[], false)]
    #[case::service_account(TOKEN, "", "system:serviceaccount:kube-system:x", &[], false)]
    #[case::agent_without_organization(TOKEN, "", AGENT, &[], false)]
    #[case::agent_with_invalid_cluster_name(TOKEN, "", "system:karmada:agent:No Cluster", &[AGENT_ORGANIZATION], false)]
    #[case::agent_of_the_control_plane(TOKEN, "", "system:karmada:agent:@control-plane", &[AGENT_ORGANIZATION], false)]
    #[case::by_group("ann", "system:bootstrappers", "system:admin", &[], false)]
    #[case::by_subgroup("ann", "system:bootstrappers:karmada:x", "system:admin", &[], false)]
    #[case::other_group("ann", "system:bootstrappersx", "system:admin", &[], true)]
    #[case::agent_as_requester("x", AGENT_ORGANIZATION, "system:admin", &[], false)]
    #[case::administrator("admin", "system:masters", "system:kube-scheduler", &[], true)]
    #[case::administrator_front_proxy("admin", "system:masters", "front-proxy-client", &[], false)]
    fn only_administrators_may_request_reserved_names(
        #[case] requester: &str,
        #[case] group: &str,
        #[case] common_name: &str,
        #[case] organizations: &[&str],
        #[case] allowed: bool,
    ) {
        let organizations: Vec<String> = organizations.iter().map(|name| (*name).to_owned()).collect();
        let subject = CertificateSubject::from_user(common_name, &organizations).unwrap();
        assert_eq!(check_requester(&subject, requester, &[group]).is_ok(), allowed);
    }
}
