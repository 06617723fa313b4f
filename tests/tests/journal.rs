//! The journal after a member fails and its workloads are rescheduled. `crowsnest journal` and queries return the
//! chain of causes to authorized users, also after the API server has deleted the Events.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, run_browser_script, screenshot_folder, wait_for};
use serde_json::Value;

const FLEET: &str = include_str!("journal/fleet.yaml");
const BIG: &str = include_str!("journal/big.yaml");
/// Actions of the entries, from the root cause to the last effect.
const CHAIN: [&str; 4] = ["ClusterFlipped", "ClusterTainted", "Evicted", "Rescheduled"];
const JOURNAL_OF_WEB: [&str; 4] = ["journal", "deploy/web", "-n", "shop"];

#[test]
fn the_journal_explains_moves() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--profile", "conformance"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.run_ok(&["wait", "--for=condition=Ready", "cluster", "--all", "--timeout=240s"], "")?;
    kubectl.run_ok(&["apply", "-f", "-"], FLEET)?;
    wait_until_healthy_in(&kubectl, "m1")?;
    ensure!(
        read_json(&fleet, &JOURNAL_OF_WEB)?["entries"] == serde_json::json!([]),
        "the first placement is not a move"
    );

    let output = fleet.crowsnest(&["sim", "m1", "stop"])?;
    ensure!(output.code == Some(0), "{output:?}");
    wait_until_healthy_in(&kubectl, "m2").with_context(|| fleet.log())?;
    check_chain_of_causes(&fleet).with_context(|| fleet.log())?;
    check_queries(&fleet).with_context(|| fleet.log())?;
    check_journal_page(&fleet).with_context(|| fleet.log())?;
    check_quota_refusals(&fleet, &kubectl).with_context(|| fleet.log())?;
    check_permissions(&kubectl)?;
    check_retention(&fleet, &kubectl).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn wait_until_healthy_in(kubectl: &Kubectl, cluster: &str) -> Result<()> {
    let health = format!("{{.status.aggregatedStatus[?(@.clusterName==\"{cluster}\")].health}}");
    let path = format!("jsonpath={{.spec.clusters[*].name}} [{{.spec.gracefulEvictionTasks}}] {health}");
    let binding = ["get", "rb", "web-deployment", "-n", "shop", "-o", &path];
    kubectl.run_until(&binding, |out| out.trim() == format!("{cluster} [] Healthy")).map(drop)
}

fn read_json(fleet: &Fleet, args: &[&str]) -> Result<Value> {
    let output = fleet.crowsnest(&[args, &["-o", "json"]].concat())?;
    ensure!(output.code == Some(0), "{args:?}: {output:?}");
    Ok(serde_json::from_str(&output.out)?)
}

fn entries(journal: &Value) -> &[Value] {
    journal["entries"].as_array().map_or(&[], Vec::as_slice)
}

fn find<'j>(journal: &'j Value, action: &str) -> Option<&'j Value> {
    entries(journal).iter().find(|entry| entry["action"] == action)
}

/// Actions from the root cause to the entry of the move.
fn chain(journal: &Value) -> Vec<&str> {
    let Some(moved) = find(journal, "Rescheduled") else { return Vec::new() };
    let causes = moved["causes"].as_array().into_iter().flatten();
    let action = |id: &Value| entries(journal).iter().find(|entry| entry["id"] == *id)?["action"].as_str();
    let mut chain: Vec<&str> = causes.filter_map(action).collect();
    chain.reverse();
    chain.extend(moved["action"].as_str());
    chain
}

fn check_chain_of_causes(fleet: &Fleet) -> Result<()> {
    let mut journal = Value::Null;
    let result = wait_for("the whole chain to be recorded", || {
        journal = read_json(fleet, &[&JOURNAL_OF_WEB[..], &["--at", "now", "--within", "10m"]].concat())?;
        Ok(chain(&journal) == CHAIN && find(&journal, "EvictionEnded").is_some())
    });
    result.with_context(|| format!("{journal:#}"))?;
    let messages: Vec<&str> = CHAIN.iter().filter_map(|action| find(&journal, action)?["message"].as_str()).collect();
    let expected = [
        "Ready is False now: ",
        "Tainted with gone:NoExecute: ClusterTaintPolicy gone, since Ready is False since ",
        "Evicted from m1: its taint gone:NoExecute is not tolerated; Ready is False since ",
        "Rescheduled from m1:2 to m2:2: it was evicted from m1 (TaintUntolerated)",
    ];
    for (message, expected) in messages.iter().zip(expected) {
        ensure!(message.starts_with(expected), "the message {message:?} does not start with {expected:?}");
    }
    let moved = &find(&journal, "Rescheduled").context("no entry of the move")?["effect"];
    ensure!(moved["from"][0]["cluster"] == "m1" && moved["to"][0]["cluster"] == "m2", "{moved}");

    // The table lists causes before effects.
    let output = fleet.crowsnest(&JOURNAL_OF_WEB)?;
    let offsets: Vec<Option<usize>> = CHAIN.iter().map(|action| output.out.find(action)).collect();
    ensure!(output.code == Some(0) && offsets.iter().all(Option::is_some) && offsets.is_sorted(), "{output:?}");
    let output = fleet.crowsnest(&[&JOURNAL_OF_WEB[..], &["--at", "now-2h"]].concat())?;
    ensure!(
        output.code == Some(0) && output.out.is_empty() && output.err.contains("no entries found for deploy/web"),
        "{output:?}"
    );
    let output = fleet.crowsnest(&["journal", "rb/web-deployment", "-n", "shop"])?;
    ensure!(output.out.contains("Rescheduled"), "a binding must have the journal of its template: {output:?}");
    let output = fleet.crowsnest(&["journal", "deploy/web", "-n", "shop", "--at", "tea"])?;
    ensure!(
        output.code == Some(1) && output.err.contains("invalid at=\"tea\": expected a time such as 10:05"),
        "{output:?}"
    );
    Ok(())
}

