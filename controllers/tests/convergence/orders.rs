//! Random orders of the same changes.

use crowsnest_controllers::runtime::dynamic_client::{Objects, Target};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::end::End;
use super::{resource_of, text};
use crate::test_env::{TIMEOUT, TestEnv};

const ORDERS: usize = 6;
/// Probability of waiting until all controllers are idle between two steps.
const RESTS: f64 = 0.2;

/// A change of an object.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Step {
    Create(Value),
    Merge(Value),
    Delete(Value),
}

impl Step {
    async fn take(&self, objects: &Objects) {
        let (Step::Create(object) | Step::Merge(object) | Step::Delete(object)) = self;
        let resource = resource_of(object);
        let target = Target::new(&resource, text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        match self {
            Step::Create(object) => objects.create(&resource, target.namespace, object).await.map(drop),
            Step::Merge(patch) => objects.merge(target, patch).await.map(drop),
            Step::Delete(_) => objects.delete(target).await,
        }
        .unwrap();
    }
}

/// A fixed seed in CI, a random one elsewhere. The environment variable CROWSNEST_ORDER_SEED overrides both.
fn seed() -> u64 {
    let usual = || if std::env::var("CI").as_deref() == Ok("true") { 1 } else { rand::random() };
    std::env::var("CROWSNEST_ORDER_SEED").map_or_else(|_| usual(), |text| text.parse().expect("a number"))
}

/// Applies all steps in a random order, in a new namespace.
async fn apply_all(env: &TestEnv, namespace: &str, rng: &mut StdRng) {
    let objects = env.objects();
    let own = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    objects.create(&resource_of(&own), "", &own).await.unwrap();
    let chains = include_str!("chains.yaml").replace("NS", namespace);
    let chains: Vec<Vec<Step>> = serde_saphyr::from_str(&chains).unwrap();
    let mut order: Vec<usize> =
        chains.iter().enumerate().flat_map(|(nth, chain)| std::iter::repeat_n(nth, chain.len())).collect();
    order.shuffle(rng);
    let mut chains: Vec<_> = chains.iter().map(|chain| chain.iter()).collect();
    for nth in order {
        chains[nth].next().unwrap().take(&objects).await;
        if rng.random_bool(RESTS) {
            env.wait_until_idle().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_final_state_does_not_depend_on_the_order_of_changes() {
    let seed = seed();
    println!("CROWSNEST_ORDER_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let env = TestEnv::start(&["m1", "m2"]).await;
    let namespaces: Vec<String> = (0..ORDERS).map(|nth| format!("order-{nth}")).collect();
    for namespace in &namespaces {
        apply_all(&env, namespace, &mut rng).await;
    }
    let until = Instant::now() + 2 * TIMEOUT;
    let end = loop {
        env.wait_until_settled().await;
        let first = End::of(&env, &namespaces[0]).await;
        let mut differences = Vec::new();
        for namespace in &namespaces[1..] {
            differences.extend(End::of(&env, namespace).await.differences(&first, namespace));
        }
        let before = env.last_writes();
        env.manager.full_resync().await.unwrap();
        env.wait_until_settled().await;
        if differences.is_empty() && env.last_writes() == before {
            break first;
        }
        assert!(Instant::now() < until, "CROWSNEST_ORDER_SEED={seed}: {differences:#?}");
    };
    insta::assert_yaml_snapshot!("end", end);
    env.stop().await;
}
