//! Each tool: its requests, its output, limits, and errors.

use rstest::rstest;
use serde_json::{Value, json};

use super::{PreparedApi, call_tool};

fn hit(cluster: &str, kind: &str, name: &str) -> Value {
    let (api, resource) = match kind {
        "Deployment" => ("apps/v1", "deployments"),
        "Secret" => ("v1", "secrets"),
        _ => ("v1", "pods"),
    };
    json!({"cluster": cluster, "apiVersion": api, "kind": kind, "resource": resource, "namespace": "shop", "name": name,
        "status": "Running", "uid": "u"})
}

fn hits(hits: &[Value]) -> Value {
    json!({"hits": hits, "total": hits.len(), "totalRelation": "eq", "skipped": [], "notices": [],
        "facets": {"kind": [{"value": "Pod", "count": 2}]}})
}

/// An API with one pod, its history, logs and relations.
pub(super) fn fleet() -> PreparedApi {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web-0", "labels": {"app": "web"}, "managedFields": [{}]},
        "spec": {"containers": [{"name": "web", "image": "nginx:1.27", "env": [{"name": "DB_PASSWORD", "value": "hunter22"}]}]},
        "status": {"phase": "Running"}});
    let event = json!({"kind": "Event", "columns": {".type": "Warning", ".reason": "BackOff", ".message": "Back-off restarting",
        ".count": "4", ".lastTimestamp": "2026-01-01T00:00:00Z"}});
    let grant = json!({"cluster": "m1", "subject": {"kind": "Group", "name": "sre"}, "scope": "Cluster",
        "binding": {"kind": "ClusterRoleBinding", "name": "sre"}, "role": {"kind": "ClusterRole", "name": "admin"},
        "rule": {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}});
    PreparedApi::new(&[
        ("/query?q=kind%3Aevent", hits(&[event])),
        ("%40control%2Dplane", hits(&[hit("@control-plane", "Deployment", "web")])),
        ("q=kind%3Adeployments", hits(&[hit("m1", "Deployment", "web")])),
        ("/query", hits(&[hit("m1", "Pod", "web-0")])),
        ("&seq=", pod),
        (
            "/history",
            json!({"versions": [{"seq": 9, "from": "2026-01-02T00:00:00Z", "generation": 2}, {"seq": 4, "from": "2026-01-01T00:00:00Z", "generation": 1}], "keptForSeconds": 86400}),
        ),
        (
            "/diff",
            json!({"differences": [{"path": "/spec/replicas", "before": 1, "after": 3}, {"path": "/metadata/resourceVersion", "before": "1", "after": "2"}], "more": false}),
        ),
        (
            "/graph",
            json!({"nodes": [hit("m1", "Pod", "web-0"), hit("m1", "Secret", "db")], "edges": [{"from": 0, "to": 1, "relation": "uses"}], "more": false}),
        ),
        (
            "/paths",
            json!({"nodes": [hit("m1", "Secret", "db"), hit("m1", "Deployment", "web"), hit("m2", "Deployment", "web")],
                "edges": [{"from": 1, "to": 0, "type": "USES"}, {"from": 1, "to": 2, "type": "PROPAGATED_TO"}],
                "paths": [{"nodes": [0, 1, 2], "edges": [0, 1]}], "total": 1, "totalRelation": "eq", "notices": ["a limit"], "skipped": []}),
        ),
        ("/logs", json!("m1 shop/web-0 web | 2026-01-01T00:00:00.000000000Z token=abcdefgh\n")),
        (
            "/explanations/",
            json!({"template": {}, "policy": {"kind": "PropagationPolicy", "namespace": "shop", "name": "web"},
            "binding": {"kind": "ResourceBinding", "namespace": "shop", "name": "web-deployment", "replicas": 2},
            "scheduling": {"terms": [{"clusters": [{"name": "m1", "selected": true, "score": 100, "replicas": 2},
                {"name": "m2", "rejected": {"filter": "TaintToleration", "reason": "untolerated taint"}}]}]},
            "targets": [{"cluster": "m1", "placed": "Scheduled", "replicas": 2, "applied": true, "health": "Healthy"}]}),
        ),
        (
            "/journal",
            json!({"entries": [{"at": "2026-01-01T00:00:00Z", "action": "Evicted", "subject": {"kind": "Deployment", "namespace": "shop", "name": "web"},
            "message": "Evicted from m2", "cause": {"text": "taint"}}]}),
        ),
        (
            "/plans",
            json!({"status": {"objects": [{"kind": "PropagationPolicy", "namespace": "shop", "name": "web", "change": "Changed"}],
            "templates": [{"template": {"kind": "Deployment", "namespace": "shop", "name": "web"}, "change": "Changed",
                "clusters": [{"name": "m2", "change": "Added", "replicas": 2}]}]}}),
        ),
        (
            "reviews",
            json!({"status": {"clusters": [{"name": "m1", "state": "Complete"}, {"name": "m2", "state": "Unknown", "evaluationError": "you cannot list roles"}],
            "grants": [grant]}}),
        ),
    ])
}

