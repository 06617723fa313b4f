//! Writes of the status of a Cluster, which may also change its other fields.

use super::*;

/// The body of a replacement of the status; without `region`, it has no spec.
fn with_status(region: Option<&str>, version: &str) -> Value {
    let mut object = cluster("m1");
    object["status"] = json!({"kubernetesVersion": version});
    match region {
        Some(region) => object["spec"]["region"] = region.into(),
        None => drop(object.as_object_mut().unwrap().remove("spec")),
    }
    object
}

#[tokio::test(flavor = "multi_thread")]
async fn replacements_of_the_status_are_admitted_as_a_whole() {
    let servers = TestServers::start().await;
    servers.create(CLUSTERS, &cluster("m1")).await;
    // Refuses updates of the object that do not change the region.
    let updates = "object.spec.region != oldObject.spec.region && object.spec.region != 'bad'";
    let policies = [
        validating_policy("updates", "clusters", "UPDATE", updates),
        validating_policy("states", "clusters/status", "UPDATE", "object.status.kubernetesVersion != 'bad'"),
    ];
    servers.configure(&policies.concat()).await;
    for (region, version, code, policy, stored) in [
        (Some("east"), "v1", 200, "", ("east", "v1")),
        (None, "v2", 200, "", ("east", "v2")),
        (Some("bad"), "v3", 422, "updates", ("east", "v2")),
        (Some("west"), "bad", 422, "states", ("east", "v2")),
        (None, "bad", 422, "states", ("east", "v2")),
        (Some("west"), "v4", 200, "", ("west", "v4")),
    ] {
        let (uri, body) = (format!("{CLUSTERS}/m1"), with_status(region, version));
        let (actual_code, answer, _) = servers.send("PUT", &format!("{uri}/status"), JSON, &body).await;
        assert_eq!(actual_code, code, "{region:?} {version}: {answer}");
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(code == 200 || message.ends_with(&format!("denied by {policy}")), "{message}");
        let found = servers.read(&uri).await;
        let found = (&found["spec"]["region"], &found["status"]["kubernetesVersion"]);
        assert_eq!(found, (&json!(stored.0), &json!(stored.1)), "{region:?} {version}");
    }
    servers.server.stop().await.unwrap();
}

#[rstest]
#[case::with_a_spec(Some("east"))]
#[case::without_a_spec(None)]
#[tokio::test(flavor = "multi_thread")]
async fn mutation_of_the_status_does_not_change_the_spec(#[case] region: Option<&str>) {
    let servers = TestServers::start().await;
    servers.create(CLUSTERS, &cluster("m1")).await;
    let [(policies, mut policy), binding] = mutating_policy("states", "UPDATE");
    policy["spec"]["matchConstraints"]["resourceRules"] = json!([rule("clusters/status", "UPDATE")]);
    let expression = "[JSONPatch{op: 'add', path: '/spec/region', value: 'west'}, \
                      JSONPatch{op: 'add', path: '/status/kubernetesVersion', value: 'v2'}]";
    policy["spec"]["mutations"] = json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}]);
    servers.configure(&[(policies, policy), binding]).await;
    let (code, answer, _) =
        servers.send("PUT", &format!("{CLUSTERS}/m1/status"), JSON, &with_status(region, "v1")).await;
    let written = (&answer["spec"]["region"], &answer["status"]["kubernetesVersion"]);
    assert_eq!((code, written), (200, (&json!("east"), &json!("v2"))), "{answer}");
    servers.server.stop().await.unwrap();
}
