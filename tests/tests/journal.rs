//! The journal after a member fails and its workloads are rescheduled: the chain of causes is available
//! by `crowsnest journal` and by queries, to authorized users, and after the API server has deleted its Events.

use anyhow::{Context, Result, ensure};
use crowsnest_tests::{Fleet, Kubectl, pictures, until, walk};
use serde_json::Value;

const FLEET: &str = include_str!("journal/fleet.yaml");
const BIG: &str = include_str!("journal/big.yaml");
/// Actions, from the root cause on.
const CHAIN: [&str; 4] = ["ClusterFlipped", "ClusterTainted", "Evicted", "Rescheduled"];
const WEB: [&str; 4] = ["journal", "deploy/web", "-n", "shop"];

#[test]
fn the_journal_explains_moves() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--profile", "conformance"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    kubectl.ok(&["wait", "--for=condition=Ready", "cluster", "--all", "--timeout=60s"], "")?;
    kubectl.ok(&["apply", "-f", "-"], FLEET)?;
    is_healthy_in(&kubectl, "m1")?;
    ensure!(read(&fleet, &WEB)?["entries"] == serde_json::json!([]), "the first placement is not a move");

    let output = fleet.crowsnest(&["sim", "m1", "stop"])?;
    ensure!(output.code == Some(0), "{output:?}");
    is_healthy_in(&kubectl, "m2").with_context(|| fleet.log())?;
    causes_form_a_chain(&fleet).with_context(|| fleet.log())?;
    queries_find_entries(&fleet).with_context(|| fleet.log())?;
    pages_show_the_journal(&fleet).with_context(|| fleet.log())?;
    quota_refusals_contain_amounts(&fleet, &kubectl).with_context(|| fleet.log())?;
    entries_require_permissions(&kubectl)?;
    entries_outlive_their_events(&fleet, &kubectl).with_context(|| fleet.log())?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

fn is_healthy_in(kubectl: &Kubectl, cluster: &str) -> Result<()> {
    let health = format!("{{.status.aggregatedStatus[?(@.clusterName==\"{cluster}\")].health}}");
    let path = format!("jsonpath={{.spec.clusters[*].name}} [{{.spec.gracefulEvictionTasks}}] {health}");
    let binding = ["get", "rb", "web-deployment", "-n", "shop", "-o", &path];
    kubectl.until(&binding, |out| out.trim() == format!("{cluster} [] Healthy")).map(drop)
}

