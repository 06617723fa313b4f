//! Generated access reviews, for which an API server and `who-can` must make the same decisions.
//! `.ci/ground system-tests 1.36 access::reviews` sends them to a real kube-apiserver; otherwise the embedded API server is
//! used.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use crowsnest_apimachinery::rbac::access::{Scope, VisibleRbac};
use crowsnest_apimachinery::rbac::{Action, Rbac, Subject};
use crowsnest_apimachinery::user::{
    ANONYMOUS, AUTHENTICATED, MASTERS, UNAUTHENTICATED, service_account_groups, service_account_user,
};
use crowsnest_tests::{Apiserver, Kubectl, find_kubectl, wait_for};
use serde_json::{Value, json};

/// Number of generated reviews.
const REVIEWS: usize = 1_000;
/// Number of requests that kubectl sends without client-side throttling.
const REVIEWS_PER_CALL: usize = 250;
const RBAC: &str = "rbac.authorization.k8s.io";
const NAMESPACES: [&str; 2] = ["reviews-a", "reviews-b"];
/// The cluster, or one of the namespaces.
const SCOPES: [&str; 3] = ["", "reviews-a", "reviews-b"];
/// Verbs of reviews. Those of rules include `*`.
const VERBS: [&str; 7] = ["get", "list", "create", "delete", "escalate", "bind", "impersonate"];
const RULE_VERBS: [&str; 8] = ["get", "list", "create", "delete", "escalate", "bind", "impersonate", "*"];
/// `pods/*` is not a wildcard.
const RULE_RESOURCES: [&str; 10] = [
    "pods",
    "pods/log",
    "pods/*",
    "*/log",
    "*/scale",
    "deployments",
    "deployments/scale",
    "clusterroles",
    "serviceaccounts",
    "*",
];
/// Group, resource and subresource.
const RESOURCES: [(&str, &str, &str); 7] = [
    ("", "pods", ""),
    ("", "pods", "log"),
    ("apps", "deployments", ""),
    ("apps", "deployments", "scale"),
    (RBAC, "clusterroles", ""),
    ("", "serviceaccounts", ""),
    ("", "services", ""),
];
/// All asterisks at the end are one wildcard.
const RULE_PATHS: [&str; 7] = ["/healthz", "/apis/*", "/reviews", "/reviews/*", "/rev*", "/review**", "*"];
/// Verbs are case-sensitive: `GET` is not `get`.
const PATH_VERBS: [&str; 3] = ["get", "post", "GET"];
const PATHS: [&str; 5] = ["/healthz", "/apis/apps", "/reviews", "/reviews/x", "/revision"];
const BOUND_USERS: [&str; 4] = ["ann", "bob", ANONYMOUS, "system:serviceaccount:reviews-b:web"];
const BOUND_GROUPS: [&str; 6] =
    ["staff", "ops", "system:serviceaccounts", "system:serviceaccounts:reviews-a", AUTHENTICATED, UNAUTHENTICATED];

/// Generates the same objects and reviews in each run.
struct Generator(u64);

