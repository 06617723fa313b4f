//! `crowsnest bench paths`: measures paths and blast radius in a fleet of applications: pods with their owners, Services,
//! EndpointSlices, Ingresses and ConfigMaps. Each request concerns another application.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use crowsnest_apimachinery::names::{ClusterName, Gvr};
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::{CollectionKey, GlobalCache, RecordKey};
use crowsnest_query::path::PathPattern;
use crowsnest_search::paths::{CLOSURE_STEPS, DependencyDirection};

use super::super::cache_options::CacheOptionsArgs;
use super::cache::MeasurementPrinter;
use super::environment::{BenchEnvironment, PodArgs, pods as pod_resource, stop, wait_until_complete};
use super::pods::{NAMESPACES, Pods, namespace};
use super::scratch::ScratchArgs;
use super::topology::{self, settings_name};

/// Number of paths in an answer, as in `crowsnest path`.
const LIMIT: usize = 100;
/// Maximum time of an answer: the time limit of a search, and the time to list the paths that it found.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(15);
/// Time after which tokio ends idle threads of blocking work, whose free memory the allocator then reuses or returns.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Args)]
pub(super) struct PathsArgs {
    #[command(flatten)]
    pods: PodArgs,
    /// Number of requests of each kind
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    requests: u32,
    #[command(flatten)]
    cache: CacheOptionsArgs,
}

/// The searched cache, and the user who sends the requests. RBAC allows the user to list the objects in the cache.
struct PathBench<'c> {
    cache: &'c GlobalCache,
    reader: UserInfo,
    pods: Pods,
    clusters: usize,
    requests: usize,
}

pub(super) async fn run(args: &PathsArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    let pods = Pods { fleet_pods: args.pods.pods, bytes: args.pods.pod_bytes };
    ensure!(
        pods.fleet_pods > 0 && pods.apps().is_multiple_of(NAMESPACES),
        "an application must be in one namespace: use a multiple of 2,500 pods"
    );
    let environment = BenchEnvironment::start(&args.pods, scratch).await?;
    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };
    let start = Instant::now();
    let resources = topology::KINDS.map(|(group, resource, _)| Gvr::new(group, "v1", resource));
    let all_resources = resources.iter().cloned().chain([pod_resource()]);
    let (cache, interests) = environment.open_resources(&args.cache, all_resources).await?;
    wait_until_complete(&cache, args.pods.clusters).await?;
    for resource in resources {
        for nth in 0..args.pods.clusters {
            let cluster = ClusterName::parse(&format!("bench{nth}"))?;
            cache.wait_until_complete(&CollectionKey::new(cluster, resource.clone())).await;
        }
    }
    let target = cache.seq();
    cache.searcher().searchable().wait_for(|seq| *seq >= target).await?;
    printer.print("paths/filled", start.elapsed().as_secs_f64(), "s")?;
    super::wait_until_idle().await?;
    printer.print("paths/pods", args.pods.pods as f64, "")?;
    printer.print_megabytes("paths/rss", super::resident_bytes()?)?;
    printer.print_megabytes("paths/rss-anon", super::anonymous_bytes()?)?;
    let bench = PathBench {
        cache: &cache,
        reader: UserInfo::new("reader", ["system:authenticated"]),
        pods,
        clusters: args.pods.clusters as usize,
        requests: args.requests as usize,
    };
    bench.measure_paths("paths/3-hops", false, &mut printer, three_hops).await?;
    bench.measure_paths("paths/shortest", true, &mut printer, shortest).await?;
    bench.measure_blast_radius(&mut printer).await?;
    printer.print_megabytes("paths/rss-before-all-pods", super::resident_bytes()?)?;
    printer.print_megabytes("paths/rss-anon-before-all-pods", super::anonymous_bytes()?)?;
    bench.measure_all_pods(&mut printer).await?;
    printer.print_megabytes("paths/rss-after", super::resident_bytes()?)?;
    printer.print_megabytes("paths/rss-anon-after", super::anonymous_bytes()?)?;
    tokio::time::sleep(THREAD_KEEP_ALIVE).await;
    super::wait_until_idle().await?;
    printer.print_megabytes("paths/rss-idle", super::resident_bytes()?)?;
    printer.print_megabytes("paths/rss-anon-idle", super::anonymous_bytes()?)?;
    stop(cache, interests).await;
    environment.stop().await
}

