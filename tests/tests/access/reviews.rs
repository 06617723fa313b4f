//! Generated access reviews that an API server decides as `who-can` does. `.ci/ground system-tests 1.36 access::reviews` sends
//! them to a real kube-apiserver, otherwise the embedded one is used.

use anyhow::{Context, Result, ensure};
use crowsnest_apimachinery::rbac::access::{Scope, VisibleRbac};
use crowsnest_apimachinery::rbac::{Action, Rbac, Subject};
use crowsnest_apimachinery::user::{service_account_groups, service_account_user};
use crowsnest_tests::{Apiserver, Kubectl, find_kubectl, wait_for};
use serde_json::{Value, json};

/// kubectl sends this many requests without a delay.
const REVIEWS: usize = 250;
const RBAC: &str = "rbac.authorization.k8s.io";
const NAMESPACES: [&str; 2] = ["reviews-a", "reviews-b"];
/// The cluster, or one of the namespaces.
const SCOPES: [&str; 3] = ["", "reviews-a", "reviews-b"];

/// Generates the same objects and reviews in each run.
struct Generator(u64);

impl Generator {
    fn pick<'w>(&mut self, words: &[&'w str]) -> &'w str {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        words[usize::try_from(self.0 >> 33).unwrap_or_default() % words.len()]
    }

    fn pick_two<'w>(&mut self, words: &[&'w str]) -> [&'w str; 2] {
        [self.pick(words), self.pick(words)]
    }

    fn rule(&mut self) -> Value {
        let names = if self.pick(&["all", "all", "one"]) == "one" { vec![self.pick(&["x", "y"])] } else { Vec::new() };
        json!({
            "verbs": self.pick_two(&["get", "list", "create", "*"]),
            "apiGroups": self.pick_two(&["", "apps", "*"]),
            "resources": self.pick_two(&["pods", "pods/log", "*/log", "*/scale", "deployments", "deployments/scale", "*"]),
            "resourceNames": names,
        })
    }

    fn role(&mut self, nth: usize) -> Value {
        let (namespace, mut rules) = (self.pick(&SCOPES), vec![self.rule(), self.rule()]);
        if namespace.is_empty() {
            let urls = self.pick_two(&["/healthz", "/apis/*", "/reviews", "/reviews/*"]);
            rules.push(json!({"verbs": ["get"], "nonResourceURLs": urls}));
        }
        let kind = if namespace.is_empty() { "ClusterRole" } else { "Role" };
        object(kind, namespace, &format!("reviews-{nth}"), json!({"rules": rules}))
    }

    fn subject(&mut self) -> Value {
        match self.pick(&["User", "Group", "ServiceAccount"]) {
            "User" => json!({"apiGroup": RBAC, "kind": "User", "name": self.pick(&["ann", "bob"])}),
            "Group" => {
                let name = self.pick(&["staff", "ops", "system:serviceaccounts:reviews-a"]);
                json!({"apiGroup": RBAC, "kind": "Group", "name": name})
            }
            kind => json!({"kind": kind, "namespace": self.pick(&NAMESPACES), "name": self.pick(&["robot", "web"])}),
        }
    }

    /// A binding of a role; of a ClusterRole in the cluster or in a namespace.
    fn binding(&mut self, nth: usize, role: &Value) -> Value {
        let own = role["metadata"]["namespace"].as_str();
        let namespace = own.unwrap_or_else(|| self.pick(&SCOPES)).to_owned();
        let kind = if namespace.is_empty() { "ClusterRoleBinding" } else { "RoleBinding" };
        let name =
            if nth.is_multiple_of(10) { "reviews-gone" } else { role["metadata"]["name"].as_str().unwrap_or_default() };
        let reference = json!({"apiGroup": RBAC, "kind": role["kind"], "name": name});
        let fields = json!({"roleRef": reference, "subjects": [self.subject(), self.subject()]});
        object(kind, &namespace, &format!("reviews-{nth}"), fields)
    }

    fn review(&mut self, nth: usize) -> Value {
        let mut spec = match self.pick(&["ann", "bob", "account"]) {
            "account" => {
                let (namespace, name) = (self.pick(&NAMESPACES), self.pick(&["robot", "web"]));
                json!({"user": service_account_user(namespace, name), "groups": service_account_groups(namespace)})
            }
            name => json!({"user": name, "groups": [self.pick(&["staff", "ops", "others"])]}),
        };
        if nth.is_multiple_of(5) {
            let path = self.pick(&["/healthz", "/apis/apps", "/reviews", "/reviews/x"]);
            spec["nonResourceAttributes"] = json!({"verb": "get", "path": path});
        } else {
            let resource = self.pick(&["pods", "pods/log", "deployments", "deployments/scale", "services"]);
            let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
            spec["resourceAttributes"] = json!({
                "verb": self.pick(&["get", "list", "create", "delete"]),
                "group": self.pick(&["", "apps"]),
                "resource": resource,
                "subresource": subresource,
                "namespace": self.pick(&SCOPES),
                "name": self.pick(&["", "x", "y"]),
            });
        }
        json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
    }
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

