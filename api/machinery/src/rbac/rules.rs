//! RBAC rules: matching and coverage.

use serde::{Deserialize, Serialize};

/// `rbac.authorization.k8s.io/v1` PolicyRule.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRule {
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub verbs: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub api_groups: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<String>,
    #[serde(deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub resource_names: Vec<String>,
    #[serde(rename = "nonResourceURLs", deserialize_with = "nullable", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_urls: Vec<String>,
}

fn nullable<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// An action to authorize: the attributes of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    Resource {
        verb: String,
        group: String,
        /// Plural, without the subresource.
        resource: String,
        subresource: String,
        /// Empty for cluster-scoped requests and lists over all namespaces.
        namespace: String,
        /// Empty for requests without a name.
        name: String,
    },
    /// A request for a path that names no resource, such as `/healthz`.
    Path { verb: String, path: String },
}

const ALL: &str = "*";

fn has_item(list: &[String], value: &str) -> bool {
    list.iter().any(|item| item == ALL || item == value)
}

/// True if the URL of a rule matches a path: the whole path, or its beginning if the URL ends with `*`. Kubernetes ignores
/// all asterisks at the end (`strings.TrimRight` in `NonResourceURLMatches`).
fn url_matches(url: &str, path: &str) -> bool {
    if url.ends_with('*') { path.starts_with(url.trim_end_matches('*')) } else { url == path }
}

impl PolicyRule {
    /// True if this rule allows `action`; the caller checks the namespace of the binding.
    pub fn allows(&self, action: &Action) -> bool {
        match action {
            Action::Resource { verb, group, resource, subresource, name, .. } => {
                has_item(&self.verbs, verb)
                    && has_item(&self.api_groups, group)
                    && self.has_resource(resource, subresource)
                    && self.allows_name(name)
            }
            Action::Path { verb, path } => has_item(&self.verbs, verb) && self.has_path(path),
        }
    }

    /// True if the rule allows one of the verbs on objects of the resource: on all of them, or on those that it names.
    pub(super) fn allows_any_verb(&self, verbs: &[&str], group: &str, resource: &str) -> bool {
        verbs.iter().any(|verb| has_item(&self.verbs, verb))
            && has_item(&self.api_groups, group)
            && self.has_resource(resource, "")
    }

    /// Names of the objects on which the rule allows one of the verbs; empty if it allows none of them, or all objects.
    pub(super) fn restricted_names(&self, verbs: &[&str], group: &str, resource: &str) -> &[String] {
        if self.allows_any_verb(verbs, group, resource) { &self.resource_names } else { &[] }
    }

    /// True if the rule allows `get` on a subresource, of the objects it names or of all objects.
    pub(super) fn allows_get_of_subresource(&self, group: &str, resource: &str, subresource: &str) -> bool {
        has_item(&self.verbs, "get") && has_item(&self.api_groups, group) && self.has_resource(resource, subresource)
    }

    /// True if the rule covers objects of at least one resource. Groups that contain only reviews are
    /// ignored, because every cluster allows all users to create self-reviews.
    pub(super) fn covers_objects(&self) -> bool {
        let is_review_group =
            |group: &String| matches!(group.as_str(), "authentication.k8s.io" | "authorization.k8s.io");
        !self.verbs.is_empty() && !self.resources.is_empty() && !self.api_groups.iter().all(is_review_group)
    }

    /// True if the rule covers a name. The name of requests without a name is empty.
    pub(super) fn allows_name(&self, name: &str) -> bool {
        self.resource_names.is_empty() || self.resource_names.iter().any(|resource_name| resource_name == name)
    }

