//! The ClusterRoles and bindings every cluster starts with (labelled `kubernetes.io/bootstrapping: rbac-defaults`).
//!
//! Made at start when absent; the discovery, user-facing and controller roles that kubectl users and tools meet. `admin`, `edit` and
//! `view` aggregate their `system:aggregate-to-*` parts, as in kube-apiserver.

use serde_json::{Value, json};

const READ: &[&str] = &["get", "list", "watch"];
const WRITE: &[&str] = &["create", "delete", "deletecollection", "patch", "update"];
const ALL: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// Every default object, roles before bindings.
pub fn default_objects() -> Vec<Value> {
    let mut objects = roles();
    objects.extend(bindings());
    objects
}

fn metadata(name: &str, labels: &[(&str, &str)]) -> Value {
    let mut all = json!({"kubernetes.io/bootstrapping": "rbac-defaults"});
    for (key, value) in labels {
        all[*key] = json!(value);
    }
    json!({"name": name, "labels": all, "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"}})
}

fn role(name: &str, labels: &[(&str, &str)], rules: Vec<Value>) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata(name, labels), "rules": rules})
}

fn aggregating(name: &str, labels: &[(&str, &str)]) -> Value {
    let key = format!("rbac.authorization.k8s.io/aggregate-to-{name}");
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": metadata(name, labels), "rules": [],
           "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {key: "true"}}]}})
}

fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs})
}

fn urls(urls: &[&str]) -> Value {
    json!({"nonResourceURLs": urls, "verbs": ["get"]})
}

fn roles() -> Vec<Value> {
    let everything = vec![rule(&["*"], &["*"], &["*"]), json!({"nonResourceURLs": ["*"], "verbs": ["*"]})];
    let discovery = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
        "/version/",
    ];
    vec![
        role("cluster-admin", &[], everything),
        role("system:discovery", &[], vec![urls(&discovery)]),
        role("system:public-info-viewer", &[], vec![urls(&["/healthz", "/livez", "/readyz", "/version", "/version/"])]),
        role(
            "system:monitoring",
            &[],
            vec![urls(&[
                "/healthz",
                "/healthz/*",
                "/livez",
                "/livez/*",
                "/metrics",
                "/metrics/slis",
                "/readyz",
                "/readyz/*",
            ])],
        ),
        role(
            "system:service-account-issuer-discovery",
            &[],
            vec![urls(&[
                "/.well-known/openid-configuration",
                "/.well-known/openid-configuration/",
                "/openid/v1/jwks",
                "/openid/v1/jwks/",
            ])],
        ),
        role("system:well-known-discovery", &[], vec![urls(&["/.well-known", "/.well-known/*"])]),
        role(
            "system:basic-user",
            &[],
            vec![
                rule(&["create"], &["authorization.k8s.io"], &["selfsubjectaccessreviews", "selfsubjectrulesreviews"]),
                rule(&["create"], &["authentication.k8s.io"], &["selfsubjectreviews"]),
            ],
        ),
        role(
            "system:auth-delegator",
            &[],
            vec![
                rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
                rule(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews"]),
            ],
        ),
        role(
            "system:node-bootstrapper",
            &[],
            vec![rule(&["create", "get", "list", "watch"], &["certificates.k8s.io"], &["certificatesigningrequests"])],
        ),
        role("system:kube-controller-manager", &[], controller_manager_rules()),
        role("system:controller:generic-garbage-collector", &[], collector_rules()),
        role(
            "system:controller:namespace-controller",
            &[],
            vec![
                rule(&["get", "list", "watch"], &[""], &["namespaces"]),
                rule(&["update"], &[""], &["namespaces/finalize", "namespaces/status"]),
                rule(&["delete", "deletecollection", "get", "list"], &["*"], &["*"]),
            ],
        ),
        role(
            "system:controller:resourcequota-controller",
            &[],
            vec![
                rule(&["list", "watch"], &["*"], &["*"]),
                rule(&["update"], &[""], &["resourcequotas/status"]),
                rule(&["create", "patch", "update"], &["", "events.k8s.io"], &["events"]),
            ],
        ),
        aggregating("admin", &[]),
        aggregating("edit", &[("rbac.authorization.k8s.io/aggregate-to-admin", "true")]),
        aggregating("view", &[("rbac.authorization.k8s.io/aggregate-to-edit", "true")]),
        role("system:aggregate-to-admin", &[("rbac.authorization.k8s.io/aggregate-to-admin", "true")], admin_rules()),
        role("system:aggregate-to-edit", &[("rbac.authorization.k8s.io/aggregate-to-edit", "true")], edit_rules()),
        role("system:aggregate-to-view", &[("rbac.authorization.k8s.io/aggregate-to-view", "true")], view_rules()),
    ]
}

fn admin_rules() -> Vec<Value> {
    vec![
        rule(&["create"], &["authorization.k8s.io"], &["localsubjectaccessreviews"]),
        rule(ALL, &["rbac.authorization.k8s.io"], &["rolebindings", "roles"]),
    ]
}

