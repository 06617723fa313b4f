//! `crowsnest explain` and `crowsnest plan`, and their API, with three members: policies, filters, overrides and
//! pending conditions; previews limited to readable objects, without writes.

use anyhow::{Context, Result, bail, ensure};
use crowsnest_tests::{CommandOutput, Fleet, Kubectl, expect_output, wait_for, wait_for_output, words};
use serde_json::{Value, json};

const FLEET: &str = include_str!("explain/fleet.yaml");
const LOSERS: &str = include_str!("explain/losers.yaml");
const PERMISSIONS: &str = include_str!("explain/permissions.yaml");
const ROOT: &str = "/apis/propagation.crowsnest.io/v1alpha1";
const TAINT: &str = r#"{"spec":{"taints":[{"key":"reserved","value":"ops","effect":"NoSchedule"}]}}"#;

#[test]
fn explanations_and_plans_are_complete_and_change_nothing() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let data = dir.path().join("data");
    let fleet = Fleet::start(&data, &["--members", "3"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    wait_until_settled(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_explain(&fleet).with_context(|| fleet.log())?;
    check_plan(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_invalid_plans(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_permissions(&kubectl).with_context(|| fleet.log())?;
    check_schemas(&kubectl).with_context(|| fleet.log())?;
    check_nothing_is_written(&fleet, &kubectl).with_context(|| fleet.log())?;
    // No state is stored, so a restart loses nothing.
    ensure!(fleet.stop()?.success());
    let fleet = Fleet::start(&data, &["--members", "3"])?;
    let again = wait_for_output(&fleet, &words("explain deploy/web -n shop -o json"), |output| output.code == Some(0))?;
    check_policy_outcomes(&serde_json::from_str(&again.out)?)?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// `plan -f` of fixtures, with additional flags.
fn plan_command(files: &[&str], flags: &str) -> String {
    let files = files.iter().map(|file| format!("-f {}/../tests/tests/explain/{file} ", env!("CARGO_MANIFEST_DIR")));
    format!("plan {}{flags}", files.collect::<String>())
}

fn query_json(fleet: &Fleet, line: &str) -> Result<Value> {
    let output = expect_output(fleet, &words(&format!("{line} -o json")), 0, "")?;
    serde_json::from_str(&output.out).with_context(|| format!("{output:?}"))
}

fn find_by<'v>(list: &'v Value, field: &str, value: &str) -> Result<&'v Value> {
    let found = list.as_array().into_iter().flatten().find(|one| one[field] == value);
    found.with_context(|| format!("no {field} {value} in {list}"))
}

/// Creates the objects and waits until all except one are scheduled.
fn wait_until_settled(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    kubectl.run_until(&["get", "clusters"], |out| out.matches(" True ").count() == 3)?;
    kubectl.run_ok(&["patch", "cluster", "member3", "--type=merge", "-p", TAINT], "")?;
    kubectl.run_ok(&["create", "namespace", "shop"], "")?;
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member1"));
    member.run_until(&["get", "namespace", "shop", "-o", "name"], |out| out.contains("shop"))?;
    member.run_ok(&["create", "configmap", "free", "-n", "shop", "--from-literal=level=theirs"], "")?;
    kubectl.run_ok(&["apply", "-f", "-"], FLEET)?;
    kubectl.run_until(&["get", "deploy", "web", "-n", "shop", "-o", "jsonpath={.status.readyReplicas}"], |out| {
        out == "3"
    })?;
    kubectl.run_ok(&["apply", "-f", "-"], LOSERS)?;
    kubectl
        .run_until(&["get", "rb", "stuck-configmap", "-n", "shop", "-o", "yaml"], |out| out.contains("NoClusterFit"))?;
    kubectl.run_ok(&["apply", "-f", "-"], PERMISSIONS).map(drop)
}

fn check_policy_outcomes(explanation: &Value) -> Result<()> {
    let outcome =
        |name: &str| Ok::<_, anyhow::Error>(find_by(&explanation["policies"], "name", name)?["outcome"].clone());
    ensure!(outcome("web")? == "Claimed" && outcome("all")? == "NotPreempting", "{explanation}");
    ensure!(outcome("everything")? == "NotPreempting", "{explanation}");
    ensure!(
        explanation["policy"] == json!({"kind": "PropagationPolicy", "namespace": "shop", "name": "web"}),
        "{explanation}"
    );
    Ok(())
}

fn check_explain(fleet: &Fleet) -> Result<()> {
    let is_settled = |output: &CommandOutput| {
        output.code == Some(0) && output.out.contains("lost:") && !output.out.contains("WAITING")
    };
    let output = wait_for_output(fleet, &words("explain deployment/web -n shop"), is_settled)?;
    for text in [
        "follows PropagationPolicy shop/web",
        "ClusterPropagationPolicy everything   7          kind         lost: ",
        "no, ClusterAffinity: cluster(s) did not match the placement cluster affinity constraint",
        "/spec/template/spec/containers/0/image: nginx:1.25 -> nginx:1.27",
        "Healthy",
    ] {
        ensure!(output.out.contains(text), "{text:?} is not in {}", output.out);
    }
    let explanation = query_json(fleet, "explain deploy/web -n shop")?;
    check_policy_outcomes(&explanation)?;
    let clusters = &explanation["scheduling"]["terms"][0]["clusters"];
    let mut replicas = 0;
    for name in ["member1", "member2"] {
        let cluster = find_by(clusters, "name", name)?;
        let estimate = &cluster["estimate"];
        ensure!(cluster["score"] == 100 && cluster["selected"] == true, "{cluster}");
        ensure!(estimate["replicas"].as_i64() > Some(0) && estimate["boundBy"].is_string(), "{cluster}");
        replicas += cluster["replicas"].as_i64().unwrap_or_default();
    }
    ensure!(
        replicas == 3 && find_by(clusters, "name", "member3")?["rejected"]["filter"] == "ClusterAffinity",
        "{clusters}"
    );
    ensure!(find_by(&explanation["targets"], "cluster", "member2")?["overrides"] == json!([]), "{explanation}");
    // An explanation can be requested for the binding or for its template.
    let binding_explanation = query_json(fleet, "explain rb/web-deployment -n shop")?;
    ensure!(binding_explanation["metadata"] == explanation["metadata"], "{binding_explanation}");

    let output =
        wait_for_output(fleet, &words("explain cm/settings -n shop"), |output| output.out.contains("WAITING FOR"))?;
    for text in [
        "no, TaintToleration: cluster(s) had untolerated taint {reserved=ops:NoSchedule}",
        "DispatchingSuspended   member2   dispatching to member2 is suspended",
    ] {
        ensure!(output.out.contains(text), "{text:?} is not in {}", output.out);
    }
    expect_output(
        fleet,
        &words("explain cm/stuck -n shop"),
        0,
        "NotScheduled   -         NoClusterFit: 0/3 clusters are available: ",
    )?;
    expect_output(
        fleet,
        &words("explain cm/free -n shop"),
        0,
        "NoPolicy      -         no policy selects the template",
    )?;
    expect_output(fleet, &words("explain namespace/shop"), 0, "follows no policy")?;
    expect_output(fleet, &words("explain cm/free -n shop -o yaml"), 0, "name: configmaps:free")?;
    expect_output(fleet, &words("explain cm/nosuch -n shop"), 1, "configmaps \"nosuch\" not found")?;
    expect_output(fleet, &words("explain nosuch/web"), 1, "the control plane has no resource type \"nosuch\"")?;
    expect_output(
        fleet,
        &words("explain web"),
        1,
        "no resource type \"web\"; `crowsnest api-resources` lists them, and KIND/NAME, such as",
    )?;
    expect_output(fleet, &words("explain pp/web -n shop"), 1, "no propagated namespaced resource is named")?;
    Ok(())
}

fn check_plan(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    // A new policy claims unclaimed templates; a conflicting object in a member is reported.
    let output = expect_output(
        fleet,
        &words(&plan_command(&["new.yaml"], "")),
        0,
        "PropagationPolicy shop/free would be created",
    )?;
    for text in [
        "member1   added    -          resource(kind=ConfigMap, shop/free) already exists in the cluster member1",
        "member2   added    -",
        "member3   -        -          cluster(s) had untolerated taint {reserved=ops:NoSchedule}",
        "+  level: ours",
    ] {
        ensure!(output.out.contains(text), "{text:?} is not in {}", output.out);
    }
    kubectl.expect_output(&["get", "pp", "free", "-n", "shop"], "", 1, "not found")?;

    // A changed policy moves replicas.
    let report = query_json(fleet, &plan_command(&["changed.yaml"], ""))?;
    let clusters = &report["status"]["templates"][0]["clusters"];
    ensure!(find_by(clusters, "name", "member1")?["change"] == "Removed", "{clusters}");
    let member2 = find_by(clusters, "name", "member2")?;
    ensure!(member2["change"] == "Changed" && member2["replicas"] == 3, "{clusters}");
    ensure!(find_by(&member2["differences"], "path", "/spec/replicas")?["after"] == 3, "{member2}");
    let output = expect_output(
        fleet,
        &words(&plan_command(&["changed.yaml"], "--fail-on-change")),
        4,
        "PropagationPolicy shop/web would be changed",
    )?;
    ensure!(
        output.out.contains("+  replicas: 3") && output.out.contains("did not match the placement"),
        "{}",
        output.out
    );
    expect_output(fleet, &words(&plan_command(&["changed.yaml"], "--brief")), 0, "member1   removed")?;

    // With another override, one cluster returns to the original image, and another one gets a new image.
    let output = expect_output(
        fleet,
        &words(&plan_command(&["override.yaml"], "")),
        0,
        "OverridePolicy shop/images would be changed",
    )?;
    let lines: Vec<String> = output.out.lines().map(|line| line.replace([' ', '-'], "")).collect();
    for text in ["inmember1:", "+image:nginx:1.25", "inmember2:", "+image:nginx:1.29"] {
        ensure!(lines.iter().any(|line| line == text), "{text:?} is not in {}", output.out);
    }
    // Both changes together, on an object of the same plan.
    let both = query_json(fleet, &plan_command(&["changed.yaml", "override.yaml"], ""))?;
    let only = find_by(&both["status"]["templates"][0]["clusters"], "name", "member2")?;
    ensure!(only["manifest"]["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:1.29", "{only}");
    // An unchanged object changes nothing.
    let output =
        expect_output(fleet, &words(&plan_command(&["losers.yaml"], "--fail-on-change")), 0, "would not change")?;
    ensure!(!output.out.contains("would be"), "{}", output.out);
    kubectl.run_ok(&["get", "deploy", "web", "-n", "shop"], "").map(drop)
}

fn check_invalid_plans(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    expect_output(fleet, &words(&plan_command(&["wrong.yaml"], "")), 1, "spreadByLabel")?;
    expect_output(fleet, &words(&plan_command(&["missing.yaml"], "")), 1, "missing.yaml")?;
    expect_output(
        fleet,
        &words(&plan_command(&["changed.yaml"], "-n other")),
        1,
        "does not match the namespace \"other\"",
    )?;
    expect_output(
        fleet,
        &words(&plan_command(&["changed.yaml"], "--limit 0")),
        1,
        "spec.limit: Invalid value: 0: must be from 1 to 500",
    )?;
    expect_output(
        fleet,
        &words(&plan_command(&["changed.yaml", "changed.yaml"], "")),
        1,
        "spec.objects[1]: Duplicate value: \"web\"",
    )?;
    let create = ["create", "--raw", &format!("{ROOT}/plans"), "-f", "-"];
    let metadata = json!({"name": "web-1", "namespace": "karmada-es-member1"});
    let work = json!({"apiVersion": "work.karmada.io/v1alpha1", "kind": "Work", "metadata": metadata});
    kubectl.expect_output(&create, &json!({"spec": {"objects": [work]}}).to_string(), 1, "can be planned")?;
    kubectl.expect_output(&create, "{}", 1, "error decoding the Plan's JSON")?;
    kubectl.expect_output(&["get", "--raw", &format!("{ROOT}/clusterexplanations/web")], "", 1, "invalid template")?;
    Ok(())
}

/// Objects that the caller cannot get are not disclosed.
fn check_permissions(kubectl: &Kubectl) -> Result<()> {
    let user = |name: &str| kubectl.with_flags(&["--as", name, "--as-group", "system:authenticated"]);
    let web = format!("{ROOT}/namespaces/shop/explanations/deployments.apps:web");
    let (ann, carla, dora) = (user("ann"), user("carla"), user("dora"));
    ann.run_ok(&["get", "--raw", &web], "")?;
    dora.expect_output(
        &["get", "--raw", &web],
        "",
        1,
        "resourcebindings.work.karmada.io \"web-deployment\" is forbidden",
    )?;
    user("nobody").expect_output(&["get", "--raw", &web], "", 1, "deployments.apps \"web\" is forbidden")?;
    let password = format!("{ROOT}/namespaces/shop/explanations/secrets:password");
    ann.expect_output(&["get", "--raw", &password], "", 1, "secrets \"password\" is forbidden")?;

    let create = ["create", "--raw", &format!("{ROOT}/plans"), "-f", "-"];
    let create_plan =
        |user: &Kubectl, body: &str| -> Result<Value> { Ok(serde_json::from_str(&user.run_ok(&create, body)?)?) };
    let (secrets, own) = (include_str!("explain/secret.json"), include_str!("explain/own-secret.json"));
    let all = create_plan(kubectl, secrets)?;
    ensure!(all.to_string().contains("b3Blbi1zZXNhbWU="), "{all}");
    let plan_of_ann = create_plan(&ann, secrets)?;
    ensure!(
        plan_of_ann["status"]["withheld"].as_u64() > Some(0) && plan_of_ann["status"]["templates"] == json!([]),
        "{plan_of_ann}"
    );
    ann.expect_output(&create, own, 1, "secrets \"password\" is forbidden")?;
    let plan_of_carla = create_plan(&carla, own)?;
    let cluster = &plan_of_carla["status"]["templates"][0]["clusters"][0];
    ensure!(cluster["manifest"]["data"] == json!({"user": "***"}), "{plan_of_carla}");
    ensure!(!plan_of_carla.to_string().contains("b3Blbi1zZXNhbWU="), "{plan_of_carla}");
    Ok(())
}

/// Responses match their OpenAPI document, and kubectl can get an explanation.
fn check_schemas(kubectl: &Kubectl) -> Result<()> {
    let mut document: Value =
        serde_json::from_str(&kubectl.run_ok(&["get", "--raw", &format!("/openapi/v3{ROOT}")], "")?)?;
    let schemas = document
        .pointer_mut("/components/schemas")
        .and_then(Value::as_object_mut)
        .context("the OpenAPI document has no schemas")?;
    schemas.values_mut().for_each(deny_undocumented_fields);
    let check = |kind: &str, value: &Value| -> Result<()> {
        let schema = json!({"$ref": format!("#/components/schemas/io.crowsnest.propagation.v1alpha1.{kind}")});
        let root = json!({"allOf": [schema], "components": document["components"]});
        let validator = jsonschema::options().should_validate_formats(true).build(&root)?;
        let errors: Vec<String> =
            validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect();
        if !errors.is_empty() {
            bail!("{kind}: {}\n{value:#}", errors.join("\n"));
        }
        Ok(())
    };
    for name in ["deployments.apps:web", "configmaps:settings", "configmaps:stuck", "configmaps:free"] {
        let path = format!("{ROOT}/namespaces/shop/explanations/{name}");
        check("Explanation", &serde_json::from_str(&kubectl.run_ok(&["get", "--raw", &path], "")?)?)?;
    }
    let namespace = kubectl.run_ok(&["get", "--raw", &format!("{ROOT}/clusterexplanations/namespaces:shop")], "")?;
    check("ClusterExplanation", &serde_json::from_str(&namespace)?)?;
    let create = ["create", "--raw", &format!("{ROOT}/plans"), "-f", "-"];
    check("Plan", &serde_json::from_str(&kubectl.run_ok(&create, include_str!("explain/own-secret.json"))?)?)?;
    let get = ["get", "explanations.propagation.crowsnest.io", "deployments.apps:web", "-n", "shop", "-o", "yaml"];
    ensure!(kubectl.run_ok(&get, "")?.contains("kind: Explanation"));
    Ok(())
}

/// Changes schemas so that validation rejects undocumented fields.
fn deny_undocumented_fields(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(deny_undocumented_fields);
            let has_properties = fields.get("properties").is_some_and(Value::is_object) && fields.contains_key("type");
            if has_properties && !fields.contains_key("additionalProperties") {
                fields.insert("additionalProperties".to_owned(), false.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(deny_undocumented_fields),
        _ => {}
    }
}

/// The revision of the control plane's store, which every write increments, is unchanged. Other components write
/// occasionally, so the check is repeated until none of them does.
fn check_nothing_is_written(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let revision = || -> Result<String> {
        let list: Value = serde_json::from_str(&kubectl.run_ok(&["get", "--raw", "/api/v1/namespaces?limit=1"], "")?)?;
        Ok(list["metadata"]["resourceVersion"].as_str().context("the list has no resource version")?.to_owned())
    };
    wait_for("no write between two reads", || {
        let before = revision()?;
        expect_output(fleet, &words("explain deploy/web -n shop"), 0, "follows")?;
        expect_output(
            fleet,
            &words(&plan_command(&["new.yaml", "changed.yaml", "override.yaml"], "--brief")),
            0,
            "would be created",
        )?;
        Ok(revision()? == before)
    })
}
