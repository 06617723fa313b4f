//! `crowsnest who-can`, `crowsnest can` and their API in a fleet of two members: proofs, removed objects, indirect
//! paths, permissions of the caller, bad input, and agreement with the members' own authorizers.

mod reviews;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, run_shell_blocks, wait_for, words};
use serde_json::{Value, json};

const MEMBER: &str = include_str!("access/member.yaml");
const CONTROL_PLANE: &str = include_str!("access/control-plane.yaml");
const DOCUMENTATION: &str = include_str!("../../docs/ACCESS.md");
const ROOT: &str = "/apis/access.crowsnest.io/v1alpha1";
const SECRETS: &str = "who-can get secrets -n shop -C member1";

#[test]
fn access_is_reviewed_in_all_clusters() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let fleet = Fleet::start(&data, &["--members", "2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.run_until(&["get", "clusters"], |out| out.matches(" True ").count() == 2)?;
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member1"));
    member.run_ok(&["apply", "-f", "-"], MEMBER)?;
    check_proofs(&fleet).with_context(|| fleet.log())?;
    check_removals(&fleet).with_context(|| fleet.log())?;
    check_indirect_paths(&fleet).with_context(|| fleet.log())?;
    check_paths_through_control_plane(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_subjects(&fleet).with_context(|| fleet.log())?;
    check_api(&kubectl).with_context(|| fleet.log())?;
    check_caller_permissions(&kubectl).with_context(|| fleet.log())?;
    check_audit(&kubectl, &data.join("audit/audit.log")).with_context(|| fleet.log())?;
    check_agreement_with_authorizers(&fleet, &member).with_context(|| fleet.log())?;
    check_documented_commands(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_changes(&fleet, &member).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn run(fleet: &Fleet, line: &str) -> Result<CommandOutput> {
    fleet.crowsnest(&words(line))
}

/// Runs a command that must exit with this code and print these texts, with one space between columns.
fn expect_rows(fleet: &Fleet, line: &str, code: i32, texts: &[&str]) -> Result<()> {
    let output = run(fleet, line)?;
    // Widths of columns depend on the other rows.
    let rows = output.out.lines().map(|line| words(line).join(" "));
    let all = rows.chain([output.err.clone()]).collect::<Vec<_>>().join("\n");
    for text in texts {
        ensure!(output.code == Some(code) && all.contains(text), "crowsnest {line}: {text:?} is not in {output:?}");
    }
    Ok(())
}

fn query_json(fleet: &Fleet, line: &str) -> Result<Value> {
    let output = run(fleet, &format!("{line} -o json"))?;
    ensure!(output.code == Some(0), "{line}: {output:?}");
    serde_json::from_str(&output.out).with_context(|| format!("{output:?}"))
}

/// `CLUSTER SUBJECT BINDING` of the rows of a list.
fn rows(review: &Value, list: &str) -> BTreeSet<String> {
    let row = |grant: &Value| {
        let text = |pointer: &str| grant.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned();
        [text("/cluster"), text("/subject/name"), text("/binding/name")].join(" ")
    };
    review["status"][list].as_array().into_iter().flatten().map(row).collect()
}

fn check_proofs(fleet: &Fleet) -> Result<()> {
    wait_for("the member's RBAC objects to be cached", || {
        let output = run(fleet, SECRETS)?;
        Ok(output.code == Some(0) && output.out.contains("RoleBinding shop/web") && output.out.contains("sre"))
    })?;
    // The controller of the member adds the rule to the aggregated role.
    wait_for("the rule to be aggregated", || {
        Ok(run(fleet, "who-can get widgets.example.io -C member1")?.out.contains("viewers"))
    })?;
    expect_rows(
        fleet,
        SECRETS,
        0,
        &[
            "CLUSTER SUBJECT NAMESPACE BINDING ROLE",
            "member1 Group system:masters * - -",
            "member1 Group sre * ClusterRoleBinding sre ClusterRole cluster-admin",
            "member1 ServiceAccount shop/web shop RoleBinding shop/web Role shop/secrets",
            "note: only RBAC is evaluated",
            "RoleBinding shop/gone references Role \"gone\", which does not exist",
        ],
    )?;
    expect_rows(
        fleet,
        "who-can get widgets.example.io -C member1 -o wide",
        0,
        &[
            "member1 Group viewers * ClusterRoleBinding viewers ClusterRole view get widgets.example.io widgets",
            "warning: no reviewed cluster serves widgets.example.io",
        ],
    )?;
    expect_rows(
        fleet,
        "who-can update deploy/web --subresource scale -n shop -C member1",
        0,
        &["member1 User ci shop RoleBinding shop/ci"],
    )?;
    let other_deployment = query_json(fleet, "who-can update deploy/other --subresource scale -n shop -C member1")?;
    ensure!(!rows(&other_deployment, "grants").contains("member1 ci ci"), "{other_deployment}");
    expect_rows(
        fleet,
        "who-can get /healthz -C member1",
        0,
        &["Group system:authenticated * ClusterRoleBinding system:"],
    )?;
    let clusters = query_json(fleet, "who-can get secrets -A")?;
    let names: Vec<&str> = clusters["status"]["clusters"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| one["name"].as_str())
        .collect();
    ensure!(names == ["@control-plane", "member1", "member2"], "{names:?}");
    expect_rows(fleet, "who-can get pods/exec -n shop", 1, &["use `pods --subresource exec`"])?;
    expect_rows(fleet, "who-can get secrets -C member9", 1, &["spec.clusters[0]: Not found: \"member9\""])?;
    expect_rows(fleet, &format!("{SECRETS} --verify"), 0, &["RoleBinding shop/web Role shop/secrets yes"])
}

fn check_removals(fleet: &Fleet) -> Result<()> {
    let review = query_json(fleet, &format!("{SECRETS} --without clusterrolebinding/sre"))?;
    ensure!(rows(&review, "lost") == BTreeSet::from(["member1 sre sre".to_owned()]), "{review}");
    ensure!(
        rows(&review, "remaining").contains("member1 web web") && review["status"].get("grants").is_none(),
        "{review}"
    );
    expect_rows(
        fleet,
        &format!("{SECRETS} --without member1:role/shop/secrets"),
        0,
        &["lost member1 ServiceAccount shop/web"],
    )?;
    let widgets = "who-can get widgets.example.io -C member1 --without clusterrole/widgets";
    expect_rows(fleet, widgets, 0, &["lost member1 Group viewers", "remaining member1 Group sre"])?;
    let nothing = format!("{SECRETS} --without clusterrole/nosuch");
    expect_rows(fleet, &nothing, 0, &["no reviewed cluster has ClusterRole nosuch that you may list"])?;
    expect_rows(fleet, &format!("{SECRETS} --without pod/shop/web"), 2, &["expected KIND/NAME"])?;
    // The review removed no object.
    expect_rows(fleet, SECRETS, 0, &["Group sre"])
}

fn check_indirect_paths(fleet: &Fleet) -> Result<()> {
    let review = query_json(fleet, &format!("{SECRETS} --indirect"))?;
    let paths = review["status"]["indirect"].as_array().context("the review has no indirect paths")?;
    let path_of_ci = paths.iter().find(|path| path["subject"] == json!({"kind": "User", "name": "ci"}));
    let path_of_ci = path_of_ci.with_context(|| format!("{review:#}"))?;
    // Secrets can be mounted, so that the account is not needed.
    ensure!(path_of_ci["steps"][0]["type"] == "CreatePod" && path_of_ci["cluster"] == "member1", "{path_of_ci:#}");
    ensure!(path_of_ci.pointer("/steps/0/rights/0/grant/binding/name") == Some(&json!("ci")), "{path_of_ci:#}");
    let expected = "member1 ServiceAccount shop/web CreatePod as ServiceAccount shop/web";
    expect_rows(fleet, "can user/ci -C member1 --indirect", 0, &[expected])
}

/// Permissions in the control plane give access to members.
fn check_paths_through_control_plane(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    kubectl.run_ok(&["apply", "-f", "-"], CONTROL_PLANE)?;
    let indirect = "can user/releaser -C member1 --indirect";
    wait_for("the control plane's RBAC objects to be cached", || Ok(run(fleet, indirect)?.out.contains("WriteWork")))?;
    let path = "member1 User deployer of @control-plane";
    let steps = "Impersonate as User deployer of @control-plane, WriteWork";
    expect_rows(fleet, indirect, 0, &[&format!("{path} {steps}")])?;
    expect_rows(fleet, "can user/deployer -C member1 --indirect", 0, &[&format!("{path} WriteWork")])?;
    let other = run(fleet, "can user/releaser -C member2 --indirect")?;
    ensure!(!other.out.contains("WriteWork"), "{other:?}");
    let review = query_json(fleet, indirect)?;
    ensure!(review.pointer("/status/controlPlane/state") == Some(&json!("Complete")), "{review:#}");
    check_schema(kubectl, "SubjectRulesReview", &review)?;
    let paths = [format!("{path} WriteWork"), format!("member1 User releaser of @control-plane {steps}")];
    expect_rows(fleet, &format!("{SECRETS} --indirect"), 0, &[&paths[0], &paths[1]])
}

fn check_subjects(fleet: &Fleet) -> Result<()> {
    let review = query_json(fleet, "can sa/shop/web -C member1")?;
    ensure!(rows(&review, "roles").contains("member1 web web"), "{review}");
    let groups = json!(["system:authenticated", "system:serviceaccounts", "system:serviceaccounts:shop"]);
    ensure!(review["status"]["groups"] == groups, "{review}");
    expect_rows(
        fleet,
        "can ann --group sre -C member1 -o wide",
        0,
        &[
            "member1 * * *.* ClusterRole cluster-admin ClusterRoleBinding sre Group sre",
            "member1 shop get,list roles.rbac.authorization.k8s.io,rolebindings.rbac.authorization.k8s.io Role shop/auditor",
        ],
    )?;
    expect_rows(
        fleet,
        "can ann -C member1 --without rolebinding/shop/auditor",
        0,
        &["lost member1 shop Role shop/auditor"],
    )?;
    expect_rows(fleet, "can group/system:masters -C member2", 0, &["member2 * - - Group system:masters"])
}

fn create(kubectl: &Kubectl, resource: &str, spec: &Value) -> Result<Value> {
    let body = json!({"spec": spec}).to_string();
    let out = kubectl.run_ok(&["create", "--raw", &format!("{ROOT}/{resource}"), "-f", "-"], &body)?;
    Ok(serde_json::from_str(&out)?)
}

/// Discovery, pages and invalid requests.
fn check_api(kubectl: &Kubectl) -> Result<()> {
    let listed = kubectl.run_ok(&["api-resources", "--api-group=access.crowsnest.io"], "")?;
    ensure!(listed.contains("ResourceAccessReview") && listed.contains("SubjectRulesReview"), "{listed}");
    let mut spec = json!({"resourceAttributes": {"verb": "get", "resource": "pods"}, "namespaces": ["*"]});
    let unpaged = create(kubectl, "resourceaccessreviews", &spec)?;
    let expected = unpaged["status"]["grants"].as_array().context("the review has no grants")?.clone();
    ensure!(expected.len() > 10 && unpaged["status"].get("continue").is_none(), "{unpaged}");
    let mut found: Vec<Value> = Vec::new();
    spec["limit"] = 7.into();
    loop {
        let page = create(kubectl, "resourceaccessreviews", &spec)?;
        let rows = page["status"]["grants"].as_array().context("the review has no grants")?;
        ensure!(!rows.is_empty() && rows.len() <= 7, "{page}");
        found.extend(rows.iter().cloned());
        let Some(next) = page["status"].get("continue") else { break };
        ensure!(page["status"]["remainingItemCount"] == expected.len() - found.len(), "{page}");
        spec["continue"] = next.clone();
    }
    ensure!(found == expected, "{} and {} rows", found.len(), expected.len());
    let invalid = [
        (json!({}), "exactly one of nonResourceAttributes or resourceAttributes must be specified"),
        (json!({"resourceAttributes": {"verb": "get", "resource": "pods"}, "limit": 0}), "must be from 1 to 1000"),
        (json!({"resourceAttributes": {"verb": "get", "resource": "pods"}, "clusters": ["m9"]}), "Not found"),
        (
            json!({"resourceAttributes": {"verb": "get", "resource": "pods"}, "other": 1}),
            "spec.other: Invalid value: unknown field",
        ),
        (
            json!({"resourceAttributes": {"verb": "list", "resource": "pods", "labelSelector": {}}}),
            "requirements or rawSelector is required",
        ),
    ];
    for (spec, text) in invalid {
        let body = json!({"spec": spec}).to_string();
        kubectl.expect_output(
            &["create", "--raw", &format!("{ROOT}/resourceaccessreviews"), "-f", "-"],
            &body,
            1,
            text,
        )?;
    }
    kubectl.expect_output(&["get", "--raw", &format!("{ROOT}/resourceaccessreviews")], "", 1, "")?;
    check_selectors(kubectl)?;
    check_schema(kubectl, "ResourceAccessReview", &unpaged)?;
    let without = json!([{"cluster": "member1", "kind": "RoleBinding", "namespace": "shop", "name": "web"}]);
    let attributes = json!({"verb": "get", "resource": "secrets", "namespace": "shop"});
    let spec = json!({"resourceAttributes": attributes, "without": without, "indirect": true});
    let review = create(kubectl, "resourceaccessreviews", &spec)?;
    ensure!(review["status"]["indirect"].as_array().is_some_and(|paths| !paths.is_empty()), "{review}");
    check_schema(kubectl, "ResourceAccessReview", &review)?;
    let spec = json!({"user": "ci", "groups": ["system:masters"], "without": without, "indirect": true});
    check_schema(kubectl, "SubjectRulesReview", &create(kubectl, "subjectrulesreviews", &spec)?)
}

/// Selectors do not change the grants; one that cannot be parsed is reported.
fn check_selectors(kubectl: &Kubectl) -> Result<()> {
    let grants = |selectors: Value| -> Result<(Value, Value)> {
        let mut attributes = json!({"verb": "list", "resource": "pods"});
        for (field, selector) in selectors.as_object().into_iter().flatten() {
            attributes[field] = selector.clone();
        }
        let review = create(kubectl, "resourceaccessreviews", &json!({"resourceAttributes": attributes}))?;
        check_schema(kubectl, "ResourceAccessReview", &review)?;
        Ok((review["status"]["grants"].clone(), review["status"]["warnings"].clone()))
    };
    let all = grants(json!({}))?;
    let requirement = json!({"key": "app", "operator": "In", "values": ["web"]});
    let selected =
        json!({"fieldSelector": {"rawSelector": "spec.nodeName=n1"}, "labelSelector": {"requirements": [requirement]}});
    ensure!(grants(selected)? == all, "{all:?}");
    let (found, warnings) = grants(json!({"labelSelector": {"rawSelector": "app in (web"}}))?;
    let ignored = "spec.resourceAttributes.labelSelector ignored due to parse error";
    ensure!(found == all.0 && warnings.to_string().contains(ignored), "{warnings}");
    Ok(())
}

/// A review is in the audit log with its caller and the reviewed clusters.
fn check_audit(kubectl: &Kubectl, log: &Path) -> Result<()> {
    let spec =
        json!({"resourceAttributes": {"verb": "get", "resource": "secrets"}, "clusters": ["member1", "member2"]});
    create(kubectl, "resourceaccessreviews", &spec)?;
    let is_review = |event: &Value| {
        event["verb"] == "create"
            && event["objectRef"]["resource"] == "resourceaccessreviews"
            && event["user"]["username"].is_string()
            && event["annotations"]["crowsnest.io/clusters"] == "member1,member2"
    };
    wait_for("the review to be in the audit log", || {
        let text = fs::read_to_string(log)?;
        let complete = text.rsplit_once('\n').map(|(complete, _)| complete).unwrap_or_default();
        let events = complete.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
        Ok(events.iter().any(is_review))
    })
}

/// Checks that a response matches the OpenAPI document.
fn check_schema(kubectl: &Kubectl, kind: &str, value: &Value) -> Result<()> {
    let document: Value = serde_json::from_str(&kubectl.run_ok(&["get", "--raw", &format!("/openapi/v3{ROOT}")], "")?)?;
    let schema = json!({"$ref": format!("#/components/schemas/io.crowsnest.access.v1alpha1.{kind}")});
    let root = json!({"allOf": [schema], "components": document["components"]});
    let validator = jsonschema::options().build(&root)?;
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    ensure!(errors.is_empty(), "{kind}: {}", errors.join("\n"));
    Ok(())
}

/// Callers see only objects that they may list in the member; for the rest, the state is Unknown with the reason.
fn check_caller_permissions(kubectl: &Kubectl) -> Result<()> {
    let user = |name: &str| kubectl.with_flags(&["--as", name, "--as-group", "system:authenticated"]);
    let attributes = json!({"verb": "get", "resource": "secrets", "namespace": "shop"});
    let ann = create(&user("ann"), "resourceaccessreviews", &json!({"resourceAttributes": attributes}))?;
    let readable = rows(&ann, "grants");
    ensure!(readable.contains("member1 web web") && !readable.iter().any(|row| row.contains("sre")), "{ann}");
    let clusters = &ann["status"]["clusters"];
    let find = |name: &str| clusters.as_array().into_iter().flatten().find(|one| one["name"] == name);
    let member = find("member1").with_context(|| clusters.to_string())?;
    ensure!(member["state"] == "Unknown", "{member}");
    let error = member["evaluationError"].as_str().unwrap_or_default();
    ensure!(error.contains("you cannot list all clusterroles, clusterrolebindings"), "{member}");
    ensure!(find("member2").is_none(), "ann has no permission in member2: {clusters}");
    let unseen =
        json!({"resourceAttributes": {"verb": "get", "resource": "secrets"}, "clusters": ["member2"]}).to_string();
    let unseen = format!("{{\"spec\": {unseen}}}");
    user("ann").expect_output(
        &["create", "--raw", &format!("{ROOT}/resourceaccessreviews"), "-f", "-"],
        &unseen,
        1,
        "Not found",
    )?;
    let paths = create(
        &user("ann"),
        "resourceaccessreviews",
        &json!({"resourceAttributes": attributes, "clusters": ["member1"], "indirect": true}),
    )?;
    ensure!(paths.pointer("/status/controlPlane/state") == Some(&json!("Unknown")), "{paths}");
    ensure!(!paths["status"]["indirect"].to_string().contains("deployer"), "{paths}");
    let without = json!([{"kind": "ClusterRoleBinding", "name": "sre"}]);
    let hidden =
        create(&user("ann"), "resourceaccessreviews", &json!({"resourceAttributes": attributes, "without": without}))?;
    ensure!(hidden["status"]["lost"] == json!([]), "{hidden}");
    Ok(())
}

/// The listed subjects are exactly those to whom the member's own authorizer allows the action.
fn check_agreement_with_authorizers(fleet: &Fleet, member: &Kubectl) -> Result<()> {
    let users = [
        ("ann", json!({"user": "ann", "groups": ["system:authenticated"]})),
        ("ci", json!({"user": "ci", "groups": ["system:authenticated"]})),
        ("sre", json!({"groups": ["sre", "system:authenticated"]})),
        ("viewers", json!({"groups": ["viewers", "system:authenticated"]})),
        (
            "web",
            json!({"user": "system:serviceaccount:shop:web", "groups": ["system:authenticated", "system:serviceaccounts"]}),
        ),
    ];
    let actions = [
        ("get", "", "secrets", ""),
        ("list", "", "secrets", ""),
        ("create", "", "pods", ""),
        ("get", "", "pods", "log"),
        ("update", "apps", "deployments", "scale"),
        ("list", "rbac.authorization.k8s.io", "roles", ""),
    ];
    for (verb, group, resource, subresource) in actions {
        let dot = if group.is_empty() { "" } else { "." };
        let flag = if subresource.is_empty() { String::new() } else { format!(" --subresource {subresource}") };
        let review = query_json(fleet, &format!("who-can {verb} {resource}{dot}{group}{flag} -n shop -C member1"))?;
        let allowed: BTreeSet<String> =
            rows(&review, "grants").iter().filter_map(|row| row.split(' ').nth(1)).map(str::to_owned).collect();
        for (name, subject) in &users {
            let mut spec = subject.clone();
            spec["resourceAttributes"] = json!({"verb": verb, "group": group, "resource": resource,
                "subresource": subresource, "namespace": "shop"});
            let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
                .to_string();
            let out = member
                .run_ok(&["create", "--raw", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "-f", "-"], &body)?;
            let review: Value = serde_json::from_str(&out)?;
            ensure!(
                review["status"]["allowed"] == allowed.contains(*name),
                "{name} {verb} {resource}/{subresource}: {review} {allowed:?}"
            );
        }
    }
    Ok(())
}

/// Every command of the page succeeds.
fn check_documented_commands(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let lines: Vec<&str> = DOCUMENTATION.lines().filter_map(|line| line.strip_prefix("    crowsnest ")).collect();
    ensure!(lines.len() > 8, "{lines:?}");
    for line in lines {
        let output = run(fleet, line)?;
        ensure!(output.code == Some(0), "crowsnest {line}: {output:?}");
    }
    let outputs = run_shell_blocks(DOCUMENTATION, kubectl)?;
    ensure!(outputs.len() == 1 && outputs[0].contains("\"grants\""), "{outputs:?}");
    Ok(())
}

/// A change of an RBAC object in a member changes the result.
fn check_changes(fleet: &Fleet, member: &Kubectl) -> Result<()> {
    member.run_ok(&["delete", "clusterrolebinding", "sre"], "")?;
    wait_for("the deleted binding to be removed from the result", || {
        Ok(!run(fleet, SECRETS)?.out.contains("Group sre "))
    })
}