const WORKLOADS: &[&str] = &[
    "daemonsets",
    "deployments",
    "deployments/scale",
    "replicasets",
    "replicasets/scale",
    "statefulsets",
    "statefulsets/scale",
];

fn edit_rules() -> Vec<Value> {
    vec![
        rule(READ, &[""], &["pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "secrets", "services/proxy"]),
        rule(&["impersonate"], &[""], &["serviceaccounts"]),
        rule(WRITE, &[""], &["pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy"]),
        rule(&["create"], &[""], &["pods/eviction"]),
        rule(
            WRITE,
            &[""],
            &[
                "configmaps",
                "events",
                "persistentvolumeclaims",
                "replicationcontrollers",
                "replicationcontrollers/scale",
                "secrets",
                "serviceaccounts",
                "services",
                "services/proxy",
            ],
        ),
        rule(&["create"], &[""], &["serviceaccounts/token"]),
        rule(WRITE, &["apps"], &[WORKLOADS, &["deployments/rollback"]].concat()),
        rule(WRITE, &["autoscaling"], &["horizontalpodautoscalers"]),
        rule(WRITE, &["batch"], &["cronjobs", "jobs"]),
        rule(WRITE, &["policy"], &["poddisruptionbudgets"]),
        rule(WRITE, &["networking.k8s.io"], &["ingresses", "networkpolicies"]),
        rule(ALL, &["coordination.k8s.io"], &["leases"]),
    ]
}

fn view_rules() -> Vec<Value> {
    let core = [
        "bindings",
        "configmaps",
        "endpoints",
        "events",
        "limitranges",
        "namespaces",
        "namespaces/status",
        "persistentvolumeclaims",
        "persistentvolumeclaims/status",
        "pods",
        "pods/log",
        "pods/status",
        "replicationcontrollers",
        "replicationcontrollers/scale",
        "replicationcontrollers/status",
        "resourcequotas",
        "resourcequotas/status",
        "serviceaccounts",
        "services",
        "services/status",
    ];
    let status =
        ["controllerrevisions", "daemonsets/status", "deployments/status", "replicasets/status", "statefulsets/status"];
    vec![
        rule(READ, &[""], &core),
        rule(READ, &["discovery.k8s.io"], &["endpointslices"]),
        rule(READ, &["apps"], &[WORKLOADS, &status].concat()),
        rule(READ, &["autoscaling"], &["horizontalpodautoscalers", "horizontalpodautoscalers/status"]),
        rule(READ, &["batch"], &["cronjobs", "cronjobs/status", "jobs", "jobs/status"]),
        rule(READ, &["policy"], &["poddisruptionbudgets", "poddisruptionbudgets/status"]),
        rule(READ, &["networking.k8s.io"], &["ingresses", "ingresses/status", "networkpolicies"]),
    ]
}

/// Kubernetes' own controllers may run beside this server.
fn controller_manager_rules() -> Vec<Value> {
    vec![
        rule(&["create", "patch", "update"], &["", "events.k8s.io"], &["events"]),
        rule(&["create"], &["coordination.k8s.io"], &["leases"]),
        json!({
            "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "update"],
            "resourceNames": ["kube-controller-manager"],
        }),
        rule(&["create"], &[""], &["secrets", "serviceaccounts", "serviceaccounts/token"]),
        rule(&["delete", "get", "update"], &[""], &["namespaces", "secrets", "serviceaccounts"]),
        json!({
            "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"],
            "resourceNames": ["extension-apiserver-authentication"],
        }),
        rule(&["create"], &["authentication.k8s.io"], &["tokenreviews"]),
        rule(&["create"], &["authorization.k8s.io"], &["subjectaccessreviews"]),
        rule(&["list", "watch"], &["*"], &["*"]),
    ]
}

fn collector_rules() -> Vec<Value> {
    vec![
        rule(&["create", "patch", "update"], &["", "events.k8s.io"], &["events"]),
        rule(&["delete", "get", "list", "patch", "update", "watch"], &["*"], &["*"]),
    ]
}

fn bindings() -> Vec<Value> {
    let controller = |name: &str| {
        let role = format!("system:controller:{name}");
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata(&role, &[]),
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
               "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}]})
    };
    let manager = "system:kube-controller-manager";
    let bind = |role: &str, groups: &[&str]| {
        let subjects: Vec<Value> = groups
            .iter()
            .map(|g| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": g}))
            .collect();
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata(role, &[]),
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}, "subjects": subjects})
    };
    vec![
        bind("cluster-admin", &["system:masters"]),
        bind("system:discovery", &["system:authenticated"]),
        bind("system:well-known-discovery", &["system:authenticated"]),
        bind("system:basic-user", &["system:authenticated"]),
        bind("system:public-info-viewer", &["system:authenticated", "system:unauthenticated"]),
        bind("system:service-account-issuer-discovery", &["system:serviceaccounts"]),
        bind("system:monitoring", &["system:monitoring"]),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": metadata(manager, &[]),
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": manager},
               "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": manager}]}),
        controller("generic-garbage-collector"),
        controller("namespace-controller"),
        controller("resourcequota-controller"),
    ]
}