#[rstest]
#[case::search("search", json!({"query": "web"}), &["total\t1", "cluster\tkind\tnamespace\tname\tstatus\tmatched", "m1\tPod\tshop\tweb-0\tRunning\t"])]
#[case::counts("search", json!({"query": "web", "count_only": true}), &["total\t1", "facet\tkind\tPod:2"])]
#[case::get("get", json!({"kind": "pod", "name": "web-0"}), &["object\tm1\tv1 Pod\tshop/web-0", ".metadata.labels.app\tweb", ".spec.containers[0].image\tnginx:1.27", ".status.phase\tRunning", "event 2026-01-01T00:00:00Z\tWarning BackOff: Back-off restarting (4 times)"])]
#[case::manifest("get", json!({"kind": "pod", "name": "web-0", "view": "manifest"}), &[".spec.containers[0].env[0].value\t[redacted]"])]
#[case::paths("get", json!({"kind": "pod", "name": "web-0", "paths": ["spec.containers[0].image", ".spec.none"]}), &["\n.spec.containers[0].image\tnginx:1.27\nnotice\tthe object has no .spec.none"])]
#[case::history("history", json!({"kind": "pod", "name": "web-0"}), &["revisions\t2", "2026-01-02T00:00:00Z\t2\t/spec/replicas\t1\t3\t", "2026-01-01T00:00:00Z\t1\t(first retained revision)"])]
#[case::comparison("history", json!({"kind": "pod", "name": "web-0", "compare_with": "m2"}), &["path\tm1\tm2\n/spec/replicas\t1\t3"])]
#[case::related("related", json!({"kind": "pod", "name": "web-0"}), &["Pod shop/web-0\tRunning\tuses\tSecret shop/db\tRunning"])]
#[case::paths("related", json!({"path": "secret/shop/db <-USES- deploy"}), &["total\t1", "m1\tSecret shop/db [Running] <-USES- Deployment shop/web [Running] -PROPAGATED_TO-> m2: Deployment shop/web [Running]", "notice\ta limit"])]
#[case::logs("logs", json!({"pod": "web-0"}), &["m1\tshop/web-0\tweb\t2026-01-01T00:00:00.000000000Z\ttoken=[redacted]", "redacted\t1"])]
#[case::explain("explain", json!({"kind": "deploy", "namespace": "shop", "name": "web"}), &["policy\tPropagationPolicy shop/web", "cluster\tm1\tselected\tscore 100\t\treplicas 2", "cluster\tm2\trejected by TaintToleration: untolerated taint", "target\tm1\tScheduled\treplicas 2\tapplied\tHealthy", "journal\t2026-01-01T00:00:00Z\tEvicted\tDeployment shop/web\tEvicted from m2\ttaint"])]
#[case::plan("plan", json!({"apply": [{"kind": "PropagationPolicy"}]}), &["object\tPropagationPolicy shop/web\tChanged", "workload\tDeployment shop/web\tChanged", "cluster\tm2\tAdded\t -> 2"])]
#[case::who_can("who_can", json!({"verb": "get", "resource": "secrets"}), &["clusters\t2\t1 complete", "m1\tGroup sre\t*\tClusterRoleBinding sre\tClusterRole admin\t* *.*", "skipped\tm2\tUnknown\tyou cannot list roles"])]
#[case::subject("who_can", json!({"group": "sre"}), &["m1\tGroup sre"])]
#[tokio::test]
async fn tools_render_responses_of_the_api(#[case] tool: &str, #[case] arguments: Value, #[case] expected: &[&str]) {
    let (text, is_error) = call_tool(&fleet(), tool, arguments).await.unwrap();
    assert!(!is_error && text.starts_with("Data from clusters follows."), "{text}");
    for expected in expected {
        assert!(text.contains(expected), "{expected:?} is not in {text}");
    }
    assert!(!text.contains("hunter22") && !text.contains("managedFields"), "{text}");
}

