//! Requests that are small but expensive to process, sent by accounts with few permissions, and requests that would store
//! objects too large or too deeply nested to be read again. Each is refused while the server
//! continues to serve other requests.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl};
use serde_json::{Value, json};

#[test]
fn expensive_requests_do_not_block_the_server() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "member1"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let checks = || -> Result<()> {
        kubectl.run_ok(&["create", "namespace", "tenant"], "")?;
        let role = ["create", "rolebinding", "tina", "-n", "tenant", "--clusterrole", "admin", "--user", "tina"];
        kubectl.run_ok(&role, "")?;
        let tina = kubectl.with_flags(&["--as", "tina", "-n", "tenant"]);
        patches_that_copy_an_object_into_itself_are_refused(&kubectl, &tina)?;
        large_objects_are_refused(&kubectl, &tina, dir.path())?;
        a_review_with_many_requirements_is_refused(&kubectl)?;
        queries_with_many_expressions_are_refused(&fleet)
    };
    checks().with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Checks that the server still responds to others; kubectl times out after a minute.
fn check_readiness(kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["get", "--raw", "/readyz", "--request-timeout=60s"], "").map(drop)
}

/// JSON patch whose operations each double the depth of the object, up to at least `depth`.
fn doubling_patch(depth: usize) -> String {
    let mut operations = vec![json!({"op": "add", "path": "/data", "value": {"a": {}}})];
    let mut current = 1;
    while current < depth {
        let path = format!("/data{}/a", "/a".repeat(current));
        operations.push(json!({"op": "copy", "from": "/data", "path": path}));
        current = 2 * current + 1;
    }
    Value::from(operations).to_string()
}

fn patches_that_copy_an_object_into_itself_are_refused(kubectl: &Kubectl, tina: &Kubectl) -> Result<()> {
    tina.run_ok(&["create", "configmap", "deep"], "")?;
    for depth in [200, 8000] {
        let patch = ["patch", "configmap", "deep", "--type=json", "-p", &doubling_patch(depth)];
        tina.expect_output(&patch, "", 1, "the server rejected our request")?;
        check_readiness(kubectl)?;
    }
    let data = tina.run_ok(&["get", "configmap", "deep", "-o", "jsonpath={.data}"], "")?;
    ensure!(data.is_empty(), "{data}");
    Ok(())
}

/// Each request is below the size limit for requests; the second one makes the object exceed the limit for objects.
fn large_objects_are_refused(kubectl: &Kubectl, tina: &Kubectl, folder: &Path) -> Result<()> {
    tina.run_ok(&["create", "deployment", "large", "--image", "nginx:1.25", "--replicas=0"], "")?;
    let file = folder.join("patch.json");
    let path = file.display().to_string();
    let patch = ["patch", "deployment", "large", "--type=merge", "--patch-file", &path];
    let patch_with = |variables: &[&str]| {
        let value = "x".repeat(1_000_000);
        let variables: Vec<Value> = variables.iter().map(|name| json!({"name": name, "value": value})).collect();
        let containers = json!([{"name": "nginx", "image": "nginx:1.25", "env": variables}]);
        json!({"spec": {"template": {"spec": {"containers": containers}}}}).to_string()
    };
    std::fs::write(&file, patch_with(&["A"]))?;
    tina.run_ok(&patch, "")?;
    std::fs::write(&file, patch_with(&["A", "B"]))?;
    tina.expect_output(&patch, "", 1, "Request entity too large")?;
    check_readiness(kubectl)
}

/// Any authenticated user may send a SelfSubjectAccessReview.
fn a_review_with_many_requirements_is_refused(kubectl: &Kubectl) -> Result<()> {
    let requirements = vec![json!({}); 300_000];
    let attributes = json!({"verb": "get", "fieldSelector": {"requirements": requirements}});
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes},
    });
    let nobody = kubectl.with_flags(&["--as", "nobody"]);
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    nobody.expect_output(
                        &["create", "--raw", path, "-f", "-"],
                        &review.to_string(),
                        1,
                        "at most 1000 items",
                    )
                })
            })
            .collect();
        let ready = (0..3).try_for_each(|_| check_readiness(kubectl));
        threads.into_iter().try_for_each(|thread| {
            thread.join().map_err(|_| anyhow::anyhow!("the thread panicked")).and_then(|output| output.map(drop))
        })?;
        ready
    })
}

fn queries_with_many_expressions_are_refused(fleet: &Fleet) -> Result<()> {
    let query: Vec<String> = (100..200).map(|count| format!(r"/\w{{{count}}}/")).collect();
    let output = fleet.crowsnest(&["search", &query.join(" ")])?;
    ensure!(output.err.contains("more than 32 regular expressions"), "{output:?}");
    Ok(())
}
