//! Generated RBAC rules: roles, bindings, the users that they name, and objects. The same seed generates the same
//! cases.

use crowsnest_apimachinery::user::{ANONYMOUS, MASTERS, UserInfo};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

pub const NAMESPACES: [&str; 3] = ["lab", "ops", "shop"];
/// Names of objects in every namespace and of nodes. They repeat, so that a rule for one object must not reveal
/// another one of the same name.
const NAMES: [&str; 3] = ["app", "db", "web"];
/// Label of the searched objects.
pub const LABEL: &str = "probe";
const CLUSTER_ROLES: usize = 120;
const AGGREGATED_ROLES: usize = 12;
const ROLES: usize = 120;
const USERS: usize = 240;
const TEAMS: usize = 60;

// Repetition increases the probability.
const VERBS: &[&str] =
    &["get", "get", "get", "list", "list", "list", "watch", "watch", "create", "delete", "update", "*"];
const GROUPS: &[&str] = &["", "", "", "", "apps", "apps", "batch", "extensions", "*"];
const RESOURCES: &[&str] = &[
    "pods",
    "pods",
    "pods",
    "configmaps",
    "configmaps",
    "configmaps",
    "deployments",
    "deployments",
    "nodes",
    "nodes",
    "namespaces",
    "namespaces",
    "services",
    "pods/log",
    "pods/*",
    "deployments/scale",
    "namespaces/status",
    "*/log",
    "*/*",
    "*",
];
const RESOURCE_NAMES: &[&str] = &["app", "app", "db", "web", "shop", "ops", "other", "*", ""];

/// RBAC objects and users.
pub struct Cases {
    rng: StdRng,
    pub users: Vec<UserInfo>,
    pub roles: Vec<Value>,
    pub bindings: Vec<Value>,
}

/// Searched objects: namespaces, nodes, and objects with the same names in several namespaces and kinds.
pub fn objects() -> Vec<Value> {
    let metadata =
        |namespace: Option<&str>, name: &str| json!({"namespace": namespace, "name": name, "labels": {LABEL: "yes"}});
    let containers = json!([{"name": "main", "image": "nginx"}]);
    let mut objects: Vec<Value> = Vec::new();
    objects.extend(
        NAMESPACES.map(|name| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata(None, name)})),
    );
    objects.extend(NAMES.map(|name| json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata(None, name)})));
    for namespace in NAMESPACES {
        for name in &NAMES[..2] {
            let metadata = metadata(Some(namespace), name);
            objects
                .push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"key": "value"}}));
            objects.push(
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}),
            );
            objects.push(json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
                "spec": {"selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}},
                    "spec": {"containers": containers}}}}));
        }
    }
    objects
}

