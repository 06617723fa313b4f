//! Tests of the detector: which templates a change enqueues, and when changes of policies take effect.

use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_controllers::runtime::Config;
use crowsnest_controllers::runtime::dynamic_client::{DynamicClient, Resource, Target};
use serde_json::{Value, json};

use crate::test_env::{TestEnv, builtin, custom};
use crate::{binding, customize, deployment, merge, policy, propagation_policy, web};

const CLAIM: &str = "propagationpolicy.karmada.io/permanent-id";

fn config_map() -> Resource {
    builtin("", "configmaps", "ConfigMap")
}

fn cluster_policy() -> Resource {
    custom("policy.karmada.io", "v1alpha1", "clusterpropagationpolicies", "ClusterPropagationPolicy", false)
}

/// A ConfigMap with the label `app`.
fn config_map_with_label(name: &str, app: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": app}}, "data": {"a": "1"}})
}

fn placed_in(cluster: &str) -> Value {
    json!({"clusterAffinity": {"clusterNames": [cluster]}})
}

/// A policy that no scheduler handles, with additional fields in its selector.
fn unscheduled_policy(name: &str, api_version: &str, kind: &str, selector: Value) -> Value {
    let mut policy = policy(name, kind, api_version, placed_in("m1"));
    policy["metadata"]["finalizers"] = json!(["karmada.io/propagation-policy-controller"]);
    policy["spec"]["schedulerName"] = json!("other-scheduler");
    json_patch::merge(&mut policy["spec"]["resourceSelectors"][0], &selector);
    policy
}

/// A policy that takes effect when a template changes, and that no scheduler handles.
fn lazy_policy(name: &str, selector: Value) -> Value {
    let mut policy = unscheduled_policy(name, "v1", "ConfigMap", selector);
    policy["spec"]["activationPreference"] = json!("Lazy");
    policy
}

fn is_placed_in(cluster: &'static str) -> impl Fn(&Value) -> bool {
    move |binding| binding["spec"]["placement"] == placed_in(cluster)
}

fn is_claimed_by(policy: &str) -> impl Fn(&Value) -> bool {
    let id = format!("id-of-{policy}");
    move |template| template["metadata"]["labels"][CLAIM] == id.as_str()
}

async fn set_placement(control_plane: &DynamicClient, policy: &str, cluster: &str) {
    merge(control_plane, &propagation_policy(), policy, json!({"spec": {"placement": placed_in(cluster)}})).await;
}