impl Generator {
    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items[usize::try_from(self.0 >> 33).unwrap_or_default() % items.len()]
    }

    fn pick_two<T: Copy>(&mut self, items: &[T]) -> [T; 2] {
        [self.pick(items), self.pick(items)]
    }

    fn rule(&mut self) -> Value {
        let names = self.pick::<&[&str]>(&[&[], &[], &["x"], &["x", "y"]]);
        json!({
            "resourceNames": names,
            "verbs": self.pick_two(&RULE_VERBS),
            "apiGroups": self.pick_two(&["", "apps", RBAC, "*"]),
            "resources": self.pick_two(&RULE_RESOURCES),
        })
    }

    fn role(&mut self, nth: usize) -> Value {
        let (namespace, mut rules) = (self.pick(&SCOPES), vec![self.rule(), self.rule()]);
        if namespace.is_empty() {
            let verb = self.pick(&["get", "post", "*"]);
            rules.push(json!({"verbs": [verb], "nonResourceURLs": self.pick_two(&RULE_PATHS)}));
        }
        let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
        object(kind, namespace, &format!("reviews-{nth}"), json!({"rules": rules}))
    }

    fn subject(&mut self) -> Value {
        match self.pick(&["User", "Group", "ServiceAccount"]) {
            "User" => json!({"apiGroup": RBAC, "kind": "User", "name": self.pick(&BOUND_USERS)}),
            "Group" => json!({"apiGroup": RBAC, "kind": "Group", "name": self.pick(&BOUND_GROUPS)}),
            kind => {
                let (namespace, name) = (self.pick(&NAMESPACES), self.pick(&["robot", "web"]));
                json!({"kind": kind, "namespace": namespace, "name": name})
            }
        }
    }

    /// A binding of a role. A ClusterRole is bound in the cluster or in a namespace. Some bindings reference a role that
    /// does not exist.
    fn binding(&mut self, nth: usize, role: &Value) -> Value {
        let role_namespace = role["metadata"]["namespace"].as_str();
        let namespace = role_namespace.unwrap_or_else(|| self.pick(&SCOPES)).to_owned();
        let kind = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
        let name =
            if nth.is_multiple_of(10) { "reviews-gone" } else { role["metadata"]["name"].as_str().unwrap_or_default() };
        let reference = json!({"apiGroup": RBAC, "kind": role["kind"], "name": name});
        let fields = json!({"roleRef": reference, "subjects": [self.subject(), self.subject()]});
        object(kind, &namespace, &format!("reviews-{nth}"), fields)
    }

    /// Spec of a review, with only the fields `user` and `groups`.
    fn review_subject(&mut self) -> Value {
        let kinds = ["ann", "ann", "bob", "bob", "account", "account", "account", "anonymous", "group", "master"];
        match self.pick(&kinds) {
            "account" => {
                let (namespace, name) = (self.pick(&NAMESPACES), self.pick(&["robot", "web"]));
                let mut groups = service_account_groups(namespace).to_vec();
                groups.push(AUTHENTICATED.to_owned());
                json!({"user": service_account_user(namespace, name), "groups": groups})
            }
            "anonymous" => json!({"user": ANONYMOUS, "groups": [UNAUTHENTICATED]}),
            "group" => json!({"groups": [self.pick(&["staff", "ops", "others"])]}),
            "master" => json!({"user": "ann", "groups": [MASTERS]}),
            name => json!({"user": name, "groups": [self.pick(&["staff", "ops", "others"]), AUTHENTICATED]}),
        }
    }

    fn review(&mut self, nth: usize) -> Value {
        let mut spec = self.review_subject();
        if nth.is_multiple_of(5) {
            let (verb, path) = (self.pick(&PATH_VERBS), self.pick(&PATHS));
            spec["nonResourceAttributes"] = json!({"verb": verb, "path": path});
        } else {
            let ((group, resource, subresource), verb) = (self.pick(&RESOURCES), self.pick(&VERBS));
            let (namespace, name) = (self.pick(&SCOPES), self.pick(&["", "x", "y"]));
            spec["resourceAttributes"] = json!({"verb": verb, "group": group, "resource": resource,
                "subresource": subresource, "namespace": namespace, "name": name});
        }
        review(spec)
    }
}

fn review(spec: Value) -> Value {
    let mut review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"});
    review["spec"] = spec;
    review
}

/// A ClusterRole that aggregates another one, and its binding to a group. It has the rules that a controller would add, because
/// an API server alone aggregates no roles.
fn aggregated_role() -> [Value; 3] {
    let rules = json!([{"verbs": ["watch"], "apiGroups": ["apps"], "resources": ["statefulsets"]}]);
    let mut part = object("ClusterRole", "", "reviews-part", json!({"rules": rules}));
    part["metadata"]["labels"] = json!({"reviews": "part"});
    let selectors = json!([{"matchLabels": {"reviews": "part"}}]);
    let fields = json!({"rules": rules, "aggregationRule": {"clusterRoleSelectors": selectors}});
    let whole = object("ClusterRole", "", "reviews-whole", fields);
    let reference = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": "reviews-whole"});
    let subjects = json!([{"apiGroup": RBAC, "kind": "Group", "name": "watchers"}]);
    let fields = json!({"roleRef": reference, "subjects": subjects});
    [part, whole, object("ClusterRoleBinding", "", "reviews-whole", fields)]
}

/// Reviews of the group of [`aggregated_role`] and of another one.
fn aggregated_reviews() -> [Value; 2] {
    ["watchers", "others"].map(|group| {
        let attributes =
            json!({"verb": "watch", "group": "apps", "resource": "statefulsets", "namespace": "reviews-a"});
        review(json!({"groups": [group], "resourceAttributes": attributes}))
    })
}

/// Names of the classes to which a review belongs: one for its user, and one for each of its attributes.
fn classes(spec: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let mut classes = vec![format!("user {}", text(&spec["user"]))];
    if path.is_object() {
        classes.extend(["verb", "path"].map(|field| format!("path: {field} {}", text(&path[field]))));
        return classes;
    }
    classes.extend(["verb", "namespace", "name"].map(|field| format!("{field} {}", text(&resource[field]))));
    classes.push(format!("{}/{}", text(&resource["resource"]), text(&resource["subresource"])));
    classes
}

/// Fails unless reviews of each class are allowed and refused, except those of `system:masters`.
fn ensure_variety(reviews: &[Value], expected: &[bool]) -> Result<()> {
    let mut decisions: BTreeMap<String, BTreeSet<bool>> = BTreeMap::new();
    for (review, allowed) in reviews.iter().zip(expected) {
        let spec = &review["spec"];
        for class in classes(spec).into_iter().filter(|_| !is_in_masters(spec)) {
            decisions.entry(class).or_default().insert(*allowed);
        }
    }
    let uniform: Vec<_> = decisions.iter().filter(|(_, decisions)| decisions.len() < 2).collect();
    ensure!(
        uniform.is_empty() && decisions.len() > 25,
        "{} classes; only one decision in {uniform:?}",
        decisions.len()
    );
    Ok(())
}

