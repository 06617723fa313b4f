//! `subjectrulesreviews`: the roles of a user or group in each cluster, with the bindings that grant them.

use std::collections::HashSet;

use axum::response::Response;
use crowsnest_apimachinery::rbac::PolicyRule;
use crowsnest_apimachinery::rbac::access::{HeldRole, Scope};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::{UNAUTHENTICATED, UserInfo, service_account, service_account_groups};
use crowsnest_search::authorization::ClusterRules;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::body::{self, SubjectSpec};
use super::evaluation::{Outcome, ReviewedCluster, validate, view};
use super::indirect::{IndirectPaths, evaluate};
use super::openapi::describe;
use super::page::{Numbering, Page};
use super::render::{self, PathRenderer};
use super::resource_access::{audit, finish_status, review_response};
use super::validation::{self, ValidatedCoverage};
use crate::resource::openapi::Document;
use crate::resource::{CREATE, Call, Definition, Paths, Resource};

const KIND: &str = "SubjectRulesReview";

pub(super) struct SubjectRulesReviews;

impl Resource for SubjectRulesReviews {
    fn definition(&self) -> &Definition {
        const DEFINITION: Definition = Definition {
            singular: "subjectrulesreview",
            ..Definition::new("subjectrulesreviews", KIND, CREATE, Paths::Collection)
        };
        &DEFINITION
    }

    fn describe(&self, _version: &str, document: &mut Document) {
        describe(
            document,
            self.definition(),
            "Lists the roles of a user or group in each cluster, with their bindings.",
        );
    }

    fn serve<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Response, ApiError>> {
        Box::pin(async move { review(call).await })
    }
}

/// A SubjectRulesReview after validation.
struct ValidatedReview {
    user: UserInfo,
    scope: Scope,
    covered: ValidatedCoverage,
}

async fn review(Call { server, context, request }: Call<'_>) -> Result<Response, ApiError> {
    let running = server.running()?;
    let (sent, spec, coverage) = body::read::<SubjectSpec>(KIND, request).await?;
    let clusters = running.index.searcher().cluster_rules(&context.user).await;
    let (covered, scope) = validate(KIND, &coverage, &clusters, validation::validate_subject(&spec, &coverage))?;
    audit(context, &covered, &clusters);
    let review = ValidatedReview { user: identity(spec), scope, covered };
    let status = evaluate(review.covered.indirect, move || review.status(&clusters)).await?;
    Ok(review_response(KIND, sent, status))
}

/// The subject with the groups that API servers add. Other groups are not guessed.
fn identity(spec: SubjectSpec) -> UserInfo {
    let mut groups = spec.groups;
    if let Some((namespace, _)) = service_account(&spec.user) {
        groups.extend(service_account_groups(namespace));
    }
    let is_anonymous = groups.iter().any(|group| group == UNAUTHENTICATED);
    let mut user = UserInfo { name: spec.user, uid: spec.uid, groups, ..UserInfo::default() };
    if !is_anonymous {
        user = user.with_implied_groups();
    }
    user.groups.sort_unstable();
    user.groups.dedup();
    user
}

impl ValidatedReview {
    fn status(self, clusters: &[ClusterRules]) -> Value {
        let mut page = Page::new(self.covered.after.clone(), self.covered.limit);
        let (all, mut warnings) = self.covered.apply(clusters);
        let mut states = Vec::new();
        let mut paths = self.covered.includes_indirect().then(IndirectPaths::new);
        for cluster in all.iter().filter(|cluster| self.covered.includes(cluster.rules)) {
            let cluster = cluster.evaluate();
            states.push(self.roles(&cluster, &mut page));
            if let Some(paths) = paths.as_mut().filter(|_| cluster.is_known())
                && paths.may_search(cluster.name())
            {
                self.indirect(&cluster, paths);
            }
        }
        let mut status = json!({"groups": self.user.groups});
        let next = self.covered.finish(page, "roles", &mut status);
        if let Some(paths) = paths {
            paths.finish(&mut status, &mut warnings);
        }
        finish_status(&mut status, states, warnings, next);
        status
    }

    /// Adds the roles of the subject in a cluster to the page, and returns the state of the cluster.
    fn roles(&self, cluster: &ReviewedCluster<'_>, page: &mut Page<(Outcome, Value)>) -> Value {
        let (rules, name, outcome) = (cluster.rules, cluster.name(), self.covered.outcome());
        let is_visible = rules.visibility();
        let mut numbering = Numbering::default();
        if self.user.is_master() {
            page.offer(numbering.key(name, "", ""), || (outcome, render::role_of_masters(name)));
        }
        if !cluster.is_known() {
            return render::cluster(rules, &self.scope, &[]);
        }
        let (stored, missing) = view(cluster.before(), &is_visible).roles_of(&self.user, &self.scope);
        let remaining = cluster.without().map(|rbac| view(rbac, &is_visible).roles_of(&self.user, &self.scope).0);
        for (outcome, held) in rows(outcome, &stored, remaining.as_deref()) {
            page.offer(numbering.key(name, held.namespace, held.binding), || (outcome, render::held(name, held)));
        }
        render::cluster(rules, &self.scope, &missing)
    }

