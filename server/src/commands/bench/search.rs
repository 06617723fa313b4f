//! `crowsnest bench search`: measures searches by a user who may read some namespaces of every cluster, with and
//! without changes of pods and concurrent users, and compares them with kubectl and jq.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use crowsnest_apimachinery::user::UserInfo;
use crowsnest_index::GlobalCache;
use crowsnest_search::SuggestRequest;
use tokio::process::Command;

use super::super::cache_options::CacheOptionsArgs;
use super::cache::MeasurementPrinter;
use super::environment::{BenchEnvironment, MembersProcess, PodArgs, set_churn, stop, wait_until_complete};
use super::reads::{QUERIES, search_request};
use super::scratch::ScratchArgs;

#[derive(Debug, Clone, Args)]
pub(super) struct SearchArgs {
    #[command(flatten)]
    pods: PodArgs,
    /// Number of sequential searches
    #[arg(long = "asks", default_value_t = 800)]
    searches: usize,
    /// Changes of pods per second in the second part of the measurement
    #[arg(long, default_value_t = 500.0, value_name = "N")]
    churn: f64,
    /// Number of concurrent users
    #[arg(long, default_value_t = 50)]
    users: usize,
    /// Duration of the concurrent searches in seconds, once without and once with changes
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// kubectl program for the comparison; requires jq
    #[arg(long, value_name = "PROGRAM")]
    kubectl: Option<std::path::PathBuf>,
    #[command(flatten)]
    cache: CacheOptionsArgs,
}

/// The search query and the jq filter that are compared.
const COMPARED_QUERY: (&str, &str) = (
    "kind:pod status:CrashLoopBackOff",
    ".items[] | select(any(.status.containerStatuses[]?; .state.waiting.reason == \"CrashLoopBackOff\")) | .metadata.name",
);
/// Partial queries for suggestions.
const PARTIAL_QUERIES: [&str; 6] =
    ["kind:po", "status:", "kind:pod namespace:team-1", "image:app", "kind:pod label:app=app-1", "restarts:>1 node:"];
/// Number of queries for the parser measurement.
const PARSED_QUERIES: usize = 200_000;

pub(super) async fn run(args: &SearchArgs, scratch: &ScratchArgs) -> anyhow::Result<()> {
    let environment = BenchEnvironment::start(&args.pods, scratch).await?;
    let mut printer = MeasurementPrinter { out: std::io::stdout().lock() };
    measure_parser(&mut printer)?;
    let start = Instant::now();
    let (cache, interest) = environment.open(&args.cache).await?;
    wait_until_complete(&cache, args.pods.clusters).await?;
    let target = cache.seq();
    cache.searcher().searchable().wait_for(|seq| *seq >= target).await?;
    printer.print("search/filled", start.elapsed().as_secs_f64(), "s")?;
    let segments = cache.metrics().text_segments.get();
    super::wait_until_idle().await?;
    printer.print("search/merged", start.elapsed().as_secs_f64(), "s")?;
    printer.print("search/segments-before", segments as f64, "")?;
    printer.print("search/segments", cache.metrics().text_segments.get() as f64, "")?;
    printer.print("search/objects", args.pods.pods as f64, "")?;
    printer.print("search/rss", super::resident_bytes()? as f64 / 1e6, "MB")?;

    let tenant = UserInfo::new("tenant", ["system:authenticated"]);
    let mut searches = SearchMeasurement { cache: &cache, user: tenant, args, printer: &mut printer };
    searches.measure_queries("search/tenant").await?;
    searches.measure_distinct_queries("search/first", distinct_queries(args.searches, 0)).await?;
    searches.measure_distinct_queries("search/mistaken", queries_without_hits(args.searches / 4)).await?;
    searches.measure_suggestions("search/suggest").await?;
    searches.measure_concurrent_users("search").await?;
    set_churn(&environment.members.address, args.churn).await?;
    searches.measure_queries("search/churn/tenant").await?;
    searches.measure_distinct_queries("search/churn/first", distinct_queries(args.searches, 1)).await?;
    searches.measure_suggestions("search/churn/suggest").await?;
    searches.measure_concurrent_users("search/churn").await?;
    set_churn(&environment.members.address, 0.0).await?;
    // All changes must be searchable before results are compared.
    let target = cache.seq();
    cache.searcher().searchable().wait_for(|seq| *seq >= target).await?;
    searches.measure_kubectl_and_jq(&environment.members).await?;
    stop(cache, interest).await;
    environment.stop().await
}

