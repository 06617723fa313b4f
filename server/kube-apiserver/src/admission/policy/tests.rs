//! Admission policies on a running server: allowed and denied writes, warnings, and validation of policies.

use axum::body::Body;
use crowsnest_apimachinery::user::{MASTERS, UserInfo};
use http::Request;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::http::client::InProcessService;
use crate::{ApiServer, Config, Data};

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Sends a request; returns status code, first warning and response body.
async fn send(service: &InProcessService, method: &str, path: &str, body: &Value) -> (u16, String, Value) {
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    let request_body = if body.is_null() { Body::empty() } else { Body::from(body.to_string()) };
    let response = service.clone().oneshot(request.body(request_body).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let warning = response.headers().get("warning").map(|w| w.to_str().unwrap().to_owned()).unwrap_or_default();
    let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (code, warning, serde_json::from_slice(&body).unwrap_or_default())
}

async fn start_server() -> (ApiServer, InProcessService) {
    let server = ApiServer::start(Config::new("test", Data::Memory)).await.unwrap();
    let admin = UserInfo { name: "admin".into(), groups: vec![MASTERS.to_owned()], ..UserInfo::default() };
    let service = server.service(admin);
    (server, service)
}

fn policy(name: &str, extra_fields: Value) -> Value {
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]});
    let mut spec = json!({"matchConstraints": {"resourceRules": [rule]}});
    for (key, value) in extra_fields.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

fn binding(name: &str, policy: &str, extra_fields: Value) -> Value {
    let mut spec = json!({"policyName": policy, "validationActions": ["Deny"]});
    for (key, value) in extra_fields.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test]