fn check_queries(fleet: &Fleet) -> Result<()> {
    let cases = [
        ("kind:event about:deploy/shop/web reason:Evicted message:\"Ready is False since\" during:now-10m..now", true),
        ("kind:event about:deploy/shop/web reason:Rescheduled during:now-10m..now", true),
        ("kind:event about:deploy/shop/web reason:Rescheduled during:now-2h..now-1h", false),
        ("kind:event about:cluster/m1 reason:Evicted", true),
        ("kind:event cause:cluster/m1 reason:Rescheduled", true),
        ("kind:event cause:clustertaintpolicy/gone reason:ClusterTainted", true),
        ("kind:event cause:cluster/m3", false),
    ];
    for (query, found) in cases {
        let query = ["search", query, "-o", "name", "--allow-partial"];
        let mut output = String::new();
        wait_for(&format!("{query:?} to {}", if found { "find an entry" } else { "find nothing" }), || {
            output = fleet.crowsnest(&query)?.out;
            Ok(output.is_empty() != found)
        })
        .with_context(|| output.clone())?;
    }
    Ok(())
}

/// Checks the journal in the UI with a real browser, and takes screenshots.
fn check_journal_page(fleet: &Fleet) -> Result<()> {
    run_browser_script("journal", &[fleet.ui_url.as_ref(), screenshot_folder()?.as_ref()], &[]).map(drop)
}

/// A refusal by a quota is recorded for the template and the quota, once for repeated attempts.
fn check_quota_refusals(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    // The usage of web in m1 is released after it has been counted.
    let used = ["get", "federatedresourcequota", "cpus", "-n", "shop", "-o", "jsonpath={.status.overallUsed.cpu}"];
    kubectl.run_until(&used, |out| out == "200m")?;
    kubectl.run_ok(&["apply", "-f", "-"], BIG)?;
    let mut journal = Value::Null;
    let result = wait_for("the refusal to be recorded", || {
        journal = read_json(fleet, &["journal", "deploy/big", "-n", "shop"])?;
        Ok(find(&journal, "QuotaDenied").is_some())
    });
    result.with_context(|| format!("{journal:#}"))?;
    let denied = find(&journal, "QuotaDenied").context("the journal has no entry of this action")?;
    let effect = &denied["effect"];
    // Used: 2 x 100m; requested: 5 x 500m.
    ensure!(effect["resource"] == "cpu" && effect["requested"] == 2.7 && effect["limit"] == 2, "{denied:#}");
    ensure!(denied["cause"]["ref"]["kind"] == "FederatedResourceQuota", "{denied:#}");
    let quota = read_json(fleet, &["journal", "federatedresourcequota/cpus", "-n", "shop"])?;
    ensure!(entries(&quota).len() == 1 && entries(&quota)[0]["id"] == denied["id"], "{quota:#}");
    Ok(())
}

fn check_permissions(kubectl: &Kubectl) -> Result<()> {
    let path = "/apis/search.crowsnest.io/v1alpha1/journal?about=deploy/shop/web";
    let read_as = |user: &str| -> Result<Value> {
        let output = kubectl
            .with_flags(&["--as", user, "--as-group", "system:authenticated"])
            .run_ok(&["get", "--raw", path], "")?;
        Ok(serde_json::from_str(&output)?)
    };
    let ann = read_as("ann")?;
    let readable: Vec<bool> = CHAIN.iter().map(|action| find(&ann, action).is_some()).collect();
    ensure!(readable == [false, false, true, true], "{ann:#}");
    // The message of an entry names its cause even if the user cannot read the cause.
    let evicted = find(&ann, "Evicted").context("the journal has no entry of this action")?;
    ensure!(evicted["cause"]["text"].as_str().is_some_and(|text| text.contains("Ready is False")), "{evicted:#}");
    ensure!(entries(&read_as("bob")?).is_empty(), "a user without permission to read Events gets no entries");
    Ok(())
}

fn check_retention(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    for namespace in ["shop", "default"] {
        kubectl.run_ok(&["delete", "events", "-n", namespace, "--all", "--wait=false"], "")?;
    }
    wait_for("the cache to delete the Events", || {
        let output =
            fleet.crowsnest(&["search", "kind:event about:deploy/shop/web reason:Rescheduled", "-o", "name"])?;
        Ok(output.out.is_empty())
    })?;
    let ranges: [&[&str]; 2] = [&[], &["--at", "now", "--within", "15m"]];
    for range in ranges {
        let journal = read_json(fleet, &[&JOURNAL_OF_WEB[..], range].concat())?;
        ensure!(chain(&journal) == CHAIN, "{range:?}: {journal:#}");
    }
    Ok(())
}
