//! `audit.k8s.io/v1` `Policy`: which requests are logged, at which level and stages. Has no side effects.
//!
//! Resources, namespaces and paths of a rule match the request itself or its attributes at the server to which it is
//! forwarded, so `pods/exec` matches an exec in any member. Bodies that may contain secrets are logged only by a
//! rule that names their resource: for them, a rule with wildcards logs metadata only.

use crowsnest_apimachinery::user::UserInfo;
use serde::Deserialize;

use super::attributes::Attributes;
use super::event::{Level, Stage};

/// Group, resource and subresource of bodies that may contain secrets, which the audit policies of Kubernetes
/// distributions omit as well.
const SENSITIVE_RESOURCES: [(&str, &str, &str); 4] = [
    ("", "secrets", ""),
    ("", "configmaps", ""),
    ("", "serviceaccounts", "token"),
    ("authentication.k8s.io", "tokenreviews", ""),
];

/// Reason why a policy is invalid.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("{0}")]
    Syntax(String),
    /// apiVersion and kind of another document.
    #[error("apiVersion {0:?} kind {1:?} is not an audit policy; expected audit.k8s.io/v1 Policy")]
    Kind(String, String),
    #[error("rules: an audit policy needs at least one rule")]
    Empty,
    #[error("rules[{0}]: {1}")]
    Rule(usize, String),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    #[expect(dead_code, reason = "a policy may have a name")]
    metadata: serde_json::Value,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Rule {
    level: Level,
    #[serde(default)]
    users: Vec<String>,
    #[serde(default)]
    user_groups: Vec<String>,
    #[serde(default)]
    verbs: Vec<String>,
    #[serde(default)]
    resources: Vec<GroupResources>,
    #[serde(default)]
    namespaces: Vec<String>,
    #[serde(default, rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    /// Takes precedence over the policy's setting.
    #[serde(default)]
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

/// A validated policy; the first matching rule decides.
#[derive(Debug, Clone)]
pub struct Policy {
    rules: Vec<Rule>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: bool,
    /// Groups and resources in addition to [`SENSITIVE_RESOURCES`].
    additional_sensitive_resources: Vec<(String, String)>,
}

/// Audit decision for a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub level: Level,
    /// Stages at which no event is written.
    pub omitted_stages: Vec<Stage>,
    pub omit_managed_fields: bool,
}