fn is_in_masters(spec: &Value) -> bool {
    spec["groups"].as_array().into_iter().flatten().any(|group| group == MASTERS)
}

/// An RBAC object with these fields.
fn object(kind: &str, namespace: &str, name: &str, mut fields: Value) -> Value {
    fields["apiVersion"] = format!("{RBAC}/v1").into();
    fields["kind"] = kind.into();
    fields["metadata"] = json!({"name": name});
    if !namespace.is_empty() {
        fields["metadata"]["namespace"] = namespace.into();
    }
    fields
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

/// All RBAC objects that the server stores, including its default roles.
fn stored_rules(kubectl: &Kubectl) -> Result<Rbac> {
    let kinds = "clusterroles,roles,clusterrolebindings,rolebindings";
    let stored: Value = serde_json::from_str(&kubectl.run_ok(&["get", kinds, "-A", "-o", "json"], "")?)?;
    let mut rbac = Rbac::default();
    for item in stored["items"].as_array().context("the list has no items")? {
        let namespace = item["metadata"]["namespace"].as_str().unwrap_or_default();
        let name = item["metadata"]["name"].as_str().context("an RBAC object has no name")?;
        if item.get("roleRef").is_some() {
            rbac.put_binding(namespace, name, serde_json::from_value(item.clone())?);
        } else {
            rbac.put_role(namespace, name, serde_json::from_value(item.clone())?);
        }
    }
    Ok(rbac)
}

/// True if `who-can` lists the user of a review, or one of its groups. It lists `system:masters` without a binding.
fn is_listed(rbac: &Rbac, spec: &Value) -> bool {
    if is_in_masters(spec) {
        return true;
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (resource, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    let action = if path.is_object() {
        Action::Path { verb: text(&path["verb"]), path: text(&path["path"]) }
    } else {
        Action::Resource {
            verb: text(&resource["verb"]),
            group: text(&resource["group"]),
            resource: text(&resource["resource"]),
            subresource: text(&resource["subresource"]),
            namespace: String::new(),
            name: text(&resource["name"]),
        }
    };
    let user = text(&spec["user"]);
    let account = user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let user_subject =
        account.map_or_else(|| Subject::user(&user), |(namespace, name)| Subject::service_account(namespace, name));
    let groups = spec["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).map(Subject::group);
    let subjects: Vec<Subject> = groups.chain([user_subject]).collect();
    let view = VisibleRbac { rbac, is_visible: &|_, _, _| true };
    let scope = Scope::from_namespace(&text(&resource["namespace"]));
    view.who_can(&action, &scope).proofs.iter().any(|proof| subjects.contains(&proof.subject))
}

/// The decisions of the server.
fn send_reviews(kubectl: &Kubectl, reviews: &[Value]) -> Result<Vec<bool>> {
    let mut decisions = Vec::new();
    for reviews in reviews.chunks(REVIEWS_PER_CALL) {
        let out = kubectl.run_ok(&["create", "--validate=false", "-f", "-", "-o", "json"], &list(reviews))?;
        for response in serde_json::Deserializer::from_str(&out).into_iter::<Value>() {
            decisions.push(response?["status"]["allowed"] == true);
        }
    }
    Ok(decisions)
}

#[test]
fn generated_reviews_have_the_decisions_of_an_api_server() -> Result<()> {
    let Some(program) = find_kubectl("")? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let server = Apiserver::start(&dir.path().join("cp"))?;
    let kubectl = Kubectl::new("any", program, &server.kubeconfig, &dir.path().join("kubectl"))?;
    let mut generator = Generator(57);
    let roles: Vec<Value> = (0..20).map(|nth| generator.role(nth)).collect();
    let bindings = (0..24).map(|nth| generator.binding(nth, &roles[nth % roles.len()])).collect::<Vec<_>>();
    let namespaces =
        NAMESPACES.map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    let objects = [&namespaces[..], &roles, &bindings, &aggregated_role()].concat();
    kubectl.run_ok(&["create", "-f", "-"], &list(&objects))?;
    let generated = (0..REVIEWS).map(|nth| generator.review(nth)).collect::<Vec<_>>();
    let reviews = [&generated[..], &aggregated_reviews()].concat();
    let rbac = stored_rules(&kubectl)?;
    let expected: Vec<bool> = reviews.iter().map(|review| is_listed(&rbac, &review["spec"])).collect();
    ensure_variety(&generated, &expected)?;
    ensure!(expected.ends_with(&[true, false]), "the rules of the aggregated role are not evaluated");
    // An API server applies new rules after a moment.
    let mut deviations = Vec::new();
    let result = wait_for("the API server to make the decisions of who-can", || {
        let decisions = send_reviews(&kubectl, &reviews)?;
        ensure!(decisions.len() == reviews.len(), "{} responses", decisions.len());
        let pairs = reviews.iter().zip(expected.iter().zip(&decisions));
        deviations = pairs.filter(|(_, (expected, decision))| expected != decision).map(|(review, _)| review).collect();
        Ok(deviations.is_empty())
    });
    result.with_context(|| format!("{deviations:#?}"))
}
