//! Permissions that RBAC objects grant to an account, one verb on one resource or path each.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::Result;
use crowsnest_tests::Kubectl;
use serde_json::Value;

const KINDS: &str = "clusterroles,roles,clusterrolebindings,rolebindings";

/// One verb on one target. Resources are in kubectl notation, `deployments/scale.apps`; paths begin with a slash.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// Kind, namespace and name of the role.
    pub role: String,
    pub verb: String,
    pub target: String,
    /// Object name, if the rule has resource names.
    pub name: Option<String>,
    /// Namespace, if a RoleBinding limits the permission to one.
    pub namespace: Option<String>,
}

impl Grant {
    /// True if the target is a resource. Paths begin with a slash; an asterisk alone is all paths.
    pub fn is_on_resources(&self) -> bool {
        !self.target.starts_with('/') && self.target != "*"
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} grants {} on {}", self.role, self.verb, self.target)?;
        self.name.as_ref().map_or(Ok(()), |name| write!(f, " {name}"))
    }
}

/// Identity of an authenticated user.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    pub user: String,
    pub groups: BTreeSet<String>,
}

impl Identity {
    fn matches(&self, subject: &Value) -> bool {
        let field = |name: &str| subject[name].as_str().unwrap_or_default();
        match field("kind") {
            "User" => self.user == field("name"),
            "Group" => self.groups.contains(field("name")),
            _ => self.user == format!("system:serviceaccount:{}:{}", field("namespace"), field("name")),
        }
    }
}

/// All roles and bindings of an API server.
pub struct Rbac {
    objects: Vec<Value>,
}

impl Rbac {
    pub fn read(kubectl: &Kubectl) -> Result<Self> {
        let list: Value = serde_json::from_str(&kubectl.run_ok(&["get", KINDS, "-A", "-o", "json"], "")?)?;
        Ok(Self { objects: list["items"].as_array().cloned().unwrap_or_default() })
    }

    pub fn new(objects: Vec<Value>) -> Self {
        Self { objects }
    }

    /// Bindings by their [`kind_and_name`].
    pub fn bindings(&self) -> BTreeMap<String, &Value> {
        let bindings =
            self.objects.iter().filter(|object| object["kind"].as_str().is_some_and(|k| k.ends_with("Binding")));
        bindings.map(|binding| (kind_and_name(binding), binding)).collect()
    }

    /// The permissions of an identity by all bindings except those in `ignored`, and the bindings that grant them.
    pub fn grants(&self, identity: &Identity, ignored: &BTreeSet<String>) -> (BTreeSet<Grant>, BTreeSet<String>) {
        let (mut grants, mut granting_bindings) = (BTreeSet::new(), BTreeSet::new());
        for (name, binding) in self.bindings() {
            if ignored.contains(&name) || !list(&binding["subjects"]).any(|subject| identity.matches(subject)) {
                continue;
            }
            grants.extend(
                self.role_of(binding).iter().flat_map(|role| grants_of(role, &binding["metadata"]["namespace"])),
            );
            granting_bindings.insert(name);
        }
        (grants, granting_bindings)
    }

    fn role_of(&self, binding: &Value) -> Option<&Value> {
        let reference = &binding["roleRef"];
        self.objects.iter().find(|role| {
            role["kind"] == reference["kind"]
                && role["metadata"]["name"] == reference["name"]
                && (role["kind"] == "ClusterRole" || role["metadata"]["namespace"] == binding["metadata"]["namespace"])
        })
    }
}

/// Kind, namespace and name of an object: `Role kube-public/reader`, `ClusterRole view`.
pub fn kind_and_name(object: &Value) -> String {
    let text = |at: &str| object.pointer(at).and_then(Value::as_str).unwrap_or_default();
    let namespace = match text("/metadata/namespace") {
        "" => String::new(),
        namespace => format!("{namespace}/"),
    };
    format!("{} {namespace}{}", text("/kind"), text("/metadata/name"))
}

fn grants_of(role: &Value, namespace: &Value) -> Vec<Grant> {
    let namespace = namespace.as_str().map(str::to_owned);
    let mut grants = Vec::new();
    for rule in list(&role["rules"]) {
        let mut targets: Vec<String> = texts(&rule["nonResourceURLs"]).map(str::to_owned).collect();
        for group in texts(&rule["apiGroups"]) {
            targets.extend(texts(&rule["resources"]).map(|resource| target(group, resource)));
        }
        let names: Vec<Option<String>> = match texts(&rule["resourceNames"]).map(|name| Some(name.to_owned())).collect()
        {
            names if Vec::is_empty(&names) => vec![None],
            names => names,
        };
        for target in targets {
            for verb in texts(&rule["verbs"]) {
                grants.extend(names.iter().map(|name| Grant {
                    role: kind_and_name(role),
                    verb: verb.to_owned(),
                    target: target.clone(),
                    name: name.clone(),
                    namespace: namespace.clone(),
                }));
            }
        }
    }
    grants
}

/// A resource in kubectl notation.
pub fn target(group: &str, resource: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    list(value).filter_map(Value::as_str)
}