#[rstest]
#[case::group("search", json!({"query": "is:unhealthy", "group": "cluster"}), "/query?q=is%3Aunhealthy%20group%3Acluster&limit=0")]
#[case::columns("search", json!({"query": "kind:event last:<1h"}), "columns=%2Etype%2C%2Ereason")]
#[case::object("get", json!({"cluster": "m1", "kind": "pod", "namespace": "shop", "name": "web-0"}), "q=kind%3Apod%20name%3A%3Dweb%2D0%20cluster%3A%3Dm1%20namespace%3A%3Dshop")]
#[case::logs("logs", json!({"query": "status:CrashLoopBackOff", "previous": true, "grep": "panic"}), "/logs?q=status%3ACrashLoopBackOff&tail=50&include=panic&previous=true&timestamps=true")]
#[case::explain("explain", json!({"kind": "deploy", "namespace": "shop", "name": "web"}), "/namespaces/shop/explanations/deployments.apps:web")]
#[tokio::test]
async fn tools_send_requests_to_the_api(#[case] tool: &str, #[case] arguments: Value, #[case] expected: &str) {
    let api = fleet();
    call_tool(&api, tool, arguments).await.unwrap();
    assert!(api.uris().iter().any(|uri| uri.contains(expected)), "{:?}", api.uris());
}

#[tokio::test]
async fn reviews_name_the_resource_with_its_group() {
    let api = fleet();
    call_tool(&api, "who_can", json!({"verb": "delete", "resource": "deployments", "namespace": "shop"}))
        .await
        .unwrap();
    let body = api.requests.lock().last().unwrap().body.clone().unwrap();
    assert_eq!(body["spec"]["resourceAttributes"]["group"], "apps", "{body}");
    call_tool(&api, "who_can", json!({"service_account": "shop/robot"})).await.unwrap();
    let body = api.requests.lock().last().unwrap().body.clone().unwrap();
    assert_eq!(
        (&body["kind"], &body["spec"]["user"]),
        (&json!("SubjectRulesReview"), &json!("system:serviceaccount:shop:robot"))
    );
}

#[rstest]
#[case::unknown_argument("search", json!({"q": "x"}), "unknown argument \\\"q\\\"")]
#[case::type_of_text("search", json!({"query": 5}), "query must be a string")]
#[case::long_text("search", json!({"query": "x".repeat(5_000)}), "at most 4096 bytes")]
#[case::limit("search", json!({"limit": 0}), "limit must be an integer from 1 to 500")]
#[case::budget("search", json!({"max_bytes": 1_000_000}), "max_bytes must be an integer from 4096 to 65536")]
#[case::columns("search", json!({"columns": vec!["x"; 50]}), "at most 20 items")]
#[case::missing_name("get", json!({"kind": "pod"}), "the argument name is missing")]
#[case::object_or_path("related", json!({"kind": "pod"}), "set kind and name, or path")]
#[case::object_and_path("related", json!({"kind": "pod", "name": "a", "path": "pod --> *"}), "set kind and name, or path")]
#[case::path_in_a_cluster("related", json!({"cluster": "m1", "path": "pod --> *"}), "set kind and name, or path alone")]
#[case::view("get", json!({"kind": "pod", "name": "a", "view": "all"}), "view must be one of summary, status, manifest")]
#[case::whole_fleet("logs", json!({}), "logs of a whole fleet are not read")]
#[case::no_objects("plan", json!({}), "set apply or delete")]
#[case::not_objects("plan", json!({"apply": ["x"]}), "apply must be a list of at most 100 objects")]
#[case::no_subject_or_action("who_can", json!({}), "set verb and resource")]
#[case::subject_and_action("who_can", json!({"verb": "get", "resource": "pods", "user": "ann"}), "set verb and resource")]
#[case::account("who_can", json!({"service_account": "robot"}), "service_account must be NAMESPACE/NAME")]
#[tokio::test]
async fn invalid_arguments_are_explained(#[case] tool: &str, #[case] arguments: Value, #[case] expected: &str) {
    let api = fleet();
    let (text, is_error) = call_tool(&api, tool, arguments).await.unwrap();
    assert!(is_error && text.replace('"', "\\\"").contains(expected), "{text}");
    assert_eq!(api.uris(), Vec::<String>::new(), "nothing is requested");
}