/// Waits until all previous changes of templates and policies have been reconciled, by means of a later change of
/// each.
async fn wait_until_settled(env: &TestEnv, witness: &'static str) {
    let control_plane = env.objects();
    let is_bound = |binding: &Value| binding["spec"]["placement"] == placed_in(witness);
    if control_plane.get(Target::new(&config_map(), "default", "witness")).await.unwrap().is_none() {
        control_plane.create(&config_map(), "default", &config_map_with_label("witness", "witness")).await.unwrap();
        let witness_policy = unscheduled_policy("witness", "v1", "ConfigMap", json!({"name": "witness"}));
        control_plane.create(&propagation_policy(), "default", &witness_policy).await.unwrap();
    }
    set_placement(&control_plane, "witness", witness).await;
    env.wait_for(&control_plane, &binding(), "default", "witness-configmap", is_bound).await;
    env.wait_until_idle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lazy_policy_takes_effect_when_its_template_changes() {
    let env = TestEnv::start(&[]).await;
    let control_plane = env.objects();
    let create = async |resource: &Resource, object: Value| {
        control_plane.create(resource, "default", &object).await.unwrap();
    };
    let wait_for_app = async |is_expected: &(dyn Fn(&Value) -> bool + Sync)| {
        env.wait_for(&control_plane, &binding(), "default", "app-configmap", is_expected).await;
    };
    create(&config_map(), config_map_with_label("app", "old")).await;
    wait_until_settled(&env, "w1").await;

    // Existing templates are claimed, and bound when they change.
    create(&propagation_policy(), lazy_policy("p", json!({"name": "app"}))).await;
    env.wait_for(&control_plane, &config_map(), "default", "app", is_claimed_by("p")).await;
    wait_until_settled(&env, "w2").await;
    assert_eq!(control_plane.get(Target::new(&binding(), "default", "app-configmap")).await.unwrap(), None);
    merge(&control_plane, &config_map(), "app", json!({"data": {"a": "2"}})).await;
    wait_for_app(&is_placed_in("m1")).await;

    // A change of the policy is deferred as well.
    set_placement(&control_plane, "p", "m2").await;
    wait_until_settled(&env, "w3").await;
    wait_for_app(&is_placed_in("m1")).await;
    merge(&control_plane, &config_map(), "app", json!({"data": {"a": "3"}})).await;
    wait_for_app(&is_placed_in("m2")).await;

    // A template that is created after its policy is bound immediately, and so is one that another policy has
    // released.
    create(&propagation_policy(), lazy_policy("q", json!({"labelSelector": {"matchLabels": {"app": "new"}}}))).await;
    create(&config_map(), config_map_with_label("late", "new")).await;
    env.wait_for(&control_plane, &binding(), "default", "late-configmap", is_placed_in("m1")).await;
    merge(&control_plane, &config_map(), "app", json!({"metadata": {"labels": {"app": "new"}}})).await;
    control_plane.delete(Target::new(&propagation_policy(), "default", "p")).await.unwrap();
    env.wait_for(&control_plane, &config_map(), "default", "app", is_claimed_by("q")).await;
    wait_for_app(&is_placed_in("m1")).await;
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_under_a_lazy_policy_is_found_after_a_restart() {
    let env = TestEnv::start(&[]).await;
    let control_plane = env.objects();
    let mut manifest = unscheduled_policy("p", "apps/v1", "Deployment", json!({}));
    manifest["spec"]["activationPreference"] = json!("Lazy");
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    for name in ["edited", "calm"] {
        let mut template = web(2);
        template["metadata"]["name"] = json!(name);
        control_plane.create(&deployment(), "default", &template).await.unwrap();
        let name = format!("{name}-deployment");
        env.wait_for(&control_plane, &binding(), "default", &name, is_placed_in("m1")).await;
    }
    env.wait_until_idle().await;
    let env = env
        .without_controllers(async {
            set_placement(&control_plane, "p", "m2").await;
            merge(&control_plane, &deployment(), "edited", json!({"spec": {"replicas": 5}})).await;
        })
        .await;
    let is_applied = |binding: &Value| binding["spec"]["replicas"] == 5 && is_placed_in("m2")(binding);
    env.wait_for(&control_plane, &binding(), "default", "edited-deployment", is_applied).await;
    env.wait_until_idle().await;
    env.wait_for(&control_plane, &binding(), "default", "calm-deployment", is_placed_in("m1")).await;
    env.stop().await;
}

/// Number of templates that no change below affects: half are claimed by another policy, half by none.
const BYSTANDERS: u64 = 120;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_enqueues_only_templates_that_it_affects() {
    let env = TestEnv::start(&[]).await;
    let control_plane = env.objects();
    let create = async |resource: &Resource, namespace: &str, object: Value| {
        control_plane.create(resource, namespace, &object).await.unwrap();
    };
    let by_app = |app: &str| json!({"labelSelector": {"matchLabels": {"app": app}}});
    create(&propagation_policy(), "default", unscheduled_policy("many", "v1", "ConfigMap", by_app("many"))).await;
    for n in 0..BYSTANDERS / 2 {
        create(&config_map(), "default", config_map_with_label(&format!("claimed-{n}"), "many")).await;
        create(&config_map(), "default", config_map_with_label(&format!("free-{n}"), "none")).await;
    }
    for n in 0..4 {
        create(&config_map(), "default", config_map_with_label(&format!("one-{n}"), &format!("one-{n}"))).await;
    }
    for n in 0..BYSTANDERS / 2 {
        env.wait_for(&control_plane, &binding(), "default", &format!("claimed-{n}-configmap"), |_| true).await;
    }
    wait_until_settled(&env, "w1").await;

    let by_name = unscheduled_policy("p0", "v1", "ConfigMap", json!({"name": "one-0"}));
    let by_label = unscheduled_policy("p1", "v1", "ConfigMap", by_app("one-1"));
    let mut cluster_policy_in_namespace =
        unscheduled_policy("p2", "v1", "ConfigMap", json!({"name": "one-2", "namespace": "default"}));
    let mut cluster_policy_in_any_namespace =
        unscheduled_policy("p3", "v1", "ConfigMap", json!({"name": "one-3", "namespace": null}));
    for policy in [&mut cluster_policy_in_namespace, &mut cluster_policy_in_any_namespace] {
        policy["kind"] = json!("ClusterPropagationPolicy");
        let name = policy["metadata"]["name"].clone();
        policy["metadata"] =
            json!({"name": name, "labels": {"clusterpropagationpolicy.karmada.io/permanent-id": name}});
    }
    let policies = [
        (propagation_policy(), "default", by_name),
        (propagation_policy(), "default", by_label),
        (cluster_policy(), "", cluster_policy_in_namespace),
        (cluster_policy(), "", cluster_policy_in_any_namespace),
    ];
    for (n, (resource, namespace, policy)) in policies.into_iter().enumerate() {
        // Its template is reconciled after the change of the policy, and again after the claim.
        let (reconciles_before, read) = (env.reconciles("resource detector").await, env.manager.objects_read());
        create(&resource, namespace, policy.clone()).await;
        let name = format!("one-{n}-configmap");
        env.wait_for(&control_plane, &binding(), "default", &name, is_placed_in("m1")).await;
        let reconciles = env.reconciles("resource detector").await - reconciles_before;
        assert!((1..=3).contains(&reconciles), "{reconciles} reconciles because of {policy}");
        let read = env.manager.objects_read() - read;
        assert!(read < BYSTANDERS / 2, "{read} objects read because of {policy}");

        let (reconciles_before, read) = (env.reconciles("resource detector").await, env.manager.objects_read());
        let policy_name = policy["metadata"]["name"].as_str().unwrap();
        let moved = json!({"spec": {"placement": placed_in("m2")}});
        control_plane.merge(Target::new(&resource, namespace, policy_name), &moved).await.unwrap();
        env.wait_for(&control_plane, &binding(), "default", &name, is_placed_in("m2")).await;
        assert_eq!(
            env.reconciles("resource detector").await - reconciles_before,
            1,
            "reconciles because of a change of {policy}"
        );
        let read = env.manager.objects_read() - read;
        assert!(read < BYSTANDERS / 2, "{read} objects read because of a change of {policy}");
    }

    // A policy that claims many templates enqueues all of them.
    let reconciles = env.reconciles("resource detector").await;
    set_placement(&control_plane, "many", "m2").await;
    for n in 0..BYSTANDERS / 2 {
        env.wait_for(&control_plane, &binding(), "default", &format!("claimed-{n}-configmap"), is_placed_in("m2"))
            .await;
    }
    assert_eq!(env.reconciles("resource detector").await - reconciles, BYSTANDERS / 2);
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_customization_enqueues_only_its_kind() {
    let env = TestEnv::start(&["m1"]).await;
    let control_plane = env.objects();
    let config_maps = policy("config-maps", "ConfigMap", "v1", placed_in("m1"));
    control_plane.create(&propagation_policy(), "default", &config_maps).await.unwrap();
    let deployments = policy("deployments", "Deployment", "apps/v1", placed_in("m1"));
    control_plane.create(&propagation_policy(), "default", &deployments).await.unwrap();
    for n in 0..20 {
        control_plane.create(&config_map(), "default", &config_map_with_label(&format!("c{n}"), "many")).await.unwrap();
    }
    control_plane.create(&deployment(), "default", &web(2)).await.unwrap();
    let m1 = env.member("m1");
    for n in 0..20 {
        env.wait_for(&m1, &config_map(), "default", &format!("c{n}"), |_| true).await;
    }
    env.wait_for(&m1, &deployment(), "default", "web", |_| true).await;

    let queues = [
        "resource detector",
        "binding-controller",
        "execution-controller",
        "resource-binding-status-controller",
        "scheduler-queue",
    ];
    // Changes of the ConfigMaps in the member that are not in the cache yet would be counted as well.
    env.wait_until_settled().await;
    let before = env.manager.reconciles();
    let script = "function ReviseReplica(obj, replicas)
        obj.spec.replicas = replicas + 5
        return obj
    end";
    customize(&control_plane, json!({"replicaRevision": {"luaScript": script}})).await;
    env.wait_for(&m1, &deployment(), "default", "web", |object| object["spec"]["replicas"] == 7).await;
    env.wait_until_idle().await;
    let after = env.manager.reconciles();
    for queue in queues {
        let reconciles = after[queue] - before[queue];
        assert!(reconciles < 10, "{reconciles} reconciles of {queue} because of one Deployment's customization");
    }
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_override_policy_enqueues_only_namespaces_that_it_selects() {
    let env = TestEnv::start(&["m1"]).await;
    let control_plane = env.objects();
    let namespaces = Resource::builtin("", "v1", "namespaces", "Namespace", false);
    let m1 = env.member("m1");
    for n in 0..10 {
        let named = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": format!("team-{n}"), "labels": {"team": format!("t{n}")}}});
        control_plane.create(&namespaces, "", &named).await.unwrap();
        env.wait_for(&m1, &namespaces, "", &format!("team-{n}"), |_| true).await;
    }
    let overrides = custom("policy.karmada.io", "v1alpha1", "clusteroverridepolicies", "ClusterOverridePolicy", false);
    let selectors = [
        ("by-name", json!({"apiVersion": "v1", "kind": "Namespace", "name": "team-3"}), "team-3"),
        (
            "by-label",
            json!({"apiVersion": "v1", "kind": "Namespace",
            "labelSelector": {"matchLabels": {"team": "t4"}}}),
            "team-4",
        ),
    ];
    for (name, selector, namespace) in selectors {
        // Events that are not in the cache yet would be counted as well.
        env.wait_until_settled().await;
        let before = env.reconciles("namespace-sync-controller").await;
        let policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterOverridePolicy",
            "metadata": {"name": name}, "spec": {"resourceSelectors": [selector],
                "overrideRules": [{"overriders": {"labelsOverrider": [{"operator": "add", "value": {"by": name}}]}}]}});
        control_plane.create(&overrides, "", &policy).await.unwrap();
        env.wait_for(&m1, &namespaces, "", namespace, |object| object["metadata"]["labels"]["by"] == name).await;
        assert_eq!(env.reconciles("namespace-sync-controller").await - before, 1, "{name}");
    }

    // The label that skips a namespace is case-insensitive.
    let skips = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {
        "name": "private", "labels": {"namespace.karmada.io/skip-auto-propagation": "True"}}});
    let shared = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shared"}});
    control_plane.create(&namespaces, "", &skips).await.unwrap();
    control_plane.create(&namespaces, "", &shared).await.unwrap();
    env.wait_for(&m1, &namespaces, "", "shared", |_| true).await;
    env.wait_until_idle().await;
    assert_eq!(m1.get(Target::new(&namespaces, "", "private")).await.unwrap(), None);
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn priorities_come_from_priority_classes_for_namespaced_templates_only() {
    let env = TestEnv::start(&[]).await;
    let control_plane = env.objects();
    let schedule_priority = json!({"priorityClassSource": "KubePriorityClass", "priorityClassName": "urgent"});
    let mut namespaced = unscheduled_policy("p", "v1", "ConfigMap", json!({"name": "app"}));
    namespaced["spec"]["schedulePriority"] = schedule_priority.clone();
    control_plane.create(&propagation_policy(), "default", &namespaced).await.unwrap();
    control_plane.create(&config_map(), "default", &config_map_with_label("app", "app")).await.unwrap();
    let rbac = |resource, kind| Resource::builtin("rbac.authorization.k8s.io", "v1", resource, kind, false);
    let role = rbac("clusterroles", "ClusterRole");
    let wanted_cluster_policy = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterPropagationPolicy",
        "metadata": {"name": "p", "labels": {"clusterpropagationpolicy.karmada.io/permanent-id": "p"}},
        "spec": {"placement": placed_in("m1"), "schedulerName": "other-scheduler", "schedulePriority": schedule_priority,
            "resourceSelectors": [{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "r"}]}});
    control_plane.create(&cluster_policy(), "", &wanted_cluster_policy).await.unwrap();
    let template = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "r"}, "rules": []});
    control_plane.create(&role, "", &template).await.unwrap();

    let cluster_bindings =
        custom("work.karmada.io", "v1alpha2", "clusterresourcebindings", "ClusterResourceBinding", false);
    let has_no_priority = |binding: &Value| binding["spec"]["schedulePriority"].is_null();
    env.wait_for(&control_plane, &cluster_bindings, "", "r-clusterrole", has_no_priority).await;
    env.wait_for(&control_plane, &config_map(), "default", "app", is_claimed_by("p")).await;
    env.wait_until_idle().await;
    assert_eq!(control_plane.get(Target::new(&binding(), "default", "app-configmap")).await.unwrap(), None);

    let classes = Resource::builtin("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false);
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"},
        "value": 7});
    control_plane.create(&classes, "", &class).await.unwrap();
    let has_priority = |binding: &Value| binding["spec"]["schedulePriority"]["priority"] == 7;
    env.wait_for(&control_plane, &binding(), "default", "app-configmap", has_priority).await;
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_on_templates_report_preemption_and_failures() {
    let env = TestEnv::start(&[]).await;
    let control_plane = env.objects();
    let low = unscheduled_policy("low", "v1", "ConfigMap", json!({}));
    control_plane.create(&propagation_policy(), "default", &low).await.unwrap();
    control_plane.create(&config_map(), "default", &config_map_with_label("app", "app")).await.unwrap();
    env.wait_for(&control_plane, &config_map(), "default", "app", is_claimed_by("low")).await;
    let mut high = unscheduled_policy("high", "v1", "ConfigMap", json!({"name": "app"}));
    high["spec"]["priority"] = json!(1);
    high["spec"]["preemption"] = json!("Always");
    control_plane.create(&propagation_policy(), "default", &high).await.unwrap();
    let message = env.event_message("PreemptPolicySucceed", "app").await;
    assert_eq!(message, "Propagation policy(default/high) preempted propagation policy(default/low) successfully");
    env.wait_for(&control_plane, &config_map(), "default", "app", is_claimed_by("high")).await;

    let script = "function GetReplicas(obj) error('unknown replicas', 0) end";
    customize(&control_plane, json!({"replicaResource": {"luaScript": script}})).await;
    let manifest = unscheduled_policy("p", "apps/v1", "Deployment", json!({}));
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    control_plane.create(&deployment(), "default", &web(2)).await.unwrap();
    let message = env.event_message("GetReplicasFailed", "web").await;
    assert!(message.ends_with("unknown replicas"), "{message}");
    let message = env.event_message("ApplyPolicyFailed", "web").await;
    assert!(
        message.starts_with("Apply policy(default/p) failed: ") && message.ends_with("unknown replicas"),
        "{message}"
    );
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disabled_controllers_and_skipped_objects_have_no_effect() {
    let config = Config {
        controllers: "*,-namespace".parse().unwrap(),
        skipped_apis: "v1/ConfigMap".parse().unwrap(),
        ..Config::conformance()
    };
    let env = TestEnv::start_with_config(&[], config).await;
    let control_plane = env.objects();
    control_plane.create(&config_map(), "default", &config_map_with_label("app", "app")).await.unwrap();
    let secret = builtin("", "secrets", "Secret");
    for (name, kind) in [("config-maps", "ConfigMap"), ("secrets", "Secret")] {
        let manifest = unscheduled_policy(name, "v1", kind, json!({}));
        control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    }
    let template = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default"}});
    control_plane.create(&secret, "default", &template).await.unwrap();
    env.wait_for(&control_plane, &secret, "default", "s", is_claimed_by("secrets")).await;
    env.manager.run_full_resync().await.unwrap();
    assert_eq!(env.reconciles("namespace-sync-controller").await, 0);
    let app = control_plane.get(Target::new(&config_map(), "default", "app")).await.unwrap().unwrap();
    assert_eq!(app["metadata"]["labels"], json!({"app": "app"}));
    env.stop().await;
}

/// Names of Roles may contain colons and capitals, which names of bindings must not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_with_one_default_binding_name_have_a_binding_and_a_work_each() {
    let env = TestEnv::start(&["m1"]).await;
    let (control_plane, m1) = (env.objects(), env.member("m1"));
    let roles = builtin("rbac.authorization.k8s.io", "roles", "Role");
    let role = |name: &str, resource: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": name, "namespace": "default"},
            "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]})
    };
    let allows = |resource: &'static str| move |role: &Value| role["rules"][0]["resources"] == json!([resource]);
    let manifest = policy("p", "Role", "rbac.authorization.k8s.io/v1", placed_in("m1"));
    control_plane.create(&propagation_policy(), "default", &manifest).await.unwrap();
    let all = [("a:b", "pods"), ("a.b", "services"), ("A.B", "secrets")];
    let mut bindings = std::collections::BTreeSet::new();
    for (name, resource) in all {
        control_plane.create(&roles, "default", &role(name, resource)).await.unwrap();
        env.wait_for(&m1, &roles, "default", name, allows(resource)).await;
        let identity = ObjectIdentity::new("rbac.authorization.k8s.io/v1", "Role", "default", name);
        let key = match name {
            "a:b" => identity.default_binding_key(),
            _ => identity.hash_suffixed_binding_key(),
        };
        let is_its = |binding: &Value| identity.is_template_of(binding);
        let bound = env.wait_for(&control_plane, &binding(), "default", &key.name, is_its).await;
        assert_eq!(bound["metadata"]["labels"][CLAIM], "id-of-p");
        bindings.insert(key.name.clone());
    }
    assert_eq!(bindings.len(), all.len());
    env.wait_until_settled().await;
    let before = env.last_writes();
    env.manager.run_full_resync().await.unwrap();
    env.wait_until_settled().await;
    assert_eq!(before, env.last_writes(), "a full resync wrote something");

    // The others keep their bindings after the first is deleted.
    control_plane.delete(Target::new(&roles, "default", "a:b")).await.unwrap();
    control_plane.delete(Target::new(&binding(), "default", "a.b-role")).await.unwrap();
    env.wait_for_deletion(&m1, &roles, "default", "a:b").await;
    merge(&control_plane, &roles, "a.b", json!({"rules": role("", "nodes")["rules"]})).await;
    env.wait_for(&m1, &roles, "default", "a.b", allows("nodes")).await;
    env.wait_for(&m1, &roles, "default", "A.B", allows("secrets")).await;
    env.wait_until_settled().await;
    env.wait_for_deletion(&control_plane, &binding(), "default", "a.b-role").await;
    env.stop().await;
}