async fn bound_policies_validate_writes() {
    let (server, service) = start_server().await;
    let few = json!([{"expression": "size(object.data) <= int(params.data.max)", "messageExpression": "'at most ' + params.data.max", "reason": "Forbidden"}]);
    let objects = [
        (CONFIG_MAPS, json!({"metadata": {"name": "limits"}, "data": {"max": "1"}})),
        (
            POLICIES,
            policy(
                "few",
                json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}, "validations": few,
            "matchConditions": [{"name": "marked", "expression": "has(object.metadata.labels) && 'few' in object.metadata.labels"}]}),
            ),
        ),
        (BINDINGS, binding("few", "few", json!({"paramRef": {"name": "limits", "parameterNotFoundAction": "Deny"}}))),
        (POLICIES, policy("named", json!({"validations": [{"expression": "object.metadata.name != 'bad'"}]}))),
        (BINDINGS, binding("named", "named", json!({}))),
        (
            POLICIES,
            policy(
                "old",
                json!({"validations": [{"expression": "!has(object.data) || !has(object.data.old)", "message": "too old"}]}),
            ),
        ),
        (BINDINGS, binding("old", "old", json!({"validationActions": ["Warn", "Audit"]}))),
        (
            POLICIES,
            policy(
                "missing-param-kind",
                json!({"paramKind": {"apiVersion": "example.com/v1", "kind": "None"},
            "validations": [{"expression": "true"}], "matchConditions": [{"name": "c", "expression": "true"}]}),
            ),
        ),
        (POLICIES, policy("unbound", json!({"validations": [{"expression": "false"}]}))),
        (POLICIES, policy("elsewhere", json!({"validations": [{"expression": "false"}]}))),
        (
            BINDINGS,
            binding(
                "elsewhere",
                "elsewhere",
                json!({"matchResources": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-public"}}}}),
            ),
        ),
    ];
    for (path, object) in &objects {
        let (code, _, response) = send(&service, "POST", path, object).await;
        assert_eq!(code, 201, "{response}");
    }
    let marked = |name: &str, data: Value| json!({"metadata": {"name": name, "labels": {"few": "yes"}}, "data": data});
    let too_many =
        "configmaps \"two\" is forbidden: ValidatingAdmissionPolicy 'few' with binding 'few' denied request: at most 1";
    let bad = "configmaps \"bad\" is forbidden: ValidatingAdmissionPolicy 'named' with binding 'named' denied request: failed expression: object.metadata.name != 'bad'";
    let old = "299 - \"Validation failed for ValidatingAdmissionPolicy 'old' with binding 'old': too old\"";
    let public = "configmaps \"c\" is forbidden: ValidatingAdmissionPolicy 'elsewhere' with binding 'elsewhere' denied request: failed expression: false";
    let cases = [
        (CONFIG_MAPS, marked("one", json!({"a": "1"})), 201, "", "", ""),
        (CONFIG_MAPS, marked("two", json!({"a": "1", "b": "2"})), 403, "", "Forbidden", too_many),
        (CONFIG_MAPS, json!({"metadata": {"name": "unmarked"}, "data": {"a": "1", "b": "2"}}), 201, "", "", ""),
        (CONFIG_MAPS, json!({"metadata": {"name": "bad"}}), 422, "", "Invalid", bad),
        (CONFIG_MAPS, json!({"metadata": {"name": "o"}, "data": {"old": "1"}}), 201, old, "", ""),
        (
            "/api/v1/namespaces/kube-public/configmaps",
            json!({"metadata": {"name": "c"}, "data": {}}),
            422,
            "",
            "Invalid",
            public,
        ),
        ("/api/v1/namespaces/default/secrets", json!({"metadata": {"name": "bad"}}), 201, "", "", ""),
    ];
    for (path, object, code, warning, reason, message) in cases {
        let (actual, actual_warning, response) = send(&service, "POST", path, &object).await;
        assert_eq!((actual, actual_warning.as_str()), (code, warning), "{object}: {response}");
        if code >= 400 {
            assert_eq!(response["reason"], reason);
            assert_eq!(response["message"], message);
            let text = response["details"]["causes"][0]["message"].as_str().unwrap();
            assert!(message.ends_with(text), "{text}");
        }
    }
    let observed_policy = async || loop {
        let (_, _, policy) = send(&service, "GET", &format!("{POLICIES}/few"), &Value::Null).await;
        if policy["status"]["observedGeneration"] == 1 {
            return policy;
        }
        tokio::task::yield_now().await;
    };
    let policy = tokio::time::timeout(std::time::Duration::from_secs(10), observed_policy()).await.unwrap();
    assert_eq!(policy["status"]["typeChecking"], json!({}));
    // Missing parameters and misconfigured policies deny writes.
    let (code, _, _) = send(&service, "DELETE", &format!("{CONFIG_MAPS}/limits"), &Value::Null).await;
    assert_eq!(code, 200);
    let (_, _, response) = send(&service, "POST", CONFIG_MAPS, &marked("three", json!({}))).await;
    let message = "failed to configure binding: no params found for policy binding with `Deny` parameterNotFoundAction";
    assert!(response["message"].as_str().unwrap().ends_with(message), "{response}");
    send(&service, "DELETE", &format!("{POLICIES}/few"), &Value::Null).await;
    let (code, _, _) = send(&service, "POST", CONFIG_MAPS, &marked("three", json!({}))).await;
    assert_eq!(code, 201, "a deleted policy is not evaluated");
    send(&service, "POST", BINDINGS, &binding("missing-param-kind", "missing-param-kind", json!({}))).await;
    let (_, _, response) = send(&service, "POST", CONFIG_MAPS, &marked("four", json!({}))).await;
    let message = "ValidatingAdmissionPolicy 'missing-param-kind' denied request: failed to configure policy: failed to find resource referenced by paramKind: 'example.com/v1, Kind=None'";
    assert!(response["message"].as_str().unwrap().ends_with(message), "{response}");
    server.stop().await.unwrap();
}

const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const MUTATING_BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings";

fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

fn json_patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