fn measure_parser(printer: &mut MeasurementPrinter<impl Write>) -> anyhow::Result<()> {
    let (start, limits) = (Instant::now(), crowsnest_query::Limits::default());
    let mut terms = 0_usize;
    for nth in 0..PARSED_QUERIES {
        let parsed = crowsnest_query::parse(QUERIES[nth % QUERIES.len()], &limits).context("a query was rejected")?;
        parsed.filter.for_each_term(&mut |_| terms += 1);
    }
    ensure!(terms > PARSED_QUERIES, "the queries have no terms");
    printer.print("search/parser", PARSED_QUERIES as f64 / start.elapsed().as_secs_f64(), "queries/s")
}

/// Measurements of searches by one user.
struct SearchMeasurement<'a, W> {
    cache: &'a GlobalCache,
    user: UserInfo,
    args: &'a SearchArgs,
    printer: &'a mut MeasurementPrinter<W>,
}

impl<W: Write> SearchMeasurement<'_, W> {
    /// Measures sequential searches, each query of [`QUERIES`] equally often; prints percentiles of all searches and the
    /// median of each query.
    async fn measure_queries(&mut self, name: &str) -> anyhow::Result<()> {
        let mut all = Vec::with_capacity(self.args.searches);
        let mut by_query = vec![Vec::new(); QUERIES.len()];
        for nth in 0..self.args.searches {
            let duration = time_search(self.cache, &self.user, QUERIES[nth % QUERIES.len()]).await?;
            all.push(duration);
            by_query[nth % QUERIES.len()].push(duration);
        }
        self.printer.print_percentiles(name, all)?;
        for (query, mut times) in QUERIES.iter().zip(by_query) {
            times.sort_unstable();
            self.printer.print_milliseconds(
                &format!("{name}-p50[{query}]"),
                times.get(times.len() / 2).copied().unwrap_or_default(),
            )?;
        }
        Ok(())
    }

    /// Measures sequential, distinct searches.
    async fn measure_distinct_queries(
        &mut self,
        name: &str,
        queries: impl Iterator<Item = String>,
    ) -> anyhow::Result<()> {
        let mut all = Vec::new();
        for query in queries {
            all.push(time_search(self.cache, &self.user, &query).await?);
        }
        self.printer.print_percentiles(name, all)
    }

    async fn measure_suggestions(&mut self, name: &str) -> anyhow::Result<()> {
        let mut times = Vec::with_capacity(self.args.searches);
        for nth in 0..self.args.searches {
            let query = PARTIAL_QUERIES[nth % PARTIAL_QUERIES.len()].to_owned();
            let request =
                SuggestRequest { query: query.clone(), cursor: usize::MAX, caller: self.user.clone(), limit: 20 };
            let start = Instant::now();
            let suggestions = self.cache.searcher().suggest(&request).await?;
            times.push(start.elapsed());
            ensure!(!suggestions.items.is_empty(), "no suggestions for {query}");
        }
        self.printer.print_percentiles(name, times)
    }

    /// Measures the searches of concurrent users, each of whom searches without pause.
    async fn measure_concurrent_users(&mut self, prefix: &str) -> anyhow::Result<()> {
        let end = Instant::now() + Duration::from_secs(self.args.seconds);
        let mut users = tokio::task::JoinSet::new();
        for user in 0..self.args.users {
            let (cache, tenant) = (self.cache.clone(), self.user.clone());
            users.spawn(async move {
                let mut all = Vec::new();
                while Instant::now() < end {
                    let query = QUERIES[(user + all.len()) % QUERIES.len()];
                    all.push(time_search(&cache, &tenant, query).await?);
                }
                Ok::<_, anyhow::Error>(all)
            });
        }
        let mut all = Vec::new();
        while let Some(result) = users.join_next().await {
            all.extend(result??);
        }
        let name = format!("{prefix}/users-{}", self.args.users);
        self.printer.print(&name, all.len() as f64 / self.args.seconds as f64, "answers/s")?;
        self.printer.print_percentiles(&name, all)
    }

    /// Measures [`COMPARED_QUERY`] with kubectl and jq, cluster by cluster, and as one search; fails if the results differ.
    async fn measure_kubectl_and_jq(&mut self, members: &MembersProcess) -> anyhow::Result<()> {
        let Some(kubectl) = &self.args.kubectl else { return Ok(()) };
        let (query, filter) = COMPARED_QUERY;
        let start = Instant::now();
        let mut line_count = 0;
        for cluster in 0..self.args.pods.clusters {
            let server = format!("http://{}/c/{cluster}", members.address);
            let mut listing = Command::new(kubectl)
                .args(["--server", &server, "get", "pods", "-A", "-o", "json"])
                .env("KUBECONFIG", "/dev/null")
                .stdout(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
                .context("cannot start kubectl")?;
            let list: Stdio = listing.stdout.take().context("kubectl has no output")?.try_into()?;
            let jq_output =
                Command::new("jq").args(["-r", filter]).stdin(list).output().await.context("cannot start jq")?;
            ensure!(listing.wait().await?.success() && jq_output.status.success(), "kubectl or jq failed");
            line_count += String::from_utf8_lossy(&jq_output.stdout).lines().count();
        }
        self.printer.print_milliseconds("search/kubectl-and-jq", start.elapsed())?;
        let start = Instant::now();
        let response = self.cache.searcher().search_all(search_request(query, UserInfo::system())).await?;
        self.printer.print_milliseconds("search/same-question", start.elapsed())?;
        let total = response.summary.map_or(0, |summary| summary.total);
        ensure!(total == line_count as u64, "kubectl and jq find {line_count}, the search {total}");
        Ok(())
    }
}

