//! Tests of FederatedHPAs and CronFederatedHPAs, from metrics and schedules to a template's replicas.

use std::time::Duration;

use crowsnest_controllers::runtime::dynamic_client::{DynamicClient, Resource, Target};
use crowsnest_controllers::runtime::{Config, Periods};
use serde_json::{Value, json};

use crate::test_env::{TestEnv, builtin, custom, definition};
use crate::{condition_is, policy, propagation_policy};

const GROUP: &str = "autoscaling.karmada.io";

fn federated_hpas() -> Resource {
    custom(GROUP, "v1alpha1", "federatedhpas", "FederatedHPA", true)
}

fn cron_federated_hpas() -> Resource {
    custom(GROUP, "v1alpha1", "cronfederatedhpas", "CronFederatedHPA", true)
}

fn pod_metrics() -> Resource {
    custom("metrics.k8s.io", "v1beta1", "pods", "PodMetrics", true)
}

fn deployment(replicas: i64) -> Value {
    let container = json!({"name": "web", "image": "web", "resources": {"requests": {"cpu": "100m"}}});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}}})
}

fn autoscaler(name: &str, target: &str, min: i64, max: i64) -> Value {
    json!({"apiVersion": "autoscaling.karmada.io/v1alpha1", "kind": "FederatedHPA",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
            "minReplicas": min, "maxReplicas": max,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 50}}}]}})
}

/// Defines PodMetrics in the control plane, so that tests can create them.
async fn serve_metrics(env: &TestEnv, control_plane: &DynamicClient) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let manifest = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pods.metrics.k8s.io", "annotations": {"api-approved.kubernetes.io": "unapproved"}},
        "spec": {
            "group": "metrics.k8s.io", "scope": "Namespaced",
            "names": {"plural": "pods", "singular": "pod", "kind": "PodMetrics", "listKind": "PodMetricsList"},
            "versions": [
                {"name": "v1beta1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
            ],
        },
    });
    control_plane.create(&definition(), "", &manifest).await.unwrap();
    env.wait_for_deletion(control_plane, &pod_metrics(), "default", "none").await;
}

/// Creates a ready pod in a cluster, with its CPU usage.
async fn create_pod(env: &TestEnv, control_plane: &DynamicClient, cluster: &str, name: &str, cpu: &str) {
    let pods = builtin("", "pods", "Pod");
    let container = json!({"name": "web", "image": "web", "resources": {"requests": {"cpu": "100m"}}});
    let manifest = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"}},
        "spec": {"containers": [container]}});
    let member = env.member(cluster);
    let mut pod = member.create(&pods, "default", &manifest).await.unwrap();
    let long_ago = "2020-01-01T00:00:00Z";
    pod["status"] = json!({"phase": "Running", "startTime": long_ago,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": long_ago}]});
    member.replace(Target::new(&pods, "default", name).status(), &pod).await.unwrap();
    let metrics = json!({"apiVersion": "metrics.k8s.io/v1beta1", "kind": "PodMetrics",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "web"},
            "annotations": {"resource.karmada.io/query-from-cluster": cluster}},
        "timestamp": "2026-01-01T00:00:00Z", "window": "30s",
        "containers": [{"name": "web", "usage": {"cpu": cpu}}]});
    control_plane.create(&pod_metrics(), "default", &metrics).await.unwrap();
}

