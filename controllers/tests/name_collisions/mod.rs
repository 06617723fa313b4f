//! Objects whose derived names collide: an object does not take over a binding or Work that belongs to another one.

use crowsnest_api::names::work_name;
use crowsnest_api::object_identity::ObjectIdentity;
use crowsnest_controllers::runtime::dynamic_client::{Resource, Target};
use serde_json::{Value, json};

use crate::binding;
use crate::test_env::{TestEnv, builtin, custom};

/// Namespaces with equal 32-bit FNV-1a hashes. Hashes of texts that begin with them and continue equally are equal, too.
const COLLIDING: [&str; 2] = ["costarring", "liquid"];

fn config_map() -> Resource {
    builtin("", "configmaps", "ConfigMap")
}

fn work() -> Resource {
    custom("work.karmada.io", "v1alpha1", "works", "Work", true)
}

fn template(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}, "data": {"from": namespace}})
}

async fn start() -> TestEnv {
    let env = TestEnv::start(&["m1"]).await;
    let resource =
        custom("policy.karmada.io", "v1alpha1", "clusterpropagationpolicies", "ClusterPropagationPolicy", false);
    let policy = json!({
        "apiVersion": "policy.karmada.io/v1alpha1", "kind": "ClusterPropagationPolicy",
        "metadata": {"name": "p", "labels": {"clusterpropagationpolicy.karmada.io/permanent-id": "id-of-p"}},
        "spec": {"resourceSelectors": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "app"}],
            "placement": {"clusterAffinity": {"clusterNames": ["m1"]}}},
    });
    env.objects().create(&resource, "", &policy).await.unwrap();
    env
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_binding_does_not_take_the_work_of_an_object_with_the_same_hash() {
    let env = start().await;
    let (control_plane, m1) = (env.objects(), env.member("m1"));
    let namespaces = Resource::builtin("", "v1", "namespaces", "Namespace", false);
    let [first, second] = COLLIDING;
    for namespace in COLLIDING {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        control_plane.create(&namespaces, "", &object).await.unwrap();
    }
    let name = work_name("ConfigMap", "app", first);
    assert_eq!(name, work_name("ConfigMap", "app", second));

    control_plane.create(&config_map(), first, &template(first, "app")).await.unwrap();
    env.wait_for(&m1, &config_map(), first, "app", |_| true).await;
    control_plane.create(&config_map(), second, &template(second, "app")).await.unwrap();
    let message = env.event_message_in(second, "SyncWorkFailed", "app").await;
    let expected = format!(
        "cannot write Work karmada-es-m1/{name} for ConfigMap {second}/app: it belongs to ResourceBinding \
         {first}/app-configmap; rename the object"
    );
    assert_eq!(message, expected);
    assert_eq!(env.event_message_in("karmada-es-m1", "SyncWorkFailed", &name).await, expected);
    let held = control_plane.get(Target::new(&work(), "karmada-es-m1", &name)).await.unwrap().unwrap();
    assert_eq!(held["spec"]["workload"]["manifests"][0]["metadata"]["namespace"], first);

    // Each explanation shows only the Work of its own binding.
    for (namespace, work) in [(first, Some(name.as_str())), (second, None)] {
        let explanation = env.manager.reports().explain(&config_map(), namespace, "app").await.unwrap().unwrap();
        let works: Vec<Option<&str>> =
            explanation.targets.iter().map(|target| target.work.as_ref().map(|work| work.name.as_str())).collect();
        assert_eq!(works, [work], "{namespace}");
    }

    // The name is free after the first object is deleted.
    control_plane.delete(Target::new(&config_map(), first, "app")).await.unwrap();
    control_plane.delete(Target::new(&binding(), first, "app-configmap")).await.unwrap();
    env.wait_for(&m1, &config_map(), second, "app", |_| true).await;
    env.wait_for_deletion(&m1, &config_map(), first, "app").await;
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_does_not_take_the_work_of_another_object() {
    let env = start().await;
    let control_plane = env.objects();
    let name = work_name("Namespace", "team", "");
    let by_hand = json!({
        "apiVersion": "work.karmada.io/v1alpha1", "kind": "Work",
        "metadata": {"name": name, "namespace": "karmada-es-m1"},
        "spec": {"workload": {"manifests": [template("default", "own")]}},
    });
    control_plane.create(&work(), "karmada-es-m1", &by_hand).await.unwrap();
    let team = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}});
    control_plane.create(&Resource::builtin("", "v1", "namespaces", "Namespace", false), "", &team).await.unwrap();
    let message = env.event_message_in("karmada-es-m1", "SyncWorkFailed", &name).await;
    let expected = format!(
        "cannot write Work karmada-es-m1/{name} for Namespace team: it belongs to ConfigMap default/own; rename the object"
    );
    assert_eq!(message, expected);
    let held = control_plane.get(Target::new(&work(), "karmada-es-m1", &name)).await.unwrap().unwrap();
    assert_eq!(held["spec"], by_hand["spec"]);
    env.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_does_not_take_the_binding_of_another_object() {
    let env = start().await;
    let control_plane = env.objects();
    let object = template("default", "app");
    let identity = ObjectIdentity::from_object(&object);
    let names = [identity.default_binding_key(), identity.hash_suffixed_binding_key()].map(|key| key.name.clone());
    for name in &names {
        let other = json!({
            "apiVersion": "work.karmada.io/v1alpha2", "kind": "ResourceBinding",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"resource": {"apiVersion": "v1", "kind": "Secret", "namespace": "default", "name": "app"}},
        });
        control_plane.create(&binding(), "default", &other).await.unwrap();
    }
    control_plane.create(&config_map(), "default", &object).await.unwrap();
    let message = env.event_message_in("default", "ApplyPolicyFailed", "app").await;
    let [default, suffixed] = names;
    let expected = format!(
        "Apply cluster policy(p) failed: cannot create a binding for ConfigMap default/app: the names {default:?} and \
         {suffixed:?} are used by bindings of other objects; rename the object"
    );
    assert_eq!(message, expected);
    env.stop().await;
}
