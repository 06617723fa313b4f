//! Clients read what they wrote through the fleet-wide proxy.

use http::Method;
use serde_json::json;

use crate::test_env::{CONFIG_MAPS, LABELLED, names, test_env};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_reads_its_own_writes() {
    let env = test_env().await;
    let path = format!("{CONFIG_MAPS}/only-m1");
    for round in 0..20 {
        let (_, mut object) = env.fleet_wide(Method::GET, &path, "", None).await;
        object["data"] = json!({"v": format!("round {round}")});
        let (code, updated) = env.fleet_wide(Method::PUT, &path, "", Some(object)).await;
        assert_eq!(code, 200, "{updated}");
        let (_, read) = env.fleet_wide(Method::GET, &path, "", None).await;
        assert_eq!(read["data"], updated["data"]);
        // A dry run changes nothing, so its response is not delayed until the cache has the object.
        let (_, mut tried) = env.fleet_wide(Method::GET, &path, "", None).await;
        tried["data"] = json!({"v": "tried"});
        let (code, tried) = env.fleet_wide(Method::PUT, &path, "dryRun=All", Some(tried)).await;
        assert_eq!((code, &tried["data"]), (200, &json!({"v": "tried"})));
    }
    assert_eq!(env.fleet_wide(Method::DELETE, &path, "", None).await.0, 200);
    assert_eq!(env.fleet_wide(Method::GET, &path, "", None).await.0, 404);
    let (_, list) = env.fleet_wide(Method::GET, CONFIG_MAPS, LABELLED, None).await;
    assert_eq!(names(&list), ["m1/both", "m2/both", "m2/only-m2"]);
    env.stop().await;
}