    fn has_resource(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|rule| {
            if rule == ALL {
                return true;
            }
            match rule.split_once('/') {
                None => subresource.is_empty() && rule == resource,
                // `*/scale` names one subresource of all resources.
                Some((parent, child)) => {
                    child == subresource && (parent == resource || parent == ALL) && !subresource.is_empty()
                }
            }
        })
    }

    fn has_path(&self, path: &str) -> bool {
        self.non_resource_urls.iter().any(|url| url_matches(url, path))
    }

    /// Splits into rules with one verb, one group and resource or path, and one name each, as escalation checks
    /// compare them (`BreakdownRule` in Kubernetes).
    pub fn break_down(&self) -> Vec<PolicyRule> {
        let mut subrules = Vec::new();
        for verb in &self.verbs {
            for group in &self.api_groups {
                for resource in &self.resources {
                    let names: Vec<Vec<String>> = match self.resource_names.as_slice() {
                        [] => vec![Vec::new()],
                        names => names.iter().map(|n| vec![n.clone()]).collect(),
                    };
                    subrules.extend(names.into_iter().map(|resource_names| PolicyRule {
                        verbs: vec![verb.clone()],
                        api_groups: vec![group.clone()],
                        resources: vec![resource.clone()],
                        resource_names,
                        non_resource_urls: Vec::new(),
                    }));
                }
            }
            subrules.extend(self.non_resource_urls.iter().map(|url| PolicyRule {
                verbs: vec![verb.clone()],
                non_resource_urls: vec![url.clone()],
                ..PolicyRule::default()
            }));
        }
        subrules
    }

    /// True if this rule allows everything that `subrule`, a result of [`PolicyRule::break_down`], allows.
    pub fn covers(&self, subrule: &PolicyRule) -> bool {
        let has_all = |list: &[String], values: &[String]| values.iter().all(|value| has_item(list, value));
        if !has_all(&self.verbs, &subrule.verbs) {
            return false;
        }
        if !subrule.non_resource_urls.is_empty() {
            return subrule.non_resource_urls.iter().all(|url| self.has_path(url));
        }
        let has_resources = subrule.resources.iter().all(|resource| {
            let wildcard = resource.split_once('/').map(|(_, subresource)| format!("*/{subresource}"));
            has_item(&self.resources, resource) || wildcard.is_some_and(|wildcard| self.resources.contains(&wildcard))
        });
        let has_names = self.resource_names.is_empty()
            || (!subrule.resource_names.is_empty()
                && subrule.resource_names.iter().all(|n| self.resource_names.contains(n)));
        has_all(&self.api_groups, &subrule.api_groups) && has_resources && has_names
    }

    /// The short form of the rule in escalation errors (`CompactString` in Kubernetes).
    pub fn compact_string(&self) -> String {
        let mut parts = Vec::new();
        for (title, list) in [
            ("NonResourceURLs", &self.non_resource_urls),
            ("APIGroups", &self.api_groups),
            ("Resources", &self.resources),
            ("ResourceNames", &self.resource_names),
            ("Verbs", &self.verbs),
        ] {
            if !list.is_empty() {
                let quoted: Vec<String> = list.iter().map(|v| format!("{v:?}")).collect();
                parts.push(format!("{title}:[{}]", quoted.join(" ")));
            }
        }
        format!("{{{}}}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(groups: &[&str], resources: &[&str], names: &[&str], verbs: &[&str]) -> PolicyRule {
        let to_strings = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        PolicyRule {
            verbs: to_strings(verbs),
            api_groups: to_strings(groups),
            resources: to_strings(resources),
            resource_names: to_strings(names),
            non_resource_urls: vec![],
        }
    }

    fn get(group: &str, resource: &str, subresource: &str, name: &str) -> Action {
        Action::Resource {
            verb: "get".into(),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: "ns".into(),
            name: name.into(),
        }
    }

    #[test]
    fn rules_match_resources_subresources_and_names() {
        let cases = [
            (rule(&[""], &["pods"], &[], &["get"]), get("", "pods", "", "p"), true),
            (rule(&[""], &["pods"], &[], &["get"]), get("", "pods", "log", "p"), false),
            (rule(&[""], &["pods/log"], &[], &["get"]), get("", "pods", "log", "p"), true),
            (rule(&[""], &["pods/log"], &[], &["get"]), get("", "pods", "", "p"), false),
            (rule(&["*"], &["*/scale"], &[], &["*"]), get("apps", "deployments", "scale", "d"), true),
            (rule(&["*"], &["*/scale"], &[], &["*"]), get("apps", "deployments", "", "d"), false),
            (rule(&["*"], &["*"], &[], &["*"]), get("apps", "deployments", "status", "d"), true),
            (rule(&[""], &["secrets"], &["one"], &["get"]), get("", "secrets", "", "one"), true),
            (rule(&[""], &["secrets"], &["one"], &["get"]), get("", "secrets", "", "two"), false),
            (rule(&[""], &["secrets"], &["one"], &["get"]), get("", "secrets", "", ""), false),
            (rule(&["apps"], &["pods"], &[], &["get"]), get("", "pods", "", "p"), false),
        ];
        for (rule, action, expected) in cases {
            assert_eq!(rule.allows(&action), expected, "{rule:?} {action:?}");
        }
    }

    #[rstest::rstest]
    #[case::whole("/healthz", "/healthz", true)]
    #[case::longer("/healthz", "/healthz/x", false)]
    #[case::prefix("/apis/*", "/apis/apps", true)]
    #[case::shorter_than_the_prefix("/apis/*", "/apis", false)]
    #[case::several_asterisks("/foo**", "/foo/x", true)]
    #[case::several_asterisks_and_no_more("/foo**", "/foo", true)]
    #[case::several_asterisks_and_another_path("/foo**", "/fo", false)]
    #[case::several_asterisks_themselves("/foo**", "/foo**", true)]
    #[case::all("*", "/anything", true)]
    #[case::an_asterisk_inside("/a*b", "/axb", false)]
    #[case::another_verb("/healthz", "GET /healthz", false)]
    fn paths_match_whole_or_by_prefix(#[case] url: &str, #[case] request: &str, #[case] expected: bool) {
        let (verb, path) = request.split_once(' ').unwrap_or(("get", request));
        let rule = |url: &str| PolicyRule {
            verbs: vec!["get".into()],
            non_resource_urls: vec![url.into()],
            ..PolicyRule::default()
        };
        assert_eq!(rule(url).allows(&Action::Path { verb: verb.into(), path: path.into() }), expected);
        let subrule = PolicyRule { verbs: vec![verb.into()], ..rule(path) };
        assert_eq!(rule(url).covers(&subrule), expected, "coverage in an escalation check");
    }

    #[test]
    fn rules_cover_their_parts() {
        let cases = [
            (rule(&["*"], &["*"], &[], &["*"]), rule(&["apps"], &["deployments/scale"], &["d"], &["get"]), true),
            (
                rule(&["apps"], &["*/scale"], &[], &["get"]),
                rule(&["apps"], &["deployments/scale"], &[], &["get"]),
                true,
            ),
            (
                rule(&["apps"], &["deployments"], &["d"], &["get"]),
                rule(&["apps"], &["deployments"], &[], &["get"]),
                false,
            ),
            (
                rule(&["apps"], &["deployments"], &[], &["get"]),
                rule(&["apps"], &["deployments"], &["d"], &["get"]),
                true,
            ),
            (rule(&["apps"], &["deployments"], &[], &["get"]), rule(&["apps"], &["deployments"], &[], &["*"]), false),
        ];
        for (rule, subrule, expected) in cases {
            assert_eq!(subrule.break_down().iter().all(|a| rule.covers(a)), expected, "{rule:?} {subrule:?}");
        }
    }
}
