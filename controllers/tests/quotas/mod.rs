//! FederatedResourceQuotas with enforced limits.

use serde_json::json;

use crate::test_env::{TestEnv, custom};

/// Karmada's e2e suite waits for the events of its three controllers of quotas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_has_events_of_its_works_its_status_and_its_overall_usage() {
    let env = TestEnv::start(&["m1"]).await;
    let quotas = custom("policy.karmada.io", "v1alpha1", "federatedresourcequotas", "FederatedResourceQuota", true);
    let quota = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "FederatedResourceQuota",
        "metadata": {"name": "limits", "namespace": "default"},
        "spec": {"overall": {"cpu": "4"}, "staticAssignments": [{"clusterName": "m1", "hard": {"cpu": "2"}}]},
    });
    env.objects().create(&quotas, "default", &quota).await.unwrap();
    let works = "Sync works for FederatedResourceQuota(default/limits) succeed.";
    let status = "Collect status of FederatedResourceQuota(default/limits) succeed.";
    for (reason, expected) in
        [("SyncWorkSucceed", works), ("AggregateStatusSucceed", status), ("CollectOverallStatusSucceed", status)]
    {
        assert_eq!(env.event_message(reason, "limits").await, expected, "{reason}");
    }
    env.stop().await;
}
