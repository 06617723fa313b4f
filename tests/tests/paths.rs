//! `crowsnest path`, `crowsnest blast-radius` and their API in a fleet of two members: edges, both forms of patterns,
//! permissions at each step, bad input, and the commands of the page.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{CommandOutput, Fleet, wait_for};
use serde_json::Value;

const MEMBER: &str = include_str!("paths/member.yaml");
const ANN: &str = include_str!("paths/ann.yaml");
const TEMPLATE: &str = include_str!("paths/template.yaml");
const DOCUMENTATION: &str = include_str!("../../docs/PATHS.md");

#[test]
fn dependencies_are_found_across_the_fleet() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let references = dir.path().join("references.yaml");
    std::fs::write(&references, documented_references()?)?;
    let file = references.to_string_lossy().into_owned();
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2", "--cache-references", &file])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member1"));
    member.run_ok(&["apply", "-f", "-"], MEMBER)?;
    member.run_ok(&["apply", "-f", "-"], ANN)?;
    kubectl.run_until(&["get", "clusters"], |out| out.matches(" True ").count() == 2)?;
    kubectl.run_ok(&["apply", "-f", "-"], TEMPLATE)?;
    check_edges(&fleet).with_context(|| fleet.log())?;
    check_propagated_copies(&fleet).with_context(|| fleet.log())?;
    check_blast_radius(&fleet).with_context(|| fleet.log())?;
    check_permissions(&fleet).with_context(|| fleet.log())?;
    check_invalid_input(&fleet)?;
    check_documented_commands(&fleet)?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// The file of references that the page shows.
fn documented_references() -> Result<&'static str> {
    let (_, rest) = DOCUMENTATION.split_once("```yaml\n").context("the page has no YAML block")?;
    Ok(rest.split_once("```").context("the YAML block has no end")?.0)
}

/// The words of a shell's command line with single quotes.
fn shell_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (nth, part) in line.split('\'').enumerate() {
        match nth % 2 {
            1 => words.push(part.to_owned()),
            _ => words.extend(part.split_whitespace().map(str::to_owned)),
        }
    }
    words
}