/// Distinct queries with numbers that occur in some pods; another salt gives other numbers.
fn distinct_queries(times: usize, salt: usize) -> impl Iterator<Item = String> {
    (0..times).map(move |nth| {
        let number = (nth * 7 + salt) % 500;
        match nth % 8 {
            0 => format!("kind:pod status:CrashLoopBackOff node:node-{number}"),
            1 => format!("app-{number}"),
            2 => format!("namespace:team-{} restarts:<{}", number % 50, number + 10),
            3 => format!("image:app-{number} -status:Running"),
            4 => format!("label:tier=t1 node:node-{number}"),
            5 => format!("\"setting 3 of app-{number}\""),
            6 => format!("name:/app-{number}.*/ kind:pod sort:-restarts"),
            _ => format!("tier=t2 -node:node-{number} back-off"),
        }
    })
}

/// Queries without hits, for which suggestions are computed.
fn queries_without_hits(times: usize) -> impl Iterator<Item = String> {
    (0..times).map(|nth| match nth % 2 {
        0 => format!("kind:pod apq-{nth}"),
        _ => format!("status:CrashLoopBackOff node:nodes-{nth}"),
    })
}

async fn time_search(cache: &GlobalCache, user: &UserInfo, query: &str) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let response = cache.searcher().search_all(search_request(query, user.clone())).await?;
    let duration = start.elapsed();
    ensure!(response.summary.is_some_and(|summary| !summary.incomplete), "{query} timed out");
    Ok(duration)
}
