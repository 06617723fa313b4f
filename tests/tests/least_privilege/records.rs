//! Permissions that accounts used, from the audit log of an API server: allowed requests, impersonated users, and
//! SubjectAccessReviews about the accounts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use crate::least_privilege::grants::{Grant, target};

/// Permission that one request needs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Use {
    pub verb: String,
    pub target: String,
    pub namespace: String,
    pub name: String,
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.target)
    }
}

impl Use {
    fn new(verb: &str, target: String, namespace: &str, name: &str) -> Self {
        Self { verb: verb.to_owned(), target, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// True if the request needed the grant. A wildcard is never needed, because it grants more than any request needs.
    pub fn needs(&self, grant: &Grant) -> bool {
        let is_on_target = match grant.target.strip_suffix('*') {
            Some(prefix) if prefix.starts_with('/') => self.target.starts_with(prefix),
            _ => self.target == grant.target,
        };
        is_on_target
            && self.verb == grant.verb
            && grant.name.as_ref().is_none_or(|name| *name == self.name)
            && grant.namespace.as_ref().is_none_or(|namespace| *namespace == self.namespace)
    }
}

/// Permissions that one user used.
#[derive(Debug, Default)]
pub struct Record {
    pub groups: BTreeSet<String>,
    pub uses: BTreeSet<Use>,
}

impl Record {
    /// The number of collections that are watched.
    pub fn watches(&self) -> usize {
        self.uses.iter().filter(|used| used.verb == "watch").count()
    }
}

/// Used permissions by user name.
pub type Records = BTreeMap<String, Record>;

/// Reads the lines of an audit log.
pub fn parse_records(log: &str) -> Records {
    let mut records = Records::new();
    // The last line may be incomplete because it is being written.
    for event in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if let Some((user, needed)) = parse_review(&event) {
            records.entry(user).or_default().uses.insert(needed);
        }
        if event.pointer("/annotations/authorization.k8s.io~1decision").is_some_and(|decision| decision == "allow") {
            let record = records.entry(text(&event, "/user/username").to_owned()).or_default();
            record.groups.extend(texts(&event["user"]["groups"]).map(str::to_owned));
            record.uses.extend(used_permissions(&event));
        }
    }
    records
}

/// The permissions that a request used. For an impersonated request this is the permission to impersonate, not the permission for the
/// request itself.
fn used_permissions(event: &Value) -> Vec<Use> {
    if let Some(subject) = event.get("impersonatedUser") {
        return impersonations(subject);
    }
    let verb = text(event, "/verb");
    let reference = &event["objectRef"];
    if reference.is_null() {
        let path = text(event, "/requestURI").split('?').next().unwrap_or_default();
        return vec![Use::new(verb, path.to_owned(), "", "")];
    }
    let field = |name: &str| reference[name].as_str().unwrap_or_default();
    let resource = with_subresource(field("resource"), field("subresource"));
    vec![Use::new(verb, target(field("apiGroup"), &resource), field("namespace"), field("name"))]
}

fn impersonations(subject: &Value) -> Vec<Use> {
    const GROUP: &str = "authentication.k8s.io";
    let user = text(subject, "/username");
    let account = user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
    let mut uses = vec![match account {
        Some((namespace, name)) => Use::new("impersonate", "serviceaccounts".to_owned(), namespace, name),
        None => Use::new("impersonate", "users".to_owned(), "", user),
    }];
    uses.extend(texts(&subject["groups"]).map(|group| Use::new("impersonate", "groups".to_owned(), "", group)));
    for (key, values) in subject["extra"].as_object().into_iter().flatten() {
        let resource = target(GROUP, &with_subresource("userextras", key));
        uses.extend(texts(values).map(|value| Use::new("impersonate", resource.clone(), "", value)));
    }
    uses
}

/// The user of a SubjectAccessReview and the reviewed permission. The approval of a certificate, for example, reviews a
/// permission on a resource that does not exist.
fn parse_review(event: &Value) -> Option<(String, Use)> {
    let spec = event.pointer("/requestObject/spec")?;
    let attributes = spec.get("resourceAttributes")?;
    let field = |name: &str| attributes[name].as_str().unwrap_or_default();
    let resource = with_subresource(field("resource"), field("subresource"));
    let needed = Use::new(field("verb"), target(field("group"), &resource), field("namespace"), field("name"));
    Some((text(spec, "/user").to_owned(), needed))
}

fn with_subresource(resource: &str, subresource: &str) -> String {
    if subresource.is_empty() { resource.to_owned() } else { format!("{resource}/{subresource}") }
}

fn text<'a>(value: &'a Value, at: &str) -> &'a str {
    value.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}