#[tokio::test]
async fn bound_policies_mutate_writes() {
    let (server, service) = start_server().await;
    let label =
        |key: &str, value: &str| apply(&format!("Object{{metadata: Object.metadata{{labels: {{'{key}': {value}}}}}}}"));
    let mutating = |name: &str, mutations: Value, extra_fields: Value| {
        let mut policy = policy(name, json!({"mutations": mutations, "reinvocationPolicy": "Never"}));
        for (key, value) in extra_fields.as_object().unwrap() {
            policy["spec"][key] = value.clone();
        }
        policy
    };
    let mutating_binding = |name: &str, extra_fields: Value| {
        let mut binding = json!({"metadata": {"name": name}, "spec": {"policyName": name}});
        for (key, value) in extra_fields.as_object().unwrap() {
            binding["spec"][key] = value.clone();
        }
        binding
    };
    // The first policy counts labels, and sees those of the second policy only on reinvocation.
    let count = label("labels", "string(size(object.metadata.?labels.orValue({})))");
    let objects = [
        (CONFIG_MAPS, json!({"metadata": {"name": "team"}, "data": {"name": "blue"}})),
        (MUTATING, mutating("a-counts", json!([count]), json!({"reinvocationPolicy": "IfNeeded"}))),
        (MUTATING_BINDINGS, mutating_binding("a-counts", json!({}))),
        (
            MUTATING,
            mutating(
                "b-team",
                json!([label("team", "params.data.name")]),
                json!({"paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}}),
            ),
        ),
        (
            MUTATING_BINDINGS,
            mutating_binding("b-team", json!({"paramRef": {"name": "team", "parameterNotFoundAction": "Deny"}})),
        ),
        (
            MUTATING,
            mutating(
                "c-patches",
                json!([json_patch(
                    "[JSONPatch{op: 'add', path: '/data/' + jsonpatch.escapeKey('by.who'), value: request.userInfo.username}]"
                )]),
                json!({
                    "matchConditions": [{"name": "data", "expression": "has(object.data) && !('plain' in object.data)"}],
                    "variables": [{"name": "unused", "expression": "object.none"}],
                }),
            ),
        ),
        (MUTATING_BINDINGS, mutating_binding("c-patches", json!({}))),
    ];
    for (path, object) in objects {
        let (code, _, response) = send(&service, "POST", path, &object).await;
        assert_eq!(code, 201, "{response}");
    }
    let map = json!({"metadata": {"name": "m", "labels": {"own": "1"}}, "data": {"a": "1"}});
    let (code, _, response) = send(&service, "POST", CONFIG_MAPS, &map).await;
    assert_eq!(code, 201, "{response}");
    assert_eq!(response["metadata"]["labels"], json!({"own": "1", "labels": "3", "team": "blue"}));
    assert_eq!(response["data"], json!({"a": "1", "by.who": "admin"}));
    let (_, _, response) =
        send(&service, "POST", CONFIG_MAPS, &json!({"metadata": {"name": "p"}, "data": {"plain": "1"}})).await;
    assert_eq!(response["data"], json!({"plain": "1"}));
    // Failures deny the write unless the failure policy is `Ignore`.
    let broken = json!([json_patch("[JSONPatch{op: 'remove', path: '/data/none'}]")]);
    for (name, failure_policy, code) in [("d-broken", "Fail", 403), ("d-broken", "Ignore", 201)] {
        let object = mutating(name, broken.clone(), json!({"failurePolicy": failure_policy}));
        send(&service, "DELETE", &format!("{MUTATING}/{name}"), &Value::Null).await;
        assert_eq!(send(&service, "POST", MUTATING, &object).await.0, 201);
        send(&service, "POST", MUTATING_BINDINGS, &mutating_binding(name, json!({}))).await;
        let (actual, _, response) = send(
            &service,
            "POST",
            CONFIG_MAPS,
            &json!({"metadata": {"name": format!("after-{code}")}, "data": {"k": "1"}}),
        )
        .await;
        assert_eq!(actual, code, "{response}");
        if code == 403 {
            let reason = "policy 'd-broken' with binding 'd-broken' denied request: JSON Patch: error in remove for path: '/data/none': Unable to remove nonexistent key: none: missing value";
            assert_eq!((response["message"].as_str(), response["reason"].as_str()), (Some(reason), Some("Invalid")));
        }
    }
    server.stop().await.unwrap();
}

/// Writers of policies and bindings need the permission to read the parameters.
#[tokio::test]
async fn writers_of_policies_must_be_allowed_to_read_the_parameters() {
    let (server, service) = start_server().await;
    let rules = json!([{"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]}]);
    let role = json!({"metadata": {"name": "policies"}, "rules": rules});
    let subjects = json!([{"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}]);
    let role_ref = json!({"kind": "ClusterRole", "name": "policies", "apiGroup": "rbac.authorization.k8s.io"});
    let role_binding = json!({"metadata": {"name": "policies"}, "subjects": subjects, "roleRef": role_ref});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    send(&service, "POST", &format!("{rbac}/clusterroles"), &role).await;
    send(&service, "POST", &format!("{rbac}/clusterrolebindings"), &role_binding).await;
    let eve = server.service(UserInfo { name: "eve".into(), ..UserInfo::default() });
    let with_secret_params =
        json!({"paramKind": {"apiVersion": "v1", "kind": "Secret"}, "validations": [{"expression": "true"}]});
    let (code, _, response) = send(&eve, "POST", POLICIES, &policy("p", with_secret_params.clone())).await;
    let reason = "spec.paramKind: Forbidden: user eve must have \"get\" permission on all objects of the referenced paramKind (kind=Secret, apiVersion=v1)";
    assert_eq!(code, 422, "{response}");
    assert!(response["message"].as_str().unwrap().ends_with(reason), "{response}");
    assert_eq!(send(&service, "POST", POLICIES, &policy("p", with_secret_params)).await.0, 201);
    let with_param_ref = json!({"paramRef": {"name": "s", "parameterNotFoundAction": "Deny"}});
    let (code, _, response) = send(&eve, "POST", BINDINGS, &binding("b", "p", with_param_ref.clone())).await;
    let reason =
        "spec.paramRef: Forbidden: user eve does not have \"get\" permission on the object referenced by paramRef";
    assert_eq!(code, 422, "{response}");
    assert!(response["message"].as_str().unwrap().ends_with(reason), "{response}");
    assert_eq!(send(&service, "POST", BINDINGS, &binding("b", "p", with_param_ref)).await.0, 201);
    assert_eq!(
        send(&eve, "POST", BINDINGS, &binding("c", "p", json!({}))).await.0,
        201,
        "the binding has no parameters"
    );
    server.stop().await.unwrap();
}

#[tokio::test]
async fn invalid_policies_are_rejected() {
    let (server, service) = start_server().await;
    let both = "spec.validationActions: Invalid value: [\"Deny\",\"Warn\"]: must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
    let cases = [
        (
            POLICIES,
            json!({"metadata": {"name": "p"}, "spec": {"validations": [{"expression": "true"}]}}),
            vec!["spec.matchConstraints: Required value"],
        ),
        (
            POLICIES,
            policy("p", json!({})),
            vec![
                "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
                "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
            ],
        ),
        (
            POLICIES,
            policy("p", json!({"validations": [{"expression": " ", "message": "a\nb", "reason": "Why"}]})),
            vec![
                "spec.validations[0].expression: Required value: expression is not specified",
                "spec.validations[0].message: Invalid value: \"a\\nb\": must not contain line breaks",
                "spec.validations[0].reason: Unsupported value: \"Why\": supported values: \"Forbidden\", \"Invalid\", \"RequestEntityTooLarge\"",
            ],
        ),
        (
            POLICIES,
            policy(
                "p",
                json!({"validations": [{"expression": "true"}], "variables": [
                {"name": "a", "expression": "1"}, {"name": "a", "expression": "2"}, {"name": "b-c", "expression": "3"}]}),
            ),
            vec![
                "spec.variables[1].name: Duplicate value: \"a\"",
                "spec.variables[2].name: Invalid value: \"b-c\": must be a valid CEL identifier",
            ],
        ),
        (
            POLICIES,
            policy(
                "p",
                json!({"validations": [{"expression": "size(object.a)"}, {"expression": "request.none == 1"},
                {"expression": "self.a == 1"}, {"expression": "params.a == 1"}]}),
            ),
            vec![
                "spec.validations[0].expression: Invalid value: \"size(object.a)\": must evaluate to bool but got int",
                "spec.validations[1].expression: Invalid value: \"request.none == 1\": compilation failed: ERROR: <input>:1:8: undefined field 'none'\n | request.none == 1\n | .......^",
                "spec.validations[2].expression: Invalid value: \"self.a == 1\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'self' (in container '')\n | self.a == 1\n | ^",
                "spec.validations[3].expression: Invalid value: \"params.a == 1\": compilation failed: ERROR: <input>:1:1: undeclared reference to 'params' (in container '')\n | params.a == 1\n | ^",
            ],
        ),
        (
            MUTATING,
            policy("p", json!({"reinvocationPolicy": "Never"})),
            vec!["spec.mutations: Required value: mutations must contain at least one item"],
        ),
        (
            MUTATING,
            policy(
                "p",
                json!({"reinvocationPolicy": "Once", "mutations": [
                {"patchType": "JSONPatch", "applyConfiguration": {"expression": "Object{}"}},
                {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": "{'a': 1}"}}, {}]}),
            ),
            vec![
                "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
                "spec.mutations[0].applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified when patchType is JSONPatch",
                "spec.mutations[1].applyConfiguration.expression: Invalid value: \"{'a': 1}\": must evaluate to Object but got map(string, int)",
                "spec.mutations[2].patchType: Required value",
                "spec.reinvocationPolicy: Unsupported value: \"Once\": supported values: \"IfNeeded\", \"Never\"",
            ],
        ),
        (
            BINDINGS,
            binding("b", "", json!({"validationActions": []})),
            vec![
                "spec.policyName: Required value",
                "spec.validationActions: Required value: at least one validation action is required",
            ],
        ),
        (BINDINGS, binding("b", "p", json!({"validationActions": ["Deny", "Warn"]})), vec![both]),
        (
            BINDINGS,
            binding("b", "p", json!({"paramRef": {"parameterNotFoundAction": "Allow"}})),
            vec!["spec.paramRef: Required value: one of name or selector must be specified"],
        ),
    ];
    for (path, object, expected) in cases {
        let (code, _, response) = send(&service, "POST", path, &object).await;
        assert_eq!(code, 422, "{response}");
        let causes = response["details"]["causes"].as_array().unwrap().iter();
        let actual: Vec<String> =
            causes.map(|c| format!("{}: {}", c["field"].as_str().unwrap(), c["message"].as_str().unwrap())).collect();
        assert_eq!(actual, expected, "{object}");
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn type_checking_warnings_are_reported() {
    let (_server, service) = start_server().await;
    let rule = |group: &str, resources: Value| json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": resources});
    let object = json!({"metadata": {"name": "typed"}, "spec": {
        "matchConstraints": {"resourceRules": [rule("apps", json!(["deployments", "daemonsets/status"])), rule("", json!(["pods"]))]},
        "variables": [{"name": "names", "expression": "object.metadata.labels"}, {"name": "odd", "expression": "object.spec.odd"}],
        "validations": [
            {"expression": "object.spec.replicas > 'x'"},
            {"expression": "variables.names.size() > 1 && object.metadata.name == 'a'"},
            {"expression": "variables.odd == 1", "messageExpression": "string(object.kind.size() + object.kind)"},
            {"expression": "namespaceObject.metadata.nope == request.name"},
        ],
    }});
    let (code, _, response) = send(&service, "POST", POLICIES, &object).await;
    assert_eq!(
        (code, response["message"].as_str()),
        (
            422,
            Some(
                "ValidatingAdmissionPolicy.admissionregistration.k8s.io \"typed\" is invalid: \
        spec.validations[3].expression: Invalid value: \"namespaceObject.metadata.nope == request.name\": compilation failed: \
        ERROR: <input>:1:25: undefined field 'nope'\n | namespaceObject.metadata.nope == request.name\n | ........................^"
            )
        )
    );
    let mut object = object;
    object["spec"]["validations"].as_array_mut().unwrap().pop();
    let (code, _, response) = send(&service, "POST", POLICIES, &object).await;
    assert_eq!(code, 201, "{response}");
    let observed_policy = async || loop {
        let (_, _, policy) = send(&service, "GET", &format!("{POLICIES}/typed"), &Value::Null).await;
        if policy["status"]["observedGeneration"] == 1 {
            return policy;
        }
        tokio::task::yield_now().await;
    };
    let policy = tokio::time::timeout(std::time::Duration::from_secs(10), observed_policy()).await.unwrap();
    let text = |column: usize, text: &str, line: &str| {
        format!("ERROR: <input>:1:{}: {text}\n | {line}\n | {}^\n", column + 1, ".".repeat(column))
    };
    let (replicas, message) = ("object.spec.replicas > 'x'", "string(object.kind.size() + object.kind)");
    let mixed = "found no matching overload for '_+_' applied to '(int, string)'";
    let warnings = json!([
        {
            "fieldRef": "spec.validations[0].expression",
            "warning": format!(
                "/v1, Kind=Pod: {}\napps/v1, Kind=Deployment: {}",
                text(11, "undefined field 'replicas'", replicas),
                text(21, "found no matching overload for '_>_' applied to '(int, string)'", replicas),
            ),
        },
        {
            "fieldRef": "spec.validations[2].messageExpression",
            "warning": format!("/v1, Kind=Pod: {0}\napps/v1, Kind=Deployment: {0}", text(26, mixed, message)),
        },
    ]);
    assert_eq!(policy["status"]["typeChecking"], json!({"expressionWarnings": warnings}));
}