/// A pattern of three hops that begins or ends at an object of the application.
fn three_hops(nth: usize, app: usize) -> String {
    let (namespace, settings) = (namespace(app), settings_name(app));
    match nth % 3 {
        0 => format!("configmap/{namespace}/{settings} <-USES- deployment -OWNS*2-> pod"),
        1 => format!("ingress/{namespace}/app-{app} -ROUTES_TO*3-> pod"),
        _ => format!("service/{namespace}/app-{app} -SELECTS-> pod <-OWNS*2- deployment"),
    }
}

/// A pattern of up to four hops of any type between the ConfigMap of an application and its Ingress.
fn shortest(_: usize, app: usize) -> String {
    format!("configmap/{}/{} -*..4- ingress", namespace(app), settings_name(app))
}

impl PathBench<'_> {
    /// The application of the request number `nth`. Consecutive requests concern distant applications.
    fn app(&self, nth: usize) -> usize {
        nth.wrapping_mul(7_919) % self.pods.apps()
    }

    async fn measure_paths(
        &self,
        name: &str,
        only_shortest: bool,
        printer: &mut MeasurementPrinter<impl Write>,
        pattern: impl Fn(usize, usize) -> String,
    ) -> anyhow::Result<()> {
        let (mut times, mut incomplete_count) = (Vec::with_capacity(self.requests), 0_u32);
        for nth in 0..self.requests {
            let text = pattern(nth, self.app(nth));
            let pattern: PathPattern = text.parse()?;
            let start = Instant::now();
            let found = self.cache.searcher().paths(&self.reader, pattern, only_shortest, LIMIT).await?;
            times.push(start.elapsed());
            ensure!(found.total > 0 || found.graph.incomplete, "no path matches {text}: {:?}", found.graph.notices);
            ensure!(
                !found.graph.incomplete || !found.graph.notices.is_empty(),
                "the answer for {text} is incomplete, but has no notice"
            );
            incomplete_count += u32::from(found.graph.incomplete);
        }
        printer.print_percentiles(name, times)?;
        printer.print(&format!("{name}-bounded"), f64::from(incomplete_count), "answers")
    }

    /// Measures the objects that depend on the ConfigMap of an application.
    async fn measure_blast_radius(&self, printer: &mut MeasurementPrinter<impl Write>) -> anyhow::Result<()> {
        let (mut times, mut incomplete_count) = (Vec::with_capacity(self.requests), 0_u32);
        for nth in 0..self.requests {
            let app = self.app(nth);
            let cluster = ClusterName::parse(&format!("bench{}", app % self.clusters))?;
            let config_maps = Gvr::new("", "v1", "configmaps");
            let key = RecordKey::new(cluster, config_maps, &namespace(app), &settings_name(app));
            let start = Instant::now();
            let searcher = self.cache.searcher();
            let found = searcher.closure(&self.reader, &key, DependencyDirection::Dependents, CLOSURE_STEPS).await?;
            times.push(start.elapsed());
            let found = found.with_context(|| format!("the ConfigMap of application {app} is not in the cache"))?;
            ensure!(
                found.graph.incomplete || !found.reached.is_empty(),
                "nothing depends on the ConfigMap of application {app}"
            );
            ensure!(
                !found.graph.incomplete || !found.graph.notices.is_empty(),
                "the blast radius is incomplete, but has no notice"
            );
            incomplete_count += u32::from(found.graph.incomplete);
        }
        printer.print_percentiles("paths/blast-radius", times)?;
        printer.print("paths/blast-radius-bounded", f64::from(incomplete_count), "answers")
    }

    /// Measures a pattern that every pod matches. The search must end in time, and report each limit that it reaches.
    async fn measure_all_pods(&self, printer: &mut MeasurementPrinter<impl Write>) -> anyhow::Result<()> {
        let pattern: PathPattern = "pod <-OWNS- replicaset".parse()?;
        let start = Instant::now();
        let found = self.cache.searcher().paths(&self.reader, pattern, false, LIMIT).await?;
        let time = start.elapsed();
        ensure!(time < MAX_ANSWER_TIME, "the paths of all pods took {} s", time.as_secs());
        ensure!(
            !found.graph.incomplete || !found.graph.notices.is_empty(),
            "the paths of all pods are incomplete, but have no notice"
        );
        printer.print_milliseconds("paths/all-pods", time)?;
        printer.print("paths/all-pods-bounded", if found.graph.incomplete { 1.0 } else { 0.0 }, "answers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_valid_and_bounded() {
        for nth in 0..3 {
            let pattern: PathPattern = three_hops(nth, 42).parse().unwrap();
            assert_eq!(pattern.max_steps(), 3);
        }
        let pattern: PathPattern = shortest(0, 42).parse().unwrap();
        assert_eq!(pattern.max_steps(), 4);
    }
}