/// Default policy: omits health and discovery requests, which clients poll; logs metadata of all others on
/// completion.
const DEFAULT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  verbs: [get, head, options]
  nonResourceURLs: [/, /healthz, /livez, /readyz, /healthz/*, /livez/*, /readyz/*, /version, /openapi/*, /api, /api/*, /apis, /apis/*]
- level: Metadata
"#;

impl Default for Policy {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "a constant, read in every test of this module")]
        Self::parse(DEFAULT_POLICY).expect("a valid policy")
    }
}

impl Policy {
    /// Parses and validates a policy in YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let document: Document = serde_saphyr::from_str(text).map_err(|e| PolicyError::Syntax(e.to_string()))?;
        if document.kind != "Policy" || document.api_version != "audit.k8s.io/v1" {
            return Err(PolicyError::Kind(document.api_version, document.kind));
        }
        if document.rules.is_empty() {
            return Err(PolicyError::Empty);
        }
        for (index, rule) in document.rules.iter().enumerate() {
            rule.check().map_err(|reason| PolicyError::Rule(index, reason))?;
        }
        let Document { rules, omit_stages, omit_managed_fields, .. } = document;
        Ok(Self { rules, omit_stages, omit_managed_fields, additional_sensitive_resources: Vec::new() })
    }

    /// Adds groups and resources whose bodies may contain secrets.
    pub fn with_sensitive_resources(mut self, resources: &[(&str, &str)]) -> Self {
        self.additional_sensitive_resources
            .extend(resources.iter().map(|(group, resource)| ((*group).to_owned(), (*resource).to_owned())));
        self
    }

    /// Decides how a request is logged; `None` if it is not logged. `attributes` are those at this server and at the
    /// server to which the request is forwarded.
    pub fn decide(&self, user: &UserInfo, attributes: &[&Attributes]) -> Option<Decision> {
        let rule =
            self.rules.iter().find(|rule| rule.matches(user, attributes)).filter(|rule| rule.level != Level::None)?;
        let is_body_withheld =
            |attributes: &&Attributes| self.is_sensitive(attributes) && !rule.names_explicitly(attributes);
        let level = if attributes.iter().any(is_body_withheld) { rule.level.min(Level::Metadata) } else { rule.level };
        Some(Decision {
            level,
            omitted_stages: [self.omit_stages.as_slice(), &rule.omit_stages].concat(),
            omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
        })
    }

    fn is_sensitive(&self, attributes: &Attributes) -> bool {
        let Attributes { group, resource, subresource, path: None, .. } = attributes else { return false };
        SENSITIVE_RESOURCES.iter().any(|(g, r, s)| g == group && r == resource && (s.is_empty() || s == subresource))
            || self.additional_sensitive_resources.iter().any(|(g, r)| g == group && r == resource)
    }
}

impl Rule {
    /// Validates a rule as kube-apiserver does.
    fn check(&self) -> Result<(), String> {
        let has_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        if has_resources && !self.non_resource_urls.is_empty() {
            return Err("rules cannot apply to both regular resources and non-resource URLs".into());
        }
        for url in &self.non_resource_urls {
            let inner = url.strip_suffix('*').unwrap_or(url);
            if url != "*" && (!url.starts_with('/') || inner.contains('*')) {
                return Err(format!(
                    "nonResourceURLs: {url:?} must begin with \"/\" and may have a \"*\" at its end only"
                ));
            }
        }
        for selector in &self.resources {
            if selector.group.starts_with(|c: char| c.is_ascii_digit()) || selector.group.contains('/') {
                return Err(format!("resources: group {:?} is not an API group", selector.group));
            }
            if selector.resources.is_empty() && !selector.resource_names.is_empty() {
                return Err("resources: using resourceNames requires at least one resource".into());
            }
        }
        Ok(())
    }

    /// True if the rule names this resource explicitly instead of by a wildcard.
    fn names_explicitly(&self, attributes: &Attributes) -> bool {
        let slash = if attributes.subresource.is_empty() { "" } else { "/" };
        let full_name = format!("{}{slash}{}", attributes.resource, attributes.subresource);
        self.resources
            .iter()
            .any(|selector| selector.group == attributes.group && selector.resources.contains(&full_name))
    }

    fn matches(&self, user: &UserInfo, attributes: &[&Attributes]) -> bool {
        let is_listed = |list: &[String], value: &String| list.is_empty() || list.contains(value);
        if !is_listed(&self.users, &user.name) {
            return false;
        }
        if !self.user_groups.is_empty() && !user.groups.iter().any(|group| self.user_groups.contains(group)) {
            return false;
        }
        attributes.iter().any(|request| is_listed(&self.verbs, &request.verb) && self.matches_scope(request))
    }

    fn matches_scope(&self, request: &Attributes) -> bool {
        if !self.resources.is_empty() || !self.namespaces.is_empty() {
            let matches_namespace = self.namespaces.is_empty() || self.namespaces.contains(&request.namespace);
            let matches_resource =
                self.resources.is_empty() || self.resources.iter().any(|selector| selector.matches(request));
            return request.path.is_none() && matches_namespace && matches_resource;
        }
        if !self.non_resource_urls.is_empty() {
            let Some(path) = &request.path else { return false };
            return self.non_resource_urls.iter().any(|pattern| path_matches(pattern, path));
        }
        true
    }
}

impl GroupResources {
    fn matches(&self, request: &Attributes) -> bool {
        if self.group != request.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        let matches_name = self.resource_names.is_empty() || self.resource_names.contains(&request.name);
        matches_name && self.resources.iter().any(|pattern| resource_matches(pattern, request))
    }
}

fn resource_matches(pattern: &str, request: &Attributes) -> bool {
    let requested_subresource = request.subresource.as_str();
    match pattern.split_once('/') {
        None => pattern == "*" || (requested_subresource.is_empty() && pattern == request.resource),
        Some(("*", subresource)) => !requested_subresource.is_empty() && subresource == requested_subresource,
        Some((resource, "*")) => resource == request.resource,
        Some((resource, subresource)) => resource == request.resource && subresource == requested_subresource,
    }
}

/// Matches a non-resource path. Paths with `.`, `..`, escapes or empty segments, which the next server may normalize
/// to another path, match only `*` or an exact pattern.
fn path_matches(pattern: &str, path: &str) -> bool {
    let is_ambiguous = |part: &str| matches!(part, "." | "..") || part.contains(['%', '\\']);
    match pattern.strip_suffix('*') {
        Some("") => true,
        Some(prefix) => path.starts_with(prefix) && !path.split('/').any(is_ambiguous) && !path.contains("//"),
        None => pattern == path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn resource(verb: &str, resource: &str, namespace: &str) -> Attributes {
        let (group, resource) = resource.split_once(':').unwrap_or(("", resource));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes {
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: namespace.into(),
            name: "web".into(),
            ..Attributes::default()
        }
    }

    fn path(path: &str) -> Attributes {
        Attributes { verb: "get".into(), path: Some(path.into()), ..Attributes::default() }
    }

    /// Decision of the default policy for a request with these attributes in a member.
    #[rstest]
    #[case(path("/healthz"), false)]
    #[case(path("/apis/apps/v1"), false)]
    #[case(path("/openapi/v3"), false)]
    #[case(path("/openapi/../api/v1/namespaces/default/pods/web/exec"), true)]
    #[case(path("/apis//"), true)]
    #[case(path("/metrics"), true)]
    #[case(Attributes { verb: "post".into(), ..path("/apis/x") }, true)]
    #[case(resource("get", "pods/exec", "default"), true)]
    #[case(resource("delete", "apps:deployments", "default"), true)]
    fn default_policy_omits_health_and_discovery(#[case] member_attributes: Attributes, #[case] is_logged: bool) {
        let proxied = resource("get", "example.com:things/proxy", "");
        let decision = Policy::default().decide(&UserInfo::new("alice", ["dev"]), &[&proxied, &member_attributes]);
        let expected = Decision {
            level: Level::Metadata,
            omitted_stages: vec![Stage::RequestReceived],
            omit_managed_fields: false,
        };
        assert_eq!(decision, is_logged.then_some(expected));
    }

    #[rstest]
    #[case("users: [alice]", true)]
    #[case("users: [bob]", false)]
    #[case("userGroups: [dev, ops]", true)]
    #[case("userGroups: [ops]", false)]
    #[case("verbs: [create]", true)]
    #[case("verbs: [get]", false)]
    #[case("namespaces: [default]", true)]
    #[case("namespaces: [other]", false)]
    #[case("resources: [{group: '', resources: [pods/exec]}]", true)]
    #[case("resources: [{group: '', resources: [pods]}]", false)]
    #[case("resources: [{group: '', resources: ['pods/*']}]", true)]
    #[case("resources: [{group: '', resources: ['*/exec']}]", true)]
    #[case("resources: [{group: '', resources: ['*/log']}]", false)]
    #[case("resources: [{group: '', resources: ['*']}]", true)]
    #[case("resources: [{group: '', resources: [pods/exec], resourceNames: [web]}]", true)]
    #[case("resources: [{group: '', resources: [pods/exec], resourceNames: [api]}]", false)]
    #[case("resources: [{group: ''}]", true)]
    #[case("resources: [{group: apps}]", false)]
    #[case("nonResourceURLs: ['*']", false)]
    fn rules_match_attributes(#[case] rule: &str, #[case] expected: bool) {
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: Metadata\n  {rule}\n");
        let policy = Policy::parse(&text).unwrap();
        let attributes = resource("create", "pods/exec", "default");
        assert_eq!(policy.decide(&UserInfo::new("alice", ["dev"]), &[&attributes]).is_some(), expected);
    }

    #[test]
    fn first_matching_rule_decides() {
        let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
            - {level: None, users: [bob]}\n- {level: RequestResponse, omitStages: [ResponseStarted]}\n";
        let policy = Policy::parse(text).unwrap();
        let attributes = resource("get", "pods", "");
        assert_eq!(policy.decide(&UserInfo::new("bob", ["dev"]), &[&attributes]), None);
        let decision = policy.decide(&UserInfo::new("alice", ["dev"]), &[&attributes]).unwrap();
        assert_eq!(decision.omitted_stages, [Stage::RequestReceived, Stage::ResponseStarted]);
        assert_eq!(decision.level, Level::RequestResponse);
    }

    const ALL: &str = "{level: RequestResponse}";
    const CORE: &str = "{level: RequestResponse, resources: [{group: '', resources: ['*', '*/token']}]}";
    const NAMED: &str = "{level: Request, resources: [{group: '', resources: [secrets, serviceaccounts/token]}]}";

    #[rstest]
    #[case(ALL, "pods", Level::RequestResponse)]
    #[case(ALL, "serviceaccounts", Level::RequestResponse)]
    #[case(ALL, "secrets", Level::Metadata)]
    #[case(ALL, "configmaps", Level::Metadata)]
    #[case(ALL, "serviceaccounts/token", Level::Metadata)]
    #[case(ALL, "authentication.k8s.io:tokenreviews", Level::Metadata)]
    #[case(ALL, "example.com:parcels", Level::Metadata)]
    #[case(ALL, "example.com:parcels/status", Level::Metadata)]
    #[case(CORE, "secrets", Level::Metadata)]
    #[case(CORE, "serviceaccounts/token", Level::Metadata)]
    #[case(NAMED, "secrets", Level::Request)]
    #[case(NAMED, "serviceaccounts/token", Level::Request)]
    fn secret_bodies_need_a_rule_with_their_name(
        #[case] rule: &str,
        #[case] resource_name: &str,
        #[case] expected: Level,
    ) {
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- {rule}\n");
        let policy = Policy::parse(&text).unwrap().with_sensitive_resources(&[("example.com", "parcels")]);
        let decision =
            policy.decide(&UserInfo::new("alice", ["dev"]), &[&resource("create", resource_name, "default")]);
        assert_eq!(decision.unwrap().level, expected);
    }

    #[rstest]
    #[case("false", "", false)]
    #[case("true", "", true)]
    #[case("true", ", omitManagedFields: false", false)]
    #[case("false", ", omitManagedFields: true", true)]
    fn rules_override_the_policy(#[case] policy: &str, #[case] rule: &str, #[case] expected: bool) {
        let text = format!(
            "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitManagedFields: {policy}\nrules: [{{level: Request{rule}}}]"
        );
        let decision = Policy::parse(&text).unwrap().decide(&UserInfo::default(), &[&resource("get", "pods", "")]);
        assert_eq!(decision.unwrap().omit_managed_fields, expected);
    }

    #[rstest]
    #[case("kind: Pod\napiVersion: v1", "is not an audit policy")]
    #[case("kind: Policy\napiVersion: audit.k8s.io/v1", "at least one rule")]
    #[case("kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{level: All}]", "All")]
    #[case("kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{level: None, user: [a]}]", "user")]
    #[case(
        "kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{level: None, namespaces: [a], nonResourceURLs: [/a]}]",
        "rules[0]: rules cannot apply to both"
    )]
    #[case(
        "kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{level: None, nonResourceURLs: ['/a*b']}]",
        "rules[0]: "
    )]
    #[case(
        "kind: Policy\napiVersion: audit.k8s.io/v1\nrules: [{level: None, resources: [{resourceNames: [a]}]}]",
        "requires"
    )]
    fn invalid_policies_are_rejected(#[case] text: &str, #[case] expected: &str) {
        let error = Policy::parse(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