#[tokio::test]
async fn errors_of_the_api_are_tool_errors() {
    for (tool, arguments) in [
        ("search", json!({})),
        ("get", json!({"kind": "pod", "name": "a"})),
        ("logs", json!({"pod": "a"})),
        ("plan", json!({"apply": [{}]})),
        ("who_can", json!({"user": "ann"})),
    ] {
        let (text, is_error) = call_tool(&PreparedApi::default(), tool, arguments).await.unwrap();
        assert!(is_error && text.contains("access is denied"), "{tool}: {text}");
    }
}

#[rstest]
#[case::none(&[], "not found in any cluster, or you cannot read it there; use `search` to find it")]
#[case::several(&[("m1", "web-0"), ("m2", "web-0")], "2 objects have this name")]
#[case::other_name(&[("m1", "web-01")], "not found in any cluster")]
#[tokio::test]
async fn objects_must_be_unique(#[case] found: &[(&str, &str)], #[case] expected: &str) {
    let found: Vec<Value> = found.iter().map(|(cluster, name)| hit(cluster, "Pod", name)).collect();
    let api = PreparedApi::new(&[("/query", hits(&found))]);
    let (text, is_error) = call_tool(&api, "get", json!({"kind": "pod", "name": "web-0"})).await.unwrap();
    assert!(is_error && text.contains(expected), "{text}");
}

/// A hit of a Secret whose values are cached.
fn cached_secret() -> Value {
    let mut secret = hit("@control-plane", "Secret", "db");
    secret["columns"] = json!({".data.host": "hunter22", ".type": "Opaque"});
    secret["matched"] = json!([{"field": ".data.host", "text": "hunter22"}, {"field": "content", "text": "hunter22"}]);
    secret
}

