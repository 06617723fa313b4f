//! Compares the grants of an account with the permissions it used: each grant must be used or explained, and each
//! explanation must apply to at least one grant.

use std::collections::BTreeSet;

use anyhow::Result;
use rstest::rstest;
use serde::Deserialize;
use serde_json::json;

use crate::least_privilege::grants::{Grant, Identity, Rbac};
use crate::least_privilege::records::{Record, Use, parse_records};

/// Target that matches any resource and no path.
const RESOURCES: &str = "resources";

/// One of Crowsnest's accounts, as listed in `accounts.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// API server of the account: `cp` or a member.
    pub at: String,
    /// User name; a trailing asterisk matches any suffix.
    pub user: String,
    /// Purpose of the account.
    pub what: String,
    #[serde(default)]
    pub unused: Vec<Explanation>,
}

/// Reason why unused permissions are granted: each of the verbs on each of the targets (and names); an omitted list matches
/// any.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Explanation {
    #[serde(default)]
    pub verbs: Vec<String>,
    #[serde(default)]
    pub targets: Vec<String>,
    #[serde(default)]
    pub names: Vec<String>,
    /// True if only some runs use these permissions.
    #[serde(default)]
    pub sometimes: bool,
    /// Minor version of Kubernetes 1 whose API servers are the first to grant these permissions.
    #[serde(default)]
    pub since: u32,
    pub why: String,
}

impl Explanation {
    fn is_empty(&self) -> bool {
        self.verbs.is_empty() && self.targets.is_empty() && self.names.is_empty()
    }

    /// True if the explanation applies to all resources.
    fn covers_all_resources(&self) -> bool {
        self.targets.iter().any(|target| target == RESOURCES)
    }

    fn explains(&self, grant: &Grant) -> bool {
        let has = |list: &[String], text: &str| list.is_empty() || list.iter().any(|entry| entry == text);
        has(&self.verbs, &grant.verb)
            && (has(&self.targets, &grant.target) || self.covers_all_resources() && grant.is_on_resources())
            && has(&self.names, grant.name.as_deref().unwrap_or_default())
    }

    /// The explanation, split into one for each combination of verb, target and name.
    fn split(&self) -> Vec<Explanation> {
        let each = |list: &[String]| -> Vec<Vec<String>> {
            match list {
                [] => vec![Vec::new()],
                list => list.iter().map(|entry| vec![entry.clone()]).collect(),
            }
        };
        let mut parts = Vec::new();
        for verbs in each(&self.verbs) {
            for targets in each(&self.targets) {
                parts.extend(each(&self.names).into_iter().map(|names| Explanation {
                    verbs: verbs.clone(),
                    targets: targets.clone(),
                    names,
                    sometimes: self.sometimes,
                    since: self.since,
                    why: self.why.clone(),
                }));
            }
        }
        parts
    }
}

/// Errors in the permissions of an account at an API server of Kubernetes 1.`minor`, one line each.
pub fn check_account(account: &Account, minor: u32, grants: &BTreeSet<Grant>, uses: &BTreeSet<Use>) -> Vec<String> {
    let explanations: Vec<&Explanation> = account.unused.iter().filter(|one| one.since <= minor).collect();
    let owner = format!("{} at {} ({})", account.user, account.at, account.what);
    let unused: Vec<&Grant> = grants.iter().filter(|grant| !uses.iter().any(|used| used.needs(grant))).collect();
    let is_explained = |grant: &Grant| explanations.iter().any(|one| !one.is_empty() && one.explains(grant));
    let mut errors: Vec<String> = unused
        .iter()
        .filter(|grant| !is_explained(grant))
        .map(|grant| {
            format!("{grant}, which {owner} did not use: remove the permission, or explain it in accounts.yaml")
        })
        .collect();
    for part in explanations.into_iter().flat_map(Explanation::split) {
        let mut explained = grants.iter().filter(|grant| part.explains(grant));
        let is_needed = explained.any(|grant| part.sometimes || unused.contains(&grant));
        if !is_needed {
            let Explanation { verbs, targets, names, why, .. } = part;
            let words = [verbs, targets, names].concat().join(" ");
            errors.push(format!(
                "\"{why}\" explains the permission {words} of {owner}, which is used or not granted: remove the explanation"
            ));
        }
    }
    errors
}