fn read(fleet: &Fleet, args: &[&str]) -> Result<Value> {
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

fn causes_form_a_chain(fleet: &Fleet) -> Result<()> {
    let mut journal = Value::Null;
    let result = until("the whole chain to be recorded", || {
        journal = read(fleet, &[&WEB[..], &["--at", "now", "--within", "10m"]].concat())?;
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
        ensure!(message.starts_with(expected), "{message:?} is not {expected:?}");
    }
    let moved = &find(&journal, "Rescheduled").context("it moved")?["effect"];
    ensure!(moved["from"][0]["cluster"] == "m1" && moved["to"][0]["cluster"] == "m2", "{moved}");

    // As a table: causes before effects.
    let output = fleet.crowsnest(&WEB)?;
    let places: Vec<Option<usize>> = CHAIN.iter().map(|action| output.out.find(action)).collect();
    ensure!(output.code == Some(0) && places.iter().all(Option::is_some) && places.is_sorted(), "{output:?}");
    let output = fleet.crowsnest(&[&WEB[..], &["--at", "now-2h"]].concat())?;
    ensure!(
        output.code == Some(0) && output.out.is_empty() && output.err.contains("no entries found for deploy/web"),
        "{output:?}"
    );
    let output = fleet.crowsnest(&["journal", "rb/web-deployment", "-n", "shop"])?;
    ensure!(output.out.contains("Rescheduled"), "a binding is its template: {output:?}");
    let output = fleet.crowsnest(&["journal", "deploy/web", "-n", "shop", "--at", "tea"])?;
    ensure!(
        output.code == Some(1) && output.err.contains("invalid at=\"tea\": expected a time such as 10:05"),
        "{output:?}"
    );
    Ok(())
}

fn queries_find_entries(fleet: &Fleet) -> Result<()> {
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
        until(&format!("{query:?} to find {found}"), || {
            output = fleet.crowsnest(&query)?.out;
            Ok(output.is_empty() != found)
        })
        .with_context(|| output.clone())?;
    }
    Ok(())
}

/// In a real browser, with screenshots.
fn pages_show_the_journal(fleet: &Fleet) -> Result<()> {
    walk("journal", &[fleet.ui_url.as_ref(), pictures()?.as_ref()], &[]).map(drop)
}

/// A refusal by a quota is recorded for the template and the quota, once for repeated attempts.
fn quota_refusals_contain_amounts(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    // The usage of web in m1 is released after it has been counted.
    let used = ["get", "federatedresourcequota", "cpus", "-n", "shop", "-o", "jsonpath={.status.overallUsed.cpu}"];
    kubectl.until(&used, |out| out == "200m")?;
    kubectl.ok(&["apply", "-f", "-"], BIG)?;
    let mut journal = Value::Null;
    let result = until("the refusal to be recorded", || {
        journal = read(fleet, &["journal", "deploy/big", "-n", "shop"])?;
        Ok(find(&journal, "QuotaDenied").is_some())
    });
    result.with_context(|| format!("{journal:#}"))?;
    let denied = find(&journal, "QuotaDenied").context("it is there")?;
    let effect = &denied["effect"];
    // Used: 2 x 100m; requested: 5 x 500m.
    ensure!(effect["resource"] == "cpu" && effect["requested"] == 2.7 && effect["limit"] == 2, "{denied:#}");
    ensure!(denied["cause"]["ref"]["kind"] == "FederatedResourceQuota", "{denied:#}");
    let quota = read(fleet, &["journal", "federatedresourcequota/cpus", "-n", "shop"])?;
    ensure!(entries(&quota).len() == 1 && entries(&quota)[0]["id"] == denied["id"], "{quota:#}");
    Ok(())
}

fn entries_require_permissions(kubectl: &Kubectl) -> Result<()> {
    let path = "/apis/search.crowsnest.io/v1alpha1/journal?about=deploy/shop/web";
    let read_as = |user: &str| -> Result<Value> {
        let output =
            kubectl.with(&["--as", user, "--as-group", "system:authenticated"]).ok(&["get", "--raw", path], "")?;
        Ok(serde_json::from_str(&output)?)
    };
    let ann = read_as("ann")?;
    let seen: Vec<bool> = CHAIN.iter().map(|action| find(&ann, action).is_some()).collect();
    ensure!(seen == [false, false, true, true], "{ann:#}");
    // A cause that she cannot read is still named in the message of the entry.
    let evicted = find(&ann, "Evicted").context("it is there")?;
    ensure!(evicted["cause"]["text"].as_str().is_some_and(|text| text.contains("Ready is False")), "{evicted:#}");
    ensure!(entries(&read_as("bob")?).is_empty(), "a user without permission to read Events gets no entries");
    Ok(())
}

fn entries_outlive_their_events(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    for namespace in ["shop", "default"] {
        kubectl.ok(&["delete", "events", "-n", namespace, "--all", "--wait=false"], "")?;
    }
    until("the cache to have seen the deletion of the Events", || {
        let output =
            fleet.crowsnest(&["search", "kind:event about:deploy/shop/web reason:Rescheduled", "-o", "name"])?;
        Ok(output.out.is_empty())
    })?;
    let times: [&[&str]; 2] = [&[], &["--at", "now", "--within", "15m"]];
    for when in times {
        let journal = read(fleet, &[&WEB[..], when].concat())?;
        ensure!(chain(&journal) == CHAIN, "{when:?}: {journal:#}");
    }
    Ok(())
}