impl Cases {
    pub fn new(seed: u64) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let mut cases = Self { rng, users: Vec::new(), roles: Vec::new(), bindings: Vec::new() };
        for nth in 0..CLUSTER_ROLES {
            let role = cases.cluster_role(nth);
            cases.roles.push(role);
        }
        for nth in 0..AGGREGATED_ROLES {
            let selectors: Vec<Value> = (0..cases.rng.random_range(1..3))
                .map(|_| json!({"matchLabels": {"aggregate": format!("to-{}", cases.rng.random_range(0..AGGREGATED_ROLES))}}))
                .collect();
            cases.roles.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": format!("aggregated-{nth}")},
                "aggregationRule": {"clusterRoleSelectors": selectors}, "rules": []}));
        }
        for nth in 0..ROLES {
            let role = cases.role(nth);
            cases.roles.push(role);
        }
        for nth in 0..USERS {
            let user = cases.user(nth);
            for _ in 0..cases.rng.random_range(0..4) {
                let subjects = vec![cases.subject_of(&user)];
                cases.bind(subjects);
            }
            cases.users.push(user);
        }
        for team in 0..TEAMS {
            cases.bind(vec![group_subject(&format!("team-{team}"))]);
        }
        cases.bind_builtin_groups();
        cases
    }

    /// Other rules for a role created by [`Cases::new`].
    pub fn other_rules(&mut self, role: &Value) -> Value {
        let has_urls = role["kind"] == "ClusterRole";
        let mut role = role.clone();
        role["rules"] = self.rules(has_urls);
        role
    }

    pub fn pick<'v>(&mut self, from: &'v [Value], count: usize) -> Vec<&'v Value> {
        from.choose_multiple(&mut self.rng, count).collect()
    }

    /// Another binding for a random user.
    pub fn add_binding(&mut self) -> Value {
        let user = self.users.choose(&mut self.rng).unwrap().clone();
        let subjects = vec![self.subject_of(&user)];
        self.bind(subjects);
        self.bindings.last().unwrap().clone()
    }

    fn cluster_role(&mut self, nth: usize) -> Value {
        let mut labels = json!({});
        if self.rng.random_bool(0.4) {
            labels["aggregate"] = format!("to-{}", self.rng.random_range(0..AGGREGATED_ROLES)).into();
        }
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": format!("everywhere-{nth}"), "labels": labels}, "rules": self.rules(true)})
    }

    fn role(&mut self, nth: usize) -> Value {
        let namespace = self.choose_one(&NAMESPACES);
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"namespace": namespace, "name": format!("here-{nth}")}, "rules": self.rules(false)})
    }

    fn rules(&mut self, has_urls: bool) -> Value {
        (0..self.rng.random_range(0..4))
            .map(|_| match has_urls && self.rng.random_bool(0.1) {
                true => json!({"verbs": ["get", "list"], "nonResourceURLs": ["/api/*", "*"]}),
                false => self.rule(),
            })
            .collect()
    }

    fn rule(&mut self) -> Value {
        let mut rule = json!({"verbs": self.choose_some(VERBS, 2), "apiGroups": self.choose_some(GROUPS, 2),
            "resources": self.choose_some(RESOURCES, 3)});
        if self.rng.random_bool(0.4) {
            rule["resourceNames"] = self.choose_some(RESOURCE_NAMES, 3);
        }
        rule
    }

    fn user(&mut self, nth: usize) -> UserInfo {
        let mut groups: Vec<String> = Vec::new();
        for _ in 0..self.rng.random_range(0..3) {
            groups.push(format!("team-{}", self.rng.random_range(0..TEAMS)));
        }
        if nth % 60 == 59 {
            groups.push(MASTERS.to_owned());
        }
        let name = match nth {
            0 => ANONYMOUS.to_owned(),
            nth if nth % 4 == 1 => {
                let namespace = self.choose_one(&NAMESPACES);
                groups.extend(["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")]);
                // Few names, so that accounts in other namespaces have the same names.
                format!("system:serviceaccount:{namespace}:robot-{}", nth % 60)
            }
            nth => format!("user-{nth}"),
        };
        UserInfo::new(name, groups)
    }

    /// The subject of the user, or a similar one.
    fn subject_of(&mut self, user: &UserInfo) -> Value {
        if let Some((namespace, name)) =
            user.name.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'))
        {
            let namespace = match self.rng.random_range(0..8) {
                0 => self.choose_one(&NAMESPACES),
                // The namespace of the binding.
                1 => "",
                2 => return user_subject(&user.name),
                _ => namespace,
            };
            return json!({"kind": "ServiceAccount", "name": name, "namespace": namespace});
        }
        match self.rng.random_range(0..20) {
            0 => group_subject(&user.name),
            1 => json!({"kind": "ServiceAccount", "name": user.name, "namespace": "shop"}),
            _ => user_subject(&user.name),
        }
    }

    fn bind(&mut self, mut subjects: Vec<Value>) {
        let is_cluster_wide = self.rng.random_bool(0.35);
        let namespace = self.choose_one(&NAMESPACES);
        let is_cluster_role = is_cluster_wide || self.rng.random_bool(0.5);
        let role = match (is_cluster_role, self.rng.random_range(0..20)) {
            (_, 0) => "missing".to_owned(),
            (true, 1..5) => format!("aggregated-{}", self.rng.random_range(0..AGGREGATED_ROLES)),
            (true, _) => format!("everywhere-{}", self.rng.random_range(0..CLUSTER_ROLES)),
            // Often a role of this namespace, otherwise a missing one.
            (false, _) => {
                let own = self.roles.iter().filter(|role| role["metadata"]["namespace"] == namespace);
                let own: Vec<&Value> = own.collect();
                match own.choose(&mut self.rng) {
                    Some(role) if self.rng.random_bool(0.8) => role["metadata"]["name"].as_str().unwrap().to_owned(),
                    _ => format!("here-{}", self.rng.random_range(0..ROLES)),
                }
            }
        };
        if is_cluster_wide {
            // Cluster role bindings have no namespace to default to.
            for subject in subjects.iter_mut().filter(|subject| subject["namespace"] == "") {
                subject["namespace"] = namespace.into();
            }
        }
        let kind = if is_cluster_role { "ClusterRole" } else { "Role" };
        let name = format!("binding-{}", self.bindings.len());
        let (kind_of_binding, namespace) = match is_cluster_wide {
            true => ("ClusterRoleBinding", Value::Null),
            false => ("RoleBinding", namespace.into()),
        };
        self.bindings.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind_of_binding,
            "metadata": {"namespace": namespace, "name": name}, "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}}));
    }

    /// Grants to groups of every API server, few enough that they do not hide the users' own grants.
    fn bind_builtin_groups(&mut self) {
        let groups = [
            ("system:authenticated", "lab", "configmaps"),
            ("system:unauthenticated", "lab", "pods"),
            ("system:serviceaccounts", "ops", "deployments"),
            ("system:serviceaccounts:shop", "shop", "namespaces"),
        ];
        for (name, namespace, resource) in groups {
            let role = name.replace(':', "-");
            self.roles.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
                "metadata": {"namespace": namespace, "name": role}, "rules": [{"verbs": ["get"], "apiGroups": ["*"],
                "resources": [resource], "resourceNames": ["app", "shop"]}]}));
            self.bindings.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
                "metadata": {"namespace": namespace, "name": role}, "subjects": [group_subject(name)],
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role}}));
        }
    }

    fn choose_one<'s>(&mut self, from: &[&'s str]) -> &'s str {
        from.choose(&mut self.rng).unwrap()
    }

    fn choose_some(&mut self, from: &[&str], max: usize) -> Value {
        (0..self.rng.random_range(1..=max)).map(|_| self.choose_one(from)).collect()
    }
}

fn user_subject(name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name})
}

fn group_subject(name: &str) -> Value {
    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name})
}