fn test_rbac() -> Rbac {
    Rbac::new(vec![
        json!({"kind": "ClusterRole", "metadata": {"name": "agent"}, "rules": [
            {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["m1", "m2"], "verbs": ["patch"]},
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
            {"nonResourceURLs": ["/api*"], "verbs": ["get"]}]}),
        json!({"kind": "ClusterRoleBinding", "metadata": {"name": "agent"},
            "roleRef": {"kind": "ClusterRole", "name": "agent"}, "subjects": [{"kind": "Group", "name": "agents"}]}),
        json!({"kind": "RoleBinding", "metadata": {"name": "others", "namespace": "a"},
            "roleRef": {"kind": "ClusterRole", "name": "agent"}, "subjects": [{"kind": "User", "name": "eve"}]}),
    ])
}

fn test_log() -> String {
    let event = |verb: &str, uri: &str, reference: serde_json::Value, decision: &str| {
        json!({"verb": verb, "requestURI": uri, "user": {"username": "agent", "groups": ["agents"]}, "objectRef": reference,
            "annotations": {"authorization.k8s.io/decision": decision}})
        .to_string()
    };
    let deployments = json!({"apiGroup": "apps", "resource": "deployments", "namespace": "a", "name": "b"});
    [
        event("get", "/x", deployments.clone(), "allow"),
        event("list", "/x", deployments, "forbid"),
        event("patch", "/x", json!({"resource": "secrets", "namespace": "a", "name": "m1"}), "allow"),
        event("get", "/api/v1?timeout=1", json!(null), "allow"),
    ]
    .join("\n")
}

#[rstest]
#[case::nothing("[]", &["grants list on deployments.apps,", "grants patch on secrets m2,", "grants * on *.*,"])]
#[case::all("[{verbs: [list], targets: [deployments.apps], why: x}, {names: [m2], why: x}, {verbs: ['*'], why: x}]", &[])]
#[case::explanation_without_lists("[{why: x}]", &["grants list on deployments.apps,", "grants patch on secrets m2,", "grants * on *.*,"])]
#[case::resources("[{verbs: [get, list, patch, '*'], targets: [resources], why: x}]", &["\"x\" explains the permission get resources of"])]
#[case::sometimes("[{verbs: [get, list, patch, '*'], targets: [resources], sometimes: true, why: x}]", &[])]
#[case::too_much("[{verbs: [list, get], targets: [deployments.apps], why: x}, {names: [m2], why: x}, {verbs: ['*'], why: x}]",
    &["\"x\" explains the permission get deployments.apps of agent at cp (it)"])]
#[case::not_granted("[{verbs: [list], why: x}, {names: [m2], why: x}, {verbs: ['*'], why: x}, {verbs: [watch], why: x}]",
    &["\"x\" explains the permission watch of"])]
#[case::in_a_later_version("[{verbs: [list, watch], names: [m3], since: 37, why: x}, {verbs: [list, patch, '*'], why: x}]", &[])]
fn grants_are_used_or_explained(#[case] unused: &str, #[case] expected: &[&str]) -> Result<()> {
    let account: Account = serde_saphyr::from_str(&format!("{{at: cp, user: agent, what: it, unused: {unused}}}"))?;
    let records = parse_records(&test_log());
    let Record { groups, uses } = &records["agent"];
    let identity = Identity { user: "agent".to_owned(), groups: groups.clone() };
    let (grants, granting_bindings) = test_rbac().grants(&identity, &BTreeSet::new());
    assert_eq!(granting_bindings, BTreeSet::from(["ClusterRoleBinding agent".to_owned()]));
    let errors = check_account(&account, 36, &grants, uses);
    assert_eq!(errors.len(), expected.len(), "{errors:#?}");
    for text in expected {
        assert!(errors.iter().any(|line| line.contains(text)), "{text}: {errors:#?}");
    }
    Ok(())
}
