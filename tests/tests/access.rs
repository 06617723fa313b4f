//! `crowsnest who-can`, `crowsnest can` and their API in a fleet of two members: proofs, removed objects, indirect paths, rights
//! of the caller, bad input, and agreement with the members' own authorizers.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, until, words};
use serde_json::{Value, json};

const MEMBER: &str = include_str!("access/member.yaml");
const PAGE: &str = include_str!("../../docs/ACCESS.md");
const ROOT: &str = "/apis/access.crowsnest.io/v1alpha1";
const SECRETS: &str = "who-can get secrets -n shop -C member1";

#[test]
fn access_is_reviewed_in_all_clusters() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.until(&["get", "clusters"], |out| out.matches(" True ").count() == 2)?;
    let member = kubectl.on(&fleet.kubeconfig("member1"));
    member.ok(&["apply", "-f", "-"], MEMBER)?;
    proofs(&fleet).with_context(|| fleet.log())?;
    removals(&fleet).with_context(|| fleet.log())?;
    indirect(&fleet).with_context(|| fleet.log())?;
    subjects(&fleet).with_context(|| fleet.log())?;
    api(&kubectl).with_context(|| fleet.log())?;
    rights(&kubectl).with_context(|| fleet.log())?;
    agreement(&fleet, &member).with_context(|| fleet.log())?;
    documented(&fleet).with_context(|| fleet.log())?;
    changes(&fleet, &member).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn run(fleet: &Fleet, line: &str) -> Result<CommandOutput> {
    fleet.crowsnest(&words(line))
}