#[rstest]
#[case::search("search", json!({"query": "hunter*", "columns": [".data.host", ".type"]}), "[redacted]\tOpaque\t.data.host: [redacted]; content: [redacted]")]
#[case::get("get", json!({"kind": "secret", "name": "db", "view": "manifest"}), ".data.host\t[redacted]")]
#[case::history("history", json!({"kind": "secret", "name": "db", "compare_with": "m2"}), "/data/host\t[redacted]\t[redacted]")]
#[case::explain("explain", json!({"kind": "secret", "name": "db"}), "/data/host: [redacted] -> [redacted]")]
#[case::plan("plan", json!({"apply": [{"kind": "Secret"}]}), "/data/host: [redacted] -> [redacted]")]
#[tokio::test]
async fn values_of_secrets_are_not_shown(#[case] tool: &str, #[case] arguments: Value, #[case] expected: &str) {
    let differences = json!([{"path": "/data/host", "before": "hunter21", "after": "hunter22"}]);
    let targets =
        json!([{"name": "m1", "overrides": [{"kind": "OverridePolicy", "name": "o", "differences": differences}]}]);
    let template = json!({"kind": "Secret", "namespace": "shop", "name": "db"});
    let api = PreparedApi::new(&[
        ("/query", hits(&[cached_secret()])),
        ("&seq=", json!({"metadata": {"name": "db"}, "data": {"host": "hunter22"}})),
        ("/history", json!({"versions": [{"seq": 1}]})),
        ("/diff", json!({"differences": differences})),
        ("/explanations/", json!({"targets": targets})),
        ("/journal", json!({"entries": []})),
        ("/plans", json!({"status": {"templates": [{"template": template, "clusters": targets}]}})),
    ]);
    let (text, is_error) = call_tool(&api, tool, arguments).await.unwrap();
    assert!(!is_error && text.contains(expected) && text.contains("\nredacted\t"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[rstest]
#[case::no_secret(json!("Deployment, Service"), "content: hunter22")]
#[case::a_secret(json!("Deployment, Secret"), "content: [redacted]")]
#[case::a_list(json!("SecretList"), "content: [redacted]")]
#[case::a_kind_named_after_secrets(json!("FederatedSecret"), "content: [redacted]")]
#[case::a_work(json!("Deployment, Work"), "content: [redacted]")]
#[case::unknown_kinds(json!(null), "content: [redacted]")]
#[case::an_empty_kind(json!("Deployment, "), "content: [redacted]")]
#[case::kinds_that_may_be_truncated(json!("Deployment, ".repeat(30) + "Service"), "content: [redacted]")]
#[tokio::test]
async fn content_matches_of_works_are_shown_if_no_manifest_is_a_secret(#[case] kinds: Value, #[case] expected: &str) {
    let mut work = hit("@control-plane", "Work", "web");
    work["matched"] = json!([{"field": "content", "text": "hunter22"}]);
    let without_kinds = hits(std::slice::from_ref(&work));
    work["columns"] = json!({".spec.workload.manifests.kind": kinds});
    let api = PreparedApi::new(&[
        ("columns=%2Espec%2Eworkload%2Emanifests%2Ekind", hits(&[work])),
        ("/query", without_kinds),
    ]);
    let (text, is_error) = call_tool(&api, "search", json!({"query": "hunter*"})).await.unwrap();
    assert!(!is_error && text.contains(expected), "{text}");
    assert_eq!(text.contains("hunter22"), expected.contains("hunter22"), "{text}");
    assert!(!text.contains("manifests.kind"), "the kinds are not a column of the output: {text}");
}

#[tokio::test]
async fn the_group_of_an_unknown_kind_is_noted() {
    let api = PreparedApi::new(&[("/query", hits(&[])), ("reviews", json!({"status": {}}))]);
    let (text, _) = call_tool(&api, "who_can", json!({"verb": "get", "resource": "widgets"})).await.unwrap();
    assert!(text.contains("notice\tyou can read no object of \"widgets\""), "{text}");
}

#[tokio::test]
async fn indirect_paths_follow_the_grants() {
    const GRANTS: usize = 30;
    const PATHS: usize = 600;
    let grant = |nth: usize| json!({"cluster": "m1", "subject": {"kind": "User", "name": format!("direct-{nth}")}});
    let path = |nth: usize| json!({"cluster": "m1", "subject": {"kind": "User", "name": format!("via-{nth}")}, "steps": [{"type": "CreatePods"}]});
    let grants: Vec<Value> = (0..GRANTS).map(grant).collect();
    let paths: Vec<Value> = (0..PATHS).map(path).collect();
    let api = PreparedApi::new(&[("reviews", json!({"status": {"grants": grants, "indirect": paths}}))]);
    let (mut cursor, mut pages) = (Value::Null, Vec::new());
    loop {
        let arguments = json!({"user": "ann", "indirect": true, "cursor": cursor});
        let (text, _) = call_tool(&api, "who_can", arguments).await.unwrap();
        cursor = next_cursor(&text);
        pages.push((text.matches("User direct-").count(), text.matches("User via-").count()));
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(pages.first(), Some(&(GRANTS, 0)), "{pages:?}");
    assert!(pages.len() > 2 && pages.iter().skip(1).all(|(grants, _)| *grants == 0), "{pages:?}");
    assert_eq!(pages.iter().map(|(_, paths)| paths).sum::<usize>(), PATHS, "{pages:?}");
}

#[rstest]
#[case::few(json!({"status": {"grants": [{}], "indirect": [{"steps": [{"type": "CreatePods"}]}]}}), &["CreatePods"], &["next\t", "notice\t"])]
#[case::more_grants(json!({"status": {"grants": [{}], "indirect": [{"steps": [{"type": "CreatePods"}]}], "continue": "t"}}), &["next\t", "notice\tindirect"], &["CreatePods"])]
#[tokio::test]
async fn indirect_paths_that_fit_are_in_the_last_page(
    #[case] review: Value,
    #[case] expected: &[&str],
    #[case] absent: &[&str],
) {
    let api = PreparedApi::new(&[("reviews", review)]);
    let (text, _) = call_tool(&api, "who_can", json!({"user": "ann", "indirect": true})).await.unwrap();
    assert!(expected.iter().all(|part| text.contains(part)), "{text}");
    assert!(!absent.iter().any(|part| text.contains(part)), "{text}");
}

#[tokio::test]
async fn queries_that_cannot_be_parsed_are_errors() {
    let mut response = hits(&[]);
    response["notices"] = json!([{"message": "unknown field nme", "start": 0, "end": 5}]);
    response["didYouMean"] = json!(["name:web"]);
    let (text, is_error) =
        call_tool(&PreparedApi::new(&[("/query", response)]), "search", json!({"query": "nme:web"})).await.unwrap();
    assert!(
        is_error && text.contains("notice\tunknown field nme") && text.contains("did you mean\tname:web"),
        "{text}"
    );
}

#[tokio::test]
async fn large_outputs_are_continued() {
    let rows: String = (0..2_000).map(|nth| format!("m1 shop/web-0 web | 2026-01-01T00:00:00Z line {nth}\n")).collect();
    let api = PreparedApi::new(&[("/logs", json!(rows))]);
    let (mut seen, mut cursor, mut calls) = (0, Value::Null, 0);
    loop {
        let (text, _) = call_tool(&api, "logs", json!({"pod": "web-0", "cursor": cursor})).await.unwrap();
        assert!(Value::from(text.clone()).to_string().len() <= 16 << 10);
        seen += text.matches("line ").count();
        calls += 1;
        match text.lines().find_map(|line| line.strip_prefix("next\t")) {
            Some(next) => cursor = next.split('\t').next().unwrap_or_default().into(),
            None => break,
        }
    }
    assert_eq!(seen, 2_000);
    assert!(calls > 3, "{calls}");
    let first = call_tool(&api, "logs", json!({"pod": "web-0"})).await.unwrap().0;
    let cursor = first.lines().find_map(|line| line.strip_prefix("next\t")).unwrap().split('\t').next().unwrap();
    let foreign = call_tool(&api, "logs", json!({"pod": "web-1", "cursor": cursor})).await.unwrap_err();
    assert_eq!(foreign.code, crate::message::INVALID_PARAMS, "a cursor belongs to its arguments");
}

/// The cursor in the text of an output; null if it has none.
fn next_cursor(text: &str) -> Value {
    let line = text.lines().find_map(|line| line.strip_prefix("next\t"));
    line.and_then(|line| line.split('\t').next()).into()
}

/// A page of the search API with many hits, and a cursor to more.
fn large_page(numbers: impl Iterator<Item = usize>) -> Value {
    let many: Vec<Value> = numbers.map(|nth| hit("m1", "Pod", &format!("web-{nth}-{}", "x".repeat(60)))).collect();
    let mut response = hits(&many);
    (response["cursor"], response["total"]) = (json!("end"), json!(5_000));
    response
}

/// Numbers in the names of the pods of an output.
fn pod_numbers(text: &str) -> Vec<usize> {
    let names = text.lines().filter_map(|line| line.split_once("\tweb-"));
    names.filter_map(|(_, rest)| rest.split('-').next()?.parse().ok()).collect()
}

#[tokio::test]
async fn each_page_of_a_search_needs_one_search() {
    let api = PreparedApi::new(&[("/query", large_page(0..300))]);
    let (mut found, mut cursor, mut calls) = (Vec::new(), Value::Null, 0);
    while found.len() < 300 {
        let (text, _) = call_tool(&api, "search", json!({"limit": 300, "cursor": cursor})).await.unwrap();
        assert!(text.contains("total\t5000"), "{text}");
        let numbers = pod_numbers(&text);
        assert!(!numbers.is_empty(), "{text}");
        found.extend(numbers);
        cursor = next_cursor(&text);
        calls += 1;
    }
    assert!(calls > 1 && found.iter().copied().eq(0..300), "{found:?}");
    let uris = api.uris();
    assert_eq!(uris.len(), calls, "{uris:?}");
    assert!(uris.iter().all(|uri| uri.contains("limit=300&") && !uri.contains("cursor=")), "{uris:?}");
    // After the hits of the API's page, the next page is requested.
    call_tool(&api, "search", json!({"limit": 300, "cursor": cursor})).await.unwrap();
    assert!(api.uris().last().unwrap().contains("&cursor=end&"), "{:?}", api.uris());
}

#[rstest]
#[case::unchanged(0..300, 0, false)]
#[case::removed_before(7..300, 0, false)]
#[case::added_before(0..300, 1_000, false)]
#[case::last_removed(0..300, 0, true)]
#[tokio::test]
async fn pages_continue_after_the_last_hit(
    #[case] remaining: std::ops::Range<usize>,
    #[case] added: usize,
    #[case] is_last_removed: bool,
) {
    let first = PreparedApi::new(&[("/query", large_page(0..300))]);
    let (text, _) = call_tool(&first, "search", json!({"limit": 300})).await.unwrap();
    let last = *pod_numbers(&text).last().unwrap();
    let new = (added > 0).then_some(added);
    let remaining = remaining.filter(|number| !is_last_removed || *number != last);
    let second = PreparedApi::new(&[("/query", large_page(new.into_iter().chain(remaining)))]);
    let (text, _) = call_tool(&second, "search", json!({"limit": 300, "cursor": next_cursor(&text)})).await.unwrap();
    assert_eq!(pod_numbers(&text).first(), Some(&(last + 1)), "{text}");
}

/// A hit whose sort value changed moves. It may be repeated or left out, as in the search API; no other hit is.
#[rstest]
#[case::last_to_the_front(0, true, 1)]
#[case::last_to_the_end(0, false, 1)]
#[case::next_to_the_front(1, true, 2)]
#[case::next_to_the_end(1, false, 2)]
#[tokio::test]
async fn a_hit_that_moves_does_not_move_the_position(
    #[case] after_last: usize,
    #[case] is_to_front: bool,
    #[case] first_after_last: usize,
) {
    let first = PreparedApi::new(&[("/query", large_page(0..300))]);
    let (text, _) = call_tool(&first, "search", json!({"limit": 300})).await.unwrap();
    let last = *pod_numbers(&text).last().unwrap();
    let moved = last + after_last;
    let others = (0..300).filter(|number| *number != moved);
    let numbers: Vec<usize> =
        if is_to_front { std::iter::once(moved).chain(others).collect() } else { others.chain([moved]).collect() };
    let second = PreparedApi::new(&[("/query", large_page(numbers.into_iter()))]);
    let (text, _) = call_tool(&second, "search", json!({"limit": 300, "cursor": next_cursor(&text)})).await.unwrap();
    assert_eq!(pod_numbers(&text).first(), Some(&(last + first_after_last)), "{text}");
}

#[rstest]
#[case::only_pods(json!({"query": "web"}), "Pod", 1)]
#[case::a_work(json!({"query": "web"}), "Work", 2)]
#[case::a_work_with_columns_of_the_manifest(json!({"query": "web", "columns": [".spec.suspend"]}), "Work", 1)]
#[tokio::test]
async fn kinds_of_works_are_searched_if_they_are_needed(
    #[case] arguments: Value,
    #[case] kind: &str,
    #[case] searches: usize,
) {
    let mut found = hit("m1", kind, "web");
    found["matched"] = json!([{"field": "content", "text": "web"}]);
    let api = PreparedApi::new(&[("/query", hits(&[found]))]);
    let (text, is_error) = call_tool(&api, "search", arguments).await.unwrap();
    assert!(!is_error && !text.contains("manifests.kind"), "{text}");
    assert_eq!(api.uris().len(), searches, "{:?}", api.uris());
}
