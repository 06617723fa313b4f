//! Random orders of the same changes.

use crowsnest_controllers::runtime::dynamic_client::{DynamicClient, Target};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::final_state::FinalState;
use super::{resource_of, text};
use crate::test_env::{TIMEOUT, TestEnv};

const ORDERS: usize = 6;
/// Probability of waiting until all controllers are idle between two changes.
const IDLE_PROBABILITY: f64 = 0.2;

/// A change of an object.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Change {
    Create(Value),
    Merge(Value),
    Delete(Value),
}

impl Change {
    async fn apply(&self, objects: &DynamicClient) {
        let (Change::Create(object) | Change::Merge(object) | Change::Delete(object)) = self;
        let resource = resource_of(object);
        let target = Target::new(&resource, text(object, "/metadata/namespace"), text(object, "/metadata/name"));
        match self {
            Change::Create(object) => objects.create(&resource, target.namespace, object).await.map(drop),
            Change::Merge(patch) => objects.merge(target, patch).await.map(drop),
            Change::Delete(_) => objects.delete(target).await,
        }
        .unwrap();
    }
}

/// A fixed seed in CI, a random one elsewhere. The environment variable CROWSNEST_ORDER_SEED overrides both.
fn seed() -> u64 {
    let usual = || if std::env::var("CI").as_deref() == Ok("true") { 1 } else { rand::random() };
    std::env::var("CROWSNEST_ORDER_SEED").map_or_else(|_| usual(), |text| text.parse().expect("a number"))
}

/// Applies all changes in a random order, in a new namespace.
async fn apply_all(env: &TestEnv, namespace: &str, rng: &mut StdRng) {
    let objects = env.objects();
    let own = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    objects.create(&resource_of(&own), "", &own).await.unwrap();
    let chains = include_str!("chains.yaml").replace("NS", namespace);
    let chains: Vec<Vec<Change>> = serde_saphyr::from_str(&chains).unwrap();
    let mut order: Vec<usize> =
        chains.iter().enumerate().flat_map(|(index, chain)| std::iter::repeat_n(index, chain.len())).collect();
    order.shuffle(rng);
    let mut chains: Vec<_> = chains.iter().map(|chain| chain.iter()).collect();
    for index in order {
        chains[index].next().unwrap().apply(&objects).await;
        if rng.random_bool(IDLE_PROBABILITY) {
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
    let namespaces: Vec<String> = (0..ORDERS).map(|index| format!("order-{index}")).collect();
    for namespace in &namespaces {
        apply_all(&env, namespace, &mut rng).await;
    }
    let deadline = Instant::now() + 2 * TIMEOUT;
    let final_state = loop {
        env.wait_until_settled().await;
        let first = FinalState::read(&env, &namespaces[0]).await;
        let mut differences = Vec::new();
        for namespace in &namespaces[1..] {
            differences.extend(FinalState::read(&env, namespace).await.differences(&first, namespace));
        }
        let before = env.last_writes();
        env.manager.run_full_resync().await.unwrap();
        env.wait_until_settled().await;
        if differences.is_empty() && env.last_writes() == before {
            break first;
        }
        assert!(Instant::now() < deadline, "CROWSNEST_ORDER_SEED={seed}: {differences:#?}");
    };
    insta::assert_yaml_snapshot!("final_state", final_state);
    env.stop().await;
}