/// The rules that the server has, also those of its own roles.
fn stored_rules(kubectl: &Kubectl) -> Result<Rbac> {
    let kinds = "clusterroles,roles,clusterrolebindings,rolebindings";
    let stored: Value = serde_json::from_str(&kubectl.run_ok(&["get", kinds, "-A", "-o", "json"], "")?)?;
    let mut rbac = Rbac::default();
    for item in stored["items"].as_array().context("items")? {
        let namespace = item["metadata"]["namespace"].as_str().unwrap_or_default();
        let name = item["metadata"]["name"].as_str().context("a name")?;
        if item.get("roleRef").is_some() {
            rbac.put_binding(namespace, name, serde_json::from_value(item.clone())?);
        } else {
            rbac.put_role(namespace, name, serde_json::from_value(item.clone())?);
        }
    }
    Ok(rbac)
}

/// True if `who-can` lists the user of a review, or one of its groups.
fn is_listed(rbac: &Rbac, spec: &Value) -> bool {
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
    let itself =
        account.map_or_else(|| Subject::user(&user), |(namespace, name)| Subject::service_account(namespace, name));
    let groups = spec["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).map(Subject::group);
    let subjects: Vec<Subject> = groups.chain([itself]).collect();
    let view = VisibleRbac { rbac, is_visible: &|_, _, _| true };
    let scope = Scope::from_namespace(&text(&resource["namespace"]));
    view.who_can(&action, &scope).proofs.iter().any(|proof| subjects.contains(&proof.subject))
}

/// The decisions of the server.
fn send_reviews(kubectl: &Kubectl, reviews: &[Value]) -> Result<Vec<bool>> {
    let out = kubectl.run_ok(&["create", "--validate=false", "-f", "-", "-o", "json"], &list(reviews))?;
    let responses = serde_json::Deserializer::from_str(&out).into_iter::<Value>();
    let decisions = responses.map(|response| -> Result<bool> { Ok(response?["status"]["allowed"] == true) });
    decisions.collect()
}

#[test]
fn generated_reviews_have_the_decisions_of_an_api_server() -> Result<()> {
    let Some(program) = find_kubectl("")? else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let server = Apiserver::start(&dir.path().join("cp"))?;
    let kubectl = Kubectl::new("any", program, &server.kubeconfig, &dir.path().join("kubectl"))?;
    let mut generator = Generator(2);
    let roles: Vec<Value> = (0..20).map(|nth| generator.role(nth)).collect();
    let bindings = (0..24).map(|nth| generator.binding(nth, &roles[nth % roles.len()])).collect::<Vec<_>>();
    let namespaces =
        NAMESPACES.map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}));
    kubectl.run_ok(&["create", "-f", "-"], &list(&[&namespaces[..], &roles, &bindings].concat()))?;
    let reviews: Vec<Value> = (0..REVIEWS).map(|nth| generator.review(nth)).collect();
    let rbac = stored_rules(&kubectl)?;
    let expected: Vec<bool> = reviews.iter().map(|review| is_listed(&rbac, &review["spec"])).collect();
    let allowed = expected.iter().filter(|allowed| **allowed).count();
    ensure!((REVIEWS / 10..REVIEWS * 9 / 10).contains(&allowed), "{allowed} of {REVIEWS} are allowed");
    // An API server applies new rules after a moment.
    let mut differing = Vec::new();
    let agreed = wait_for("the API server to decide as who-can does", || {
        let decided = send_reviews(&kubectl, &reviews)?;
        ensure!(decided.len() == REVIEWS, "{} responses", decided.len());
        let pairs = reviews.iter().zip(expected.iter().zip(&decided));
        differing = pairs.filter(|(_, (expected, decided))| expected != decided).map(|(review, _)| review).collect();
        Ok(differing.is_empty())
    });
    agreed.with_context(|| format!("{differing:#?}"))
}