/// A command that exits with this code and prints these texts, with one space between columns.
fn expect_rows(fleet: &Fleet, line: &str, code: i32, texts: &[&str]) -> Result<()> {
    let output = run(fleet, line)?;
    // Widths of columns depend on the other rows.
    let squeezed = output.out.lines().map(|line| words(line).join(" "));
    let all = squeezed.chain([output.err.clone()]).collect::<Vec<_>>().join("\n");
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

fn proofs(fleet: &Fleet) -> Result<()> {
    until("the member's rules to be known", || {
        let output = run(fleet, SECRETS)?;
        Ok(output.code == Some(0) && output.out.contains("RoleBinding shop/web") && output.out.contains("sre"))
    })?;
    // The controller of the member adds the rule to the aggregated role.
    until("the rule to be aggregated", || {
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
            "note: by RBAC only",
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
    let other = query_json(fleet, "who-can update deploy/other --subresource scale -n shop -C member1")?;
    ensure!(!rows(&other, "grants").contains("member1 ci ci"), "{other}");
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

fn removals(fleet: &Fleet) -> Result<()> {
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

fn indirect(fleet: &Fleet) -> Result<()> {
    let review = query_json(fleet, &format!("{SECRETS} --indirect"))?;
    let paths = review["status"]["indirect"].as_array().context("paths")?;
    let of_ci = paths.iter().find(|path| path["subject"] == json!({"kind": "User", "name": "ci"}));
    let of_ci = of_ci.with_context(|| format!("{review:#}"))?;
    // Secrets can be mounted, so that the account is not needed.
    ensure!(of_ci["steps"][0]["type"] == "CreatePod" && of_ci["cluster"] == "member1", "{of_ci:#}");
    ensure!(of_ci.pointer("/steps/0/rights/0/grant/binding/name") == Some(&json!("ci")), "{of_ci:#}");
    let expected = "member1 ServiceAccount shop/web CreatePod as ServiceAccount shop/web";
    expect_rows(fleet, "can user/ci -C member1 --indirect", 0, &[expected])
}

fn subjects(fleet: &Fleet) -> Result<()> {
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
    let out = kubectl.ok(&["create", "--raw", &format!("{ROOT}/{resource}"), "-f", "-"], &body)?;
    Ok(serde_json::from_str(&out)?)
}

/// Discovery, pages and invalid requests.
fn api(kubectl: &Kubectl) -> Result<()> {
    let listed = kubectl.ok(&["api-resources", "--api-group=access.crowsnest.io"], "")?;
    ensure!(listed.contains("ResourceAccessReview") && listed.contains("SubjectRulesReview"), "{listed}");
    let mut spec = json!({"resourceAttributes": {"verb": "get", "resource": "pods"}, "namespaces": ["*"]});
    let whole = create(kubectl, "resourceaccessreviews", &spec)?;
    let expected = whole["status"]["grants"].as_array().context("grants")?.clone();
    ensure!(expected.len() > 10 && whole["status"].get("continue").is_none(), "{whole}");
    let mut found: Vec<Value> = Vec::new();
    spec["limit"] = 7.into();
    loop {
        let page = create(kubectl, "resourceaccessreviews", &spec)?;
        let rows = page["status"]["grants"].as_array().context("grants")?;
        ensure!(!rows.is_empty() && rows.len() <= 7, "{page}");
        found.extend(rows.iter().cloned());
        let Some(next) = page["status"].get("continue") else { break };
        ensure!(page["status"]["remainingItemCount"] == expected.len() - found.len(), "{page}");
        spec["continue"] = next.clone();
    }
    ensure!(found == expected, "{} and {} rows", found.len(), expected.len());
    let wrong = [
        (json!({}), "exactly one of nonResourceAttributes or resourceAttributes must be specified"),
        (json!({"resourceAttributes": {"verb": "get", "resource": "pods"}, "limit": 0}), "must be from 1 to 1000"),
        (json!({"resourceAttributes": {"verb": "get", "resource": "pods"}, "clusters": ["m9"]}), "Not found"),
        (json!({"resourceAttributes": {"verb": "get", "resource": "pods"}, "other": 1}), "unknown field"),
    ];
    for (spec, text) in wrong {
        let body = json!({"spec": spec}).to_string();
        kubectl.expect_output(
            &["create", "--raw", &format!("{ROOT}/resourceaccessreviews"), "-f", "-"],
            &body,
            1,
            text,
        )?;
    }
    kubectl.expect_output(&["get", "--raw", &format!("{ROOT}/resourceaccessreviews")], "", 1, "")?;
    fits(kubectl, "ResourceAccessReview", &whole)
}

/// A response matches the OpenAPI document.
fn fits(kubectl: &Kubectl, kind: &str, value: &Value) -> Result<()> {
    let document: Value = serde_json::from_str(&kubectl.ok(&["get", "--raw", &format!("/openapi/v3{ROOT}")], "")?)?;
    let schema = json!({"$ref": format!("#/components/schemas/io.crowsnest.access.v1alpha1.{kind}")});
    let root = json!({"allOf": [schema], "components": document["components"]});
    let validator = jsonschema::options().build(&root)?;
    let errors: Vec<String> =
        validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
    ensure!(errors.is_empty(), "{kind}: {}", errors.join("\n"));
    Ok(())
}

/// Callers see only objects that they may list in the member, and learn of the rest from their own rights.
fn rights(kubectl: &Kubectl) -> Result<()> {
    let user = |name: &str| kubectl.with(&["--as", name, "--as-group", "system:authenticated"]);
    let attributes = json!({"verb": "get", "resource": "secrets", "namespace": "shop"});
    let ann = create(&user("ann"), "resourceaccessreviews", &json!({"resourceAttributes": attributes}))?;
    let seen = rows(&ann, "grants");
    ensure!(seen.contains("member1 web web") && !seen.iter().any(|row| row.contains("sre")), "{ann}");
    let clusters = &ann["status"]["clusters"];
    let of = |name: &str| clusters.as_array().into_iter().flatten().find(|one| one["name"] == name);
    let member = of("member1").with_context(|| clusters.to_string())?;
    ensure!(member["state"] == "Unknown", "{member}");
    let error = member["evaluationError"].as_str().unwrap_or_default();
    ensure!(error.contains("you cannot list all clusterroles, clusterrolebindings"), "{member}");
    ensure!(of("member2").is_none(), "ann has no right there: {clusters}");
    let unseen =
        json!({"resourceAttributes": {"verb": "get", "resource": "secrets"}, "clusters": ["member2"]}).to_string();
    let unseen = format!("{{\"spec\": {unseen}}}");
    user("ann").expect_output(
        &["create", "--raw", &format!("{ROOT}/resourceaccessreviews"), "-f", "-"],
        &unseen,
        1,
        "Not found",
    )?;
    let without = json!([{"kind": "ClusterRoleBinding", "name": "sre"}]);
    let hidden =
        create(&user("ann"), "resourceaccessreviews", &json!({"resourceAttributes": attributes, "without": without}))?;
    ensure!(hidden["status"]["lost"] == json!([]), "{hidden}");
    Ok(())
}

/// The rows are those subjects to whom the member's own authorizer allows the action.
fn agreement(fleet: &Fleet, member: &Kubectl) -> Result<()> {
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
                .ok(&["create", "--raw", "/apis/authorization.k8s.io/v1/subjectaccessreviews", "-f", "-"], &body)?;
            let decided: Value = serde_json::from_str(&out)?;
            ensure!(
                decided["status"]["allowed"] == allowed.contains(*name),
                "{name} {verb} {resource}/{subresource}: {decided} {allowed:?}"
            );
        }
    }
    Ok(())
}

/// Every command of the page succeeds.
fn documented(fleet: &Fleet) -> Result<()> {
    let lines: Vec<&str> = PAGE.lines().filter_map(|line| line.strip_prefix("    crowsnest ")).collect();
    ensure!(lines.len() > 8, "{lines:?}");
    for line in lines {
        let output = run(fleet, line)?;
        ensure!(output.code == Some(0), "crowsnest {line}: {output:?}");
    }
    Ok(())
}

/// A change of an RBAC object in a member is in the answer.
fn changes(fleet: &Fleet, member: &Kubectl) -> Result<()> {
    member.ok(&["delete", "clusterrolebinding", "sre"], "")?;
    until("the deleted binding to be left out", || Ok(!run(fleet, SECRETS)?.out.contains("Group sre ")))
}
