//! `subjectrulesreviews`: the roles of a user or group in each cluster, with the bindings that grant them.

use std::collections::HashSet;

use axum::response::Response;
use crowsnest_apimachinery::rbac::PolicyRule;
use crowsnest_apimachinery::rbac::access::{HeldRole, Scope};
use crowsnest_apimachinery::status::ApiError;
use crowsnest_apimachinery::user::{UNAUTHENTICATED, UserInfo, parse_service_account_user, service_account_groups};
use crowsnest_search::authorization::ClusterRules;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::body::{self, SubjectSpec};
use super::evaluation::{Outcome, ReviewedCluster, validate, view};
use super::indirect::{IndirectPaths, evaluate};
use super::openapi::describe;
use super::page::{Numbering, Page};
use super::render::{self, PathRenderer};
use super::resource_access::{finish_status, record_reviewed_clusters, review_response};
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
    coverage: ValidatedCoverage,
}

async fn review(Call { server, context, request }: Call<'_>) -> Result<Response, ApiError> {
    let running = server.running()?;
    let (spec_body, spec, coverage) = body::read_review::<SubjectSpec>(KIND, request).await?;
    let clusters = running.cache.searcher().cluster_rules(&context.user).await;
    let (coverage, scope) = validate(KIND, &coverage, &clusters, validation::validate_subject(&spec, &coverage))?;
    record_reviewed_clusters(context, &coverage, &clusters);
    let review = ValidatedReview { user: subject_user(spec), scope, coverage };
    let status = evaluate(review.coverage.indirect, move || review.status(&clusters)).await?;
    Ok(review_response(KIND, spec_body, status))
}

/// The subject with the groups that API servers add. Other groups are not guessed.
fn subject_user(spec: SubjectSpec) -> UserInfo {
    let mut groups = spec.groups;
    if let Some((namespace, _)) = parse_service_account_user(&spec.user) {
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
        let mut page = Page::new(self.coverage.after.clone(), self.coverage.limit);
        let (all, mut warnings) = self.coverage.apply(clusters);
        let mut states = Vec::new();
        let mut paths = self.coverage.includes_indirect().then(IndirectPaths::new);
        for cluster in all.iter().filter(|cluster| self.coverage.includes(cluster.rules)) {
            let cluster = cluster.evaluate();
            states.push(self.add_roles(&cluster, &mut page));
            if let Some(paths) = paths.as_mut().filter(|_| cluster.is_known())
                && paths.may_search(cluster.name())
            {
                self.add_indirect_paths(&cluster, paths);
            }
        }
        let mut status = json!({"groups": self.user.groups});
        let next = self.coverage.write_rows(page, "roles", &mut status);
        if let Some(paths) = paths {
            paths.finish(&mut status, &mut warnings);
        }
        finish_status(&mut status, states, warnings, next);
        status
    }

    /// Adds the roles of the subject in a cluster to the page, and returns the state of the cluster.
    fn add_roles(&self, cluster: &ReviewedCluster<'_>, page: &mut Page<(Outcome, Value)>) -> Value {
        let (rules, name, outcome) = (cluster.rules, cluster.name(), self.coverage.outcome());
        let is_visible = rules.visibility();
        let mut numbering = Numbering::default();
        if self.user.is_master() {
            page.offer(numbering.key(name, "", ""), || (outcome, render::role_of_masters(name)));
        }
        if !cluster.is_known() {
            return render::cluster_state(rules, &self.scope, &[]);
        }
        let (stored, missing) = view(cluster.stored_rules(), &is_visible).roles_of(&self.user, &self.scope);
        let remaining = cluster.reduced_rules().map(|rbac| view(rbac, &is_visible).roles_of(&self.user, &self.scope).0);
        for (outcome, held) in classify_roles(outcome, &stored, remaining.as_deref()) {
            page.offer(numbering.key(name, held.namespace, held.binding), || (outcome, render::held_role(name, held)));
        }
        render::cluster_state(rules, &self.scope, &missing)
    }

    /// Adds the subjects that the subject can become in a cluster.
    fn add_indirect_paths(&self, cluster: &ReviewedCluster<'_>, paths: &mut IndirectPaths) {
        let is_visible = cluster.rules.visibility();
        let view = view(cluster.effective_rules(), &is_visible);
        let found = view.paths_from(&self.user);
        paths.add(&found, &PathRenderer { cluster: cluster.name(), cluster_view: view, control_plane: None });
    }
}

/// The roles as stored; or those that are lost and those that remain without some objects, in the order of their
/// bindings. A role that remains without any rule grants nothing.
fn classify_roles<'h, 'r>(
    outcome: Outcome,
    stored: &'h [HeldRole<'r>],
    remaining: Option<&'h [HeldRole<'r>]>,
) -> Vec<(Outcome, &'h HeldRole<'r>)> {
    let Some(remaining) = remaining else { return stored.iter().map(|held| (outcome, held)).collect() };
    let remaining_roles: HashSet<_> = remaining.iter().map(role_key).collect();
    let lost = stored.iter().filter(|held| !remaining_roles.contains(&role_key(held)));
    let granting = remaining.iter().filter(|held| !held.rules.is_empty());
    let mut rows: Vec<_> = lost.map(|held| (Outcome::Lost, held)).collect();
    rows.extend(granting.map(|held| (Outcome::Remaining, held)));
    rows.sort_by_key(|(_, held)| (held.namespace, held.binding));
    rows
}

/// A role with its binding and rules: the same role with fewer rules is lost, and another one remains.
fn role_key<'h>(held: &HeldRole<'h>) -> (&'h str, &'h str, &'h [PolicyRule]) {
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
        let is_visible = |_: ObjectKind, _: &str, _: &str| true;
        let rest = (!removed.is_empty()).then(|| view(&stored, &is_visible).without(&removed));
        let ann = UserInfo::new("ann", ["staff"]);
        let before = view(&stored, &is_visible).roles_of(&ann, &Scope::cluster()).0;
        let after = rest.as_ref().map(|rest| view(rest, &is_visible).roles_of(&ann, &Scope::cluster()).0);
        let rows = classify_roles(Outcome::Granted, &before, after.as_deref());
        let shown =
            |(outcome, held): &(Outcome, &HeldRole<'_>)| format!("{outcome:?} {} {}", held.binding, held.rules.len());
        assert_eq!(rows.iter().map(shown).collect::<Vec<_>>(), expected);
    }

    #[rstest::rstest]
    #[case::a_user("ann", &["staff"], "staff system:authenticated")]
    #[case::a_service_account("system:serviceaccount:shop:robot", &[], "system:authenticated system:serviceaccounts system:serviceaccounts:shop")]
    #[case::a_group("", &["sre"], "sre system:authenticated")]
    #[case::anonymous("system:anonymous", &[], "system:unauthenticated")]
    #[case::the_group_of_anonymous("", &["system:unauthenticated"], "system:unauthenticated")]
    fn groups_that_api_servers_add_are_included(#[case] user: &str, #[case] groups: &[&str], #[case] expected: &str) {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        let user = subject_user(SubjectSpec { user: user.to_owned(), groups, ..SubjectSpec::default() });
        assert_eq!(user.groups.join(" "), expected);
    }
}
