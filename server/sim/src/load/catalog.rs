//! Synthetic workloads (teams, applications, images, sizes), generated from a seed.

use rand::Rng;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// A synthetic Deployment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    pub namespace: String,
    pub name: String,
    pub team: &'static str,
    pub app: &'static str,
    pub tier: &'static str,
    pub env: &'static str,
    pub version: String,
    pub image: String,
    pub port: u16,
    pub replicas: usize,
    /// CPU request in millicores.
    pub cpu_milli: u32,
    /// Memory request in MiB.
    pub memory_mi: u32,
    pub health: PodHealth,
}

/// Health of a workload's pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodHealth {
    Healthy,
    Crashing,
    PullError,
    NotReady,
}

/// Name, tier, image, versions, port, CPU request in millicores, and memory request in MiB.
type App = (&'static str, &'static str, &'static str, [&'static str; 3], u16, u32, u32);

#[rustfmt::skip]
const APPS: [App; 16] = [
    ("web", "frontend", "nginx", ["1.25.5", "1.27.4", "1.29.1"], 80, 50, 64),
    ("storefront", "frontend", "registry.example.com/shop/storefront", ["4.2.0", "4.3.1", "4.4.0"], 3000, 200, 256),
    ("checkout", "backend", "registry.example.com/shop/checkout", ["2.8.3", "2.9.0", "2.9.1"], 8080, 250, 512),
    ("cart", "backend", "registry.example.com/shop/cart", ["1.14.0", "1.15.2", "1.16.0"], 8080, 100, 256),
    ("payments", "backend", "registry.example.com/pay/payments", ["7.0.4", "7.1.0", "7.2.2"], 8443, 300, 768),
    ("search-api", "backend", "registry.example.com/search/api", ["3.1.0", "3.2.0", "3.2.4"], 9000, 500, 1024),
    ("recommender", "ml", "ghcr.io/example/recommender", ["0.9.1", "1.0.0", "1.1.0"], 8501, 1000, 2048),
    ("feature-store", "ml", "ghcr.io/example/feature-store", ["2.0.0", "2.1.3", "2.2.0"], 6566, 400, 1024),
    ("redis", "cache", "redis", ["7.2.5", "7.4.2", "8.0.1"], 6379, 100, 256),
    ("kafka-consumer", "worker", "registry.example.com/stream/consumer", ["5.5.0", "5.6.1", "5.7.0"], 9092, 150, 384),
    ("mailer", "worker", "registry.example.com/notify/mailer", ["1.3.2", "1.4.0", "1.5.0"], 8025, 50, 128),
    ("thumbnailer", "worker", "registry.example.com/media/thumbnailer", ["0.20.0", "0.21.0", "0.22.4"], 8088, 500, 512),
    ("auth", "backend", "registry.example.com/id/auth", ["11.0.0", "11.1.0", "12.0.0"], 8443, 200, 384),
    ("gateway", "edge", "envoyproxy/envoy", ["v1.31.2", "v1.33.0", "v1.34.1"], 10000, 200, 256),
    ("otel-collector", "observability", "otel/opentelemetry-collector", ["0.110.0", "0.118.0", "0.124.1"], 4317, 100, 256),
    ("grafana", "observability", "grafana/grafana", ["11.2.0", "11.5.1", "12.0.0"], 3000, 100, 256),
];
const TEAMS: [&str; 10] =
    ["shop", "payments", "search", "identity", "media", "platform", "data", "mobile", "growth", "logistics"];
const ENVS: [&str; 4] = ["prod", "prod", "staging", "dev"];
const COLORS: [&str; 8] = ["amber", "azure", "coral", "jade", "ivory", "olive", "ruby", "slate"];

/// Generates workloads with `pods` pods in total. Equal seeds generate equal workloads.
pub fn generate_workloads(pods: usize, seed: u64) -> Vec<Workload> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut workloads = Vec::new();
    let mut remaining = pods;
    while remaining > 0 {
        let workload = generate_workload(&mut random, workloads.len(), remaining);
        remaining -= workload.replicas;
        workloads.push(workload);
    }
    workloads
}

fn generate_workload(random: &mut StdRng, number: usize, remaining_pods: usize) -> Workload {
    // The slices are not empty, so the default is never used.
    let pick = |random: &mut StdRng, from: &[&'static str]| from.choose(random).copied().unwrap_or_default();
    let (app, tier, image, versions, port, cpu_milli, memory_mi) = APPS[random.random_range(0..APPS.len())];
    let (team, env) = (pick(random, &TEAMS), pick(random, &ENVS));
    let version = pick(random, &versions);
    // Mostly small workloads, and a few large ones.
    let replicas = match random.random_range(0..100) {
        0..30 => 1,
        30..60 => 2,
        60..85 => random.random_range(3..=6),
        85..97 => random.random_range(7..=20),
        _ => random.random_range(21..=60),
    };
    let health = match random.random_range(0..1000) {
        0..8 => PodHealth::Crashing,
        8..12 => PodHealth::PullError,
        12..20 => PodHealth::NotReady,
        _ => PodHealth::Healthy,
    };
    // Limits the number of workloads per namespace to a few dozen.
    let shard = number / 1000;
    let namespace = if shard == 0 { format!("{team}-{env}") } else { format!("{team}-{env}-{shard}") };
    Workload {
        name: format!("{app}-{}-{number}", pick(random, &COLORS)),
        namespace,
        team,
        app,
        tier,
        env,
        version: version.to_owned(),
        image: format!("{image}:{version}"),
        port,
        replicas: replicas.min(remaining_pods),
        cpu_milli,
        memory_mi,
        health,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_generate_equal_workloads() {
        let load = generate_workloads(10_000, 7);
        assert_eq!(load, generate_workloads(10_000, 7));
        assert_ne!(load, generate_workloads(10_000, 8));
        assert_eq!(load.iter().map(|workload| workload.replicas).sum::<usize>(), 10_000);
        let namespaces: std::collections::HashSet<_> = load.iter().map(|workload| &workload.namespace).collect();
        assert!((20..400).contains(&namespaces.len()), "{}", namespaces.len());
        assert!(load.iter().any(|workload| workload.health == PodHealth::Crashing));
    }
}
