//! Tests of the search API with kubectl, on a fleet of two members.

use anyhow::{Context, Result, ensure};

use crowsnest_tests::{Fleet, Kubectl, wait_for};
use serde_json::{Value, json};

mod openapi;

const SHOP: &str = include_str!("search/shop.yaml");
const ANN: &str = include_str!("search/ann.yaml");
const ROOT: &str = "/apis/search.crowsnest.io/v1alpha1";
const SETTINGS: &str = "cluster=member1&apiVersion=v1&resource=configmaps&namespace=shop&name=settings";

fn path(resource: &str, query: &str, parameters: &str) -> String {
    let query: String = query
        .bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    format!("{ROOT}/{resource}?q={query}{parameters}")
}

fn get_raw(kubectl: &Kubectl, path: &str) -> Result<Value> {
    let text = kubectl.run_ok(&["get", "--raw", path], "")?;
    serde_json::from_str(&text).with_context(|| format!("{path} returned {text}"))
}

fn total(kubectl: &Kubectl, query: &str) -> Result<u64> {
    get_raw(kubectl, &path("count", query, ""))?["total"].as_u64().context("the response has no total")
}

fn names(response: &Value) -> Vec<String> {
    let hits = response["hits"].as_array().into_iter().flatten();
    hits.map(|hit| format!("{}/{}", hit["cluster"].as_str().unwrap_or(""), hit["name"].as_str().unwrap_or("")))
        .collect()
}

#[test]
fn the_search_api_serves_its_resources() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let fleet = Fleet::start(&dir.path().join("data"), &["--members", "2"])?;
    let Some(kubectl) = fleet.any_kubectl()? else { return Ok(()) };
    for member in ["member1", "member2"] {
        kubectl.with_kubeconfig(&fleet.kubeconfig(member)).run_ok(&["apply", "-f", "-"], SHOP)?;
    }
    wait_for("the applied objects to be found", || {
        Ok(total(&kubectl, "kind:pod ns:shop status:Running")? == 2
            && total(&kubectl, "ns:shop label:app=checkout")? == 8)
    })?;
    check_pages_and_facets(&kubectl)?;
    check_explanations_and_suggestions(&kubectl)?;
    check_exports(&kubectl)?;
    check_relations(&kubectl)?;
    openapi::check_responses(&fleet, &kubectl)?;
    check_saved_searches(&kubectl)?;
    check_history_and_live_changes(&fleet, &kubectl)?;
    check_permissions(&fleet, &kubectl)?;
    ensure!(fleet.stop()?.success());
    Ok(())
}