fn condition_reason<'a>(object: &'a Value, kind: &str) -> Option<(&'a str, &'a str)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
    Some((condition["reason"].as_str()?, condition["message"].as_str()?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_of_pods_in_all_clusters_scale_the_template() {
    let conformance = Config::conformance();
    let (autoscaling_sync, downscale_stabilization) = (Duration::from_millis(100), Duration::ZERO);
    let periods = Periods { autoscaling_sync, downscale_stabilization, ..conformance.periods.clone() };
    let env = TestEnv::start_with_config(&["m1", "m2"], Config { periods, ..conformance }).await;
    let control_plane = env.objects();

    // First there is no target, then no binding, then no metrics.
    control_plane.create(&federated_hpas(), "default", &autoscaler("h", "web", 1, 4)).await.unwrap();
    let has_reason = |expected: &'static str| {
        move |object: &Value| condition_reason(object, "AbleToScale").is_some_and(|reason| reason.0 == expected)
    };
    let fetched =
        env.wait_for(&control_plane, &federated_hpas(), "default", "h", has_reason("FailedGetScaleTargetRef")).await;
    let message =
        "the HPA controller was unable to get the target reference object: deployments.apps \"web\" not found";
    assert_eq!(condition_reason(&fetched, "AbleToScale").unwrap().1, message);
    assert_eq!(
        (&fetched["status"]["desiredReplicas"], &fetched["status"]["currentReplicas"]),
        (&json!(0), &Value::Null)
    );
    let deployments = builtin("apps", "deployments", "Deployment");
    control_plane.create(&deployments, "default", &deployment(2)).await.unwrap();
    let fetched = env.wait_for(&control_plane, &federated_hpas(), "default", "h", has_reason("FailedGetBinding")).await;
    let message = "the HPA controller was unable to get the binding by scaleTargetRef: target resource has no label";
    assert_eq!(condition_reason(&fetched, "AbleToScale").unwrap().1, message);
    let placed = policy("p", "Deployment", "apps/v1", json!({"clusterAffinity": {"clusterNames": ["m1", "m2"]}}));
    control_plane.create(&propagation_policy(), "default", &placed).await.unwrap();
    let fetched = env
        .wait_for(&control_plane, &federated_hpas(), "default", "h", |object| {
            condition_is(object, "ScalingActive", "False")
        })
        .await;
    let message = "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get metrics \
                   for resource cpu: unable to fetch metrics from resource metrics API: the server could not find the \
                   requested resource (get pods.metrics.k8s.io)";
    assert_eq!(condition_reason(&fetched, "ScalingActive"), Some(("FailedGetResourceMetric", message)));
    assert_eq!(fetched["status"]["currentReplicas"], 2);

    // Usage is twice the target, by two pods in each of two clusters: the template's replicas are doubled.
    serve_metrics(&env, &control_plane).await;
    for (cluster, name) in [("m1", "web-a"), ("m1", "web-b"), ("m2", "web-c"), ("m2", "web-d")] {
        create_pod(&env, &control_plane, cluster, name, "100m").await;
    }
    env.wait_for(&control_plane, &deployments, "default", "web", |object| object["spec"]["replicas"] == 4).await;
    let is_at_maximum = |object: &Value| {
        let status = &object["status"];
        // Until the clusters have followed the template, more replicas are desired than the maximum.
        let is_limited =
            condition_reason(object, "ScalingLimited").is_none_or(|reason| reason.0 != "DesiredWithinRange");
        status["currentReplicas"] == 4 && status["desiredReplicas"] == 4 && !is_limited
    };
    let fetched = env.wait_for(&control_plane, &federated_hpas(), "default", "h", is_at_maximum).await;
    let metric = json!({"type": "Resource", "resource": {"name": "cpu",
        "current": {"averageUtilization": 100, "averageValue": "100m"}}});
    assert_eq!(fetched["status"]["currentMetrics"], json!([metric]));
    let message = "the HPA was able to successfully calculate a replica count from cpu resource utilization \
                   (percentage of request)";
    assert_eq!(condition_reason(&fetched, "ScalingActive"), Some(("ValidMetricFound", message)));
    assert!(fetched["status"]["lastScaleTime"].is_string());
    for member in ["m1", "m2"] {
        let scaled = |object: &Value| object["spec"]["replicas"] == 4;
        env.wait_for(&env.member(member), &deployments, "default", "web", scaled).await;
    }

    // Two autoscalers of the same pods do not scale.
    control_plane.create(&federated_hpas(), "default", &autoscaler("second", "web", 1, 10)).await.unwrap();
    let is_ambiguous = |object: &Value| {
        condition_reason(object, "ScalingActive").is_some_and(|reason| reason.0 == "AmbiguousSelector")
    };
    let fetched = env.wait_for(&control_plane, &federated_hpas(), "default", "second", is_ambiguous).await;
    let message = "pods by selector app=web are controlled by multiple HPAs: [{h default} {second default}]";
    assert_eq!(condition_reason(&fetched, "ScalingActive").unwrap().1, message);
    control_plane.delete(Target::new(&federated_hpas(), "default", "second")).await.unwrap();
    // Bounds apply without metrics as well.
    let bounds = json!({"spec": {"maxReplicas": 3}});
    control_plane.merge(Target::new(&federated_hpas(), "default", "h"), &bounds).await.unwrap();
    env.wait_for(&control_plane, &deployments, "default", "web", |object| object["spec"]["replicas"] == 3).await;
    env.wait_for(&control_plane, &federated_hpas(), "default", "h", |object| object["status"]["desiredReplicas"] == 3)
        .await;
    env.wait_until_idle().await;
    let hpa = "horizontal_pod_autoscaler_controller";
    for series in [
        "federatedhpa_pull_metrics_duration_seconds_count{result=\"error\",metricType=\"ResourceMetric\"}",
        "federatedhpa_pull_metrics_duration_seconds_count{result=\"success\",metricType=\"ResourceMetric\"}",
        &format!("{hpa}_reconciliations_total{{action=\"none\",error=\"internal\"}}"),
        &format!("{hpa}_reconciliations_total{{action=\"scale_up\",error="),
        &format!("{hpa}_reconciliation_duration_seconds_count{{action=\"scale_down\",error="),
        &format!("{hpa}_metric_computation_total{{action=\"none\",error=\"internal\",metric_type=\"Resource\"}}"),
        &format!("{hpa}_metric_computation_duration_seconds_count{{action=\"scale_up\",error=\"none\",metric_type="),
    ] {
        assert!(env.metric_sum(series) >= 1.0, "{series}");
    }
    env.stop().await;
}

fn cron_hpa(name: &str, target: Value, rules: Value) -> Value {
    json!({"apiVersion": "autoscaling.karmada.io/v1alpha1", "kind": "CronFederatedHPA",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"scaleTargetRef": target, "rules": rules}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_run_on_schedule() {
    let env = TestEnv::start(&[]).await;
    let control_plane = env.objects();
    let deployments = builtin("apps", "deployments", "Deployment");
    control_plane.create(&deployments, "default", &deployment(1)).await.unwrap();
    let web = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"});
    let rules = json!([
        {"name": "now", "schedule": "@every 1s", "targetReplicas": 4, "successfulHistoryLimit": 1},
        {"name": "off", "schedule": "* * * * *", "targetReplicas": 9, "suspend": true},
        {"name": "bad", "schedule": "0 0 L * *", "targetReplicas": 7},
    ]);
    control_plane.create(&cron_federated_hpas(), "default", &cron_hpa("c", web, rules)).await.unwrap();
    env.wait_for(&control_plane, &deployments, "default", "web", |object| object["spec"]["replicas"] == 4).await;
    let has_run = |object: &Value| object["status"]["executionHistories"][0]["successfulExecutions"].is_array();
    let object = env.wait_for(&control_plane, &cron_federated_hpas(), "default", "c", has_run).await;
    let histories = &object["status"]["executionHistories"];
    let first = &histories[0]["successfulExecutions"][0];
    assert_eq!((&histories[0]["ruleName"], &first["appliedReplicas"]), (&json!("now"), &json!(4)));
    assert!(histories[0]["nextExecutionTime"].as_str() > first["scheduleTime"].as_str());
    assert_eq!((&histories[1], histories.as_array().unwrap().len()), (&json!({"ruleName": "off"}), 2));
    let refused = env.event_message("StartRuleFailed", "c").await;
    assert!(refused.starts_with("cron expression failed to be parsed: failed to parse int from L"), "{refused}");
    // Only the newest entry is kept.
    let before = first["scheduleTime"].clone();
    let is_next_run = |object: &Value| {
        let runs = &object["status"]["executionHistories"][0]["successfulExecutions"];
        runs.as_array().is_some_and(|runs| runs.len() == 1 && runs[0]["scheduleTime"] != before)
    };
    env.wait_for(&control_plane, &cron_federated_hpas(), "default", "c", is_next_run).await;
    // The history of a removed rule is removed.
    let remaining_rules =
        json!({"spec": {"rules": [{"name": "off", "schedule": "* * * * *", "targetReplicas": 9, "suspend": true}]}});
    control_plane.merge(Target::new(&cron_federated_hpas(), "default", "c"), &remaining_rules).await.unwrap();
    let is_removed = |object: &Value| object["status"]["executionHistories"] == json!([{"ruleName": "off"}]);
    env.wait_for(&control_plane, &cron_federated_hpas(), "default", "c", is_removed).await;

    // The bounds of a FederatedHPA are scaled, and a missing target is a failure.
    control_plane.create(&federated_hpas(), "default", &autoscaler("h", "ghost", 1, 3)).await.unwrap();
    let hpa = |name| json!({"apiVersion": "autoscaling.karmada.io/v1alpha1", "kind": "FederatedHPA", "name": name});
    let rules = json!([{"name": "r", "schedule": "@every 1s", "targetMinReplicas": 5, "targetMaxReplicas": 8}]);
    control_plane
        .create(&cron_federated_hpas(), "default", &cron_hpa("bounds", hpa("h"), rules.clone()))
        .await
        .unwrap();
    let has_bounds = |object: &Value| object["spec"]["minReplicas"] == 5 && object["spec"]["maxReplicas"] == 8;
    env.wait_for(&control_plane, &federated_hpas(), "default", "h", has_bounds).await;
    control_plane.create(&cron_federated_hpas(), "default", &cron_hpa("lost", hpa("missing"), rules)).await.unwrap();
    let has_failed = |object: &Value| object["status"]["executionHistories"][0]["failedExecutions"].is_array();
    let object = env.wait_for(&control_plane, &cron_federated_hpas(), "default", "lost", has_failed).await;
    let message = "federatedhpas.autoscaling.karmada.io \"missing\" not found";
    assert_eq!(object["status"]["executionHistories"][0]["failedExecutions"][0]["message"], message);
    assert_eq!(env.event_message("ScaleFailed", "lost").await, message);
    env.stop().await;
}