fn run(fleet: &Fleet, line: &str) -> Result<CommandOutput> {
    let words = shell_words(line);
    fleet.crowsnest(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Paths that match a pattern, each as the kinds of its objects.
fn find_paths(fleet: &Fleet, pattern: &str, flags: &str) -> Result<Vec<String>> {
    let output = run(fleet, &format!("path '{pattern}' -o json --allow-partial {flags}"))?;
    ensure!(output.code == Some(0), "{pattern}: {output:?}");
    let response: Value = serde_json::from_str(&output.out).with_context(|| format!("{output:?}"))?;
    let kind = |nth: &Value| {
        let node = nth.as_u64().and_then(|nth| response["nodes"].get(nth as usize));
        node.and_then(|node| node["kind"].as_str()).unwrap_or("<unknown>").to_owned()
    };
    let kinds = |path: &Value| path["nodes"].as_array().into_iter().flatten().map(kind).collect::<Vec<_>>().join(" ");
    Ok(response["paths"].as_array().into_iter().flatten().map(kinds).collect())
}

fn check_edges(fleet: &Fleet) -> Result<()> {
    for (pattern, expected) in [
        ("secret/shop/db <-USES- deploy -OWNS*..3-> pod", "Secret Deployment ReplicaSet Pod"),
        (r#"(:Ingress {namespace: "shop"})-[:ROUTES_TO*1..3]->(:Pod)"#, "Ingress Service EndpointSlice Pod"),
        ("svc/shop/web -SELECTS-> pod -RUNS_ON-> node", "Service Pod Node"),
        ("sa/shop/web <-SUBJECT- rolebinding -ROLE_REF-> role", "ServiceAccount RoleBinding Role"),
        ("ns/shop -CONTAINS-> ingress", "Namespace Ingress"),
    ] {
        wait_for(&format!("a path for {pattern}"), || {
            Ok(find_paths(fleet, pattern, "")?.contains(&expected.to_owned()))
        })?;
    }
    let tree = run(fleet, "path 'secret/shop/db <-USES- deploy' --allow-partial")?;
    let expected = "  <-USES- member1 Deployment shop/web";
    let via = "spec.template.spec.containers[].env[].valueFrom.secretKeyRef";
    ensure!(
        tree.out.contains("member1 Secret shop/db") && tree.out.contains(expected) && tree.out.contains(via),
        "{tree:?}"
    );
    let explained = run(fleet, "path 'deploy/shop/web -OWNS*-> pod' --explain")?;
    let expected = "(:Deployment {name: \"web\", namespace: \"shop\"})-[:OWNS*1..5]->(:Pod)\n";
    ensure!(explained.out == expected, "{explained:?}");
    let dot = run(fleet, "path 'secret/shop/db <-USES- deploy' -o dot --allow-partial")?;
    ensure!(dot.out.starts_with("digraph") && dot.out.contains("[label=\"USES\"]"), "{dot:?}");
    Ok(())
}

/// A template leads to its copies in members.
fn check_propagated_copies(fleet: &Fleet) -> Result<()> {
    let template = r#"(:ConfigMap {name: "policies", cluster: "@control-plane"})"#;
    let copy = r#"(:ConfigMap {name: "policies", cluster: "member2"})"#;
    let direct = format!("{template}-[:PROPAGATED_TO]->{copy}");
    wait_for("the copy to be found from its template", || {
        Ok(find_paths(fleet, &direct, "")? == ["ConfigMap ConfigMap"])
    })?;
    let all =
        format!("{template}-[:PROPAGATED_TO]->(:ResourceBinding)-[:PROPAGATED_TO]->(:Work)-[:PROPAGATED_TO]->{copy}");
    wait_for("the copy to be found over binding and Work", || {
        Ok(find_paths(fleet, &all, "")? == ["ConfigMap ResourceBinding Work ConfigMap"])
    })
}

fn check_blast_radius(fleet: &Fleet) -> Result<()> {
    let counts = run(fleet, "blast-radius secret/db -n shop -C member1 --allow-partial")?;
    let rows: Vec<String> =
        counts.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in [
        "member1 Deployment.apps 1 0",
        "member1 Pod 1 0",
        "member1 Service 0 1",
        "member1 Ingress.networking.k8s.io 0 1",
    ] {
        ensure!(rows.contains(&row.to_owned()), "{row:?} is not in {counts:?}");
    }
    let tree = run(fleet, "blast-radius configmap/policies -n default -C @control-plane -o tree --allow-partial")?;
    ensure!(tree.out.contains("-PROPAGATED_TO-> member2 ConfigMap default/policies"), "{tree:?}");
    let used = run(fleet, "blast-radius deploy/web -n shop -C member1 --dependencies -o tree --allow-partial")?;
    ensure!(used.out.contains("-USES-> member1 Secret shop/db"), "{used:?}");
    let found = run(fleet, "search 'reaches:secret/shop/db kind:deployment' -o name --allow-partial")?;
    ensure!(found.out.trim() == "member1/shop/deployments/web", "{found:?}");
    Ok(())
}

/// Ann may list Pods, Secrets and Deployments of member1, but not the ReplicaSets between them.
fn check_permissions(fleet: &Fleet) -> Result<()> {
    let ann = "--as ann --as-group system:authenticated";
    wait_for("ann's permissions to be known", || {
        Ok(find_paths(fleet, "secret/shop/db <-USES- deploy", ann)? == ["Secret Deployment"])
    })?;
    for pattern in
        ["deploy -OWNS*-> pod", "pod <-- replicaset", "pod -USES-> configmap", "ns -CONTAINS-> *", "svc --> *"]
    {
        let found = find_paths(fleet, pattern, ann)?;
        ensure!(found.is_empty(), "{pattern}: {found:?}");
    }
    let radius = run(fleet, &format!("blast-radius secret/db -n shop -C member1 -o json --allow-partial {ann}"))?;
    ensure!(radius.code == Some(0), "{radius:?}");
    for hidden in ["ReplicaSet", "EndpointSlice", "Ingress", "Service"] {
        ensure!(!radius.out.contains(&format!("\"kind\": \"{hidden}")), "{hidden} is disclosed: {radius:?}");
    }
    let refused = run(fleet, &format!("blast-radius cm/settings -n shop -C member1 {ann}"))?;
    ensure!(refused.code == Some(1) && refused.err.contains("or you cannot read it there"), "{refused:?}");
    Ok(())
}

fn check_invalid_input(fleet: &Fleet) -> Result<()> {
    for (line, expected) in [
        ("path 'pod ->'", "byte 5: expected \"-\""),
        ("path '(:Pod {color: \"red\"})'", "byte 7: unknown property"),
        ("path 'pod -LIKES-> *'", "byte 5: unknown type \"LIKES\""),
        ("blast-radius secret/absent -n shop -C member1", "not found in member1"),
        ("blast-radius secret/db -n shop -C member1 --depth 9", "9 is not in 1..=8"),
    ] {
        let output = run(fleet, line)?;
        ensure!(output.code != Some(0) && output.err.contains(expected), "crowsnest {line}: {output:?}");
    }
    let unknown = run(fleet, "path 'gizmo --> *'")?;
    ensure!(unknown.err.contains("no cluster serves the kind gizmo"), "{unknown:?}");
    Ok(())
}

/// Every command on the page succeeds.
fn check_documented_commands(fleet: &Fleet) -> Result<()> {
    let lines: Vec<&str> = DOCUMENTATION.lines().filter_map(|line| line.strip_prefix("    crowsnest ")).collect();
    ensure!(lines.len() > 8, "{lines:?}");
    for line in lines {
        let output = run(fleet, line)?;
        ensure!(output.code == Some(0), "crowsnest {line}: {output:?}");
    }
    Ok(())
}