/// Every hit is returned once for any page size; counts include all pages.
fn check_pages_and_facets(kubectl: &Kubectl) -> Result<()> {
    let query = "ns:shop label:app=checkout sort:kind,name";
    let unpaged = get_raw(kubectl, &path("query", query, "&facets=kind,cluster"))?;
    let kinds = &unpaged["facets"]["kind"];
    ensure!(unpaged["total"] == 8 && kinds.as_array().map(Vec::len) == Some(4), "{unpaged}");
    ensure!(unpaged["facets"].as_object().map(|facets| facets.len()) == Some(2), "{unpaged}");
    let (mut paged, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get_raw(kubectl, &path("query", query, &format!("&limit=3&cursor={cursor}")))?;
        ensure!(page["total"] == 8, "{page}");
        paged.extend(names(&page));
        match page["cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    ensure!(paged == names(&unpaged), "pages contain {paged:?}, expected {:?}", names(&unpaged));
    let grouped =
        get_raw(kubectl, &path("query", "ns:shop label:app=checkout group:kind", "&limit=0&facets=label:app"))?;
    let groups = grouped["groups"]["values"].as_array().context("the response has no groups")?;
    let sum: u64 = groups.iter().filter_map(|group| group["count"].as_u64()).sum();
    ensure!(grouped["groups"]["field"] == "kind" && groups.len() == 4 && sum == 8, "{grouped}");
    ensure!(grouped["facets"]["label:app"] == json!([{"value": "checkout", "count": 8}]), "{grouped}");
    ensure!(grouped["hits"] == json!([]), "{grouped}");
    kubectl.expect_output(&["get", "--raw", &path("query", "", "&cursor=50")], "", 1, "the cursor is invalid")?;
    kubectl.expect_output(&["get", "--raw", &path("query", "", "&facets=colour")], "", 1, "cannot be counted")?;
    Ok(())
}

fn check_explanations_and_suggestions(kubectl: &Kubectl) -> Result<()> {
    let explained = get_raw(kubectl, &path("explain", "kind:deploy -ns:kube-system image:checkout", ""))?;
    ensure!(explained["query"] == "kind:deploy NOT namespace:kube-system image:checkout", "{explained}");
    let parts = explained["plan"]["parts"].as_array().context("the plan has no parts")?;
    ensure!(parts.len() == 3 && parts[2]["what"] == "image contains \"checkout\"", "{explained}");
    ensure!(parts[2]["hits"].as_u64() > explained["plan"]["hits"].as_u64(), "{explained}");

    let suggest = |query: &str| -> Result<Vec<Value>> {
        Ok(get_raw(kubectl, &path("suggest", query, ""))?["items"]
            .as_array()
            .context("the response has no suggestions")?
            .clone())
    };
    let texts = |items: &[Value]| items.iter().filter_map(|item| item["text"].as_str()).collect::<Vec<_>>().join(" ");
    ensure!(texts(&suggest("ns:shop na")?).starts_with("name: namespace:"));
    let kinds = suggest("ns:shop kind:dep")?;
    ensure!(kinds == [json!({"text": "Deployment", "count": 2})], "{kinds:?}");
    let labels = suggest("kind:pod label:app=ch")?;
    ensure!(labels == [json!({"text": "app=checkout", "count": 2})], "{labels:?}");

    let no_match = get_raw(kubectl, &path("query", "chekout kind:deployment ns:shop", ""))?;
    ensure!(no_match["total"] == 0 && no_match["didYouMean"][0] == "checkout", "{no_match}");
    ensure!(no_match["wider"][0] == json!({"query": "kind:deployment namespace:shop", "total": 2}), "{no_match}");
    let marked = get_raw(kubectl, &path("query", "heckou kind:deployment cluster:member1", ""))?;
    let matched = marked["hits"][0]["matched"].as_array().context("the hit has no matched fields")?;
    let name = json!({"field": "name", "text": "checkout", "marks": [[1, 7]]});
    ensure!(matched.contains(&name), "{marked}");
    Ok(())
}

fn check_exports(kubectl: &Kubectl) -> Result<()> {
    let query = "kind:configmap name:settings sort:cluster";
    let csv =
        kubectl.run_ok(&["get", "--raw", &path("export", query, "&format=csv&columns=cluster,name,label:app")], "")?;
    ensure!(csv == "cluster,name,label:app\r\nmember1,settings,checkout\r\nmember2,settings,checkout\r\n", "{csv}");
    let deployments = "kind:deployment name:checkout sort:cluster";
    let columns = "&format=csv&columns=cluster,print:Containers,print:Nothing,.spec.replicas";
    let csv = kubectl.run_ok(&["get", "--raw", &path("export", deployments, columns)], "")?;
    ensure!(
        csv == "cluster,print:Containers,print:Nothing,.spec.replicas\r\nmember1,app,,1\r\nmember2,app,,1\r\n",
        "{csv}"
    );
    let hits = get_raw(
        kubectl,
        &path("query", deployments, "&limit=1&columns=label:app,label:none,print:Containers,.spec.replicas,.spec.none"),
    )?;
    let expected_columns = json!({"label:app": "checkout", "print:Containers": "app", ".spec.replicas": "1"});
    ensure!(hits["hits"][0]["columns"] == expected_columns, "{hits}");
    let changed = get_raw(kubectl, &path("query", query, "&limit=1&columns=changed"))?;
    let changed = changed["hits"][0]["columns"]["changed"].as_str().context("no time of the last change")?.to_owned();
    // `changed:` selects by this time.
    for (operator, total) in [(">=", 1), (">", 0)] {
        let query = format!("kind:configmap name:settings cluster:member1 changed:{operator}{changed}");
        let found = get_raw(kubectl, &path("query", &query, "&limit=0"))?;
        ensure!(found["total"] == total, "{query}: {found}");
    }
    let wrong = path("query", deployments, "&columns=name");
    kubectl.expect_output(&["get", "--raw", &wrong], "", 1, "valid are changed, label:KEY, print:NAME and .PATH")?;
    let lines = kubectl.run_ok(&["get", "--raw", &path("export", query, "")], "")?;
    let objects = lines.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>()?;
    let from = |object: &Value| object["metadata"]["annotations"]["resource.karmada.io/cached-from-cluster"].clone();
    ensure!(objects.len() == 2 && from(&objects[1]) == "member2" && objects[0]["data"]["level"] == "one", "{lines}");
    let unknown = path("export", "kind:pod scope:nothing", "");
    kubectl.expect_output(&["get", "--raw", &unknown], "", 1, "there is no saved search")?;
    Ok(())
}

fn check_relations(kubectl: &Kubectl) -> Result<()> {
    let found = get_raw(kubectl, &path("query", "uses:configmap/shop/settings select:deployment cluster:member2", ""))?;
    ensure!(names(&found) == ["member2/checkout"], "{found}");
    let object = "cluster=member1&apiVersion=apps/v1&resource=deployments&namespace=shop&name=checkout&depth=2";
    let graph = get_raw(kubectl, &format!("{ROOT}/graph?{object}"))?;
    let nodes = graph["nodes"].as_array().context("the graph has no nodes")?;
    let index_of = |kind: &str| nodes.iter().position(|node| node["kind"] == kind);
    let (Some(deployment), Some(set), Some(pod), Some(settings)) =
        (index_of("Deployment"), index_of("ReplicaSet"), index_of("Pod"), index_of("ConfigMap"))
    else {
        anyhow::bail!("{graph}")
    };
    let edges = graph["edges"].as_array().context("the graph has no edges")?;
    for edge in [
        json!({"from": set, "to": deployment, "relation": "owner"}),
        json!({"from": pod, "to": set, "relation": "owner"}),
        json!({"from": deployment, "to": settings, "relation": "uses"}),
    ] {
        ensure!(edges.contains(&edge), "{edge} is not in {graph}");
    }
    Ok(())
}

/// Saved searches are visible to their owner, or to all users if shared.
fn check_saved_searches(kubectl: &Kubectl) -> Result<()> {
    let saved_searches = format!("{ROOT}/savedsearches");
    let ann = kubectl.with_flags(&["--as", "ann", "--as-group", "system:authenticated"]);
    let titles = |user: &Kubectl| -> Result<Vec<String>> {
        let list = get_raw(user, &saved_searches)?;
        let items = list["items"].as_array().into_iter().flatten();
        Ok(items.filter_map(|item| item["spec"]["title"].as_str()).map(str::to_owned).collect())
    };
    let mut search = json!({"spec": {"title": "Shop", "query": "ns:shop kind:deployment"}});
    let created: Value =
        serde_json::from_str(&kubectl.run_ok(&["create", "--raw", &saved_searches, "-f", "-"], &search.to_string())?)?;
    let name = created["metadata"]["name"].as_str().context("the object has no name")?;
    let saved_search = format!("{saved_searches}/{name}");
    kubectl.expect_output(
        &["create", "--raw", &saved_searches, "-f", "-"],
        &search.to_string(),
        1,
        "already exists",
    )?;
    let unnamed = r#"{"spec":{"title":"","query":"x"}}"#;
    kubectl.expect_output(
        &["create", "--raw", &saved_searches, "-f", "-"],
        unnamed,
        1,
        "spec.title: Required value",
    )?;
    ensure!(total(kubectl, "scope:shop cluster:member1")? == 1 && total(kubectl, &format!("scope:{name}"))? == 2);
    ensure!(
        titles(kubectl)? == ["Shop"] && titles(&ann)?.is_empty(),
        "an unshared search must be visible to its owner only"
    );
    ann.expect_output(&["get", "--raw", &saved_search], "", 1, "not found")?;
    let response = get_raw(&ann, &path("query", "scope:shop", ""))?;
    ensure!(response["notices"].to_string().contains("no saved search"), "{response}");
    search["spec"]["shared"] = json!(true);
    kubectl.run_ok(&["replace", "--raw", &saved_search, "-f", "-"], &search.to_string())?;
    ensure!(titles(&ann)? == ["Shop"]);
    ann.expect_output(&["replace", "--raw", &saved_search, "-f", "-"], &search.to_string(), 1, "it belongs to")?;
    ann.expect_output(&["delete", "--raw", &saved_search], "", 1, "it belongs to")?;
    kubectl.run_ok(&["delete", "--raw", &saved_search], "")?;
    ensure!(titles(kubectl)?.is_empty());
    Ok(())
}

/// History, differences, and live changes of an object.
fn check_history_and_live_changes(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let member = kubectl.with_kubeconfig(&fleet.kubeconfig("member1"));
    let mut live = kubectl.stream(&["get", "--raw", &path("query", "kind:configmap ns:shop level", "&watch=true")])?;
    live.expect("event: done")?;
    let patch = r#"{"data":{"level":"two"}}"#;
    member.run_ok(&["patch", "configmap", "settings", "-n", "shop", "--type=merge", "-p", patch], "")?;
    let changed = live.expect("event: changed")?;
    ensure!(!changed.contains("event: left"), "{changed}");
    live.expect("event: counts")?;

    let history = get_raw(kubectl, &format!("{ROOT}/history?{SETTINGS}"))?;
    let versions = history["versions"].as_array().context("the history has no versions")?;
    ensure!(versions.len() == 2 && versions[1]["until"].is_string(), "{history}");
    let before = get_raw(kubectl, &format!("{ROOT}/history?{SETTINGS}&seq={}", versions[1]["seq"]))?;
    ensure!(before["data"]["level"] == "one", "{before}");
    let level = json!([{"path": "/data/level", "before": "one", "after": "two"}]);
    let diff = get_raw(kubectl, &format!("{ROOT}/diff?{SETTINGS}"))?;
    let only = diff["differences"].as_array().into_iter().flatten().filter(|one| one["path"] == "/data/level");
    ensure!(Value::Array(only.cloned().collect()) == level, "{diff}");
    let diff = get_raw(kubectl, &format!("{ROOT}/diff?{SETTINGS}&with=member2"))?;
    ensure!(diff["to"]["cluster"] == "member2" && diff.to_string().contains("/data/level"), "{diff}");
    kubectl.expect_output(&["get", "--raw", &format!("{ROOT}/history?{SETTINGS}x")], "", 1, "not found in member1")?;
    kubectl.expect_output(
        &["get", "--raw", &format!("{ROOT}/history?cluster=member1")],
        "",
        1,
        "apiVersion is missing",
    )?;
    wait_for("the change to be found", || Ok(total(kubectl, "changed.field:data.level kind:configmap")? == 1))?;

    member.run_ok(&["delete", "configmap", "settings", "-n", "shop"], "")?;
    live.expect("event: left")?;
    drop(live);
    wait_for("the deleted object to be found", || {
        let found = get_raw(kubectl, &path("query", "is:deleted kind:configmap name:settings deleted:<1h", ""))?;
        let hit = &found["hits"][0];
        Ok(names(&found) == ["member1/settings"] && hit["deleted"].is_string() && hit["seq"].is_u64())
    })?;
    wait_for("the object to leave the search results", || {
        Ok(total(kubectl, "kind:configmap name:settings cluster:member1")? == 0)
    })
}

/// Objects that the caller cannot read in a member are not disclosed.
fn check_permissions(fleet: &Fleet, kubectl: &Kubectl) -> Result<()> {
    let ann = kubectl.with_flags(&["--as", "ann", "--as-group", "system:authenticated"]);
    ensure!(total(&ann, "")? == 0);
    let settings = SETTINGS.replace("member1", "member2");
    ann.expect_output(&["get", "--raw", &format!("{ROOT}/history?{settings}")], "", 1, "or you cannot read it there")?;
    kubectl.with_kubeconfig(&fleet.kubeconfig("member2")).run_ok(&["apply", "-f", "-"], ANN)?;
    wait_for("ann to see the objects that she can read", || Ok(total(&ann, "name:settings")? == 1))?;
    ensure!(total(&ann, "kind:deployment")? == 0, "ann cannot read Deployments");
    ensure!(
        total(&ann, "usedby:deploy/shop/checkout")? == 0,
        "ann cannot read Deployments, so they must not lead to the objects that they use"
    );
    let kinds = get_raw(&ann, &path("suggest", "kind:", ""))?;
    let kinds_found: Vec<_> =
        kinds["items"].as_array().into_iter().flatten().map(|item| item["text"].clone()).collect();
    ensure!(kinds_found == ["ConfigMap"], "{kinds}");
    let graph = get_raw(&ann, &format!("{ROOT}/graph?{settings}"))?;
    ensure!(graph["nodes"].as_array().map(Vec::len) == Some(1) && graph["edges"] == json!([]), "{graph}");
    Ok(())
}