    /// Adds the subjects that the subject can become in a cluster.
    fn indirect(&self, cluster: &ReviewedCluster<'_>, paths: &mut IndirectPaths) {
        let is_visible = cluster.rules.visibility();
        let view = view(cluster.after(), &is_visible);
        let found = view.paths_from(&self.user);
        paths.add(&found, &PathRenderer { cluster: cluster.name(), here: view, control_plane: None });
    }
}

/// The roles as stored; or those that are lost and those that remain without some objects, in the order of their bindings. A
/// role that remains without any rule grants nothing.
fn rows<'h, 'r>(
    outcome: Outcome,
    stored: &'h [HeldRole<'r>],
    remaining: Option<&'h [HeldRole<'r>]>,
) -> Vec<(Outcome, &'h HeldRole<'r>)> {
    let Some(remaining) = remaining else { return stored.iter().map(|held| (outcome, held)).collect() };
    let kept: HashSet<_> = remaining.iter().map(identity_of).collect();
    let lost = stored.iter().filter(|held| !kept.contains(&identity_of(held)));
    let granting = remaining.iter().filter(|held| !held.rules.is_empty());
    let mut rows: Vec<_> = lost.map(|held| (Outcome::Lost, held)).collect();
    rows.extend(granting.map(|held| (Outcome::Remaining, held)));
    rows.sort_by_key(|(_, held)| (held.namespace, held.binding));
    rows
}

/// A role with its binding and rules: the same role with fewer rules is lost, and another one remains.
fn identity_of<'h>(held: &HeldRole<'h>) -> (&'h str, &'h str, &'h [PolicyRule]) {
    (held.namespace, held.binding, held.rules)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crowsnest_apimachinery::rbac::{ObjectKind, ObjectName, Rbac};

    /// `view` aggregates `pods` and `more`.
    fn rbac() -> Rbac {
        let mut rbac = Rbac::default();
        let rule = |resource: &str| json!({"apiGroups": [""], "resources": [resource], "verbs": ["get"]});
        for (name, rules) in [
            ("pods", json!([rule("pods")])),
            ("more", json!([rule("services")])),
            ("view", json!([rule("services"), rule("pods")])),
            ("empty", json!([])),
        ] {
            let aggregation = json!({"clusterRoleSelectors": [{"matchLabels": {"to": "view"}}]});
            let (labels, aggregation) = match name {
                "view" => (Value::Null, aggregation),
                _ => (json!({"to": "view"}), Value::Null),
            };
            let role = json!({"metadata": {"labels": labels}, "rules": rules, "aggregationRule": aggregation});
            rbac.put_role("", name, serde_json::from_value(role).unwrap());
        }
        for name in ["view", "empty"] {
            let subjects = json!([{"kind": "User", "name": "ann"}]);
            let binding = json!({"roleRef": {"kind": "ClusterRole", "name": name}, "subjects": subjects});
            rbac.put_binding("", name, serde_json::from_value(binding).unwrap());
        }
        rbac
    }

    #[rstest::rstest]
    #[case::nothing(&[], &["Granted empty 0", "Granted view 2"])]
    #[case::a_part(&["more"], &["Lost view 2", "Remaining view 1"])]
    #[case::all_parts(&["more", "pods"], &["Lost view 2"])]
    #[case::the_role(&["view"], &["Lost view 2"])]
    fn roles_without_rules_do_not_remain(#[case] without: &[&str], #[case] expected: &[&str]) {
        let of_role = |name: &&str| ObjectName {
            kind: ObjectKind::ClusterRole,
            namespace: String::new(),
            name: (*name).to_owned(),
        };
        let stored = rbac();
        let removed: Vec<ObjectName> = without.iter().map(of_role).collect();
        let rest = (!removed.is_empty()).then(|| stored.without(&removed));
        let ann = UserInfo::new("ann", ["staff"]);
        let is_visible = |_: ObjectKind, _: &str, _: &str| true;
        let before = view(&stored, &is_visible).roles_of(&ann, &Scope::cluster()).0;
        let after = rest.as_ref().map(|rest| view(rest, &is_visible).roles_of(&ann, &Scope::cluster()).0);
        let rows = rows(Outcome::Granted, &before, after.as_deref());
        let shown =
            |(outcome, held): &(Outcome, &HeldRole<'_>)| format!("{outcome:?} {} {}", held.binding, held.rules.len());
        assert_eq!(rows.iter().map(shown).collect::<Vec<_>>(), expected);
    }

    #[rstest::rstest]
    #[case::a_user("ann", &["staff"], "staff system:authenticated")]
    #[case::an_account("system:serviceaccount:shop:robot", &[], "system:authenticated system:serviceaccounts system:serviceaccounts:shop")]
    #[case::a_group("", &["sre"], "sre system:authenticated")]
    #[case::nobody("system:anonymous", &[], "system:unauthenticated")]
    #[case::the_group_of_nobody("", &["system:unauthenticated"], "system:unauthenticated")]
    fn groups_that_servers_add_count(#[case] user: &str, #[case] groups: &[&str], #[case] expected: &str) {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let user = identity(SubjectSpec { user: user.to_owned(), groups, ..SubjectSpec::default() });
        assert_eq!(user.groups.join(" "), expected);
    }
}
